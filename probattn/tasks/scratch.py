"""What tasks share whose network of transformers is trained from random weights on data sets by role."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from probattn.data import PairCollate
from probattn.files.json_files import write_json_lines
from probattn.models import load
from probattn.models.translation import token_measures
from probattn.report import DataSet, ModelKey
from probattn.tasks.answering import Answering
from probattn.tasks.networks import (
    Network,
    Program,
    check_finished,
    model_key,
    on_device,
    put_methods,
    quiet_loading,
    search_words,
)
from probattn.tasks.programs import AnyData, Data, ProgramTask
from probattn.tasks.task import AnyRecipe, AnyResults
from probattn.tasks.topics import TopicData


class ScratchTask(ProgramTask[AnyRecipe, AnyResults, AnyData, Program]):
    """Base class of tasks whose network starts from random weights, trains on "train" and is measured on "test".

    ``network_title`` names the network in messages, ``accuracy_title`` the measure of :meth:`accuracy`. For a network
    that writes texts, the batches are of ``collate_class``, and those for the test rows are saved in ``texts_file``,
    one JSON object per line. A task that writes none overrides outputs, batches and accuracy.
    """

    network_title: ClassVar[str]
    answering_class: ClassVar[type[Answering]]
    accuracy_title: ClassVar[str] = "token accuracy"
    texts_file: ClassVar[str]
    collate_class: ClassVar[type[PairCollate]]

    @cached_property
    def datasets(self) -> Mapping[str, Any]:
        """The recipe's data by role, "train", "validation" and "test", read once."""
        section: Any = getattr(self.recipe, str(self.section))
        return dict(section.load())

    def sizes(self) -> Mapping[str, int]:
        """Number of rows of each role."""
        return {role.replace("train", "training"): len(data) for role, data in self.datasets.items()}

    def test_set(self, source: str, **fields: Any) -> DataSet:
        """The test rows as the report describes them, with other ``fields`` where it has several such sets."""
        usual = {"key": "test", "title": "Test", "role": "in_domain", "labelled": True, "unit": self.unit}
        return DataSet(size=len(self.datasets["test"]), source=source, **{**usual, **fields})

    @abstractmethod
    def untrained(self, codec: Any) -> Any:
        """The recipe's network with random weights, a function of the seed, in training mode."""

    @abstractmethod
    def program_of(self, net: Any, **options: Any) -> Program:
        """A network as a Pyro program."""

    @abstractmethod
    def load_codec(self, folder: Path) -> Any:
        """What the network in a folder reads and writes with."""

    def program(self, *, baseline: bool = False) -> Program:
        """The recipe's network as a Pyro program; see the base class."""
        data: Any = self.data
        net = self.untrained(data.codec)
        put_methods(net, () if baseline else self.methods, self.recipe, self.network_title)
        return self.program_of(net, num_data=len(data.train), **self.program_options())

    def network(self, folder: Path) -> Network[Program]:
        """Loads a trained network and its codec; see the base class."""
        path = check_finished(folder)
        with quiet_loading():
            net, codec = self.load_net(path), self.load_codec(path)
        program = on_device(self.program_of(net))
        return Network(program, folder, model_key(cast(nn.Module, program.net)), codec)

    def load_net(self, folder: Path) -> Any:
        """The trained network in a folder."""
        return load(folder)

    @property
    def drawing(self) -> Any:
        """How topics predict."""
        return self.recipe.prediction

    def start(self, network: Network[Program]) -> Program:
        """The program of a trained network before its training."""
        return self.program_of(self.untrained(network.codec))

    def take(self, number: int) -> Any:
        """Test rows, at most so many, for topics."""
        return self.datasets["test"].take(number)

    def topic_data(self, networks: Sequence[Network[Program]]) -> TopicData:
        """Test rows as the topics of the report read them."""
        return TopicData(
            take=self.take,
            batches=self.batches,
            start=lambda: self.start(networks[-1]),
            report=self.recipe.report,
            prediction=self.drawing,
            accuracy=self.accuracy,
            measure=self.accuracy_title,
        )

    @property
    def answering(self) -> Answering:
        """How inputs of users are answered."""
        return self.answering_class(self)

    def num_outputs(self, net: PreTrainedModel) -> int:
        """Tokens of the vocabulary."""
        return int(net.config.vocab_size)

    def tokenized(self, rows: Any, codec: Any) -> Any:
        """Rows of texts as the recipe cuts them."""
        # Not abstract: only what writes texts calls it, and questions about images and pre-training write none.
        raise NotImplementedError(f"{type(self).__name__}: a task that writes texts overrides this")

    def tokenized_data(self, codec: Any, fingerprint: Mapping[str, str], watched: Any = None) -> Data:
        """Tokenizes everything, so that no text is refused after training; validation texts the shortest first."""
        validation = self.datasets["validation"]
        ordered = {**self.datasets, "validation": validation.at(validation.shortest_first())}
        rows = {role: self.tokenized(dataset, codec) for role, dataset in ordered.items()}
        return Data(rows["train"], rows["validation"], self.collate_class(), fingerprint, watched, codec)

    def network_words(self) -> str:
        """The network in words, for its report."""
        return self.network_title

    def words(self) -> Mapping[str, Any]:
        """Network, data and search, in words."""
        train, search = self.datasets["train"], search_words(self.recipe.search)
        return {
            "network": self.network_words(),
            "data": train.source,
            "train_size": len(train),
            "search": search,
        }

    def validation_metrics(self, program: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """Contributions of each text to perplexity and token accuracy."""
        return token_measures(program(batch), batch["labels"])

    def batches(self, network: Network[Program], rows: Any) -> Iterator[Mapping[str, Tensor]]:
        """Rows of data on the network's device, in their order."""
        return self.sized_batches(network, rows, self.drawing.batch_size)

    def sized_batches(self, network: Network[Program], rows: Any, size: int) -> Iterator[dict[str, Tensor]]:
        """Rows of texts on the network's device, in their order, ``size`` at once."""
        tokenized = self.tokenized(rows, network.codec)
        for batch in DataLoader(tokenized, batch_size=size, collate_fn=self.collate_class()):
            yield {name: tensor.to(network.device) for name, tensor in batch.items()}

    def accuracy(self, network: Network[Program], rows: Any) -> Callable[[], float]:
        """Measures the share of true tokens that are the first choice, given those before."""

        def measured() -> float:
            right = tokens = 0.0
            for batch in self.batches(network, rows):
                with torch.no_grad():
                    sums = token_measures(network.program(batch), batch["labels"])
                right, tokens = right + sums["correct"].sum().item(), tokens + sums["tokens"].sum().item()
            return right / tokens

        return measured

    def keep_texts(
        self, folder: Path, rows: Iterable[Mapping[str, Any]], texts: Mapping[ModelKey, Sequence[str]]
    ) -> None:
        """Keeps what was written for all rows, with what the rows hold."""
        lines = (
            {**row, **{key: written[index] for key, written in texts.items()}}
            for index, row in enumerate(rows)
        )
        write_json_lines(folder / self.texts_file, lines)
