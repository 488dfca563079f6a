"""Answers of a network to questions, its attention maps, and the lines that a run is given."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from probattn.checks import shown
from probattn.data import DataError, ImageFiles, VisualQuestion, VisualQuestions
from probattn.inference.expansion import posterior_moments
from probattn.inference.moments import Moments
from probattn.inference.posterior import Posterior
from probattn.inference.predictive import posterior_expectation, posterior_predict
from probattn.models import VisualQuestionProgram
from probattn.report import MODEL_TITLES, Group, Listing, ModelKey, Predictions, Sheet
from probattn.report.attention import rounded_rows
from probattn.tasks.answering import DIGITS, Answering, Drawing
from probattn.tasks.errors import RunError
from probattn.tasks.measured import predictions
from probattn.tasks.networks import Network, in_batches
from probattn.tasks.visual_questions.results import AnswerMap, GivenAnswer, PartEffect, VisualQuestionSample

if TYPE_CHECKING:
    from probattn.tasks.visual_questions.task import VisualQuestionTask

Trained = Network[VisualQuestionProgram]
WEIGHT_DIGITS = 5
"""Digits of the weights in records."""


def attention_maps(network: Trained, inputs: Mapping[str, Tensor], options: Any) -> dict[str, AnswerMap]:
    """Attention of a single question without padding, by the names that a sample has for it."""
    words, regions = inputs["input_ids"].shape[1], _regions(network, inputs)
    shapes = {
        "word_map": (words, words),
        "region_map": (regions, words),
        "word_weights": (1, words),
        "region_weights": (1, regions),
    }

    def read(rows: Mapping[str, Tensor]) -> Tensor:
        """All maps of each row, one after the other, means over heads."""
        output = network.net(**rows, output_attentions=True)
        last = (output.encoder_attentions[-1], output.cross_attentions[-1])
        maps = (*last, output.word_weights, output.region_weights)
        return torch.cat([item.mean(dim=1).flatten(1) for item in maps], dim=1)

    latent = network.key == "bayesian_mean"
    drawn = posterior_predict(
        read, inputs, options.num_samples if latent else 1, seed=(options.seed, 0)
    ).logits[:, 0]
    draws_of_maps = drawn.split([height * width for height, width in shapes.values()], dim=1)
    return {
        name: AnswerMap(
            mean=rounded_rows(draws.mean(dim=0).view(shape).clamp_min(0), WEIGHT_DIGITS),
            spread=rounded_rows(draws.std(dim=0).view(shape), WEIGHT_DIGITS) if len(draws) > 1 else (),
        )
        for (name, shape), draws in zip(shapes.items(), draws_of_maps, strict=True)
    }


def effects(network: Trained, inputs: Mapping[str, Tensor], answer: str) -> dict[str, tuple[PartEffect, ...]]:
    """What each word and region, masked alone, does to the probability of an answer; none if it is the only one."""
    names, words, regions = network.names, inputs["input_ids"].shape[1], _regions(network, inputs)
    parts = [*range(words if words > 1 else 0), *range(words, words + (regions if regions > 1 else 0))]
    mask = inputs["input_ids"].new_ones(1 + len(parts), words + regions)  # the first row has everything
    mask[range(1, len(mask)), parts] = 0
    rows = {
        name: value.expand(len(mask), *value.shape[1:]) for name, value in inputs.items() if name != "labels"
    }
    rows |= {"attention_mask": mask[:, :words], "region_mask": mask[:, words:]}
    logits = posterior_expectation(network.program, rows)
    number = names.index(answer)
    p, best = logits[:, number].double().sigmoid(), logits.argmax(dim=-1).tolist()
    made: dict[str, tuple[PartEffect, ...]] = {"word_effects": (), "region_effects": ()}
    for part, change, other in zip(parts, (p[0] - p[1:]).tolist(), best[1:], strict=True):
        effect = PartEffect(
            change=round(change, WEIGHT_DIGITS), answer=None if other in (number, best[0]) else names[other]
        )
        made["word_effects" if part < words else "region_effects"] += (effect,)
    return made


def _regions(network: Trained, inputs: Mapping[str, Tensor]) -> int:
    """Number of regions of the images."""
    grid = network.net.config.grid_size
    return inputs["region_features"].shape[1] if grid is None else int(grid**2)


FORM = "the path or the number of an image, a tab and a question"
LIKELIEST = 3
"""Answers that are shown."""


def questions_of(lines: Sequence[str], files: ImageFiles) -> VisualQuestions:
    """Lines of an image (its path, or its name among ``files``), a tab and a question; ``RunError`` for any other."""
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
        numbered = files.path(image)
    except DataError:
        numbered = path
    if not numbered.is_file():
        raise RunError(
            f"expected {FORM}, got {shown(image)}, and there is no such file and no file {numbered}"
        )
    return numbered.absolute()


def object_of(line: str, mean: Tensor, spread: Tensor, answers: Sequence[str]) -> dict[str, Any]:
    """The answer to a line, for programs; mean and standard deviation of each answer's probability ``[C]``."""
    image, _, question = line.partition("\t")
    likeliest = _likeliest(mean, spread, answers)
    return {
        "text": line,
        "image": image,
        "question": question,
        **likeliest[0].model_dump(),
        "likeliest": {answer.answer: answer.probability for answer in likeliest},
    }


def answer_sheet(answers: Sequence[Mapping[str, Any]]) -> Sheet:
    """Answers as a table."""
    rows = tuple(
        (
            item["image"],
            item["question"],
            item["answer"],
            f"{item['probability']:.3f}",
            f"{item['spread']:.3f}",
        )
        for item in answers
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
    """A question with the answers of all networks and the attention maps of the last one, the run's own."""
    last, (row,) = networks[-1], single.rows
    boxes = single.images.boxes(single.images.path(row.image))
    inputs = last.moved(batches[last.key])
    answers = {
        key: _given(prediction, network.names)
        for network in networks
        for key, prediction in predictions(
            network, [network.moved(batches[network.key])], Drawing.of(options), dropout=False
        ).items()
    }
    maps: dict[str, Any] = attention_maps(last, inputs, options)
    maps |= effects(last, inputs, answers[last.key][0].answer)
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


def _given(prediction: Predictions, answers: Sequence[str]) -> tuple[GivenAnswer, ...]:
    """The likeliest answers to a single question."""
    mean = prediction.probabilities[0]
    draws = mean[None] if prediction.draws is None else prediction.draws[:, 0]
    return _likeliest(mean, draws.std(dim=0, correction=min(1, len(draws) - 1)), answers)


def _likeliest(mean: Tensor, spread: Tensor, answers: Sequence[str]) -> tuple[GivenAnswer, ...]:
    return tuple(
        GivenAnswer(
            answer=answers[index],
            probability=round(mean[index].item(), DIGITS),
            spread=round(spread[index].item(), DIGITS),
        )
        for index in mean.argsort(descending=True, stable=True)[:LIKELIEST].tolist()
    )


def _data_address(pixels: Tensor) -> str:
    """Pixels ``[3, S, S]`` in [-1, 1] as a data address of an image."""
    from PIL import Image

    stream = io.BytesIO()
    image = ((pixels + 1) * 127.5).round().byte().permute(1, 2, 0).cpu().numpy()
    Image.fromarray(image).save(stream, "PNG")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"


class VisualAnswering(Answering):
    """Answers to lines with the path of an image, or its number among the test images, a tab and a question."""

    task: VisualQuestionTask

    reads = "lines with an image and a question"

    def check(self, run: Path) -> Callable[[str], object]:
        """Whether a line names an image that is there and asks something."""
        files = self.task.recipe.visual_questions.images("test")
        return lambda line: questions_of([line], files)

    def answered(
        self, run: Path, rows: Iterable[tuple[str, str | None]], drawing: Drawing
    ) -> Iterator[dict[str, Any]]:
        """One answer a line; see the base class."""
        task, network = self.task, self.task.network(run)
        prediction, files = task.recipe.prediction, task.recipe.visual_questions.images("test")
        latent, names = network.key == "bayesian_mean", network.names
        for number, batch_rows in enumerate(in_batches(rows, prediction.batch_size)):
            lines = [line for line, _ in batch_rows]
            batch = next(task.batches(network, task.rows(network, questions_of(lines, files))))
            seed = (drawing.seed, number)
            answers: Moments | Posterior
            if latent and drawing.uncertainty == "moments":
                draws = max(drawing.num_samples, 2)
                answers = posterior_moments(network.program, batch, num_samples=draws, seed=seed)
            else:
                draws, chunk = drawing.num_samples if latent else 1, prediction.chunk_size
                answers = posterior_predict(network.program, batch, draws, seed=seed, chunk_size=chunk)
            for line, mean, spread in zip(lines, answers.mean.cpu(), answers.std.cpu(), strict=True):
                yield object_of(line, mean, spread, names)

    def answers(self, answers: Sequence[dict[str, Any]]) -> tuple[str | Sheet, list[dict[str, Any]]]:
        """A table, and the same for programs."""
        return answer_sheet(answers), list(answers)

    def columns(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, its probability and its spread."""
        return {name: answer[name] for name in ("answer", "probability", "spread")}
