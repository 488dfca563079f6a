"""Training with alignment: weight 0, both methods at once, resuming, precision, and what clipping sees."""

import math

import pytest
import torch

from probattn import AlignmentAttention, BayesianAttention
from probattn.inference import (
    AttentionELBO,
    AttentionGuide,
    NonFiniteError,
    OptimizerOptions,
    SVIDriver,
    posterior_predict,
)
from probattn.inference.checkpoint import CheckpointError
from probattn.inference.optimizers import split_alignment, split_parameters
from probattn.models import Classifier, convert
from probattn.sites import AlignmentFactor

METHODS = ["ct", "ot", "gan", "mmd"]


def network(bert, *methods):
    torch.manual_seed(0)
    net = bert.classification()
    return convert(net, *methods) if methods else net


def data(rows=24):
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(3, 9, (rows, 1), generator=generator)
    words = torch.randint(8, 60, (rows, 8), generator=generator)
    return {
        "input_ids": words,
        "attention_mask": (torch.arange(8) < lengths).long(),
        "labels": (words[:, 0] > 30).long(),
    }


def driver(net, **options):
    defaults = {
        "optimizer": OptimizerOptions(learning_rate=1e-3),
        "batch_size": 4,
        "accumulation": 2,
        "max_grad_norm": 0.5,
        "log_every": 1,
        "progress": False,
        "cpu": True,
    }
    return SVIDriver(Classifier(net), **(defaults | options))


def fit(net, steps=4, **options):
    records = []
    result = driver(net, callbacks=[lambda record, _: records.append(record)], **options).fit(
        data(), steps=steps
    )
    return result, records


def host_weights(net):
    return {name: tensor for name, tensor in net.state_dict().items() if "probattn" not in name}


@pytest.mark.parametrize("method", METHODS)
def test_at_weight_0_a_run_is_the_soft_run_bit_for_bit(bert, method):
    """With dropout, accumulation and clipping, whose norm must not see the networks of the alignment."""
    soft, aligned = network(bert), network(bert, AlignmentAttention(method, weight=0.0, max_tokens=4))
    _, expected = fit(soft)
    _, found = fit(aligned)
    assert max(record["gradient_norm"] for record in expected) > 0.5, "clipping has something to do"
    for name in ("loss", "log_likelihood", "gradient_norm"):
        assert [record[name] for record in expected] == [record[name] for record in found], name
    assert all(record["factors"] == 0 for record in found)
    assert all(
        torch.equal(tensor, host_weights(aligned)[name]) for name, tensor in host_weights(soft).items()
    )
    if method in {"ct", "gan"}:
        begun = network(bert, AlignmentAttention(method, weight=0.0)).state_dict()
        moved = [
            (tensor - begun[name]).abs().max().item()
            for name, tensor in aligned.state_dict().items()
            if "probattn.factor" in name and "draws" not in name
        ]
        assert min(moved) > 1e-4, "the alignment's own networks learn at their own rate"


def test_beside_bayesian_attention_weight_0_is_the_bayesian_run(bert):
    alone = network(bert, BayesianAttention())
    both = network(bert, BayesianAttention(), AlignmentAttention("ct", weight=0.0))
    _, expected = fit(alone)
    _, found = fit(both)
    for name in ("loss", "kl", "kl_nats", "gradient_norm"):
        assert [record[name] for record in expected] == [record[name] for record in found], name


@pytest.mark.parametrize(("methods", "precision"), [(1, "no"), (2, "bf16")])
@pytest.mark.parametrize("method", METHODS)
def test_alone_and_with_bayesian_attention_it_trains(bert, methods, precision, method):
    chosen = [AlignmentAttention(method, weight=0.1), BayesianAttention()][:methods]
    net = network(bert, *chosen)
    result, records = fit(net, precision=precision)
    assert result.step == 4
    for record in records:
        assert all(math.isfinite(record[name]) for name in ("loss", "factors", "kl", "gradient_norm"))
        assert record["factors"] != 0
        assert (record["kl_nats"] != 0) == (methods == 2)
        loss = record["kl"] - record["log_likelihood"] - record["factors"]
        assert record["loss"] == pytest.approx(loss, rel=1e-4, abs=1e-5)
    assert len(records[0]["sites"]) == (2 if methods == 2 else 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_both_methods_are_finite_under_autocast(bert, dtype, method):
    model = Classifier(network(bert, BayesianAttention(), AlignmentAttention(method, weight=1.0)))
    with torch.autocast("cpu", dtype):
        terms = AttentionELBO()(model, AttentionGuide(model))(data(6))
    terms.loss.backward()
    assert all(bool(term.isfinite()) for term in terms) and terms.factors != 0
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(gradients) > 40 and all(bool(gradient.isfinite().all()) for gradient in gradients)


@pytest.mark.parametrize("method", ["gan", "ct", "mmd"])
def test_a_run_that_is_resumed_is_the_uninterrupted_one(bert, tmp_path, method):
    """Weights, adversaries, the frozen bandwidth and the place in the subsets' random numbers."""
    methods = BayesianAttention(), AlignmentAttention(method, weight=0.1, max_tokens=4)
    whole, parted, continued = (network(bert, *methods) for _ in range(3))
    expected = driver(whole, folder=tmp_path / "whole", checkpoint_every=3).fit(data(), steps=6)

    def interrupt(record, _):
        if record["step"] == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        driver(parted, folder=tmp_path / "run", checkpoint_every=3, callbacks=[interrupt]).fit(
            data(), steps=6
        )
    found = driver(continued, folder=tmp_path / "run", checkpoint_every=3).fit(data(), steps=6, resume=True)
    assert found.train["loss"] == expected.train["loss"]
    state = whole.state_dict()
    assert any(name.endswith("draws") and int(tensor) > 0 for name, tensor in state.items())
    assert all(torch.equal(tensor, state[name]) for name, tensor in continued.state_dict().items())


def test_a_run_of_another_alignment_is_not_resumed(bert, tmp_path):
    driver(network(bert, AlignmentAttention("gan", weight=0.1)), folder=tmp_path).fit(data(), steps=2)
    with pytest.raises(CheckpointError, match=r"alignment.*weight=0\.1"):
        driver(network(bert, AlignmentAttention("gan", weight=0.2)), folder=tmp_path).fit(
            data(), steps=2, resume=True
        )


def test_its_networks_are_a_group_of_their_own(bert):
    net = network(bert, BayesianAttention(), AlignmentAttention("gan"))
    groups = split_parameters(net)
    expected = {
        id(p) for module in net.modules() if isinstance(module, AlignmentFactor) for p in module.parameters()
    }
    assert {id(p) for name in ("alignment", "alignment.no_decay") for p in groups[name]} == expected
    others, own = split_alignment(net)
    assert {id(p) for p in own} == expected and len(others) + len(own) == len(list(net.parameters()))
    options = OptimizerOptions(learning_rate=1e-5, site_learning_rate=1e-2, alignment_learning_rate=1e-4)
    rates = {group["name"]: group["lr"] for group in options.groups(net)}
    assert rates == {
        "pretrained": 1e-5,
        "pretrained.no_decay": 1e-5,
        "sites": 1e-2,
        "sites.no_decay": 1e-2,
        "alignment": 1e-4,
        "alignment.no_decay": 1e-4,
    }
    shared = OptimizerOptions(learning_rate=1e-5, alignment_learning_rate=None)
    assert {group["name"]: group["lr"] for group in shared.groups(net)}["alignment"] == 1e-5
    with pytest.raises(ValueError, match="alignment_learning_rate: expected a number > 0 or None, got 0"):
        OptimizerOptions(alignment_learning_rate=0)


def test_a_gradient_of_its_networks_that_is_not_finite_stops_the_run(bert):
    net = network(bert, AlignmentAttention("gan", weight=0.0))
    weight = net.bert.encoder.layer[0].attention.self.probattn.factor.discriminator.output.weight
    weight.register_hook(lambda gradient: gradient * math.inf)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.raises(
        NonFiniteError, match=r"gradients that are not finite: .*discriminator\.output\.weight"
    ):
        fit(net)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


@pytest.mark.slow
def test_alignment_alone_brings_queries_and_keys_together(bert):
    """Without much of a likelihood beside it, the direct divergence falls several-fold."""
    net = network(bert, AlignmentAttention("mmd", weight=100.0))
    _, records = fit(
        net, steps=60, optimizer=OptimizerOptions(learning_rate=1e-2), scheduler=None, max_grad_norm=None
    )
    assert records[-1]["factors"] > records[0]["factors"] / 5


def test_draws_are_those_of_the_network_without_alignment(bert, monkeypatch):
    alone = network(bert, BayesianAttention())
    both = network(bert, BayesianAttention(), AlignmentAttention("ct"))
    monkeypatch.setattr(AlignmentFactor, "divergence", None)  # never computed
    expected, found = (posterior_predict(Classifier(net), data(4), 3).logits for net in (alone, both))
    assert torch.equal(expected, found)
