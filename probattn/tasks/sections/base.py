"""What every section of a recipe has in common, what recipes of every task have, and errors about them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from probattn.options import Count, Filled, Natural
from probattn.tasks.sections.yaml_nodes import RecipeDumper

Rate = Annotated[float, Field(ge=0, lt=1)]
"""A share below 1, such as that of dropout."""
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]


def key(default: Any, description: str, **options: Any) -> Any:
    """A key of a section: its default, what it means, and further options of ``Field``, such as its range."""
    return Field(default=default, description=description, **options)


def absolute(path: str) -> str:
    """A path from the root, whatever the folder it is read in."""
    return str(Path(path).expanduser().absolute())


def run_name(stem: str) -> str:
    """A name of a run from the name of a file: what a name may not have becomes a hyphen."""
    kinds = ((sign, unicodedata.category(sign)) for sign in unicodedata.normalize("NFKC", stem))
    usual = "".join(
        sign if kind[0] in "LM" or kind == "Nd" or sign in "_.- " else "\0" for sign, kind in kinds
    )
    return re.sub(r"[ -]*\0[ \0-]*", "-", usual).lstrip(" .-_").rstrip(" .-") or "run"


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

    def path_keys(self) -> Iterable[str]:
        """Keys that hold the path of a file or folder, or null."""
        return ()

    def resolved(self) -> Self:
        """The same, with the paths of files and folders that it and its sections read made absolute."""
        values = {name: _resolved(getattr(self, name)) for name in type(self).model_fields}
        paths = {name: absolute(values[name]) for name in self.path_keys() if values[name] is not None}
        return self.model_copy(update=values | paths)


def _resolved(value: Any) -> Any:
    if isinstance(value, list):
        return [_resolved(item) for item in value]
    return value.resolved() if isinstance(value, Section) else value


class LimitsSection(Section):
    """Maximum numbers of examples, a fixed pseudo-random subset of each role; null for all."""

    train: Count | None = key(None, "Maximum number of training examples; null for all.")
    validation: Count | None = key(None, "Maximum number of validation examples; null for all.")
    test: Count | None = key(None, "Maximum number of test examples; null for all.")


class ReportSection(Section):
    """What the reports of all tasks of one network have in common."""

    baseline: bool = key(
        True,
        "Whether to train, and compare with, a baseline: the network with deterministic attention, trained from the "
        "same initial weights on the same data for as many updates.",
    )
    resamples: int = key(1000, "Bootstrap resamples behind intervals and p-values.", ge=100)
    level: float = key(0.95, "Confidence level of the intervals.", gt=0, lt=1)


class TopicsReportSection(ReportSection):
    """What the reports of networks have in common whose queries, keys and heads can be compared."""

    alignment_examples: Natural = key(
        64, "Test examples on which queries and keys are compared, with `alignment`; 0 for none."
    )
    projection: Literal["pca", "tsne"] = key(
        "pca", "Projection of queries and keys to two dimensions in a figure; `tsne` needs scikit-learn."
    )
    map_layers: Literal["all", "first", "last"] | Annotated[list[int], Field(min_length=1)] = key(
        "last", "Layers whose attention maps, and queries and keys, are plotted."
    )
    head_examples: Natural = key(
        64,
        "Test examples on which attention heads are compared, with `repulsion` or `disagreement`; 0 for none.",
    )
    masked_examples: Natural = key(
        64,
        "Test examples on which the task's main score is measured without each attention head in turn; 0 for none.",
    )


class RunRecipe(Section):
    """The name and the folder of a run; ``introduction`` begins the page that describes the keys."""

    introduction: ClassVar[str] = "# Recipe reference\n"

    name: str = key(
        "run",
        "Name of the run (letters, digits, spaces, `.`, `-`, `_`); default: the name of the recipe's file, or `run`.",
        pattern=r"^[^\W_][\w .-]*$",
    )
    output: Filled = key("runs/run", "Folder of the run; by default `runs/` and the run's name.")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("output") is None:
            return value | {"output": f"runs/{value.get('name', 'run')}"}
        return value

    def dump(self) -> str:
        """The recipe as YAML, every key written out."""
        return yaml.dump(
            self.model_dump(), Dumper=RecipeDumper, sort_keys=False, allow_unicode=True, width=110
        )
