"""Recipes with the settings of papers and of their authors' codes train two steps, on files that are made here."""

from __future__ import annotations

import csv
import gzip
import json
import math
import random
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import runs
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
)

from probattn.inference.loop import ExplodedKLWarning
from probattn.recipes import load_any_recipe, recipe_names
from probattn.sites.bayesian import RELEASE_KL_WEIGHT
from probattn.tasks import load_task, train
from probattn.tasks.registry import built_in_recipes

SIZES = {
    "vocab_size": len(runs.SPECIAL) + len(runs.WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "pad_token_id": 0,
}
GLUE: dict[str, tuple[str, ...]] = {
    "MNLI": ("sentence1", "sentence2", "gold_label"),
    "MRPC": ("Quality", "#1 String", "#2 String"),
    "QNLI": ("question", "sentence", "label"),
    "QQP": ("question1", "question2", "is_duplicate"),
    "RTE": ("sentence1", "sentence2", "label"),
    "SST-2": ("sentence", "label"),
    "STS-B": ("sentence1", "sentence2", "score"),
}
"""Columns of GLUE's files."""
LABELS = {
    "gold_label": ("entailment", "neutral", "contradiction"),
    "label": ("entailment", "not_entailment"),
    "score": ("0.0", "2.5", "5.0"),
}
"""What stands in the columns of labels; 0 and 1 in others."""
ENCODERS = (
    *(("albert", f"{data}_paper") for data in ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2")),
    *(("albert", f"{data}_paper") for data in ("squad1", "squad2", "stsb")),
    ("albert", "mnli_release"),
    ("bert", "sentiment_paper"),
    ("bert", "sentiment_release"),
    ("bert", "snli_bert_paper"),
    ("bert", "swag_bert_paper"),
    ("roberta", "snli_roberta_paper"),
)
"""Family and name of the recipes that fine-tune an encoder, here one with random weights."""
FILMS = ("data.train=reviews.csv", "data.shifted=reviews.csv", "data.out_of_domain=reviews.csv")
PAIRS = ("train=train", "validation=dev", "test=test", "subwords=60")
OWN_PAIRS = tuple(f"translation.{key}" for key in PAIRS)
FEW_QUESTIONS = (
    "training.epochs=2",
    "visual_questions.min_answers=1",
    "visual_questions.held_out=0.2",
    "network.layers=1",
)
KEYS: dict[str, tuple[str, ...]] = {
    "rte_paper": ("training.batch_size=2", "data.limits.validation=2"),
    "sentiment_paper": FILMS,
    "sentiment_release": FILMS,
    "imdb_additive_paper": ("data.train=reviews.csv", "network.embeddings=vectors.txt"),
    "yelp_self_attentive_paper": (
        "data.train=reviews.tsv",
        "data.validation=reviews.csv",
        "data.test=reviews.csv",
        "network.embeddings=vectors.txt",
    ),
    "agenda_paper": ("network.layers=1",),
    "vqa_v2_paper": FEW_QUESTIONS,
    "vqa_v2_release": FEW_QUESTIONS,
    "electra_small": (
        "pretraining.texts=[corpus.txt]",
        "pretraining.validation_fraction=0.02",
        "pretraining.test_fraction=0.02",
        "network.layers=2",
        "training.batch_size=8",
    ),
    "multi30k_small": ("translation.subwords=60", "network.layers=2"),
    "multi30k_lstm": ("translation.subwords=30",),
    "iwslt14_lstm_paper": OWN_PAIRS,
    "wmt14_base_paper": (*OWN_PAIRS, "network.layers=1"),
    "wmt14_big_paper": (*OWN_PAIRS, "network.layers=1"),
}
"""What is replaced: sources by the files of this test, and sizes that take long; data sets of a name are read."""
RECIPES = sorted({*KEYS, *(name for _, name in ENCODERS)})
HEADS = ("copying_heads_release",)
"""Experiments, whose sentences are drawn."""
QUICK = ("cola_paper", "multi30k_small", "squad1_paper", "stsb_paper")
"""Those that ``make test`` trains."""
NEEDS = {"translation": "sentencepiece", "graph_text": "nltk"}


def write_table(
    file: Path, columns: Sequence[str], rows: Sequence[Sequence[object]], header: bool = True
) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [columns, *rows] if header else rows
    file.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines), encoding="utf-8")


def sentence(draw: random.Random, row: int) -> str:
    return " ".join([*draw.choices(runs.WORDS, k=draw.randint(4, 9)), str(row)])


def write_glue(folder: Path) -> None:
    """Rows of GLUE's tasks and of SNLI: 40 to train on, 10 to measure on; texts of RTE are too long."""
    draw = random.Random(0)
    for name, columns in GLUE.items():
        tested = ("dev_matched", "dev_mismatched") if name == "MNLI" else ("dev",)
        for part, number in (("train", 40), *((part, 10) for part in tested)):
            rows = []
            for row in range(number):
                values = {column: sentence(draw, 100 * number + row) for column in columns}
                label = next(
                    column
                    for column in (columns[0], columns[-1])
                    if column in (*LABELS, "Quality", "is_duplicate")
                )
                choices = LABELS.get(label, ("0", "1")) if name != "SST-2" else ("0", "1")
                if name == "RTE":
                    values[columns[0]] += " good" * 600  # more than the 512 tokens that are kept
                rows.append([*(values | {label: choices[row % len(choices)]}).values()])
            write_table(folder / "glue" / name / f"{part}.tsv", columns, rows)
    for part, number in (("train", 40), ("dev", 10)):
        rows = [["src", row % 2, "", sentence(draw, 100 * number + row)] for row in range(number)]
        write_table(folder / "glue" / "CoLA" / f"{part}.tsv", (), rows, header=False)
    for part, number in (("train", 40), ("dev", 10), ("test", 12)):
        lines = [
            {
                "sentence1": sentence(draw, 100 * number + row),
                "sentence2": sentence(draw, row),
                "gold_label": LABELS["gold_label"][row % 3],
            }
            for row in range(number)
        ]
        file = folder / "snli" / f"snli_1.0_{part}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def write_endings(folder: Path) -> None:
    """Texts of SWAG and of HellaSWAG with four endings each."""
    draw = random.Random(0)
    columns = ["sent1", "sent2", *(f"ending{number}" for number in range(4)), "label"]
    for part, number in (("train", 40), ("val", 10)):
        rows = [
            [*(sentence(draw, 100 * number + row) for _ in range(6)), str(row % 4)] for row in range(number)
        ]
        table = [columns, *rows]
        file = folder / "swag" / f"{part}.csv"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(",".join(row) + "\n" for row in table), encoding="utf-8")
    (folder / "hellaswag").mkdir()
    lines = [
        {"ctx_a": sentence(draw, row), "endings": [sentence(draw, row) for _ in range(4)], "label": row % 4}
        for row in range(10)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "hellaswag" / "hellaswag_val.jsonl").write_text(text, encoding="utf-8")


def write_squad(folder: Path) -> None:
    """Questions of SQuAD 1.1 and 2.0 about 30 passages, every third of 2.0 without an answer."""
    draw = random.Random(0)
    (folder / "squad").mkdir()
    for version in ("1.1", "2.0"):
        for part in ("train", "dev"):
            paragraphs = []
            for row in range(30):
                context = sentence(draw, row if part == "train" else 1000 + row)
                answer = {"text": context.split()[0], "answer_start": 0}
                none = version == "2.0" and row % 3 == 0
                question = {"id": f"{part}{row}", "question": f"what {row}", "is_impossible": none}
                question["answers"] = [] if none else [answer]
                paragraphs.append({"context": context, "qas": [question]})
            content = {"data": [{"title": "a", "paragraphs": paragraphs}]}
            (folder / "squad" / f"{part}-v{version}.json").write_text(json.dumps(content), encoding="utf-8")


def write_visual_questions(folder: Path) -> None:
    """VQA-v2's files with features of 2,048 numbers for 100 regions, the most there are, of each of 12 images."""
    generator = np.random.default_rng(0)
    for part in ("train2014", "val2014"):
        images = folder / "vqa" / part
        images.mkdir(parents=True)
        numbers = range(12) if part == "train2014" else range(100, 104)
        questions, annotations = [], []
        for number in numbers:
            features = generator.standard_normal((100, 2048), dtype=np.float32)
            np.savez(images / f"COCO_{part}_{number:012d}.jpg.npz", x=features)
            questions.append({"question": "is it red?", "image_id": number, "question_id": number})
            answers = [{"answer": "yes" if number % 2 else "no"}] * 10
            annotations.append({"question_id": number, "answer_type": "yes/no", "answers": answers})
        titles = {"questions": "v2_OpenEnded_mscoco_{}_questions", "annotations": "v2_mscoco_{}_annotations"}
        for key, rows in (("questions", questions), ("annotations", annotations)):
            file = folder / "vqa" / f"{titles[key].format(part)}.json"
            file.write_text(json.dumps({key: rows}), encoding="utf-8")


def write_encoder(folder: Path, net: PreTrainedModel) -> None:
    net.save_pretrained(folder)
    codec = runs.tokenizer()
    codec.model_max_length = 512
    codec.save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All data, with the names that recipes have for them, and encoders of random weights."""
    folder: Path = tmp_path_factory.mktemp("data")
    write_glue(folder)
    write_squad(folder)
    write_endings(folder)
    write_visual_questions(folder)
    runs.write_reviews(folder / "reviews.csv")
    with (folder / "reviews.csv").open(newline="", encoding="utf-8") as file:
        rows = [[row["text"], row["label"]] for row in csv.DictReader(file)]
    write_table(folder / "reviews.tsv", ("text", "label"), rows)
    vectors = (f"{word} {' '.join(['0.1'] * 300)}\n" for word in runs.WORDS)
    (folder / "vectors.txt").write_text("".join(vectors), encoding="utf-8")
    runs.write_pairs(folder)
    (folder / "multi30k").mkdir()
    for part, name in (("train", "train"), ("dev", "val"), ("test", "test_2016_flickr")):
        for language in ("en", "de"):
            text = (folder / f"{part}.{language}").read_bytes()
            (folder / "multi30k" / f"{name}.{language}.gz").write_bytes(gzip.compress(text))
    (folder / "agenda").mkdir()
    runs.write_graph_texts(folder / "agenda")
    for part in ("train", "val", "test"):
        (folder / "agenda" / f"{part}.tsv").rename(folder / "agenda" / f"preprocessed.{part}.tsv")
    draw = random.Random(0)
    lines = [" ".join(draw.choices(runs.WORDS, k=300)) for _ in range(400)]
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    torch.manual_seed(0)
    write_encoder(folder / "albert", AlbertModel(AlbertConfig(**SIZES, embedding_size=8)))
    write_encoder(folder / "bert", BertModel(BertConfig(**SIZES)))
    write_encoder(folder / "roberta", RobertaModel(RobertaConfig(**SIZES, max_position_embeddings=514)))
    return folder


def keys_of(name: str, recipe: Any) -> list[str]:
    """What replaces keys of a recipe: two steps on the CPU without a baseline, its sources and an encoder."""
    encoder = next((family for family, other in ENCODERS if other == name), None)
    network = [] if encoder is None else [f"network.name={encoder}"]
    length = [] if "training.epochs=2" in KEYS.get(name, ()) else ["training.steps=2"]
    baseline = ["report.baseline=false"] if hasattr(recipe.report, "baseline") else []
    return [*network, *length, *baseline, "training.device=cpu", *KEYS.get(name, ())]


def is_printed(name: str) -> bool:
    """Whether the objective is the one that Zhang et al. (ICML 2021) print, over all attention calls."""
    recipe = load_any_recipe(name)
    latent = recipe.attention.method == "babn" and recipe.attention.preset == "paper"
    return latent and name != "iwslt14_lstm_paper"  # which has one call with one head


def test_every_recipe_of_a_paper_or_of_its_code_is_trained() -> None:
    named = {name for name in recipe_names() if name.endswith(("_paper", "_release"))}
    assert {*RECIPES, *HEADS} == named | {"multi30k_small", "multi30k_lstm", "electra_small"}


def test_good_and_bad_heads_train_two_steps(tmp_path: Path) -> None:
    (name,) = HEADS
    recipe = load_any_recipe(name)
    conditions = {
        key: {"types": 4, "length": 4, "heads": 2, "starts": item.starts}
        for key, item in recipe.experiment.conditions.items()
    }
    keys = (
        "network.width=8",
        "experiment.search={models: 1, candidates: 16, trials: 1, steps: 2}",
        "experiment.threshold=0.3",
        f"experiment.conditions={conditions}",
        "training={runs: 2, steps: 2, batch_size: 4, test_sentences: 4, device: cpu}",
    )
    results = train(load_task(name, keys), tmp_path / "run", quiet=True)
    assert list(results) == ["search", "bad", "one_good", "random"]
    assert all(result.step == 2 for result in results.values())


def two_steps(name: str, data: Path, folder: Path, patch: pytest.MonkeyPatch, *keys: str) -> list[str]:
    """Trains a recipe two steps and gives what was said of its KL."""
    patch.setenv("PROBATTN_DATA", str(data))
    patch.chdir(data)
    recipe = load_any_recipe(name)
    for section, package in NEEDS.items():
        if section in type(recipe).model_fields and find_spec(package) is None:
            pytest.skip(f"needs {package}, of an extra")
    task = load_task(name, [*keys_of(name, recipe), *keys])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ExplodedKLWarning)
        (result,) = train(task, folder, quiet=True).values()
    assert result.step == 2 and math.isfinite(result.train["loss"])
    return [str(warning.message) for warning in caught if warning.category is ExplodedKLWarning]


@pytest.mark.slow_but(*QUICK)
@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_two_steps(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = two_steps(name, folder, tmp_path / "run", monkeypatch)
    assert len(told) == is_printed(name), told
    assert all("outweighs the likelihood" in text and "attention.preset=release" in text for text in told)


ADVICE = (
    "attention.preset=release",
    f"training.kl_weight={RELEASE_KL_WEIGHT}",
    "training.kl_schedule=constant",
)


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
@pytest.mark.parametrize("name", ["cola_paper", "squad1_paper", "stsb_paper"])
def test_what_such_a_recipe_advises_trains_without_the_warning(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert two_steps(name, folder, tmp_path / "run", monkeypatch, *ADVICE) == []


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_whose_objective_does_not_train_says_so_first(name: str) -> None:
    lines = built_in_recipes()[name].read_text(encoding="utf-8").splitlines()
    head = " ".join(line.removeprefix("# ") for line in lines[:7])
    keys = " --set ".join(ADVICE)
    assert ("The printed objective does not train" in head and keys in head) == is_printed(name)
