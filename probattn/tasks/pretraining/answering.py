"""Answers of a discriminator to texts: for each token the probability that it was replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from probattn.checks import shown
from probattn.report import Group, Sheet
from probattn.tasks.answering import DIGITS, Answering, Drawing
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.encoding import Answer
from probattn.tasks.fine_tuning.predicted_tokens import stacked
from probattn.tasks.measured import posterior_of
from probattn.tasks.networks import in_batches
from probattn.tasks.pretraining.evaluation import piece
from probattn.tasks.pretraining.stream import Row

if TYPE_CHECKING:
    from pathlib import Path

    from probattn.tasks.pretraining.task import Pretraining


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
