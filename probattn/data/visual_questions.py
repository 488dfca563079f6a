"""Questions about images: easy-VQA's files and those of VQA-v2."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from probattn.checks import shown
from probattn.data.errors import DataError
from probattn.data.files import unreadable
from probattn.data.identity import Sampled, order
from probattn.data.region_files import ImageFiles
from probattn.files.json_files import JSONError, read_json
from probattn.metrics.functional.texts import annotator_accuracy, normal_answer

YES_NO = ("yes", "no")
_SIGNS = re.compile(r"[.,'!?\"()*#:;]")
_BETWEEN_WORDS = re.compile(r"[-/]")


@dataclass(frozen=True)
class VisualQuestion:
    """A question about an image.

    Attributes:
        question: as it was asked.
        image: number or name of the image.
        answers: of all annotators, normalised; empty where they are not known. An annotator's may be "", none.
        kind: "yes/no", "number" or "other", as VQA-v2 has it.

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
        """The question's words with spaces between them, without punctuation, as MCAN's authors read it."""
        return " ".join(_BETWEEN_WORDS.sub(" ", _SIGNS.sub("", self.question)).split())

    @property
    def answer(self) -> str:
        """The most frequent answer, of equally frequent ones the first; "" where none is known."""
        counts = Counter(filter(None, self.answers))
        return counts.most_common(1)[0][0] if counts else ""

    def score(self, answer: str) -> float:
        """Accuracy of an answer, :func:`probattn.metrics.functional.annotator_accuracy`."""
        return annotator_accuracy(self.answers.count(answer), len(self.answers))

    def scores(self) -> Mapping[str, float]:
        """Accuracy of each answer that an annotator gave."""
        return {answer: self.score(answer) for answer in dict.fromkeys(filter(None, self.answers))}


@dataclass(frozen=True)
class VisualQuestions(Sampled):
    """Questions, and where their images are.

    Attributes:
        rows: the questions.
        images: their files.
        source: where they are from.
    """

    rows: tuple[VisualQuestion, ...]
    images: ImageFiles
    source: str

    def __len__(self) -> int:
        return len(self.rows)

    def split(self, share: float) -> tuple[VisualQuestions, VisualQuestions]:
        """The questions to train on and those held out: of a fixed choice of images, which the others do not have.

        Raises:
            DataError: no question is left on one of the sides.
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
        """The questions at the given places."""
        return replace(self, rows=tuple(self.rows[index] for index in places))

    _at = at

    def _identities(self) -> Iterator[tuple[str, str]]:
        return ((row.image, row.question) for row in self.rows)


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Question(_Lenient):
    question: str
    image_id: int | str
    question_id: int


class _Questions(_Lenient):
    questions: list[_Question]


class _Answer(_Lenient):
    answer: str


class _Annotation(_Lenient):
    question_id: int
    answer_type: str = "other"
    answers: list[_Answer]


class _Annotations(_Lenient):
    annotations: list[_Annotation]


def read_visual_questions(
    questions: Path | str, images: ImageFiles, annotations: Path | str | None = None
) -> VisualQuestions:
    """Reads questions and answers.

    Args:
        questions: of VQA-v2 (an object with ``questions``), or of easy-VQA (a list of question, answer and image).
        images: where the images are, each of which must be there.
        annotations: of VQA-v2 (an object with ``annotations``), with the annotators' answers; None for easy-VQA's form.

    Raises:
        DataError: in one line: a file that is missing or holds something else, a question without words, without
            answers or twice, or an image that is not there.
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
    adapter: TypeAdapter[Any] = TypeAdapter(list[tuple[str, str, int | str]])
    for number, (question, answer, image) in enumerate(_content(file, adapter), 1):
        normalised = normal_answer(answer)
        if not normalised:
            raise DataError(f"{file}, question {number:,}: expected an answer, got {shown(answer)}")
        yield VisualQuestion(question, str(image), (normalised,), kind_of(normalised))


def _vqa(file: Path, annotations: Path) -> Iterator[VisualQuestion]:
    by_id: dict[int, _Annotation] = {}
    for item in _content(annotations, TypeAdapter(_Annotations)).annotations:
        if item.question_id in by_id:
            raise DataError(f"{annotations}: expected each question once, got {item.question_id} twice")
        by_id[item.question_id] = item
    seen: set[int] = set()
    for row in _content(file, TypeAdapter(_Questions)).questions:
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


def _content(file: Path, kind: TypeAdapter[Any]) -> Any:
    try:
        return read_json(file, kind)
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
