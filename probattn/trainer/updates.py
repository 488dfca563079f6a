"""One optimiser step of a ``Trainer``: its objective, its terms, its clipping and the directions of particles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from accelerate import Accelerator
from accelerate.utils import DynamoBackend
from torch import Tensor, nn
from transformers.trainer_callback import TrainerCallback

from probattn.inference.elbo import AttentionELBOModule
from probattn.inference.guide import AttentionGuide
from probattn.inference.loop import Meter, NonFiniteThrough, StepCheck
from probattn.inference.optimizers import Clipping
from probattn.inference.particle_update import HeadParticles, particle_sets
from probattn.inference.program_elbo import bind
from probattn.models.program import HeadProgram
from probattn.trainer.checkpoints import last_checkpoint


class Objective(NonFiniteThrough):
    """The ELBO of a program as the module that is trained; a call gives the terms of a batch, per row."""

    @classmethod
    def of(cls, program: HeadProgram) -> Objective:
        """The objective of a program."""
        return cls(bind(program, AttentionGuide(program), None))

    @property
    def guide(self) -> AttentionGuide:
        """The guide, with the weight of the KL and the noise."""
        return cast(AttentionGuide, self.elbo.guide)

    @property
    def elbo(self) -> AttentionELBOModule:
        """The estimator with program and guide."""
        return cast(AttentionELBOModule, self.module)

    @property
    def program(self) -> HeadProgram:
        """The network with its likelihood."""
        return cast(HeadProgram, self.elbo.model)

    def forward(self, batch: Any = None, **inputs: Any) -> Any:
        """The terms of ``batch``, a mapping; parts by name are for the network alone, and refused."""
        if inputs or batch is None:
            raise TypeError(
                "ProbabilisticTrainer: the module that is trained is the evidence lower bound, which takes a whole "
                f"batch, and was called with {', '.join(inputs) or 'nothing'} by name; call self.model for the outputs "
                "of the network, or add to what super().compute_loss(...) returns"
            )
        return super().forward(batch)


@contextmanager
def nothing_compiled(accelerator: Accelerator) -> Iterator[None]:
    """What an accelerator prepares is not compiled by it: an objective compiles the network within it."""
    plugin = accelerator.state.dynamo_plugin
    before, plugin.backend = plugin.backend, DynamoBackend.NO
    try:
        yield
    finally:
        plugin.backend = before


class Updates:
    """Follows an objective's gradients from micro-batches to the optimiser; heads ask for the number of data."""

    def __init__(
        self, objective: Objective, accelerator: Accelerator, num_data: Callable[[], int], kl_weight: float
    ) -> None:
        self.objective, self._accelerator = objective, accelerator
        self._clipping = Clipping(objective)
        self._particles = HeadParticles(objective, num_data()) if particle_sets(objective) else None
        self._meter = Meter()
        self._sums: Tensor | None = None
        self._norms: tuple[Tensor, Tensor] | None = None
        self.micro_batch = 0
        diagnostics, precision = objective.elbo.diagnostics, "bf16=False and fp16=False"
        self._check = StepCheck(accelerator, objective, objective.program, diagnostics, precision, kl_weight)

    def add(self, terms: Tensor) -> None:
        """Takes in a micro-batch: its share ``[5]`` of the step's means."""
        self._sums = terms if self._sums is None else self._sums + terms
        self.micro_batch += 1

    def clip(self, limit: float) -> Tensor:
        """Clips alignment's networks apart from all other parameters; the norm of the others' gradient."""
        norm, _ = self._measured()
        if math.isfinite(limit):
            self._clipping.clip(limit)
        return norm

    def _measured(self) -> tuple[Tensor, Tensor]:
        if self._norms is None:
            self._accelerator.unscale_gradients()  # once: a gradient scaler refuses a second time
            self._norms = self._clipping.measure()
        return self._norms

    def before_step(self, step: int, *, measure: bool, folder: str) -> None:
        """Between clipping and the optimiser: what is not finite raises, gradients of heads become directions."""
        sums, norms = self._sums, self._measured()
        assert sums is not None
        means: Tensor = self._accelerator.reduce(sums, "mean")
        terms, norm = self._check.terms(means, norms)
        self._check.check(step, terms, norm, "", lambda: last_checkpoint(folder))
        if self._particles is not None:
            self._particles.direct(step, measure=measure)
        self._meter.add(terms)
        self._sums, self._norms, self.micro_batch = None, None, 0

    def take(self) -> dict[str, float]:
        """Figures for the log: means over the steps since the last call, and diagnostics of particles."""
        if not self._meter.steps:
            return {}
        means = self._meter.take()._asdict()
        del means["loss"]
        particles = {} if self._particles is None else self._particles.diagnostics
        flat = {
            f"particles/{name}/{key}": value
            for name, values in particles.items()
            for key, value in values.items()
        }
        return means | {"kl_weight": self.objective.guide.kl_weight} | flat


def calling(event: str, function: Callable[[], None]) -> TrainerCallback:
    """A callback that calls a function at one of the trainer's events, such as ``on_epoch_end``."""
    callback = TrainerCallback()
    setattr(callback, event, lambda *_, **__: function())
    return callback


def parameters_of(
    groups: list[dict[str, Any]], added: Mapping[str, set[int]], rates: Mapping[str, float]
) -> None:
    """Gives the parameters that conversion added groups of their own, with their rates, after those that hold them."""
    for group in list(groups):
        for kind, ids in added.items():
            members = [parameter for parameter in group["params"] if id(parameter) in ids]
            if members:
                group["params"] = [parameter for parameter in group["params"] if id(parameter) not in ids]
                groups.append({**group, "params": members, "lr": rates[kind]})


def undecayed(model: nn.Module, added: Mapping[str, set[int]]) -> set[str]:
    """Names of the parameters of fewer than two dimensions among those that conversion added."""
    ids = set().union(*added.values())
    return {name for name, value in model.named_parameters() if id(value) in ids and value.ndim < 2}
