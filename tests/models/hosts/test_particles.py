"""Layers of a network as particles, against the particles as networks of their own."""

import copy
import io
from concurrent.futures import ThreadPoolExecutor

import pyro
import pyro.distributions as dist
import pytest
import torch
import transformers as hf
from peft import LoraConfig, TaskType, get_peft_model
from scipy import stats
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

import probattn
from probattn.inference import (
    AttentionELBO,
    AttentionGuide,
    OptimizerOptions,
    SVGDDriver,
    SVIDriver,
    attention_effects,
    posterior_expectation,
    posterior_moments,
    posterior_predict,
)
from probattn.inference.configuration import model_configuration
from probattn.inference.optimizers import split_parameters
from probattn.models import Classifier, TokenClassifier, convert, particle, revert
from probattn.models.hosts.dry_run import tensors
from probattn.particles import MedianRBF, svgd_direction
from probattn.sites.method import as_program
from probattn.sites.particle_layers import bootstrap_weights, by_particle, particle_record

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
UNDROPPED = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
EXACT = {"rtol": 1e-10, "atol": 1e-12}
ROUNDING = {"rtol": 1e-4, "atol": 1e-5}
FLOAT32 = {"rtol": 1e-4, "atol": 1e-7}
"""A classifier's likelihood is that of logits in float32."""


def bert(layers=3, **options):
    torch.manual_seed(0)
    config = hf.BertConfig(**SIZES, num_hidden_layers=layers, num_labels=3, initializer_range=0.3, **options)
    return hf.BertForSequenceClassification(config).eval()


def batch(rows=6, length=7, seed=1):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 50, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, length - 3 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def labelled(rows=6):
    return {**batch(rows), "labels": torch.arange(rows) % 3}


def stacks_of(net):
    network, record = particle_record(net)
    return record.stacks(network)


def probabilities(net, output):
    """Of the logits of a network's output, else the first of its tensors."""
    logits = getattr(output, "logits", None)
    if logits is None:
        return tensors(output)[0]
    link = as_program(net).link
    return logits.sigmoid() if link == "sigmoid" else logits.softmax(-1) if link == "softmax" else logits


def test_a_network_of_every_family_answers_with_the_mean_of_its_particles(family):
    net, inputs = family.network().eval(), family.inputs()
    method = probattn.ParticleLayers(num_particles=3, layers="last", spread=0.3)
    if family.name == "clip":  # compares the rows of a batch with one another
        with pytest.raises(ValueError, match="answers otherwise where the rows of its particles are in one"):
            convert(net, method)
        return
    plain, before = probabilities(net, net(**inputs)), {n: v.clone() for n, v in net.state_dict().items()}
    convert(net, method).eval()
    parts = [particle(net, index).eval() for index in range(3)]
    with torch.no_grad():
        answer = probabilities(net, net(**inputs))
        answers = torch.stack([probabilities(part, part(**inputs)) for part in parts])
    torch.testing.assert_close(answer, answers.mean(dim=0), **ROUNDING)
    assert (answers[0] - answers[1]).abs().max() > 1e-3
    with torch.no_grad():
        torch.testing.assert_close(probabilities(net, revert(net)(**inputs)), plain, **ROUNDING)
    assert net.state_dict().keys() == before.keys()
    assert all(value.equal(before[name]) for name, value in net.state_dict().items())
    fixed = {name for name, parameter in net.named_parameters() if not parameter.requires_grad}
    assert fixed == {
        name for name, parameter in family.network().named_parameters() if not parameter.requires_grad
    }


def test_one_particle_is_the_network():
    net, inputs = bert().double(), batch()
    expected = net(**inputs).logits.log_softmax(-1)
    convert(net, probattn.ParticleLayers(num_particles=1))
    torch.testing.assert_close(net(**inputs).logits, expected, **EXACT)
    assert posterior_predict(net, inputs).logits.shape == (1, 6, 3)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_trunk_runs_once(layers):
    net, inputs = bert(4), batch()
    numbers = tuple(range(-layers, 0))
    with FlopCounterMode(display=False) as plain, torch.no_grad():
        net(**inputs)
    convert(net, probattn.ParticleLayers(num_particles=5, layers=numbers))
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        net(**inputs)
    passes = counted.get_total_flops() / plain.get_total_flops()
    assert passes == pytest.approx(1 + 4 * layers / 4, abs=0.05)  # the trunk, and the layers of five


def test_particles_over_a_frozen_trunk_are_networks_that_are_trained_apart():
    net, data = bert(**UNDROPPED).double(), labelled(12)
    convert(net, probattn.ParticleLayers(num_particles=3, spread=0.1))
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(".probattn." in name)
    parts = [particle(net, index) for index in range(3)]
    learning = particle_record(net)[1].modules
    options = {
        "optimizer": OptimizerOptions("AdamW", learning_rate=1e-2, weight_decay=0.1),
        "max_grad_norm": 0.5,
        "batch_size": 4,
        "progress": False,
        "cpu": True,
    }
    SVIDriver(Classifier(net), **options).fit(data, epochs=3)
    for index, part in enumerate(parts):
        for name, parameter in part.named_parameters():
            parameter.requires_grad_(name.rpartition(".")[0] in learning)
        SVIDriver(Classifier(part), **options).fit(data, epochs=3)
        trained = particle(net, index).state_dict()
        for name, value in part.state_dict().items():
            torch.testing.assert_close(trained[name], value, rtol=0.0, atol=1e-6)


def test_each_particle_has_the_gradient_of_its_loss_and_the_trunk_that_of_the_mean():
    net, data = bert(**UNDROPPED).double(), labelled()
    convert(net, probattn.ParticleLayers(num_particles=3, spread=0.1))
    parts = [particle(net, index) for index in range(3)]
    model = Classifier(net)
    terms = AttentionELBO()(model, AttentionGuide(model))(data)
    terms.loss.backward()
    inputs = {name: value for name, value in data.items() if name != "labels"}
    losses = []
    for part in parts:
        part.requires_grad_(True)
        losses.append(cross_entropy(part(**inputs).logits.float(), data["labels"]))
        losses[-1].backward()
    torch.testing.assert_close(terms.loss, torch.stack(losses).mean(), **FLOAT32)
    gradients = [dict(part.named_parameters()) for part in parts]
    for name, rows in stacks_of(net).items():
        expected = torch.stack([parameters[name].grad for parameters in gradients])
        torch.testing.assert_close(rows.grad, expected, **FLOAT32)
    trunk = "bert.encoder.layer.0.attention.self.query.weight"
    mean = torch.stack([parameters[trunk].grad for parameters in gradients]).mean(dim=0)
    torch.testing.assert_close(net.get_parameter(trunk).grad, mean, **FLOAT32)


def test_the_trunk_has_one_dropout_mask_and_particles_have_several():
    net, inputs = bert().train(), batch()
    convert(net, probattn.ParticleLayers(num_particles=4, new_heads=False, layers="last"))
    seen = {}

    def keep(name):
        return lambda *call: seen.setdefault(name, []).append(call[-1])

    layers = net.bert.encoder.layer
    hooks = [layers[1].output.dense.register_forward_hook(keep("trunk"))]
    hooks += [layers[2].output.dropout.register_forward_hook(keep("particles"))]
    net(**inputs)
    for hook in hooks:
        hook.remove()
    assert [len(value) for value in seen["trunk"]] == [6, 24], "once for all, and again where a hook looks"
    zero = (seen["particles"][-1] == 0).unflatten(0, (4, 6))
    assert not zero[0].equal(zero[1])


def test_svgd_moves_the_particles_of_the_layers_by_its_direction():
    net, data = bert(**UNDROPPED).double(), labelled()
    method = probattn.ParticleLayers("svgd", num_particles=3, spread=0.1, repulsion=0.2, step_size=0.5)
    convert(net, method)
    reference = copy.deepcopy(net)
    model = Classifier(reference)
    AttentionELBO()(model, AttentionGuide(model))(data).loss.backward()
    rows = list(stacks_of(reference).values())
    particles = torch.cat([item.detach().flatten(1) for item in rows], dim=1)
    gradients = torch.cat([item.grad.flatten(1) for item in rows], dim=1)
    moved = particles + 0.1 * 0.5 * svgd_direction(particles, gradients, MedianRBF(), 0.2)
    plain = OptimizerOptions("SGD", learning_rate=0.1, weight_decay=0.0)
    driver = SVGDDriver(Classifier(net), optimizer=plain, max_grad_norm=None, cpu=True)
    driver.step(data)
    found = torch.cat([item.detach().flatten(1) for item in stacks_of(net).values()], dim=1)
    torch.testing.assert_close(found, moved, **EXACT)
    assert list(driver.get_named_particles()) == ["layers"]
    with pytest.raises(ValueError, match="layers as particles that repel"):
        SVIDriver(Classifier(net), cpu=True, progress=False).fit(data, steps=1)
    with pytest.raises(RuntimeError, match="without a driver would leave the repulsion out"):
        net.train()(**batch())


def test_svgd_of_predictions_moves_the_parameters_by_the_directions_of_predictions():
    data = labelled()
    inputs = {name: value for name, value in data.items() if name != "labels"}
    method = probattn.ParticleLayers(
        "svgd", space="predictions", num_particles=3, spread=0.1, repulsion=0.3, step_size=1.0
    )
    net = convert(bert(**UNDROPPED).double(), method).train()
    parts = [particle(net, index).train() for index in range(3)]
    for part in parts:
        part.requires_grad_(True)
    logits = [part(**inputs).logits for part in parts]
    gradients = [
        torch.autograd.grad(cross_entropy(one.float(), data["labels"]), one, retain_graph=True)[0]
        for one in logits
    ]
    predictions = torch.stack([one.detach().flatten() for one in logits])
    direction = svgd_direction(
        predictions, torch.stack([one.flatten() for one in gradients]), MedianRBF(), 0.3
    )
    for one, towards in zip(logits, direction, strict=True):
        one.backward(-towards.view_as(one))
    model = Classifier(net)
    AttentionELBO()(model, AttentionGuide(model))(data).loss.backward()
    for name, rows in stacks_of(net).items():
        expected = torch.stack([dict(part.named_parameters())[name].grad for part in parts])
        torch.testing.assert_close(rows.grad, expected, **FLOAT32)


def test_bootstrap_weights_are_poisson_numbers_of_the_content_of_a_row():
    method = probattn.ParticleLayers(num_particles=4, bootstrap=True)
    ids = torch.randint(0, 30000, (5000, 12), generator=torch.Generator().manual_seed(0))
    content = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    weights = bootstrap_weights(method, content, 5000)
    for row in weights:
        observed = torch.bincount(row.long(), minlength=5)[:5].double()
        observed = torch.cat([observed, (5000 - observed.sum())[None]])
        law = torch.tensor([*stats.poisson.pmf(range(5), 1), stats.poisson.sf(4, 1)], dtype=torch.float64)
        assert stats.chisquare(observed.numpy(), (5000 * law).numpy()).pvalue > 1e-3
    assert torch.corrcoef(weights).triu(1).abs().max() < 0.06
    padded = {name: torch.nn.functional.pad(value, (0, 5)) for name, value in content.items()}
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(1))
    shuffled = {name: value[order] for name, value in padded.items()}
    assert bootstrap_weights(method, shuffled, 5000).equal(weights[:, order])


def test_bootstrap_weights_are_those_of_the_particles_losses_in_training():
    net, data = bert(**UNDROPPED).double(), labelled()
    convert(net, probattn.ParticleLayers(num_particles=3, spread=0.1, bootstrap=True)).train()
    inputs = {name: value for name, value in data.items() if name != "labels"}
    losses = torch.stack(
        [
            cross_entropy(particle(net, index)(**inputs).logits.float(), data["labels"], reduction="none")
            for index in range(3)
        ]
    )
    weights = bootstrap_weights(particle_record(net)[1].method, data, 6)
    model = Classifier(net)
    objective = AttentionELBO()(model, AttentionGuide(model))
    torch.testing.assert_close(objective(data).loss, (weights * losses).mean(), **FLOAT32)
    net.eval()
    torch.testing.assert_close(objective(data).loss, losses.mean(), **FLOAT32)


def test_heads_are_drawn_as_the_class_draws_them_and_the_first_is_the_networks():
    net = bert()
    head, pooler = net.classifier.weight.clone(), net.bert.pooler.dense.weight.clone()
    convert(net, probattn.ParticleLayers(num_particles=200))
    rows = stacks_of(net)
    assert rows["classifier.weight"][0].equal(head)
    others = rows["classifier.weight"][1:]
    assert others.std().item() == pytest.approx(0.3, rel=0.03)
    assert not rows["classifier.bias"].any()
    assert (rows["bert.pooler.dense.weight"] == pooler).all(), "a pretrained layer is copied"
    again = convert(bert(), probattn.ParticleLayers(num_particles=200))
    assert stacks_of(again)["classifier.weight"].equal(rows["classifier.weight"])
    other = convert(bert(), probattn.ParticleLayers(num_particles=2, seed=1))
    assert not stacks_of(other)["classifier.weight"][1].equal(rows["classifier.weight"][1])


def test_biases_and_norms_of_particles_are_not_decayed():
    net = convert(bert(), probattn.ParticleLayers(num_particles=2))
    groups = split_parameters(net)
    undecayed = {id(parameter) for parameter in groups["pretrained.no_decay"]}
    for name, rows in stacks_of(net).items():
        assert (id(rows) in undecayed) == ("bias" in name or "LayerNorm" in name)


def test_attention_alone_and_what_is_frozen_or_shared():
    net = convert(bert(), probattn.ParticleLayers(num_particles=2, parts="attention", layers="last"))
    names = particle_record(net)[1].modules
    site = "bert.encoder.layer.2.attention.self"
    assert names == (
        *(f"{site}.{part}" for part in ("query", "key", "value")),
        "bert.pooler.dense",
        "classifier",
    )
    frozen = bert()
    frozen.bert.requires_grad_(False)
    assert particle_record(convert(frozen, probattn.ParticleLayers()))[1].modules == ("classifier",)
    for parameter in (fixed := bert()).parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="expected layers with parameters that learn, got none"):
        convert(fixed, probattn.ParticleLayers())
    tied = hf.BertForMaskedLM(hf.BertConfig(**SIZES, num_hidden_layers=1))
    names = particle_record(convert(tied, probattn.ParticleLayers(layers="last")))[1].modules
    assert "cls.predictions.transform.dense" in names and "cls.predictions.decoder" not in names


@pytest.mark.parametrize("method", ["independent", "svgd"])
def test_a_resumed_run_and_a_saved_network_are_the_same_bit_for_bit(method, tmp_path):
    def network():
        return convert(bert(), probattn.ParticleLayers(method, num_particles=3, repulsion=0.01))

    driver = SVGDDriver if method == "svgd" else SVIDriver
    options = {"batch_size": 2, "progress": False, "cpu": True, "checkpoint_every": 2}
    whole, half = network(), network()
    driver(Classifier(whole), folder=tmp_path / "a", **options).fit(labelled(), epochs=2)
    driver(Classifier(half), folder=tmp_path / "b", **options).fit(labelled(), epochs=2)
    resumed = network()
    (tmp_path / "b" / "checkpoints" / "step-000006").rename(tmp_path / "gone")
    driver(Classifier(resumed), **options).resume(tmp_path / "b").fit(labelled(), epochs=2)
    for first, second in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert first.equal(second)
    whole.save_pretrained(tmp_path / "net")
    loaded = probattn.from_pretrained(hf.AutoModelForSequenceClassification, tmp_path / "net")
    assert loaded(**batch()).logits.equal(whole(**batch()).logits)
    plain = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "net").eval()
    assert plain(**batch()).logits.equal(particle(whole, 0)(**batch()).logits), (
        "others read the first particle"
    )
    stream = io.BytesIO()
    torch.save(whole, stream)
    stream.seek(0)
    assert torch.load(stream, weights_only=False)(**batch()).logits.equal(whole(**batch()).logits)
    card = (tmp_path / "net" / "README.md").read_text()
    assert "ParticleLayers" in card


def test_particles_that_were_frozen_in_part_are_saved_and_loaded(tmp_path):
    net = bert()
    net.bert.encoder.layer[1].requires_grad_(False)
    convert(net, probattn.ParticleLayers(num_particles=2, spread=0.1)).save_pretrained(tmp_path)
    loaded = probattn.from_pretrained(hf.AutoModelForSequenceClassification, tmp_path)
    assert particle_record(loaded)[1].modules == particle_record(net)[1].modules
    assert loaded(**batch()).logits.equal(net.eval()(**batch()).logits)


def test_adapters_are_particles_over_one_frozen_network(tmp_path):
    bert().save_pretrained(tmp_path / "base")
    base = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    config = LoraConfig(task_type=TaskType.SEQ_CLS, r=2, target_modules=["query", "value"])
    net = convert(get_peft_model(base, config), probattn.ParticleLayers(num_particles=3, layers="all"))
    names = particle_record(net)[1].modules
    assert len(names) == 3 * 4 + 1 and all("lora" in name or "classifier" in name for name in names)
    rows = stacks_of(net)
    first = next(name for name in rows if "lora_A" in name)
    assert not rows[first][0].equal(rows[first][1]), "matrices A differ from the beginning"
    frozen = base.bert.encoder.layer[0].attention.self.query.base_layer.weight.clone()
    SVIDriver(Classifier(net), batch_size=2, progress=False, cpu=True).fit(labelled(), steps=3)
    assert base.bert.encoder.layer[0].attention.self.query.base_layer.weight.equal(frozen)
    draws = posterior_predict(net, batch())
    assert draws.logits.std(dim=0).max() > 1e-3
    net.save_pretrained(tmp_path / "adapters")
    loaded = probattn.from_pretrained(hf.AutoModelForSequenceClassification, tmp_path / "adapters")
    torch.testing.assert_close(loaded(**batch()).logits, net.eval()(**batch()).logits, **ROUNDING)


def test_draws_of_latent_attention_are_those_of_each_particle():
    net, inputs = bert(), batch()
    convert(
        net, probattn.BayesianAttention.bam(3.0), probattn.ParticleLayers(num_particles=2, spread=0.2)
    ).eval()
    drawn = posterior_predict(net, inputs, 400, chunk_size=100, attention="all")
    assert drawn.logits.shape == (800, 6, 3)
    again = posterior_predict(net, inputs, 400, chunk_size=64)
    torch.testing.assert_close(again.logits.sort(dim=0).values, drawn.logits.sort(dim=0).values, **ROUNDING)
    means = torch.stack(
        [
            posterior_predict(particle(net, i), inputs, 400, chunk_size=100).probabilities.mean(0)
            for i in (0, 1)
        ]
    )
    error = 5 * drawn.probabilities.std(dim=0) / 20
    assert ((drawn.mean_probabilities - means.mean(dim=0)).abs() < error).all()
    expectation = posterior_expectation(net, inputs).softmax(-1)
    parts = [posterior_expectation(particle(net, index), inputs).softmax(-1) for index in (0, 1)]
    torch.testing.assert_close(expectation, torch.stack(parts).mean(dim=0), **ROUNDING)
    SVIDriver(Classifier(net), batch_size=3, progress=False, cpu=True).fit(labelled(), steps=2)
    guide = AttentionGuide(Classifier(net))
    with guide, pytest.raises(RuntimeError, match="need a driver of this library"):
        net(**inputs)


def test_effects_of_words_are_means_over_particles():
    net, inputs = bert(), batch()
    convert(net, probattn.ParticleLayers(num_particles=3, spread=0.2)).eval()
    effects = attention_effects(net, inputs, method="knockout")
    parts = [
        attention_effects(particle(net, index), inputs, method="knockout", target=effects.answer)
        for index in range(3)
    ]
    for name in ("slopes", "knockouts"):
        expected = torch.cat([getattr(part, name) for part in parts])
        torch.testing.assert_close(getattr(effects, name), expected, rtol=1e-4, atol=1e-5)
    assert effects.answer.equal(net(**inputs).logits.argmax(-1))
    assert (effects.spread > 0).any()


def test_other_heads_answer_with_the_mean_of_their_particles():
    for kind in ("TokenClassification", "QuestionAnswering", "MultipleChoice"):
        torch.manual_seed(0)
        labels = 2 if kind == "QuestionAnswering" else 4
        config = hf.BertConfig(**SIZES, num_hidden_layers=2, num_labels=labels, initializer_range=0.3)
        net = convert(
            getattr(hf, f"BertFor{kind}")(config), probattn.ParticleLayers(num_particles=3, layers="last")
        )
        net.eval()
        inputs = batch()
        if kind == "MultipleChoice":
            inputs = {name: value.view(3, 2, -1) for name, value in inputs.items()}
        names = ("start_logits", "end_logits") if kind == "QuestionAnswering" else ("logits",)
        outputs = [particle(net, index)(**inputs) for index in range(3)]
        for name in names:
            mean = torch.stack([output[name].softmax(-1) for output in outputs]).mean(dim=0)
            torch.testing.assert_close(net(**inputs)[name].softmax(-1), mean, **ROUNDING)
        assert posterior_predict(net, inputs).logits.shape[0] == 3
    regression = hf.BertForSequenceClassification(hf.BertConfig(**SIZES, num_hidden_layers=1, num_labels=1))
    net = convert(regression, probattn.ParticleLayers(num_particles=3, layers="last")).eval()
    mean = torch.stack([particle(net, index)(**batch()).logits for index in range(3)]).mean(dim=0)
    torch.testing.assert_close(net(**batch()).logits, mean, **ROUNDING)


def test_outputs_are_tuples_where_that_is_asked_for_and_losses_are_means():
    net = bert(attn_implementation="eager")
    convert(net, probattn.ParticleLayers(num_particles=3, spread=0.1)).eval()
    data = labelled()
    loss, logits = net(**data, return_dict=False)
    output = net(data["input_ids"], data["attention_mask"], labels=data["labels"], output_attentions=True)
    assert logits.equal(output.logits) and len(output.attentions) == 3
    losses = [particle(net, index)(**data).loss for index in range(3)]
    torch.testing.assert_close(loss, torch.stack(losses).mean(), **ROUNDING)
    maps = torch.stack([particle(net, i)(**batch(), output_attentions=True).attentions[2] for i in range(3)])
    torch.testing.assert_close(output.attentions[2], maps.mean(dim=0), **ROUNDING)


def test_programs_without_a_plate_have_the_mean_of_their_particles_losses_and_their_gradients():
    class Program(torch.nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, rows):
            values = self.net(rows["input_ids"], rows["attention_mask"]).logits.double()
            pyro.sample("sum", dist.Normal(values, 1.0).to_event(values.dim()), obs=torch.zeros_like(values))

    net = bert(**UNDROPPED).double()
    head = hf.BertForSequenceClassification(net.config.__class__(**{**net.config.to_dict(), "num_labels": 1}))
    net = convert(head.double(), probattn.ParticleLayers(num_particles=3, spread=0.1)).eval()
    parts = [particle(net, index) for index in range(3)]
    losses = []
    for part in parts:
        part.requires_grad_(True)
        values = part(**batch()).logits
        losses.append(-dist.Normal(values, 1.0).log_prob(torch.zeros_like(values)).sum())
        losses[-1].backward()
    model = Program(net)
    terms = AttentionELBO()(model, AttentionGuide(model))(batch())
    torch.testing.assert_close(terms.loss, torch.stack(losses).mean(), **EXACT)
    terms.loss.backward()
    for name, rows in stacks_of(net).items():
        expected = torch.stack([dict(part.named_parameters())[name].grad for part in parts])
        torch.testing.assert_close(rows.grad, expected, **EXACT)


@pytest.mark.parametrize("num_data", [None, 60])
def test_without_gradients_the_likelihood_is_that_of_the_mixture(num_data):
    net, data = bert(**UNDROPPED), labelled()
    convert(net, probattn.ParticleLayers(num_particles=3, spread=0.3)).eval()
    model = Classifier(net, num_data=num_data)
    elbo = AttentionELBO()(model, AttentionGuide(model))
    rows = torch.arange(6)
    inputs = {name: value for name, value in data.items() if name != "labels"}
    with torch.no_grad():
        terms = elbo(data)
        probabilities = torch.stack([particle(net, i)(**inputs).logits.softmax(-1) for i in range(3)])
        answered = net(**inputs).logits.softmax(-1)[rows, data["labels"]]
    mixture = probabilities.mean(dim=0)[rows, data["labels"]].log().mean()
    torch.testing.assert_close(terms.log_likelihood, mixture, **ROUNDING)
    torch.testing.assert_close(terms.log_likelihood, answered.log().mean(), **ROUNDING)
    assert terms.loss == -terms.log_likelihood < elbo(data).loss  # by Jensen's inequality


def test_without_gradients_the_labels_of_a_rows_tokens_have_the_likelihood_of_their_mixture():
    torch.manual_seed(0)
    config = hf.BertConfig(**SIZES, **UNDROPPED, num_hidden_layers=3, num_labels=3, initializer_range=0.3)
    net = convert(
        hf.BertForTokenClassification(config), probattn.ParticleLayers(num_particles=3, spread=0.3)
    ).eval()
    inputs = batch()
    labels = (inputs["input_ids"] % 3).where(inputs["attention_mask"].bool(), -100)
    model = TokenClassifier(net)
    with torch.no_grad():
        terms = AttentionELBO()(model, AttentionGuide(model))({**inputs, "labels": labels})
        chances = torch.stack([particle(net, i)(**inputs).logits.log_softmax(-1) for i in range(3)])
    chosen = chances.gather(-1, labels.clamp(min=0).expand(3, *labels.shape).unsqueeze(-1)).squeeze(-1)
    of_rows = torch.where(labels >= 0, chosen, 0.0).sum(dim=-1)  # [3, 6], of all labels of a row
    torch.testing.assert_close(terms.log_likelihood, of_rows.exp().mean(dim=0).log().mean(), **ROUNDING)


def test_pyros_svi_has_the_sum_of_a_particles_losses_and_leaves_no_repulsion_out():
    net, data = bert(**UNDROPPED), labelled()
    convert(net, probattn.ParticleLayers(num_particles=3, spread=0.1)).eval()
    inputs = {name: value for name, value in data.items() if name != "labels"}
    losses = [
        cross_entropy(particle(net, i)(**inputs).logits, data["labels"], reduction="sum") for i in range(3)
    ]
    for num_data, scale in ((None, 1.0), (60, 10.0), (18, 3.0)):
        model = Classifier(net, num_data=num_data)
        loss = AttentionELBO().differentiable_loss(model, AttentionGuide(model), data)
        torch.testing.assert_close(loss, scale * torch.stack(losses).mean(), **ROUNDING)
    moved = convert(bert(), probattn.ParticleLayers("svgd", num_particles=3))
    model = Classifier(moved)
    with pytest.raises(ValueError, match="the repulsion of the model's particles would be left out"):
        AttentionELBO().differentiable_loss(model, AttentionGuide(model), data)


@pytest.mark.parametrize("factor", [0.5, 1024.0])
def test_the_repulsion_of_predictions_has_the_scale_of_the_loss(factor):
    gradients = []
    for scale in (1.0, factor):
        method = probattn.ParticleLayers(
            "svgd", space="predictions", num_particles=3, spread=0.3, repulsion=1.0
        )
        net = convert(bert(**UNDROPPED), method).train()
        model = Classifier(net)
        (scale * AttentionELBO()(model, AttentionGuide(model))(labelled()).loss).backward()
        gradients.append({name: rows.grad / scale for name, rows in stacks_of(net).items()})
        assert model_configuration(net) == model_configuration(copy.deepcopy(net)), (
            "what a resumed run compares"
        )
        assert "tensor" not in str(model_configuration(net)["particles"])
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-3, atol=1e-5)


def test_predictions_that_repel_need_a_driver_and_logits():
    method = probattn.ParticleLayers("svgd", space="predictions", num_particles=3)
    net = convert(bert(), method).train()
    with pytest.raises(RuntimeError, match="would leave the repulsion out"):
        net(**labelled())
    model = Classifier(net)
    with pytest.raises(ValueError, match="the repulsion of the model's particles would be left out"):
        AttentionELBO().differentiable_loss(model, AttentionGuide(model), labelled())
    spans = hf.BertForQuestionAnswering(hf.BertConfig(**SIZES, num_hidden_layers=2))
    model = as_program(convert(spans, method).train())
    data = {**batch(), "start_positions": torch.ones(6).long(), "end_positions": torch.ones(6).long()}
    with pytest.raises(ValueError, match="need a head whose output has logits, got"):
        AttentionELBO()(model, AttentionGuide(model))(data)


def test_threads_run_one_network_and_leave_it_as_it_is():
    torch.manual_seed(0)
    sizes = {name: value for name, value in SIZES.items() if name != "intermediate_size"}
    config = hf.LlamaConfig(**sizes, intermediate_size=24, num_hidden_layers=2, num_labels=3, pad_token_id=0)
    net = hf.LlamaForSequenceClassification(config).eval()
    convert(net, probattn.ParticleLayers(num_particles=3, layers="last", spread=0.3)).eval()
    with torch.no_grad():
        expected = net(**batch()).logits

        def run(_):
            with torch.no_grad():
                return net(**batch()).logits

        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(run, range(60)))
    for answer in answers:
        torch.testing.assert_close(answer, expected, **ROUNDING)
    assert all(isinstance(value, torch.nn.Parameter) for value in net.parameters())
    net.state_dict()


def test_adapters_come_before_conversion_and_are_merged_in_one_particle():
    config = LoraConfig(task_type=TaskType.SEQ_CLS, r=2, target_modules=["query"])
    with pytest.raises(ValueError, match="expected adapters before its layers became particles"):
        get_peft_model(convert(bert(), probattn.ParticleLayers(num_particles=2)), config)
    net = convert(
        get_peft_model(bert(), config), probattn.ParticleLayers(num_particles=2, layers="all", spread=0.2)
    )
    for merge in (net.merge_and_unload, net.merge_adapter):
        with pytest.raises(ValueError, match="expected one network to merge adapters into, got particles"):
            merge()
    one = particle(net, 1).eval()
    expected = one(**batch()).logits
    torch.testing.assert_close(one.merge_and_unload()(**batch()).logits, expected, **ROUNDING)


def test_modules_that_give_several_tensors_run_for_each_particle():
    torch.manual_seed(0)
    config = hf.MixtralConfig(**SIZES, num_hidden_layers=2, num_key_value_heads=2, num_local_experts=2)
    net = convert(
        hf.MixtralForCausalLM(config).eval(), probattn.ParticleLayers(num_particles=2, layers="last")
    )
    parts = [particle(net, index).eval()(**batch()).logits.softmax(-1) for index in range(2)]
    answer = net.eval()(**batch()).logits.softmax(-1)
    torch.testing.assert_close(answer, torch.stack(parts).mean(dim=0), **ROUNDING)


def test_networks_of_other_numbers_and_rows_in_another_order_are_refused():
    class Both(torch.nn.Module):
        def __init__(self, *nets):
            super().__init__()
            self.nets = torch.nn.ModuleList(nets)

        def forward(self, rows):
            return sum(net(**rows).logits for net in self.nets)

    class Twice(torch.nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, rows):
            ids = rows["input_ids"]
            return self.net(torch.cat([ids, ids.flip(1)])).logits[: len(ids)]

    nets = [convert(bert(), probattn.ParticleLayers(num_particles=count)) for count in (2, 3)]
    with pytest.raises(ValueError, match="expected networks of 2 particles in one pass, got one of 3"):
        posterior_predict(Both(*nets), batch())
    with pytest.raises(ValueError, match="call the network once with the rows of the batch"):
        posterior_predict(Twice(nets[0]), batch())


def test_inputs_without_a_row_a_datum_may_come_first():
    net = convert(bert(), probattn.ParticleLayers(num_particles=3, spread=0.2)).eval()
    vectors = net.get_input_embeddings()(batch()["input_ids"])
    inputs = {"inputs_embeds": vectors, "position_ids": torch.arange(7)[None]}
    parts = torch.stack([particle(net, index)(**inputs).logits.softmax(-1) for index in range(3)])
    torch.testing.assert_close(net(**inputs).logits.softmax(-1), parts.mean(dim=0), **ROUNDING)


def test_what_was_frozen_as_particles_stays_frozen():
    net = convert(bert(), probattn.ParticleLayers(num_particles=2)).requires_grad_(False)
    assert not any(parameter.requires_grad for parameter in revert(net).parameters())


def test_pyros_kernels_refuse_particles_that_begin_as_copies():
    net = convert(bert(), probattn.ParticleLayers("svgd", num_particles=3))
    driver = SVGDDriver(Classifier(net), kernel=pyro.infer.RBFSteinKernel(), cpu=True)
    with pytest.raises(ValueError, match="the gradient of RBFSteinKernel is not finite"):
        driver.step(labelled())


def test_a_loss_that_is_divided_by_the_labels_of_a_step_stays_the_mean_over_particles():
    torch.manual_seed(0)
    config = hf.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2)
    net = convert(
        hf.GPT2LMHeadModel(config), probattn.ParticleLayers(num_particles=3, layers="last", spread=0.1)
    )
    items = torch.tensor(30)
    inputs = {"input_ids": batch()["input_ids"], "labels": batch()["input_ids"], "num_items_in_batch": items}
    losses = [particle(net.eval(), index)(**inputs).loss for index in range(3)]
    for _ in range(2):
        torch.testing.assert_close(net(**inputs).loss, torch.stack(losses).mean(), **ROUNDING)
    assert items == 30
    with pytest.raises(ValueError, match="input_ids or inputs_embeds"):
        net()


def test_modules_that_learn_in_part_have_stacks_of_that_part():
    net = bert()
    for name, parameter in net.named_parameters():
        parameter.requires_grad_("bias" in name)
    convert(net, probattn.ParticleLayers(num_particles=3, spread=0.5)).eval()
    assert all(name.endswith("bias") for name in stacks_of(net))
    parts = [particle(net, index) for index in range(3)]
    mean = torch.stack([part(**batch()).logits.softmax(-1) for part in parts]).mean(dim=0)
    torch.testing.assert_close(net(**batch()).logits.softmax(-1), mean, **ROUNDING)


def test_what_particles_cannot_do_is_refused():
    net = convert(bert(), probattn.ParticleLayers(num_particles=2))
    with pytest.raises(RuntimeError, match="was called by itself"):
        net.classifier(torch.ones(1, 16))
    with pytest.raises(IndexError, match="expected a particle below 2, got 2"):
        particle(net, 2)
    with pytest.raises(ValueError, match="expected a network converted with ParticleLayers"):
        particle(bert(), 0)
    with pytest.raises(TypeError, match="expected one network, got particles"):
        posterior_moments(net, batch())
    with pytest.raises(ValueError, match="'predictions' take the sampler 'svgd'"):
        probattn.ParticleLayers("sgld", space="predictions")
    for other in (probattn.RepulsiveAttention(), probattn.DisagreementAttention("parameters")):
        with pytest.raises(ValueError, match="expected no method beside it that reads the weights of heads"):
            convert(bert(), other, probattn.ParticleLayers())
    model = Classifier(net)
    objective = AttentionELBO()(model, AttentionGuide(model))
    with pytest.raises(TypeError, match="expected a model of one batch"):
        objective(batch(), 1)
    getattr(net, "activation_checkpointing_enable", net.gradient_checkpointing_enable)()
    with pytest.raises(ValueError, match="expected no gradient checkpointing"):
        net.train()(**batch())
    causal = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2)).eval()
    convert(causal, probattn.ParticleLayers(num_particles=2, layers="last"))
    with pytest.raises(ValueError, match="keep no cache of keys and values"):
        causal.generate(batch()["input_ids"], max_new_tokens=2)
    assert causal.generate(batch()["input_ids"], max_new_tokens=2, use_cache=False).shape == (6, 9)


def test_rows_run_for_each_particle_in_custom_programs():
    class Program(torch.nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, rows):
            return self.net(**rows).logits

    net = convert(bert(), probattn.ParticleLayers(num_particles=3, spread=0.1)).eval()
    model = Program(net)
    draws = posterior_predict(model, batch())
    parts = torch.stack([particle(net, index)(**batch()).logits for index in range(3)])
    torch.testing.assert_close(draws.logits, parts, **ROUNDING)
    with by_particle(model, batch()) as rows:
        assert len(rows["input_ids"]) == 18
        torch.testing.assert_close(model(rows).view(3, 6, 3), parts, **ROUNDING)
