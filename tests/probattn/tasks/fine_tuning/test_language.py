"""Masked and causal language modelling: the command line, the measures, masks, and what is refused."""

import json
import random

import pytest
import torch
from runs import WORDS, overrides, refused, succeeds, tokenizer, trained
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from probattn.inference.posterior import Posterior
from probattn.models.program import IGNORED
from probattn.recipes import load_any_recipe
from probattn.tasks import load_results
from probattn.tasks.fine_tuning import Language
from probattn.tasks.fine_tuning.encoding import Batch
from probattn.tasks.fine_tuning.predictor import Predictor
from probattn.tasks.networks import Network


def codec():
    found = tokenizer()
    found.add_special_tokens({"mask_token": "[MASK]"})
    return found


def net_of(objective):
    torch.manual_seed(0)
    if objective == "causal":
        return GPT2LMHeadModel(
            GPT2Config(vocab_size=len(codec()), n_positions=16, n_embd=16, n_layer=1, n_head=2)
        ).eval()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return BertForMaskedLM(BertConfig(vocab_size=len(codec()), max_position_embeddings=16, **sizes)).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("language")
    draw = random.Random(0)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(3, 9))) for _ in range(60)]
    (place / "texts.txt").write_text("\n\n".join(lines) + "\n")
    for objective in ("masked", "causal"):
        codec().save_pretrained(place / objective)
        net_of(objective).save_pretrained(place / objective)
    return place


def recipe_of(folder, objective):
    file = folder / f"{objective}.yaml"
    file.write_text(
        f"language: {{train: {folder}/texts.txt, objective: {objective}, block_length: 12, mask_probability: 0.3}}\n"
        f"network: {{name: {folder}/{objective}}}\nattention: {{method: babn}}\n"
        "training: {steps: 6, batch_size: 8, log_every: 2, checkpoint_every: 3, device: cpu}\n"
        "prediction: {num_samples: 3, batch_size: 4}\nreport: {resamples: 100, uncertain: 2}\n"
    )
    return file


def task_of(folder, objective, *keys):
    return Language(load_any_recipe(recipe_of(folder, objective), keys))


@pytest.fixture(scope="module", params=["masked", "causal"])
def run(request, folder, tmp_path_factory):
    place = trained(recipe_of(folder, request.param), tmp_path_factory.mktemp(request.param) / "run")
    succeeds("report", place)
    return request.param, place


def test_a_run_is_reported_and_answers(run):
    objective, place = run
    results = load_results(place)
    expected = ["deterministic", "bayesian_mean", "bayesian_expectation"]
    assert [score.model for score in results.scores] == expected
    for score in results.scores:
        values = score.values
        assert values["perplexity"] == pytest.approx(torch.tensor(values["nll"]).exp().item(), rel=1e-5)
    assert ("True tokens" in (place / "report.html").read_text()) == (objective == "masked")
    text = "the film was [MASK] [MASK]" if objective == "masked" else "the film was good"
    answer = json.loads(succeeds("predict", place, text, "--json"))
    assert answer["entropy"] > 0 and answer["mutual_information"] >= 0
    shown = succeeds("predict", place, text)
    if objective == "masked":
        assert [len(entry) for entry in answer["masks"]] == [5, 5]
        best = answer["masks"][0]
        truth = sorted((e["probability"] for e in best), reverse=True)
        assert [entry["probability"] for entry in best] == truth
        assert all(entry["std"] >= 0 for entry in best)
        assert best[0]["token"] in shown
    else:
        assert [entry["word"] for entry in answer["words"]] == ["the", "film", "was", "good", "[SEP]"]
        words = pytest.approx(answer["surprise"], abs=1e-4)
        assert sum(entry["surprise"] for entry in answer["words"]) == words
        assert "whole text" in shown


@pytest.mark.parametrize("objective", ["masked", "causal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_measures_are_those_of_transformers_own_loss(folder, objective, dtype):
    task, net = task_of(folder, objective), net_of(objective).to(dtype)
    examples = task.examples["test"]
    encoded = task.encode(codec(), examples)
    tensors = task.collate(codec())([each.rows[0] for each in encoded])
    network = Network(task.program_of(net).eval(), folder, "deterministic", codec())
    batch = Batch(examples, encoded, tensors, net.config)
    posterior = Predictor(task, network).drawn(batch, 0)
    columns = task.record(posterior, batch)
    output = net(**tensors)
    assert task.figures(columns)["nll"] == pytest.approx(output.loss.item(), rel=1e-5)
    logits, labels = output.logits, tensors["labels"]
    if objective == "causal":
        logits, labels = logits[:, :-1], labels[:, 1:]
    known = labels != IGNORED
    assert columns["tokens"].sum() == known.sum()
    right = (logits.argmax(dim=-1) == labels)[known].double().mean().item()
    assert task.figures(columns)["accuracy"] == pytest.approx(right)

    # Of several draws: the mean of probabilities, against a sum over all places.
    torch.manual_seed(0)
    draws = posterior.logits + torch.randn(4, *posterior.logits.shape[1:], dtype=dtype)
    nll = task.figures(task.record(Posterior(draws), Batch(examples, encoded, tensors, net.config)))["nll"]
    places = task._positions(tensors["labels"])
    mean = draws.softmax(dim=-1).mean(dim=0)
    truth = labels.gather(1, places)
    terms = [
        -mean[b, k, c].log()
        for b, row in enumerate(truth.tolist())
        for k, c in enumerate(row)
        if c != IGNORED
    ]
    assert nll == pytest.approx(torch.stack(terms).mean().item(), rel=1e-5)


def test_masks_of_the_test_are_fixed_and_those_of_training_change(folder):
    task = task_of(folder, "masked")
    again = task_of(folder, "masked", "training.seed=3")
    assert task.examples["test"] == again.examples["test"]
    collate = task.collate(codec())
    rows = [each.rows[0] for each in task.encode(codec(), task.examples["train"])]
    torch.manual_seed(0)
    first, second = collate(rows), collate(rows)
    assert not torch.equal(first["labels"], second["labels"])
    torch.manual_seed(0)
    assert torch.equal(collate(rows)["input_ids"], first["input_ids"])
    known = first["labels"] != IGNORED
    assert 0.15 < known.sum() / first["attention_mask"].sum() < 0.4  # 30% of those that are not special
    ids = torch.tensor([row["input_ids"][:3] for row in rows])
    assert not known[:, :3][ids < 4].any()


def test_joined_texts_are_cut_into_passages_without_loss(folder):
    joined, single = task_of(folder, "masked"), task_of(folder, "masked", "language.join=false")
    ids = [number for each in single.examples["train"] for number in each["ids"]]
    cut = [each["ids"] for each in joined.examples["train"]]
    assert [number for each in cut for number in each] == ids
    assert all(len(each) == 12 for each in cut[:-1])
    assert len(single.examples["train"]) > len(cut)


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_tables_are_read_by_their_column(folder, tmp_path, kind):
    file = tmp_path / f"rows.{kind}"
    file.write_text('{"body": "the film"}\n' if kind == "jsonl" else "body\nthe film\n")
    sources = [f"language.{part}={file}" for part in ("train", "validation", "test")]
    task = task_of(folder, "causal", *sources, "language.text=body")
    assert codec().decode(task.examples["test"][0]["ids"], skip_special_tokens=True) == "the film"


@pytest.mark.parametrize(
    ("objective", "content", "expected"),
    [
        ("masked", "", "expected text, got an empty file"),
        ("causal", " \n\n \n", "expected text, got an empty file"),
        ("masked", "one line\n", "too few to set some aside"),
    ],
)
def test_what_holds_no_texts_is_refused(folder, tmp_path, objective, content, expected):
    file = tmp_path / "texts.txt"
    file.write_text(content)
    keys = overrides(f"language.train={file}")
    assert expected in refused("train", recipe_of(folder, objective), "-o", tmp_path / "run", *keys)


def test_a_tokenizer_without_mask_and_a_text_without_one_are_refused(folder, run, tmp_path):
    objective, place = run
    if objective == "causal":
        place_of = tmp_path / "network"
        net_of("masked").save_pretrained(place_of)
        tokenizer().save_pretrained(place_of)
        keys = overrides(f"network.name={place_of}")
        line = refused("train", recipe_of(folder, "masked"), "-o", tmp_path / "run", *keys)
        assert "expected a tokenizer with a mask token" in line
    else:
        assert "expected [MASK] in a text" in refused("predict", place, "the film was good")
