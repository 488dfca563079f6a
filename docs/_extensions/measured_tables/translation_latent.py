"""Tables of docs/data/translation_latent.json, which `tests/benchmarks/study.py translation latent` writes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from measured_tables.markdown import table
from measured_tables.translation import quality

SOURCE = "tests/benchmarks/study.py translation latent"
METHODS = {
    "plain": "soft attention",
    "va_enumerate": "variational, enumerated (Deng et al. 2018)",
    "va_sample": "variational, sampled",
    "bam": "BAM (Fan et al. 2020)",
    "babn": "BABN (Zhang et al. 2021)",
    "babn_elbo": "BABN, lower bound of the evidence",
    "babn_elbo_strength": "the same, strength of the prior learned",
}


class Published(NamedTuple):
    """A row of Table 4 of Zhang et al. 2021: IWSLT14, an LSTM network, on a GPU."""

    bleu: float
    millions: int
    """Of parameters."""
    seconds: float
    """Of an update."""


PAPER = {
    "plain": Published(32.77, 42, 0.08),
    "va_enumerate": Published(33.68, 64, 0.12),
    "va_sample": Published(33.30, 64, 0.15),
    "bam": Published(33.81, 42, 0.10),
    "babn": Published(34.23, 42, 0.11),
}


def tables(content: Mapping[str, Any]) -> str:
    """Quality, size and time by method, then BLEU seed by seed beside the paper's figures."""
    return "\n\n".join([quality(content["summary"], METHODS), _beside_the_paper(content["runs"])])


def _beside_the_paper(runs: list[Mapping[str, Any]]) -> str:
    seeds = sorted({run["seed"] for run in runs})
    bleu = {(run["method"], run["seed"]): run["bleu"] for run in runs}
    base = PAPER["plain"]
    rows = []
    for method, words in METHODS.items():
        theirs = PAPER.get(method)
        gain, ratio = "", ""
        if theirs is not None and method != "plain":
            gain, ratio = f" ({theirs.bleu - base.bleu:+.1f})", f"{theirs.seconds / base.seconds:.2f}"
        rows.append(
            [
                words,
                *(f"{bleu[method, seed]:.1f}" if (method, seed) in bleu else "" for seed in seeds),
                "" if theirs is None else f"{theirs.bleu:.1f}{gain}",
                "" if theirs is None else f"{theirs.millions} M",
                ratio,
            ]
        )
    head = ["", *(f"BLEU, seed {seed}" for seed in seeds), "paper: BLEU", "parameters", "over the first"]
    return table(head, rows)
