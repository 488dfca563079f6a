"""The section about how attention came about: what it says, and records that do not fit."""

from typing import Any

import pytest
from pydantic import ValidationError

from probattn.report import Dynamics, WatchedExample, WatchedMaps, WatchedStep
from probattn.report.dynamics import dynamics_section
from probattn.report.lines import Line
from probattn.report.svg import isolated


def maps(step: int, outputs: int, words: int) -> WatchedMaps:
    row = tuple((1 + word) / (words * (words + 1) / 2) for word in range(words))
    return WatchedMaps(step=step, attention=(row,) * outputs, probe=(row,) * outputs)


def example(outputs: int, steps: tuple[int, ...]) -> WatchedExample:
    return WatchedExample(
        text="a good <film>",
        keys=("a", "good", "<film>"),
        queries=tuple(f"output {index}" for index in range(outputs)),
        maps=tuple(maps(step, outputs, 3) for step in steps),
    )


def dynamics(values: dict[int, float], outputs: int = 2) -> Dynamics:
    return Dynamics(
        model="deterministic",
        examples=50,
        outputs=50 * outputs,
        chance=0.07,
        steps=tuple(
            WatchedStep(step=step, agreement=value, with_last=value, accuracy=value / 2)
            for step, value in values.items()
        ),
        maps=(example(outputs, tuple(values)),),
    )


def test_says_where_agreement_starts_ends_and_peaks() -> None:
    view = dynamics_section([dynamics({0: 0.06, 1000: 0.62, 4000: 0.48})]).context
    expected = view["words"]
    assert "on 6% of the outputs at step 0 and on 48% at step 4,000; by chance it would be 7%" in expected
    assert "It is highest, 62%, at step 1,000." in view["words"]
    for before in (0.47, 0.49):  # not higher, or hardly
        risen = dynamics_section([dynamics({0: 0.06, 1000: before, 4000: 0.48})]).context
        assert "highest" not in risen["words"]
    assert dynamics_section([]) is None


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        ((5,), ["late, step 5"]),
        ((0, 5), ["early, step 0", "late, step 5"]),
        ((0, 1, 2, 3, 4), ["early, step 0", "middle, step 2", "late, step 4"]),
    ],
)
def test_maps_stand_at_early_middle_and_late_steps(steps: tuple[int, ...], names: list[str]) -> None:
    view = dynamics_section([dynamics(dict.fromkeys(steps, 0.5))]).context
    ((_, moments),) = view["panels"]
    assert [when for when, _ in moments] == names
    assert all(len(drawings) == 2 for _, drawings in moments)


def test_a_single_output_has_a_row_for_each_step() -> None:
    view = dynamics_section([dynamics(dict.fromkeys(range(40), 0.5), outputs=1)]).context
    ((heading, moments),) = view["panels"]
    assert heading == f"{isolated('output 0')}: a good <film>"
    ((when, drawings),) = moments
    assert not when
    for _, drawing in drawings:
        assert 10 < drawing.count("data-index") - 3 <= 17  # rows of steps beside three columns of words
        assert "<film>" not in drawing  # escaped


def test_networks_stand_side_by_side() -> None:
    plain = dynamics({0: 0.1, 10: 0.3})
    own = plain.model_copy(update={"model": "bayesian_mean", "steps": plain.steps[1:]})
    view = dynamics_section([plain, own]).context
    assert view["models"] == ["deterministic", "bayesian_mean"]
    assert [step for step, _ in view["rows"]] == ["0", "10"]
    assert len(view["rows"][0][1]) == 6


def test_lines_and_table_are_what_was_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, list[Line]] = {}

    def draw(lines: list[Line], x: object, y: object, title: str) -> str:
        drawn[title] = lines
        return title

    monkeypatch.setattr("probattn.report.dynamics.line_chart", draw)
    moments = (
        WatchedStep(step=0, agreement=0.1, with_last=0.2, accuracy=0.3, bleu=1.5),
        WatchedStep(step=20, agreement=0.4, with_last=1.0, accuracy=0.6, bleu=7.5),
    )
    plain = dynamics({0: 0.5, 10: 0.7})
    own = plain.model_copy(update={"model": "bayesian_mean", "steps": moments, "chance": 0.25, "examples": 9})
    view = dynamics_section([plain, own]).context
    assert (view["compared"].examples, view["chance"].striptags()) == (9, "0.25")
    assert "Bayesian" in view["words"] and "by chance it would be 25%" in view["words"]
    for title, first, last in (
        ("Attention agrees with the probe", 0.1, 0.4),
        ("Attention agrees with the last step's", 0.2, 1.0),
        ("First choice is right", 0.3, 0.6),
        ("BLEU of the watched sentences", 1.5, 7.5),
    ):
        (line,) = [line for line in drawn[title] if line.css == "bay"]
        assert line.points == ((0.0, first), (2.0, last)), title  # between them a step of the other network
    for title in ("Attention agrees with the probe", "Attention agrees with the last step's"):
        assert drawn[title][-1].points == ((0.0, 0.25), (2.0, 0.25))
    assert [[value.striptags() for value in values] for _, values in view["rows"]] == [
        ["0.500", "0.500", "0.250", "0.100", "0.200", "0.300"],
        ["0.700", "0.700", "0.350", *["\N{EN DASH}"] * 3],
        [*["\N{EN DASH}"] * 3, "0.400", "1.000", "0.600"],
    ]


@pytest.mark.parametrize("outputs", [1, 2])
def test_maps_are_those_of_attention_and_of_the_probe(monkeypatch: pytest.MonkeyPatch, outputs: int) -> None:
    drawn: list[tuple[list[tuple[float, ...]], float]] = []

    def draw(rows: object, keys: object, values: Any, highest: float, ramp: str, title: str) -> str:
        drawn.append((list(values), highest))
        return title

    monkeypatch.setattr("probattn.report.dynamics.heatmap", draw)
    found = [
        WatchedMaps(
            step=step,
            attention=((0.1 + step / 100, 0.2),) * outputs,
            probe=((0.5, 0.6 + step / 100),) * outputs,
        )
        for step in range(20)
    ]
    example = WatchedExample(text="a b", keys=("a", "b"), queries=("x", "y")[:outputs], maps=tuple(found))
    assert dynamics_section([dynamics({0: 0.5}).model_copy(update={"maps": (example,)})]) is not None
    if outputs == 1:
        kept = [*found[:-1:2], found[-1]]
        expected = [([item.attention[0] for item in kept], 0.29), ([item.probe[0] for item in kept], 0.79)]
    else:
        expected = []
        for item in (found[0], found[10], found[19]):
            expected += [(list(item.attention), 0.29), (list(item.probe), 0.79)]
    assert [values for values, _ in drawn] == [values for values, _ in expected]
    assert [highest for _, highest in drawn] == pytest.approx([highest for _, highest in expected])


def test_maps_of_another_shape_are_refused() -> None:
    with pytest.raises(ValidationError, match="attention of step 3: expected 2 rows of 3, got 2 of"):
        WatchedExample(text="a b c", keys=("a", "b", "c"), queries=("x", "y"), maps=(maps(3, 2, 4),))
