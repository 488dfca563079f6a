"""Training of attention alone, and training under uniform attention, of texts and of translation."""

import pytest
import torch
from runs import overrides, succeeds
from safetensors.torch import load_file

from probattn.inference import SVIDriver
from probattn.models import load
from probattn.recipes import load_any_recipe, load_recipe
from probattn.report import read_results
from probattn.tasks import Classification, Translation
from probattn.tasks.classification.networks import load_classifier

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")

ADDITIVE = "{hidden_size: 6, attention_size: 5, num_attention_heads: 1, attention_activation: relu, classifier_size: 0}"
SCORES = {"sentence.attention.key.weight", "sentence.attention.query.weight"}
DOT = {"model.attention.query.weight"}


@pytest.fixture(scope="module")
def texts(reviews, tmp_path_factory):
    file = tmp_path_factory.mktemp("recipe") / "additive.yaml"
    file.write_text(
        f"""
network: {{name: self_attentive, config: {ADDITIVE}}}
data: {{train: {reviews}}}
attention: {{method: deterministic}}
training: {{steps: 6, batch_size: 8, learning_rate: 1e-2, device: cpu, checkpoint_every: 3, frozen_probe: true}}
report: {{resamples: 100, uncertain: 1, texts: [the film was good]}}
""",
        encoding="utf-8",
    )
    return file


def start(recipe):
    """The weights before training, those of the same recipe as a whole."""
    task = Classification(recipe)
    return load_classifier(
        recipe.network, task.texts.label_names, seed=recipe.training.seed, words=task.vocabulary
    ).state_dict()


def moved(before, place):
    after = load(place / "model").state_dict()
    assert after.keys() == before.keys()
    return {name for name, value in after.items() if not torch.equal(value, before[name])}


def test_nothing_but_the_scores_of_a_classifier_learns(texts, tmp_path):
    place = tmp_path / "run"
    succeeds("train", texts, "-o", place, "--quiet")
    assert moved(start(load_recipe(texts)), place) == SCORES
    succeeds("train", texts, "-o", tmp_path / "whole", "--quiet", "--set", "training.frozen_probe=false")
    assert moved(start(load_recipe(texts)), tmp_path / "whole") > SCORES | {"classifier.weight"}
    succeeds("evaluate", place)
    said = read_results(place / "metrics.json").run
    assert said.method == "deterministic attention; nothing but attention learns"
    assert said.network == "self_attentive"


@pytest.mark.parametrize("key", ["attention={method: babn}", "alignment={method: gan}"])
def test_methods_learn_with_the_scores_and_so_does_a_baseline(texts, tmp_path, key):
    succeeds("train", texts, "-o", tmp_path / "run", "--quiet", "--set", key)
    with torch.random.fork_rng():
        before = Classification(load_recipe(texts, [key])).program().net.state_dict()
    plain = start(load_recipe(texts))
    assert moved(plain, tmp_path / "run" / "baseline") == SCORES
    changed = moved(before, tmp_path / "run")
    assert changed & plain.keys() == SCORES and changed > SCORES
    assert changed - SCORES == before.keys() - plain.keys()


class InterruptedRunError(Exception):
    pass


def test_a_resumed_run_goes_on_with_the_scores_alone(texts, command, tmp_path, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    succeeds("train", texts, "-o", whole, "--quiet")
    groups = []
    fit = SVIDriver.fit

    def stopped(driver, *data, **options):
        def stop(record, _):
            if record["step"] == 4 and len(groups) == 1:
                raise InterruptedRunError

        groups.append(driver.optimizer.groups(driver.model))
        driver.callbacks, driver.log_every = (stop,), 1
        return fit(driver, *data, **options)

    monkeypatch.setattr(SVIDriver, "fit", stopped)
    assert isinstance(command("train", texts, "-o", parts, "--quiet").exception, InterruptedRunError)
    assert not (parts / "model").exists() and list((parts / "checkpoints").iterdir())
    succeeds("train", texts, "-o", parts, "--quiet", "--resume")
    for made in groups:  # what the optimiser gets: V [1, 5] and W [5, 12]
        assert sorted(list(each.shape) for group in made for each in group["params"]) == [[1, 5], [5, 12]]
    assert len(groups) == 2
    one, other = (load_file(place / "model" / "model.safetensors") for place in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "further",
    [
        ("repulsion=null",),
        ("repulsion=null", "attention={method: variational}"),
        ("repulsion={projections: [query]}", "network.heads=3"),
    ],
)
def test_nothing_but_the_scores_of_a_translator_learns(translation_recipe, tmp_path, further):
    """Beside the network that infers alignments, which is no part of it."""
    keys = ("network={name: lstm, width: 8, layers: 1}", *further, "training.frozen_probe=true")
    options = overrides(*keys)
    place = tmp_path / "run"
    succeeds("train", translation_recipe, "-o", place, "--quiet", *options)
    recipe = load_any_recipe(translation_recipe, keys)
    before = Translation(recipe).program().net.state_dict()
    assert moved(before, place) == DOT


def test_uniform_attention_leaves_the_scores_of_a_classifier_where_they_were(texts, tmp_path):
    keys = ("training.frozen_probe=false", "network.config.uniform_attention=true", "training.weight_decay=0")
    options = overrides(*keys)
    succeeds("train", texts, "-o", tmp_path / "run", "--quiet", *options)
    changed = moved(start(load_recipe(texts, keys)), tmp_path / "run")
    assert "classifier.weight" in changed and not changed & SCORES
    succeeds("evaluate", tmp_path / "run")
    said = read_results(tmp_path / "run" / "metrics.json").run
    assert (said.method, said.network) == ("deterministic attention", "self_attentive, uniform attention")


UNIFORM = "training.frozen_probe: with uniform_attention nothing would learn; set one of the two to false"
ELSEWHERE = "training.frozen_probe: expected network.name 'self_attentive' (texts) or 'lstm' (translation)"


def test_networks_whose_probe_cannot_be_frozen_are_one_line(
    texts, recipe, network, translation_recipe, command, tmp_path
):
    for file, keys, message in (
        (texts, ["network.config.uniform_attention=true"], UNIFORM),
        (recipe, ["training.frozen_probe=true"], f"{ELSEWHERE}, whose attention scores have parameters of"),
        (recipe, ["training.frozen_probe=true"], f"got '{network}'"),
        (translation_recipe, ["training.frozen_probe=true"], "got 'transformer'"),
        (
            translation_recipe,
            [
                "repulsion=null",
                "network={name: lstm, width: 8, uniform_attention: true}",
                "training.frozen_probe=true",
            ],
            UNIFORM,
        ),
    ):
        options = overrides(*keys)
        refused = command("train", file, "-o", tmp_path / "run", "--quiet", *options)
        assert refused.exit_code == 2, refused.output
        assert message in refused.output.replace("\n", " "), refused.output
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("section", ["graph: {name: cora}", "experiment: {task: copy}"])
def test_recipes_without_words_do_not_know_the_key(section, command, tmp_path):
    file = tmp_path / "other.yaml"
    file.write_text(f"{section}\ntraining: {{frozen_probe: true}}\n")
    refused = command("train", file, "-o", tmp_path / "run", "--quiet")
    assert refused.exit_code == 2
    assert "frozen_probe" in refused.output and "unknown key" in refused.output
