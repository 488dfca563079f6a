"""The study of agreement, on tiny runs; its measures against loops written out."""

import json
from pathlib import Path

import agreement_study
import pytest
import torch
import typer

from probattn.models import RatedWords
from probattn.probes import contextualized_agreement
from probattn.recipes import load_any_recipe
from probattn.tasks import load_network, load_task
from probattn.tasks.agreement import Recorded

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
        options = {"seeds": 2, "subjects": "sst2", "output": place / "agreement.json", "set_": keys}
        agreement_study.STUDY(folder=place, **options).main()
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
        method: load_network(place / "sst2" / "seed-0" / method).net
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


def test_a_frozen_probe_is_read_where_its_attention_is_most_like_the_usual(study):
    """Table 10, against a loop over the steps; a network whose best step is not its last is there among the seeds."""
    place, content = study
    for run in content["runs"]:
        folder = place / "sst2" / f"seed-{run['seed']}"
        files = {
            step: [folder / kind / "probe" / f"step-{step:06d}.safetensors" for kind in ("learned", "frozen")]
            for step in (0, 2, 4, 6)
        }
        final = RatedWords.load(files[6][0])
        course = {
            step: final.agreement(final.attention, RatedWords.load(file).attention)
            for step, (_, file) in files.items()
        }
        found = run["frozen"]
        assert {int(step): value for step, value in found["course"].items()} == course
        assert found["with_learned"] == max(course.values()) == course[found["best_step"]]
        assert found["with_learned_last"] == course[6]
        assert found["accuracy"] == RatedWords.load(files[6][1]).accuracy


def test_the_best_step_need_not_be_the_last():
    """Ratings of two texts of four words; only after step 5 does attention look where it usually does."""
    lengths = torch.tensor([4, 4])
    usual = torch.tensor([0.7, 0.1, 0.1, 0.1, 0.1, 0.1, 0.7, 0.1])
    other = torch.tensor([0.1, 0.7, 0.1, 0.1, 0.1, 0.1, 0.1, 0.7])
    probe = torch.linspace(0, 1, 8)

    def recorded(attention):
        rated = {
            step: RatedWords(weights, probe, lengths, torch.arange(2), torch.tensor([True, False]))
            for step, weights in attention.items()
        }
        return Recorded(Path("run"), None, rated)

    found = agreement_study.measure_frozen(
        recorded({0: other, 9: usual}), recorded({0: other, 5: usual, 9: other})
    )
    assert (found["with_learned"], found["best_step"], found["with_learned_last"]) == (1.0, 5, 0.0)
    assert found["course"] == {0: 0.0, 5: 1.0, 9: 0.0}


def test_frozen_figures_alone_are_put_into_the_file(study, reviews):
    """From the runs that are there; what else the file has stays, and other versions are refused."""
    place, content = study
    output = place / "again.json"
    old = json.loads(json.dumps(content))
    for run in old["runs"]:
        run["frozen"] = {"accuracy": 0.0, "agreement": 0.0, "with_learned_last": 0.0}
    output.write_text(json.dumps(old), encoding="utf-8")
    options = {"seeds": 2, "subjects": "sst2", "output": output, "frozen_only": True}
    options |= {"set_": [*KEYS, f"data.train={reviews}"]}
    agreement_study.STUDY(folder=place, **options).main()
    assert json.loads(output.read_text(encoding="utf-8")) == content
    old["setting"]["versions"] = {"torch": "1.0"}
    output.write_text(json.dumps(old), encoding="utf-8")
    with pytest.raises(typer.BadParameter, match=r"--frozen-only: .* was made with {'torch': '1\.0'}"):
        agreement_study.STUDY(folder=place, **options).main()


def test_uniform_attention_alone_is_trained_longer():
    subject = agreement_study.Subject("sst2_additive", steps=(0, 2), longer=(6, 9, 12))
    usual = load_any_recipe("sst2_additive").training.steps
    for method, steps, watched in (("uniform", 12, (0, 2, 6, 9)), ("learned", usual, (0, 2))):
        recipe = load_any_recipe(subject.recipe, subject.changes(method, 0))
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
    options = {"seeds": 1, "subjects": "linear", "output": tmp_path / "found.json", "set_": keys}
    agreement_study.STUDY(folder=tmp_path, **options).main()
    (run,) = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["runs"]
    found = run["optimal"]
    assert found["least_loss"] < found["loss"]
    assert 0 <= found["attention_probe"] <= 1 and 0 <= found["optimal_probe"] <= 1
    assert found["outputs"] == sum(
        len(row["labels"]) for row in _pairs(tmp_path / "linear" / "seed-0" / "learned")
    )


def _pairs(folder):
    """The watched pairs of a run of translation."""
    rows = load_task(folder / "recipe.yaml").data.watched.rows
    return [rows[row] for row in range(len(rows))]
