"""The training of a recipe, and what is recorded in it."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import torch
from pydantic import Field, field_validator, model_validator

from probattn.data.errors import suggestion
from probattn.inference.options import EarlyStopping
from probattn.tasks.sections.base import Section
from probattn.tasks.sections.derived import options_section

OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD"}
EPOCHS = 3
"""Passes over the data where neither epochs nor steps are given."""


_EarlyStopping: Any = options_section(EarlyStopping)


class EarlyStoppingRecipe(_EarlyStopping):
    """Stops when a validation metric no longer improves, and takes the best weights."""


class TrainingRecipe(Section):
    """How the network is trained.

    Example:
        >>> TrainingRecipe().epochs
        3
        >>> TrainingRecipe(steps=100).epochs is None
        True
    """

    epochs: int | None = Field(
        default=None,
        ge=1,
        description=f"Passes over the training data; {EPOCHS} where neither this nor `steps` is given.",
    )
    steps: int | None = Field(default=None, ge=1, description="Updates, instead of `epochs`.")
    batch_size: int = Field(default=16, ge=1, description="Texts of a micro-batch on one device.")
    accumulation: int = Field(default=1, ge=1, description="Micro-batches of an update.")
    optimizer: Literal["adamw", "adam", "sgd"] = Field(default="adamw", description="Optimiser of torch.")
    optimizer_arguments: dict[str, bool | int | float | list[float]] = Field(
        default_factory=dict, description="Further arguments of the optimiser, such as `{eps: 1e-6}`."
    )
    learning_rate: float = Field(default=2e-5, gt=0, lt=10, description="Of the network's own parameters.")
    site_learning_rate: float | None = Field(
        default=1e-3,
        gt=0,
        lt=10,
        description="Of the parameters that attention brings along; null for `learning_rate`.",
    )
    weight_decay: float = Field(
        default=0.01, ge=0, description="Of matrices; biases and norms are not decayed."
    )
    schedule: Literal["linear", "cosine", "constant_with_warmup", "inverse_sqrt"] = Field(
        default="linear", description="Course of the learning rates after their warm-up."
    )
    warmup: float = Field(
        default=0.1, ge=0, le=1, description="Share of the updates in which the learning rates rise."
    )
    warmup_steps: int | None = Field(
        default=None, ge=0, description="The same in updates; null for `warmup`, which it replaces."
    )
    gradient_clip: float | None = Field(
        default=1.0, gt=0, description="Norm at which gradients are clipped; null for never."
    )
    precision: Literal["no", "bf16", "fp16"] = Field(
        default="no", description="Mixed precision; `fp16` needs a GPU, `no` is that of the parameters."
    )
    device: Literal["auto", "cpu"] = Field(
        default="auto", description="`auto` takes an accelerator where there is one."
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Of new parameters, the order of the data, noise and dropout.",
    )
    kl_weight: float = Field(
        default=1e-3,
        ge=0,
        description="Weight of the divergence after its warm-up. 1 is the lower bound of the evidence, up to the "
        "reduction; fine-tuning a pretrained network asks for far less.",
    )
    kl_schedule: Literal["constant", "linear", "sigmoid"] = Field(
        default="linear",
        description="Course of that weight while it warms up, from 0; `constant` has no warm-up.",
    )
    kl_warmup: float = Field(
        default=0.5, ge=0, le=1, description="Share of the updates in which that weight rises."
    )
    kl_warmup_steps: int | None = Field(
        default=None, ge=0, description="The same in updates; null for `kl_warmup`, which it replaces."
    )
    log_every: int = Field(default=10, ge=1, description="Updates between records.")
    eval_every: int | None = Field(
        default=None, ge=1, description="Updates between evaluations; null for once an epoch."
    )
    checkpoint_every: int | None = Field(
        default=None, ge=1, description="Updates between checkpoints; null for once an epoch."
    )
    keep: int = Field(default=2, ge=1, description="Newest checkpoints that are kept.")
    early_stopping: EarlyStoppingRecipe | None = Field(
        default=None, description="When to stop before the end; null for never."
    )
    frozen_probe: bool = Field(
        default=False,
        description="Whether nothing but attention learns, so that what the network knows of single words stays what "
        "it was at the start (Snell et al. 2021, A.6); for the networks `self_attentive` and, in translation, `lstm`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("epochs") is None and value.get("steps") is None:
            return value | {"epochs": EPOCHS}
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
        for name, key in (("lr", "learning_rate"), ("weight_decay", "weight_decay")):
            if name in value:
                raise ValueError(f"{name!r} has a key of its own: training.{key}")
        return value

    @model_validator(mode="after")
    def _known_arguments(self) -> TrainingRecipe:
        optimizer = self.optimizer_class
        known = list(inspect.signature(getattr(torch.optim, optimizer)).parameters)
        for name in self.optimizer_arguments:
            if name not in known:
                raise ValueError(
                    f"optimizer_arguments: torch.optim.{optimizer} takes no {name!r}{suggestion(name, known)}"
                )
        return self

    @property
    def optimizer_class(self) -> str:
        """Name of the optimiser in ``torch.optim``."""
        return OPTIMIZERS[self.optimizer]


LARGEST = 10**9


class ProbeRecipe(Section):
    """When attention and lexical probe are recorded, and on how many examples.

    Example:
        >>> ProbeRecipe().watched()[:9]
        (0, 10, 20, 50, 100, 200, 500, 1000, 2000)
    """

    steps: list[int] | None = Field(
        default=None,
        min_length=1,
        description="Updates after which they are recorded, and 0 for before the first; null for 0, 10, 20, 50, 100, "
        "200, 500 and so on. The last one always is.",
    )
    examples: int = Field(
        default=200, ge=1, description="Validation examples that are looked at, a fixed choice."
    )
    batch_size: int = Field(default=32, ge=1, description="Examples of a batch.")
    shown: int = Field(default=2, ge=0, le=20, description="Examples whose maps the report shows.")

    @field_validator("steps")
    @classmethod
    def _in_order(cls, value: list[int] | None) -> list[int] | None:
        if value is not None and (value[0] < 0 or value != sorted(set(value))):
            raise ValueError(f"expected rising numbers >= 0, got {value}")
        return value

    def watched(self) -> tuple[int, ...]:
        """The updates, in order."""
        if self.steps is not None:
            return tuple(self.steps)
        found, power = [0], 10
        while power < LARGEST:
            found += [power, 2 * power, 5 * power]
            power *= 10
        return tuple(found)


class TranslationProbeRecipe(ProbeRecipe):
    """The same for translation, where the watched sentences can be translated too."""

    bleu: bool = Field(
        default=False,
        description="Whether to translate the watched sentences at each recorded step, by greedy search, for their "
        "BLEU.",
    )
