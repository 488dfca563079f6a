"""Tables of docs/data/translation_parts.json, which `tests/benchmarks/study.py translation` writes."""

from measured_tables.translation import tables

__all__ = ["SOURCE", "tables"]

SOURCE = "tests/benchmarks/study.py translation parts"
