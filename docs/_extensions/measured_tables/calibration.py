"""The table of docs/data/calibration.json, which `tests/benchmarks/study.py calibration` writes."""

from collections.abc import Mapping
from typing import Any

from measured_tables.markdown import table

SOURCE = "tests/benchmarks/study.py calibration"
NAMES = {
    ("attention", "exact"): "exact, by resampling",
    ("attention", "babn"): "BABN, exact ELBO",
    ("attention", "babn_default"): "BABN, objective of fine-tuning",
    ("attention", "bam_1"): "BAM, k = 1, exact ELBO",
    ("attention", "bam_3"): "BAM, k = 3, exact ELBO",
    ("attention", "bam_10"): "BAM, k = 10, exact ELBO",
    ("attention", "bam_10_default"): "BAM, k = 10, objective of fine-tuning",
    ("regression", "exact"): "exact",
    ("regression", "svgd"): "SVGD, 20 particles",
    ("regression", "spos"): "SPOS, 20 particles",
    ("regression", "sgld"): "SGLD, 20 chains",
}


def tables(content: Mapping[str, Any]) -> str:
    """A row a posterior."""
    rows = [
        [
            run["model"],
            NAMES[run["model"], run["method"]],
            f"{run['statistic']:.3f}",
            f"{run['p']:.3f}" if run["p"] >= 0.001 else f"{run['p']:.0e}",
            f"{run['spread']:.2f}",
            "&nbsp;".join(map(str, run["histogram"])),
        ]
        for run in content["runs"]
    ]
    head = ["model", "posterior", "KS", "p", "spread of ranks", "ranks in tenths"]
    return f"{content['setting']['replications']:,} replications.\n\n{table(head, rows)}"
