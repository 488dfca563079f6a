"""Agreement of attention with lexical probes, in training and after it: records and the section of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from markupsafe import Markup
from pydantic import Field, model_validator

from probattn.options import ReleasePreset
from probattn.report.lines import Line, line_chart, number_word, ticks
from probattn.report.markup import Figure, Section, exact, formatted, heatmap, shortened
from probattn.report.measures import MODEL_LABELS, MODEL_STYLES
from probattn.report.record import Count, ModelKey, Probability, Record, check_matrix
from probattn.report.svg import Axis, isolated

Matrix = tuple[tuple[Probability, ...], ...]
Bleu = Annotated[float, Field(ge=0, le=100.001)]


class WatchedStep(Record):
    """Measurements at one step of training, over all watched examples (Snell et al. 2021, section 3.1).

    Attributes:
        step: number of updates done.
        agreement: agreement A(attention, probe) of attention with the network's lexical probe
            (:func:`probattn.probes.mean_agreement`).
        with_last: agreement of the last step's attention with that of this step.
        accuracy: share of outputs that the network ranks first.
        bleu: BLEU of translations of the watched sentences by greedy search; None if they were not translated.
    """

    step: Count
    agreement: Probability
    with_last: Probability
    accuracy: Probability
    bleu: Bleu | None = None


class WatchedMaps(Record):
    """Attention weights and lexical probe of one example at one step of training, ``[T][S]`` each."""

    step: Count
    attention: Matrix
    probe: Matrix


class WatchedExample(Record):
    """One example with attention weights and lexical probe at some steps of training.

    Attributes:
        text: the input as text.
        keys: the S words of the input.
        queries: the T words of the output, or only the class.
        maps: attention and probe, one record per step.
    """

    text: str
    keys: tuple[str, ...]
    queries: tuple[str, ...]
    maps: tuple[WatchedMaps, ...]

    @model_validator(mode="after")
    def _fits(self) -> WatchedExample:
        for item in self.maps:
            for name, matrix in (("attention", item.attention), ("probe", item.probe)):
                check_matrix(f"{name} of step {item.step}", matrix, len(self.queries), len(self.keys))
        return self


class Dynamics(Record):
    """Attention and lexical probe during the training of one network.

    Attributes:
        model: network that was trained.
        examples: number of watched examples, whose attention is recorded in training.
        outputs: number of their outputs: output words, or one class each.
        chance: agreement by chance (:func:`probattn.probes.random_agreement`).
        steps: measurements, in order of steps.
        maps: single examples.
    """

    model: ModelKey
    examples: Count
    outputs: Count
    chance: Probability
    steps: Annotated[tuple[WatchedStep, ...], Field(min_length=1)]
    maps: tuple[WatchedExample, ...] = ()


Rating = Literal["attention", "probe", "uniform", "proxy", "saliency", "frozen"]
"""A rating of input words: attention; the lexical probe of the network, of a network trained with uniform attention, or
of the bag-of-words proxy; gradient saliency; or attention of a network whose lexical probe is frozen."""


class Contextualized(Record):
    """An agreement expressed as the performance xi of a second run (Snell et al. 2021, Eq. 11).

    See :func:`probattn.probes.contextualized_agreement`.

    Attributes:
        performance: xi, the performance of the second run at ``step``.
        step: first step at which attention of the two runs agrees by more than the agreement; else the last step.
        reached: whether there is such a step; tables mark the value with a star if not.
    """

    performance: float
    step: Count
    reached: bool


class PairAgreement(Record):
    """Agreement of two ratings of the same input words, mean over all outputs (Snell et al. 2021).

    Attributes:
        first: rating u of A(u, v), whose highest-rated word is searched among the highest-rated words of ``second``.
        second: rating v.
        agreement: A(first, second) (Eq. 10).
        tau: mean of Kendall's rank correlation; None if it is undefined for all outputs, because a rating is constant.
        xi: xi of ``agreement``, with accuracy as the performance; None without a second run.
        xi_bleu: xi of ``agreement``, with BLEU as the performance; None if BLEU was not recorded.
        xi_tau: xi of ``tau`` with accuracy; None without tau.
        xi_tau_bleu: xi of ``tau`` with BLEU; None without tau or BLEU.
    """

    first: Rating
    second: Rating
    agreement: Probability
    tau: Annotated[float, Field(ge=-1, le=1)] | None
    xi: Contextualized | None = None
    xi_bleu: Contextualized | None = None
    xi_tau: Contextualized | None = None
    xi_tau_bleu: Contextualized | None = None


class Agreement(Record):
    """Agreements of the ratings of one network: a row of tables 2 to 6 of Snell et al. 2021.

    Attributes:
        run: folder of the run.
        preset: saliency and proxy as in this library ("default") or in the authors' code ("release").
        outputs: number of outputs over which means are taken.
        chance: agreement by chance (:func:`probattn.probes.random_agreement`).
        accuracy: accuracy of the network on these examples.
        pairs: agreements of pairs of ratings.
        uniform_step: step of the run with uniform attention whose probe is used, the one with the highest agreement
            (section A.7); None without such a run.
        course: agreement of the attention with the probe of the run with uniform attention, by step.
        second_accuracy: final accuracy of the second run; None without one.
        second_bleu: final BLEU of the second run; None without one.
        second_course: agreement of the attention with that of the second run, by step.
        frozen_accuracy: final accuracy of the run with a frozen probe (section A.6); None without one.
        frozen_agreement: final agreement of the attention of the run with a frozen probe with this probe.
        frozen_course: agreement of the attention with that of the run with a frozen probe, by step.
    """

    run: str
    preset: ReleasePreset = "default"
    outputs: Count
    chance: Probability
    accuracy: Probability
    pairs: tuple[PairAgreement, ...]
    uniform_step: Count | None = None
    course: Mapping[int, Probability] = Field(default_factory=dict)
    second_accuracy: Probability | None = None
    second_bleu: float | None = None
    second_course: Mapping[int, Probability] = Field(default_factory=dict)
    frozen_accuracy: Probability | None = None
    frozen_agreement: Probability | None = None
    frozen_course: Mapping[int, Probability] = Field(default_factory=dict)

    def pair(self, first: Rating, second: Rating) -> PairAgreement | None:
        """The agreement of two ratings; None if it was not measured."""
        return next((item for item in self.pairs if (item.first, item.second) == (first, second)), None)

    def value(self, name: str) -> float | None:
        """A number of this record by its name; None if it was not measured.

        Args:
            name: a field (``chance``), a course at a step or at the last one (``course.500``, ``course.last``), or two
                ratings for their agreement, with a field of :class:`PairAgreement` for another number
                (``attention_uniform``, ``attention_uniform.xi``).
        """
        first, _, of = name.partition(".")
        if first.endswith("course"):
            course: Mapping[int, float] = getattr(self, first)
            return course.get(max(course, default=0) if of == "last" else int(of))
        if first in type(self).model_fields:
            number: float | None = getattr(self, first)
            return number
        pair = next((item for item in self.pairs if f"{item.first}_{item.second}" == first), None)
        value = getattr(pair, of or "agreement", None)
        return value.performance if isinstance(value, Contextualized) else value


MARKS = 8
"""Labelled steps, at most, on an axis."""

MOMENTS = (("late",), ("early", "late"), ("early", "middle", "late"))
"""Names of one, two or three steps."""

Moment = tuple[str, list[tuple[str, Markup]]]
"""Maps of one example: when, and title and drawing of attention and probe."""


def dynamics_section(dynamics: Sequence[Dynamics]) -> Section | None:
    """The section on agreement in training, the run's own network last; None where nothing was recorded."""
    if not dynamics:
        return None
    compared = dynamics[-1]
    context = {
        "words": _words(compared),
        "figures_over_steps": _figures(dynamics),
        "models": [item.model for item in dynamics],
        "rows": _rows(dynamics),
        "panels": [_panel(example) for item in dynamics for example in item.maps],
        "compared": compared,
        "chance": exact(compared.chance, f"{compared.chance:.2f}"),
    }
    return Section("dynamics", "Dynamics", "How did attention change in training?", "dynamics.html", context)


def _words(compared: Dynamics) -> str:
    first, last = compared.steps[0], compared.steps[-1]
    top = max(compared.steps, key=lambda item: item.agreement)
    sentence = (
        f"In the {MODEL_LABELS[compared.model]} network attention agrees with the lexical probe on "
        f"{first.agreement:.0%} of the outputs at step {first.step:,} and on {last.agreement:.0%} at step "
        f"{last.step:,}; by chance it would be {compared.chance:.0%}."
    )
    if top.step not in (first.step, last.step) and top.agreement > last.agreement + 0.02:
        sentence += f" It is highest, {top.agreement:.0%}, at step {top.step:,}."
    return sentence


def _figures(dynamics: Sequence[Dynamics]) -> list[Figure]:
    steps = sorted({item.step for entry in dynamics for item in entry.steps})
    positions = {step: float(index) for index, step in enumerate(steps)}
    every = -(-len(steps) // MARKS)
    marks = tuple((positions[step], number_word(step)) for step in steps[::every])
    x = Axis(0, max(len(steps) - 1.0, 1.0), "step", marks)
    y = Axis(0, 1, "share of outputs", ticks(0, 1, 4, percent=True))
    chance = Line("chance", "in", ((0.0, dynamics[-1].chance), (positions[steps[-1]], dynamics[-1].chance)))
    charts = (
        ("agreement", "Attention agrees with the probe", "the network's own, at that step"),
        ("with_last", "Attention agrees with the last step's", "the attention after the last update"),
        ("accuracy", "First choice is right", "on the same examples"),
    )
    drawn = []
    for name, title, note in charts:
        lines = [_line(item, name, positions) for item in dynamics]
        if name != "accuracy":
            lines.append(chance)
        drawn.append(Figure(title, line_chart(lines, x, y, title), note=note))
    scores = [_line(item, "bleu", positions) for item in dynamics if item.steps[-1].bleu is not None]
    if scores:
        top = max(5.0, *(value for line in scores for _, value in line.points))
        chart = line_chart(scores, x, Axis(0, top, "BLEU", ticks(0, top, 4)), "BLEU of the watched sentences")
        drawn.append(Figure("BLEU", chart, note="of the same sentences, greedy search"))
    return drawn


def _line(entry: Dynamics, name: str, positions: dict[int, float]) -> Line:
    values = [(positions[item.step], getattr(item, name)) for item in entry.steps]
    points = tuple((position, float(value)) for position, value in values if value is not None)
    return Line(MODEL_LABELS[entry.model], MODEL_STYLES[entry.model], points, dots=True)


def _rows(dynamics: Sequence[Dynamics]) -> list[tuple[str, list[Markup]]]:
    by_step = [{item.step: item for item in entry.steps} for entry in dynamics]
    names = ("agreement", "with_last", "accuracy")
    rows = []
    for step in sorted({step for item in by_step for step in item}):
        values = [getattr(item.get(step), name, None) for item in by_step for name in names]
        rows.append((f"{step:,}", [formatted(value, ".3f") for value in values]))
    return rows


def _panel(example: WatchedExample) -> tuple[str, list[Moment]]:
    """Title and maps of one example; a single output has one map with a row for each step."""
    maps = example.maps
    if len(example.queries) == 1:
        sampled = [*maps[:-1][:: -(-len(maps) // (2 * MARKS))], maps[-1]]
        rows = [f"{item.step:,}" for item in sampled]
        attention, probe = [item.attention[0] for item in sampled], [item.probe[0] for item in sampled]
        drawn = _pair(rows, example.keys, attention, probe, _tops(sampled), "by step")
        return shortened(f"{isolated(example.queries[0])}: {example.text}"), [("", drawn)]
    shown = [maps[index] for index in sorted({0, len(maps) // 2, len(maps) - 1})]
    shown = list({item.step: item for item in shown}.values())
    top = _tops(shown)
    moments = []
    for name, item in zip(MOMENTS[len(shown) - 1], shown, strict=True):
        step = f"at step {item.step}"
        pair = _pair(example.queries, example.keys, item.attention, item.probe, top, step)
        moments.append((f"{name}, step {item.step:,}", pair))
    return shortened(example.text), moments


def _tops(maps: Sequence[WatchedMaps]) -> tuple[float, float]:
    """The largest attention and the largest probe of several maps, so that their colours can be compared."""
    attention = max(value for item in maps for row in item.attention for value in row)
    probe = max(value for item in maps for row in item.probe for value in row)
    return attention, probe


def _pair(
    rows: Sequence[str],
    keys: Sequence[str],
    attention: Sequence[Sequence[float]],
    probe: Sequence[Sequence[float]],
    top: tuple[float, float],
    when: str,
) -> list[tuple[str, Markup]]:
    """Drawings of attention and probe side by side, with the upper ends of their colours."""
    drawn = (("Attention", "mean", attention, top[0]), ("Probe", "ratio", probe, top[1]))
    return [
        (f"{title}, up to {highest:.2g}", heatmap(rows, keys, values, highest, ramp, f"{title} {when}"))
        for title, ramp, values, highest in drawn
    ]
