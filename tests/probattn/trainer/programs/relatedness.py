"""The flow of transformers' example of regression (GLUE's STS-B), on SICK: three lines are not transformers' own.

Usage: relatedness.py FOLDER
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import torch
from flow import DATA, arguments, report, train
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, set_seed

import probattn
from probattn.inference import posterior_predict
from probattn.metrics.functional import interval_coverage
from probattn.models import convert
from probattn.recipes import NetworkRecipe
from probattn.trainer import ProbabilisticTrainer


def pairs(name, count):
    """Evenly spread rows: two sentences and how related they are, 1 to 5."""
    with (DATA / "sick" / f"SICK_{name}.txt").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    chosen = rows[:: len(rows) // count][:count]
    return [(row["sentence_A"], row["sentence_B"], float(row["relatedness_score"])) for row in chosen]


def compute_metrics(prediction):
    values, labels = prediction.predictions.squeeze(-1), prediction.label_ids
    return {
        "pearson": float(np.corrcoef(values, labels)[0, 1]),
        "rmse": float(np.sqrt(np.mean((values - labels) ** 2))),
    }


def covered(trainer, rows, level=0.8):
    """Share of the labels in their interval, where the trainer has a posterior."""
    if not isinstance(trainer, ProbabilisticTrainer):
        return {}
    interval = posterior_predict(trainer.program, trainer.get_test_dataloader(rows), 10).interval(level)
    return {
        f"test_coverage_{level:.0%}": float(
            interval_coverage(interval, torch.tensor([row["label"] for row in rows]))
        )
    }


def main(output: Path) -> None:
    args = arguments(
        output,
        learning_rate=3e-4,
        num_train_epochs=2,
        eval_steps=40,
        save_steps=40,
        metric_for_best_model="pearson",
    )
    set_seed(args.seed)
    folder = NetworkRecipe(name="minilm").locate()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    net = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, num_hidden_layers=2)
    net = convert(net, probattn.BayesianAttention())
    rows, held_out = pairs("train", 1280), pairs("test_annotated", 200)
    scores = np.array([score for *_, score in rows])
    middle, spread = scores.mean(), scores.std()

    def tokenized(part):
        found = tokenizer(
            [one for one, *_ in part], [other for _, other, _ in part], truncation=True, max_length=64
        )
        return [
            {**{name: found[name][place] for name in found}, "label": float((score - middle) / spread)}
            for place, (*_, score) in enumerate(part)
        ]

    trainer = probattn.ProbabilisticTrainer(
        model=net,
        args=args,
        train_dataset=tokenized(rows),
        eval_dataset=tokenized(pairs("trial", 100)),
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=compute_metrics,
    )
    resumed = train(trainer)
    metrics = trainer.evaluate(tokenized(held_out), metric_key_prefix="test")
    truth = np.array([row["label"] for row in tokenized(held_out)])
    shared = [
        len(a & b) / len(a | b)
        for a, b in ((set(one.split()), set(other.split())) for one, other, _ in held_out)
    ]
    report(
        trainer, resumed, {**metrics, **covered(trainer, tokenized(held_out))},
        test_rmse=float(np.sqrt(np.mean(truth**2))), test_overlap=float(np.corrcoef(shared, truth)[0, 1]),
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
