"""A converted network as a classifier, trained by the driver and by plain ``pyro.infer.SVI``."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedModel,
)

from probattn import BayesianAttention
from probattn.inference import AttentionELBO, AttentionGuide, SVIDriver, posterior_predict
from probattn.inference.optimizers import OptimizerOptions
from probattn.inference.options import EarlyStopping, KLSchedule
from probattn.inference.predictive import posterior_expectation
from probattn.inference.records import read_records
from probattn.models import Classifier, convert

ROWS, LENGTH, WORDS = 24, 6, 20


def bert() -> PreTrainedModel:
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        initializer_range=0.2,  # so that attention matters from the start
    )
    return BertForSequenceClassification(config)


def gpt2() -> PreTrainedModel:
    config = GPT2Config(vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=16, pad_token_id=0)
    return GPT2ForSequenceClassification(config)


def classifier(
    make: Callable[[], PreTrainedModel] = bert, method: BayesianAttention | None = None
) -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        net = make()
        convert(net, method or BayesianAttention(rho=1.5, sigma=1e-3, upward="heads"))
        return Classifier(net, num_data=ROWS)


def reviews(rows: int = ROWS, seed: int = 0) -> dict[str, torch.Tensor]:
    """The label is whether the first word is in the upper half; some rows are padded."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1, WORDS, (rows, LENGTH), generator=generator)
    mask = torch.ones(rows, LENGTH, dtype=torch.long)
    mask[::3, LENGTH - 2 :] = 0
    return {"input_ids": words * mask, "attention_mask": mask, "labels": (words[:, 0] > WORDS // 2).long()}


def driver(model: nn.Module, **options: Any) -> SVIDriver:
    defaults: dict[str, Any] = {
        "optimizer": OptimizerOptions(learning_rate=3e-3, site_learning_rate=3e-3),
        "kl_schedule": KLSchedule("constant", final=0.1),
        "batch_size": 8,
        "log_every": 1,
        "progress": False,
        "cpu": True,
    }
    return SVIDriver(model, **(defaults | options))


def unmoved(model: nn.Module, before: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, value in model.named_parameters() if torch.equal(value, before[name])]


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


@pytest.mark.parametrize("make", [bert, gpt2])
def test_the_driver_moves_every_parameter_with_one_forward_a_step(
    make: Callable[[], PreTrainedModel],
) -> None:
    model = classifier(make)
    before = snapshot(model)
    calls = []
    model.net.register_forward_hook(lambda *_: calls.append(1))
    result = driver(model, scheduler=None).fit(reviews(), steps=4)
    assert len(calls) == 4
    assert unmoved(model, before) == []
    assert result.train is not None
    assert len(result.train["sites"]) == 2
    assert all(site["kl_nats"] > 0 and site["cv"] > 0 for site in result.train["sites"].values())


@pytest.mark.parametrize("elbo", [AttentionELBO, TraceMeanField_ELBO, Trace_ELBO])
def test_plain_svi_moves_every_parameter_with_one_forward_a_step(elbo: type) -> None:
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model = classifier()
    before = snapshot(model)
    calls = []
    model.net.register_forward_hook(lambda *_: calls.append(1))
    svi = SVI(model, AttentionGuide(model), pyro.optim.Adam({"lr": 1e-3}), loss=elbo())
    losses = [svi.step(reviews()) for _ in range(3)]
    assert len(calls) == 3
    assert unmoved(model, before) == []
    assert all(math.isfinite(loss) for loss in losses)
    pyro.clear_param_store()


def test_driver_and_plain_svi_compute_the_same_loss() -> None:
    """One full batch, the same noise: the driver's loss per datum times the data size is Pyro's loss."""
    pyro.clear_param_store()
    method = BayesianAttention(noise="exact")
    model = classifier(method=method).eval()  # no dropout
    batch = reviews()
    pyro.set_rng_seed(5)
    expected = SVI(model, AttentionGuide(model), pyro.optim.Adam({}), TraceMeanField_ELBO()).evaluate_loss(
        batch
    )
    pyro.set_rng_seed(5)
    found = AttentionELBO()(model, AttentionGuide(model))(batch)
    assert ROWS * found.loss.item() == pytest.approx(expected, rel=1e-4)
    pyro.clear_param_store()


def test_a_network_learns_and_predicts_with_spread() -> None:
    model = classifier()
    driver(
        model,
        scheduler=None,
        optimizer=OptimizerOptions(learning_rate=1e-2),
        kl_schedule=KLSchedule(final=0.01),
    ).fit(reviews(), epochs=15)
    batch = {name: value for name, value in reviews().items() if name != "labels"}
    posterior = posterior_predict(model, batch, num_samples=8, seed=1)
    accuracy = (posterior.probabilities.mean(0).argmax(-1) == reviews()["labels"]).float().mean().item()
    assert accuracy > 0.9
    assert posterior.probabilities.std(0).max() > 1e-4


def test_two_classifiers_in_one_process_do_not_share_parameters() -> None:
    """Both have the same parameter names, by which Pyro's global store goes."""
    first = classifier()
    driver(first, scheduler=None).fit(reviews(), steps=2)
    trained = snapshot(first)
    alone = classifier()
    driver(alone, scheduler=None).fit(reviews(seed=1), steps=2)
    assert unmoved(first, trained) == [name for name, _ in first.named_parameters()]
    pyro.clear_param_store()
    again = classifier()
    driver(again, scheduler=None).fit(reviews(seed=1), steps=2)
    assert unmoved(again, snapshot(alone)) == [name for name, _ in again.named_parameters()]


def test_a_resumed_run_of_a_converted_network_is_the_uninterrupted_one(tmp_path: Path) -> None:
    def fit(folder: Path, resume: bool, stop: int | None) -> nn.Module:
        def cut(record: dict[str, Any], _: nn.Module) -> None:
            if record["step"] == stop:
                raise KeyboardInterrupt

        def accuracy(model: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            inputs = {name: value for name, value in batch.items() if name != "labels"}
            return {"accuracy": posterior_expectation(model, inputs).argmax(-1) == batch["labels"]}

        model = classifier()
        driver(
            model,
            folder=folder,
            precision="bf16",
            checkpoint_every=2,
            eval_every=3,
            early_stopping=EarlyStopping("accuracy", mode="max", patience=9),
            validation_metrics=accuracy,
            callbacks=[cut],
        ).fit(reviews(), reviews(7, seed=2), steps=7, resume=resume)
        return model

    whole = fit(tmp_path / "whole", False, None)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "cut", False, 5)
    resumed = fit(tmp_path / "cut", True, None)
    first, second = (
        [record | {"seconds": 0} for record in read_records(tmp_path / name / "metrics.jsonl")]
        for name in ("whole", "cut")
    )
    assert first == second
    assert unmoved(resumed, snapshot(whole)) == [name for name, _ in resumed.named_parameters()]
