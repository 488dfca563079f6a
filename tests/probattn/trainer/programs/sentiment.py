"""The flow of transformers' example of text classification, on SST-2: three lines are not transformers' own.

Usage: sentiment.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

import probattn
from probattn.data import Source, load_task
from probattn.models import convert
from probattn.recipes import NetworkRecipe
from probattn.trainer import compute_uncertainty


def main(output: Path) -> None:
    args = TrainingArguments(
        str(output),
        learning_rate=3e-4,
        num_train_epochs=2,
        per_device_train_batch_size=16,
        eval_strategy="steps",
        eval_steps=20,
        save_strategy="steps",
        save_steps=20,
        logging_steps=5,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        warmup_steps=5,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    last = get_last_checkpoint(args.output_dir) if output.is_dir() else None
    set_seed(args.seed)
    folder = NetworkRecipe(name="minilm").locate()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    net = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2, num_hidden_layers=2)
    net = convert(net, probattn.BayesianAttention())
    task = load_task({"train": Source("sst2")}, limits={"train": 480, "validation": 100, "test": 100})

    def tokenized(part):
        found = tokenizer(list(part.texts), truncation=True, max_length=48)
        return [
            {"input_ids": ids, "attention_mask": mask, "label": label}
            for ids, mask, label in zip(found["input_ids"], found["attention_mask"], part.labels, strict=True)
        ]

    trainer = probattn.ProbabilisticTrainer(
        model=net,
        args=args,
        train_dataset=tokenized(task.train),
        eval_dataset=tokenized(task.validation),
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=compute_uncertainty,
        prediction="draws",
        num_samples=5,
    )
    trainer.train(resume_from_checkpoint=last)
    metrics = trainer.evaluate(tokenized(task.test), metric_key_prefix="test")
    trainer.log_metrics("test", metrics)
    trainer.save_model()
    steps = [record for record in trainer.state.log_history if "loss" in record]
    kept = {name: value for name, value in metrics.items() if not name.endswith(("runtime", "per_second"))}
    report = {"steps": [[s["step"], s["loss"], s["log_likelihood"], s["kl"]] for s in steps], "metrics": kept}
    (output / "report.json").write_text(json.dumps(report | {"resumed": last and Path(last).name}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
