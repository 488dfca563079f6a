"""The tables of the study of promised errors, from figures that are known."""

PROMISE = {
    "held": 0.97,
    "interval": [0.95, 0.98],
    "error": 0.08,
    "answered": 0.75,
    "certain": 0.8,
    "oracle": 0.9,
    "elsewhere": {"mnli": {"answered": 0.5, "error": None}},
}


def told(share):
    return {"30": {"share": share, "interval": [share / 2, min(1.0, 2 * share)]}}


def test_other_data_stand_below_those_of_the_task(load):
    run = {"task": "snli", "predictions": 4000, "error": 0.24, "promises": {"0.1": PROMISE}}
    content = {
        "setting": {"splits": 1000, "calibrate": 2000, "confidence": 0.95, "files": 300},
        "runs": [run],
    }
    tables = load("measured_tables.triage").tables
    first = "| SNLI (4,000, 24.0 wrong) | 10 | 97.0 [95.0, 98.0] | 8.0 | 75.0 | 80.0 | 90.0 |"
    assert tables(content).endswith(first)
    run["noticed"] = {"own": told(0.0), "mnli": told(0.9)}
    shown = tables(content)
    assert first in shown
    assert "| SNLI | inputs of the same kind | 75.0 | 8.0 | 0 [0, 0] |" in shown
    assert shown.endswith("|  | MNLI | 50.0 |  | 90 [45, 100] |")


def test_limits_of_distance_are_means_over_networks(load):
    def known(mean):
        return {"mean": mean, "low": mean - 0.01, "high": mean + 0.01, "seeds": 3}

    promise = {
        name: {"held": 1.0, "answered": known(own), "error": known(0.04), "elsewhere": {"mnli": known(other)}}
        for name, own, other in (("none", 0.9, 0.5), ("0.01", 0.85, 0.3), ("0.05", 0.8, 0.1))
    }
    files = {
        key: {"own": told(0.0), "mnli": told(share)}
        for key, share in (("noticed", 0.2), ("noticed_by_distance", 0.6))
    }
    content = {
        "setting": {"splits": 1000, "calibrate": 2000, "confidence": 0.95, "files": 300},
        "runs": [
            {
                "task": "snli",
                "seed": 0,
                "predictions": 4000,
                "error": 0.24,
                "promises": {"0.1": PROMISE},
                **files,
            }
        ]
        + [{"task": "snli", "seed": seed, "promises": {}} for seed in (1, 2)],
        "summary": {
            "novelty": {"snli": {"0.05": promise, "0.1": promise}},
            "auroc": {"snli": {"mnli": [known(0.7), known(0.9)]}},
        },
    }
    shown = load("measured_tables.triage").tables(content)
    cells = "50.0 [49.0, 51.0] | 30.0 [29.0, 31.0] | 10.0 [9.0, 11.0] | 0.700 [0.690, 0.710] | 0.900 [0.890, 0.910]"
    assert f"|  |  | MNLI | {cells} | 20 [10, 40] | 60 [30, 100] |" in shown
    assert shown.endswith("10.0 [9.0, 11.0] |  |  |  |  |")
    assert "| SNLI (3) | 10 | inputs of the same kind | 90.0 [89.0, 91.0] | 85.0 [84.0, 86.0] |" in shown
