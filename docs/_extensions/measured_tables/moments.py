"""The table of docs/data/moments.json, which `tests/benchmarks/study.py moments` writes."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import table

SOURCE = "tests/benchmarks/study.py moments"
DATA = {"trec": "TREC", "rt": "film reviews", "mrpc": "MRPC"}
METHODS = {"babn": "BABN", "bam": "BAM, k = 10", "lognormal": "BAM, log-normal"}


def tables(content: Mapping[str, Any]) -> str:
    """One row a run."""
    setting = content["setting"]
    runs = content["runs"]
    texts = (
        "MiniLM with latent attention in all layers, one network (one seed) a row. Error: of the closed form's "
        f"standard deviation of the difference between the two leading logits against {setting['draws']:,} draws, "
        f"median over {setting['rows']} test texts (in brackets the 90% quantile). Bias: distance between the "
        "prediction at the expectation and the mean of draws, in standard deviations, median. Measures by moments and "
        "by 100 draws on the test texts. Variance removed: when 1% of all attention weights are held at their means, "
        "chosen by their share, by std/mean, or at random; median."
    )

    def pair(run: Mapping[str, Any], name: str) -> str:
        scores = run["scores"]
        return f"{scores['moments'][name]:.3f}, {scores['draws'][name]:.3f}"

    rows = [
        [
            f"{DATA[run['data']]}, {METHODS[run['method']]}",
            f"{run['texts']:,}",
            f"{100 * run['error']:.1f}% ({100 * run['error_90']:.1f}%)",
            f"{run['bias']:.2f}",
            pair(run, "auroc_mutual_information"),
            pair(run, "aurc_entropy"),
            pair(run, "pavpu"),
            " / ".join(f"{round(100 * run['deletion'][by])}%" for by in ("share", "spread", "random")),
        ]
        for run in runs
    ]
    head = [
        "network",
        "test texts",
        "error",
        "bias",
        "AUROC of errors, mutual information",
        "AURC, entropy",
        "PAvPU",
        "variance removed: share / std over mean / random",
    ]
    return f"{texts}\n\n{table(head, rows)}"
