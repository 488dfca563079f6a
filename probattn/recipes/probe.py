"""What a recipe records of how attention is learned."""

from __future__ import annotations

from pydantic import Field, field_validator

from probattn.recipes.section import Section

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
