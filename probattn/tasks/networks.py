"""Trained networks of runs: loading and saving, and what they predict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from probattn.files.durable import write_tensors
from probattn.files.manifest import DamagedFolderError, verify_folder, write_manifest
from probattn.inference.records import Record, read_records
from probattn.models import capture, convert
from probattn.models.hosts.calls import AttentionCalls
from probattn.models.hosts.capture import CapturedCall
from probattn.models.hosts.convert import conversion
from probattn.models.program import seeded
from probattn.models.sentence import SelfAttentiveAttention
from probattn.models.translation.recurrent.lstms import DotAttention
from probattn.report import MODEL_LABELS, ModelKey
from probattn.sites import METHODS, Method
from probattn.sites.method import Measured
from probattn.sites.particle_layers import particle_count
from probattn.tasks.devices import current_device
from probattn.tasks.errors import RunError, as_run_error, one_line
from probattn.tasks.progress import tracked
from probattn.tasks.task import MODEL, RECORDS

Program = TypeVar("Program", bound=nn.Module)
WEIGHTS = "weights.safetensors"
"""The network of a run that is none of transformers', in its folder for the model."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Network(Generic[Program]):
    """A trained network of a run, on the device on which it predicts.

    Attributes:
        program: Pyro program of the network, in evaluation mode.
        folder: folder of its training records.
        key: key of the network in results (:data:`probattn.report.ModelKey`).
        codec: object that encodes inputs and decodes outputs, such as a tokenizer.

    Raises:
        RunError: a parameter or its squared norm is not finite, so predictions or their moments would not be.
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
        """The Hugging Face network inside the program."""
        return cast(PreTrainedModel, self.program.net)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the network's outputs, in order."""
        return output_names(self.net.config)

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next(self.program.parameters()).device

    @property
    def has_draws(self) -> bool:
        """Whether the network predicts by draws, from latent attention or particles."""
        return self.key == "bayesian_mean" or particle_count(self.program) is not None

    @cached_property
    def records(self) -> list[Record]:
        """Records of the training (``metrics.jsonl``)."""
        return read_records(self.folder / RECORDS)

    def tracked(self, items: Iterable[Item], doing: str, total: int | None = None) -> Iterator[Item]:
        """The items, with a progress bar if progress is shown."""
        return tracked(items, f"{MODEL_LABELS[self.key]} attention: {doing}", total)

    def moved(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs of a batch on the network's device, without its labels."""
        return {name: tensor.to(self.device) for name, tensor in batch.items() if name != "labels"}

    def captured(
        self, batches: Iterable[Mapping[str, Tensor]], calls: AttentionCalls
    ) -> Iterator[Mapping[str, CapturedCall]]:
        """Queries, keys, outputs and weights of attention calls, for every batch."""
        for batch in batches:
            with torch.no_grad():
                yield capture(self.net, self.moved(batch), calls)


def output_names(config: PreTrainedConfig) -> tuple[str, ...]:
    """Names of the outputs of a network, in order."""
    names = cast(Mapping[int, str], config.id2label)
    return tuple(names[index] for index in range(len(names)))


def named_outputs(names: Sequence[str]) -> dict[str, Any]:
    """Entries of a network's configuration that name its outputs."""
    labels = dict(enumerate(names))
    return {"id2label": labels, "label2id": {label: index for index, label in labels.items()}}


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
    """Fills a network with what :func:`save_weights` kept; ``RunError`` where that is missing, damaged or another."""
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


def put_methods(net: PreTrainedModel, methods: Sequence[Method], recipe: Any, name: str) -> None:
    """Converts a network in place at the recipe's layers; ``RunError`` where that or ``frozen_probe`` is wrong."""
    probe = "training.frozen_probe"
    if recipe.training.frozen_probe and not score_modules(net):
        raise RunError(
            f"{probe}: expected network.name 'self_attentive' (texts) or 'lstm' (translation), whose attention scores "
            f"have parameters of their own, got {getattr(recipe.network, 'name', name)!r}"
        )
    if recipe.training.frozen_probe and net.config.uniform_attention:
        raise RunError(f"{probe}: with uniform_attention nothing would learn; set one of the two to false")
    if not methods:
        return
    with seeded(recipe.training.seed), as_run_error(TypeError, ValueError, where=f"network {name!r}"):
        convert(net, *methods, layers=recipe.attention.layers, attention=recipe.attention.kind)


def check_finished(folder: Path) -> Path:
    """The folder of a run's trained network; ``RunError`` where there is none."""
    path = folder / MODEL
    if not path.is_dir():
        raise RunError(
            f"{folder}: expected a finished run with a folder '{MODEL}', found none; train it first, or to its end "
            "with --resume"
        )
    return path


def share_weights(source: nn.Module, target: nn.Module) -> None:
    """Gives the target the weights of the source, where both have them by the same name and of the same shape."""
    weights, target_weights = source.state_dict(), target.state_dict()
    shared = {
        name: weights[name]
        for name in target_weights
        if name in weights and weights[name].shape == target_weights[name].shape
    }
    target.load_state_dict(shared, strict=False)


def on_device(program: Program) -> Program:
    """A program on the device that was asked for, or else an accelerator where there is one, in evaluation mode."""
    return program.to(current_device()).eval()


def score_modules(net: nn.Module) -> list[nn.Module]:
    """Modules whose parameters, a method's among them, make attention scores and nothing else; empty where none do."""
    return [module for module in net.modules() if isinstance(module, (SelfAttentiveAttention, DotAttention))]


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
