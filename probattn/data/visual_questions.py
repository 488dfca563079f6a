"""Questions about images: files of easy-VQA and of VQA-v2, as tokens and images, and their batches."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, TypeAdapter
from torch import Tensor

from probattn.checks import shown
from probattn.data.errors import DataError, warn_long
from probattn.data.files import unreadable
from probattn.data.identity import Sampled, order
from probattn.data.region_files import ImageFiles
from probattn.data.sentence_pairs import padded
from probattn.data.tokens import TokenizedRows
from probattn.files.json_files import JSONError, read_json
from probattn.metrics.functional.texts import annotator_accuracy, normal_answer

YES_NO = ("yes", "no")
_SIGNS = re.compile(r"[.,'!?\"()*#:;]")
_BETWEEN_WORDS = re.compile(r"[-/]")


@dataclass(frozen=True)
class VisualQuestion:
    """A question about an image.

    Attributes:
        question: the original question.
        image: number or name of the image.
        answers: normalised answers of all annotators, "" for an annotator without answer; empty if answers are unknown.
        kind: kind of the answer in VQA-v2: "yes/no", "number" or "other".

    Example:
        >>> row = VisualQuestion("how many dogs ?", "7", ("2", "2", "2", "2", "3"), "number")
        >>> row.words, row.answer, row.score("2"), round(row.score("3"), 2)
        ('how many dogs', '2', 1.0, 0.27)
    """

    question: str
    image: str
    answers: tuple[str, ...] = ()
    kind: str = "other"

    @property
    def words(self) -> str:
        """The words of the question separated by spaces, without punctuation, as in MCAN's code."""
        return " ".join(_BETWEEN_WORDS.sub(" ", _SIGNS.sub("", self.question)).split())

    @property
    def answer(self) -> str:
        """The most frequent answer, the first one if several are equally frequent; "" if no answer is known."""
        counts = Counter(filter(None, self.answers))
        return counts.most_common(1)[0][0] if counts else ""

    def score(self, answer: str) -> float:
        """Accuracy of an answer (:func:`probattn.metrics.functional.annotator_accuracy`)."""
        return annotator_accuracy(self.answers.count(answer), len(self.answers))

    def scores(self) -> Mapping[str, float]:
        """Accuracy of every distinct answer that an annotator gave, by answer."""
        return {answer: self.score(answer) for answer in dict.fromkeys(filter(None, self.answers))}


@dataclass(frozen=True)
class VisualQuestions(Sampled):
    """Questions, and the files of their images.

    Attributes:
        rows: the questions.
        images: files of the images.
        source: description of the data.
    """

    rows: tuple[VisualQuestion, ...]
    images: ImageFiles
    source: str

    def __len__(self) -> int:
        return len(self.rows)

    def split(self, share: float) -> tuple[VisualQuestions, VisualQuestions]:
        """Splits by image: returns training questions, and held-out questions about a ``share`` of the images.

        Raises:
            DataError: one of the two parts is empty.
        """
        names = sorted({row.image for row in self.rows}, key=lambda name: (order(name), name))
        held_out = set(names[: round(share * len(names))])
        sides = [
            [index for index, row in enumerate(self.rows) if (row.image in held_out) == in_side]
            for in_side in (False, True)
        ]
        if not all(sides):
            raise DataError(
                f"{self.source}: expected questions to train on and to hold out, got {len(sides[0])} and "
                f"{len(sides[1])} with a share of {share:g} of {len(names)} images"
            )
        return self.at(sides[0]), self.at(sides[1])

    def at(self, places: Sequence[int]) -> VisualQuestions:
        """The questions with these indices."""
        return replace(self, rows=tuple(self.rows[index] for index in places))

    def _identities(self) -> Iterator[tuple[str, str]]:
        return ((row.image, row.question) for row in self.rows)


class _Question(BaseModel):
    question: str
    image_id: int | str
    question_id: int


class _Questions(BaseModel):
    questions: list[_Question]


class _Answer(BaseModel):
    answer: str


class _Annotation(BaseModel):
    question_id: int
    answer_type: str = "other"
    answers: list[_Answer]


class _Annotations(BaseModel):
    annotations: list[_Annotation]


def read_visual_questions(
    questions: Path | str, images: ImageFiles, annotations: Path | str | None = None
) -> VisualQuestions:
    """Reads questions and answers.

    Args:
        questions: file of VQA-v2 (an object with ``questions``), or of easy-VQA (a list of question, answer and image).
        images: files of the images, all of which must exist.
        annotations: file of VQA-v2 (an object with ``annotations``) with the annotators' answers; None for easy-VQA.

    Raises:
        DataError: a file is missing or has another format, a question has no words, has no answers or exists twice, or
            an image does not exist; the message is one line.
    """
    file = Path(questions).expanduser()
    questions_read = _easy(file) if annotations is None else _vqa(file, Path(annotations).expanduser())
    rows = []
    for number, row in enumerate(questions_read, 1):
        if not any(character.isalnum() for character in row.question):
            raise DataError(
                f"{file}, question {number:,}: expected a question with words, got {shown(row.question)}"
            )
        rows.append(row)
    if not rows:
        raise DataError(f"{file}: expected questions, got none")
    images.check(dict.fromkeys(row.image for row in rows), str(file))
    return VisualQuestions(tuple(rows), images, file.name)


def _easy(file: Path) -> Iterator[VisualQuestion]:
    for number, (question, answer, image) in enumerate(_content(file, list[tuple[str, str, int | str]]), 1):
        normalised = normal_answer(answer)
        if not normalised:
            raise DataError(f"{file}, question {number:,}: expected an answer, got {shown(answer)}")
        yield VisualQuestion(question, str(image), (normalised,), kind_of(normalised))


def _vqa(file: Path, annotations: Path) -> Iterator[VisualQuestion]:
    by_id: dict[int, _Annotation] = {}
    for item in _content(annotations, _Annotations).annotations:
        if item.question_id in by_id:
            raise DataError(f"{annotations}: expected each question once, got {item.question_id} twice")
        by_id[item.question_id] = item
    seen: set[int] = set()
    for row in _content(file, _Questions).questions:
        if row.question_id in seen:
            raise DataError(f"{file}: expected each question once, got {row.question_id} twice")
        seen.add(row.question_id)
        annotation = by_id.get(row.question_id)
        if annotation is None or not annotation.answers:
            raise DataError(
                f"{annotations}: expected answers to question {row.question_id} of {file.name}, got none"
            )
        answers = tuple(normal_answer(answer.answer) for answer in annotation.answers)
        yield VisualQuestion(row.question, str(row.image_id), answers, annotation.answer_type)


def _content(file: Path, kind: Any) -> Any:
    try:
        return read_json(file, TypeAdapter(kind))
    except FileNotFoundError:
        raise DataError(f"{file}: no such file; expected questions or answers in the form of JSON") from None
    except OSError as error:
        raise unreadable(file, error) from None
    except JSONError as error:
        raise DataError(str(error)) from None


def kind_of(answer: str) -> str:
    """The kind of an answer, as VQA-v2's annotations name it."""
    return "yes/no" if answer in YES_NO else "number" if answer.isdecimal() else "other"


def frequent_answers(questions: VisualQuestions, min_count: int = 1) -> tuple[str, ...]:
    """The answers that are the most frequent of ``min_count`` questions or more, sorted; two at least."""
    counts = Counter(row.answer for row in questions.rows if row.answer)
    answers = tuple(sorted(answer for answer, count in counts.items() if count >= min_count))
    if len(answers) < 2:
        raise DataError(
            f"{questions.source}: expected two answers or more that {min_count} questions have, got {len(answers)}; "
            "lower the number"
        )
    return answers


def unanswerable(questions: VisualQuestions, answers: Sequence[str]) -> int:
    """Number of questions none of whose answers is among those that the network knows."""
    vocabulary = set(answers)
    return sum(not vocabulary.intersection(row.answers) for row in questions.rows)


KEPT_BYTES = 2**28
"""Bytes of images that are kept in memory."""


class TokenizedVisualQuestions(TokenizedRows):
    """Questions as tokens, with their images and scores of answers; :class:`VisualQuestionCollate` makes batches.

    A row has ``input_ids``, ``image`` (content of its file), ``name`` (of the image) and, if answers are known,
    ``scores``, the accuracy of each known answer by its index.

    Args:
        questions: the rows.
        tokenizer: tokenizer of the words of the training questions (:func:`probattn.data.word_tokenizer`).
        answers: answers that the network chooses between.
        max_length: maximum number of words of a question, >= 1; longer questions are truncated.

    Raises:
        DataError: ``max_length`` is below 1.

    Warns:
        DataWarning: the number of truncated questions.
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
        self._rows = [
            {"input_ids": ids[:max_length], "name": row.image}
            | ({"scores": _scores(row, numbers)} if row.answers else {})
            for ids, row in zip(encoded, questions.rows, strict=True)
        ]
        self._kept: dict[Path, Tensor] = {}
        self._room = KEPT_BYTES

    def __getitem__(self, row: int) -> dict[str, Any]:
        features = self._rows[row]
        return {**features, "image": self._image(features["name"])}

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
        num_answers: C, number of answers.
        variance: variance of Gaussian noise on the regions' features; 0 for none.
        grid: number of regions and dimension of their features, if the network makes regions from pixels; only needed
            for noise.
        seed: seed of the noise, which is the same for all questions about an image.

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
