"""The tables of the study of promised errors, from figures that are known."""


def test_other_data_stand_below_those_of_the_task(load):
    def told(share):
        return {"30": {"share": share, "interval": [share / 2, min(1.0, 2 * share)]}}

    promise = {
        "held": 0.97,
        "interval": [0.95, 0.98],
        "error": 0.08,
        "answered": 0.75,
        "certain": 0.8,
        "oracle": 0.9,
        "elsewhere": {"mnli": {"answered": 0.5, "error": None}},
    }
    run = {"task": "snli", "predictions": 4000, "error": 0.24, "promises": {"0.1": promise}}
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
