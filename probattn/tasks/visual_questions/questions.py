"""What a run of visual questions keeps and shows of its questions, and the lines that it is given."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from probattn.checks import shown
from probattn.data import DataError, ImageFiles, VisualQuestion, VisualQuestions
from probattn.report import MODEL_TITLES, Group, Listing, ModelKey, Predictions, Sheet
from probattn.tasks.answering import Drawing
from probattn.tasks.errors import RunError
from probattn.tasks.networks import predictions
from probattn.tasks.visual_questions.predicting import (
    Trained,
    answers_of,
    attention_maps,
    variance_shares,
)
from probattn.tasks.visual_questions.results import GivenAnswer, VisualQuestionSample

FORM = "the path or the number of an image, a tab and a question"
LIKELIEST = 3
"""Answers that are shown."""
DIGITS = 6
"""Digits behind the point of figures in answers."""


def given_questions(lines: Sequence[str], files: ImageFiles) -> VisualQuestions:
    """Lines as questions; ``RunError`` where one is none.

    Args:
        lines: path of an image, or its number or name among ``files``, a tab and a question.
        files: of the images that have numbers.
    """
    rows = []
    for line in lines:
        image, tab, question = line.partition("\t")
        if not tab or not image.strip():
            raise RunError(f"expected {FORM}, got {shown(line)}")
        if not any(character.isalnum() for character in question):
            raise RunError(f"expected {FORM}, got a question without words: {shown(line)}")
        rows.append(VisualQuestion(question.strip(), str(_path(image.strip(), files))))
    # Paths are names of their own: the pattern gives them as they are.
    return VisualQuestions(tuple(rows), replace(files, folder=Path(), pattern="{id}"), "predict")


def _path(image: str, files: ImageFiles) -> Path:
    try:
        path = Path(image).expanduser()
    except RuntimeError:  # no such user
        path = Path(image)
    if path.is_file():
        return path.absolute()
    try:
        known = files.path(image)
    except DataError:
        known = path
    if not known.is_file():
        raise RunError(f"expected {FORM}, got {shown(image)}, and there is no such file and no file {known}")
    return known.absolute()


def object_of(line: str, mean: Tensor, spread: Tensor, answers: Sequence[str]) -> dict[str, Any]:
    """The answer to a line, for programs; mean and standard deviation of each answer's probability ``[C]``."""
    image, _, question = line.partition("\t")
    likeliest = mean.argsort(descending=True, stable=True)[:LIKELIEST].tolist()
    first = likeliest[0]
    return {
        "text": line,
        "image": image,
        "question": question,
        "answer": answers[first],
        "probability": round(mean[first].item(), DIGITS),
        "spread": round(spread[first].item(), DIGITS),
        "likeliest": {answers[place]: round(mean[place].item(), DIGITS) for place in likeliest},
    }


def answer_sheet(found: Sequence[Mapping[str, Any]]) -> Sheet:
    """Answers as a table."""
    rows = tuple(
        (
            item["image"],
            item["question"],
            item["answer"],
            f"{item['probability']:.3f}",
            f"{item['spread']:.3f}",
        )
        for item in found
    )
    return Sheet(("Image", "Question", "Answer", "Probability", "Spread"), (Group("", rows),), words=3)


def by_kind(questions: VisualQuestions, accuracy: Mapping[ModelKey, Tensor]) -> Listing:
    """Accuracy of each kind of question by model."""
    kinds = [row.kind for row in questions.rows]
    rows = []
    for kind in sorted(set(kinds)):
        indices = torch.tensor([index for index, item in enumerate(kinds) if item == kind])
        cells = [f"{100 * values[indices].mean().item():.1f}%" for values in accuracy.values()]
        rows.append((kind, f"{len(indices):,}", *cells))
    return Listing(
        title="Kinds of questions",
        headings=("kind", "questions", *(MODEL_TITLES[model] for model in accuracy)),
        rows=tuple(rows),
        about="Accuracy of the answers to the test questions as they are.",
    )


def sample_of(
    networks: Sequence[Trained],
    batches: Mapping[ModelKey, Mapping[str, Tensor]],
    single: VisualQuestions,
    options: Any,
) -> VisualQuestionSample:
    """A question with the answers of all networks and the attention maps of the last one.

    Args:
        networks: the baseline, if there is one, and the run's own last.
        batches: the question alone, for each network by its key.
        single: the question.
        options: of prediction.
    """
    last, (row,) = networks[-1], single.rows
    boxes = single.images.boxes(single.images.path(row.image))
    inputs = last.moved(batches[last.key])
    answers = {
        key: _given(found, answers_of(network))
        for network in networks
        for key, found in predictions(
            network,
            [network.moved(batches[network.key])],
            Drawing.of(options),
            dropout=False,
        ).items()
    }
    maps: dict[str, Any] = attention_maps(last, inputs, options)
    maps |= variance_shares(last, inputs, answers[last.key][0].answer)
    return VisualQuestionSample(
        question=row.question,
        words=tuple(last.codec.convert_ids_to_tokens(inputs["input_ids"][0].tolist())),
        image=row.image,
        truth=tuple(answer for answer, _ in Counter(row.answers).most_common()),
        image_url=_data_address(inputs["pixel_values"][0]) if "pixel_values" in inputs else "",
        boxes=() if boxes is None else tuple(tuple(round(side, 4) for side in box) for box in boxes.tolist()),
        answers=answers,
        **maps,
    )


def _given(found: Predictions, answers: Sequence[str]) -> tuple[GivenAnswer, ...]:
    """The likeliest answers to a single question."""
    mean = found.probabilities[0]
    draws = mean[None] if found.draws is None else found.draws[:, 0]
    spread = draws.std(dim=0, correction=min(1, len(draws) - 1))
    return tuple(
        GivenAnswer(
            answer=answers[place],
            probability=round(mean[place].item(), DIGITS),
            spread=round(spread[place].item(), DIGITS),
        )
        for place in mean.argsort(descending=True, stable=True)[:LIKELIEST].tolist()
    )


def _data_address(pixels: Tensor) -> str:
    """Pixels ``[3, S, S]`` in [-1, 1] as a data address of an image."""
    from PIL import Image

    stream = io.BytesIO()
    image = ((pixels + 1) * 127.5).round().byte().permute(1, 2, 0).cpu().numpy()
    Image.fromarray(image).save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
