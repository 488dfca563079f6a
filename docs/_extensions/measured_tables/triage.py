"""The tables of docs/data/triage.json, which `tests/benchmarks/study.py triage` writes, by name."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from measured_tables.markdown import interval, table
from probattn.metrics.functional import mean_interval

SOURCE = "tests/benchmarks/study.py triage"
DATA = Path(__file__).parents[2] / "data" / "triage.json"
PARTS = ("promises", "others", "limits", "told")
NAMES = {
    "banking77": "BANKING77",
    "clinc150": "CLINC150",
    "clinc150_out_of_scope": "queries out of scope",
    "customer_reviews": "customer reviews",
    "imdb": "IMDB",
    "mnli": "MNLI",
    "own": "in-domain inputs",
    "rotten_tomatoes": "Rotten Tomatoes",
    "sick": "SICK",
    "snli": "SNLI",
    "trec": "TREC",
}
LIMITED = ("0.05", "0.1")
"""Target error rates that limits of distance are shown for; other data are shown for the last."""
FILES = ("30", "100", "300")
LIMITS = ("0.01", "0.05")
Run = Mapping[str, Any]


def load(part: str) -> tuple[str, list[Run]]:
    """The name of a table, and the runs."""
    return part, json.loads(DATA.read_text("utf-8"))["runs"]


def tables(content: tuple[str, list[Run]]) -> str:
    """One of the tables."""
    part, runs = content
    first = [run for run in runs if run["seed"] == 0]
    files = [f"shift detected, % of files of {size}" for size in FILES]
    answered = "coverage, %"
    if part == "promises":
        head = ["target, %", "target held, % of splits", "error rate, %", answered]
        return table(["data (inputs, % wrong)", *head, "exact test, %", "oracle, %"], promises(first))
    if part == "others":
        return table(["trained on", "inputs", answered, "error rate, %", *files], others(first))
    if part == "limits":
        more = [f"with `--novelty {limit}`" for limit in LIMITS]
        return table(["trained on (networks)", "target, %", "inputs", answered, *more], limited(runs))
    return table(["trained on", "inputs", "AUROC, uncertainty", "AUROC, distance", *files], told(runs))


def percent(value: float | None, form: str = ".1f") -> str:
    return "" if value is None else format(100 * value, form)


def share(value: float, ends: Sequence[float], form: str = ".0f") -> str:
    """A share with its interval."""
    return interval({"mean": value, "low": ends[0], "high": ends[1]}, form, scale=100)


def over(values: Iterable[float], form: str, scale: float = 1.0) -> str:
    """The mean over networks with its interval."""
    return interval(mean_interval(values)._asdict(), form, scale=scale)


def by_task(runs: Sequence[Run]) -> Iterator[tuple[str, str, str, list[Run]]]:
    """Of each task its title before the first row and none before others, data by key and title, and its networks."""
    for task in dict.fromkeys(run["task"] for run in runs):
        networks = [run for run in runs if run["task"] == task]
        for name in ("own", *networks[0]["auroc"]):
            yield NAMES.get(task, task) if name == "own" else "", name, NAMES.get(name, name), networks


def promises(first: Sequence[Run]) -> Iterator[list[str]]:
    """How often each target holds, and what is answered."""
    for run in first:
        task = (
            f"{NAMES.get(run['task'], run['task'])} ({run['predictions']:,}, {percent(run['error'])} wrong)"
        )
        for error, row in run["promises"].items():
            rates = (percent(row[name]) for name in ("error", "answered", "certain", "oracle"))
            yield [task, percent(float(error), "g"), share(row["held"], row["interval"], ".1f"), *rates]


def others(first: Sequence[Run]) -> Iterator[list[str]]:
    """Coverage of in-domain inputs and of others, and which files are detected as shifted."""
    for task, name, title, (run,) in by_task(first):
        policy = run["promises"][LIMITED[-1]]
        row = policy if name == "own" else policy["elsewhere"][name]
        yield [task, title, percent(row["answered"]), percent(row["error"]), *noticed(run["noticed"][name])]


def limited(runs: Sequence[Run]) -> Iterator[list[str]]:
    """What is answered without limits of distance and with them."""
    for promise in LIMITED:
        for task, name, title, networks in by_task(runs):
            rates = []
            for limit in ("", *LIMITS):
                policies = [run["promises"][promise] for run in networks]
                policies = [policy["novelty"][limit] for policy in policies] if limit else policies
                rows = [policy if name == "own" else policy["elsewhere"][name] for policy in policies]
                rates.append(over((row["answered"] for row in rows), ".1f", 100))
            titles = [f"{task} ({len(networks)})", percent(float(promise), "g")] if task else ["", ""]
            yield [*titles, title, *rates]


def told(runs: Sequence[Run]) -> Iterator[list[str]]:
    """How well scores detect other data, and which files are detected by distances too."""
    for task, name, title, networks in by_task(runs):
        areas = [run["auroc"].get(name) for run in networks]
        scores = ["", ""] if task else [over((area[place] for area in areas), ".3f") for place in (0, 1)]
        yield [task, title, *scores, *noticed(networks[0]["noticed_by_distance"][name])]


def noticed(files: Mapping[str, Any]) -> Iterator[str]:
    """Shares of files that are detected as shifted, by size."""
    return (share(files[size]["share"], files[size]["interval"]) for size in FILES)
