"""Table of docs/data/graph_texts.json, which `tests/benchmarks/study.py graph_text` writes, beside the paper's."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import interval, table

SOURCE = "python tests/benchmarks/study.py graph_text runs/graph_text --seeds 3"
MEASURES = {
    "bleu1": ("BLEU-1", 100, "42.56, 42.25, 45.60"),
    "bleu2": ("BLEU-2", 100, "27.64, 27.98, 29.96"),
    "bleu3": ("BLEU-3", 100, "19.27, 19.77, 21.07"),
    "bleu4": ("BLEU-4", 100, "13.75, 14.21, 15.12"),
    "meteor": ("METEOR", 100, "18.11, 18.61, 19.52"),
    "rouge1": ("ROUGE-1", 100, "35.80, 37.24, 38.23"),
    "rouge2": ("ROUGE-2", 100, "16.83, 17.78, 18.39"),
    "rougeL": ("ROUGE-L", 100, "27.21, 26.90, 28.55"),
    "perplexity": ("perplexity", 1, ""),
    "entities": ("entities named, %", 100, ""),
    "repeated_runs": ("repeated 4-grams, %", 100, ""),
    "repeated_clauses": ("repeated clauses, %", 100, ""),
    "words": ("words a text", 1, ""),
}
"""Title of a measure, what it is shown times, and the paper's figures in the order of the columns."""


def tables(content: Mapping[str, Any]) -> str:
    """A measure a row: soft attention, and the other variants' differences to it."""
    summary, seeds = content["summary"], {run["seed"] for run in content["runs"]}
    rows = []
    for name, (title, scale, paper) in MEASURES.items():
        gaps = (summary[variant]["difference"][name] for variant in ("cosine", "repulsive"))
        rows.append(
            [
                title,
                interval(summary["soft"][name], ".2f", scale=scale),
                *(interval(gap, "+.2f", scale=scale) for gap in gaps),
                paper,
            ]
        )
    setting, signature = content["setting"], content["runs"][0]["signature"]
    words = (
        f"`{setting['recipe']}`, {len(seeds)} seeds ({signature}): means over seeds, and the differences of the same "
        "seed, with 95% intervals (Student's t). The paper's figures are of 38,720 training texts, in the order of the "
        "columns and as they stand, not as differences; METEOR there is another version."
    )
    head = ["measure", "soft attention", "penalty on cosines", "repulsive heads", "An et al. 2020, table 4"]
    return f"{words}\n\n{table(head, rows)}"
