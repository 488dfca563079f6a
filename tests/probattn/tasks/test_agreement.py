"""`probattn agreement` on tiny runs: its record against the recorded ratings, and what is refused."""

import json
import shutil

import pytest
import torch
from runs import ADDITIVE, succeeds

from probattn.inference import SVIDriver
from probattn.models import RatedWords, word_saliency
from probattn.probes import contextualized_agreement, kendall_tau
from probattn.report import Agreement
from probattn.tasks import load_network, run_task

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


@pytest.fixture(scope="module")
def runs(reviews, tmp_path_factory):
    """Folders by name: the run, another seed, uniform attention, other examples."""
    place = tmp_path_factory.mktemp("agreement")
    file = place / "additive.yaml"
    file.write_text(
        f"""{ADDITIVE}data: {{train: {reviews}}}
training: {{steps: 6, batch_size: 4, accumulation: 2, log_every: 2, learning_rate: 1e-2, device: cpu}}
report: {{baseline: false}}
probe: {{steps: [0, 3], examples: 9}}
""",
        encoding="utf-8",
    )
    changes = {
        "learned": [],
        "second": ["training.seed=1"],
        "uniform": ["network.config.uniform_attention=true"],
        "frozen": ["training.frozen_probe=true"],
        "others": ["probe.examples=5", "training.seed=2"],
        "unwatched": ["probe=null"],
        "wider": ["training.seed=1", "network.config.hidden_size=5"],
        "longer": ["network.config.uniform_attention=true", "training.steps=9"],
        "wider_uniform": ["network.config.uniform_attention=true", "network.config.hidden_size=5"],
    }
    again = shutil.copy(file, place / "again.yaml")  # what a recipe is called makes no difference
    for name, keys in changes.items():
        options = [part for key in keys for part in ("--set", key)]
        succeeds("train", again if name == "second" else file, "--output", place / name, "--quiet", *options)
    return {name: place / name for name in changes}


def rated(folder, step):
    return RatedWords.load(folder / "probe" / f"step-{step:06d}.safetensors")


def test_record_and_table(runs, command):
    options = ["--uniform", runs["uniform"], "--second", runs["second"], "--quiet"]
    result = command("agreement", runs["learned"], *options)
    assert result.exit_code == 0, result.output
    assert "A(α, β^uf)" in result.output and "Kendall's tau" in result.output
    assert "BLEU" not in result.output  # it classifies
    words = " ".join(result.output.split())
    assert "α attention, β lexical probe, β^uf probe under uniform attention" in words
    found = json.loads((runs["learned"] / "agreement.json").read_text(encoding="utf-8"))
    last = rated(runs["learned"], 6)
    course = {step: last.agreement(v=rated(runs["uniform"], step).probe) for step in (0, 3, 6)}
    assert {int(step): value for step, value in found["course"].items()} == course
    pairs = {(item["first"], item["second"]): item for item in found["pairs"]}
    assert list(pairs) == [
        ("attention", "uniform"),
        ("uniform", "proxy"),
        ("saliency", "uniform"),
        ("attention", "probe"),
        ("saliency", "probe"),
    ]
    assert pairs["attention", "uniform"]["agreement"] == max(course.values())
    assert pairs["attention", "probe"]["agreement"] == last.agreement()
    second = [(step, rated(runs["second"], step)) for step in (0, 3, 6)]
    rows = [(step, each.accuracy, last.agreement(v=each.attention)) for step, each in second]
    taus = []
    for step, each in second:
        (left, mask), (right, _) = last.padded(last.attention), last.padded(each.attention)
        taus.append((step, each.accuracy, kendall_tau(left, right, mask).nanmean().item()))
    for item in pairs.values():
        expected = contextualized_agreement(item["agreement"], rows)
        values = {"performance": expected.performance, "step": expected.step, "reached": expected.reached}
        assert item["xi"] == values
        assert -1 <= item["tau"] <= 1 and item["xi_bleu"] is None and item["xi_tau_bleu"] is None
        expected = contextualized_agreement(item["tau"], taus)
        assert item["xi_tau"]["step"] == expected.step and item["xi_tau"]["reached"] == expected.reached
    assert found["second_accuracy"] == second[-1][1].accuracy and found["second_bleu"] is None
    assert found["second_course"] == {str(step): value for step, _, value in rows}
    succeeds("agreement", runs["learned"], *options)
    assert json.loads((runs["learned"] / "agreement.json").read_text(encoding="utf-8")) == found


def test_the_best_step_counts_and_the_first_rating_is_looked_up(runs, tmp_path):
    """A constant probe agrees with everything; the other way round only the first word would count."""
    folder = tmp_path / "uniform"
    shutil.copytree(runs["uniform"], folder)
    constant = rated(folder, 3)
    constant.probe.zero_()
    constant.save(folder / "probe" / "step-000003.safetensors")
    succeeds("agreement", runs["learned"], "--uniform", folder, "--quiet")
    found = json.loads((runs["learned"] / "agreement.json").read_text(encoding="utf-8"))
    agreement = {(item["first"], item["second"]): item["agreement"] for item in found["pairs"]}
    assert found["uniform_step"] == 3
    assert agreement["attention", "uniform"] == agreement["saliency", "uniform"] == 1
    assert agreement["uniform", "proxy"] < 1


def test_a_frozen_probe_is_read_where_its_attention_agrees_most(runs, command, tmp_path):
    """Table 10, against a loop; the step that agrees most is not the last."""
    folder = tmp_path / "frozen"
    shutil.copytree(runs["frozen"], folder)
    last = rated(runs["learned"], 6)
    usual, other = rated(folder, 3), rated(folder, 6)
    usual.attention.copy_(last.attention)
    usual.save(folder / "probe" / "step-000003.safetensors")
    other.attention.copy_(-last.attention)
    other.save(folder / "probe" / "step-000006.safetensors")
    result = command("agreement", runs["learned"], "--frozen", folder, "--quiet")
    assert "A(α, α^fr)" in result.output and "attention over a frozen probe" in " ".join(
        result.output.split()
    )
    found = Agreement.model_validate_json((runs["learned"] / "agreement.json").read_text(encoding="utf-8"))
    course = {step: last.agreement(v=rated(folder, step).attention) for step in (0, 3, 6)}
    assert found.frozen_course == course and course[3] == 1 > course[6]
    assert found.value("attention_frozen") == 1 and found.value("frozen_course.last") == course[6]
    assert found.value("frozen_course.3") == 1 and found.value("frozen_course.4") is None
    assert found.value("frozen_accuracy") == other.accuracy
    assert found.value("frozen_agreement") == other.agreement()
    assert found.value("attention_uniform") is None is found.value("attention_probe.xi")


def test_saliency_and_proxy_are_those_of_the_run(runs, monkeypatch):
    fits = []
    plain = SVIDriver.fit

    def fit(self, data, **options):
        updates = self.batch_size, self.accumulation
        fits.append((len(data), *updates, self.optimizer.learning_rate, options))
        return plain(self, data, **options)

    monkeypatch.setattr(SVIDriver, "fit", fit)
    succeeds("agreement", runs["learned"], "--uniform", runs["uniform"], "--quiet")
    data = run_task(runs["learned"]).data
    assert fits == [(len(data.train), 4, 2, 1e-2, {"steps": 6, "epochs": None})]
    network = load_network(runs["learned"])
    batches = list(data.watched.batches())

    def rate(batch):
        moved = {name: each.to(network.device) for name, each in batch.items()}
        return word_saliency(network.net, moved).cpu()

    saliency = RatedWords.flat(batches, rate)
    last = rated(runs["learned"], 6)
    found = json.loads((runs["learned"] / "agreement.json").read_text(encoding="utf-8"))
    (own,) = [item for item in found["pairs"] if (item["first"], item["second"]) == ("saliency", "probe")]
    (left, mask), (right, _) = last.padded(saliency), last.padded(last.probe)
    assert own["agreement"] == last.agreement(saliency, last.probe)
    assert own["tau"] == pytest.approx(kendall_tau(left, right, mask).nanmean().item())


def test_release_preset_takes_saliency_and_proxy_as_the_authors_code(runs, monkeypatch, caplog):
    fits = []
    plain = SVIDriver.fit

    def fit(self, data, **options):
        fits.append((self.model.proxy.embedding.shape[1], self.batch_size, self.optimizer.learning_rate))
        assert (options["epochs"], self.early_stopping.metric) == (30, "loss")
        result = plain(self, data, **options)
        assert result.validation["epoch"] == 30 and not result.stopped_early
        assert result.best == result.validation["loss"] or result.best_step < result.step
        return result

    monkeypatch.setattr(SVIDriver, "fit", fit)
    options = ["--uniform", runs["uniform"], "--preset", "release", "--quiet"]
    succeeds("agreement", runs["learned"], *options)
    assert fits == [(256, 64, 2e-4)]
    assert "nothing is latent" not in caplog.text
    found = json.loads((runs["learned"] / "agreement.json").read_text(encoding="utf-8"))
    network, last = load_network(runs["learned"]), rated(runs["learned"], 6)
    batches = list(run_task(runs["learned"]).data.watched.batches())

    def factor_gradient(batch):
        """The derivative of the label's log-likelihood by a factor of each word's embedding, at 1."""
        net = network.net.cpu()
        embeddings = net.get_input_embeddings()(batch["input_ids"]).detach()
        factors = torch.ones(embeddings.shape[:2], requires_grad=True)
        mask = batch["attention_mask"]
        logits = net(inputs_embeds=embeddings * factors[..., None], attention_mask=mask).logits
        (-torch.nn.functional.cross_entropy(logits, batch["labels"], reduction="sum")).backward()
        return factors.grad[:, None]

    (left, mask), (right, _) = last.padded(RatedWords.flat(batches, factor_gradient)), last.padded(last.probe)
    (pair,) = [item for item in found["pairs"] if (item["first"], item["second"]) == ("saliency", "probe")]
    assert found["preset"] == "release"
    assert pair["tau"] == pytest.approx(kendall_tau(left, right, mask).nanmean().item())


def test_alone_it_measures_its_own_probe(runs):
    succeeds("agreement", runs["second"], "--quiet")
    found = json.loads((runs["second"] / "agreement.json").read_text(encoding="utf-8"))
    expected = [("attention", "probe"), ("saliency", "probe")]
    assert [(item["first"], item["second"]) for item in found["pairs"]] == expected
    assert all(item["xi"] is None for item in found["pairs"]) and found["uniform_step"] is None


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"run": "unwatched"}, "unwatched: expected a run with recorded ratings; train it with --probe"),
        ({"run": "uniform"}, "uniform: expected a run with learned attention, its attention is uniform"),
        ({"run": "learned", "uniform": "second"}, "second: expected a run under uniform attention"),
        ({"run": "learned", "frozen": "second"}, "second: expected a run of a frozen probe"),
        ({"run": "learned", "second": "others"}, "others: expected ratings of the examples of"),
        ({"run": "learned", "second": "learned"}, "learned: expected the same run from another seed than 0"),
        ({"run": "learned", "second": "uniform"}, "got seed 0, uniform attention"),
        ({"run": "learned", "second": "wider"}, "again, with network.config.hidden_size 4, got 5"),
        ({"run": "learned", "uniform": "wider_uniform"}, "again, with network.config.hidden_size 4, got 5"),
    ],
)
def test_folders_that_do_not_fit_are_refused(runs, command, names, said):
    options = [part for key, name in names.items() if key != "run" for part in (f"--{key}", runs[name])]
    result = command("agreement", runs[names["run"]], "--quiet", *options)
    assert result.exit_code == 2 and said in result.output.replace("\n", "")


def test_the_run_under_uniform_attention_may_be_longer(runs):
    succeeds("agreement", runs["learned"], "--uniform", runs["longer"], "--quiet")
    assert list(json.loads((runs["learned"] / "agreement.json").read_text())["course"]) == ["0", "3", "9"]


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("experiment: {conditions: {copy: {}}}", "expected a run of texts or of translation"),
        ("translation: {subwords: 2000}", "run of network.name 'lstm', whose output reads one context"),
    ],
    ids=["experiment", "transformer"],
)
def test_a_run_without_a_probe_is_not_told_to_be_trained_again(command, tmp_path, recipe, expected):
    (tmp_path / "recipe.yaml").write_text(recipe + "\n", encoding="utf-8")
    result = command("agreement", tmp_path)
    said = result.output.replace("\n", "")
    assert result.exit_code == 2 and expected in said and "--probe" not in said


def test_a_run_that_may_stop_early_is_refused(runs, command, tmp_path):
    folder = tmp_path / "early"
    shutil.copytree(runs["second"], folder)
    recipe = (folder / "recipe.yaml").read_text(encoding="utf-8")
    assert "early_stopping: null" in recipe
    changed = recipe.replace("early_stopping: null", "early_stopping: {metric: loss}")
    (folder / "recipe.yaml").write_text(changed, encoding="utf-8")
    result = command("agreement", folder)
    assert result.exit_code == 2 and "its network is that of its best step" in result.output


def test_a_folder_without_a_run_is_refused(command, tmp_path):
    result = command("agreement", tmp_path)
    assert result.exit_code == 2 and "expected a run folder with recipe.yaml, found none" in result.output
