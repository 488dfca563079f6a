"""Questions about images as tokens and images, and their batches."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from probattn.data.errors import DataError, warn_long
from probattn.data.sentence_pairs import padded
from probattn.data.visual_questions import VisualQuestion, VisualQuestions

KEPT_BYTES = 2**28
"""Bytes of images that are kept in memory."""


class TokenizedVisualQuestions(Dataset[dict[str, Any]]):
    """Questions as tokens, with their images and scores of answers; :class:`VisualQuestionCollate` makes batches.

    A row has ``input_ids``, ``image`` (what its file holds), ``name`` (of the image) and, where answers are known,
    ``scores``, the numbers of known answers with their accuracy.

    Args:
        questions: the rows.
        tokenizer: of the words of the training questions, as :func:`probattn.data.word_tokenizer` makes it.
        answers: that the network chooses between.
        max_length: most words of a question, >= 1; longer ones keep their beginning.

    Raises:
        DataError: a ``max_length`` below 1.

    Warns:
        DataWarning: how many questions were truncated.
    """

    def __init__(
        self, questions: VisualQuestions, tokenizer: Any, answers: Sequence[str], *, max_length: int = 14
    ) -> None:
        if max_length < 1:
            raise DataError(f"max_length: expected at least 1 word, got {max_length}")
        self.questions, self.answers = questions, answers
        numbers = {answer: number for number, answer in enumerate(answers)}
        encoded = tokenizer([row.words for row in questions.rows])["input_ids"]
        warn_long(questions.source, list(map(len, encoded)), max_length, "questions", "words")
        self._tokens = [ids[:max_length] for ids in encoded]
        self._scores = [_scores(row, numbers) for row in questions.rows]
        self._kept: dict[Path, Tensor] = {}
        self._room = KEPT_BYTES

    def __len__(self) -> int:
        return len(self.questions)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.questions.rows[index]
        features = {"input_ids": self._tokens[index], "image": self._image(row.image), "name": row.image}
        return features | ({"scores": self._scores[index]} if row.answers else {})

    def lengths(self) -> list[int]:
        """Words of each question."""
        return [len(ids) for ids in self._tokens]

    def _image(self, name: str) -> Tensor:
        files = self.questions.images
        file = files.path(name)
        image = self._kept.get(file)
        if image is None:
            image = files.read(file)
            if image.nbytes <= self._room:
                self._kept[file] = image
                self._room -= image.nbytes
        return image


def _scores(row: VisualQuestion, numbers: Mapping[str, int]) -> dict[int, float]:
    return {numbers[answer]: score for answer, score in row.scores().items() if answer in numbers}


@dataclass(frozen=True)
class VisualQuestionCollate:
    """Makes a batch of rows of :class:`TokenizedVisualQuestions`, padded on the right.

    Attributes:
        num_answers: C.
        variance: of Gaussian noise on the regions' features; 0 for none.
        grid: number of regions and their feature dimension, where the network makes them of pixels; needed for noise
            alone.
        seed: of the noise, which is the same for all questions about an image.

    Example:
        >>> image = torch.zeros(3, 4, 4, dtype=torch.uint8)
        >>> rows = [{"input_ids": [5, 6], "image": image, "name": "1", "scores": {0: 1.0}}] * 2
        >>> {name: tuple(value.shape) for name, value in VisualQuestionCollate(3)(rows).items()}
        {'input_ids': (2, 2), 'attention_mask': (2, 2), 'pixel_values': (2, 3, 4, 4), 'labels': (2, 3)}
    """

    num_answers: int
    variance: float = 0.0
    grid: tuple[int, int] | None = None
    seed: int = 0

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Pads and stacks at least one row.

        Returns ``input_ids`` and ``attention_mask`` int64 ``[B, T]``; of pixels ``pixel_values`` ``[B, 3, S, S]`` in
        [-1, 1], of features ``region_features`` ``[B, R, F]`` and ``region_mask`` ``[B, R]``; with noise
        ``feature_noise`` ``[B, R, F]``; where answers are known ``labels`` ``[B, C]``.
        """
        batch = {
            "input_ids": padded([row["input_ids"] for row in rows], 0),
            "attention_mask": padded([[1] * len(row["input_ids"]) for row in rows], 0),
            **_images([row["image"] for row in rows]),
        }
        if self.variance:
            shape = self.grid if self.grid is not None else batch["region_features"].shape[1:]
            drawn = {row["name"]: self._noise(row, tuple(shape)) for row in rows}
            batch["feature_noise"] = torch.stack([drawn[row["name"]] for row in rows])
        if "scores" in rows[0]:
            labels = torch.zeros(len(rows), self.num_answers)
            for index, row in enumerate(rows):
                for number, score in row["scores"].items():
                    labels[index, number] = score
            batch["labels"] = labels
        return batch

    def _noise(self, row: Mapping[str, Any], shape: tuple[int, ...]) -> Tensor:
        """Noise ``[R, F]`` of an image, 0 at padding; it does not depend on how much padding there is."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {row['name']}".encode()))
        unpadded = shape if self.grid is not None else tuple(row["image"].shape)
        noise = torch.zeros(shape)
        noise[: unpadded[0]] = torch.randn(unpadded, generator=generator) * self.variance**0.5
        return noise


def _images(images: Sequence[Tensor]) -> dict[str, Tensor]:
    if images[0].dim() == 3:
        return {"pixel_values": torch.stack(list(images)).float() / 127.5 - 1}
    features = torch.nn.utils.rnn.pad_sequence(list(images), batch_first=True)  # [B, R, F]
    counts = torch.tensor([len(image) for image in images])
    mask = torch.arange(features.shape[1]) < counts[:, None]
    return {"region_features": features, "region_mask": mask.long()}
