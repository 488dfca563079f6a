"""Pretrained networks with a head: recipe to data, program and trained network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedModel

from probattn.files.durable import digest
from probattn.models import load, program_for
from probattn.models.hosts.pretrained import open_pretrained
from probattn.models.program import HeadProgram, Program
from probattn.report import Results
from probattn.tasks.classification.networks import load_head, load_tokenizer
from probattn.tasks.fine_tuning.encoding import Encoded, HeadData, padded
from probattn.tasks.fine_tuning.recipe import Examples, HeadRecipe
from probattn.tasks.networks import Network, check_finished, model_key, on_device, put_methods, quiet_loading
from probattn.tasks.programs import ProgramTask

TrainedHead = Network[HeadProgram]


class HeadNetworks(ProgramTask[Any, Results, HeadData, HeadProgram]):
    """The networks of a task with a head, before and after training.

    Attributes:
        reads_with: the Auto class of what they read with.
    """

    recipe_class: ClassVar[type[HeadRecipe]]
    reads_with: ClassVar[Any] = AutoTokenizer

    @property
    @abstractmethod
    def auto(self) -> Any:
        """Transformers' Auto class of the networks; a plain class attribute where it is always the same."""

    @abstractmethod
    def encode(self, codec: Any, examples: Examples) -> list[Encoded]:
        """Examples as a network reads them, with labels where the examples have some."""

    def collate(self, codec: Any) -> Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Tensor]]:
        """Rows to a batch: padded by the tokenizer, labels stacked."""
        return partial(padded, codec)

    def label_names(self) -> Sequence[str] | None:
        """Names of the head's outputs; None where they are not the data's."""
        return None

    def head_options(self) -> Mapping[str, Any]:
        """Further entries of the network's configuration."""
        return {}

    def _fingerprints(self) -> Iterator[str]:
        for split, examples in self.examples.items():
            yield split
            yield from map(self.section_of_examples.fingerprint, examples)

    def codec(self) -> Any:
        """What the recipe's network reads with."""
        return load_tokenizer(self.recipe.network, self.reads_with)

    def untrained(self) -> PreTrainedModel:
        """The recipe's network with a head for the data, whose attention is its own."""
        recipe = self.recipe
        return load_head(
            self.auto, recipe.network, self.label_names(), seed=recipe.training.seed, **self.head_options()
        )

    def prepare(self, net: PreTrainedModel) -> None:
        """Sets what the network is to keep of the data, before it is converted."""

    def program_options(self) -> Mapping[str, Any]:
        """Further options of the program."""
        return {}

    @cached_property
    def examples(self) -> dict[Any, list[Mapping[str, Any]]]:
        """Examples by part, read once."""
        return self.section_of_examples.load()

    @property
    def section_of_examples(self) -> Any:
        """The section of the recipe that names them."""
        return self.recipe.examples()[1]

    def sizes(self) -> Mapping[str, int]:
        """Number of examples of each part."""
        names = {"train": "training"}
        return {names.get(split, split): len(examples) for split, examples in self.examples.items()}

    def load_data(self) -> HeadData:
        """Encodes all examples, so that none is refused after training."""
        parts, codec = self.examples, self.codec()
        encoded = {split: self.encode(codec, examples) for split, examples in parts.items()}
        rows = {split: [row for item in items for row in item.rows] for split, items in encoded.items()}
        return HeadData(
            rows["train"],
            rows["validation"],
            self.collate(codec),
            {"data": digest(self._fingerprints()), "network": self.network_name},
            None,
            codec,
        )

    def program(self, *, baseline: bool = False) -> HeadProgram:
        """The recipe's network as a Pyro program; see the base class."""
        recipe = self.recipe
        data = self.data
        net = self.untrained()
        self.prepare(net)
        put_methods(net, () if baseline else self.methods, recipe, self.network_name)
        return self._program_of(net, num_data=len(data.train), **self.program_options())

    def _program_of(self, net: nn.Module, **options: Any) -> HeadProgram:
        program: Program = program_for(net, **options)
        assert isinstance(program, HeadProgram)
        return program

    def validation_metrics(self, program: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """Nothing beside the parts of the loss; a task may have more."""
        return {}

    def save_beside(self, program: HeadProgram, folder: Path) -> None:
        """Saves what the network reads with."""
        self.data.codec.save_pretrained(folder)

    def network(self, folder: Path) -> TrainedHead:
        """Loads a trained network and what it reads with."""
        path = check_finished(folder)
        with quiet_loading():
            net = load(path)
            codec = open_pretrained(self.reads_with, path)
        return Network(on_device(self._program_of(net)), folder, model_key(net), codec)

    @property
    def network_name(self) -> str:
        """What the recipe calls its network."""
        return str(getattr(self.recipe.network, "new", None) or self.recipe.network.name)

    def words(self) -> Mapping[str, Any]:
        """Network and data, in words."""
        return {
            "network": self.network_name,
            "data": self.section_of_examples.train,
            "train_size": len(self.examples["train"]),
        }
