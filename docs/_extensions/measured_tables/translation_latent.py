"""The table of docs/data/translation_latent.json, which `tests/benchmarks/translation_study.py latent` writes."""

from collections.abc import Mapping
from typing import Any

from measured_tables.translation import quality

SOURCE = "tests/benchmarks/translation_study.py latent"
METHODS = {
    "plain": "soft attention",
    "va_enumerate": "variational, enumerated (Deng et al. 2018)",
    "va_sample": "variational, sampled",
    "bam": "BAM (Fan et al. 2020)",
    "babn": "BABN (Zhang et al. 2021)",
}


def tables(content: Mapping[str, Any]) -> str:
    """Quality, size and time by method."""
    return quality(content["summary"], METHODS)
