"""Table of docs/data/pretraining_intents.json: pre-trained or not on questions, by the number of labels afterwards."""

from measured_tables.pretraining import tables

__all__ = ["SOURCE", "tables"]

SOURCE = "tests/benchmarks/study.py pretraining --variants plain,nothing"
