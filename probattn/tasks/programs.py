"""What tasks share that train one network as a Pyro program, and its deterministic baseline beside it."""

from __future__ import annotations

import math
import shutil
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from probattn.checks import shortened
from probattn.files.durable import write_tensors
from probattn.files.manifest import DamagedFolderError, verify_folder, write_manifest
from probattn.inference import AttentionGuide, SVGDDriver, SVIDriver, posterior_moments
from probattn.inference.moments import Moments, Uncertainty
from probattn.inference.records import Record, read_records
from probattn.inference.run import FitResult
from probattn.models import capture, convert, save
from probattn.models.hosts.calls import AttentionCalls
from probattn.models.hosts.capture import CapturedCall
from probattn.models.hosts.card import describe as describe_network
from probattn.models.hosts.card import without_folders
from probattn.models.hosts.convert import conversion
from probattn.models.program import seeded
from probattn.models.sentence.network import SelfAttentiveAttention
from probattn.models.translation.recurrent.attention import DotAttention
from probattn.probes import frozen_probe
from probattn.report import (
    MODEL_LABELS,
    DataSet,
    Dynamics,
    ModelKey,
    Predictions,
    RunDescription,
    predict_bayesian,
    predict_deterministic,
)
from probattn.report.collect import moved
from probattn.sites import METHODS, Method
from probattn.sites.method import Measured
from probattn.sites.repulsive import repulsive_heads
from probattn.tasks.answering import Limits
from probattn.tasks.devices import current_device
from probattn.tasks.errors import RunError, one_line
from probattn.tasks.progress import tracked
from probattn.tasks.run import describe, read_as
from probattn.tasks.sections.training import TrainingRecipe
from probattn.tasks.task import BASELINE, MODEL, RECIPE, RECORDS, AnyRecipe, AnyResults, Part, Task
from probattn.tasks.watching import Watched, read_dynamics, same_examples

WEIGHTS = "weights.safetensors"
"""The network of a run that is none of transformers', in its folder for the model."""
_DRAWS: tuple[Uncertainty] = ("draws",)

Program = TypeVar("Program", bound=nn.Module)
AnyData = TypeVar("AnyData", bound="Data")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Data:
    """Training and validation data of a network.

    Attributes:
        train: rows.
        validation: rows.
        collate: rows to a batch; None for batches as the driver makes them.
        fingerprint: what a resumed run must find again.
        watched: examples that are looked at in training; None for none.
    """

    train: Any
    validation: Any
    collate: Callable[..., Any] | None
    fingerprint: Mapping[str, str]
    watched: Watched | None = None


@dataclass(frozen=True)
class Network(Generic[Program]):
    """A trained network of a run, on the device where it predicts.

    Attributes:
        program: the Pyro program around it, in evaluation mode.
        folder: of its records.
        key: what it is called in records.
        codec: what it reads and writes with, such as a tokenizer.

    Raises:
        RunError: a parameter or its squared norm is not finite, so that predictions or their moments would not be.
    """

    program: Program
    folder: Path
    key: ModelKey
    codec: Any = None

    def __post_init__(self) -> None:
        for name, parameter in self.program.named_parameters():
            if not bool(parameter.float().square().sum().isfinite()):
                size = parameter.abs().max().item()
                got = f"some of {size:.1e}" if math.isfinite(size) else "NaN or infinity"
                raise RunError(
                    f"{self.folder}: expected a network of finite weights whose squares are finite too, got {got} in "
                    f"{name}; train it again, with a lower learning rate, or go on from an earlier checkpoint"
                )

    @property
    def net(self) -> PreTrainedModel:
        """The network itself."""
        return cast(PreTrainedModel, self.program.net)

    @property
    def device(self) -> torch.device:
        """The device of its parameters."""
        return next(self.program.parameters()).device

    @cached_property
    def records(self) -> list[Record]:
        """Records of its training."""
        return read_records(self.folder / RECORDS)

    def tracked(self, items: Iterable[Item], doing: str, total: int | None = None) -> Iterator[Item]:
        """The items, with their progress where that is shown.

        Args:
            items: what is gone through.
            doing: what is done with this network.
            total: their number; None for that of ``items`` where it is known.
        """
        return tracked(items, f"{MODEL_LABELS[self.key]} attention: {doing}", total)

    def moved(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs of a batch on the network's device, without its labels."""
        return {name: tensor.to(self.device) for name, tensor in batch.items() if name != "labels"}

    def captured(
        self, batches: Iterable[Mapping[str, Tensor]], calls: AttentionCalls
    ) -> Iterator[Mapping[str, CapturedCall]]:
        """Queries, keys, outputs and weights of attention calls on every batch."""
        for batch in batches:
            with torch.no_grad():
                yield capture(self.net, self.moved(batch), calls)


class ProgramTask(Task[AnyRecipe, AnyResults], Generic[AnyRecipe, AnyResults, AnyData, Program]):
    """A task of one network that is trained on data, with its deterministic baseline beside it.

    Attributes:
        unit: what its data are counted in, in the plural.
        takes: the methods that its networks can be given; None for every method.
    """

    unit: ClassVar[str] = "examples"
    limits: ClassVar[Limits] = Limits()
    takes: ClassVar[tuple[type[Method], ...] | None] = None

    @property
    def is_uniform(self) -> bool:
        """Whether the network attends to all tokens alike."""
        return False

    def num_outputs(self, net: PreTrainedModel) -> int:
        """Classes, or tokens, that a network chooses between."""
        return int(net.config.num_labels or 0)

    @cached_property
    def data(self) -> AnyData:
        """Training and validation data, read once.

        Raises:
            DataError: the data are not what the recipe says.
            RunError: the recipe asks for what cannot be done with them.
        """
        return self.load_data()

    @abstractmethod
    def load_data(self) -> AnyData:
        """Reads the data; :attr:`data` keeps them."""

    @abstractmethod
    def program(self, *, baseline: bool = False) -> Program:
        """The recipe's network as a Pyro program, in training mode on the CPU.

        Args:
            baseline: leave its attention deterministic; with the same seed both have the same initial weights.

        Raises:
            RunError: the network's attention cannot be given them.
        """

    @abstractmethod
    def network(self, folder: Path) -> Network[Program]:
        """Loads a trained network.

        Args:
            folder: of its records.

        Raises:
            RunError: the folder holds no finished run.
        """

    @abstractmethod
    def measure(self, run: RunDescription, networks: Sequence[Network[Program]]) -> AnyResults:
        """Measures trained networks.

        Args:
            run: what was run.
            networks: the deterministic baseline, if there is one, and the run's own last.
        """

    @abstractmethod
    def words(self) -> Mapping[str, Any]:
        """``network`` and ``data``, in words, and ``train_size`` of the report."""

    @property
    def methods(self) -> Sequence[Method]:
        """The attention methods that the recipe asks for.

        Raises:
            RunError: a method that the task's networks cannot be given.
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
        """Number of :attr:`unit` for training, validation and testing, by these words; empty where there are none."""
        return {}

    def classes(self) -> Mapping[str, int]:
        """Number of training examples of each class; empty where there are no classes."""
        return {}

    def data_summary(self) -> Iterator[str]:
        """Sizes of the data, and of their classes."""
        if sizes := [f"{number:,} {role}" for role, number in self.sizes().items()]:
            yield f"data: {', '.join(sizes)} {self.unit}"
        if counts := [f"{shortened(name, 60)} {number:,}" for name, number in self.classes().items()]:
            yield f"classes: {', '.join(counts)} (training)"

    @property
    def is_plain(self) -> bool:
        """Whether the recipe asks for deterministic attention as it is, so that there is nothing to compare."""
        return not self.methods

    def save(self, program: Program, folder: Path) -> None:
        """Keeps a trained network.

        Args:
            program: as :meth:`program` makes it.
            folder: a new one.
        """
        with quiet_loading():
            net = cast(PreTrainedModel, program.net)
            save(
                describe_network(net, data=without_folders(str(self.words()["data"]))),
                folder,
                beside=partial(self.save_beside, program),
            )

    def save_beside(self, program: Program, folder: Path) -> None:
        """Writes into the folder of a program's network what it reads and writes with."""

    def driver_options(self, program: Program) -> dict[str, Any]:
        """Further options of the driver."""
        return {}

    def driver(self, program: Program, **options: Any) -> SVIDriver:
        """The driver that a program asks for, with the options of the recipe.

        Args:
            program: with repulsive heads it gets an ``SVGDDriver``.
            **options: further options of the driver.
        """
        alignment = getattr(self.recipe, "alignment", None)
        kind = SVGDDriver if repulsive_heads(program) else SVIDriver
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
        """Trains a program as the recipe says.

        Args:
            program: as :meth:`program` makes it.
            folder: of records and checkpoints; None keeps nothing.
            resume: continue from the newest checkpoint, if there is one.
            quiet: no progress bar.
            title: what the bar says first.

        Returns:
            The result; the program holds the weights to keep.
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
        """Accuracy of a batch of inputs and "labels", per row; of other tasks what they measure, or nothing."""
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        return {"accuracy": (program(inputs).argmax(dim=-1) == batch["labels"]).float()}

    def learning(self, program: Program) -> Any:
        """A block in which only those parameters require gradients that the recipe has learn."""
        if not getattr(self.recipe.training, "frozen_probe", False):
            return nullcontext()
        net = cast(nn.Module, program.net)
        return frozen_probe(net, score_modules(net))

    def parts(self, folder: Path) -> Iterable[Part]:
        """The baseline, where there is something to compare and the recipe wants it, and the network."""
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
        """A word for what is trained: the method of latent attention, or the section of one beside it."""
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
        """Measures the run's network, and the deterministic one beside it."""
        network = self.network(run)
        networks = [*self.beside(run, baseline, network), network]
        return self.measure(self.describe(run, network), networks)

    def beside(self, run: Path, given: Path | None, own: Network[Program]) -> list[Network[Program]]:
        """The deterministic baseline to compare with, where there is one.

        Args:
            run: folder of the run.
            given: of another run that is to be the baseline; None for the one within the run.
            own: the run's network.

        Raises:
            RunError: the run is deterministic itself, or the baseline is not.
        """
        folder = given or run / BASELINE
        if given is not None and own.key == "deterministic":
            raise RunError(
                f"--baseline {given}: expected a run that is compared with it, {run} is deterministic itself; give the "
                "other run first"
            )
        if own.key == "deterministic" or (given is None and not (folder / MODEL).is_dir()):
            return []
        network = self.network(folder)
        if network.key != "deterministic":
            raise RunError(
                f"{folder}: expected a deterministic run as baseline, its attention is {MODEL_LABELS[network.key]}"
            )
        return [network]

    def describe(self, run: Path, own: Network[Program]) -> RunDescription:
        """Description of a run folder, in words."""
        training = self.recipe.training
        precision = getattr(training, "precision", "no")
        words: dict[str, Any] = {
            "method": self.method_words(),
            "num_samples": getattr(getattr(self.recipe, "prediction", None), "num_samples", 1),
            "device": f"{own.device.type}, {'float32' if precision == 'no' else f'{precision} autocast'}",
        }
        return describe(run, self.recipe, restricted=self.restricted, **(words | dict(self.words())))

    def method_words(self) -> str:
        """The attention methods with the options that differ from the defaults, and what stands beside them."""
        return str(self.recipe.method_words())


def dynamics(networks: Sequence[Network[Any]]) -> tuple[Dynamics, ...]:
    """Records of how attention was learned, by network, the run's own last with maps; empty where there are none."""
    return same_examples(
        [read_dynamics(network.folder, network.key, maps=network is networks[-1]) for network in networks]
    )


def predictions(
    network: Network[Any],
    batches: Iterable[Any],
    options: Any,
    *,
    chunk_size: int | None = None,
    dropout: bool = True,
    first_batch: int = 0,
    uncertainty: Collection[Uncertainty] = _DRAWS,
) -> dict[ModelKey, Predictions]:
    """Probabilities of classes, or labels, by model: of latent attention of draws, at its expectation, in closed form.

    Args:
        network: a classifier.
        batches: inputs.
        options: with ``num_samples`` and ``seed``.
        chunk_size: draws that go through the network at once; None for all.
        dropout: whether to draw with dropout where attention is deterministic.
        first_batch: number of the first batch, from which its draws are seeded.
        uncertainty: of latent attention "draws", "moments" (the closed form), or both. "moments" alone are the
            network's own prediction, and draws replace them where the closed form does not serve.
    """
    given: dict[str, Any] = {"seed": options.seed, "device": network.device}
    if network.key == "bayesian_mean" and "draws" not in uncertainty:
        number_of_draws = max(options.num_samples, 2)
        parts = [
            posterior_moments(
                network.program, batch, num_samples=number_of_draws, seed=(options.seed, number)
            )
            for number, batch in enumerate(moved(batches, network.device), first_batch)
        ]
        moments = Moments.together(parts)
        closed = 1 - moments.drawn.double().mean().item()
        return {"bayesian_mean": Predictions.from_moments(moments, options.num_samples, closed)}
    if network.key == "bayesian_mean":
        drawn = predict_bayesian(
            network.program,
            batches,
            options.num_samples,
            chunk_size=chunk_size,
            first_batch=first_batch,
            moments="moments" in uncertainty,
            **given,
        )
        found = {
            "bayesian_mean": Predictions.from_draws(drawn.draws),
            "bayesian_expectation": Predictions(drawn.expectation),
        }
        if drawn.moments is not None:
            found["bayesian_moments"] = Predictions.from_moments(drawn.moments, options.num_samples)
        return found
    logits = predict_deterministic(
        network.program, batches, options.num_samples if dropout else 0, first_batch=first_batch, **given
    )
    if logits.draws is None:
        return {network.key: Predictions(logits.probabilities)}
    return {network.key: Predictions(logits.probabilities, logits.draws, "dropout")}


def model_key(net: nn.Module) -> ModelKey:
    """Key of a network in records: latent attention comes first, then alignment, repulsion, disagreement."""
    record = conversion(net)
    if record is None:
        return "deterministic" if getattr(net.config, "latent_alignment", None) is None else "variational"
    return METHODS.key(record.methods) or "deterministic"


def measured(net: nn.Module) -> set[Measured]:
    """Measurements of the report that a network's methods ask for."""
    record = conversion(net)
    return set() if record is None else {item for method in record.methods for item in method.measured}


def save_weights(net: nn.Module, folder: Path) -> None:
    """Keeps the weights of a network that is none of transformers', in a new folder."""
    folder.mkdir()
    write_tensors(folder / WEIGHTS, net.state_dict())
    write_manifest(folder)


def load_weights(net: nn.Module, folder: Path) -> None:
    """Fills a network with the weights that :func:`save_weights` kept.

    Args:
        net: built as the recipe says.
        folder: of its records.

    Raises:
        RunError: the folder holds no finished run, or its weights are damaged or do not fit.
    """
    file = folder / MODEL / WEIGHTS
    if not file.is_file():
        raise RunError(
            f"{folder}: expected a finished run with {MODEL}/{WEIGHTS}, found none; train it first"
        )
    try:
        verify_folder(file.parent)
        net.load_state_dict(load_file(file))
    except (DamagedFolderError, OSError, SafetensorError, RuntimeError) as error:
        raise RunError(
            f"{file}: does not fit its recipe, or is damaged ({one_line(error)}); train it again"
        ) from error


def is_plain_at(task: ProgramTask[Any, Any, Any, Any], folder: Path) -> bool:
    """Whether the network in a folder is deterministic: the baseline within a run, or that of a run without methods.

    Args:
        task: of the run that is evaluated.
        folder: of that run, of the baseline within it, or of another run of the same task.
    """
    if not (folder / RECIPE).exists():
        return folder.name == BASELINE or task.is_plain
    return type(task)(read_as(task, folder / RECIPE)).is_plain


def put_methods(net: PreTrainedModel, methods: Sequence[Method], recipe: Any, name: str) -> None:
    """Gives a network methods, if there are any.

    Args:
        net: changed in place.
        methods: what to give it.
        recipe: for the layers and kinds of its attention, and the seed of new parameters.
        name: the network's, for messages.

    Raises:
        RunError: the network's attention cannot be given them.
    """
    if not methods:
        return
    with seeded(recipe.training.seed):
        try:
            convert(net, *methods, layers=recipe.attention.layers, attention=recipe.attention.kind)
        except (TypeError, ValueError) as error:
            raise RunError(f"network {name!r}: {one_line(error)}") from error


def check_finished(folder: Path) -> Path:
    """The folder of a run's trained network.

    Raises:
        RunError: there is none.
    """
    path = folder / MODEL
    if not path.is_dir():
        raise RunError(
            f"{folder}: expected a finished run with a folder '{MODEL}', found none; train it first, or to its end "
            "with --resume"
        )
    return path


def share_weights(source: nn.Module, target: nn.Module) -> None:
    """Gives the target the weights of the source, where both have them by the same name and of the same shape."""
    weights, own = source.state_dict(), target.state_dict()
    shared = {
        name: weights[name] for name in own if name in weights and weights[name].shape == own[name].shape
    }
    target.load_state_dict(shared, strict=False)


def on_device(program: Program) -> Program:
    """A program on the device that was asked for, or else an accelerator where there is one, in evaluation mode."""
    return program.to(current_device()).eval()


def score_modules(net: nn.Module) -> list[nn.Module]:
    """The modules whose parameters make attention scores and nothing else; empty where a network has none.

    What an attention method brings along (an inference network's prior, a discriminator) lies in them too.
    """
    return [module for module in net.modules() if isinstance(module, (SelfAttentiveAttention, DotAttention))]


def check_frozen_probe(net: PreTrainedModel, training: TrainingRecipe, name: str) -> None:
    """Makes sure that a network's attention can learn alone, where the recipe wants that.

    Raises:
        RunError: its probe cannot be frozen, or nothing would learn.
    """
    if not training.frozen_probe:
        return
    if not score_modules(net):
        raise RunError(
            "training.frozen_probe: expected network.name 'self_attentive' (texts) or 'lstm' (translation), whose "
            f"attention scores have parameters of their own, got {name!r}"
        )
    if net.config.uniform_attention:
        raise RunError(
            "training.frozen_probe: with uniform_attention nothing would learn; set one of the two to false"
        )


def text_set(test: Any, unit: str) -> DataSet:
    """The test set of a task that writes texts, as the report describes it; ``test`` has a source and a licence."""
    return DataSet(
        key="test",
        title="Test",
        role="in_domain",
        size=len(test),
        labelled=True,
        source=f"{test.source}; {test.licence}",
        unit=unit,
    )


def search_words(search: Any) -> str:
    """A search for texts in words; ``search`` has ``num_beams`` and ``length_penalty``."""
    if search.num_beams == 1:
        return "greedy search"
    return f"beam search, {search.num_beams} beams, length penalty {search.length_penalty:g}"


def in_batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in lists of ``size``, the last of which may be shorter; they are read when they are asked for.

    Example:
        >>> list(in_batches("abc", 2))
        [['a', 'b'], ['c']]
    """
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Keeps transformers from reporting newly initialised heads: that is what is wanted here."""
    before = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
        if bars:
            transformers_logging.enable_progress_bar()
