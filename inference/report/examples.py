"""Records of single inputs: predictions and attention maps."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from probattn.inference.report.record import Count, Probability, Record


class Example(Record):
    """One input and what was predicted for it.

    Attributes:
        data: key of its data set; None for an input of one's own.
        index: its row there.
        text: the input.
        pair: the second text, where the input is a pair.
        label: name of the true class, if known.
        predicted: name of the class with the highest mean probability.
        probability: that mean probability.
        spread: standard deviation of that class's probability over the draws; 0 without draws.
        entropy: predictive entropy, nats.
        draws: the class's probability in each draw (the first hundred).
        baseline_predicted: the deterministic network's class.
        baseline_probability: and its probability.
        baseline_same: the probability it gives to the class ``predicted``.
    """

    data: str | None = None
    index: Count | None = None
    text: str
    pair: str | None = None
    label: str | None = None
    predicted: str
    probability: Probability
    spread: Annotated[float, Field(ge=0)]
    entropy: float
    draws: tuple[Probability, ...] = ()
    baseline_predicted: str | None = None
    baseline_probability: Probability | None = None
    baseline_same: Probability | None = None


class AttentionMap(Record):
    """Attention weights of one head, or of the mean over heads (``head`` None), at one site.

    Attributes:
        site: the site's name.
        head: index of the head; None for the weights averaged over heads.
        mean: posterior mean of W, rows are queries, columns keys, rounded to 4 decimals; of deterministic attention W
            itself.
        ratio: standard deviation over mean, rounded to 3 decimals; 0 where the mean is 0. Empty for deterministic
            attention.
        baseline: the weights of the deterministic baseline; empty where they are not shown.
    """

    site: str
    head: Count | None = None
    mean: tuple[tuple[Probability, ...], ...]
    ratio: tuple[tuple[Annotated[float, Field(ge=0)], ...], ...] = ()
    baseline: tuple[tuple[Probability, ...], ...] = ()


class AttentionExample(Record):
    """An input with its attention maps.

    Attributes:
        example: the input and its prediction.
        reason: why it is shown.
        rows: whether the rows of a map are the tokens or, where each head has a single query, the heads.
        queries: names of the rows.
        keys: tokens of the columns.
        second: where the second text begins among the tokens, in rows and columns; None for a single text.
        maps: the maps; the first is shown first.
    """

    example: Example
    reason: Literal["chosen", "uncertain"]
    rows: Literal["tokens", "heads"] = "tokens"
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    second: Count | None = None
    maps: Annotated[tuple[AttentionMap, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _shapes(self) -> AttentionExample:
        expected = (len(self.queries), len(self.keys))
        for item in self.maps:
            for name, rows in (("mean", item.mean), ("ratio", item.ratio), ("baseline", item.baseline)):
                if name != "mean" and not rows:
                    continue
                found = (len(rows), {len(row) for row in rows})
                if found != (expected[0], {expected[1]}):
                    raise ValueError(
                        f"map {item.site!r}, head {item.head}: expected {name} of shape {expected} "
                        f"(one row per query token), got {found[0]} rows of lengths {sorted(found[1])}"
                    )
        return self
