"""The table of intervals, from runs whose means are known."""

import relatedness_study


def run(seed: int) -> dict[str, object]:
    figures = dict.fromkeys(relatedness_study.FIGURES, 0.8)
    return {
        "seed": seed,
        "sizes": {"training": 1000, "validation": 500, "test": 2000},
        "deterministic": figures | {"rmse": 0.6 + seed / 10},
        "bayesian_mean": figures | {"rmse": 0.5 + seed / 10},
    }


def test_rows(load):
    runs = [run(seed) for seed in range(3)]
    study = relatedness_study.STUDY.__new__(relatedness_study.STUDY)
    text = load("measured_tables.relatedness").tables({"runs": runs, "summary": study.summarise(runs)})
    assert text.startswith("3 seeds; 1,000 pairs to train on, 500 to calibrate on, 2,000 to measure on.")
    assert "| RMSE | 0.700 [0.452, 0.948] | 0.600 [0.352, 0.848] | -0.100 [-0.100, -0.100] |" in text
    assert "| the same, calibrated | 80.0 [80.0, 80.0] |" in text
