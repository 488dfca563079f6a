"""What tasks share that read texts, or pairs of texts: the section of their recipes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from probattn.data import BUILT_IN, Source
from probattn.data.identity import Split
from probattn.data.rows import text_of
from probattn.options import Filled
from probattn.tasks.fine_tuning.recipe import Examples, ExamplesSection, Rows
from probattn.tasks.sections.base import key

TEXTS = ("text", "pair")
"""Keys of the texts of an example."""


class TextsSection(ExamplesSection):
    """Base class of recipe sections that describe texts, or pairs of texts, with one label each.

    A subclass has the field ``label``, and reads it in :meth:`target`.
    """

    unlabelled_named: ClassVar[Collection[str]] = BUILT_IN
    input_keys: ClassVar[tuple[str, ...]] = ("text", "text_pair")
    answer_keys: ClassVar[tuple[str, ...]] = ("label",)
    paired_names: ClassVar[tuple[str, ...]] = ()
    """Names of built-in data sets of pairs."""
    label: str

    text: Filled = key("text", "Column of the texts.")
    text_pair: Filled | None = key(None, "Column of the second texts; null for single texts.")
    max_length: int = key(128, "Maximum number of tokens of a text; the rest is cut.", ge=3)

    @property
    def paired(self) -> bool:
        """Whether the examples are pairs of texts."""
        return self.text_pair is not None or self.train in self.paired_names

    @property
    def columns_read(self) -> tuple[str, str | None]:
        """Columns of the texts and, for pairs, of the second texts."""
        return self.text, (self.text_pair or "text_pair") if self.paired else None

    def example(self, fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Text, second text and label."""
        names = dict(zip(TEXTS, self.columns_read, strict=True))
        example = {
            role: text_of(fields.get(name), name, where) for role, name in names.items() if name is not None
        }
        return example | {"target": self.target(fields.get(self.label), where)}

    def rows(self, source: str, split: Split, columns: Collection[str]) -> Rows:
        """Rows of a source; built-in sets of texts provide texts without labels."""
        if source in self.named or source not in self.unlabelled_named or self.label in columns:
            yield from super().rows(source, split, columns)
            return
        data = Source(source).load("out_of_domain")
        pairs = data.pairs or (None,) * len(data)
        for number, texts in enumerate(zip(data.texts, pairs, strict=True), start=1):
            names = (name for name in self.columns_read if name is not None)
            yield f"{data.source} text {number}", dict(zip(names, texts, strict=False))

    @abstractmethod
    def target(self, value: Any, where: str) -> Any:
        """A label from its field; ``DataError`` names the position of an invalid one."""

    def tokens(self, codec: Any, examples: Examples) -> list[dict[str, Any]]:
        """Tokens of each text or pair, as the tokenizer ``codec`` returns them."""
        pairs = [example["pair"] for example in examples] if "pair" in examples[0] else None
        texts = [example["text"] for example in examples]
        tokens = codec(texts, pairs, truncation=True, max_length=self.max_length)
        return [{name: values[row] for name, values in tokens.items()} for row in range(len(texts))]


def texts_of(example: Mapping[str, Any]) -> dict[str, Any]:
    """Text and second text of an example, with which an answer begins."""
    return {name: example[name] for name in TEXTS if name in example}
