"""The table of docs/data/triage.json, which `tests/benchmarks/study.py triage` writes."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import table

SOURCE = "tests/benchmarks/study.py triage"
NAMES = {
    "clinc150": "CLINC150",
    "banking77": "BANKING77",
    "rotten_tomatoes": "Rotten Tomatoes",
    "snli": "SNLI",
}


def tables(content: Mapping[str, Any]) -> str:
    """By task and promise, in percent."""
    setting = content["setting"]
    rows = [
        [
            f"{NAMES.get(run['task'], run['task'])} ({run['predictions']:,}, {100 * run['error']:.1f} wrong)",
            f"{100 * float(error):g}",
            f"{100 * row['held']:.1f} [{100 * row['interval'][0]:.1f}, {100 * row['interval'][1]:.1f}]",
            f"{100 * row['error']:.1f}",
            f"{100 * row['answered']:.1f}",
            f"{100 * row['certain']:.1f}",
            f"{100 * row['oracle']:.1f}",
        ]
        for run in content["runs"]
        for error, row in run["promises"].items()
    ]
    head = [
        "task (inputs, %)",
        "promise, %",
        "held in, % of draws",
        "wrong among answered, %",
        "answered, %",
        "exact test, %",
        "oracle, %",
    ]
    return (
        f"{setting['splits']:,} draws of {setting['calibrate']:,} calibration inputs, confidence "
        f"{100 * setting['confidence']:g}%; one network a task. Intervals are Clopper and Pearson's at 95%.\n\n"
        f"{table(head, rows)}"
    )
