"""Attention maps of single inputs: records, maps from posterior draws and the section of the page."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor

from probattn.report.markup import Section, heatmap, shortened, shown, site_labels
from probattn.report.measures import MODEL_LABELS, MODEL_TITLES
from probattn.report.record import Count, ModelKey, Probability, Record, check_matrix
from probattn.report.svg import isolated
from probattn.terminal import printable

Reason = Literal["chosen", "uncertain"]
"""Why an input is shown: the user selected it (``"chosen"``), or it is among the most uncertain ones."""


class Example(Record):
    """One input and its prediction.

    Attributes:
        data: key of its data set; None for an input that the user passed.
        index: its row in the data set, from 0.
        text: the input, or the first text of a pair.
        pair: the second text of a pair.
        label: name of the true class, if known.
        predicted: name of the predicted class, that with the highest mean probability.
        probability: mean probability of the predicted class.
        spread: standard deviation of the probability of the predicted class over the draws; 0 without draws.
        entropy: predictive entropy, nats.
        draws: probability of the predicted class in each of the first 100 draws.
        baseline_predicted: name of the class that the deterministic network predicts.
        baseline_probability: probability of the class ``baseline_predicted`` under the deterministic network.
        baseline_same: probability of the class ``predicted`` under the deterministic network.
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
    """Matrix of attention weights W (rows queries, columns keys) of one head, or averaged over heads, at one site.

    Attributes:
        site: name of the attention call.
        head: index of the attention head; None for the weights averaged over heads.
        mean: posterior mean of W, rounded to 4 decimals; for deterministic attention W.
        ratio: posterior standard deviation of W divided by its mean, rounded to 3 decimals; 0 if the mean is 0. Empty
            for deterministic attention.
        baseline: W of the deterministic baseline; empty if it is not shown.
    """

    site: str
    head: Count | None = None
    mean: tuple[tuple[Probability, ...], ...]
    ratio: tuple[tuple[Annotated[float, Field(ge=0)], ...], ...] = ()
    baseline: tuple[tuple[Probability, ...], ...] = ()


class AttentionExample(Record):
    """An input with maps (matrices) of its attention weights.

    Attributes:
        example: the input and its prediction.
        reason: why the input is shown.
        rows: what the rows of a map are: ``"tokens"``, or ``"heads"`` if each head has a single query.
        queries: labels of the rows.
        keys: tokens of the columns.
        second: index of the first token of the second text, in rows and columns; None for a single text.
        maps: the maps; the page shows the first one initially.
    """

    example: Example
    reason: Reason
    rows: Literal["tokens", "heads"] = "tokens"
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    second: Count | None = None
    maps: Annotated[tuple[AttentionMap, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _shapes(self) -> AttentionExample:
        for item in self.maps:
            for name, rows in (("mean", item.mean), ("ratio", item.ratio), ("baseline", item.baseline)):
                if name == "mean" or rows:
                    what = f"map {item.site!r}, head {item.head}, {name} (one row per query token)"
                    check_matrix(what, rows, len(self.queries), len(self.keys))
        return self


Rows = tuple[tuple[float, ...], ...]


def attention_example(
    example: Example,
    queries: Sequence[str],
    weights: Mapping[str, Tensor],
    *,
    keys: Sequence[str] | None = None,
    heads: Sequence[int] = (),
    second: int | None = None,
    baseline: Mapping[str, Tensor] | None = None,
    latent: bool = True,
    rows: Literal["tokens", "heads"] = "tokens",
    reason: Reason = "chosen",
) -> AttentionExample:
    """Maps of an input's attention weights, by site and head: posterior mean, and standard deviation over mean.

    The first map of every site is that of the weights averaged over heads. Its standard deviation over draws is that of
    the average, which is smaller than that of a single head if heads vary independently.

    Args:
        example: the input and its prediction.
        queries: the T tokens of the rows, without padding.
        weights: draws of the normalised weights by site, ``[P, H, T, S]``; the first site is shown first.
        keys: the S tokens of the columns; those of the rows by default.
        heads: indices of heads that also get a map each.
        second: index of the first token of the second text of a pair.
        baseline: weights of the deterministic baseline by site, ``[H, T, S]``, to show beside.
        latent: whether the weights vary; False for deterministic attention, whose maps have no standard deviation.
        rows: what ``queries`` names. With ``"heads"`` each head has a single query, and the heads are the rows of one
            map: ``weights`` are ``[P, 1, H, S]``.
        reason: why the input is shown.

    Returns:
        The record; the standard deviation has divisor P - 1 and is 0 for one draw.

    Raises:
        ValueError: there is no site, a shape does not fit the tokens, or a head is out of range.

    Example:
        >>> example = Example(text="a b", predicted="yes", probability=0.7, spread=0.1, entropy=0.6)
        >>> draws = torch.tensor([[[[0.5, 0.5], [0.2, 0.8]]], [[[0.7, 0.3], [0.4, 0.6]]]])
        >>> attention_example(example, ["a", "b"], {"layer": draws}).maps[0].mean
        ((0.6, 0.4), (0.3, 0.7))
    """
    columns = queries if keys is None else keys
    if not weights:
        raise ValueError("attention_example: expected the weights of at least one site, got none")
    maps = []
    for site, draws in weights.items():
        if draws.dim() != 4 or tuple(draws.shape[2:]) != (len(queries), len(columns)):
            raise ValueError(
                f"attention_example, site {site!r}: expected weights [P, H, {len(queries)}, {len(columns)}] for "
                f"{len(queries)} query and {len(columns)} key tokens, got {list(draws.shape)}"
            )
        wrong = [head for head in heads if not 0 <= head < draws.shape[1]]
        if wrong:
            raise ValueError(
                f"attention_example, site {site!r}: expected heads in 0..{draws.shape[1] - 1}, got {wrong[0]}"
            )
        reference = None if baseline is None else _checked(baseline, site, draws)
        shown: list[tuple[int | None, Tensor, Tensor | None]] = [
            (None, draws.mean(dim=1), None if reference is None else reference.mean(dim=0))
        ]
        shown += [(head, draws[:, head], None if reference is None else reference[head]) for head in heads]
        maps += [_map(site, head, values, other, latent) for head, values, other in shown]
    tokens = {"queries": tuple(queries), "keys": tuple(columns)}
    return AttentionExample(
        example=example, reason=reason, rows=rows, second=second, maps=tuple(maps), **tokens
    )


def _checked(baseline: Mapping[str, Tensor], site: str, draws: Tensor) -> Tensor:
    probabilities = baseline.get(site)
    if probabilities is None or probabilities.shape != draws.shape[1:]:
        got = "none" if probabilities is None else list(probabilities.shape)
        raise ValueError(
            f"attention_example, site {site!r}: expected weights {list(draws.shape[1:])} of the baseline, got {got}"
        )
    return probabilities


def _map(site: str, head: int | None, draws: Tensor, baseline: Tensor | None, latent: bool) -> AttentionMap:
    draws = draws.cpu().double()
    mean = draws.mean(dim=0).clamp(0, 1)  # [T, S]
    std = draws.std(dim=0) if len(draws) > 1 else torch.zeros_like(mean)
    ratio = torch.where(mean > 0, std / mean.clamp_min(torch.finfo(mean.dtype).tiny), 0.0)
    return AttentionMap(
        site=site,
        head=head,
        mean=rounded_rows(mean, 4),
        ratio=rounded_rows(ratio, 3) if latent else (),
        baseline=() if baseline is None else rounded_rows(baseline.cpu().double().clamp(0, 1), 4),
    )


def rounded_rows(values: Tensor, decimals: int) -> Rows:
    """A matrix as a record holds it."""
    return tuple(tuple(round(value, decimals) for value in row) for row in values.tolist())


def own_tokens(weights: Mapping[str, Tensor], row: int, valid: Tensor) -> dict[str, Tensor]:
    """Attention weights between the tokens of one input of a padded batch.

    Args:
        weights: draws by site, ``[P, B, H, T, T]``, or ``[P, B, H, 1, T]`` if each head has a single query.
        row: index of the input in the batch.
        valid: bool ``[B, T]``, False at padding.

    Returns:
        Draws by site, ``[P, H, t, t]``, or ``[P, H, 1, t]``, with t the number of valid tokens.
    """
    tokens = valid[row].bool().nonzero().flatten()
    by_site = {site: draws[:, row][..., tokens] for site, draws in weights.items()}
    return {site: draws if draws.shape[2] == 1 else draws[:, :, tokens] for site, draws in by_site.items()}


REASONS = {"chosen": "chosen", "uncertain": "most uncertain"}
CLIPPED = 0.99
"""Share of the cells that the colour scale resolves; larger ones get its last colour."""

BETWEEN = "\N{MIDDLE DOT}"
"""Stands between the two texts of a pair in a title."""


class _Kind(NamedTuple):
    """A quantity that maps show: its field of the record, words for it, and how its numbers are packed and coloured."""

    name: str
    heading: str
    title: str
    unit: str
    scale: int
    digits: int
    ramp: str


def attention_section(
    examples: Sequence[AttentionExample], site_names: Sequence[str], model: ModelKey
) -> Section | None:
    """The section on attention maps; None without examples."""
    if not examples:
        return None
    sites = [item.site for example in examples for item in example.maps]
    labels = site_labels([*site_names, *sites])
    latent = model == "bayesian_mean"
    heading = f"Attention weights{' and their uncertainty' if latent else ''}"
    context = {
        "examples": [_shown(item, labels, model) for item in examples],
        "latent": latent,
        "beside": any(item.baseline for example in examples for item in example.maps),
        "own": model,
    }
    return Section("attention", "Attention", heading, "attention.html", context)


def _shown(item: AttentionExample, labels: Mapping[str, str], model: ModelKey) -> dict[str, Any]:
    """One example for the template: its first map drawn, and the numbers of all maps for the script."""
    first = item.maps[0]
    received = [sum(column) / len(first.mean) for column in zip(*first.mean, strict=True)]
    kinds = _kinds(first, model)
    entries = [_entry(item, one, kinds, labels) for one in item.maps]
    maps = []
    for kind in kinds:
        top, title, words = (entries[0][f"{kind.name}_{field}"] for field in ("top", "title", "words"))
        values = getattr(first, kind.name)
        drawn = heatmap(item.queries, item.keys, values, top, kind.ramp, title, item.second)
        maps.append((kind.name, kind.heading, drawn, words))
    return {
        "reason": REASONS[item.reason],
        "title": title_of(item.example),
        "answer": answer_words(item.example),
        "strip": strip(item.keys, received, item.keys, item.second),
        "choices": _choices(item, labels),
        "showing": entries[0]["showing"],
        "maps": maps,
        "strongest": entries[0]["strongest"],
        "payload": {
            "queries": list(map(printable, item.queries)),
            "keys": list(map(printable, item.keys)),
            "kinds": [
                {"name": kind.name, "said": kind.unit, "scale": kind.scale, "digits": kind.digits}
                for kind in kinds
            ],
            "maps": entries,
        },
    }


def title_of(example: Example) -> str:
    """A text, or both texts of a pair, as a title."""
    return shortened(example.text if example.pair is None else f"{example.text} {BETWEEN} {example.pair}")


def answer_words(example: Example) -> str:
    """What was predicted, how sure, and the truth if it is known."""
    words = f"{isolated(example.predicted)}, {example.probability:.0%}"
    if example.draws or example.spread:
        words += f" ± {100 * example.spread:.0f} points"
    if example.label is None:
        return words
    truth = "right" if example.label == example.predicted else f"in truth {isolated(example.label)}"
    return f"{words}; {truth}"


def strip(
    tokens: Sequence[str], shares: Sequence[float], hints: Sequence[str], second: int | None
) -> list[tuple[str, str, str, bool]]:
    """Tokens of an input: each as shown, its share of the largest, its hint, and whether the second text begins."""
    largest = max(shares, default=0.0) or 1.0
    return [
        (shown(token, room=40), f"{share / largest:.3f}", hint, index == second)
        for index, (token, share, hint) in enumerate(zip(tokens, shares, hints, strict=True))
    ]


def _choices(
    item: AttentionExample, labels: Mapping[str, str]
) -> list[tuple[str, str, list[tuple[str, str, str]]]]:
    """Choices of the page: field, legend, and a value, label and title for each option."""
    sites = [(name, labels[name], name) for name in dict.fromkeys(one.site for one in item.maps)]
    heads = [
        (_head_value(head), _head_value(head), head_words(head))
        for head in dict.fromkeys(one.head for one in item.maps)
    ]
    offered = [("site", "Attention call", sites), ("head", "Head", heads)]
    return [choice for choice in offered if len(choice[2]) > 1]


def head_words(head: int | None) -> str:
    """Name of a head, or of the average over heads."""
    return "average of the heads" if head is None else f"head {head}"


def _head_value(head: int | None) -> str:
    return "average" if head is None else str(head)


def _kinds(one: AttentionMap, model: ModelKey) -> list[_Kind]:
    """Quantities of a map that are there, from left to right."""
    name, title, label = "Mean weight", "Posterior mean of the attention weights", "mean"
    if not one.ratio:
        name, label = MODEL_TITLES[model], MODEL_LABELS[model]
        title = f"{name} attention weights"
    spread = "Standard deviation over mean of the attention weights"
    plain = "Deterministic attention weights"
    kinds = (
        _Kind("baseline", "Deterministic", plain, "deterministic", 10_000, 4, "mean"),
        _Kind("mean", name, title, label, 10_000, 4, "mean"),
        _Kind("ratio", "Std / mean", spread, "std/mean", 1_000, 3, "ratio"),
    )
    return [kind for kind in kinds if getattr(one, kind.name)]


def _entry(
    item: AttentionExample, one: AttentionMap, kinds: Sequence[_Kind], labels: Mapping[str, str]
) -> dict[str, Any]:
    label = f"{labels[one.site]}, {'a row a head' if item.rows == 'heads' else head_words(one.head)}"
    entry: dict[str, Any] = {
        "site": printable(one.site),
        "head": _head_value(one.head),
        "showing": f"Shown: {label}.",
        "strongest": _strongest(item, one),
    }
    weights = _top([*one.mean, *one.baseline])  # one scale for what is to be compared
    for kind in kinds:
        top, clipped = _top(one.ratio) if kind.name == "ratio" else weights
        entry[f"{kind.name}16"] = packed(getattr(one, kind.name), kind.scale)
        entry[f"{kind.name}_title"] = f"{kind.title}, {label}"
        entry[f"{kind.name}_top"] = top
        entry[f"{kind.name}_words"] = f"{top:.2f}{'+' if clipped else ''}"
    return entry


def _top(values: Sequence[Sequence[float]]) -> tuple[float, bool]:
    """Upper end of the colour scale, and whether any value lies above it."""
    ordered = sorted(value for row in values for value in row)
    if not ordered:
        return 0.0, False
    top = ordered[int(CLIPPED * (len(ordered) - 1))] or ordered[-1]
    return top, ordered[-1] > top


def _strongest(item: AttentionExample, one: AttentionMap) -> str:
    cells = [(value, q, k) for q, row in enumerate(one.mean) for k, value in enumerate(row)]
    cells.sort(key=lambda cell: (-cell[0], cell[1], cell[2]))
    words = []
    for value, q, k in cells[:3]:
        query, key = quoted(item.queries[q]), quoted(item.keys[k])
        suffix = f" (deterministic {one.baseline[q][k]:.2f})" if one.baseline else ""
        if one.ratio:
            suffix = f" (std/mean {one.ratio[q][k]:.2f})"
        words.append(f"{query} to {key} {value:.2f}{suffix}")
    return f"Largest weights: {', '.join(words)}."


def quoted(token: str) -> str:
    """A token between quotation marks."""
    return f"\N{LEFT DOUBLE QUOTATION MARK}{isolated(shown(token, 24))}\N{RIGHT DOUBLE QUOTATION MARK}"


def packed(rows: Sequence[Sequence[float]], scale: int) -> str:
    """Numbers as base64 of little-endian 16-bit integers ``value * scale``; the records round to that grid."""
    counts = [min(65_535, round(value * scale)) for row in rows for value in row]
    return base64.b64encode(struct.pack(f"<{len(counts)}H", *counts)).decode()
