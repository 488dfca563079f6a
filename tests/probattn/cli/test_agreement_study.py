"""The study of agreement, on tiny runs; its measures against loops written out."""

from __future__ import annotations

import json

import agreement_study
import pytest
import torch

from probattn.cli.trained import load_model
from probattn.models import RatedWords
from probattn.probes import contextualized_agreement

KEYS = [
    "training.steps=6",
    "training.eval_every=6",
    "training.log_every=2",
    "training.batch_size=8",
    "training.device=cpu",
    "network.config.hidden_size=4",
    "network.config.attention_size=4",
    "network.config.embedding_size=5",
    "network.embeddings=null",
    "network.vocabulary=null",
    "probe.steps=[0, 2, 4]",
    "probe.examples=9",
    "data.max_length=null",
]


@pytest.fixture(scope="module")
def study(reviews, tmp_path_factory):
    """Folder and content of a study of one subject, two seeds."""
    place = tmp_path_factory.mktemp("study")
    keys = [*KEYS, f"data.train={reviews}"]

    def run():
        agreement_study.main(place, seeds=2, subjects="sst2", output=place / "agreement.json", set_=keys)
        return json.loads((place / "agreement.json").read_text(encoding="utf-8"))

    first = run()
    stamps = {file: file.stat().st_mtime_ns for file in place.rglob("*.safetensors")}
    assert run() == first
    assert {file: file.stat().st_mtime_ns for file in stamps} == stamps
    return place, first


def last(place, method, step):
    return RatedWords.load(place / "sst2" / "seed-0" / method / "probe" / f"step-{step:06d}.safetensors")


def test_columns_are_the_definitions(study):
    place, content = study
    run = content["runs"][0]
    learned = last(place, "learned", 6)
    uniform = {step: last(place, "uniform", step) for step in (0, 2, 4, 6)}
    course = {step: learned.agreement(learned.attention, each.probe) for step, each in uniform.items()}
    assert {int(step): value for step, value in run["course"]["uniform"].items()} == course
    assert run["agreement"]["attention_uniform"] == max(course.values()) == course[run["best_step"]]
    assert run["agreement"]["attention_probe"] == learned.agreement()
    second = [(step, last(place, "second", step)) for step in (0, 2, 4, 6)]
    rows = [
        (step, each.accuracy, learned.agreement(learned.attention, each.attention)) for step, each in second
    ]
    for pair, value in run["agreement"].items():
        found = contextualized_agreement(value, rows)
        assert run["xi"][pair] == {
            "performance": found.performance,
            "step": found.step,
            "reached": found.reached,
        }
    assert run["xi"]["end"]["performance"] == second[-1][1].accuracy


def test_the_methods_differ_in_what_they_are_called(study):
    place, _ = study
    nets = {
        method: load_model(place / "sst2" / "seed-0" / method).net
        for method in ("learned", "uniform", "frozen")
    }
    assert nets["uniform"].config.uniform_attention and not nets["learned"].config.uniform_attention
    rows = last(place, "uniform", 6)
    weights, mask = rows.padded(rows.attention)
    expected = 1 / rows.lengths[:, None].float()
    torch.testing.assert_close(weights, torch.where(mask, expected, 0.0))
    first, trained = last(place, "frozen", 0), last(place, "frozen", 6)
    assert torch.equal(first.probe, trained.probe) and not torch.equal(first.attention, trained.attention)
    moved = last(place, "learned", 0), last(place, "learned", 6)
    assert not torch.equal(moved[0].probe, moved[1].probe)


def test_uniform_attention_alone_is_trained_longer():
    subject = agreement_study.Subject("sst2_additive", steps=(0, 2), longer=(6, 9, 12))
    usual = agreement_study.load_any_recipe("sst2_additive").training.steps
    for method, steps, watched in (("uniform", 12, (0, 2, 6, 9)), ("learned", usual, (0, 2))):
        recipe = agreement_study.load_any_recipe(subject.recipe, subject.changes(method, 0))
        assert (recipe.training.steps, tuple(recipe.probe.steps)) == (steps, watched)


def test_summary_is_the_mean_over_seeds(study):
    _, content = study
    runs, summary = content["runs"], content["summary"]["sst2"]
    assert summary["seeds"] == 2
    for pair in ("attention_uniform", "saliency_uniform"):
        mean = (runs[0]["agreement"][pair] + runs[1]["agreement"][pair]) / 2
        assert summary["agreement"][pair]["mean"] == pytest.approx(mean)
    assert set(summary["course"]["uniform"]) == {"0", "2", "4", "6"}
    assert 0 <= summary["frozen"]["accuracy"]["mean"] <= 1


def test_optimal_attention_is_no_worse_than_the_learned(translation_recipe, tmp_path, monkeypatch):
    pytest.importorskip("sentencepiece", reason="needs sentencepiece (the extra 'translation')")
    pytest.importorskip("sacrebleu", reason="needs sacrebleu (the extra 'translation')")
    subject = agreement_study.Subject(str(translation_recipe), **agreement_study.TRANSLATION, linear=True)
    monkeypatch.setattr(agreement_study, "SUBJECTS", {"linear": subject})
    keys = ["network={name: lstm, width: 8, layers: 1, heads: 1, output_width: 0}", "repulsion=null"]
    agreement_study.main(tmp_path, seeds=1, subjects="linear", output=tmp_path / "found.json", set_=keys)
    (run,) = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["runs"]
    found = run["optimal"]
    assert found["least_loss"] < found["loss"]
    assert 0 <= found["attention_probe"] <= 1 and 0 <= found["optimal_probe"] <= 1
    assert found["outputs"] == sum(
        len(row["labels"]) for row in _pairs(tmp_path / "linear" / "seed-0" / "learned")
    )


def _pairs(folder):
    """The watched pairs of a run of translation."""
    recipe = agreement_study.load_any_recipe(str(folder / "recipe.yaml"))
    rows = agreement_study.prepare_translation(recipe).watched.rows
    return [rows[row] for row in range(len(rows))]
