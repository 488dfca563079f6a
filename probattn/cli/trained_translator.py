"""A finished run of translation: its network and vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from probattn.cli.errors import CommandError
from probattn.cli.evaluating import RECORDS
from probattn.cli.networks import quiet_loading
from probattn.cli.trained import MODEL, model_key
from probattn.cli.translation_training import SUBWORDS
from probattn.data import PairCollate, SentencePairs, Subwords, TokenizedPairs
from probattn.inference.records import Record, read_records
from probattn.inference.report import ModelKey
from probattn.models import Translator, load
from probattn.models.translation import token_measures
from probattn.recipes import TranslationRecipe


@dataclass(frozen=True)
class TrainedTranslator:
    """A network of a run with its vocabulary, on the device where it translates."""

    model: Translator
    subwords: Subwords
    folder: Path

    @property
    def net(self) -> PreTrainedModel:
        """The network itself."""
        return cast(PreTrainedModel, self.model.net)

    @property
    def key(self) -> ModelKey:
        """What it is called in records; latent attention translates at its expectation."""
        key = model_key(self.net)
        return "bayesian_expectation" if key == "bayesian_mean" else key

    @property
    def records(self) -> list[Record]:
        """What was recorded in training."""
        return read_records(self.folder / RECORDS)

    @property
    def device(self) -> torch.device:
        """Where the network lies."""
        return next(self.model.parameters()).device

    def batches(self, pairs: SentencePairs, recipe: TranslationRecipe) -> Iterator[dict[str, Tensor]]:
        """Sentence pairs as the network takes them, the shortest first."""
        options = recipe.translation
        rows = TokenizedPairs(
            pairs.rows(pairs.shortest_first()),
            self.subwords,
            max_length=options.max_length,
            on_long=options.on_long,
        )
        for batch in DataLoader(rows, batch_size=recipe.search.batch_size, collate_fn=PairCollate()):
            yield {name: tensor.to(self.device) for name, tensor in batch.items()}

    def tokens(self, pairs: SentencePairs, recipe: TranslationRecipe) -> dict[str, float]:
        """Sums over sentence pairs of what perplexity and token accuracy are made of."""
        sums = dict.fromkeys(("nll", "tokens", "correct"), 0.0)
        for inputs in self.batches(pairs, recipe):
            with torch.no_grad():
                found = token_measures(self.model(inputs), inputs["labels"])
            sums = {name: sums[name] + found[name].double().sum().item() for name in sums}
        return sums


def load_translator(folder: Path) -> TrainedTranslator:
    """Loads a trained network from the folder of its records.

    Raises:
        CommandError: the folder holds no finished run.
        DataError: its vocabulary is missing or damaged.
    """
    place = folder / MODEL
    if not place.is_dir():
        raise CommandError(
            f"{folder}: expected a finished run with a folder '{MODEL}', found none; train it first"
        )
    with quiet_loading():
        net = load(place)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    model = Translator(net).to(device or torch.device("cpu"))
    return TrainedTranslator(model.eval(), Subwords.load(place / SUBWORDS), folder)
