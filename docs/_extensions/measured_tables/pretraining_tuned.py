"""Table of docs/data/pretraining_tuned.json: pre-trained or not, the rate of fine-tuning chosen by validation."""

from measured_tables.pretraining import tables

__all__ = ["SOURCE", "tables"]

SOURCE = "tests/benchmarks/study.py pretraining --variants plain,nothing"
