"""The flow of transformers' example of token classification, on RESTAURANTS-8K: three lines are not transformers' own.

Usage: tags.py FOLDER
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path

from flow import DATA, arguments, report, train
from transformers import (
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    set_seed,
)

import probattn
from probattn.models import convert
from probattn.recipes import NetworkRecipe

SLOTS = ("people", "time", "date", "first_name", "last_name")
TAGS = ("O", *(f"{place}-{slot}" for slot in SLOTS for place in "BI"))


def utterances(split, count):
    """Evenly spread rows of a split: words, and a tag each."""
    rows = json.loads((DATA / "restaurant8k" / f"{split}.json").read_text())
    return [tagged(row) for row in rows[:: len(rows) // count][:count]]


def tagged(row):
    found = list(re.finditer(r"\w+|[^\w\s]", row["userInput"]["text"]))
    tags = ["O"] * len(found)
    for label in row.get("labels", ()):
        start, end = (label["valueSpan"].get(name, 0) for name in ("startIndex", "endIndex"))
        inside = [place for place, word in enumerate(found) if word.start() < end and word.end() > start]
        for place in inside:
            tags[place] = f"{'B' if place == inside[0] else 'I'}-{label['slot']}"
    return [word.group() for word in found], tags


def entities(tags):
    """Slot, first and last place of every entity of a text."""
    found, begun = set(), None
    for place, tag in enumerate([*tags, "O"]):
        if begun and tag != f"I-{begun[0]}":
            found.add((*begun, place - 1))
            begun = None
        if tag.startswith("B-"):
            begun = (tag[2:], place)
    return found


def score(predicted, true):
    """Precision, recall and F1 of entities whose slot and both ends are right."""
    pairs = [(entities(one), entities(other)) for one, other in zip(predicted, true, strict=True)]
    right, given, wanted = (
        sum(map(len, each)) for each in zip(*((p & t, p, t) for p, t in pairs), strict=True)
    )
    return {"precision": right / max(given, 1), "recall": right / wanted, "f1": 2 * right / (given + wanted)}


def seen(train_rows, test_rows):
    """Tags of a test in which every word has the tag that it has most often in training."""
    counts = {}
    for words, tags in train_rows:
        for word, tag in zip(words, tags, strict=True):
            counts.setdefault(word.lower(), Counter())[tag] += 1
    usual = {word: count.most_common(1)[0][0] for word, count in counts.items()}
    return [[usual.get(word.lower(), "O") for word in words] for words, _ in test_rows]


def main(output: Path) -> None:
    args = arguments(
        output,
        learning_rate=3e-4,
        num_train_epochs=2,
        eval_steps=50,
        save_steps=50,
        metric_for_best_model="f1",
    )
    set_seed(args.seed)
    folder = NetworkRecipe(name="minilm").locate()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    names = {"id2label": dict(enumerate(TAGS)), "label2id": {tag: place for place, tag in enumerate(TAGS)}}
    net = AutoModelForTokenClassification.from_pretrained(folder, num_hidden_layers=2, **names)
    net = convert(net, probattn.BayesianAttention())

    def aligned(rows):
        found = tokenizer(
            [words for words, _ in rows], is_split_into_words=True, truncation=True, max_length=64
        )
        features = []
        for place, (_, tags) in enumerate(rows):
            words = found.word_ids(place)
            first = [
                word is not None and word != before
                for before, word in zip([None, *words], words, strict=False)
            ]
            labels = [
                TAGS.index(tags[word]) if begins else -100 for begins, word in zip(first, words, strict=True)
            ]
            features.append(
                {**{name: found[name][place] for name in ("input_ids", "attention_mask")}, "labels": labels}
            )
        return features

    def compute_metrics(prediction):
        best = prediction.predictions.argmax(-1)
        kept = prediction.label_ids != -100
        predicted, true = (
            [[TAGS[tag] for tag in row[keep]] for row, keep in zip(rows, kept, strict=True)]
            for rows in (best, prediction.label_ids)
        )
        return {**score(predicted, true), "accuracy": float((best == prediction.label_ids)[kept].mean())}

    rows, held_out = utterances("train", 1700), utterances("test", 200)
    trainer = probattn.ProbabilisticTrainer(
        model=net,
        args=args,
        train_dataset=aligned(rows[100:]),
        eval_dataset=aligned(rows[:100]),
        processing_class=tokenizer,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        compute_metrics=compute_metrics,
    )
    resumed = train(trainer)
    metrics = trainer.evaluate(aligned(held_out), metric_key_prefix="test")
    trivial = score(seen(rows[100:], held_out), [tags for _, tags in held_out])
    report(trainer, resumed, metrics, test_f1=trivial["f1"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
