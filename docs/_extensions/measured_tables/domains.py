"""Tables of docs/data/domains.json, which `tests/benchmarks/study.py domain` writes."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import interval, table

SOURCE = "tests/benchmarks/study.py domain"
TASKS = {
    "sentiment": "trained on SST-2",
    "inference": "trained on SNLI",
    "entailment": "trained on SNLI, two classes",
    "relatedness": "trained on SICK, two classes",
    "paraphrase": "trained on MRPC",
}
MEASURES = {"accuracy": "accuracy, %", "ece": "ECE, %", "scaled_ece": "ECE with temperature, %"}


def tables(content: Mapping[str, Any]) -> str:
    """Of each task the test set and the mean of the other domains, then the accuracy in each of them."""
    parts = []
    for task, sets in content["summary"].items():
        shown = [name for name in ("home", "other domains") if name in sets]
        parts.append(_differences(TASKS[task], {name: sets[name] for name in shown or sets}))
        if rest := {name: sets[name] for name in sets if name not in shown}:
            parts.append(_accuracies(rest))
    words = (
        "Of soft attention the mean over seeds and its 95% interval (Student's t), of the others the difference to "
        "soft attention of the same seed. `home` is the test set of the training domain; each other domain counts "
        "once in their mean. Below that, accuracy in each domain, in percent, mean over seeds."
    )
    return "\n\n".join([words, *parts])


def _differences(task: str, sets: Mapping[str, Any]) -> str:
    """Soft attention's figures, and the differences of the others to them."""
    rows = []
    for data, variants in sets.items():
        for place, (variant, row) in enumerate(variants.items()):
            cells = [
                interval(row[name]["value"], ".1f", scale=100)
                if variant == "soft"
                else interval(row[name].get("difference"), "+.1f", scale=100)
                for name in MEASURES
            ]
            seeds = str(row["accuracy"]["value"]["seeds"])
            rows.append(["" if place else data, variant, *cells, seeds])
    return table([task, "attention", *MEASURES.values(), "seeds"], rows)


def _accuracies(sets: Mapping[str, Any]) -> str:
    """A column a variant."""
    names = list(dict.fromkeys(name for variants in sets.values() for name in variants))
    rows = [
        [f"`{data}`", *(f"{100 * variants[name]['accuracy']['value']['mean']:.1f}" for name in names)]
        for data, variants in sets.items()
    ]
    return table(["", *names], rows)
