"""The study of repulsion over seeds, on a tiny network and reviews instead of its data."""

import json
import math
import shutil
import types
from pathlib import Path

import pytest
import repulsion_study
import torch
import typer
from scipy import stats

from probattn.data import TextDataset, word_tokenizer
from probattn.models import Classifier, SelfAttentiveConfig, SelfAttentiveForSequenceClassification
from probattn.recipes import load_any_recipe
from probattn.tasks import Network, load_task

TINY = "network.config={hidden_size: 4, attention_size: 4, num_attention_heads: 3, classifier_size: 4}"

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


VALUES = {"spos": 0.01, "sgld": 1.0, "cosine_penalty": 0.1, "frobenius": 0.001}
CHOSEN = {
    subject: {method: {"value": value} for method, value in VALUES.items()}
    for subject in repulsion_study.SUBJECTS
}


@pytest.fixture(scope="module")
def keys(reviews):
    """What makes a run tiny."""
    found = [TINY, f"data.train={reviews}", "training.epochs=null", "training.steps=2", "training.device=cpu"]
    return [*found, "network.embeddings=null", "training.learning_rate=0.5", "data.out_of_domain=null"]


@pytest.fixture(scope="module")
def study(keys, tmp_path_factory):
    """Two methods over two seeds, run twice."""
    folder = tmp_path_factory.mktemp("study")
    output = folder / "data" / "repulsion.json"

    def run():
        options = {"subjects": "trec", "methods": "plain,svgd", "output": output, "set_": keys}
        repulsion_study.STUDY(folder=folder, seeds=2, **options).main()
        return json.loads(output.read_text(encoding="utf-8"))

    first = run()
    stamps = {file: file.stat().st_mtime_ns for file in folder.rglob("measured.json")}
    assert len(stamps) == 4
    second = run()
    assert {file: file.stat().st_mtime_ns for file in stamps} == stamps
    assert first == second
    part = folder / "data" / "part.json"
    repulsion_study.STUDY(
        folder=folder, seeds=3, subjects="trec", output=part, set_=keys, finished=True
    ).main()
    assert json.loads(part.read_text(encoding="utf-8"))["summary"] == first["summary"]
    return first | {"output": output}


def jobs(folder, chosen=CHOSEN, **options):
    """What is to be done with temperatures that were chosen."""
    study = repulsion_study.STUDY(folder=folder, **options)
    study.chosen = chosen
    return [*study.jobs()]


def test_every_method_has_every_seed_and_a_folder_of_its_own(tmp_path):
    subjects, methods = tuple(repulsion_study.SUBJECTS), tuple(repulsion_study.METHODS)
    found = jobs(tmp_path)
    a_seed = len(subjects) * len(methods) - 1  # MiniLM's recipe has the strong weight
    assert len({job.folder for job in found}) == len(found) == 5 * a_seed
    assert {job.head["seed"] for job in found[:a_seed]} == {0}

    def values(name, **head):
        return {job.head[name] for job in found if head.items() <= job.head.items()}

    expected = {"plain", "svgd", "svgd_strong", "spos", "sgld", "svgd_normal", "frobenius"}
    expected |= {f"cosine_{step}" for step in ("penalty", "gradient", "kernel")}
    assert expected == values("method", subject="trec") == set(methods)
    assert values("method", subject="sst2_transformer") == expected - {"svgd_strong"}
    assert load_any_recipe(repulsion_study.SUBJECTS["sst2_transformer"].recipe).repulsion.weight == 0.01
    assert values("chosen", method="spos") == {0.01}
    quiet = expected - set(repulsion_study.TUNED)
    assert all(values("chosen", method=method) == {None} for method in quiet)
    assert {job.head["method"] for job in jobs(tmp_path, {})} == quiet
    longer = jobs(tmp_path, more=2)
    assert longer[: len(found)] == found
    assert [
        (job.head["method"], job.head["seed"])
        for job in longer[len(found) :]
        if job.head["subject"] == "trec"
    ] == [("plain", 5), ("svgd", 5), ("plain", 6), ("svgd", 6)]


def test_every_override_is_a_key_of_the_recipes(tmp_path):
    for job in jobs(tmp_path, seeds=1):
        loaded = load_any_recipe(job.recipe, job.keys)
        names = [type(method).__name__ for method in loaded.methods()]
        if job.head["method"] in ("spos", "sgld"):
            assert loaded.repulsion.temperature == job.head["chosen"]
        elif job.head["method"] in VALUES:
            assert loaded.disagreement.weight == job.head["chosen"] == VALUES[job.head["method"]]
        penalty = ["DisagreementAttention"]
        expected = {"plain": [], "frobenius": penalty, "cosine_penalty": penalty}.get(
            job.head["method"], ["RepulsiveAttention"]
        )
        assert names == expected, job


def test_runs_are_paired_by_seed(study):
    runs = {(run["method"], run["seed"]): run for run in study["runs"]}
    row = study["summary"]["trec"]["svgd"]
    for measure in repulsion_study.MEASURES:
        gaps = [runs["svgd", seed][measure] - runs["plain", seed][measure] for seed in (0, 1)]
        found = row["difference"][measure]
        assert math.isclose(found["mean"], sum(gaps) / 2, abs_tol=1e-9)
        half = stats.t.ppf(0.975, 1) * abs(gaps[0] - gaps[1]) / 2
        assert math.isclose(found["high"] - found["mean"], half, rel_tol=1e-6, abs_tol=1e-9)
    ratios = [
        runs["svgd", seed]["relative_distance"] / runs["plain", seed]["relative_distance"] for seed in (0, 1)
    ]
    assert math.isclose(row["relative_distance_ratio"]["mean"], sum(ratios) / 2, rel_tol=1e-9)
    assert runs["svgd", 0]["norm"] != runs["plain", 0]["norm"]


def test_the_first_seed_is_measured_without_each_head(study):
    for run in study["runs"]:
        assert ("redundancy" in run) == (run["seed"] == 0)
        if run["seed"] == 0:
            (drops,) = run["redundancy"]["drops"]
            assert len(drops) == 3 and all(drop <= run["redundancy"]["accuracy"] for drop in drops)
            texts = run["redundancy"]["texts"]
            assert run["redundancy"]["accuracy"] == pytest.approx(
                round(run["redundancy"]["accuracy"] * texts) / texts
            )


def test_a_temperature_is_chosen_on_validation_data_of_other_seeds(study, keys, tmp_path):
    """Of two, by the loss; the file keeps what it has of other methods, and test data see the chosen one alone."""
    output = tmp_path / "repulsion.json"
    shutil.copy(study["output"], output)
    options = {"subjects": "trec", "methods": "spos", "output": output, "set_": keys, "add": True}
    options |= {"temperatures": "1e4,1e-4", "tuning_seeds": 2, "seeds": 1}
    repulsion_study.STUDY(folder=tmp_path, **options, finished=True).main()
    before = json.loads(output.read_text(encoding="utf-8"))
    assert before["runs"] == study["runs"] and before["choices"] == {}
    repulsion_study.STUDY(folder=tmp_path, **options).main()
    found = json.loads(output.read_text(encoding="utf-8"))
    choice = found["choices"]["trec"]["spos"]
    read = {
        (file.parts[-3], file.parts[-2]): json.loads(file.read_text(encoding="utf-8"))
        for file in (tmp_path / "trec" / "spos").rglob("validated.json")
    }
    assert set(read) == {(f"temperature-{t}", f"seed-{s}") for t in ("10000", "0.0001") for s in (100, 101)}
    for one, name in zip(choice["candidates"], ("10000", "0.0001"), strict=True):
        assert one["seeds"] == [100, 101] and one["value"] == float(name)
        for key in ("loss", "accuracy"):
            mean = sum(read[f"temperature-{name}", f"seed-{seed}"][key] for seed in (100, 101)) / 2
            assert math.isclose(one[f"validation_{key}"], mean)
    last = json.loads(
        (tmp_path / "trec/spos/temperature-10000/seed-100/metrics.jsonl").read_text().splitlines()[-1]
    )
    assert last["kind"] == "validation" and last["loss"] == read["temperature-10000", "seed-100"]["loss"]
    losses = {one["value"]: one["validation_loss"] for one in choice["candidates"]}
    assert losses[choice["value"]] == min(losses.values()) < max(losses.values())
    (measured,) = tmp_path.rglob("measured.json")
    assert measured.parts[-3:-1] == (f"temperature-{choice['value']:g}", "seed-0")
    (own,) = (run for run in found["runs"] if run["method"] == "spos")
    assert own["chosen"] == choice["value"] and own["seed"] == 0
    assert [run for run in found["runs"] if run["method"] != "spos"] == study["runs"]
    assert found["summary"]["trec"]["spos"]["difference"]["accuracy"]["seeds"] == 1
    assert set(found["setting"]["methods"]) == {"plain", "svgd", "spos"}
    assert found["setting"]["added"] == [{"subjects": ["trec"], "methods": ["spos"]}]
    repulsion_study.STUDY(folder=tmp_path, **options, finished=True).main()
    assert json.loads(output.read_text(encoding="utf-8")) == found


def test_every_method_trains(keys, tmp_path):
    output = tmp_path / "repulsion.json"
    options = {"subjects": "trec", "output": output, "set_": keys, "tuning_seeds": 1, "seeds": 1}
    repulsion_study.STUDY(folder=tmp_path, **options, weights="0.1", temperatures="1e-4").main()
    found = json.loads(output.read_text(encoding="utf-8"))["summary"]["trec"]
    assert [*found] == [*repulsion_study.METHODS]


def test_the_weight_of_a_penalty_is_chosen_without_the_penalty(keys, tmp_path):
    options = {"subjects": "trec", "methods": "frobenius", "set_": keys, "tuning_seeds": 1, "seeds": 1}
    study = repulsion_study.STUDY(folder=tmp_path, output=tmp_path / "made.json", **options)
    choice = study.choose("trec", "frobenius", [1000.0])
    last = json.loads(next(tmp_path.rglob("metrics.jsonl")).read_text().splitlines()[-1])
    assert last["loss"] > 100 > choice["candidates"][0]["validation_loss"] == -last["log_likelihood"] > 0


def test_figures_of_other_versions_are_not_added_to(study, tmp_path):
    output = tmp_path / "repulsion.json"
    other = {**study, "setting": {**study["setting"], "versions": {"torch": "1.0"}}, "output": ""}
    output.write_text(json.dumps(other), encoding="utf-8")
    with pytest.raises(typer.BadParameter, match=r"--add: .* was made with {'torch': '1\.0'}, here are .*"):
        repulsion_study.STUDY(folder=tmp_path, output=output, add=True).main()


TEXTS = ("a b c", "b a", "c c a b a")
SIZED = ["prediction.batch_size=2", "data.max_length=null"]


@pytest.fixture
def known():
    """A network with three heads of two classes, and its tokenizer."""
    tokenizer = word_tokenizer(TEXTS)
    torch.manual_seed(0)
    sizes = {"embedding_size": 3, "hidden_size": 2, "attention_size": 4, "classifier_size": 3}
    config = SelfAttentiveConfig(vocab_size=len(tokenizer), num_attention_heads=3, **sizes)
    net = SelfAttentiveForSequenceClassification(config).eval()
    *_, last = (part for part in net.modules() if isinstance(part, torch.nn.Linear))
    with torch.no_grad():  # so that texts differ in what is predicted
        last.bias -= net(torch.tensor([tokenizer(TEXTS[0])["input_ids"]])).logits[0]
        last.bias += torch.tensor([0.0, 1e-3])
    return Network(Classifier(net).eval(), Path(), "deterministic", tokenizer)


def test_measures_are_those_of_the_network(known, reviews):
    """Against loops over texts and pairs of heads, on a network whose heads are known."""
    net, tokenizer, texts = known.net, known.codec, TEXTS
    task = load_task("trec_self_attentive", [*SIZED, f"data.train={reviews}", "data.out_of_domain=null"])
    data = TextDataset(texts, (1, 0, 0), ("no", "yes"), "three texts")
    found = repulsion_study.measure(known, task, data)
    lengths, gaps, cosines, overlaps, right = [], [], [], [], []
    with torch.no_grad():
        for text, label in zip(texts, data.labels, strict=True):
            words = torch.tensor([tokenizer(text)["input_ids"]])
            read = net.sentence(words, output_attentions=True)
            matrix, weights = read.pooler_output.view(3, 4), read.attentions[0][0, :, 0]
            right.append(net(words).logits.argmax().item() == label)
            lengths += [row.norm() for row in matrix]
            for i, j in ((0, 1), (0, 2), (1, 2)):
                gaps.append((matrix[i] - matrix[j]).norm())
                cosines.append(matrix[i] @ matrix[j] / matrix[i].norm() / matrix[j].norm())
                overlaps.append(torch.minimum(weights[i], weights[j]).sum())
    mean = types.SimpleNamespace(
        **{
            name: float(sum(values) / len(values))
            for name, values in {
                "gap": gaps,
                "length": lengths,
                "cosine": cosines,
                "overlap": overlaps,
                "right": right,
            }.items()
        }
    )
    norms = [column.norm().item() for column in net.sentence.attention.query.weight]
    expected = {
        "accuracy": mean.right,
        "distance": mean.gap,
        "relative_distance": mean.gap / mean.length,
        "overlap": mean.overlap,
        "cosine": mean.cosine,
        "norm": sum(norms) / 3,
    }
    assert found == pytest.approx(expected, rel=1e-4)


def test_calibration_is_that_of_the_probabilities_and_entropies_those_of_the_network(
    known, reviews, tmp_path
):
    other = tmp_path / "other.csv"
    other.write_text("text,label\nc a,no\nb b b,yes\nc,yes\n", encoding="utf-8")
    keys = [*SIZED, f"data.train={reviews}", f"data.out_of_domain={other}"]
    task = load_task("trec_self_attentive", keys)
    given = [[0.2, 0.8], [0.2, 0.8], [0.45, 0.55], [0.35, 0.65]]
    passes = []
    handle = known.net.register_forward_hook(lambda _, __, out: passes.append(len(out.logits)))
    found = repulsion_study.calibration(known, task, torch.tensor(given), torch.tensor([1, 0, 1, 1]))
    handle.remove()
    assert sum(passes) == 3  # a text is predicted once, without a draw of dropout
    with torch.no_grad():
        logits = [
            known.net(torch.tensor([known.codec(text)["input_ids"]])).logits[0]
            for text in ("c a", "b b b", "c")
        ]
    away = [stats.entropy(each.softmax(dim=-1).numpy()) for each in logits]
    own = [stats.entropy(row) for row in given]
    expected = {
        "ece": (2 * 0.3 + 0.45 + 0.35) / 4,  # two of 0.8, of which one is right
        "overconfidence": 2 * 0.8 * 0.3 / 4,
        "ood_entropy": sum(away) / 3,
        "ood_auroc": sum(one > two for one in away for two in own) / 12,
    }
    assert found == pytest.approx(expected, rel=1e-4)
    assert set(found) == set(repulsion_study.CALIBRATION)


def test_an_unknown_method_is_refused(tmp_path):
    with pytest.raises(typer.BadParameter, match=r"methods: expected some of plain, svgd, .*, got 'magic'"):
        repulsion_study.STUDY(folder=tmp_path, methods="magic").main()
