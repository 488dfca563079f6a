"""What recipes of every kind have: a name, a folder for the run, and how they are written."""

from __future__ import annotations

from typing import Any

import yaml
from pydantic import Field, model_validator

from probattn.recipes.section import Section
from probattn.recipes.yaml_nodes import RecipeDumper


class RunRecipe(Section):
    """The name and the folder of a run.

    Example:
        >>> RunRecipe(name="first").output
        'runs/first'
    """

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
