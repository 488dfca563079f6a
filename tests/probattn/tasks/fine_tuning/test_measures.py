"""What the tasks of heads measure, against other implementations."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn.functional import cross_entropy

from probattn.inference.posterior import Posterior
from probattn.metrics.functional import calibration_error
from probattn.report import DataSet, PredictedData, Predictions, compare, evaluate
from probattn.sites.observation import ObservationNoise, ObservedNoise
from probattn.tasks.fine_tuning import Choices, Regression, Tokens
from probattn.tasks.fine_tuning.encoding import Batch, Encoded
from probattn.tasks.fine_tuning.regression import LEVELS
from probattn.tasks.fine_tuning.tokens import spans

TAGS = ["O", "B-date", "B-time", "I-date", "I-time"]


def task(kind: Any, **options: Any) -> Any:
    """A task without data, for what it computes."""
    made = kind.__new__(kind)
    made.recipe = SimpleNamespace(report=SimpleNamespace(bins=10), **options)
    return made


def chunks(tags: list[str]) -> set[tuple[str, int, int]]:
    """Spans by the rules of conlleval: a word begins one, or ends one, by the tags on both sides of it."""
    found, start = set(), 0
    padded = ["O", *tags, "O"]
    for place in range(1, len(padded)):
        (before, _, kind), (now, _, next_kind) = (
            padded[place - 1].partition("-"),
            padded[place].partition("-"),
        )
        ends = before != "O" and (now in ("O", "B") or next_kind != kind)
        if ends:
            found.add((kind, start - 1, place - 1))
        if now != "O" and (before == "O" or ends):
            start = place
    return found


def test_spans_are_those_of_conlleval() -> None:
    draw = random.Random(0)
    for _ in range(500):
        tags = draw.choices(TAGS, k=draw.randint(0, 9))
        assert set(spans(tags)) == chunks(tags)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_measures_of_tokens(dtype: torch.dtype) -> None:
    generator, draw = torch.Generator().manual_seed(0), random.Random(1)
    lengths = [draw.randint(1, 7) for _ in range(20)]
    logits = 2 * torch.randn(4, 20, 9, len(TAGS), generator=generator, dtype=dtype)
    labels, examples, encoded = torch.full((20, 9), -100), [], []
    for row, length in enumerate(lengths):
        tags = draw.choices(TAGS, k=length)
        labels[row, 1 : length + 1] = torch.tensor([TAGS.index(tag) for tag in tags])
        examples.append({"words": ["w"] * length, "tags": tags})
        words = [None, *range(length), *[None] * (8 - length)]
        encoded.append(Encoded([], words))
    config: Any = SimpleNamespace(id2label=dict(enumerate(TAGS)))
    measured = task(Tokens)
    batch = Batch(examples, encoded, {"labels": labels}, config)
    figures = measured.figures(measured.record(Posterior(logits), batch))

    mean = logits.float().softmax(-1).mean(0)
    flat, truth = mean[labels >= 0].double(), labels[labels >= 0]
    assert figures["nll"] == pytest.approx(cross_entropy(flat.log(), truth).item(), rel=1e-5)
    assert figures["accuracy"] == pytest.approx((flat.argmax(-1) == truth).double().mean().item())
    assert figures["ece"] == pytest.approx(calibration_error(flat, truth, n_bins=10).item(), abs=1e-6)
    right = found = true = 0
    for row, length in enumerate(lengths):
        tags = [TAGS[index] for index in mean[row, 1 : length + 1].argmax(-1)]
        own, theirs = chunks(tags), chunks(examples[row]["tags"])
        right, found, true = right + len(own & theirs), found + len(own), true + len(theirs)
    assert figures["precision"] == pytest.approx(right / found)
    assert figures["recall"] == pytest.approx(right / true)
    assert figures["f1"] == pytest.approx(2 * right / (found + true))


def test_words_beyond_the_longest_text_count_as_outside() -> None:
    config: Any = SimpleNamespace(id2label=dict(enumerate(TAGS)))
    logits = torch.zeros(1, 1, 3, len(TAGS))
    logits[..., 1] = 5
    examples = [{"words": ["a", "b", "c"], "tags": ["B-date", "O", "B-time"]}]
    batch = Batch(
        examples, [Encoded([], [None, 0, None])], {"labels": torch.tensor([[-100, 1, -100]])}, config
    )
    measured = task(Tokens)
    figures = measured.figures(measured.record(Posterior(logits), batch))
    assert (figures["precision"], figures["recall"]) == (1.0, 0.5)
    assert measured.answer(Posterior(logits), batch)[0]["tags"] == ["B-date", "O", "O"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_measures_of_classes_are_those_of_the_other_report(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(10, 60, 3, generator=generator, dtype=dtype)
    labels = torch.randint(3, (60,), generator=generator)
    config: Any = SimpleNamespace()
    measured = task(Choices)
    figures = measured.figures(measured.record(Posterior(logits), Batch([], [], {"labels": labels}, config)))
    data = DataSet(key="test", title="Test", role="in_domain", size=60, labelled=True)
    predicted = Predictions.from_draws(logits.float().softmax(-1))
    scores = evaluate([PredictedData(data, labels, {"bayesian_mean": predicted})]).scores[0]
    assert set(figures) == {*measured.measures, "mutual_information"}
    for name, value in figures.items():
        assert value == pytest.approx(scores.values[name], rel=1e-5, abs=1e-6), name


def test_intervals_of_copied_examples_are_those_of_the_originals_where_clusters_are_drawn() -> None:
    scores = torch.rand(2, 150, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def difference(copies: int, clusters: Any) -> Any:
        plain, other = scores.repeat(1, copies)  # each example stands in several places
        table = {("test", "deterministic"): {"score": plain}, ("test", "aligned"): {"score": other}}
        (found,) = compare(
            table, lambda columns: {"score": columns["score"].mean().item()}, clusters=clusters
        )
        return found

    once = difference(1, None)
    together = difference(4, {"test": [f"image {number}" for number in range(150)] * 4})
    for name in ("value", "low", "high", "p"):
        assert getattr(together, name) == pytest.approx(getattr(once, name), abs=1e-12)
    apart = difference(4, {"shifted": [1]})  # as independent examples: half as wide
    assert (apart.high - apart.low) / (once.high - once.low) == pytest.approx(0.5, abs=0.06)
    expected = pytest.approx(2 * 1.96 * (scores[1] - scores[0]).std().item() / 150**0.5, rel=0.1)
    assert once.high - once.low == expected


@pytest.mark.parametrize("noise_family", ["normal", "student_t"])
def test_measures_of_numbers(noise_family: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 300, 1, generator=generator)
    noise = ObservedNoise(ObservationNoise(noise_family, degrees=5.0), torch.tensor([0.5]))
    target = 3 + 2 * (logits.mean(0)[:, 0].double() + torch.randn(300, generator=generator).double())
    config: Any = SimpleNamespace(label_mean=3.0, label_std=2.0)
    examples = [{"text": "a", "target": value} for value in target.tolist()]
    measured = task(Regression)
    posterior = Posterior(logits, link="identity", noise=noise)
    columns = measured.record(posterior, Batch(examples, [], {}, config))
    stretched = measured.calibrated(columns, columns)
    figures = measured.figures(stretched)

    draws = 3 + 2 * logits[:, :, 0].double().numpy()
    law = stats.norm(scale=1.0) if noise_family == "normal" else stats.t(5, scale=1.0)
    density = law.pdf(target.numpy() - draws).mean(axis=0)
    assert figures["nll"] == pytest.approx(-np.log(density).mean(), rel=1e-5)
    assert figures["rmse"] == pytest.approx(np.sqrt(((draws.mean(0) - target.numpy()) ** 2).mean()), rel=1e-5)
    assert figures["pearson"] == pytest.approx(np.corrcoef(draws.mean(0), target)[0, 1], rel=1e-5)
    lower, upper = columns["ends"][:, LEVELS.index(0.8)].T.numpy()
    below = np.array([law.cdf(lower - draws).mean(axis=0), law.cdf(upper - draws).mean(axis=0)])
    assert below[0] == pytest.approx(0.1, abs=1e-5) and below[1] == pytest.approx(0.9, abs=1e-5)
    inside = ((lower <= target.numpy()) & (target.numpy() <= upper)).mean()
    assert figures["coverage_80"] == pytest.approx(inside)
    assert figures["miss_80"] == pytest.approx(abs(inside - 0.8), abs=1e-6)
    for level in (0.8, 0.95):  # on the numbers that they were stretched by, they cover by construction
        assert level <= figures[f"stretched_coverage_{100 * level:.0f}"] <= level + 2 / 300 + 1e-6


@pytest.mark.parametrize("model", ["aligned", "unregistered"])
def test_without_a_baseline_nothing_is_compared(model: str) -> None:
    table = {("test", model): {"score": torch.ones(3)}}
    assert compare(table, lambda columns: {"score": columns["score"].mean().item()}) == ()
