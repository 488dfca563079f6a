"""What a training loop asks of accelerate: a session that leaves no trace, gradients of one step, an evaluation."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.tracking import GeneralTracker
from accelerate.utils import (
    DistributedDataParallelKwargs,
    DistributedType,
    GradientAccumulationPlugin,
    gather_object,
    send_to_device,
)
from torch import Tensor, nn

from probattn.inference.elbo import ELBOTerms

Precision = Literal["no", "bf16", "fp16"]
ValidationMetrics = Callable[[nn.Module, Any], Mapping[str, Tensor]]
"""Called with the model and a batch; gives each metric's values per row ``[B]`` or their mean."""

_UNSUPPORTED = (
    DistributedType.DEEPSPEED,
    DistributedType.FSDP,
    DistributedType.MEGATRON_LM,
    DistributedType.XLA,
)


class StepTerms(NamedTuple):
    """Means over rows of the objective's parts, as numbers; see :class:`probattn.inference.ELBOTerms`."""

    loss: float
    log_likelihood: float
    kl: float
    kl_nats: float
    factors: float


_SESSION = threading.RLock()


@contextmanager
def _alone() -> Iterator[None]:
    """Refuses a second thread: accelerate's state and the seeded generators are the process's."""
    if not _SESSION.acquire(blocking=False):
        raise RuntimeError(
            "expected one training run at a time in a process, got a second one in another thread: both would draw "
            "from torch's one generator; wait for the first, or train in a process of its own"
        )
    try:
        yield
    finally:
        _SESSION.release()


@contextmanager
def accelerator_session(
    *,
    precision: Precision,
    cpu: bool = False,
    trackers: Sequence[str | GeneralTracker] = (),
    folder: Path | None = None,
    find_unused_parameters: bool = False,
) -> Iterator[Accelerator]:
    """An accelerator of its own, whatever others live in this process.

    accelerate keeps device, precision and gradient state in process-wide singletons: a second accelerator of another
    precision is refused, and a first one's settings pass silently to the next. Theirs are put aside and put back.

    Args:
        precision: "no" (the parameters' own), "bf16" or "fp16" autocast.
        cpu: stay on the CPU where there is an accelerator device.
        trackers: names or instances that accelerate knows.
        folder: where trackers write.
        find_unused_parameters: let parameters go without gradient in distributed training, at some cost.

    Yields:
        The accelerator.

    Raises:
        RuntimeError: another thread of this process is in a session.
        ValueError: "fp16" without a GPU, or a launch under DeepSpeed, FSDP, Megatron or XLA.
    """
    with _alone(), _own_accelerate_state():
        accelerator = Accelerator(
            mixed_precision=precision,
            cpu=cpu,
            log_with=list(trackers) or None,
            project_dir=folder,
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1, sync_with_dataloader=False),
            dynamo_backend="no",  # a compiled graph cannot hold pyro.sample
            kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=find_unused_parameters)],
        )
        if accelerator.distributed_type in _UNSUPPORTED:
            raise ValueError(
                f"expected one process or data-parallel ones, got {accelerator.distributed_type.value}; launch with "
                "accelerate's or torchrun's plain multi-process mode"
            )
        try:
            yield accelerator
        finally:
            for tracker in accelerator.trackers:
                tracker.finish()  # not end_training(), which would also end the caller's process group


@contextmanager
def _own_accelerate_state() -> Iterator[None]:
    singletons = (AcceleratorState, GradientState, PartialState)
    before = [dict(singleton._shared_state) for singleton in singletons]
    for singleton in singletons:
        singleton._shared_state.clear()
    try:
        yield
    finally:
        for singleton, state in zip(singletons, before, strict=True):
            singleton._shared_state.clear()
            singleton._shared_state.update(state)


class NonFiniteThrough(nn.Module):
    """Computes on where Pyro's validation stops at a NaN, so that every rank can report the step together.

    With validation on, parameters or values that are not finite raise a ``ValueError`` inside a distribution, on the
    rank that met them. The batch is then computed again without validation; if the loss is not finite it is returned,
    otherwise the error was about something else and is raised.

    Args:
        module: gives :class:`probattn.inference.ELBOTerms`.

    Attributes:
        complaint: the beginning of the validation's last error that was passed over.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.complaint: str | None = None

    def forward(self, batch: Any) -> ELBOTerms:
        """The module's terms of ``batch``."""
        try:
            terms: ELBOTerms = self.module(batch)
        except ValueError as error:
            again = self._without_validation(batch)
            if again is None or bool(again.loss.isfinite()):
                raise
            self.complaint = textwrap.shorten(str(error), 200)
            return again
        return terms

    def _without_validation(self, batch: Any) -> ELBOTerms | None:
        if not dist.is_validation_enabled():
            return None
        with suppress(ValueError, RuntimeError), pyro.validation_enabled(False):
            terms: ELBOTerms = self.module(batch)
            return terms
        return None


def accumulate_gradients(
    accelerator: Accelerator, module: nn.Module, weights: Sequence[float], batches: Iterator[Any]
) -> Tensor:
    r"""Adds one step's gradient: the mean over all rows of all micro-batches of all ranks.

    With n_i rows in micro-batch i of the step and n their sum, the gradient is
    :math:`\sum_i \frac{n_i}{n} \nabla \text{loss}_i`: micro-batches of unequal size count by their rows.

    Args:
        accelerator: the session's.
        module: prepared; ``module(batch)`` gives :class:`probattn.inference.ELBOTerms` per datum.
        weights: n_i / n of this rank's micro-batches.
        batches: as many batches.

    Returns:
        The terms' means over the step's rows, on every rank, ``[5]``.
    """
    total: Tensor | None = None
    for index, weight in enumerate(weights):
        last = index == len(weights) - 1
        with nullcontext() if last else accelerator.no_sync(module):
            terms = module(send_to_device(next(batches), accelerator.device))
            # Gradients are averaged over ranks, so a rank's share counts that many times.
            accelerator.backward(terms.loss * (weight * accelerator.num_processes))
        part = weight * torch.stack([term.detach() for term in terms])
        total = part if total is None else total + part
    reduced: Tensor = accelerator.reduce(total, "sum")
    return reduced


def evaluate(
    accelerator: Accelerator,
    module: nn.Module,
    batches: Iterable[tuple[Any, int]],
    metrics: Callable[[Any], Mapping[str, Tensor]] | None = None,
) -> dict[str, float]:
    """Means over the rows of all ranks, without gradients, in evaluation mode.

    Args:
        accelerator: the session's.
        module: not wrapped for distribution; its terms are averaged.
        batches: this rank's batches and their numbers of rows; may be empty on some ranks.
        metrics: further values of a batch, per row ``[B]`` or their mean.

    Returns:
        Means by name: the terms', then the metrics'.

    Raises:
        ValueError: a metric has the name of a term.
    """
    sums: dict[str, float] = {}
    rows = 0
    mode = module.training
    module.eval()
    try:
        with torch.no_grad(), accelerator.autocast():
            for batch, size in batches:
                moved = send_to_device(batch, accelerator.device)
                values = _metric_means(metrics, moved) if metrics else {}
                values |= StepTerms(*torch.stack(list(module(moved))).tolist())._asdict()
                for name, value in values.items():
                    sums[name] = sums.get(name, 0.0) + size * value
                rows += size
    finally:
        module.train(mode)
    return _mean_over_ranks(sums, rows)


def _metric_means(metrics: Callable[[Any], Mapping[str, Tensor]], batch: Any) -> dict[str, float]:
    values = {name: torch.as_tensor(value).float().mean().item() for name, value in metrics(batch).items()}
    taken = values.keys() & set(StepTerms._fields)
    if taken:
        raise ValueError(
            f"validation_metrics: {sorted(taken)} are names of the objective's terms; choose others"
        )
    return values


def _mean_over_ranks(sums: dict[str, float], rows: int) -> dict[str, float]:
    ranks = gather_object([(sums, rows)])
    total = sum(count for _, count in ranks)
    names = {name: None for part, _ in ranks for name in part}
    order = sorted(names, key=lambda name: name not in StepTerms._fields)  # stable: terms first
    return {name: sum(part.get(name, 0.0) for part, _ in ranks) / total for name in order}
