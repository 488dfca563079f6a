"""The section about how attention came about: what it says, and records that do not fit."""

import pytest
from pydantic import ValidationError

from probattn.inference.report import Dynamics, WatchedExample, WatchedMaps, WatchedStep
from probattn.inference.report.dynamics_view import dynamics_view


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
    view = dynamics_view([dynamics({0: 0.06, 1000: 0.62, 4000: 0.48})])
    assert view is not None
    assert "on 6% of the outputs at step 0 and on 48% at step 4,000; by chance it would be 7%" in view.words
    assert "It is highest, 62%, at step 1,000." in view.words
    risen = dynamics_view([dynamics({0: 0.06, 1000: 0.47, 4000: 0.48})])
    assert risen is not None
    assert "highest" not in risen.words
    assert dynamics_view([]) is None


@pytest.mark.parametrize(
    ("steps", "names"),
    [((5,), ["late"]), ((0, 5), ["early", "late"]), ((0, 1, 2, 3, 4), ["early", "middle", "late"])],
)
def test_maps_stand_at_early_middle_and_late_steps(steps: tuple[int, ...], names: list[str]) -> None:
    view = dynamics_view([dynamics(dict.fromkeys(steps, 0.5))])
    assert view is not None
    (panel,) = view.panels
    assert [moment.heading.split(",")[0] for moment in panel.moments] == names
    assert all(len(moment.drawings) == 2 for moment in panel.moments)


def test_a_single_output_has_a_row_for_each_step() -> None:
    view = dynamics_view([dynamics(dict.fromkeys(range(40), 0.5), outputs=1)])
    assert view is not None
    (panel,) = view.panels
    assert panel.course
    assert panel.heading == "output 0: a good <film>"
    (moment,) = panel.moments
    for _, drawing in moment.drawings:
        assert 10 < drawing.count("data-index") - 3 <= 17  # rows of steps beside three columns of words
        assert "<film>" not in drawing  # escaped


def test_networks_stand_side_by_side() -> None:
    plain = dynamics({0: 0.1, 10: 0.3})
    own = plain.model_copy(update={"model": "bayesian_mean", "steps": plain.steps[1:]})
    view = dynamics_view([plain, own])
    assert view is not None
    assert [title for title, _ in view.columns] == ["Deterministic", "Bayesian, mean of draws"]
    assert [row.step for row in view.rows] == ["0", "10"]
    assert len(view.rows[0].values) == 6


def test_maps_of_another_shape_are_refused() -> None:
    with pytest.raises(ValidationError, match="attention of step 3: expected 2 rows of 3, got 2 of"):
        WatchedExample(text="a b c", keys=("a", "b", "c"), queries=("x", "y"), maps=(maps(3, 2, 4),))
