"""Runs whose processes share parameters, gradients and the states of the optimizer."""

import importlib
from pathlib import Path

import pytest
import torch
import transformers as hf
from runs import forked_here, free_port

from probattn import ParticleLayers, RepulsiveAttention
from probattn.inference import AttentionGuide, KLSchedule, StepObserver, SVGDDriver, SVIDriver
from probattn.inference.checkpoint import CheckpointStore
from probattn.models import Classifier, convert


def classifier(*methods):
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    net = hf.BertForSequenceClassification(hf.BertConfig(vocab_size=50, **sizes))
    return Classifier(convert(net, *methods) if methods else net)


BATCH = {"input_ids": torch.arange(1, 33).view(4, 8), "labels": torch.tensor([0, 1, 0, 1])}


@pytest.fixture
def program(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent / "programs")
    return importlib.import_module("sharded")


@pytest.mark.fork
@pytest.mark.gloo
def test_two_processes_that_share_parameters_compute_what_one_does(program, tmp_path):
    port = free_port()
    children = forked_here(program.one_of_two, (tmp_path, 0, port), (tmp_path, 1, port))
    alone = program.run(tmp_path / "one", 1)
    for child in children:
        child.join(300)
    assert [child.exitcode for child in children] == [0, 0]
    ranks = [torch.load(tmp_path / f"rank-{rank}.pt") for rank in (0, 1)]
    first = ranks[0]["whole"]
    for found in ranks:
        for name, weights in found["whole"]["weights"].items():
            assert torch.equal(weights, first["weights"][name])
            assert torch.equal(weights, found["resumed"]["weights"][name])
            torch.testing.assert_close(weights, alone["weights"][name], atol=1e-5, rtol=1e-5)
        assert found["whole"]["best_step"] == alone["best_step"]
        assert found["whole"]["kl_weight"] == alone["kl_weight"]
        torch.testing.assert_close(found["whole"]["predicted"], alone["predicted"], atol=1e-4, rtol=1e-4)
    for name in ("loss", "validation", "gradient_norm"):
        assert first[name] == pytest.approx(alone[name], rel=1e-5), name
    assert first["seen"] == pytest.approx(alone["seen"], rel=1e-4, abs=1e-6)
    assert not ranks[1]["whole"]["seen"]
    # A checkpoint is that of one process: whole weights, and whole states of the optimizer.
    stored = [CheckpointStore(tmp_path / name / "checkpoints").load(6).tensors for name in ("two", "one")]
    mine, theirs = (tensors["training"]["optimizer"] for tensors in stored)
    assert mine["state"].keys() == theirs["state"].keys()
    for index, state in theirs["state"].items():
        torch.testing.assert_close(
            mine["state"][index]["momentum_buffer"], state["momentum_buffer"], atol=1e-5, rtol=1e-4
        )


@pytest.mark.fork
@pytest.mark.gloo
def test_what_ends_in_one_process_ends_in_both_and_keeps_the_updates(program, tmp_path):
    port = free_port()
    children = forked_here(program.one_that_fails, (tmp_path, 0, port), (tmp_path, 1, port))
    for child in children:
        child.join(300)
    assert [child.exitcode for child in children] == [0, 0]
    for rank in (0, 1):
        for ends, found in torch.load(tmp_path / f"rank-{rank}.pt").items():
            (error, weights), (expected, others) = found[True], found[False]
            assert error == expected == {"nan": "NonFiniteError", "signal": "TrainingInterrupted"}[ends]
            name = "net.classifier.weight"
            assert not torch.equal(weights[name], found["before"][name])
            for name, value in others.items():
                if (
                    "passes" not in name
                ):  # DistributedDataParallel takes those of the first process in every pass
                    torch.testing.assert_close(weights[name], value, atol=1e-6, rtol=1e-5)


def test_one_process_shards_nothing(program, tmp_path):
    runs = [program.run(tmp_path / str(shard), 1, shard=shard) for shard in (False, True)]
    for name, value in runs[0]["weights"].items():
        assert torch.equal(value, runs[1]["weights"][name])


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"compile": True}, "compile"),
        ({"observers": [StepObserver(print, [1])]}, "observers"),
        ({"guide": torch.nn.Linear(1, 1), "kl_schedule": KLSchedule("constant")}, "a guide with parameters"),
    ],
)
def test_what_sharded_parameters_do_not_go_with_is_refused(options, name):
    driver = SVIDriver(classifier(), shard=True, cpu=True, progress=False, **options)
    with pytest.raises(ValueError, match=rf"SVIDriver.shard: .* {name}"):
        driver.fit(BATCH, steps=1)


def test_particles_are_not_sharded():
    heads = classifier(RepulsiveAttention())
    driver = SVGDDriver(heads, guide=AttentionGuide(heads), shard=True, cpu=True, progress=False)
    with pytest.raises(ValueError, match=r"SVGDDriver.shard: .* particles"):
        driver.fit(BATCH, steps=1)
    layers = classifier(ParticleLayers(num_particles=2, layers=[-1]))
    with pytest.raises(ValueError, match=r"SVIDriver.shard: .* particle"):
        SVIDriver(layers, shard=True, cpu=True, progress=False).fit(BATCH, steps=1)
