"""The flow of transformers' example of text classification, on SST-2: three lines are not transformers' own.

Usage: sentiment.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from flow import arguments, report, train
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, set_seed

import probattn
from probattn.data import Source, load_task
from probattn.models import convert
from probattn.recipes import NetworkRecipe
from probattn.trainer import compute_uncertainty


def main(output: Path) -> None:
    args = arguments(
        output,
        learning_rate=3e-4,
        num_train_epochs=2,
        eval_steps=20,
        save_steps=20,
        metric_for_best_model="accuracy",
        warmup_steps=5,
    )
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
    resumed = train(trainer)
    metrics = trainer.evaluate(tokenized(task.test), metric_key_prefix="test")
    ones = sum(task.test.labels) / len(task.test)
    report(trainer, resumed, metrics, test_accuracy=max(ones, 1 - ones))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
