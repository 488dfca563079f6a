"""Records of how attention came about in a training."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from probattn.inference.report.record import Count, ModelKey, Probability, Record

Matrix = tuple[tuple[Probability, ...], ...]
Bleu = Annotated[float, Field(ge=0, le=100.001)]


class WatchedStep(Record):
    """One moment of a training, over all watched examples (Snell et al. 2021, section 3.1).

    Attributes:
        step: updates done.
        agreement: of attention with the network's own lexical probe, A(attention, probe).
        with_last: of the last step's attention with this one's.
        accuracy: share of outputs that are the network's first choice.
        bleu: of the watched sentences' translations by greedy search; None where they were not translated.
    """

    step: Count
    agreement: Probability
    with_last: Probability
    accuracy: Probability
    bleu: Bleu | None = None


class WatchedMaps(Record):
    """Attention and lexical probe of one example at one moment, ``[T][S]`` each."""

    step: Count
    attention: Matrix
    probe: Matrix


class WatchedExample(Record):
    """One example and its maps.

    Attributes:
        text: the input, for people.
        keys: the S words of the input.
        queries: the T words of the output, or the class alone.
        maps: by step.
    """

    text: str
    keys: tuple[str, ...]
    queries: tuple[str, ...]
    maps: tuple[WatchedMaps, ...]

    @model_validator(mode="after")
    def _fits(self) -> WatchedExample:
        for item in self.maps:
            for name, matrix in (("attention", item.attention), ("probe", item.probe)):
                shape = (len(matrix), {len(row) for row in matrix})
                if shape != (len(self.queries), {len(self.keys)}):
                    raise ValueError(
                        f"{name} of step {item.step}: expected {len(self.queries)} rows of {len(self.keys)}, got "
                        f"{shape[0]} of {sorted(shape[1])}"
                    )
        return self


class Dynamics(Record):
    """How attention and probe went in the training of one network.

    Attributes:
        model: whose training.
        examples: number of examples that were watched.
        outputs: number of their outputs: output words, or one class each.
        chance: agreement of ratings that have nothing to do with each other.
        steps: moments, in order.
        maps: single examples.
    """

    model: ModelKey
    examples: Count
    outputs: Count
    chance: Probability
    steps: Annotated[tuple[WatchedStep, ...], Field(min_length=1)]
    maps: tuple[WatchedExample, ...] = ()
