"""A KL beside which the likelihood is lost is named, also while the run goes on."""

import math
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from probattn import BayesianAttention, ProbabilisticTrainer
from probattn.inference import KLSchedule, SVIDriver
from probattn.inference.loop import (
    ExplodedKLWarning,
    NonFiniteError,
    StepTerms,
    describe_failure,
    kl_explosion,
)
from probattn.models import Classifier, convert

TERMS = StepTerms(loss=3e17, log_likelihood=-0.7, kl=3e17, kl_nats=4e17, factors=0.0)
SITES = {"first": {"kl_nats": 1e17}, "second": {"kl_nats": 3e17}}


def network(method: BayesianAttention, scale: float) -> nn.Module:
    """A small BERT with scores of a size that ``scale`` sets."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    net = BertForSequenceClassification(config)
    for layer in net.bert.encoder.layer:
        for part in (layer.attention.self.query, layer.attention.self.key):
            part.weight.data.normal_(0, scale)
    return convert(net, method)


def rows(number: int = 8) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    return [{"input_ids": torch.randint(0, 20, (6,)), "labels": torch.tensor(n % 2)} for n in range(number)]


AT_ONCE = KLSchedule("constant")


def train(net: nn.Module, folder: Path, trainer: bool, schedule: KLSchedule = AT_ONCE) -> None:
    """Four updates, with a KL weight of 1 from the first one where nothing else is said."""
    if trainer:
        args = TrainingArguments(
            str(folder), max_steps=4, use_cpu=True, report_to="none", disable_tqdm=True, save_strategy="no"
        )
        ProbabilisticTrainer(model=net, args=args, train_dataset=rows(), kl_schedule=schedule).train()
    else:
        program = Classifier(net, num_data=8)
        SVIDriver(program, kl_schedule=schedule, cpu=True, batch_size=8).fit(rows(), steps=4)


@pytest.mark.parametrize("trainer", [False, True])
@pytest.mark.parametrize("scale", [1.5, 4.0, 30.0])
def test_a_run_whose_kl_explodes_says_so_and_what_to_set(tmp_path: Path, trainer: bool, scale: float) -> None:
    """Raw scores of such a size make exp() astronomical; at some size the gradients are not finite either."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ExplodedKLWarning)
        words = ""
        try:
            train(network(BayesianAttention.paper(), scale), tmp_path, trainer)
        except NonFiniteError as error:
            words = str(error)
    told = [str(warning.message) for warning in caught if warning.category is ExplodedKLWarning]
    assert len(told) <= 1, "once"
    for message in filter(None, [*told, words]):
        assert re.search("KL of the attention weights (exploded|outweighs)", message) and "layer" in message
        assert "scores='normalised'" in message and "kl_reduction='sum' adds" in message
        assert "no attention site is to blame" not in message
    assert told or words


@pytest.mark.parametrize("trainer", [False, True])
def test_with_bounded_scores_nothing_is_said(tmp_path: Path, trainer: bool) -> None:
    train(network(BayesianAttention(), 30.0), tmp_path, trainer)


def test_the_message_of_a_failure_names_the_largest_site_and_no_other_cause() -> None:
    explosion = kl_explosion(TERMS, lambda: SITES, nn.Identity())
    assert explosion is not None
    message = describe_failure(
        where="the loss of step 9",
        terms=TERMS,
        gradient_norm=math.inf,
        sites=[],
        gradients=[],
        complaints=[],
        checkpoint=None,
        explosion=explosion,
    )
    assert message.startswith(
        "the loss of step 9 or its gradient is not finite: the KL of the attention weights exploded: 3e+17 beside a "
        "log-likelihood of -0.7, most of it at site second (3e+17 nats)"
    )
    assert "to blame" not in message and message.endswith("lower the KL weight and the learning rates")


@pytest.mark.parametrize(
    ("kl", "likelihood", "exploded"),
    [
        (2.0**24 + 2, -0.1, True),
        (2.0**24, -0.1, False),
        (2.0**26, -3.0, True),
        (2.0**25, -3.0, False),
        (math.inf, -3.0, True),
        (-math.inf, -3.0, True),
        (math.nan, -3.0, False),
    ],
)
def test_a_kl_is_exploded_where_float32_loses_the_likelihood(
    kl: float, likelihood: float, exploded: bool
) -> None:
    terms = TERMS._replace(kl=kl, log_likelihood=likelihood)
    assert (kl_explosion(terms, dict, nn.Identity()) is not None) == exploded


@pytest.mark.parametrize("trainer", [False, True])
def test_a_kl_over_the_limit_is_told_once_while_the_run_goes_on(
    tmp_path: Path, trainer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probattn.inference.loop.LOST", 0.0)  # every KL is over it
    with pytest.warns(ExplodedKLWarning, match="the KL of the attention weights exploded") as caught:
        train(network(BayesianAttention(), 1.0), tmp_path, trainer)
    assert len([warning for warning in caught if warning.category is ExplodedKLWarning]) == 1


@pytest.mark.parametrize("trainer", [False, True])
def test_a_summed_kl_is_told_at_the_first_update_before_it_has_its_weight(
    tmp_path: Path, trainer: bool
) -> None:
    schedule = KLSchedule("linear")  # whose first weight is 0
    words = r"step 1: the KL of the attention weights outweighs the likelihood: \d\S* beside a log-likelihood of -0\."
    with pytest.warns(ExplodedKLWarning, match=words) as caught:
        train(network(BayesianAttention.paper(), 0.1), tmp_path, trainer, schedule)
    (message,) = [str(warning.message) for warning in caught if warning.category is ExplodedKLWarning]
    assert "attention.preset=release" in message and "KL weight of 0.0078125" in message


SMALL = KLSchedule("constant", final=1e-3)


@pytest.mark.parametrize(
    ("options", "schedule"),
    [
        ({"kl_reduction": "mean"}, KLSchedule()),
        ({"kl_reduction": "keys"}, KLSchedule()),
        ({}, KLSchedule(final=0.0)),
        ({}, SMALL),
    ],
    ids=["mean", "keys", "without weight", "small weight"],
)
def test_a_kl_that_hardly_enters_the_objective_is_not_told(
    tmp_path: Path, options: dict[str, str], schedule: KLSchedule
) -> None:
    train(network(BayesianAttention.paper(**options), 0.1), tmp_path, trainer=False, schedule=schedule)


@pytest.mark.parametrize(("weight", "told"), [(1.0, True), (0.1, False), (0.0, False), (None, False)])
def test_a_summed_kl_is_judged_by_the_weight_of_the_end(weight: float | None, told: bool) -> None:
    terms = StepTerms(loss=0.7, log_likelihood=-0.7, kl=0.0, kl_nats=150.0, factors=0.0)
    sites = {
        "first": {"kl_nats": 100.0, "kl_reduced": 100.0},
        "second": {"kl_nats": 50.0, "kl_reduced": 50.0},
    }
    explosion = kl_explosion(terms, lambda: sites, network(BayesianAttention.paper(), 0.1), weight)
    assert (explosion is not None) == told
    assert (
        explosion is None
        or "150 beside a log-likelihood of -0.7, most of it at site first" in explosion.words
    )
