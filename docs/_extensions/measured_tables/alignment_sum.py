"""Tables of docs/data/alignment_sum.json, which `tests/benchmarks/study.py alignment --reduction sum` writes."""

from measured_tables.alignment import tables

__all__ = ["SOURCE", "tables"]

SOURCE = "tests/benchmarks/study.py alignment --reduction sum --no-sweep"
