"""What every section of a recipe has in common, what recipes of every task have, and errors about them."""

from __future__ import annotations

from typing import Any, ClassVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from probattn.tasks.sections.yaml_nodes import RecipeDumper


class Section(BaseModel):
    """A frozen section: unknown keys, wrong types, NaN and infinities are errors; nothing is converted silently."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        protected_namespaces=(),
    )


class ReportSection(Section):
    """What the reports of all tasks of one network have in common."""

    baseline: bool = Field(
        default=True,
        description="Whether to train the same network with deterministic attention too (from the same weights, on the "
        "same data, with as many updates) and to compare.",
    )
    resamples: int = Field(
        default=1000, ge=100, description="Bootstrap resamples behind intervals and p values."
    )
    level: float = Field(default=0.95, gt=0, lt=1, description="Level of the intervals.")


class RunRecipe(Section):
    """The name and the folder of a run.

    Attributes:
        introduction: beginning of the page that describes its keys, in Markdown.

    Example:
        >>> RunRecipe(name="first").output
        'runs/first'
    """

    introduction: ClassVar[str] = "# Recipe reference\n"

    name: str = Field(
        default="run",
        pattern=r"^[A-Za-z0-9][\w .-]*$",
        description="Name of the run: letters, digits, spaces, `.`, `-`, `_`; the file's name where it is left out.",
    )
    output: str = Field(
        default="runs/run",
        min_length=1,
        description="Folder of the run; `runs/` and its name where it is left out.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("output") is None:
            return value | {"output": f"runs/{value.get('name', 'run')}"}
        return value

    def dump(self) -> str:
        """The recipe as YAML, every key written out."""
        text: str = yaml.dump(
            self.model_dump(), Dumper=RecipeDumper, sort_keys=False, allow_unicode=True, width=110
        )
        return text
