"""Classes of images, by vision transformers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from probattn.checks import optional, shown
from probattn.data import DataError
from probattn.data.identity import Split, split_of
from probattn.data.region_files import opened_image
from probattn.data.rows import class_names
from probattn.files.durable import digest
from probattn.inference.posterior import Posterior
from probattn.models.program import seeded
from probattn.options import Filled
from probattn.tasks.classification.recipe import MINILM
from probattn.tasks.errors import RunError, as_run_error
from probattn.tasks.fine_tuning.classes import (
    MEASURES,
    ClassesDeciding,
    class_answers,
    class_evaluation,
    class_figures,
    class_record,
)
from probattn.tasks.fine_tuning.encoding import Answer, Batch, Encoded
from probattn.tasks.fine_tuning.recipe import Examples, ExamplesSection, HeadNetworkRecipe, HeadRecipe, Rows
from probattn.tasks.fine_tuning.task import UNCERTAINTY, HeadTask
from probattn.tasks.networks import named_outputs, quiet_loading
from probattn.tasks.programs import ProgramTask
from probattn.tasks.sections.base import key

ENDINGS = ("png", "jpg", "jpeg", "bmp", "gif", "webp", "tif", "tiff")
"""Of files that are read as images."""


def digits(split: Split) -> Rows:
    """The 1,797 digits of 8 x 8 that scikit-learn brings, of classes 0 to 9."""
    data = optional("data set 'digits'", "sklearn.datasets", "sklearn").load_digits()
    for number, (image, label) in enumerate(zip(data.images, data.target, strict=True)):
        if split_of(f"digit {number}") == split:
            pixels = (image * 255 / 16).astype(np.uint8)
            name = f"digits {number}"
            yield (
                name,
                {"image": np.repeat(pixels[..., None], 3, axis=2), "label": str(label), "name": name},
            )


class ImagesSection(ExamplesSection):
    """Images with one class each. `digits` is built in: the 8 x 8 digits of scikit-learn."""

    named: ClassVar[Any] = {"digits": digits}
    suffixes: ClassVar[tuple[str, ...]] = ("",)
    input_keys: ClassVar[tuple[str, ...]] = ("image",)
    answer_keys: ClassVar[tuple[str, ...]] = ("label",)

    train: str = Field(
        min_length=1,
        description="Training data: `digits`, a folder with a subfolder of images for each class, a file (.csv, .tsv, "
        ".jsonl) of images' paths, relative to its folder, or `hub:owner/name`.",
    )
    image: Filled = key("image", "Column of the images or their paths.")
    label: Filled = key("label", "Column of the classes.")

    def example(self, fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """An image, or its path, its class, a name, and what it is known by wherever its file lies."""
        return {**self.unlabelled_row(fields, where), "label": str(fields[self.label])}

    def unlabelled(self, text: str, pair: str | None) -> Mapping[str, Any]:
        """An image by its path."""
        path = Path(text).expanduser()
        if not path.is_file():
            raise RunError(f"expected the path of an image, got {shown(text)}, and there is no such file")
        return {"image": path, "name": text}

    def unlabelled_row(self, fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """An image, or its path, a name, and its content."""
        image = fields.get(self.image)
        if isinstance(image, str):
            path = Path(image).expanduser()
            table = Path(where.rpartition(" line ")[0] or where)
            image = path if path.is_absolute() else table.parent / path
            if not image.is_file():
                raise DataError(f"{where}: expected an image in {self.image!r}, got no such file {image}")
        if image is None:
            raise DataError(f"{where}: expected an image in {self.image!r}, got nothing")
        name = str(fields.get("name") or (image if isinstance(image, Path) else where))
        content = digest([image.read_bytes()]) if isinstance(image, Path) else name
        return {"image": image, "name": name, "content": content}

    def identity(self, example: Mapping[str, Any]) -> str:
        """The content of its file; of an image without one the name."""
        return str(example["content"])

    def fingerprint(self, example: Mapping[str, Any]) -> str:
        """Content and class."""
        return f"{example['content']}\n{example.get('label')}"

    def rows(self, source: str, split: Split, columns: Collection[str]) -> Rows:
        """Rows of a source; without classes a folder is read whole."""
        path = Path(source).expanduser()
        if source in self.named or self.label in columns or not path.is_dir():
            yield from super().rows(source, split, columns)
            return
        for file in _images(path, "**/*", "a folder"):
            yield str(file), {self.image: str(file.absolute())}

    def read_file(self, path: Path) -> Rows:
        """Images of a folder whose folders are the classes."""
        for file in _images(path, "*/*", "a folder for each class"):
            yield str(file), {self.image: str(file.absolute()), self.label: file.parent.name}


class ImageNetworkRecipe(HeadNetworkRecipe):
    """The pretrained network, or a new one."""

    name: Filled = key(
        "google/vit-base-patch16-224",
        "A folder with a Hugging Face network and its image processor, or a name on the hub.",
    )
    new: Filled | None = key(
        None,
        "Type of a new network (`vit`, `swin`, ...), built from `config`; null to load the network `name`.",
    )

    @model_validator(mode="after")
    def _not_of_texts(self) -> ImageNetworkRecipe:
        if self.name == MINILM:
            raise ValueError(f"expected a network for images, {self.name!r} reads texts")
        return self


class ImagesRecipe(HeadRecipe):
    """All that a run on images depends on."""

    images: ImagesSection = Field(description="The images and their classes.")
    network: ImageNetworkRecipe = key(ImageNetworkRecipe(), "The network to start from.")

    @model_validator(mode="after")
    def _of_one_size(self) -> ImagesRecipe:
        if self.training.length_pool is not None:
            raise ValueError("training.length_pool: expected null, images have no length")
        return self


class Images(HeadTask):
    """Classification of images, by a network for image classification."""

    section = "images"
    recipe_class = ImagesRecipe
    decides = ClassesDeciding
    unit = "images"
    auto = AutoModelForImageClassification
    reads_with = AutoImageProcessor
    inputs = ("image",)
    headings: ClassVar[Any] = {"image": "Image", "truth": "True class", "label": "Predicted", **UNCERTAINTY}

    def label_names(self) -> Sequence[str]:
        """The classes of the training images, sorted."""
        return class_names(example["label"] for example in self.examples["train"])

    def codec(self) -> Any:
        """The image processor of the network; for a new network, one for the size of its images."""
        network = self.recipe.network
        if network.new is None:
            return super().codec()
        size = self._new_config().image_size
        with quiet_loading():  # without torchvision its import says so
            from transformers import ViTImageProcessor

            return ViTImageProcessor(size={"height": size, "width": size})

    def untrained(self) -> PreTrainedModel:
        """The network before training; see :meth:`HeadTask.untrained`."""
        if self.recipe.network.new is None:
            return super().untrained()
        with seeded(self.recipe.training.seed):
            net: PreTrainedModel = self.auto.from_config(self._new_config())
        return net

    def _new_config(self) -> PreTrainedConfig:
        network = self.recipe.network
        with as_run_error(TypeError, ValueError, where="network.config"):
            return AutoConfig.for_model(network.new, **(named_outputs(self.label_names()) | network.config))

    def collate(self, codec: Any) -> Any:
        """Function that makes a batch of pixels; it reads the images of the batch."""
        return partial(pixels, codec)

    def encode(self, codec: Any, examples: Examples) -> list[Encoded]:
        """Images without changes, with the numbers of their classes."""
        index = {name: number for number, name in enumerate(self.label_names())}
        encoded = []
        for example in examples:
            row = {"image": example["image"]}
            if "label" in example:
                if example["label"] not in index:
                    raise DataError(
                        f"{example['name']}: expected a class of the training images ({', '.join(index)}), got "
                        f"{example['label']!r}"
                    )
                row["labels"] = index[example["label"]]
            encoded.append(Encoded([row]))
        return encoded

    def answer(self, posterior: Posterior, batch: Batch) -> list[Answer]:
        """The most probable class of each image."""
        answers = class_answers(posterior, batch)
        return [{"image": row["name"], **answer} for row, answer in zip(batch.examples, answers, strict=True)]

    measures = MEASURES
    validation_metrics = ProgramTask.validation_metrics
    evaluation = class_evaluation
    figures = class_figures
    record = record_unlabelled = staticmethod(class_record)

    def truth(self, example: Mapping[str, Any]) -> str:
        """The true class."""
        return str(example["label"])


def pixels(codec: Any, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Images as the processor makes them, with their labels ``[B]``."""
    batch = dict(codec([_opened(row["image"]) for row in rows], return_tensors="pt"))
    return batch | ({"labels": torch.tensor([row["labels"] for row in rows])} if "labels" in rows[0] else {})


def _images(folder: Path, pattern: str, expected: str) -> list[Path]:
    files = sorted(item for item in folder.glob(pattern) if item.suffix.lower().lstrip(".") in ENDINGS)
    if not files:
        raise DataError(f"{folder}: expected {expected} with images ({', '.join(ENDINGS)}), got none")
    return files


def _opened(image: Any) -> Any:
    """An image, read from its file where it is a path."""
    if isinstance(image, Path):
        return opened_image(image)
    return image.convert("RGB") if hasattr(image, "convert") else image
