"""An ensemble as a module: what it stacks, how it runs, what it gives back, its file."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn

from probattn import AlignmentAttention, BayesianAttention, RepulsiveAttention
from probattn.inference import ParticleEnsemble, posterior_expectation, posterior_predict
from probattn.inference.elbo import AttentionELBO
from probattn.inference.ensembles.particles import EnsembleObjective
from probattn.inference.guide import AttentionGuide
from probattn.models import Classifier, convert
from probattn.report.sites import weight_spreads


class Tied(nn.Module):
    """A network with a batch norm, dropout and one weight in two places."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.dropout(torch.tanh(self.second(self.norm(self.first(x))))))


def networks(count=3, **options):
    torch.manual_seed(0)
    return [Classifier(Tied(**options)) for _ in range(count)]


def batch(rows=6):
    generator = torch.Generator().manual_seed(1)
    return {"x": torch.randn(rows, 4, generator=generator), "labels": torch.arange(rows) % 3}


def bert_batch(rows=4):
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(8, 60, (rows, 5), generator=generator)
    return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": torch.arange(rows) % 2}


def bert_classifier(bert, *methods):
    torch.manual_seed(0)
    net = bert.classification()
    return Classifier(convert(net, *methods) if methods else net)


def objective(ensemble):
    return EnsembleObjective(ensemble, AttentionELBO()(ensemble.model, AttentionGuide(ensemble.model)))


def alone(model, data):
    """A model's terms and gradients by plain autograd."""
    terms = AttentionELBO()(model, AttentionGuide(model))(data)
    terms.loss.backward()
    return terms, {name: parameter.grad for name, parameter in model.named_parameters()}


def test_particles_are_the_models_they_were_made_of():
    models = networks()
    ensemble = ParticleEnsemble(models[0], 3, initial=models.__getitem__)
    for made, model in zip(ensemble.particles(), models, strict=True):
        assert type(made) is Classifier and made.net.second.weight is made.net.first.weight
        assert {name: list(value.shape) for name, value in made.state_dict().items()} == {
            name: list(value.shape) for name, value in model.state_dict().items()
        }
        for name, value in model.state_dict().items():
            assert torch.equal(made.state_dict()[name], value), name
    outputs = ensemble.eval().outputs(batch())
    for index, model in enumerate(models):
        torch.testing.assert_close(outputs[index], model.eval()(batch()))
    # What was handed in is untouched, and a particle that is changed changes nothing.
    with torch.no_grad():
        ensemble.particle(-1).net.last.weight.zero_()
    assert models[0].net.last.weight.dim() == 2 and torch.equal(ensemble.outputs(batch()), outputs)
    with pytest.raises(IndexError, match="expected a particle below 3, got 3"):
        ensemble.particle(3)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("execution", "chunk"), [("loop", None), ("vectorized", None), ("vectorized", 2)])
def test_every_particle_has_its_own_loss_gradient_and_running_statistics(training, execution, chunk):
    models = networks()
    ensemble = ParticleEnsemble(
        models[0], 3, initial=models.__getitem__, execution=execution, chunk_size=chunk
    )
    ensemble.train(training)
    run = objective(ensemble).train(training)
    terms = run(batch())
    (7 * terms.loss).backward()  # as a gradient scaler or an accumulation does
    expected = [alone(model.train(training), batch()) for model in models]
    losses = torch.stack([found.loss for found, _ in expected])
    torch.testing.assert_close(terms.loss, losses.mean().detach())
    torch.testing.assert_close(terms.log_likelihood, -losses.mean().detach())
    for name, stack in ensemble.stacked_parameters().items():
        for index, (_, gradients) in enumerate(expected):
            torch.testing.assert_close(stack.grad[index], 7 * gradients[name], atol=1e-6, rtol=1e-5, msg=name)
    for name in ensemble.buffer_names:
        for index, model in enumerate(models):
            torch.testing.assert_close(ensemble.stacks()[name][index], model.get_buffer(name))
    assert ensemble.executions == {"objective": execution}


def test_what_is_shared_is_held_once_and_follows_the_mean():
    models = networks(2)
    models[1].load_state_dict(models[0].state_dict())
    with torch.no_grad():
        models[1].net.last.bias.add_(1.0)
    ensemble = ParticleEnsemble(
        models[0], 2, initial=models.__getitem__, parameters="net.last.*", execution="loop"
    )
    assert list(ensemble.named_particles()) == ["net.last.weight", "net.last.bias"]
    sizes = {name: list(parameter.shape) for name, parameter in ensemble.named_parameters()}
    assert sizes["model.net.first.weight"] == [4, 4] and sizes["model.net.last.weight"] == [2, 3, 4]
    objective(ensemble)(batch()).loss.backward()
    gradients = [alone(model, batch())[1] for model in models]
    shared = ensemble.model.net.first.weight.grad
    torch.testing.assert_close(shared, sum(g["net.first.weight"] for g in gradients) / 2)


def test_patterns_and_functions_choose():
    (model,) = networks(1)
    for choice in (["net.last.weight", "net.norm.*"], lambda name, _: "last.w" in name or "norm" in name):
        found = ParticleEnsemble(model, 2, parameters=choice).named_particles()
        assert set(found) == {"net.last.weight", "net.norm.weight", "net.norm.bias"}
    model.net.last.requires_grad_(False)
    assert "net.last.weight" not in ParticleEnsemble(model, 2).named_particles()
    with pytest.raises(
        ValueError, match=r"expected some of the trainable parameters \(net\.first\.weight, .* got none"
    ):
        ParticleEnsemble(model, 2, parameters="net.last.*")


def test_perturbed_particles_differ_by_the_spread_and_the_seed():
    model = nn.Linear(100, 80)
    with torch.no_grad():
        model.bias.zero_()
    ensemble = ParticleEnsemble(model, 4, spread=0.5, seed=3)
    noise = ensemble.named_particles()["weight"] - model.weight.detach()
    size = model.weight.detach().square().mean().sqrt()
    assert noise.std() / size == pytest.approx(0.5, rel=0.02) and abs(noise.mean() / size) < 0.01
    assert ensemble.named_particles()["bias"].std() == pytest.approx(0.5, rel=0.15)
    again, other = (ParticleEnsemble(model, 4, spread=0.5, seed=seed) for seed in (3, 4))
    assert torch.equal(again.model.weight, ensemble.model.weight)
    assert not torch.equal(other.model.weight, ensemble.model.weight)


@pytest.mark.parametrize("training", [True, False])
def test_a_host_runs_vectorised_and_agrees_with_the_loop(bert, training):
    """Without dropout, in double precision, both ways are the same to rounding; dropout differs by its masks alone."""
    model = bert_classifier(bert).double().train(training)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    found = {}
    for execution in ("loop", "vectorized"):
        ensemble = ParticleEnsemble(model, 3, execution=execution)
        run = objective(ensemble).train(training)
        run(bert_batch()).loss.backward()
        found[execution] = ensemble
    for name, stack in found["loop"].stacked_parameters().items():
        other = found["vectorized"].stacked_parameters()[name].grad
        torch.testing.assert_close(stack.grad, other, atol=1e-12, rtol=1e-9, msg=name)
    torch.testing.assert_close(
        found["loop"].eval().outputs(bert_batch()), found["vectorized"].eval().outputs(bert_batch())
    )


def test_dropout_differs_between_particles():
    (model,) = networks(1, dropout=0.5)
    for execution in ("loop", "vectorized"):
        ensemble = ParticleEnsemble(model, 2, spread=0.0, execution=execution).train()
        assert not torch.equal(*ensemble.outputs(batch()))
        assert torch.equal(*ensemble.eval().outputs(batch()))


def test_auto_tries_once_and_leaves_no_trace():
    (model,) = networks(1, dropout=0.5)
    runs = {}
    for execution in ("auto", "vectorized"):
        torch.manual_seed(5)
        ensemble = ParticleEnsemble(model, 3, execution=execution).train()
        run = objective(ensemble).train()
        for _ in range(2):
            run(batch()).loss.backward()
        runs[execution] = ensemble
    assert runs["auto"].executions == {"objective": "vectorized"} == runs["vectorized"].executions
    for one, other in zip(runs["auto"].parameters(), runs["vectorized"].parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    for one, other in zip(runs["auto"].buffers(), runs["vectorized"].buffers(), strict=True):
        assert torch.equal(one, other)


class Branching(nn.Module):
    """What vmap cannot run: a branch on a value."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 3))

    def forward(self, x):
        return x @ self.weight if self.weight.sum() > 0 else -x @ self.weight


class Wrong(nn.Module):
    """What vmap runs with other numbers: it asks for the shape of its own parameter in a batch of them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 3))

    def forward(self, x):
        scale = 2.0 if torch._C._functorch.is_batchedtensor(self.weight) else 1.0
        return scale * (x @ self.weight)


def test_auto_takes_the_loop_where_vmap_fails_or_differs(bert):
    inputs = batch()["x"]
    for model, reason in (
        (Branching(), "cannot run it .*data-dependent"),
        (Wrong(), "values differ by up to"),
    ):
        ensemble = ParticleEnsemble(model, 2)
        expected = torch.stack([inputs @ weight for weight in ensemble.model.weight])
        torch.testing.assert_close(ensemble.outputs(inputs), expected)
        assert ensemble.executions["outputs"].startswith("loop: ")
        assert re.search(reason, ensemble.executions["outputs"])
    with pytest.raises(RuntimeError, match="data-dependent"):
        ParticleEnsemble(Branching(), 2, execution="vectorized").outputs(inputs)
    for method in (BayesianAttention(), AlignmentAttention("mmd")):
        ensemble = ParticleEnsemble(bert_classifier(bert, method), 2)
        models = [model.train() for model in ensemble.particles()]
        torch.manual_seed(1)
        terms = objective(ensemble).train()(bert_batch())
        terms.loss.backward()
        torch.manual_seed(1)  # dropout and noise one particle after another
        losses = [alone(model, bert_batch())[0].loss for model in models]
        torch.testing.assert_close(terms.loss, torch.stack(losses).mean(), msg=str(method))
        for name, stack in ensemble.stacked_parameters().items():
            apart = [model.get_parameter(name).grad for model in models]
            torch.testing.assert_close(stack.grad, torch.stack(apart), msg=name)
        assert ensemble.executions["objective"].startswith("loop: ")


class Counting(nn.Module):
    """A buffer of its own that training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.calls.add_(1)
        return self.layer(x)


@pytest.mark.parametrize("execution", ["loop", "vectorized"])
def test_a_shared_buffer_that_training_changes_is_refused(execution):
    ensemble = ParticleEnsemble(Classifier(Counting()), 3, execution=execution)
    with pytest.raises(
        ValueError, match=r"training changes the buffers net\.calls, .* buffers=\['net\.calls'\]"
    ):
        objective(ensemble).train()(batch())
    ensemble = ParticleEnsemble(Classifier(Counting()), 3, execution=execution, buffers=["net.calls"])
    objective(ensemble).train()(batch())
    assert ensemble.model.net.calls.tolist() == [1.0, 1.0, 1.0]


def test_predictions_are_those_of_the_particles_apart():
    models = [model.eval() for model in networks()]
    ensemble = ParticleEnsemble(models[0], 3, initial=models.__getitem__).eval()
    inputs = {"x": batch()["x"]}
    logits = torch.stack([model(inputs) for model in models])
    drawn = posterior_predict(ensemble, batch(), 7)
    torch.testing.assert_close(drawn.logits, logits)
    mean = logits.softmax(-1).mean(dim=0)
    torch.testing.assert_close(posterior_expectation(ensemble, inputs), mean.log())
    torch.testing.assert_close(ensemble(inputs).softmax(-1), mean)
    with pytest.raises(ValueError, match="the model has no attention site"):
        posterior_predict(ensemble, inputs, attention="all")


def test_particles_times_draws_of_latent_attention(bert):
    model = bert_classifier(bert, BayesianAttention())
    ensemble = ParticleEnsemble(model, 3, spread=0.3)
    drawn = posterior_predict(ensemble, bert_batch(), 4, attention="all", seed=(5, 1))
    chunked = posterior_predict(ensemble, bert_batch(), 4, attention="all", seed=(5, 1), chunk_size=1)
    assert drawn.logits.shape == (12, 4, 2) and len(drawn.logits.unique(dim=0)) == 12
    torch.testing.assert_close(drawn.logits, chunked.logits)
    for name, weights in drawn.attention.items():
        assert weights.shape[0] == 12
        torch.testing.assert_close(weights, chunked.attention[name])
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    streamed = posterior_predict(ensemble, bert_batch(), 4, attention="all", seed=(5, 1), streaming=True)
    for name, weights in drawn.attention.items():
        torch.testing.assert_close(streamed.attention_mean[name], weights.mean(0))
        torch.testing.assert_close(streamed.attention_std[name], weights.std(0), atol=1e-6, rtol=1e-4)
    inputs = {name: value for name, value in bert_batch().items() if name != "labels"}
    apart = torch.stack([posterior_expectation(net, inputs) for net in ensemble.particles()])
    torch.testing.assert_close(
        posterior_expectation(ensemble, inputs).softmax(-1), apart.softmax(-1).mean(dim=0)
    )
    assert all(spread.mean > 0 for spread in weight_spreads(ensemble, [bert_batch()], 2).values())


def test_it_is_written_and_read_back(tmp_path):
    models = networks()
    ensemble = ParticleEnsemble(models[0], 3, initial=models.__getitem__, parameters="net.*.weight")
    objective(ensemble).train()(batch())  # running statistics too
    ensemble.save(tmp_path / "ensemble.pt")
    assert [file.name for file in tmp_path.iterdir()] == ["ensemble.pt"]
    read = ParticleEnsemble.load(tmp_path / "ensemble.pt", networks(5)[4])
    assert read.num_particles == 3 and read.parameter_names == ensemble.parameter_names
    for name, value in ensemble.state_dict().items():
        assert torch.equal(read.state_dict()[name], value), name
    torch.testing.assert_close(read.eval().outputs(batch()), ensemble.eval().outputs(batch()))
    assert torch.equal(copy.deepcopy(read).outputs(batch()), read.outputs(batch()))


def test_files_that_do_not_fit_are_refused(tmp_path):
    path = tmp_path / "ensemble.pt"
    ParticleEnsemble(nn.Linear(2, 2), 2).save(path)
    with pytest.raises(ValueError, match="expected a model with bias, weight, got a Tanh without"):
        ParticleEnsemble.load(path, nn.Tanh())
    with pytest.raises(ValueError, match="does not fit a Linear"):
        ParticleEnsemble.load(path, nn.Linear(3, 2))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="got an unreadable file"):
        ParticleEnsemble.load(path, nn.Linear(2, 2))
    torch.save({"weight": torch.ones(1)}, path)
    with pytest.raises(ValueError, match="expected a saved ensemble of format 1, got None"):
        ParticleEnsemble.load(path, nn.Linear(2, 2))
    with pytest.raises(FileNotFoundError):
        ParticleEnsemble.load(tmp_path / "other.pt", nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_particles": 0}, ValueError, r"num_particles: expected an integer >= 1, got 0"),
        ({"spread": -1.0}, ValueError, r"spread: expected a number >= 0, got -1"),
        ({"seed": -1}, ValueError, r"seed: expected an integer >= 0"),
        ({"chunk_size": 0}, ValueError, r"chunk_size: expected an integer >= 1, got 0"),
        ({"execution": "fast"}, ValueError, r"execution: expected one of 'auto', 'vectorized', 'loop'"),
        ({"model": torch.relu}, TypeError, r"model: expected a torch\.nn\.Module, got builtin"),
        ({"initial": "random"}, TypeError, r'initial: expected "perturb" or a function .* got \'random\''),
        ({"initial": lambda _: 3}, TypeError, r"initial: expected a torch\.nn\.Module, got int"),
        (
            {"initial": lambda i: nn.Linear(2, 3 + i)},
            ValueError,
            r"particle 1: expected weight \[3, 2\], got \[4, 2\]",
        ),
        ({"initial": lambda _: nn.Tanh()}, ValueError, r"particle 0: expected weight \[3, 2\], got nothing"),
    ],
)
def test_bad_input_has_one_clear_line(options, error, message):
    given = {"model": nn.Linear(2, 3), "num_particles": 2, **options}
    with pytest.raises(error, match=message):
        ParticleEnsemble(given.pop("model"), given.pop("num_particles"), **given)


def test_heads_that_are_particles_are_refused(bert):
    with pytest.raises(ValueError, match=r"its heads are particles \(RepulsiveAttention\)"):
        ParticleEnsemble(bert_classifier(bert, RepulsiveAttention()), 2)


class Doubled(torch.autograd.Function):
    """Twice its argument, with a gradient that looks at values."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(_, gradient):
        return 2 * gradient if gradient.sum() < 1e9 else gradient


class Doubling(nn.Linear):
    def forward(self, x):
        return Doubled.apply(super().forward(x))


def test_a_backward_pass_that_vmap_cannot_run_takes_the_loop():
    ensemble = ParticleEnsemble(Classifier(Doubling(4, 3)), 2)
    objective(ensemble)({"x": batch()["x"], "labels": batch()["labels"]}).loss.backward()
    assert ensemble.model.net.weight.grad.isfinite().all()
    assert "data-dependent" in ensemble.executions["objective"]
