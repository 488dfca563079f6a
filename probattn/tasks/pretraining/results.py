"""Results of a run of pre-training, the section of its page, and answers to texts of users."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from markupsafe import Markup
from torch import Tensor

from probattn.checks import shown
from probattn.report import MODEL_TITLES, Group, ModelKey, Results, Sheet
from probattn.report.markup import Section, plain
from probattn.report.measures import MODEL_STYLES
from probattn.report.record import Probability, Record
from probattn.tasks.answering import DIGITS, Answering, Drawing
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.encoding import Answer
from probattn.tasks.fine_tuning.predicted_tokens import stacked
from probattn.tasks.measured import posterior_of
from probattn.tasks.networks import in_batches
from probattn.tasks.pretraining.stream import Row
from probattn.tasks.pretraining.vocabulary import piece

if TYPE_CHECKING:
    from pathlib import Path

    from probattn.tasks.pretraining.task import Pretraining


class PredictedToken(Record):
    """A token with the space before it, the one it replaced, if any, and the probability of that by model."""

    token: str
    original: str | None = None
    probabilities: Mapping[ModelKey, Probability]


class PretrainingResults(Results):
    """Everything that the report shows; samples have the replacements of the run's own generator."""

    samples: tuple[tuple[PredictedToken, ...], ...] = ()


def sections(results: PretrainingResults) -> Iterator[Section]:
    """The section on samples."""
    if not results.samples:
        return
    models = list(results.samples[0][0].probabilities)
    samples = [
        [
            {
                "model": MODEL_TITLES[model],
                "style": MODEL_STYLES[model],
                "text": Markup("").join(
                    Markup(" " if token.token[:1].isspace() else "") + shaded(token, model)
                    for token in sample
                ),
                "true": sum(
                    token.probabilities[model] > 0.5 for token in sample if token.original is not None
                ),
                "false": sum(token.probabilities[model] > 0.5 for token in sample if token.original is None),
            }
            for model in models
        ]
        for sample in results.samples
    ]
    replaced = [sum(token.original is not None for token in sample) for sample in results.samples]
    context: dict[str, Any] = {"samples": list(zip(samples, replaced, strict=True))}
    yield Section("samples", "Texts", "Which tokens were replaced?", "samples.html", context)


def shaded(token: PredictedToken, model: ModelKey) -> Markup:
    """A token, the darker the more probably it was replaced, and after it the original one where it was."""
    probability = token.probabilities[model]
    words = Markup('<span class="predicted{}" style="--p: {}%" title="replaced: {}">{}</span>').format(
        "" if token.original is None else " replaced",
        round(100 * probability),
        f"{probability:.1%}",
        plain(token.token.strip()),
    )
    if token.original is None:
        return words
    return words + Markup(' <del class="original">{}</del>').format(plain(token.original.strip()))


class PretrainingAnswering(Answering):
    """For each token of a text the probability that it was replaced."""

    task: Pretraining

    no_moments = "tokens have no closed form"

    def check(self, run: Path) -> Callable[[str], object]:
        """Whether the network can read a line."""
        length = self.task.recipe.pretraining.max_length
        return partial(encoded_text, self.task.network(run).codec, length=length)

    def answered(
        self, run: Path, rows: Iterable[tuple[str, str | None]], drawing: Drawing
    ) -> Iterator[Answer]:
        """One answer a text; see the base class."""
        network, length = self.task.network(run), self.task.recipe.pretraining.max_length
        options = {"num_samples": drawing.num_samples, "seed": drawing.seed}
        prediction = self.task.recipe.prediction.model_copy(update=options)
        for number, texts in enumerate(in_batches((text for text, _ in rows), prediction.batch_size)):
            encoded = [encoded_text(network.codec, text, length) for text in texts]
            inputs = network.moved(stacked(network.codec.pad_token_id, encoded))
            draws = posterior_of(network, network.program, inputs, prediction, number).probabilities
            for index, (text, row) in enumerate(zip(texts, encoded, strict=True)):
                yield {"text": text, "tokens": _tokens(network.codec, row["input_ids"], draws[:, index])}

    def answers(self, answers: Sequence[Answer]) -> tuple[str | Sheet, list[dict[str, Any]]]:
        """Tokens with the probability of having been replaced, text by text, and the same for programs."""
        return sheet_of(answers), list(answers)

    def columns(self, answer: Answer) -> dict[str, Any]:
        """The token that was most probably replaced and its probability, and the mean over tokens."""
        likeliest = max(answer["tokens"], key=lambda token: token["replaced"])
        mean = sum(token["replaced"] for token in answer["tokens"]) / len(answer["tokens"])
        return {
            "token": likeliest["token"],
            "replaced": likeliest["replaced"],
            "mean_replaced": round(mean, DIGITS),
        }


def encoded_text(codec: Any, text: str, length: int) -> Row:
    """A text as the network reads it; ``RunError`` for no token, or with [CLS] and [SEP] more than ``length``."""
    encoded = codec(text, split_special_tokens=True, verbose=False)
    number, limit = len(encoded["input_ids"]) - 2, length - 2
    if not 0 < number <= limit:
        raise RunError(
            f"expected a text of 1 to {limit} tokens, as many as the network was trained to read "
            f"(pretraining.max_length less [CLS] and [SEP]), got {number}: {shown(text)}"
        )
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


def _tokens(codec: Any, ids: list[int], draws: Tensor) -> list[dict[str, Any]]:
    """Tokens without [CLS] and [SEP], with mean and standard deviation over draws ``[P, T]``."""
    mean = draws.mean(dim=0).tolist()
    spread = (draws.std(dim=0) if len(draws) > 1 else torch.zeros_like(draws[0])).tolist()
    return [
        {
            "token": piece(codec, ids[index]).strip(),
            "replaced": round(mean[index], DIGITS),
            "std": round(spread[index], DIGITS),
        }
        for index in range(1, len(ids) - 1)
    ]


def sheet_of(answers: Sequence[Answer]) -> Sheet:
    """Tokens with the probability of having been replaced, text by text."""
    rows = (
        tuple((token["token"], f"{token['replaced']:.3f}", f"{token['std']:.3f}") for token in item["tokens"])
        for item in answers
    )
    groups = tuple(Group(item["text"], tokens) for item, tokens in zip(answers, rows, strict=True))
    return Sheet(("Token", "Replaced", "Std of draws"), groups, words=1)
