"""Base class of tasks that train one network as a Pyro program, and its deterministic baseline."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from torch import Tensor, nn
from transformers import PreTrainedModel

from probattn.checks import shortened
from probattn.inference import AttentionGuide, SVGDDriver, SVIDriver
from probattn.inference.particle_update import particle_sets
from probattn.inference.run import FitResult
from probattn.models import save
from probattn.models.hosts.description import describe as describe_network
from probattn.models.hosts.description import without_folders
from probattn.probes import frozen_probe
from probattn.report import (
    CLASS_MEASURES,
    MODEL_LABELS,
    Curve,
    DataSet,
    Evaluation,
    MeasureText,
    ModelKey,
    RunDescription,
    evaluate_columns,
    training_curves,
)
from probattn.report.bootstrap import Columns, Figures
from probattn.report.record import DETECTION
from probattn.sites import Method
from probattn.tasks.answering import Limits
from probattn.tasks.errors import RunError
from probattn.tasks.measures import binned_reliability
from probattn.tasks.networks import Network, Program, quiet_loading, score_modules, share_weights
from probattn.tasks.run import describe, read_as
from probattn.tasks.task import BASELINE, MODEL, RECIPE, AnyRecipe, AnyResults, Part, Task
from probattn.tasks.topics import TopicData, measure_topics
from probattn.tasks.watching import Watched, read_dynamics, same_examples

AnyData = TypeVar("AnyData", bound="Data")

LISTED = 12
"""Classes that the summary of the data lists; of more, the smallest and the largest."""


@dataclass(frozen=True)
class Data:
    """Training and validation data of a network.

    Attributes:
        train: training rows.
        validation: validation rows.
        collate: function that makes a batch of rows; None if the rows are batches already.
        fingerprint: digests of the data, which must be the same when a run is resumed.
        watched: examples whose attention is recorded during training; None for none.
        codec: what the network reads and writes with, such as its tokenizer; None for none.
    """

    train: Any
    validation: Any
    collate: Callable[..., Any] | None
    fingerprint: Mapping[str, str]
    watched: Watched | None = None
    codec: Any = None


class ProgramTask(Task[AnyRecipe, AnyResults], Generic[AnyRecipe, AnyResults, AnyData, Program]):
    """Base class of tasks that train one network on data, and its deterministic baseline.

    Attributes:
        unit: noun for the examples, in the plural.
        measures: the measures by name, the most important first, with direction and unit.
        takes: attention methods that the networks accept; None for every method.
        detects_by: name of the uncertainty by which inputs outside the domain are detected.
    """

    unit: ClassVar[str] = "examples"
    measures: ClassVar[Mapping[str, MeasureText]] = CLASS_MEASURES
    limits: ClassVar[Limits] = Limits()
    takes: ClassVar[tuple[type[Method], ...] | None] = None
    detects_by: ClassVar[str] = "entropy"

    @property
    def is_uniform(self) -> bool:
        """Whether the network has uniform attention over all tokens."""
        return False

    def num_outputs(self, net: PreTrainedModel) -> int:
        """Number of classes, or tokens, that the network chooses between."""
        return int(net.config.num_labels or 0)

    @cached_property
    def data(self) -> AnyData:
        """Training and validation data, read once.

        Raises:
            DataError: the data are not as the recipe describes.
            RunError: the recipe cannot be carried out with these data.
        """
        return self.load_data()

    @abstractmethod
    def load_data(self) -> AnyData:
        """Reads the data; :attr:`data` caches them."""

    @abstractmethod
    def program(self, *, baseline: bool = False) -> Program:
        """The recipe's network as a Pyro program, in training mode on the CPU.

        A ``baseline`` has deterministic attention; with the same seed, both networks have the same initial weights.

        Raises:
            RunError: the attention methods cannot be applied to the network.
        """

    def program_options(self) -> Mapping[str, Any]:
        """Further options of a program that is trained."""
        return {}

    @abstractmethod
    def network(self, folder: Path) -> Network[Program]:
        """Loads a trained network from the ``folder`` of its records.

        Raises:
            RunError: the folder holds no finished run.
        """

    @abstractmethod
    def measure(self, run: RunDescription, networks: Sequence[Network[Program]]) -> AnyResults:
        """Measures trained networks: the deterministic baseline, if there is one, and last the run's network."""

    @abstractmethod
    def words(self) -> Mapping[str, Any]:
        """The entries ``network``, ``data`` and ``train_size`` of the report's description of the run."""

    def topic_data(self, networks: Sequence[Network[Program]]) -> TopicData | None:
        """Test examples for the topics of the report; None for a report without topics."""
        return None

    def curves(self, network: Network[Program]) -> Sequence[Curve]:
        """Training curves of a network."""
        return training_curves(network.records, network.key)

    def results(
        self, run: RunDescription, networks: Sequence[Network[Program]], evaluation: Evaluation, **more: Any
    ) -> AnyResults:
        """Results of measured networks; ``more`` holds further fields of the results, such as ``data``."""
        data = self.topic_data(networks)
        topics = {} if data is None else measure_topics(networks, data)
        measured = {name for score in evaluation.scores for name in score.values}
        return self.view.results_class(
            kind=self.section or "uncertainty",
            measures={
                **self.measures,
                **{
                    name: replace(text, meaning=text.meaning.replace("entropy", self.detects_by))
                    for name, text in CLASS_MEASURES.items()
                    if name in DETECTION and name in measured - self.measures.keys()
                },
            },
            run=run,
            scores=evaluation.scores,
            differences=evaluation.differences,
            curves=tuple(curve for network in networks for curve in self.curves(network)),
            dynamics=same_examples(
                [read_dynamics(item.folder, item.key, maps=item is networks[-1]) for item in networks]
            ),
            listings=(*topics.pop("listings", ()), *more.pop("listings", ())),
            **topics,
            **more,
        )

    def _detection(self, name: str) -> MeasureText:
        """The text of a measure of detection, which names the uncertainty that detects."""
        text = CLASS_MEASURES[name]
        return replace(text, meaning=text.meaning.replace("entropy", self.detects_by))

    def results_of(
        self,
        run: RunDescription,
        networks: Sequence[Network[Program]],
        table: Mapping[tuple[str, ModelKey], Columns],
        figures: Figures,
        *,
        data: Sequence[DataSet],
        seed: int,
        **more: Any,
    ) -> AnyResults:
        """Results of networks whose measures are functions of columns, tensors ``[N, ...]`` by name.

        Arguments are those of :meth:`evaluation_of` and :meth:`results`; ``seed`` is that of the bootstrap, ``more``
        may contain ``clusters``.
        """
        evaluation = self.evaluation_of(table, figures, data, seed=seed, clusters=more.pop("clusters", None))
        return self.results(run, networks, evaluation, data=tuple(data), **more)

    def evaluation_of(
        self,
        table: Mapping[tuple[str, ModelKey], Columns],
        figures: Figures,
        data: Sequence[DataSet],
        *,
        curves: Callable[[Columns], Mapping[str, Any]] = binned_reliability,
        **options: Any,
    ) -> Evaluation:
        """Scores from columns, and differences to the baseline, with the bootstrap options of the recipe.

        ``curves`` returns fields of :class:`probattn.report.Scores`; ``options`` are those of
        :func:`probattn.report.evaluate_columns`.
        """
        report = self.recipe.report
        return evaluate_columns(
            table,
            data,
            figures,
            [*self.measures, *(name for name in DETECTION if name not in self.measures)],
            curves=curves,
            resamples=report.resamples,
            level=report.level,
            **options,
        )

    @classmethod
    def head_measure(cls) -> str | None:
        """Measure computed with each attention head masked: the first share where higher is better, None for none."""
        shares = (
            name for name, text in cls.measures.items() if (text.unit, text.better) == ("share", "higher")
        )
        return next(shares, None)

    @property
    def methods(self) -> Sequence[Method]:
        """The attention methods of the recipe.

        Raises:
            RunError: the task's networks do not accept a method.
        """
        methods = cast(Sequence[Method], self.recipe.methods())
        for method in methods if self.takes is not None else ():
            if not isinstance(method, self.takes or ()):
                names = ", ".join(kind.__name__ for kind in self.takes or ()) or "none"
                raise RunError(
                    f"{method.section}: networks of this task can be given {names}, not {type(method).__name__}; leave "
                    "the section out"
                )
        return methods

    def sizes(self) -> Mapping[str, int]:
        """Numbers of examples for training, validation and testing, by role; empty if there are none."""
        return {}

    def classes(self) -> Mapping[str, int]:
        """Number of training examples of each class; empty without classes."""
        return {}

    def data_summary(self) -> Iterator[str]:
        """Lines with the sizes of the data and of their classes."""
        if sizes := [f"{number:,} {role}" for role, number in self.sizes().items()]:
            yield f"data: {', '.join(sizes)} {self.unit}"
        counts = [(f"{shortened(name, 60)} {number:,}", number) for name, number in self.classes().items()]
        listed = [words for words, _ in counts]
        if len(counts) > LISTED:
            ordered = [words for words, _ in sorted(counts, key=itemgetter(1))]
            listed = [f"{len(counts):,}, of which {', '.join(ordered[:3])}, ..., {', '.join(ordered[-3:])}"]
        if listed:
            yield f"classes: {', '.join(listed)} (training)"

    @property
    def is_plain(self) -> bool:
        """Whether the recipe has unchanged deterministic attention, so there is nothing to compare."""
        return not self.methods

    def save(self, program: Program, folder: Path) -> None:
        """Saves the trained network of a ``program``, made by :meth:`program`, in a new ``folder``."""
        with quiet_loading():
            net = cast(PreTrainedModel, program.net)
            save(
                describe_network(net, data=without_folders(str(self.words()["data"]))),
                folder,
                beside=partial(self.save_beside, program),
            )

    def save_beside(self, program: Program, folder: Path) -> None:
        """Saves what the program's network needs to read inputs, such as a tokenizer, in its folder."""

    def driver_options(self, program: Program) -> dict[str, Any]:
        """Further options of the training loop of this task."""
        return {}

    def driver(self, program: Program, **options: Any) -> SVIDriver:
        """The training loop of a program with the recipe's and further options; for repulsive heads ``SVGDDriver``."""
        alignment = getattr(self.recipe, "alignment", None)
        kind = SVGDDriver if particle_sets(program) else SVIDriver
        standard = self.recipe.training.driver_options(
            alignment_learning_rate=None if alignment is None else alignment.learning_rate
        )
        return kind(program, **({"guide": AttentionGuide(program)} | standard | options))

    def fit(
        self,
        program: Program,
        folder: Path | None = None,
        *,
        resume: bool = False,
        quiet: bool = False,
        title: str = "training",
    ) -> FitResult:
        """Trains a program with the options of the recipe.

        Args:
            program: program, made by :meth:`program`.
            folder: folder of records and checkpoints; None to save nothing.
            resume: whether to continue from the newest checkpoint, if there is one.
            quiet: whether to show no progress bar.
            title: first words of the progress bar.

        Returns:
            The result; the program has the trained weights.
        """
        data, training = self.data, self.recipe.training
        options: dict[str, Any] = {
            "collate": data.collate,
            "validation_metrics": self.validation_metrics,
            "folder": folder,
            "fingerprint": data.fingerprint,
            "progress": not quiet,
            "title": title,
        }
        if folder is not None and data.watched is not None:
            options["observers"] = (data.watched.observer(folder),)
        with self.learning(program):
            return self.driver(program, **(options | self.driver_options(program))).fit(
                data.train,
                data.validation,
                steps=getattr(training, "steps", None),
                epochs=training.epochs,
                resume="auto" if resume else False,
            )

    def validation_metrics(self, program: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """Validation metrics of a batch, per row: the accuracy against "labels", unless a task overrides them."""
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        return {"accuracy": (program(inputs).argmax(dim=-1) == batch["labels"]).float()}

    def learning(self, program: Program) -> Any:
        """Context manager in which only the parameters that the recipe trains require gradients."""
        if not getattr(self.recipe.training, "frozen_probe", False):
            return nullcontext()
        net = cast(nn.Module, program.net)
        return frozen_probe(net, score_modules(net))

    def parts(self, folder: Path) -> Iterable[Part]:
        """The baseline, if there is something to compare and the recipe requests it, and the network."""
        names = [MODEL] if self.is_plain or not self.recipe.report.baseline else [BASELINE, MODEL]
        programs = {name: self.program(baseline=name == BASELINE) for name in names}
        if BASELINE in programs:
            share_weights(programs[MODEL], programs[BASELINE])
        if type(self).save is ProgramTask.save and not isinstance(programs[MODEL].net, PreTrainedModel):
            # A mistake of the task's author, told before training: the default save is for networks of transformers.
            raise NotImplementedError(
                f"{type(self).__name__}.save: expected a network of transformers, got a "
                f"{type(programs[MODEL].net).__name__}; override save and network"
            )
        if self.data.watched is not None:
            self.data.watched.check(programs[MODEL])
        return [
            self._part(
                name, program, folder, f"{self.method if name == MODEL else name} {number}/{len(names)}"
            )
            for number, (name, program) in enumerate(programs.items(), 1)
        ]

    @property
    def method(self) -> str:
        """Name of the trained method: of latent attention, else the recipe's section of another method."""
        named: str = self.recipe.attention.method
        sections = [method.section for method in self.methods]
        return sections[0] if named == "deterministic" and sections else named

    def _part(self, name: str, program: Program, run: Path, title: str) -> Part:
        folder = run if name == MODEL else run / name

        def fit(resume: bool, quiet: bool) -> FitResult:
            return self.fit(program, folder, resume=resume, quiet=quiet, title=title)

        def keep() -> None:
            shutil.rmtree(folder / MODEL, ignore_errors=True)  # left by an earlier end of the run
            self.save(program, folder / MODEL)

        return Part(name, fit, keep)

    def evaluate(self, run: Path, baseline: Path | None = None) -> AnyResults:
        """Measures the run's network and its deterministic baseline."""
        network = self.network(run)
        networks = [*self.baselines(run, baseline, network), network]
        return self.measure(self.describe(run, network), networks)

    def baselines(self, run: Path, other: Path | None, trained: Network[Program]) -> list[Network[Program]]:
        """The baseline in folder ``other``, or of the run; ``RunError`` if the network there is not deterministic."""
        folder = other or run / BASELINE
        if other is not None and trained.key == "deterministic":
            raise RunError(
                f"--baseline {other}: expected a run that is compared with it, {run} is deterministic itself; give the "
                "other run first"
            )
        if trained.key == "deterministic" or (other is None and not (folder / MODEL).is_dir()):
            return []
        network = self.network(folder)
        if network.key != "deterministic":
            raise RunError(
                f"{folder}: expected a deterministic run as baseline, its attention is {MODEL_LABELS[network.key]}"
            )
        return [network]

    def describe(self, run: Path, network: Network[Program]) -> RunDescription:
        """Description of a run for its report."""
        training = self.recipe.training
        precision = getattr(training, "precision", "no")
        words: dict[str, Any] = {
            "method": self.method_words(),
            "num_samples": getattr(getattr(self.recipe, "prediction", None), "num_samples", 1),
            "parameters": sum(parameter.numel() for parameter in network.program.parameters()),
            "device": f"{network.device.type}, {'float32' if precision == 'no' else f'{precision} autocast'}",
        }
        return describe(run, self.recipe, restricted=self.restricted, **(words | dict(self.words())))

    def method_words(self) -> str:
        """Description of the recipe's methods, with the options of attention that differ from the defaults."""
        return str(self.recipe.method_words())


def is_plain_at(task: ProgramTask[Any, Any, Any, Any], folder: Path) -> bool:
    """Whether the network in a folder, that of a run or of the baseline within one, is deterministic."""
    if not (folder / RECIPE).exists():
        return folder.name == BASELINE or task.is_plain
    return type(task)(read_as(task, folder / RECIPE)).is_plain
