"""Damaged run folders, full disks, interruptions and hostile arguments: one line that says what to do."""

import errno
import json
import os
import shlex
import shutil
import signal
import sys
import time

import pytest
import torch
from runs import folders_in, started, succeeds
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForSequenceClassification
from typer.testing import CliRunner

from probattn.cli import app
from probattn.files import durable
from probattn.models import Classifier

LINE = 500


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the finished run that a test may damage."""
    return shutil.copytree(run, tmp_path / "run")


def refusal(result):
    """The one line that a command ended with."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert result.stderr.splitlines()[-1:] == lines
    assert len(lines[0]) < LINE
    return lines[0]


def remove_sums(folder):
    """As an earlier version wrote it."""
    for manifest in folder.rglob("model/manifest.json"):
        manifest.unlink()


def test_a_flipped_byte_in_the_network_is_noticed_and_the_file_named(copy, command):
    for name in ("tokenizer.json", "config.json", "probattn.safetensors", "model.safetensors"):
        file = copy / "model" / name
        data = file.read_bytes()
        file.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
        for arguments in (("predict", copy, "a good film"), ("evaluate", copy)):
            said = refusal(command(*arguments))
            assert f"content of {name} has changed" in said and str(copy / "model") in said
        if name != "model.safetensors":
            file.write_bytes(data)
    succeeds("train", copy / "recipe.yaml", "--output", copy, "--resume", "--quiet")
    succeeds("predict", copy, "a good film")


def test_runs_of_an_earlier_version_and_further_files_are_no_error(copy, command):
    (copy / "model" / "notes.txt").write_text("mine")
    first = command("predict", copy, "a good film", "--json")
    remove_sums(copy)
    second = command("predict", copy, "a good film", "--json")
    assert first.exit_code == second.exit_code == 0
    assert first.stdout == second.stdout


TOKENIZERS = {
    "no json": ("tokenizer.json", b"{"),
    "no text": ("tokenizer.json", b"\xff\xfe"),
    "a list": ("tokenizer.json", b"[]"),
    "of other types": ("tokenizer.json", b'{"model": 3}'),
    "no tokenizer": ("tokenizer.json", None),
    "no configuration": ("tokenizer_config.json", b"{"),
    "configuration of other types": ("tokenizer_config.json", b'{"tokenizer_class": 7}'),
    "configuration that is a list": ("tokenizer_config.json", b"[1]"),
}


@pytest.mark.parametrize(
    ("name", "place"), [*((name, "model") for name in TOKENIZERS), ("no json", "baseline/model")]
)
def test_damaged_tokenizers_are_one_line(copy, command, name, place):
    file, content = TOKENIZERS[name]
    remove_sums(copy)
    (copy / place / file).unlink()
    if content is not None:
        (copy / place / file).write_bytes(content)
    assert str(copy / place) in refusal(command("evaluate", copy))


@pytest.mark.slow
def test_damaged_records_are_one_line_that_says_which(copy, command):
    file = copy / "metrics.jsonl"
    whole = file.read_text()
    resume = ("train", copy / "recipe.yaml", "--output", copy, "--resume", "--quiet")
    for line, words in (
        ("[]", "should be an object"),
        ("nonsense", "expected JSON"),
        ('{"kind": "train"}', "at step"),
        ('{"kind": "train", "step": NaN}', "at step"),
        ('{"kind": "train", "step": "1"}', "at step"),
        ('{"kind": "train", "step": 1, "loss": 1e400}', "at loss"),
        ('{"kind": "train", "step": 1, "seconds": null}', "at seconds"),
        ('{"kind": "train", "step": 1, "sites": []}', "at sites"),
        ("[" * 100_000, "expected JSON"),
    ):
        file.write_text(f"{line}\n{whole}")
        for arguments in (("evaluate", copy), resume):
            said = refusal(command(*arguments))
            assert f"{file}, line 1: expected a record" in said and words in said
            assert "remove the line" in said
    file.write_text(whole)
    succeeds(*resume)


@pytest.mark.filterwarnings("default::UserWarning")
@pytest.mark.parametrize(
    "content",
    [
        '{"format": 1, "step": 6, "files": {"model.pt": {}}}',
        '{"format": 1, "files": {"model.pt": 3}}',
        "[" * 100_000,
    ],
)
def test_resuming_falls_back_to_the_checkpoint_before(copy, run, command, content):
    newest = max((copy / "checkpoints").iterdir())
    (newest / "manifest.json").write_text(content)
    result = command("train", copy / "recipe.yaml", "--output", copy, "--resume", "--quiet")
    assert result.exit_code == 0, result.output
    assert f"checkpoint {newest}: no readable manifest.json" in result.stderr
    assert f"falling back to {newest.with_name('step-000003')}" in result.stderr
    assert torch.equal(
        *(load_file(each / "model/model.safetensors")["classifier.weight"] for each in (copy, run))
    )


def test_code_in_a_run_is_neither_run_nor_asked_about(copy, command, monkeypatch):
    remove_sums(copy)
    mark = copy / "ran"
    (copy / "model" / "evil.py").write_text(
        f"open({str(mark)!r}, 'w')\nfrom transformers import BertConfig as C\n"
    )
    for name, key in (("config.json", "AutoConfig"), ("tokenizer_config.json", "AutoTokenizer")):
        file = copy / "model" / name
        content = json.loads(file.read_text())
        file.write_text(json.dumps(content | {"auto_map": {key: "evil.C"}, "model_type": "evil"}))
    asked = []
    monkeypatch.setattr("builtins.input", lambda *words: asked.append(words) or "y")
    refusal(command("predict", copy, "a good film"))
    assert not mark.exists() and not asked


def test_a_head_for_other_classes_is_said_with_both_numbers(network, recipe, command, tmp_path):
    file = tmp_path / "three.csv"
    rows = [
        f"{word} film {number},class {number % 3}" for number, word in enumerate(["good", "bad", "fine"] * 30)
    ]
    file.write_text("text,label\n" + "\n".join(rows) + "\n")
    changes = ("--set", f"data={{train: {file}, max_length: null}}", "--output", tmp_path / "run", "--quiet")
    said = refusal(command("train", recipe, *changes))
    assert (
        "the 3 classes of the data (class 0, class 1, class 2), got one for 2; train on data of 2 classes"
        in said
    )
    assert not (tmp_path / "run").exists()
    changes = ("--set", "network.config={intermediate_size: 8}", "--output", tmp_path / "run")
    said = refusal(command("train", recipe, *changes))
    assert "make network.config agree" in said
    changes = ("--set", "network.config={num_labels: 1}", "--output", tmp_path / "run")
    said = refusal(command("train", recipe, *changes))
    result = "network.config: expected no 'num_labels', which the 2 classes of the data set; leave it out"
    assert result in said


def test_a_head_of_one_output_is_refused_without_advice_to_train_on_one_class(
    network, recipe, command, tmp_path
):
    single = tmp_path / "single"
    shutil.copytree(network, single)
    config = BertConfig.from_pretrained(single, num_labels=1)
    BertForSequenceClassification(config).save_pretrained(single)
    changes = ("--set", f"network.name={single}", "--output", tmp_path / "run", "--quiet")
    said = refusal(command("train", recipe, *changes))
    assert "got one for 1; replace the head by a new one: network.new_head=true" in said


def test_a_network_of_a_recipe_is_compared_with_its_sums(copy, recipe, command, tmp_path):
    (copy / "model" / "tokenizer.json").write_bytes(b"{}")
    said = refusal(
        command("train", recipe, "--set", f"network.name={copy / 'model'}", "--output", tmp_path / "new")
    )
    assert "tokenizer.json has 2 bytes" in said


def test_a_full_disk_at_the_start_leaves_a_folder_to_start_in(recipe, command, tmp_path, monkeypatch):
    folder = tmp_path / "run"

    def full(self, data):
        self.error = OSError(errno.ENOSPC, "No space left on device")
        raise self.error

    with monkeypatch.context() as patch:
        patch.setattr(durable.DigestingFile, "write", full)
        said = refusal(command("train", recipe, "--output", folder, "--quiet"))
    assert "recipe.yaml: the disk is full" in said
    assert list(folder.iterdir()) == []
    succeeds("train", recipe, "--output", folder, "--quiet")


@pytest.mark.parametrize("when", [4, 9])
def test_a_folder_that_is_removed_in_mid_run_is_said(recipe, command, tmp_path, monkeypatch, when):
    folder, calls, forward = tmp_path / "run", iter(range(10_000)), Classifier.forward

    def removing(self, *args, **kwargs):
        if self.training and next(calls) == when:  # in the baseline's training, or in the network's
            shutil.rmtree(folder)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(Classifier, "forward", removing)
    said = refusal(command("train", recipe, "--output", folder, "--quiet"))
    assert str(folder) in said and "removed" in said and "train" in said


@pytest.mark.slow
@pytest.mark.fork
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_keeps_a_checkpoint_and_says_how_to_go_on(recipe, tmp_path, number):
    folder = tmp_path / "my run"
    words = ("train", recipe, "--output", folder, "--quiet", "--set", "training.steps=5000")
    process = started(*words, output=tmp_path / "said")
    until = time.monotonic() + 120
    while "step-000003" not in folders_in(folder) and process.is_alive():
        assert time.monotonic() < until
        time.sleep(0.05)
    os.kill(process.pid, number)
    process.join(60)
    said = (tmp_path / "said").read_text(encoding="utf-8").splitlines()
    assert process.exitcode == 128 + number
    resume = f"probattn train '{folder}/recipe.yaml' --output '{folder}' --resume"
    assert said[-1].startswith("interrupted: ") and said[-1].endswith(f"; continue with `{resume}`")
    step = int(said[-1].split("after update ")[1].split()[0])
    assert list(folder.rglob(f"step-{step:06d}")), "the last update is kept"


def test_arguments_that_are_no_text_are_refused(run, recipe, command, tmp_path):
    wrong = os.fsdecode(b"caf\xe9")
    for arguments in (
        ("predict", run, f"{wrong} good"),
        ("inspect", wrong),
        ("train", recipe, "--output", tmp_path / wrong),
        ("train", recipe, "--set", f"name={wrong}"),
    ):
        said = refusal(command(*arguments))
        assert "expected UTF-8 text" in said


@pytest.mark.parametrize("key", ["output", "data.train", "name"])
def test_the_character_0_is_refused_by_its_place(recipe, command, tmp_path, key):
    said = refusal(command("train", recipe, "--set", f'{key}="a\\0b"', "--output", tmp_path / "run"))
    assert "U+0000" in said and key in said


@pytest.mark.parametrize("name", ["model.safetensors", "probattn.safetensors"])
@pytest.mark.parametrize(
    ("value", "got"),
    [(float("inf"), "NaN or infinity"), (float("nan"), "NaN or infinity"), (3e38, "some of 3.0e+38")],
)
def test_a_network_of_weights_that_are_not_finite_is_named(copy, command, name, value, got):
    remove_sums(copy)
    weights = load_file(copy / "model" / name)
    weights[max(weights)].view(-1)[-1] = value
    save_file(weights, copy / "model" / name, metadata={"format": "pt"})
    predict = ("predict", copy, "a film")
    others = (
        ("triage", copy),
        ("evaluate", copy),
        ("report", copy, "--again"),
        (*predict, "--uncertainty", "moments"),
    )
    for arguments in (predict, *(others if value == 3e38 else ())):
        said = refusal(command(*arguments))
        assert f"expected a network of finite weights whose squares are finite too, got {got} in net." in said


def test_what_the_encoding_of_the_terminal_lacks_is_an_escape(run):
    done = CliRunner(charset="ascii").invoke(app, ["predict", str(run), "un café film"])
    assert done.exit_code == 0 and "un caf\\xe9 film" in done.output


def test_rows_on_standard_output_are_utf_8_whatever_the_terminal(run, tmp_path):
    (tmp_path / "in.csv").write_text("text\nun café film\n", encoding="utf-8")
    done = CliRunner(charset="ascii").invoke(app, ["predict", str(run), "--input", str(tmp_path / "in.csv")])
    assert done.exit_code == 0 and "un café film" in done.stdout_bytes.decode()


def test_closed_streams_are_written_nowhere(run, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    for arguments, status in (
        (["predict", str(run), "a film"], 0),
        (["predict", str(run / "none"), "a film"], 2),
    ):
        with pytest.raises(SystemExit) as ended:
            app(arguments)
        assert ended.value.code == status
    assert sys.stdout is None


def test_the_next_command_can_be_pasted(run, command, tmp_path):
    folder = shutil.copytree(run, tmp_path / "a b'c")
    done = command("triage", folder, "--error", "0.9", "--num-samples", "2", "--quiet")
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("next: ")]
    words = shlex.split(line.removeprefix("next: probattn "))
    assert words == ["predict", str(folder), "--policy", str(folder / "policy.json"), "--input", "FILE"]
