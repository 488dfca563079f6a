"""Saving and loading: whole or not at all, and never silently something else."""

import json
import os
import stat

import pytest
import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForTokenClassification,
    BertForMaskedLM,
    BertForTokenClassification,
)

import probattn
from probattn import BayesianAttention
from probattn.models import StoredNetworkError, convert, inspect, load, save
from probattn.models.hosts.convert import conversion
from probattn.models.hosts.pretrained import open_pretrained


@pytest.fixture
def folder(families, bert, tmp_path):
    torch.manual_seed(0)
    return save(convert(bert.network(), families.FULL), tmp_path / "net")


def test_a_network_comes_back_as_it_was(families, bert, tmp_path):
    torch.manual_seed(0)
    net, inputs = convert(bert.network(), families.FULL, layers=[0]), bert.inputs()
    folder = save(net, tmp_path / "deeper" / "net")
    loaded = load(folder)
    assert type(loaded) is type(net) and not loaded.training
    assert [call.name for call in inspect(loaded)] == [call.name for call in inspect(net)]
    assert torch.equal(families.forward(loaded, inputs), families.forward(net, inputs))


def test_the_folder_is_a_plain_network_for_transformers(families, bert, folder, caplog):
    plain = AutoModelForMaskedLM.from_pretrained(folder)
    plain.set_attn_implementation("eager")
    assert torch.equal(
        families.forward(plain, bert.inputs()), families.forward(bert.network(), bert.inputs())
    )
    assert "UNEXPECTED" not in caplog.text


def test_an_unconverted_network_comes_back_too(families, bert, tmp_path):
    loaded = load(save(bert.network(), tmp_path / "net"))
    loaded.set_attn_implementation("eager")
    assert torch.equal(
        families.forward(loaded, bert.inputs()), families.forward(bert.network(), bert.inputs())
    )


OURS = dict.fromkeys(
    ("self_attentive", "self_attentive_pairs", "decomposable", "esim"),
    transformers.AutoModelForSequenceClassification,
)
OURS |= dict.fromkeys(("recurrent", "graphwriter"), transformers.AutoModelForSeq2SeqLM)
OURS["mcan"] = transformers.AutoModelForVisualQuestionAnswering


@pytest.mark.parametrize("name", OURS)
def test_networks_of_this_package_are_found_by_their_configurations(families, name, tmp_path):
    net, inputs = families.BY_NAME[name].network(), families.BY_NAME[name].inputs()
    net.save_pretrained(tmp_path)
    again = OURS[name].from_pretrained(tmp_path).eval()
    assert type(again) is type(net)
    assert torch.equal(families.forward(again, inputs), families.forward(net, inputs))


def test_low_precision_comes_back(families, bert, tmp_path):
    torch.manual_seed(0)
    net = convert(bert.network().to(torch.bfloat16), families.FULL)
    loaded = load(save(net, tmp_path / "net"))
    assert {key: value.dtype for key, value in loaded.state_dict().items()} == {
        key: value.dtype for key, value in net.state_dict().items()
    }
    assert torch.equal(families.forward(loaded, bert.inputs()), families.forward(net, bert.inputs()))
    assert load(tmp_path / "net", dtype=torch.float32).dtype == torch.float32


def test_another_head_is_taken_where_it_is_allowed(families, bert, tmp_path):
    """With the options of transformers; the sites stay."""
    torch.manual_seed(0)
    net = convert(bert.classification(), BayesianAttention())
    net.save_pretrained(tmp_path)
    with pytest.raises(StoredNetworkError, match="ignore_mismatched_sizes"):
        load(tmp_path, num_labels=5)
    with pytest.raises(
        StoredNetworkError, match="ignore_mismatched_sizes=True takes the others, for another head"
    ):
        load(tmp_path, AutoModelForTokenClassification)
    options = {"ignore_mismatched_sizes": True, "output_loading_info": True}
    further, report = load(tmp_path, num_labels=5, **options)
    assert further.classifier.weight.shape[0] == 5 and len(report["mismatched_keys"]) == 2
    tagger, report = probattn.from_pretrained(AutoModelForTokenClassification, tmp_path, **options)
    assert (
        isinstance(tagger, BertForTokenClassification)
        and "bert.pooler.dense.bias" in report["unexpected_keys"]
    )
    for other in (further, tagger):
        stored, expected = other.state_dict(), net.state_dict()
        sites = [name for name in expected if "probattn" in name]
        assert sites and all(torch.equal(stored[name], expected[name]) for name in sites)
        assert torch.equal(
            stored["bert.embeddings.word_embeddings.weight"],
            expected["bert.embeddings.word_embeddings.weight"],
        )
        assert len(conversion(other).calls) == len(conversion(net).calls) and not other.training
    with pytest.raises(StoredNetworkError, match=r"site parameters in probattn\.safetensors do not fit"):
        load(tmp_path, num_hidden_layers=1, ignore_mismatched_sizes=True)


def test_a_save_does_not_list_transformers(bert, tmp_path, monkeypatch):
    """``dir(transformers)`` looks for every optional package, and a save would take most of its time for that."""

    def listed(_):
        raise AssertionError("listed")

    monkeypatch.setattr(type(transformers), "__dir__", listed)
    net = convert(bert.classification(), BayesianAttention())
    net.save_pretrained(tmp_path)
    assert "(transformers.AutoModelForSequenceClassification, " in (tmp_path / "README.md").read_text()


def test_nothing_is_written_over_or_left_half(families, bert, folder, monkeypatch):
    net = convert(bert.network(), BayesianAttention())
    with pytest.raises(FileExistsError, match="holds files"):
        save(net, folder)
    target = folder.parent / "second"
    target.mkdir()  # an empty folder may be filled

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("probattn.models.hosts.saving.tensor_bytes", full)
        with pytest.raises(OSError, match=r"saving a network to .*second: the disk is full: free some space"):
            save(net, target)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["net", "second"]
    assert list(target.iterdir()) == []
    load(save(net, target))
    plain = folder.parent / "plain"
    plain.mkdir()
    assert target.stat().st_mode == plain.stat().st_mode


def rewrite(folder, **changes):
    file = folder / "probattn.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def rewrite_method(folder, **options):
    rewrite(folder, methods=[{"kind": "bayesian"} | options])


DAMAGE = {
    "cut json": (lambda f: (f / "probattn.json").write_text('{"format": 1,'), "cannot be read"),
    "no object": (lambda f: (f / "probattn.json").write_text("[]"), "cannot be read"),
    "not text": (lambda f: (f / "probattn.json").write_bytes(b"\xff\xfe\x00"), "cannot be read"),
    "no json": (lambda f: (f / "probattn.json").unlink(), "not found; expected a folder written by"),
    "later format": (lambda f: rewrite(f, format=7), "expected format 5, got 7"),
    "unknown class": (
        lambda f: rewrite(f, **{"class": "BertForNothing"}),
        "no network class 'BertForNothing'",
    ),
    "no network": (lambda f: rewrite(f, **{"class": "Trainer"}), "no network class 'Trainer'"),
    "other family": (lambda f: rewrite(f, **{"class": "GPT2LMHeadModel"}), "describes a bert"),
    "unknown method": (lambda f: rewrite_method(f, kind="magic"), "no attention method of kind 'magic'"),
    "unknown option": (lambda f: rewrite_method(f, sigmoid=1), "has no option 'sigmoid'"),
    "option out of range": (lambda f: rewrite_method(f, rho=-1), "rho"),
    "other options": (lambda f: rewrite_method(f, sigma=0.0), r"do not fit probattn\.json"),
    "other layers": (lambda f: rewrite(f, layers=[0]), r"do not fit probattn\.json"),
    "layer too many": (lambda f: rewrite(f, layers=[9]), "layers: expected numbers"),
    "other width": (lambda f: rewrite_method(f, sigma=0.5, prior_hidden=3), "do not fit"),
    "no sites": (lambda f: (f / "probattn.safetensors").unlink(), "cannot be read"),
    "cut sites": (lambda f: cut(f / "probattn.safetensors"), "cannot be read"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "cannot be read"),
    "cut weights": (lambda f: cut(f / "model.safetensors"), "cannot be read"),
    "no config": (lambda f: (f / "config.json").unlink(), "cannot be read"),
    "cut config": (lambda f: cut(f / "config.json"), "cannot be read"),
}


def cut(file):
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_folder_without_sums_is_one_clear_line(folder, name):
    (folder / "manifest.json").unlink()
    damage, message = DAMAGE[name]
    damage(folder)
    with pytest.raises(StoredNetworkError, match=message) as caught:
        load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_or_foreign_weights_are_not_replaced_by_random_ones(families, bert, folder):
    from safetensors.torch import load_file, save_file

    (folder / "manifest.json").unlink()
    weights = load_file(folder / "model.safetensors")
    kept = {key: value for key, value in weights.items() if "layer.1.output.dense.weight" not in key}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StoredNetworkError, match=r"1 missing keys, .*dense\.weight first"):
        load(folder)
    save_file(
        weights | {"other.weight": torch.ones(2)}, folder / "model.safetensors", metadata={"format": "pt"}
    )
    with pytest.raises(StoredNetworkError, match=r"1 unexpected keys, other\.weight"):
        load(folder)


def test_a_folder_of_transformers_alone_is_refused(bert, tmp_path):
    BertForMaskedLM.save_pretrained(bert.network(), tmp_path / "plain")
    for folder in (tmp_path / "plain", tmp_path / "nowhere"):
        with pytest.raises(StoredNetworkError, match=r"probattn\.models\.save"):
            load(folder)


CHANGED = {name: damage for name, (damage, _) in DAMAGE.items() if name != "no json"}


@pytest.mark.parametrize("name", CHANGED)
def test_with_sums_every_damage_is_noticed(folder, name):
    CHANGED[name](folder)
    with pytest.raises(StoredNetworkError, match=r"net(/probattn\.json)?: ") as caught:
        load(folder)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_a_flipped_byte_in_any_file_is_noticed_and_the_file_named(folder):
    files = [
        file for file in folder.iterdir() if file.name not in {"manifest.json", "probattn.json", "README.md"}
    ]
    assert {"config.json", "model.safetensors", "probattn.safetensors"} == {file.name for file in files}
    for file in files:
        data = file.read_bytes()
        for place in (len(data) // 2, len(data) - 1):
            file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with pytest.raises(
                StoredNetworkError, match=f"content of {file.name} has changed.*copy the folder again"
            ):
                load(folder)
        file.write_bytes(data)
    load(folder)


def test_folders_without_sums_and_with_further_files_are_loaded(folder):
    weights = load(folder).state_dict()
    (folder / "notes.txt").write_text("mine")
    (folder / "more").mkdir()
    (folder / "more" / "x.bin").write_bytes(b"1")
    for _ in range(2):
        again = load(folder).state_dict()
        assert all(torch.equal(value, again[key]) for key, value in weights.items())
        (folder / "manifest.json").unlink(missing_ok=True)


def test_files_written_beside_the_network_have_sums_too(families, bert, tmp_path):
    def beside(folder):
        (folder / "tokens.txt").write_text("a b")

    folder = save(bert.network(), tmp_path / "net", beside=beside)
    load(folder)
    (folder / "tokens.txt").write_text("a c")
    with pytest.raises(StoredNetworkError, match=r"content of tokens.txt has changed"):
        load(folder)


def test_all_files_are_equally_readable(families, bert, tmp_path):
    before = os.umask(0o022)
    try:
        folder = save(convert(bert.network(), families.FULL), tmp_path / "net")
    finally:
        os.umask(before)
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == dict.fromkeys(
        (file.name for file in folder.iterdir()), 0o644
    )


@pytest.mark.parametrize(
    "options",
    [
        {"hidden_size": "wide"},
        {"num_attention_heads": 0},
        {"dtype": "float99"},
        {"vocab_size": None},
        {"hidden_act": []},
        {"num_hidden_layers": 10**30},
        {"pad_token_id": 10**6},
        {"model_type": []},
        {"model_type": "none such"},
    ],
    ids=str,
)
def test_configurations_of_wrong_types_are_refused_in_one_line(folder, options):
    (folder / "manifest.json").unlink()
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | options))
    with pytest.raises(StoredNetworkError, match=r"net: (cannot be read \(|.* to fit \d+ weights)") as caught:
        load(folder)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_more_classes_than_a_network_can_have_are_refused_before_they_are_named(folder):
    (folder / "manifest.json").unlink()
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_labels": 10**9}))
    for read in (load, lambda path: open_pretrained(AutoConfig, path)):
        with pytest.raises(StoredNetworkError, match="expected at most 1,000,000 num_labels, got 1000000000"):
            read(folder)


@pytest.mark.fork
@pytest.mark.parametrize("name", ["config.json", "probattn.json", "model.safetensors", "tokenizer.json"])
def test_pipes_and_devices_are_refused_unread(folder, name):
    for make in (os.mkfifo, lambda file: file.symlink_to("/dev/zero")):
        file = folder / name
        file.unlink(missing_ok=True)
        make(file)
        for read in (load, lambda path: open_pretrained(AutoConfig, path)):
            with pytest.raises(StoredNetworkError, match=f"{name}: expected a file, got a pipe"):
                read(folder)


def test_an_attention_function_on_the_hub_is_not_fetched(folder):
    """Releases of transformers that read the entry refuse it without the hub; earlier ones pass over it."""
    (folder / "manifest.json").unlink()
    file = folder / "config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"attn_implementation": "kernels-community/none"})
    )
    try:
        answer = load(folder).config._attn_implementation
    except StoredNetworkError as error:
        answer = str(error)
    assert answer == "probattn" or ("net: cannot be read (" in answer and "\n" not in answer)


@pytest.mark.parametrize("model_type", ["bert", "evil"])
def test_code_in_a_folder_is_neither_run_nor_asked_about(folder, tmp_path, model_type, monkeypatch):
    (folder / "manifest.json").unlink()
    mark = tmp_path / "ran"
    (folder / "evil.py").write_text(
        f"open({str(mark)!r}, 'w').close()\nfrom transformers import BertConfig as C\n"
    )
    file = folder / "config.json"
    changed = {"auto_map": {"AutoConfig": "evil.C"}, "model_type": model_type}
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    asked = []
    monkeypatch.setattr("builtins.input", lambda *words: asked.append(words) or "y")
    if model_type == "evil":
        with pytest.raises(StoredNetworkError, match="cannot be read"):
            load(folder)
    else:
        load(folder)
    assert not mark.exists() and not asked


def test_panics_are_about_the_files_and_interruptions_are_not():
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})

    class Opened:
        def __init__(self, error):
            self.error = error

        def from_pretrained(self, source, **options):
            assert options == {"trust_remote_code": False}
            raise self.error

    for error in (
        panic("index out of bounds\nmore"),
        ZeroDivisionError("division by zero"),
        AttributeError(),
    ):
        with pytest.raises(
            StoredNetworkError, match=rf"some/folder: cannot be read \({type(error).__name__}"
        ):
            open_pretrained(Opened(error), "some/folder")
    with pytest.raises(
        StoredNetworkError, match=r"no such folder, and no such name on the hub within reach: check"
    ):
        open_pretrained(Opened(OSError("We couldn't connect")), "some/folder")
    for error in (KeyboardInterrupt(), SystemExit(3), GeneratorExit()):
        with pytest.raises(type(error)):
            open_pretrained(Opened(error), "some/folder")
