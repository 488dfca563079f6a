"""What the programs of transformers' flows share: the arguments of a short run, its resuming and its report."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import Seq2SeqTrainingArguments, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

DATA = Path(os.environ.get("PROBATTN_DATA", "."))


def arguments(output: Path, **options: Any) -> Any:
    """Training arguments of a run on one core; ``options`` are those of the flow."""
    kind = Seq2SeqTrainingArguments if "predict_with_generate" in options else TrainingArguments
    usual = {
        "per_device_train_batch_size": 16,
        "per_device_eval_batch_size": 16,
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "save_total_limit": 1,
        "logging_steps": 5,
        "load_best_model_at_end": True,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
    }
    return kind(str(output), **usual | options)


def train(trainer: Trainer) -> str | None:
    """Trains from the last checkpoint of the run's folder, where there is one; its name."""
    output = Path(str(trainer.args.output_dir))
    last = get_last_checkpoint(str(output)) if output.is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    trainer.save_model()
    return last and Path(last).name


def report(trainer: Trainer, resumed: str | None, metrics: Mapping[str, float], **trivial: float) -> None:
    """Prints the metrics, those of a trivial prediction with them, and writes them and the steps into the folder."""
    kept = {
        name: float(value) for name, value in metrics.items() if not name.endswith(("runtime", "per_second"))
    }
    history = trainer.state.log_history
    names = ("step", "loss", "log_likelihood", "kl")
    steps = [{name: record.get(name) for name in names} for record in history if "loss" in record]
    evaluations = [record["eval_loss"] for record in history if "eval_loss" in record]
    trainer.log_metrics("test", kept)
    trainer.log_metrics("trivial", trivial)
    found = {
        "resumed": resumed,
        "steps": steps,
        "evaluations": evaluations,
        "metrics": kept,
        "trivial": trivial,
    }
    (Path(str(trainer.args.output_dir)) / "report.json").write_text(json.dumps(found, indent=1))
