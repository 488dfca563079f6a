"""The training of a recipe, and what is recorded in it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import field_validator, model_validator

from probattn.data.errors import suggestion
from probattn.inference.optimizers import OptimizerOptions, SchedulerOptions
from probattn.inference.options import FINE_TUNING_WEIGHT, EarlyStopping, KLSchedule, RunOptions
from probattn.options import Count
from probattn.tasks.sections.base import Section, key
from probattn.tasks.sections.derived import DrawnSection, Key, drawn_section, options_section

OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}
EPOCHS = 3
"""Passes over the data where neither epochs nor steps are given."""
LARGEST_SEED = 2**31 - 1


_EarlyStopping: Any = options_section(EarlyStopping)


class EarlyStoppingRecipe(_EarlyStopping):
    """Stops when a validation metric no longer improves, and restores the best weights."""


STEP_SIZE = {"lt": 10}
"""Learning rates beyond it are slips."""


def length_key(description: str) -> tuple[Any, Any]:
    """The key of a number of epochs or steps."""
    return int | None, key(None, description, ge=1)


TRAINING: dict[str, Any] = {
    "epochs": length_key(f"Number of epochs; null for {EPOCHS}, unless `steps` is given."),
    "steps": length_key("Updates, instead of `epochs`."),
    "batch_size": Key(RunOptions, "batch_size"),
    "accumulation": Key(RunOptions, "accumulation"),
    "length_pool": Key(
        RunOptions,
        "length_pool",
        {
            "description": "Number of consecutive updates whose examples are pooled and sorted by length before they "
            "are batched; null for no sorting."
        },
    ),
    "optimizer": (Literal["adamw", "adam", "sgd"], key("adamw", "Optimiser of `torch.optim`.")),
    "optimizer_arguments": Key(
        OptimizerOptions, "arguments", {"annotation": dict[str, bool | int | float | list[float]]}
    ),
    "learning_rate": Key(OptimizerOptions, "learning_rate", STEP_SIZE),
    "site_learning_rate": Key(OptimizerOptions, "site_learning_rate", STEP_SIZE),
    "weight_decay": Key(OptimizerOptions, "weight_decay"),
    "schedule": Key(
        SchedulerOptions,
        "name",
        {
            "annotation": Literal["linear", "cosine", "constant_with_warmup", "inverse_sqrt"],
            "description": "Schedule of the learning rates after their warm-up.",
        },
    ),
    "warmup": Key(SchedulerOptions, "warmup_fraction"),
    "warmup_steps": Key(SchedulerOptions, "warmup_steps"),
    "gradient_clip": Key(RunOptions, "max_grad_norm"),
    "precision": Key(RunOptions, "precision"),
    "compile": Key(RunOptions, "compile"),
    "shard": Key(RunOptions, "shard"),
    "device": (Literal["auto", "cpu"], key("auto", "`auto` uses an accelerator if there is one.")),
    "seed": Key(
        RunOptions,
        "seed",
        {"le": LARGEST_SEED, "description": "Seed of new parameters, data order, noise and dropout."},
    ),
    "kl_weight": Key(
        KLSchedule,
        "final",
        {
            "default": FINE_TUNING_WEIGHT,
            "description": "Weight of the KL after its warm-up; with `attention.kl_reduction: sum`, 1 gives the "
            "evidence lower bound (ELBO).",
        },
    ),
    "kl_schedule": Key(KLSchedule, "kind"),
    "kl_warmup": Key(KLSchedule, "warmup_fraction"),
    "kl_warmup_steps": Key(KLSchedule, "warmup_steps"),
    "log_every": Key(RunOptions, "log_every"),
    "eval_every": Key(RunOptions, "eval_every"),
    "checkpoint_every": Key(RunOptions, "checkpoint_every"),
    "keep": Key(RunOptions, "keep_last"),
    "early_stopping": (
        EarlyStoppingRecipe | None,
        key(None, "Rule that ends training early; null for none."),
    ),
    "frozen_probe": (
        bool,
        key(
            False,
            "Whether only attention is trained (Snell et al. 2021, A.6): `self_attentive` or, in translation, `lstm`.",
        ),
    ),
}
"""Keys of the training of networks, in the order of the reference: options of the drivers, and a few besides."""


def training_keys(*names: str, **changes: Mapping[str, Any]) -> dict[str, Any]:
    """Some of these keys in their order; those that are options with what changes in their declaration."""
    keys = {name: key for name, key in TRAINING.items() if name in {*names, *changes}}
    return keys | {name: keys[name].changed(change) for name, change in changes.items()}


class DriverSection(DrawnSection):
    """A training that one of the drivers does."""

    def driver_options(self, **optimizer: Any) -> dict[str, Any]:
        """Options of the driver; arguments are further options of the optimiser."""
        section: Any = self
        rule = section.early_stopping
        return self.options_of(RunOptions) | {
            "optimizer": OptimizerOptions(**self.options_of(OptimizerOptions), **optimizer),
            "scheduler": SchedulerOptions(**self.options_of(SchedulerOptions)),
            "kl_schedule": KLSchedule(**self.options_of(KLSchedule)),
            "cpu": section.device == "cpu",
            "early_stopping": None if rule is None else rule.build(),
        }


_Training: Any = drawn_section(TRAINING, DriverSection)


class TrainingRecipe(_Training):
    """Training of the network.

    Example:
        >>> TrainingRecipe().epochs
        3
        >>> TrainingRecipe(steps=100).epochs is None
        True
    """

    default_length: ClassVar[Mapping[str, int]] = {"epochs": EPOCHS}
    """Default number of epochs or steps, if a recipe sets neither."""

    def driver_options(self, **optimizer: Any) -> dict[str, Any]:
        """Options of the training loop; ``optimizer`` are further options of the optimiser."""
        return cast(dict[str, Any], super().driver_options(name=self.optimizer_class, **optimizer))

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("epochs") is None and value.get("steps") is None:
            return {**value, **cls.default_length}
        return value

    @model_validator(mode="after")
    def _one_length(self) -> TrainingRecipe:
        if self.epochs is not None and self.steps is not None:
            raise ValueError(
                f"expected one of epochs and steps, got epochs {self.epochs} and steps {self.steps}; set one to null"
            )
        return self

    @field_validator("optimizer_arguments")
    @classmethod
    def _not_ours(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name, ours in (("lr", "learning_rate"), ("weight_decay", "weight_decay")):
            if name in value:
                raise ValueError(f"{name!r} has a key of its own: training.{ours}")
        return value

    @model_validator(mode="after")
    def _known_arguments(self) -> TrainingRecipe:
        optimizer = self.optimizer_class
        names = list(inspect.signature(getattr(torch.optim, optimizer)).parameters)
        for name in self.optimizer_arguments:
            if name not in names:
                raise ValueError(
                    f"optimizer_arguments: torch.optim.{optimizer} takes no {name!r}{suggestion(name, names)}"
                )
        return self

    @property
    def optimizer_class(self) -> str:
        """Name of the optimiser in ``torch.optim``."""
        return OPTIMIZERS[self.optimizer]


LARGEST = 10**9


class ProbeRecipe(Section):
    """When attention and [lexical probe](../concepts/how_attention_learns.md) are recorded, and on how many examples.

    Example:
        >>> ProbeRecipe().watched()[:9]
        (0, 10, 20, 50, 100, 200, 500, 1000, 2000)
    """

    steps: list[int] | None = key(
        None,
        "Updates after which attention and probe are recorded, in addition to the last; null for 0, 10, 20, 50, 100, "
        "200 and so on.",
        min_length=1,
    )
    examples: Count = key(200, "Number of recorded examples, the same at every update.")
    part: Literal["validation", "train"] = key(
        "validation", "Data of the recorded examples; `train` as in tables 7 and 8 of Snell et al. 2021."
    )
    batch_size: Count = key(32, "Recorded examples in a batch.")
    shown: int = key(2, "Recorded examples whose attention maps the report shows.", ge=0, le=20)

    @field_validator("steps")
    @classmethod
    def _in_order(cls, value: list[int] | None) -> list[int] | None:
        if value is not None and (value[0] < 0 or value != sorted(set(value))):
            raise ValueError(f"expected rising numbers >= 0, got {value}")
        return value

    def watched(self) -> tuple[int, ...]:
        """The numbers of updates after which attention and probe are recorded, in order."""
        if self.steps is not None:
            return tuple(self.steps)
        steps, power = [0], 10
        while power < LARGEST:
            steps += [power, 2 * power, 5 * power]
            power *= 10
        return tuple(steps)


class TranslationProbeRecipe(ProbeRecipe):
    """When attention and [lexical probe](../concepts/how_attention_learns.md) are recorded, on how many sentences."""

    bleu: bool = key(
        False,
        "Whether the recorded sentences are translated at each recorded update, by greedy search, to measure BLEU.",
    )
