"""The table of docs/data/triage.json, which `tests/benchmarks/study.py triage` writes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from measured_tables.markdown import interval, table

SOURCE = "tests/benchmarks/study.py triage"
NAMES = {
    "clinc150": "CLINC150",
    "banking77": "BANKING77",
    "rotten_tomatoes": "Rotten Tomatoes",
    "snli": "SNLI",
}


OTHERS = {
    "own": "inputs of the same kind",
    "imdb": "IMDB",
    "customer_reviews": "customer reviews",
    "mnli": "MNLI",
    "sick": "SICK",
    "clinc150": "CLINC150",
    "clinc150_out_of_scope": "queries out of scope",
}
NOVELTY_PROMISES, FEW = ("0.05", "0.1"), "30"
"""Promises and inputs of a file for which limits of distance are shown."""
PROMISE = "0.1"
"""Promise of the policies that other data are shown for."""


def tables(content: Mapping[str, Any]) -> str:
    """By task and promise, in percent; other data, answered and noticed; the same with limits of distance."""
    return "\n\n".join([_promises(content), *_others(content), *_limits(content)])


def _first(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The runs of the first seed."""
    return [run for run in content["runs"] if not run.get("seed")]


def _limits(content: Mapping[str, Any]) -> Iterator[str]:
    summary = content.get("summary", {})
    if not summary.get("novelty"):
        return
    rows, told = [], {run["task"]: run for run in _first(content)}
    networks = Counter(run["task"] for run in content["runs"])
    for task, promises in summary["novelty"].items():
        for promise in NOVELTY_PROMISES:
            by_limit = promises[promise]
            for place, name in enumerate(("own", *by_limit["none"]["elsewhere"])):
                answered = [
                    each["answered"] if name == "own" else each["elsewhere"][name]
                    for each in by_limit.values()
                ]
                again = promise != NOVELTY_PROMISES[0]  # what does not depend on the promise
                scores = () if again else summary["auroc"][task].get(name, ())
                noticed = [told[task][key][name][FEW] for key in ("noticed", "noticed_by_distance")]
                rows.append(
                    [
                        "" if place else f"{NAMES.get(task, task)} ({networks[task]})",
                        "" if place else f"{100 * float(promise):g}",
                        OTHERS.get(name, name),
                        *(interval(each, ".1f", scale=100) for each in answered),
                        *([interval(each, ".3f") for each in scores] or ["", ""]),
                        *("" if again else share(each["share"], each["interval"], ".0f") for each in noticed),
                    ]
                )
    head = [
        "trained on (networks)",
        "promise, %",
        "inputs",
        "answered, %",
        *(f"with `--novelty {name}`" for name in list(by_limit)[1:]),
        "AUROC, uncertainty",
        "distance",
        f"files of {FEW} noticed, %",
        "by distance too",
    ]
    yield (
        "Limits of distance, means over networks and the draws of above; intervals are over networks, where there are "
        f"several; files were compared for one network a task:\n\n{table(head, rows)}"
    )


def _others(content: Mapping[str, Any]) -> Iterator[str]:
    runs = [run for run in _first(content) if "noticed" in run]
    if not runs:
        return
    sizes = list(next(iter(runs[0]["noticed"].values())))
    rows = []
    for run in runs:
        policy = run["promises"][PROMISE]
        found = {"own": policy, **policy["elsewhere"]}
        for place, (name, noticed) in enumerate(run["noticed"].items()):
            answers = found[name]
            rows.append(
                [
                    "" if place else NAMES.get(run["task"], run["task"]),
                    OTHERS.get(name, name),
                    f"{100 * answers['answered']:.1f}",
                    "" if answers["error"] is None else f"{100 * answers['error']:.1f}",
                    *(share(noticed[size]["share"], noticed[size]["interval"], ".0f") for size in sizes),
                ]
            )
    head = [
        "trained on",
        "inputs",
        "answered, %",
        "wrong among them, %",
        *(f"files of {size} noticed, %" for size in sizes),
    ]
    yield (
        f"Other data under policies that promise {100 * float(PROMISE):g}%, means over the same draws, and how many of "
        f"{content['setting']['files']} random files of so many inputs `predict --policy` calls unlike the held-out "
        "inputs:\n\n"
        f"{table(head, rows)}"
    )


def share(value: float, ends: Sequence[float], form: str = ".1f") -> str:
    """A share with its interval, in percent."""
    return interval({"mean": value, "low": ends[0], "high": ends[1]}, form, scale=100)


def _promises(content: Mapping[str, Any]) -> str:
    setting = content["setting"]
    rows = [
        [
            f"{NAMES.get(run['task'], run['task'])} ({run['predictions']:,}, {100 * run['error']:.1f} wrong)",
            f"{100 * float(error):g}",
            share(row["held"], row["interval"]),
            f"{100 * row['error']:.1f}",
            f"{100 * row['answered']:.1f}",
            f"{100 * row['certain']:.1f}",
            f"{100 * row['oracle']:.1f}",
        ]
        for run in _first(content)
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
        f"{100 * setting['confidence']:g}%; one network a task. Intervals are Clopper and Pearson's at 95%, over "
        "draws.\n\n"
        f"{table(head, rows)}"
    )
