"""Attention and probe recorded by the command line: files, records, report, resuming, and what is refused."""

import json
import shutil

import pytest
import torch
from runs import succeeds

from probattn.data import DataWarning, PadCollate, TokenizedTexts
from probattn.models import RatedWords, rate_words
from probattn.recipes import load_recipe
from probattn.tasks import RunError, load_network, load_results
from probattn.tasks.watching import read_dynamics

LSTM = "network={name: lstm, width: 8, layers: 1, heads: 1}"


@pytest.fixture(scope="module")
def watched(recipe, tmp_path_factory):
    """The tiny run of texts, recorded at 0, 2 and its last step."""
    folder = tmp_path_factory.mktemp("runs") / "watched"
    options = ["--set", "probe={steps: [0, 2], examples: 7, batch_size: 3, shown: 1}"]
    succeeds("train", recipe, "--output", folder, "--quiet", *options)
    return folder


def test_files_hold_what_the_network_says(watched):
    assert sorted(path.name for path in (watched / "probe").iterdir()) == [
        "examples.json",
        "step-000000.safetensors",
        "step-000002.safetensors",
        "step-000006.safetensors",
    ]
    trained, recipe = load_network(watched), load_recipe(str(watched / "recipe.yaml"))
    with pytest.warns(DataWarning, match="in the training data too"):
        texts = recipe.data.load().validation.take(7)
    rows = TokenizedTexts(texts, trained.codec)
    batch = PadCollate(trained.codec)([rows[row] for row in range(7)])
    batch = {name: each.to(trained.device) for name, each in batch.items()}
    now = RatedWords.gather([rate_words(trained.net, batch)])
    last = RatedWords.load(watched / "probe" / "step-000006.safetensors")
    torch.testing.assert_close(last.attention, now.attention)
    torch.testing.assert_close(last.probe, now.probe)
    (example,) = json.loads((watched / "probe" / "examples.json").read_text())
    assert example["text"] == texts.texts[example["row"]]
    assert len(example["keys"]) == last.lengths[example["row"]]


def test_a_recorded_training_is_the_same_training(watched, run):
    ours, plain = load_network(watched), load_network(run)
    for name, value in plain.net.state_dict().items():
        assert torch.equal(value, ours.net.state_dict()[name]), name


def test_report_tells_the_course(watched):
    succeeds("report", watched)
    plain, own = load_results(watched).dynamics
    assert (plain.model, own.model, own.examples, own.outputs) == ("deterministic", "bayesian_mean", 7, 7)
    assert [item.step for item in own.steps] == [0, 2, 6]
    for item in own.steps:
        rated = RatedWords.load(watched / "probe" / f"step-{item.step:06d}.safetensors")
        assert item.agreement == rated.agreement()
        assert item.accuracy == rated.accuracy
    assert own.steps[-1].with_last == 1
    assert not plain.maps and len(own.maps) == 1 and len(own.maps[0].maps) == 3
    page = (watched / "report.html").read_text()
    assert "How did attention change in training?" in page and own.maps[0].text in page


@pytest.mark.slow
def test_a_baseline_watched_on_other_examples_is_left_out(watched, recipe, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(watched, folder)
    options = ["--set", "attention={method: deterministic}", "--set", "probe={steps: [0], examples: 5}"]
    succeeds("train", recipe, "--output", tmp_path / "plain", "--quiet", *options)
    succeeds("evaluate", folder, "--baseline", tmp_path / "plain")
    (own,) = load_results(folder).dynamics
    assert (own.model, own.examples) == ("bayesian_mean", 7)


def test_option_takes_the_defaults(translation_recipe, tmp_path):
    pytest.importorskip("sentencepiece", reason="needs sentencepiece (the extra 'translation')")
    pytest.importorskip("sacrebleu", reason="needs sacrebleu (the extra 'translation')")
    folder = tmp_path / "run"
    options = ["--set", LSTM, "--set", "repulsion=null", "--set", "probe={bleu: true}", "--quiet"]
    succeeds("train", translation_recipe, "--probe", "--output", folder, *options)
    succeeds("report", folder)
    (own,) = load_results(folder).dynamics
    assert [item.step for item in own.steps] == [0, 6]
    assert all(item.bleu is not None for item in own.steps)
    assert len(own.maps) == 2 and own.outputs > own.examples == 10
    example = own.maps[0]
    assert example.keys[-1] == example.queries[-1] == "</s>"
    assert "early, step 0" in (folder / "report.html").read_text()
    # a run that lost a file is taken up again
    shutil.rmtree(folder / "probe")
    succeeds("train", folder / "recipe.yaml", "--output", tmp_path / "again", "--quiet")
    found = RatedWords.load(tmp_path / "again" / "probe" / "step-000006.safetensors")
    assert found.agreement() == own.steps[-1].agreement


@pytest.mark.slow
def test_files_of_other_examples_are_refused(watched, command, tmp_path):
    folder = tmp_path / "mixed"
    shutil.copytree(watched, folder)
    file = folder / "probe" / "step-000002.safetensors"
    rated = RatedWords.load(file)
    lengths = rated.lengths.clone()
    lengths[-1] -= 1
    RatedWords(rated.attention[:-1], rated.probe[:-1], lengths, rated.example, rated.correct).save(file)
    result = command("evaluate", folder)
    assert result.exit_code == 2
    expected = result.output
    assert "step-000002.safetensors: expected the examples of step-000006.safetensors, got others" in expected


def test_a_lost_file_is_named(watched, tmp_path):
    folder = tmp_path / "lost"
    shutil.copytree(watched / "probe", folder / "probe")
    (folder / "probe" / "examples.json").unlink()
    assert read_dynamics(folder, "bayesian_mean", maps=False) is not None
    with pytest.raises(RunError, match=r"examples\.json: No such file or directory"):
        read_dynamics(folder, "bayesian_mean", maps=True)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("examples.json", "{", r"expected what --probe writes, got a damaged file \(expected JSON"),
        ("examples.json", "[{}]", r"expected what --probe writes, got a damaged file \(at 0.row: Field"),
        (
            "examples.json",
            '[{"row": 0, "text": "a", "keys": ["a"], "queries": ["b"]}]',
            "expected the words of example 0, got others",
        ),
        (
            "examples.json",
            '[{"row": 99, "text": "a", "keys": ["a"], "queries": ["b"]}]',
            "expected the words of example 99, got others",
        ),
        ("step-000002.json", "{", r"expected what --probe writes, got a damaged file \(expected JSON"),
        ("step-000002.json", '{"bleu": "x"}', r"expected .* a damaged file \(at bleu: Input should be a"),
    ],
)
def test_damaged_files_are_named(watched, tmp_path, name, content, said):
    folder = tmp_path / "damaged"
    shutil.copytree(watched / "probe", folder / "probe")
    (folder / "probe" / name).write_text(content, encoding="utf-8")
    with pytest.raises(RunError, match=f"{name}: {said}"):
        read_dynamics(folder, "bayesian_mean", maps=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--set", "probe={steps: [10, 5]}"],
            "probe.steps (override probe={steps: [10, 5]}): expected rising numbers >= 0, got [10, 5]",
        ),
        (
            ["--set", "probe={examples: 0}"],
            "probe.examples (override probe={examples: 0}): expected a whole number >= 1, got 0",
        ),
    ],
)
def test_bad_keys_are_refused(recipe, command, tmp_path, options, said):
    result = command("train", recipe, "--output", tmp_path / "run", *options)
    assert result.exit_code == 2 and said in result.output
    assert not (tmp_path / "run").exists()


def test_networks_without_a_probe_are_refused(translation_recipe, command, tmp_path):
    result = command("train", translation_recipe, "--probe", "--output", tmp_path / "run")
    assert result.exit_code == 2
    assert "probe: the lexical probe is for network.name 'lstm'" in result.output
    result = command("train", "cora_deterministic", "--probe", "--output", tmp_path / "run")
    assert result.exit_code == 2
    assert "--probe: expected a recipe of texts or of translation" in result.output
    assert not (tmp_path / "run").exists()


def test_course_is_read_from_the_ratings(tmp_path):
    def rated(attention, probe):
        return RatedWords(
            torch.tensor([0.5, 0.5, *attention]),
            torch.tensor([0.5, 0.5, *probe]).log(),
            torch.tensor([2, 3]),
            torch.arange(2),
            torch.tensor([True, False]),
        )

    even, peaked = [0.3, 0.3, 0.3], [0.1, 0.2, 0.7]
    rated(even, peaked).save(tmp_path / "probe" / "step-000002.safetensors")
    rated(peaked, even).save(tmp_path / "probe" / "step-000010.safetensors")
    words = {"row": 1, "text": "a b c", "keys": ["a", "b", "c"], "queries": ["good"]}
    (tmp_path / "probe" / "examples.json").write_text(json.dumps([words]), encoding="utf-8")
    found = read_dynamics(tmp_path, "deterministic", maps=True)
    assert [item.step for item in found.steps] == [2, 10]
    # of equal ratings the first counts, and they are all among the highest
    assert [item.agreement for item in found.steps] == [0.5, 1]
    assert [item.with_last for item in found.steps] == [1, 1]
    assert [item.accuracy for item in found.steps] == [0.5, 0.5]
    assert (found.examples, found.outputs, found.chance) == (2, 2, pytest.approx((1 / 2 + 1 / 3) / 2))
    (example,) = found.maps
    for item, attention, probe in zip(example.maps, (even, peaked), (peaked, even), strict=True):
        assert item.attention[0] == pytest.approx(attention)
        assert item.probe[0] == pytest.approx(probe)
