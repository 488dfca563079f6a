"""A task about pairs of texts through the whole command line, on a tiny network."""

import json
import random

import pytest
from runs import succeeds

from probattn.data import Task, TextDataset
from probattn.recipes import Recipe
from probattn.report import Example, read_results
from probattn.tasks import Classification, load_network
from probattn.tasks.classification.looks import second_text

WORDS = ["good", "fine", "great", "bad", "poor", "awful"]


@pytest.fixture(scope="module")
def paired(network, tmp_path_factory):
    """A recipe of 4 steps on pairs of words that are alike or not."""
    draw = random.Random(0)
    folder = tmp_path_factory.mktemp("pairs")
    rows = []
    for number in range(120):
        first = draw.choice(WORDS)
        second = first if number % 2 else draw.choice([word for word in WORDS if word != first])
        rows.append(f"a {first} film {number}\tthe {second} plot\t{'same' if number % 2 else 'different'}\n")
    (folder / "pairs.tsv").write_text("one\ttwo\tlabel\n" + "".join(rows), encoding="utf-8")
    (folder / "pairs.yaml").write_text(
        f"""
network: {{name: {network}}}
data: {{train: {{source: {folder / "pairs.tsv"}, text: one, text_pair: two}}, max_length: null}}
training: {{steps: 4, batch_size: 8, log_every: 2, device: cpu}}
prediction: {{num_samples: 3}}
report: {{resamples: 100, uncertain: 2, mistakes: 2, texts: [a good film], pairs: [the "good" plot]}}
""",
        encoding="utf-8",
    )
    return folder / "pairs.yaml"


@pytest.fixture(scope="module")
def run(paired, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "pairs"
    succeeds("train", paired, "--output", folder, "--quiet")
    return folder


def test_the_report_shows_both_texts(run):
    succeeds("report", run)
    results = read_results(run / "metrics.json")
    listed = (*results.uncertain, *results.mistakes, *results.binned)
    assert all(example.pair for example in listed)
    chosen = results.attention[0]
    assert (chosen.example.text, chosen.example.pair) == ("a good film", 'the "good" plot')
    assert chosen.queries[chosen.second] == "the"
    assert list(chosen.queries).count("[SEP]") == 2
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "a good film \N{MIDDLE DOT} the &#34;good&#34; plot" in page
    assert page.count('class="pair"') == len(listed)
    assert page.count('class="map-divide"') == 4 * len(results.attention)


def test_predict_takes_a_second_text_for_each(run, command):
    words = ["a good film", "a bad film", "--pair", "the good plot", "--pair", "the fine plot"]
    lines = command("predict", run, *words, "--json").output.strip().splitlines()
    found = [json.loads(line) for line in lines]
    assert [item["pair"] for item in found] == ["the good plot", "the fine plot"]
    assert {item["label"] for item in found} <= {"same", "different"}
    turned = command("predict", run, *words[:2], "--pair", words[5], "--pair", words[3], "--json").output
    assert json.loads(turned.splitlines()[0])["probability"] != found[0]["probability"]
    assert "second text" in command("predict", run, *words).output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a"], "expected one --pair for each of the 1 texts, got 0"),
        (["a", "b", "--pair", "c"], "expected one --pair for each of the 2 texts, got 1"),
        (["a", "--pair", " "], "--pair 1: expected some words, got none"),
    ],
)
def test_pairs_that_are_not_whole_are_one_line(run, command, words, said):
    result = command("predict", run, *words)
    assert result.exit_code == 2
    assert said in result.output and result.output.startswith("error: ")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('pairs: [the "good" plot]', "pairs: []", "report.pairs: expected the second of each of texts"),
        ('pairs: [the "good" plot]', "pairs: [a, b]", "pairs: expected as many as texts (1) or none, got 2"),
        (", text_pair: two", "", "report.pairs: expected none, got 1"),
        ("text_pair: two", "text_pair: three", "expected a column 'three'"),
    ],
)
def test_recipes_that_contradict_their_data_are_one_line(paired, command, tmp_path, old, new, said):
    text = paired.read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "bad.yaml").write_text(text.replace(old, new), encoding="utf-8")
    result = command("train", tmp_path / "bad.yaml", "--output", tmp_path / "out", "--quiet")
    assert result.exit_code == 2 and said in result.output
    assert not (tmp_path / "out").exists()


def test_second_texts_are_in_the_fingerprint():
    def digest(pairs):
        data = TextDataset(("a", "b"), (0, 1), ("x", "y"), "data", pairs=pairs)
        task = Classification(Recipe(data={"train": "snli"}))
        task.texts = Task(data, data, data)
        return "".join(task.fingerprints())

    assert len({digest(None), digest(("c", "d")), digest(("c", "e")), digest(("d", "c"))}) == 4


def test_where_the_second_text_begins(run):
    trained = load_network(run)
    example = Example(text="a good film", pair="the plot", predicted="x", probability=1, spread=0, entropy=0)
    assert second_text(trained.codec, example, 8) == 5
    assert second_text(trained.codec, example, 6) == 4  # [CLS] a good [SEP] the [SEP]
    assert second_text(trained.codec, example.model_copy(update={"pair": None}), 8) is None


NEW = {
    "decomposable": "config: {hidden_size: 8, freeze_embeddings: true}",
    "esim": "config: {hidden_size: 6}",
    "self_attentive": "config: {hidden_size: 6, attention_size: 5, num_attention_heads: 3, classifier_size: 8, "
    "gate_size: 4}",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
@pytest.mark.parametrize("name", NEW)
def test_a_network_of_two_texts_is_built_from_nothing(name, paired, tmp_path):
    """With two shifted sets and smoothed labels, from the recipe to predictions."""
    source = f"{{source: {paired.parent / 'pairs.tsv'}, text: one, text_pair: two}}"
    recipe = tmp_path / "new.yaml"
    recipe.write_text(
        f"""
network: {{name: {name}, {NEW[name]}}}
data: {{train: {source}, shifted: [{source}, {source}], limits: {{shifted: 20}}}}
attention: {{method: babn}}
training: {{steps: 4, batch_size: 8, learning_rate: 1e-2, label_smoothing: 0.1, device: cpu}}
prediction: {{num_samples: 2}}
report: {{resamples: 100, uncertain: 1, texts: [a good film], pairs: [the bad plot]}}
""",
        encoding="utf-8",
    )
    run = tmp_path / "run"
    succeeds("train", recipe, "--output", run, "--quiet")
    succeeds("report", run)
    results = read_results(run / "metrics.json")
    expected = [("shifted", "shifted", 20), ("shifted_2", "shifted", 20)]
    assert [(data.key, data.role, data.size) for data in results.data][1:] == expected
    assert results.attention and results.words
    network = load_network(run)
    batch = network.moved(next(iter(network_batches(network))))
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1]]
    turned = batch | {"token_type_ids": 1 - batch["token_type_ids"]}
    assert not network.program(batch).equal(network.program(turned))


def network_batches(network):
    data = TextDataset(("a good film",), None, (), "given", pairs=("the bad plot",))
    return Classification(Recipe(data={"train": "snli"})).batches(network, data)


def test_networks_of_two_texts_take_no_single_ones(paired, tmp_path, command):
    told = command("train", paired, "-o", tmp_path / "a", "--set", "network={name: self_attentive}").output
    assert "expected single texts, got pairs of texts" in told and "gate_size" in told
    single = f"data={{train: {{source: {paired.parent / 'pairs.tsv'}, text: one}}}}"
    told = command(
        "train",
        paired,
        "-o",
        tmp_path / "b",
        "--set",
        "network={name: esim}",
        "--set",
        single,
        "--set",
        "report={}",
    ).output
    assert "expected pairs of texts, got single texts" in told
