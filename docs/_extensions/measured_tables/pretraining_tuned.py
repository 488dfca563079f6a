"""Table of docs/data/pretraining_tuned.json: pre-trained or not, the rate of fine-tuning chosen by validation."""

from measured_tables.pretraining import tables

__all__ = ["SOURCE", "tables"]

SOURCE = (
    "python tests/benchmarks/study.py pretraining runs/tuned --seeds 3 --variants plain,nothing "
    "--set training.steps=15000 --set training.eval_every=2500 --set training.checkpoint_every=2500 "
    "--output docs/data/pretraining_tuned.json"
)
