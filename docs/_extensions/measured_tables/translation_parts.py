"""Tables of docs/data/translation_parts.json, which `tests/benchmarks/study.py translation` writes."""

from collections.abc import Mapping
from typing import Any

from measured_tables.translation import heads, quality

SOURCE = "tests/benchmarks/study.py translation parts"
METHODS = {
    "plain": "as it is",
    "all": "all",
    "query": "queries",
    "key": "keys",
    "value": "values",
    "encoder": "in the encoder",
    "decoder": "in the decoder",
    "cross": "from decoder to encoder",
    "first": "first layers",
    "last": "last layers",
}


def tables(content: Mapping[str, Any]) -> str:
    """Quality and time by what is repelled, then how different heads are."""
    rows = content["summary"]
    return "\n\n".join([quality(rows, METHODS), heads(rows, METHODS)])
