"""Tiny networks, and run folders of every kind of task, made once."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import pickle
import random
import shutil
import socket
import traceback
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import torch
from click.testing import Result
from scipy import sparse
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)
from typer import testing

from probattn import AlignmentAttention, BayesianAttention, DisagreementAttention, RepulsiveAttention
from probattn.cli import app
from probattn.models import SelfAttentiveConfig, SelfAttentiveForSequenceClassification, convert
from probattn.report import RunDescription

WORDS = ["good", "fine", "great", "bad", "poor", "awful", "film", "plot", "cast", "the", "a", "was"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
GERMAN = {
    "a": "ein",
    "dog": "Hund",
    "cat": "Kater",
    "man": "Mann",
    "runs": "rennt",
    "sees": "sieht",
    "red": "roter",
}
ADDITIVE = """
network:
  name: self_attentive
  config:
    {embedding_size: 5, hidden_size: 4, attention_size: 4, num_attention_heads: 1, classifier_size: 0,
      attention_activation: relu}
attention: {method: deterministic}
"""
"""A tiny classifier with additive attention, whose agreement can be measured."""
TRAINING = "steps: 6, batch_size: 8, log_every: 2, checkpoint_every: 3, device: cpu"
REPORT = (
    "resamples: 100, uncertain: 1, mistakes: 1, alignment_examples: 4, head_examples: 4, masked_examples: 2"
)


def folders_in(place: Path) -> set[str]:
    """Names of all folders below one to which another process writes."""
    return {name for _, names, _ in os.walk(place) for name in names}


testing._get_command = cache(testing._get_command)  # whose result typer makes anew for every call


def invoke(*arguments: object) -> Result:
    """Runs a command in this process."""
    return testing.CliRunner().invoke(app, [str(argument) for argument in arguments])


def succeeds(*arguments: object) -> str:
    """What a command writes to standard output; it should succeed."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output + "".join(traceback.format_exception(result.exception))
    return result.stdout


def refused(*arguments: object) -> str:
    """The one line that a command says and does nothing else."""
    result = invoke(*arguments)
    assert result.exit_code == 2 and not result.stdout, result.output
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("warning: ")]
    assert line.startswith("error: ")
    return line


def forked(function: Callable[..., None], *arguments: object) -> BaseProcess:
    """A function in a process of its own, forked from one that has imported the package and done nothing else."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(
        ["probattn.cli", "probattn.tasks", "probattn.inference", "transformers.trainer"]
    )
    process = server.Process(target=function, args=arguments)
    process.start()
    return process


def forked_here(function: Callable[..., None], *arguments: tuple[object, ...]) -> list[BaseProcess]:
    """A function in processes that are forked from this one, and need not import anything; one a tuple of arguments."""
    context = multiprocessing.get_context("fork")
    processes: list[BaseProcess] = [context.Process(target=function, args=of_one) for of_one in arguments]
    for process in processes:
        process.start()
    return processes


def started(*arguments: object, output: Path = Path(os.devnull)) -> BaseProcess:
    """A command in a process of its own, which writes into a file what it says."""
    return forked(_command, list(map(str, arguments)), dict(os.environ), output)


def _command(arguments: list[str], environment: dict[str, str], output: Path) -> None:
    os.environ.clear()  # of the server's, which a test may have changed
    os.environ.update(environment)
    file = os.open(output, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    torch.set_num_threads(1)  # the pool of a process that was forked may have no threads
    for stream in (1, 2):
        os.dup2(file, stream)
    app(arguments)


def free_port() -> str:
    """The number of a port that nothing listens to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def overrides(*keys: str) -> list[str]:
    """Keys of a recipe as options of a command."""
    return [word for key in keys for word in ("--set", key)]


def trained(recipe: Path, place: Path, *keys: str) -> Path:
    """The folder of a run that is trained with a recipe and other values of its keys."""
    succeeds("train", recipe, "--output", place, "--quiet", *overrides(*keys))
    return place


def described(**changes: object) -> RunDescription:
    """What a run says of itself."""
    fields = {"name": "demo", "method": "BABN", "network": "minilm", "data": "films", "train_size": 1000}
    fields |= {"steps": 126, "seconds": 1.0, "num_samples": 10, "device": "cpu", "seed": 0, "created": "now"}
    return RunDescription.model_validate(fields | changes)


def bert(**options: object) -> PreTrainedModel:
    """A BERT of 2 layers x 16."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    vocabulary = len(SPECIAL) + len(WORDS)
    return BertForSequenceClassification(
        BertConfig(vocab_size=vocabulary, max_position_embeddings=16, **sizes, **options)
    )


def networks() -> dict[str, PreTrainedModel]:
    """Networks to save, of several methods and hosts."""
    torch.manual_seed(0)
    sizes = {
        "embedding_size": 5,
        "hidden_size": 4,
        "attention_size": 4,
        "num_attention_heads": 1,
        "vocab_size": 20,
    }
    return {
        "plain": bert(),
        "babn": convert(bert(), BayesianAttention()),
        "lognormal": convert(bert(), BayesianAttention(posterior="lognormal"), layers=[0]),
        "aligned": convert(bert(), BayesianAttention.bam(), AlignmentAttention("gan")),
        "repulsive": convert(bert(), RepulsiveAttention(projections=("query",))),
        "penalty": convert(bert(), DisagreementAttention("positions")),
        "additive": convert(
            SelfAttentiveForSequenceClassification(SelfAttentiveConfig(**sizes)), BayesianAttention()
        ),
    }


def tokenizer() -> PreTrainedTokenizerFast:
    """Of whole words, at most 16 tokens a text."""
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=16, **names)


def write_reviews(file: Path, number: int = 60) -> None:
    """A CSV file of short reviews, every other one positive."""
    draw = random.Random(0)
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened)
        writer.writerow(["text", "label"])
        for row in range(number):
            words = WORDS[:3] if row % 2 else WORDS[3:6]
            rest = [draw.choice(WORDS[6:]) for _ in range(draw.randint(2, 9))]
            text = " ".join([*rest, draw.choice(words), *draw.sample(rest, 2), str(row)])
            writer.writerow([text, "positive" if row % 2 else "negative"])


def write_pairs(folder: Path, train: int = 30, dev: int = 8, test: int = 8) -> None:
    """Parallel sentences, word for word."""
    draw = random.Random(0)
    for part, number in (("train", train), ("dev", dev), ("test", test)):
        pairs = []
        for _ in range(number):
            words = draw.choices(list(GERMAN), k=draw.randint(2, 6))
            pairs.append((" ".join(words) + " .", " ".join(GERMAN[word] for word in words) + " ."))
        for language, side in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (folder / f"{part}.{language}").write_text("\n".join(side) + "\n", encoding="utf-8")


def write_graph_texts(folder: Path, train: int = 24, dev: int = 6, test: int = 6) -> None:
    """Titles, graphs of two or three entities, and texts that name them, in AGENDA's form."""
    draw = random.Random(0)
    (folder / "relations.vocab").write_text("USED-FOR\nPART-OF\n", encoding="utf-8")
    for part, number in (("train", train), ("val", dev), ("test", test)):
        lines = []
        for row in range(number):
            names = [f"{draw.choice(WORDS[:6])} {draw.choice(WORDS[6:9])}" for _ in range(draw.randint(2, 3))]
            kinds = [draw.choice(["method", "task"]) for _ in names]
            places = [f"<{kind}_{place}>" for place, kind in enumerate(kinds)]
            relations = f"0 {draw.randint(0, 1)} 1" if row % 3 else ""
            types = " ".join(f"<{kind}>" for kind in kinds)
            text = f"the {places[0]} was {draw.choice(WORDS[:6])} , a {places[1]} {row % 5} ."
            lines.append("\t".join([f"the film {row}", " ; ".join(names), types, relations, text]))
        (folder / f"{part}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_visual_questions(folder: Path, train: int = 24, test: int = 6) -> None:
    """Pictures of 16 x 16 of one colour, questions about it and answers, in easy-VQA's form, below ``pictures``."""
    from PIL import Image

    draw = random.Random(0)
    colours = {"red": (220, 40, 40), "blue": (40, 40, 220), "green": (40, 180, 40)}
    for part, number in (("train", train), ("test", test)):
        place = folder / "pictures" / part
        (place / "images").mkdir(parents=True, exist_ok=True)
        questions: list[tuple[str, str, int]] = []
        for row in range(number):
            name = list(colours)[row % 3]
            Image.new("RGB", (16, 16), colours[name]).save(place / "images" / f"{row}.png")
            other = draw.choice(list(colours))
            questions += [
                ("what color is the shape?", name, row),
                (f"is the shape {other}?", "yes" if other == name else "no", row),
            ]
        (place / "questions.json").write_text(json.dumps(questions), encoding="utf-8")


def write_corpus(folder: Path, number: int = 90) -> None:
    """A file of texts without labels, a text a line."""
    draw = random.Random(0)
    lines = [" ".join([*draw.choices(WORDS, k=draw.randint(2, 12)), str(row)]) for row in range(number)]
    (folder / "corpus.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")


def write_graph(folder: Path) -> None:
    """Three circles of 30 nodes in Planetoid's form."""
    nodes, classes, width = 90, 3, 12
    draw = np.random.default_rng(0)
    labels = np.arange(nodes) % classes
    words = (draw.random((nodes, width)) < 0.15) | (np.arange(width) % classes == labels[:, None])
    neighbours = defaultdict(list)
    for node in range(nodes):
        neighbours[node] += [(node + classes) % nodes, (node + 2 * classes) % nodes]
    features = sparse.csr_matrix(words.astype(np.float32))
    indicators = np.eye(classes, dtype=np.int32)[labels]
    content = {
        "x": features[:12],
        "y": indicators[:12],
        "allx": features[:60],
        "ally": indicators[:60],
        "tx": features[60:],
        "ty": indicators[60:],
        "graph": neighbours,
    }
    for ending, value in content.items():
        (folder / f"ind.pubmed.{ending}").write_bytes(pickle.dumps(value, protocol=2))
    (folder / "ind.pubmed.test.index").write_text("".join(f"{node}\n" for node in range(60, nodes)))


def recipes(folder: Path) -> dict[str, str]:
    """Recipes of every kind of task by name, and the data they need below ``folder``."""
    network = folder / "network"
    tokenizer().save_pretrained(network)
    bert().save_pretrained(network)
    write_reviews(folder / "reviews.csv")
    write_pairs(folder)
    write_graph(folder)
    write_graph_texts(folder)
    write_visual_questions(folder)
    write_corpus(folder)
    data = f"{{train: {folder}/reviews.csv, shifted: {folder}/reviews.csv, max_length: null}}"
    texts = (
        f"data: {data}\nprediction: {{num_samples: 3}}\nreport: {{{REPORT}, texts: [the film was good]}}\n"
    )
    translation = f"""
translation: {{train: {folder}/train, validation: {folder}/dev, test: {folder}/test, subwords: 60, max_length: 40}}
search: {{num_beams: 2, extra_length: 3}}
report: {{samples: 2, resamples: 100}}
training: {{{TRAINING}, eval_every: 3, warmup_steps: 2}}
"""
    return {
        "texts": f"network: {{name: {network}}}\nattention: {{method: babn}}\ntraining: {{{TRAINING}}}\n{texts}",
        "aligned": f"network: {{name: {network}}}\nalignment: {{method: ct}}\nattention: {{method: deterministic}}\n"
        f"training: {{{TRAINING}}}\n{texts}",
        "probed": "network: {name: self_attentive, config: {embedding_size: 5, hidden_size: 4, attention_size: 4, "
        "num_attention_heads: 1, classifier_size: 0, attention_activation: relu}}\nattention: {method: deterministic}\n"
        f"training: {{{TRAINING}}}\nprobe: {{steps: [0, 3], examples: 6}}\n{texts}",
        "graph": f"graph: {{name: pubmed, folder: {folder}}}\nnetwork: {{heads: 2, features: 4, output_heads: 2}}\n"
        "attention: {method: babn}\nalignment: {method: ct}\ntraining: {epochs: 6, kl_warmup_steps: 2, "
        "checkpoint_every: 3, log_every: 2, device: cpu, early_stopping: null}\nprediction: {num_samples: 3}\n"
        "report: {resamples: 100}\n",
        "translation": f"network: {{width: 16, layers: 1, heads: 2, feed_forward: 16}}\nrepulsion: {{weight: 0.1}}\n"
        f"attention: {{method: deterministic}}\n{translation}",
        "lstm": f"network: {{name: lstm, width: 8, layers: 1}}\nattention: {{method: variational}}\n{translation}",
        "graph_text": f"graph_text: {{folder: {folder}, train: train.tsv, validation: val.tsv, test: test.tsv}}\n"
        "network: {width: 8, layers: 1, heads: 2, lstm_layers: 1}\nrepulsion: {layers: encoder}\n"
        f"attention: {{method: deterministic}}\ntraining: {{{TRAINING}, eval_every: 3}}\n"
        "prediction: {num_samples: 3}\nsearch: {num_beams: 2, max_length: 8}\n"
        "report: {samples: 2, resamples: 100, head_examples: 4, masked_examples: 2}\n",
        "visual_questions": f"visual_questions: {{folder: {folder}/pictures, image_size: 16}}\n"
        "network: {width: 8, layers: 1, heads: 2, embedding_size: 4, channels: [8, 8, 8]}\nattention: {method: babn}\n"
        f"training: {{{TRAINING}, eval_every: 3, schedule: constant_with_warmup}}\nprediction: {{num_samples: 3}}\n"
        "report: {samples: 2, resamples: 100}\n",
        "pretraining": f"pretraining: {{texts: [{folder}/corpus.txt], vocabulary: 200, max_length: 12, join: false, "
        "validation_fraction: 0.1, test_fraction: 0.1}\nnetwork: {width: 16, embedding: 8, layers: 2, heads: 2, "
        "feed_forward: 16, positions: 16}\nattention: {method: deterministic}\nrepulsion: {layers: [0], weight: 0.1}\n"
        f"training: {{{TRAINING}, eval_every: 3}}\nprediction: {{num_samples: 3}}\n"
        "report: {samples: 2, resamples: 100, head_examples: 4, masked_examples: 2}\n",
        "copying": "experiment:\n  threshold: 0.45\n  search: {models: 3, candidates: 6, steps: 4}\n  conditions:\n"
        "    uniform: {types: 4, length: 4, attention: uniform}\n    learned: {types: 4, length: 4, heads: 2}\n"
        "    other: {types: 4, length: 4, heads: 2, starts: one_good}\n"
        "network: {width: 8}\ntraining: {runs: 2, steps: 4, batch_size: 8, learning_rate: 0.02, evaluate_every: 2, "
        "test_sentences: 4, probe_sentences: 2, checkpoint_every: 2, device: cpu}\n",
        "keyword": "experiment: {task: keyword, conditions: {one: {types: 5, length: 4}, two: {types: 5, length: 4, "
        "bidirectional: true}}}\nnetwork: {width: 8}\ntraining: {runs: 2, steps: 4, batch_size: 8, evaluate_every: 2, "
        "test_sentences: 40, checkpoint_every: 2, device: cpu}\n",
    }


def head_recipes(folder: Path, rest: str) -> dict[str, str]:
    """Recipes of every head by name, with ``rest`` at their end; data and networks they need are below ``folder``."""
    sizes = {
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 16,
        "num_layers": 1,
        "num_heads": 2,
        "decoder_start_token_id": 0,
    }
    torch.manual_seed(0)
    codec = tokenizer()
    codec.mask_token = WORDS[0]  # for masked language models
    networks = {
        "encoder": bert().base_model,
        "t5": T5ForConditionalGeneration(T5Config(vocab_size=len(codec), **sizes)),
    }
    for name, net in networks.items():
        net.save_pretrained(folder / name)
        codec.save_pretrained(folder / name)
    texts = [f"{' '.join(WORDS[(row + step) % len(WORDS)] for step in range(4))} {row}" for row in range(48)]
    rows: dict[str, list[dict[str, object]]] = {
        "choices": [
            {"text": text, "endings": ["good", "bad film"], "label": row % 2}
            for row, text in enumerate(texts)
        ],
        "labels": [{"text": text, "labels": ["a", "b"][: 1 + row % 2]} for row, text in enumerate(texts)],
        "regression": [{"text": text, "label": row % 7} for row, text in enumerate(texts)],
        "sequences": [{"source": text, "target": "good film"} for text in texts],
        "spans": [
            {"question": f"what {row}", "context": text, "answers": text.split()[0], "answer_start": 0}
            for row, text in enumerate(texts)
        ],
    }
    for name, lines in rows.items():
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    tags = (
        "\n".join(f"{word} {'O' if row else 'B-x'}" for row, word in enumerate(text.split()))
        for text in texts
    )
    (folder / "tokens.conll").write_text("\n\n".join(tags), encoding="utf-8")
    (folder / "language.txt").write_text("\n\n".join(texts), encoding="utf-8")
    sections = {name: f"{name}: {{train: {folder}/{name}.jsonl}}" for name in rows}
    sections["tokens"] = f"tokens: {{train: {folder}/tokens.conll}}"
    sections["language"] = f"language: {{train: {folder}/language.txt, objective: masked, join: false}}"
    recipes = {
        name: f"{text}\nnetwork: {{name: {folder}/{'t5' if name == 'sequences' else 'encoder'}}}\n{rest}"
        for name, text in sections.items()
    }
    return recipes | _image_recipe(folder, rest)


def _image_recipe(folder: Path, rest: str) -> dict[str, str]:
    """The same of images, where pillow is there."""
    if find_spec("PIL") is None:
        return {}
    from PIL import Image

    for row in range(48):
        file = folder / "images" / ("dark" if row % 2 else "light") / f"{row}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (row, row, 200 * (row % 2))).save(file)
    sizes = "image_size: 8, patch_size: 4, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2"
    network = f"network: {{new: vit, config: {{{sizes}, intermediate_size: 16}}}}"
    return {"images": f"images: {{train: {folder}/images}}\n{network}\n{rest}"}


@cache
def make_runs(folder: Path) -> dict[str, Path]:
    """Finished runs with their reports, and one of each that was interrupted, by name."""
    found = {}
    for name, text in recipes(folder).items():
        file, place = folder / f"{name}.yaml", folder / "runs" / name
        file.write_text(text, encoding="utf-8")
        for command in (("train", file, "--output", place, "--quiet"), ("report", place)):
            result = invoke(*command)
            if result.exit_code:
                raise RuntimeError(f"{name}: {result.output}") from result.exception
        found[name] = place
        found[f"{name}, interrupted"] = _interrupted(place, folder / "runs" / f"{name}-interrupted")
    return found


def _interrupted(run: Path, place: Path) -> Path:
    """The run as it was before its last checkpoint."""
    shutil.copytree(run, place)
    for name in ("report.html", "metrics.json"):
        (place / name).unlink()
    for checkpoints in place.rglob("checkpoints"):
        steps = sorted(checkpoints.glob("step-*"))
        if len(steps) > 1:
            shutil.rmtree(steps[-1])
            shutil.rmtree(checkpoints.parent / "model", ignore_errors=True)
    return place
