"""Training of many small models at once, which are stacked in one module and have losses of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

from probattn.inference.checkpoint import Resume
from probattn.inference.loop import NonFiniteError, unhealthy_gradients
from probattn.inference.options import RunOptions
from probattn.inference.records import Record
from probattn.inference.run import FitResult, Run, Training
from probattn.inference.session import accelerator_session, capture_random_state, restore_random_state
from probattn.options import Count, Options, Positive

OWNER = "ManyRunsDriver"

Evaluation = Callable[[int, torch.device], Mapping[str, Tensor]]
"""Called with the step and the device; gives each measure's values of all runs, ``[R]``."""


@dataclass(eq=False)
class ManyRunsDriver(Options):
    r"""Trains R models that are stacked in one module; each gets the updates that it would get if trained alone.

    Minimises the sum of the R losses with Adam, which updates every number separately; the models do not influence each
    other. Gradients are not clipped, since the joint norm would couple the models.

    A batch depends only on its step, and checkpoints have the state of random number generators, so a resumed training
    repeats the uninterrupted one, on a CPU bit for bit.

    Args:
        model: an ``nn.Module`` whose method ``losses(batch)`` returns the R losses ``[R]``; trained in place.
        batches: function from the number of a step (1, 2, ...) to the batch for all R models.
        steps: number of updates, >= 1.
        evaluate: function from step and device to measures by name, each ``[R]``; None to evaluate nothing.
        evaluate_at: steps after which ``evaluate`` is called; 0 is before the first update.
        parameters: the parameters to train; by default all that require gradients.
        learning_rate: learning rate of Adam, > 0.
        checkpoint_every: number of updates between checkpoints, >= 1; the last update always has one.
        folder: folder for ``metrics.jsonl`` and ``checkpoints/``; None to save nothing.
        fingerprint: numbers and texts that must be the same when a run is resumed.
        cpu: whether to use the CPU although there is a GPU.
        progress: whether to show a progress bar.
        title: title of the progress bar.

    Raises:
        ValueError: an option out of its range.

    Example:
        >>> class Means(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.mean = nn.Parameter(torch.zeros(3))
        ...     def losses(self, batch):
        ...         return (self.mean - batch).square()
        >>> model = Means()
        >>> target = torch.tensor([1.0, 2.0, 3.0])
        >>> driver = ManyRunsDriver(model, lambda step: target, 300, learning_rate=0.1, cpu=True, progress=False)
        >>> driver.fit().step
        300
        >>> torch.allclose(model.mean, target, atol=1e-3)
        True
    """

    model: nn.Module
    batches: Callable[[int], Any]
    steps: Count
    _: KW_ONLY
    evaluate: Evaluation | None = None
    evaluate_at: Sequence[int] = ()
    parameters: Sequence[nn.Parameter] | None = None
    learning_rate: Positive = 1e-3
    checkpoint_every: Count = 50
    folder: Path | str | None = None
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    cpu: bool = False
    progress: bool = True
    title: str = "training"

    def __post_init__(self) -> None:
        super().__post_init__()
        outside = [step for step in self.evaluate_at if not 0 <= step <= self.steps]
        if outside:
            raise ValueError(f"{OWNER}.evaluate_at: expected steps from 0 to {self.steps}, got {outside[0]}")

    def fit(self, *, resume: Resume = False) -> FitResult:
        """Trains to the last step; ``resume`` and errors are as in :meth:`probattn.inference.SVIDriver.fit`.

        ``validation`` of the result is the last evaluation. A ``NonFiniteError`` gives the model's number.

        Raises:
            ValueError: the program was started with several processes.
        """
        names = ("checkpoint_every", "folder", "fingerprint", "progress", "title")
        options = RunOptions(keep_last=1, **{name: getattr(self, name) for name in names})
        with accelerator_session(precision="no", cpu=self.cpu) as accelerator:
            if accelerator.num_processes > 1:
                raise ValueError(f"{OWNER}: expected one process, got {accelerator.num_processes}")
            return Run(options, accelerator, _ManyRuns(self, accelerator.device)).train(resume)

    def configuration(self) -> dict[str, Any]:
        """Settings that must be the same when a run is resumed; ``steps`` may differ."""
        shapes = {name: list(value.shape) for name, value in self.model.named_parameters()}
        described = {"learning_rate": self.learning_rate, "evaluate_at": list(self.evaluate_at)}
        return described | {"parameters": shapes, "fingerprint": dict(self.fingerprint)}


class _ManyRuns(Training):
    """The hooks of a run: all models make the same updates."""

    def __init__(self, driver: ManyRunsDriver, device: torch.device) -> None:
        super().__init__(driver.model.to(device), driver.steps, driver.steps)
        self._device, self._described = device, driver.configuration()
        self._batches, self._measure, self._measured_at = driver.batches, driver.evaluate, driver.evaluate_at
        learning = driver.parameters
        if learning is None:
            learning = [parameter for parameter in driver.model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.Adam(learning, lr=driver.learning_rate)
        self._losses = torch.empty(0)

    def configuration(self) -> dict[str, Any]:
        return self._described

    def update(self, step: int, rescue: Callable[[], Path | None]) -> None:
        batch = send_to_device(self._batches(step + 1), self._device)
        runs: Any = self.model
        losses = runs.losses(batch)
        if not bool(losses.isfinite().all()):
            diverged = [index for index, finite in enumerate(losses.isfinite().tolist()) if not finite]
            raise NonFiniteError(
                f"step {step + 1}: expected finite losses, got {losses[diverged[0]].item()} in run {diverged[0]} "
                f"({len(diverged)} of {len(losses)} runs); lower the learning rate"
            )
        self._optimizer.zero_grad()
        losses.sum().backward()
        if unhealthy := unhealthy_gradients(self.model):
            raise NonFiniteError(
                f"step {step + 1}: expected finite gradients, got others in {', '.join(unhealthy)}; lower "
                "the learning rate"
            )
        self._optimizer.step()
        self._losses = losses.detach()

    def words(self) -> str:
        return f"loss {self._losses.mean().item():.4g}"

    def records(self, step: int, *, last: bool, seconds: float) -> Iterator[Record]:
        if self._measure is None or step not in self._measured_at:
            return
        self.model.eval()
        with torch.no_grad():
            values = self._measure(step, self._device)
        self.model.train()
        measured = {name: value.tolist() for name, value in values.items()}
        yield {"kind": "validation", "step": step, "seconds": seconds, **measured}

    def state(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        tensors = {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}
        tensors["random"] = capture_random_state(self._device)
        return {"last": self.last.get("validation")}, tensors

    def load_state(self, state: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        self.load_weights(tensors)
        self._optimizer.load_state_dict(tensors["optimizer"])
        restore_random_state(tensors["random"], self._device)
        self.last = {} if state["last"] is None else {"validation": state["last"]}
