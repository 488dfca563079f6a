"""Training curves from the records of a run."""

import pytest

from probattn.report.curves import training_curves


def records(count: int) -> list[dict[str, object]]:
    return [
        {"kind": "train", "step": 2 * n, "loss": float(n), "factors": 0.0, "note": "x"}
        for n in range(1, count + 1)
    ]


def test_kinds_and_quantities_part() -> None:
    mixed = [*records(3), {"kind": "validation", "step": 6, "loss": 0.5, "accuracy": 0.75}]
    curves = training_curves(mixed, "bayesian_mean")
    assert [(curve.name, curve.kind, curve.steps, curve.values) for curve in curves] == [
        ("loss", "train", (2, 4, 6), (1.0, 2.0, 3.0)),
        ("loss", "validation", (6,), (0.5,)),
        ("accuracy", "validation", (6,), (0.75,)),
    ]


def test_a_null_leaves_a_gap_and_a_constant_0_is_no_curve() -> None:
    gap = [*records(2), {"kind": "train", "step": 6, "loss": None}]
    (curve,) = training_curves(gap, "deterministic", quantities=("loss", "factors", "note"))
    assert curve.steps == (2, 4)


@pytest.mark.parametrize(("divergence", "names"), [(0.0, ["loss"]), (2.0, ["loss", "kl_nats", "kl_weight"])])
def test_the_weight_of_the_kl_is_a_curve_of_training_where_there_is_a_kl(divergence, names) -> None:
    found = [{**record, "kl_nats": divergence, "kl_weight": 0.5} for record in records(2)]
    found.append({**found[-1], "kind": "validation"})
    curves = training_curves(found, "deterministic")
    assert [curve.name for curve in curves if curve.kind == "train"] == names
    assert [curve.name for curve in curves if curve.kind == "validation"] == names[:2]


@pytest.mark.parametrize(("count", "window", "points"), [(10, 1, 10), (11, 2, 6), (35, 4, 9)])
def test_long_curves_are_averaged_in_windows(count: int, window: int, points: int) -> None:
    (curve,) = training_curves(records(count), "deterministic", points=10)
    assert (curve.window, len(curve.values)) == (window, points)
    assert curve.values[0] == pytest.approx((1 + window) / 2)
    assert (curve.steps[0], curve.steps[-1]) == (2 * window, 2 * count)


def test_no_records_no_curves() -> None:
    assert training_curves([], "deterministic") == []
