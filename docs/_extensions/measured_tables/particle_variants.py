"""The tables of docs/data/particle_variants.json, which `tests/benchmarks/study.py methods` writes with this output."""

from measured_tables.methods import tables

SOURCE = "tests/benchmarks/study.py methods --group particles"
PARTS = ("particles",)
__all__ = ["PARTS", "SOURCE", "tables"]
