"""What tasks share that read texts, or pairs of texts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from pydantic import Field

from probattn.checks import shown
from probattn.data import DataError
from probattn.tasks.fine_tuning.recipe import Examples, ExamplesSection
from probattn.tasks.fine_tuning.task import HeadTask


class TextsSection(ExamplesSection):
    """Texts, or pairs of texts, with a label each.

    A subclass has the field ``label``, and reads it in :meth:`target`.
    """

    paired_names: ClassVar[tuple[str, ...]] = ()
    """Data sets with a name that are pairs."""
    label: str

    text: str = Field(default="text", min_length=1, description="Column of the texts.")
    text_pair: str | None = Field(
        default=None, min_length=1, description="Column of the second texts; null for single texts."
    )
    max_length: int = Field(
        default=128, ge=3, description="Most tokens of a text; longer ones are truncated."
    )

    @property
    def paired(self) -> bool:
        """Whether texts come in pairs."""
        return self.text_pair is not None or self.train in self.paired_names

    @property
    def pair_column(self) -> str | None:
        """Column of the second texts, where there are some."""
        return (self.text_pair or "text_pair") if self.paired else None

    def columns(self) -> Collection[str]:
        """Texts and labels."""
        return [self.text, *([self.text_pair] if self.text_pair else []), self.label]

    def example(self, fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Text, second text and label."""
        names = {"text": self.text, "pair": self.pair_column}
        example = {
            role: text_of(fields.get(name), name, where) for role, name in names.items() if name is not None
        }
        return example | {"target": self.target(fields.get(self.label), where)}

    @abstractmethod
    def target(self, value: Any, where: str) -> Any:
        """A label from its field; ``DataError`` names the place of one that is none."""

    def identity(self, example: Mapping[str, Any]) -> str:
        """The texts."""
        return "\n".join(example[role] for role in ("text", "pair") if role in example)


class TextsTask(HeadTask):
    """A task on texts or pairs of them, by a section derived from :class:`TextsSection`."""

    inputs: ClassVar[tuple[str, ...]] = ("text", "pair")

    @property
    def columns_read(self) -> tuple[str, str | None]:
        """The columns of the training texts."""
        section = self.section_of_examples
        return section.text, section.pair_column

    def tokens(self, codec: Any, examples: Examples) -> list[dict[str, Any]]:
        """What a tokenizer makes of each text or pair."""
        pairs = [example["pair"] for example in examples] if "pair" in examples[0] else None
        texts = [example["text"] for example in examples]
        tokens = codec(texts, pairs, truncation=True, max_length=self.section_of_examples.max_length)
        return [{name: values[row] for name, values in tokens.items()} for row in range(len(texts))]

    def asked(self, example: Mapping[str, Any]) -> dict[str, Any]:
        """The texts of an example, which an answer begins with."""
        return {name: example[name] for name in self.inputs if name in example}

    def given(self, text: str, pair: str | None) -> Mapping[str, Any]:
        """Text and second text."""
        return {"text": text} if pair is None else {"text": text, "pair": pair}


def text_of(value: Any, name: str, where: str) -> str:
    """A field with text; ``DataError`` for another or a blank one."""
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: expected text in {name!r}, got {shown(value)}; remove the row")
    return value
