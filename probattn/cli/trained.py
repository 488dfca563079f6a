"""The network of a finished run, and how it is looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch.utils.data import DataLoader
from transformers import AutoTokenizer, PreTrainedModel

from probattn.cli.errors import CommandError
from probattn.cli.networks import quiet_loading
from probattn.data import PadCollate, TextDataset, TokenizedTexts
from probattn.inference.report import ModelKey
from probattn.models import Classifier, load
from probattn.models.hosts.convert import conversion
from probattn.models.hosts.pretrained import open_pretrained
from probattn.recipes import Recipe, ReportRecipe
from probattn.sites import METHODS

RECIPE = "recipe.yaml"
MODEL = "model"
BASELINE = "baseline"


def _plain_report() -> ReportRecipe:
    return ReportRecipe()


@dataclass(frozen=True)
class EvaluationOptions:
    """How a run is evaluated.

    Attributes:
        num_samples: P, posterior (and dropout) draws.
        chunk_size: draws per pass; None for the default.
        seed: of the draws and of the bootstrap.
        batch_size: rows per batch.
        max_length: most tokens a text; None for what the network takes.
        report: numbers of bins, resamples and examples; texts, layers and heads of attention maps.
        health_batches: batches over which the spread of the weights is averaged.
    """

    num_samples: int = 20
    chunk_size: int | None = None
    seed: int = 0
    batch_size: int = 32
    max_length: int | None = None
    report: ReportRecipe = field(default_factory=_plain_report)
    health_batches: int = 4

    @classmethod
    def of(cls, recipe: Recipe) -> EvaluationOptions:
        """The options that a recipe asks for."""
        prediction = recipe.prediction
        return cls(
            prediction.num_samples,
            prediction.chunk_size,
            prediction.seed,
            prediction.batch_size,
            recipe.data.max_length,
            recipe.report,
        )


@dataclass(frozen=True)
class TrainedModel:
    """A network of a run with its tokenizer, on the device where it predicts."""

    model: Classifier
    tokenizer: Any
    folder: Path

    @property
    def net(self) -> PreTrainedModel:
        """The Hugging Face network itself."""
        return cast(PreTrainedModel, self.model.net)

    @property
    def is_converted(self) -> bool:
        """Whether a method was put on its attention."""
        return conversion(self.net) is not None

    @property
    def is_bayesian(self) -> bool:
        """Whether its attention is latent."""
        record = conversion(self.net)
        return record is not None and record.method is not None

    @property
    def is_aligned(self) -> bool:
        """Whether its queries and keys were drawn together."""
        record = conversion(self.net)
        return record is not None and record.alignment is not None

    @property
    def key(self) -> ModelKey:
        """What it is called in records: latent attention comes first, then alignment, repulsion, disagreement."""
        return model_key(self.net)

    @property
    def compares_heads(self) -> bool:
        """Whether a method was there to keep its heads apart, so that a report looks at them."""
        return compares_heads(self.net)

    @property
    def alters_weights(self) -> bool:
        """Whether a method other than latent attention was put on it: its weights differ from the baseline's by it."""
        return self.is_aligned or self.compares_heads

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the outputs."""
        names = cast(dict[int, str], self.net.config.id2label)
        return tuple(names[index] for index in range(len(names)))

    @property
    def device(self) -> torch.device:
        """Where the network lies."""
        return next(self.model.parameters()).device

    def batches(self, data: TextDataset, options: EvaluationOptions) -> DataLoader[Any]:
        """Batches of a data set, in order."""
        config = self.net.config
        rows = TokenizedTexts(data, self.tokenizer, max_length=options.max_length, config=config)
        return DataLoader(rows, batch_size=options.batch_size, collate_fn=PadCollate(self.tokenizer))


def compares_heads(net: PreTrainedModel) -> bool:
    """Whether the heads of a network repelled each other in training, or paid for being alike."""
    record = conversion(net)
    return record is not None and (record.repulsive is not None or record.disagreement is not None)


def model_key(net: PreTrainedModel) -> ModelKey:
    """What a network is called in records: latent attention comes first, then alignment, repulsion, disagreement."""
    record = conversion(net)
    if record is None:
        return "deterministic" if getattr(net.config, "latent_alignment", None) is None else "variational"
    return cast(ModelKey, METHODS.key(record.methods))


def load_model(run: Path) -> TrainedModel:
    """Loads the trained network of a run folder.

    Raises:
        CommandError: the folder holds no finished run.
        StoredNetworkError: its network or tokenizer is damaged.
    """
    folder = run / MODEL
    if not folder.is_dir():
        raise CommandError(
            f"{run}: expected a finished run with a folder '{MODEL}', found none; train it first"
        )
    with quiet_loading():
        net = load(folder)
        tokenizer = open_pretrained(AutoTokenizer, folder)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    model = Classifier(net).to(device or torch.device("cpu"))
    return TrainedModel(model.eval(), tokenizer, run)
