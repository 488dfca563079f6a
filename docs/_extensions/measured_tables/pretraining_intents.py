"""Table of docs/data/pretraining_intents.json: pre-trained or not on questions, by the number of labels afterwards."""

from measured_tables.pretraining import tables

__all__ = ["SOURCE", "tables"]

SOURCE = (
    "python tests/benchmarks/study.py pretraining runs/intents --seeds 3 --variants plain,nothing "
    "--set pretraining.texts=[clinc150,banking77] --set training.steps=6000 --set training.eval_every=2000 "
    "--set training.checkpoint_every=2000 --tasks clinc150:1500,clinc150:5000,clinc150 --steps 1000 "
    "--rates 5e-4,1e-3,2e-3 --output docs/data/pretraining_intents.json"
)
