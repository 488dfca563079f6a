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
    """A table a task: soft attention's figures, and the differences of the others to them."""
    parts = []
    for task, sets in content["summary"].items():
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
        parts.append(table([TASKS[task], "attention", *MEASURES.values(), "seeds"], rows))
    words = (
        "Of soft attention the mean over seeds and its 95% interval (Student's t), of the others the difference to "
        "soft attention of the same seed. `home` is the test set of the training domain."
    )
    return "\n\n".join([words, *parts])
