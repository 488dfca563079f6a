"""Whatever a method asks to be measured is measured and shown, whatever the task."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import runs
import torch
from runs import succeeds
from transformers import T5Config, T5ForConditionalGeneration

from probattn.recipes import load_any_recipe
from probattn.sites import METHODS
from probattn.tasks import TASKS
from probattn.tasks.topics import TOPICS

METHODS_OF_TOPICS = {
    "posterior": "attention={method: babn}",
    "heads": "repulsion={weight: 0.1}",
    "alignment": "alignment={method: ct}",
}
"""An override of a recipe that brings a method with the topic."""
REPORT = (
    "report.resamples=100",
    "report.baseline=false",
    "report.head_examples=4",
    "report.masked_examples=3",
    "report.alignment_examples=4",
)
TRAINING = "training: {steps: 2, batch_size: 8, log_every: 1, device: cpu}\nprediction: {num_samples: 2}\n"
SYSTEMS = ("texts", "translation", "graph_text", "visual_questions", "pretraining")
HEADS = ("choices", "images", "labels", "language", "regression", "sequences", "spans", "tokens")
LEFT_OUT = {"graph": "its heads are measured on edges", "experiment": "its methods are its conditions"}
"""Sections of the tasks that the table leaves out, and why."""
WITHOUT_SHARE = ("regression",)
"""Tasks without a share among their measures, which is measured without each head."""
NEEDS = {"translation": "sentencepiece", "graph_text": "nltk", "images": "PIL", "sequences": "sacrebleu"}
"""Packages of extras that tasks need."""

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


def write_data(folder: Path) -> dict[str, str]:
    """Data of every task of a head below a folder, and the section of a recipe that reads them."""
    words = runs.WORDS
    texts = [" ".join(words[(number + step) % len(words)] for step in range(4)) for number in range(48)]
    rows = {
        "choices": [
            {"text": text, "endings": ["good", "bad film"], "label": number % 2}
            for number, text in enumerate(texts)
        ],
        "labels": [
            {"text": text, "labels": ["a", "b"][: 1 + number % 2]} for number, text in enumerate(texts)
        ],
        "regression": [{"text": text, "label": number % 7} for number, text in enumerate(texts)],
        "sequences": [{"source": text, "target": "good film"} for text in texts],
        "spans": [
            {"question": f"what {number}", "context": text, "answers": text.split()[0], "answer_start": 0}
            for number, text in enumerate(texts)
        ],
    }
    sections = {}
    for name, lines in rows.items():
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8"
        )
        sections[name] = f"{name}: {{train: {folder}/{name}.jsonl}}"
    tags = (
        "\n".join(f"{word} {'O' if place else 'B-x'}" for place, word in enumerate(text.split()))
        for text in texts
    )
    (folder / "tokens.conll").write_text("\n\n".join(tags), encoding="utf-8")
    (folder / "language.txt").write_text("\n\n".join(texts), encoding="utf-8")
    sections["tokens"] = f"tokens: {{train: {folder}/tokens.conll}}"
    sections["language"] = f"language: {{train: {folder}/language.txt, objective: masked, block_length: 12}}"
    return sections


def write_images(folder: Path) -> str:
    image = pytest.importorskip("PIL.Image", reason="needs pillow")
    for number in range(48):
        place = folder / "images" / ("dark" if number % 2 else "light")
        place.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (8, 8), (number, number, 200 * (number % 2))).save(place / f"{number}.png")
    sizes = "image_size: 8, patch_size: 4, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2"
    return f"images: {{train: {folder}/images}}\nnetwork: {{new: vit, config: {{{sizes}, intermediate_size: 16}}}}\n"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of a tiny recipe of a task."""
    folder = tmp_path_factory.mktemp("topics")
    texts = {name: runs.recipes(folder)[name] for name in SYSTEMS}
    sizes = {
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 16,
        "num_layers": 1,
        "num_heads": 2,
        "decoder_start_token_id": 0,
    }
    torch.manual_seed(0)
    codec = runs.tokenizer()
    codec.mask_token = runs.WORDS[0]  # for masked language models
    for place, net in (
        ("encoder", runs.bert().base_model),
        ("t5", T5ForConditionalGeneration(T5Config(vocab_size=len(codec), **sizes))),
    ):
        net.save_pretrained(folder / place)
        codec.save_pretrained(folder / place)
    for name, section in write_data(folder).items():
        network = "t5" if name == "sequences" else "encoder"
        texts[name] = f"{section}\nnetwork: {{name: {folder}/{network}}}\n{TRAINING}"

    def write(name: str) -> Path:
        if name in NEEDS:
            pytest.importorskip(NEEDS[name], reason=f"needs {NEEDS[name]}, of an extra")
        if name == "images":
            texts[name] = write_images(folder) + TRAINING
        file = folder / f"{name}.yaml"
        file.write_text(texts[name], encoding="utf-8")
        return file

    return write


def test_every_topic_has_a_method_and_every_task_a_row() -> None:
    assert {topic for method in METHODS for topic in method.measured} == set(TOPICS) == set(METHODS_OF_TOPICS)
    sections = {task.section or "texts" for task in TASKS}
    assert sections - set(LEFT_OUT) == {*HEADS, *SYSTEMS}


@pytest.mark.parametrize("name", [*SYSTEMS, *HEADS])
def test_a_report_has_what_the_methods_ask_for(
    name: str, recipe: Callable[[str], Path], tmp_path: Path
) -> None:
    file, run = recipe(name), tmp_path / "run"
    keys = [word for key in (*REPORT, *METHODS_OF_TOPICS.values()) for word in ("--set", key)]
    succeeds("train", file, "--output", run, "--quiet", *keys)
    succeeds("report", run, "--quiet")
    records = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    page = (run / "report.html").read_text(encoding="utf-8")
    for topic, (field, _) in TOPICS.items():
        assert records[field], f"{name}: no records of {topic}"
        assert f'<section id="{topic}"' in page, f"{name}: no section on {topic}"
    sites = {site["site"] for site in records["heads"]["sites"]}
    assert (
        sites
        >= {site["site"] for site in records["alignment"]["sites"]}
        >= {site["site"] for site in records["health"]}
    )
    assert bool(records["heads"]["drops"]) == (name not in WITHOUT_SHARE)
    assert load_any_recipe(run / "recipe.yaml").report.head_examples == records["heads"]["texts"] == 4
