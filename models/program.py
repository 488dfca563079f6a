"""Base of the Pyro programs around networks, and of those whose network has a head."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Literal

import pyro
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor, nn

from probattn.checks import check_batch, check_integer
from probattn.models.hosts.hosting import host_of
from probattn.sites.calling import described, logits_of
from probattn.sites.handlers import is_handled, takes_answers

Block = AbstractContextManager[Any]
Batch = Mapping[str, Tensor]
"""Tensors of some rows by name."""

Link = Literal["softmax", "sigmoid", "identity"]
"""What turns a prediction into probabilities; "identity" where it is a number of its own."""

SEVERAL = ', or for several labels a row set net.config.problem_type = "multi_label_classification"'
"""What a head for one class advises about as many numbers a row as there are classes."""
IGNORED = -100
"""Label of a position that is not observed; transformers' own convention."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """For building a network on the CPU: its parameters come from the seed, and every generator stays where it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed those of devices too
        yield


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A block in evaluation mode; every part is afterwards in the mode that it was in."""
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


class Program(PyroModule):
    """A network as a Pyro program, outside Pyro's handlers a plain module, which adds nothing to Pyro's store."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls ``forward``, within the module's Pyro context where a handler is active."""
        if is_handled():
            with self._pyro_context:
                self._draw_globals()
                return super().__call__(*args, **kwargs)
        return nn.Module.__call__(self, *args, **kwargs)

    def _draw_globals(self) -> None:
        """Draws every ``PyroSample`` of a part outside the program's plates, once a pass; parts are named by place."""
        for name, module in self.named_modules():
            samples = getattr(module, "_pyro_samples", None) if isinstance(module, PyroModule) else None
            if samples and module is not self:
                full = self._pyro_get_fullname(name)
                vars(module).update(_pyro_name=full, _pyro_context=self._pyro_context)
            for sample in samples or ():
                getattr(module, sample)

    def __getattr__(self, name: str) -> Any:
        """As Pyro's, which announces all parameters of a network that is read, but not where nobody listens."""
        module = self.__dict__.get("_modules", {}).get(name)
        return super().__getattr__(name) if module is None or not takes_answers() else module


class HeadProgram(Program):
    r"""A network with a head as a Pyro program: :math:`y_i \sim p(y \mid f(x_i, S_i))`, with S the attention weights.

    A ``PyroSample`` of the network's parts is a global variable, drawn once per forward pass outside the plate
    ``"data"``. A subclass defines how an output is read (:meth:`read`) and what is observed of it (:meth:`observe`).
    """

    link: ClassVar[Link] = "softmax"
    arguments: ClassVar[Mapping[str, Any]] = {}
    """What the network is called with besides its inputs."""
    dimensions: ClassVar[int] = 1
    """Dimensions of a row's logits."""
    advice: ClassVar[str] = "load it with AutoModelForSequenceClassification"
    """What to do about a network without such logits."""

    def __init__(self, net: nn.Module, *, num_data: int | None = None, label_name: str = "labels") -> None:
        super().__init__()
        if num_data is not None:
            check_integer(type(self).__name__, "num_data", num_data, minimum=1)
        self.net = net
        self.num_data = num_data
        self.label_name = label_name

    @property
    def label_names(self) -> tuple[str, ...]:
        """Keys of the labels in a batch."""
        return (self.label_name,)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Runs the network once and returns the prediction ``[B, ...]``; under handlers also samples the labels."""
        check_batch(type(self).__name__, batch)
        inputs, labels = self.inputs(batch), self._labels(batch)
        if not is_handled():
            return self.read(self.net(**inputs, **self.arguments), inputs)
        first = next(iter(inputs.values()))
        data = self.plate("data", len(first), first.device)
        with self.attention_plate(data, inputs):
            prediction = self.read(self.net(**inputs, **self.arguments), inputs)
        with data:
            self.observe(prediction, labels, inputs)
        return prediction

    def inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Inputs of the network in a batch, a mask of its decoder's padding too; ``ValueError`` for none."""
        inputs = {name: value for name, value in batch.items() if name not in self.label_names}
        if not inputs:
            listed = ", ".join(batch) or "nothing"
            raise ValueError(f"{type(self).__name__}: expected inputs in the batch, got {listed}")
        name = "decoder_attention_mask"
        decodes = (
            getattr(getattr(self.net, "config", None), "is_encoder_decoder", False) and name not in inputs
        )
        takes = decodes and name in inspect.signature(host_of(self.net).forward).parameters
        if takes and (real := self._decoder_positions(batch)) is not None:
            # Up to the last: what a causal decoder gives there depends on nothing later.
            inputs[name] = mask = real.long().flip(-1).cummax(dim=-1).values.flip(-1)
            mask[..., 0] = 1
        return inputs

    def _decoder_positions(self, batch: Batch) -> Tensor | None:
        """The real ones of a decoder that reads the input again, as BART's classifiers do; None where not known."""
        tokens, mask = batch.get("input_ids"), batch.get("attention_mask")
        if tokens is None or mask is None or tokens.shape != mask.shape or "decoder_input_ids" in batch:
            return None
        return mask != 0

    def attention_plate(self, data: Block, inputs: Batch) -> Block:
        """The plate of the attention sites: that of the data."""
        return data

    def plate(self, name: str, rows: int, device: torch.device, each: int = 1) -> Block:
        """A plate of so many rows, ``each`` for a datum, scaled to the training set."""
        if self.num_data is None:
            return pyro.plate(name, rows)
        # A stand-in for the rows' places in the data; only its length matters.
        return pyro.plate(name, self.num_data * each, subsample=torch.arange(rows, device=device))

    def read(self, output: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """The prediction ``[B, ...]`` in the network's output, by default its logits; ``ValueError`` without."""
        return read_logits(self, output, (rows_of(inputs), *[None] * self.dimensions), self.advice)

    @abstractmethod
    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """Announces the labels, with those of the batch observed; without any they are values to predict."""

    def aligned(self, prediction: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions and the labels that they are compared with, place by place; here as they stand."""
        return prediction, labels

    def observations(self, batch: Mapping[str, Tensor]) -> int:
        """Number of observed labels in a batch, over which transformers' losses are means; ``ValueError`` without."""
        labels = self._labels(batch)
        if labels is None:
            raise ValueError(
                f"{type(self).__name__}: expected {' and '.join(self.label_names)} in the batch, got "
                f"{', '.join(batch) or 'nothing'}"
            )
        return sum(self._count(label) for label in labels.values())

    def is_observed(self, labels: Tensor) -> Tensor:
        """True where there is a label: not NaN among floats, not -100 among whole numbers."""
        return ~labels.isnan() if labels.is_floating_point() else labels != IGNORED

    def _count(self, labels: Tensor) -> int:
        return int(self.is_observed(labels).sum())

    def _labels(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        labels = {name: batch[name] for name in self.label_names if name in batch}
        missing = [name for name in self.label_names if name not in labels]
        if labels and missing:
            raise ValueError(
                f"{type(self).__name__}: expected {' and '.join(self.label_names)} in the batch, or none of them; "
                f"{missing[0]} is missing"
            )
        return labels or None


def rows_of(inputs: Mapping[str, Tensor]) -> int:
    """Rows of the first input."""
    return len(next(iter(inputs.values())))


def divided_by(number: float | None) -> Block:
    """A block of a program whose log-densities are divided by a number; as they are for None or outside handlers."""
    if number is None or not is_handled():
        return nullcontext()
    return poutine.scale(scale=1 / number)


def read_logits(program: HeadProgram, output: Any, shape: tuple[int | None, ...], advice: str) -> Tensor:
    """The ``logits`` of an output, or the tensor that it is; a ``ValueError`` unless its shape fits, None any size."""
    logits = logits_of(output)
    sizes = () if logits is None else logits.shape
    fits = len(sizes) == len(shape) and all(size in (None, n) for size, n in zip(shape, sizes, strict=True))
    if logits is not None and fits:
        return logits
    expected = ", ".join("C" if size is None else str(size) for size in shape)
    raise ValueError(
        f"{type(program).__name__}: expected a network that returns logits [{expected}], got {described(output)}; "
        f"{advice}"
    )


def check_classes(
    program: object, name: str, labels: Tensor, shape: torch.Size, classes: int, *, ignored: bool = False
) -> bool:
    """Whether :data:`IGNORED` is among the labels, which ``ignored`` allows; ``ValueError`` unless they are classes."""
    owner = program if isinstance(program, str) else type(program).__name__
    also = f", or {IGNORED} where there is none" if ignored else ""
    if labels.shape != shape or labels.is_floating_point():
        raise ValueError(
            f"{owner}: expected class numbers int64 {list(shape)} as {name}, got {labels.dtype} {list(labels.shape)}; "
            "give one whole number a "
            + ("row" if len(shape) == 1 else "token")
            + (SEVERAL if labels.shape == (*shape, classes) and len(shape) == 1 else "")
        )
    if not labels.numel():
        return False
    minimum, maximum = torch.stack(labels.aminmax()).tolist()  # both at once: a device is waited for
    missing = ignored and minimum == IGNORED
    if missing:
        minimum = int(labels.where(labels != IGNORED, max(maximum, 0)).min())
        maximum = max(maximum, minimum)
    if minimum < 0 or maximum >= classes:
        raise ValueError(f"{owner}: expected {name} in 0..{classes - 1}{also}, got {minimum}..{maximum}")
    return missing
