"""The flow of transformers' example of question answering: three lines are not transformers' own.

Usage: questions.py FOLDER squad|restaurant8k

The data are five articles of SQuAD 2.0, one of them held out, or RESTAURANTS-8K with a slot's name as the question and
the utterance as the text.
"""

from __future__ import annotations

import json
import math
import re
import string
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from flow import DATA, arguments, report, train
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, DataCollatorWithPadding, set_seed

import probattn
from probattn.models import convert
from probattn.recipes import NetworkRecipe

SLOTS = ("people", "time", "date", "first_name", "last_name")


def squad():
    """Questions to train on, to choose by and to measure on, from different articles."""
    articles = json.loads((DATA / "squad" / "dev-part-v2.0.json").read_text())["data"]
    found = {
        article["title"]: [
            {
                "question": asked["question"],
                "context": paragraph["context"],
                "answers": [(answer["text"], answer["answer_start"]) for answer in asked["answers"]],
            }
            for paragraph in article["paragraphs"]
            for asked in paragraph["qas"]
        ]
        for article in articles
    }
    test, validation = found.pop("Victoria_(Australia)"), found.pop("Normans")
    return [each for part in found.values() for each in part], validation[::8], test


def restaurant8k():
    """The slots of an utterance, and one that it has not."""

    def asked(split, count):
        rows = json.loads((DATA / "restaurant8k" / f"{split}.json").read_text())
        found = []
        for number, row in enumerate(rows[:: len(rows) // count][:count]):
            text = row["userInput"]["text"]
            spans = {label["slot"]: label["valueSpan"] for label in row.get("labels", ())}
            absent = [slot for slot in SLOTS if slot not in spans]
            for slot in [*spans, absent[number % len(absent)]]:
                start, end = (spans.get(slot, {}).get(name, 0) for name in ("startIndex", "endIndex"))
                answers = [(text[start:end], start)] if slot in spans else []
                found.append({"question": slot.replace("_", " "), "context": text, "answers": answers})
        return found

    rows = asked("train", 900)
    return rows[150:], rows[:150], asked("test", 150)


def windows(tokenizer, rows, **cut):
    """Pieces of question and text, with the tokens of the answer, both 0 where a piece has none."""
    found = tokenizer(
        [row["question"].strip() for row in rows],
        [row["context"] for row in rows],
        truncation="only_second",
        **cut,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    features = []
    for place, number in enumerate(found["overflow_to_sample_mapping"]):
        offsets = [
            pair if part == 1 else None
            for pair, part in zip(found["offset_mapping"][place], found.sequence_ids(place), strict=True)
        ]
        answers = rows[number]["answers"]
        start, end = (
            positions(offsets, answers[0][1], answers[0][1] + len(answers[0][0])) if answers else (0, 0)
        )
        kept = {name: found[name][place] for name in tokenizer.model_input_names}
        features.append(
            {**kept, "start_positions": start, "end_positions": end, "row": number, "offsets": offsets}
        )
    return features


def positions(offsets, start, end):
    first = [place for place, pair in enumerate(offsets) if pair and pair[0] <= start < pair[1]]
    last = [place for place, pair in enumerate(offsets) if pair and pair[0] < end <= pair[1]]
    return (first[0], last[0]) if first and last else (0, 0)


def texts(rows, features, predictions, longest=30):
    """The best answer to each question in any of its windows, "" where none scores more than there being none."""
    best = [(-math.inf, "")] * len(rows)
    none = [math.inf] * len(rows)
    for feature, starts, ends in zip(features, *predictions, strict=True):
        row, offsets = feature["row"], feature["offsets"]
        none[row] = min(none[row], starts[0] + ends[0])
        inside = [place for place, pair in enumerate(offsets) if pair]
        likely = [sorted(inside, key=lambda place, by=by: -by[place])[:20] for by in (starts, ends)]
        for first in likely[0]:
            for last in likely[1]:
                value = starts[first] + ends[last]
                if first <= last < first + longest and value > best[row][0]:
                    text = rows[row]["context"][offsets[first][0] : offsets[last][1]]
                    best[row] = (value, text)
    return [text if value > without else "" for (value, text), without in zip(best, none, strict=True)]


def words(text):
    kept = "".join(each for each in text.lower() if each not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def overlap(given, wanted):
    one, other = words(given), words(wanted)
    if not one or not other:
        return float(one == other)
    return 2 * sum((Counter(one) & Counter(other)).values()) / (len(one) + len(other))


def score(given, rows):
    """Exact match and F1 of SQuAD, and F1 where there is an answer."""
    wanted = [[text for text, _ in row["answers"]] or [""] for row in rows]
    exact = [max(words(one) == words(each) for each in some) for one, some in zip(given, wanted, strict=True)]
    f1 = [max(overlap(one, each) for each in some) for one, some in zip(given, wanted, strict=True)]
    answered = [value for value, row in zip(f1, rows, strict=True) if row["answers"]]
    return {
        "exact_match": float(np.mean(exact)),
        "f1": float(np.mean(f1)),
        "answered_f1": float(np.mean(answered)),
    }


def uniform(train_features, test_features):
    """Log-likelihood of a position when no answer has its share in training, and every other token the same."""
    share = np.mean([feature["start_positions"] == 0 for feature in train_features])
    return float(
        np.mean(
            [
                math.log((1 - share) / sum(pair is not None for pair in feature["offsets"]))
                if feature["start_positions"]
                else math.log(share)
                for feature in test_features
            ]
        )
    )


FLOWS = {
    "squad": (
        squad,
        {"max_length": 128, "stride": 32},
        {"max_steps": 60, "eval_steps": 20, "save_steps": 20},
    ),
    "restaurant8k": (
        restaurant8k,
        {"max_length": 48, "stride": 16},
        {"max_steps": 120, "eval_steps": 40, "save_steps": 40},
    ),
}


def main(output: Path, data: str) -> None:
    read, cut, steps = FLOWS[data]
    args = arguments(output, learning_rate=3e-4, **steps)
    set_seed(args.seed)
    folder = NetworkRecipe(name="minilm").locate()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    net = AutoModelForQuestionAnswering.from_pretrained(folder, num_hidden_layers=2)
    net = convert(net, probattn.BayesianAttention())
    rows, validation, test = read()
    trained, chosen, held_out = (windows(tokenizer, part, **cut) for part in (rows, validation, test))
    trainer = probattn.ProbabilisticTrainer(
        model=net,
        args=args,
        train_dataset=trained,
        eval_dataset=chosen,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    resumed = train(trainer)
    predictions, _, metrics = trainer.predict(held_out)
    found = score(texts(test, held_out, predictions), test)
    nothing = {f"test_{name}": value for name, value in score([""] * len(test), test).items()}
    report(
        trainer, resumed, {**metrics, **{f"test_{name}": value for name, value in found.items()}},
        test_log_likelihood=uniform(trained, held_out), **nothing,
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
