"""The data of a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from probattn.data import ROLES, Role, Source, Task, load_task
from probattn.data.tables import is_table
from probattn.recipes.section import Section


class SourceRecipe(Section):
    """One source of texts; written as a bare name or path where the other keys keep their defaults.

    Example:
        >>> SourceRecipe.model_validate("my.csv").source
        'my.csv'
    """

    source: str = Field(
        min_length=1,
        description="A data set that has a name (`rotten_tomatoes`, `imdb`, `bbc_news`, `sst2`, `trec`, `mrpc`, "
        "`cola`, `cola_out_of_domain`), a file ending in .csv, .tsv, .jsonl (relative to where the command is run), or "
        "`hub:owner/name`.",
    )
    split: str | None = Field(
        default=None,
        min_length=1,
        description="Part of a named or hub data set; null for the usual one: its own for train, validation and test, "
        "all of it for shifted and out_of_domain (of a hub data set the test part).",
    )
    configuration: str | None = Field(
        default=None,
        min_length=1,
        description="Which configuration of a hub data set; null for its only one.",
    )
    text: str = Field(
        default="text", min_length=1, description="Column of the texts, in a file or hub data set."
    )
    text_pair: str | None = Field(
        default=None,
        min_length=1,
        description="Column of the second texts, in a file or hub data set of pairs of texts; null for single texts.",
    )
    label: str = Field(
        default="label", min_length=1, description="Column of the labels, in a file or hub data set."
    )
    label_map: dict[str, str] = Field(
        default_factory=dict,
        description="Label in the data to class name, such as `{0: negative, 1: positive}`.",
    )
    quotes: bool = Field(
        default=True,
        description="Whether fields of a .csv or .tsv file may stand in double quotes; false: plain characters.",
    )

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _known(self) -> SourceRecipe:
        _ = self.build().kind
        return self

    def build(self) -> Source:
        """The source, ready to be read."""
        return Source(**self.model_dump())

    def resolved(self) -> SourceRecipe:
        """The same, with the path of a file made absolute."""
        if not is_table(self.source) or self.source.startswith("hub:"):
            return self
        return self.model_copy(update={"source": str(Path(self.source).expanduser().absolute())})


class LimitsRecipe(Section):
    """Most texts to use, by role: a fixed choice that looks random; null for all."""

    train: int | None = Field(default=None, ge=1, description="To train on.")
    validation: int | None = Field(default=None, ge=1, description="To validate on.")
    test: int | None = Field(default=None, ge=1, description="To test on.")
    shifted: int | None = Field(default=None, ge=1, description="Of the shifted data.")
    out_of_domain: int | None = Field(default=None, ge=1, description="Of the out-of-domain data.")


class DataRecipe(Section):
    """What is trained on and what is measured on."""

    train: SourceRecipe = Field(description="To train on; its labels are the classes.")
    validation: SourceRecipe | None = Field(
        default=None,
        description="To choose by; null for the training set's own validation part, or a share of the training texts.",
    )
    test: SourceRecipe | None = Field(
        default=None,
        description="To measure on; null for the training set's own test part, or a share of the training texts.",
    )
    shifted: SourceRecipe | None = Field(
        default=None, description="The same task on other material, with the same classes; null for none."
    )
    out_of_domain: SourceRecipe | None = Field(
        default=None, description="Texts that are not the task, labels not looked at; null for none."
    )
    validation_fraction: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="Share of the training texts for validation, where no source is given for it.",
    )
    test_fraction: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="Share of the training texts for testing, where no source is given for it.",
    )
    max_length: int | None = Field(
        default=128,
        ge=3,
        description="Most tokens of a text, special ones included; null for what the network takes.",
    )
    on_long: Literal["truncate", "refuse"] = Field(
        default="truncate",
        description="What becomes of longer texts: `truncate` them (a warning counts them), or `refuse`.",
    )
    limits: LimitsRecipe = Field(default=LimitsRecipe(), description="Most texts to use.")

    def sources(self) -> dict[Role, Source]:
        """The sources given, by role."""
        given: dict[Role, SourceRecipe | None] = {role: getattr(self, role) for role in ROLES}
        return {role: source.build() for role, source in given.items() if source is not None}

    def load(self) -> Task:
        """Reads the data.

        Raises:
            DataError: in one line, whatever is wrong with them.
        """
        limits: dict[Role, int | None] = {role: getattr(self.limits, role) for role in ROLES}
        return load_task(
            self.sources(),
            limits={role: limit for role, limit in limits.items() if limit is not None},
            validation_fraction=self.validation_fraction,
            test_fraction=self.test_fraction,
        )

    def resolved(self) -> DataRecipe:
        """The same, with the paths of files made absolute."""
        given: dict[str, SourceRecipe | None] = {role: getattr(self, role) for role in ROLES}
        files = {role: source.resolved() for role, source in given.items() if source is not None}
        return self.model_copy(update=files)
