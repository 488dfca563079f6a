"""What leaves the library keeps the posterior, or says so: transformers' own ways of saving, copies and exports."""

import copy
import gc
import json
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, Trainer, TrainingArguments

import probattn
from probattn import AlignmentAttention, BayesianAttention, DisagreementAttention, RepulsiveAttention
from probattn.inference import posterior_predict
from probattn.models import Classifier, StoredNetworkError, convert, describe, inspect, load, revert, save
from probattn.models.hosts.convert import conversion

FILES = {
    "config.json",
    "model.safetensors",
    "manifest.json",
    "probattn.json",
    "probattn.safetensors",
    "README.md",
}
METHODS = {
    "bam": (BayesianAttention.bam(),),
    "weibull": (BayesianAttention(),),
    "full": (BayesianAttention(rho=1.5, sigma=0.5),),
    "aligned": (BayesianAttention(), AlignmentAttention("gan")),
    "repulsive": (RepulsiveAttention(),),
    "disagreement": (DisagreementAttention("outputs"),),
}

ANSWER = """
import json, sys, pyro, torch
from pyro import poutine
from probattn.inference import posterior_predict
from probattn.models import Classifier, load

def head(output):
    names = ("logits", "logits_per_image", "last_hidden_state")
    return next(value for name in names if (value := getattr(output, name, None)) is not None)

def answers(net, inputs):
    with torch.no_grad():
        found = [head(net.eval()(**inputs))]
        torch.manual_seed(3)
        with poutine.trace() as trace, pyro.plate("data", len(found[0])):
            found.append(head(net(**inputs)))
        found += [site["value"] for site in trace.trace.nodes.values() if site["type"] == "sample"]
        sites = [site for site in trace.trace.nodes.values() if "attention" in site.get("infer", {})]
        if type(net).__name__.endswith("SequenceClassification") and sites:
            found.append(posterior_predict(Classifier(net), inputs, num_samples=3, seed=5).logits)
    return [value for value in found if isinstance(value, torch.Tensor)]
"""
exec(ANSWER, ANSWERS := {})


def converted(families, family, *methods, classifier=False):
    torch.manual_seed(0)
    net = family.classification() if classifier and family.classifier else family.network()
    return convert(net, *(methods or (families.FULL,)))


@pytest.fixture
def net(families, bert):
    return converted(families, bert)


def keys(file):
    with safe_open(file, framework="pt") as opened:
        return set(opened.keys())


def test_save_pretrained_writes_plain_weights_and_all_else_beside_them(net, bert, families, tmp_path, caplog):
    expected = families.forward(net, bert.inputs())
    net.save_pretrained(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == FILES
    assert not any("probattn" in key for key in keys(tmp_path / "model.safetensors"))
    again = probattn.from_pretrained(AutoModelForMaskedLM, tmp_path)
    assert torch.equal(families.forward(again, bert.inputs()), expected)
    plain, report = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()) and not any("probattn" in key for key in plain.state_dict())
    assert "UNEXPECTED" not in caplog.text and "MISSING" not in caplog.text
    assert "save_pretrained" not in vars(revert(net))


@pytest.mark.slow
def test_every_family_and_method_answers_the_same_in_a_new_process(families, bert, tmp_path):
    saved = {}

    trainer = Trainer(bert.network(), TrainingArguments(str(tmp_path / "out"), report_to=[], use_cpu=True))

    def keep(name, net, inputs):
        first, second = tmp_path / f"{name}.save_pretrained", tmp_path / f"{name}.save_model"
        saved[str(second)] = inputs, ANSWERS["answers"](net, inputs)
        net.save_pretrained(first)
        trainer.model = net
        trainer.save_model(str(second))
        assert (first / "manifest.json").read_bytes() == (second / "manifest.json").read_bytes()

    for family in families.FAMILIES:
        if families.Version(hf.__version__) < families.Version(family.since):
            continue
        net = family.network()
        if family.name in {"bart", "marian"}:  # without the hooks that the tests' own networks carry
            bare = type(net)(net.config).eval()
            bare.load_state_dict(net.state_dict())
            net = bare
        torch.manual_seed(0)
        keep(family.name, convert(net, families.FULL), family.inputs())
    for name, methods in METHODS.items():
        net = families.BY_NAME["bert"].classification()
        net.set_attn_implementation("sdpa")  # the choice of transformers, which no folder keeps
        torch.manual_seed(0)
        keep(name, convert(net, *methods), families.BY_NAME["bert"].inputs())
    torch.save(saved, tmp_path / "saved.pt")
    net, inputs = converted(families, bert), bert.inputs()
    (tmp_path / "pickled").write_bytes(pickle.dumps((net, inputs, families.forward(net, inputs))))
    first = """
import pickle, sys  # in a process that never converted a network
net, inputs, expected = pickle.load(open(sys.argv[2], "rb"))
assert (net(**inputs).logits - expected).abs().max() < 1e-6
"""
    check = """
saved = torch.load(sys.argv[1], weights_only=True)
wrong = []
for folder, (inputs, expected) in saved.items():
    found = answers(load(folder), inputs)
    if len(found) != len(expected) or not all(map(torch.equal, found, expected)):
        wrong.append(folder)
print(json.dumps([len(saved), wrong]))
"""
    done = subprocess.run(
        [sys.executable, "-c", first + ANSWER + check, str(tmp_path / "saved.pt"), str(tmp_path / "pickled")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [len(saved), []]
    assert "UNEXPECTED" not in done.stderr


def test_shards_variants_and_earlier_saves(net, bert, families, tmp_path):
    inputs = bert.inputs()
    net.save_pretrained(tmp_path)
    (tmp_path / "training_args.bin").write_text("another's")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.1)
    net.save_pretrained(tmp_path, max_shard_size="4KB")
    assert not (tmp_path / "model.safetensors").exists() and len(list(tmp_path.glob("model-*-of-*"))) > 1
    assert torch.equal(families.forward(load(tmp_path), inputs), families.forward(net, inputs))
    net.save_pretrained(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == FILES | {"training_args.bin"}
    assert torch.equal(families.forward(load(tmp_path), inputs), families.forward(net, inputs))
    net.save_pretrained(tmp_path, variant="half")
    assert torch.equal(
        families.forward(load(tmp_path, variant="half"), inputs), families.forward(net, inputs)
    )
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("sums", [True, False])
def test_an_interrupted_save_over_another_is_noticed(net, tmp_path, monkeypatch, sums):
    net.save_pretrained(tmp_path)
    if not sums:
        (tmp_path / "manifest.json").unlink()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1)
    moves = []
    replace = type(tmp_path).replace

    def failing(self, target):
        moves.append(target)
        if len(moves) == stop:
            raise OSError(5, "cable")
        return replace(self, target)

    before = [file.read_bytes() for file in sorted(tmp_path.iterdir())]
    with monkeypatch.context() as patch:
        patch.setattr("probattn.models.hosts.saving.write_manifest", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            net.save_pretrained(tmp_path)
    assert [file.read_bytes() for file in sorted(tmp_path.iterdir())] == before  # the earlier save is whole
    stop = 5
    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "replace", failing)
        with pytest.raises(OSError, match="cable"):
            net.save_pretrained(tmp_path)
    with pytest.raises(StoredNetworkError, match="has changed") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    net.save_pretrained(tmp_path)
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in load(tmp_path).state_dict().items())
    assert {file.name for file in tmp_path.iterdir()} == FILES


def test_other_processes_write_nothing_and_a_state_dict_needs_the_sites(net, tmp_path):
    net.save_pretrained(tmp_path, is_main_process=False)
    assert list(tmp_path.iterdir()) == []
    weights = {
        key: value + 1 if value.is_floating_point() else value for key, value in net.state_dict().items()
    }
    count = len(weights)
    net.save_pretrained(tmp_path, state_dict=weights)
    assert len(weights) == count
    assert all(torch.equal(v, weights[k]) for k, v in load(tmp_path).state_dict().items())
    with pytest.raises(ValueError, match=r"expected the sites' weights in state_dict, .* is missing"):
        net.save_pretrained(tmp_path, state_dict={k: v for k, v in weights.items() if "probattn" not in k})
    with pytest.raises(ValueError, match="distributed_checkpoint=False"):
        net.save_pretrained(tmp_path, distributed_checkpoint=True)


def test_parts_are_saved_with_all_of_their_sites_or_refused(families, tmp_path):
    family = families.BY_NAME["gpt2"]
    net, inputs = converted(families, family), family.inputs()
    hidden = ANSWERS["answers"](net.base_model, inputs)
    net.base_model.save_pretrained(tmp_path / "part")
    assert all(map(torch.equal, ANSWERS["answers"](load(tmp_path / "part"), inputs), hidden))
    pair = converted(families, families.BY_NAME["t5"])
    with pytest.raises(ValueError, match="part of a converted network and has some of its sites"):
        pair.encoder.save_pretrained(tmp_path / "encoder")
    assert not (tmp_path / "encoder").exists()


def test_the_attribute_makes_no_cycle_and_follows_copies(net, tmp_path):
    for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), copy.deepcopy(net.bert)):
        with torch.no_grad():
            for parameter in again.parameters():
                parameter.zero_()
        again.save_pretrained(tmp_path / "copy")
        assert not any(
            value.any() for value in load_file(tmp_path / "copy" / "probattn.safetensors").values()
        )
    copy.copy(net).save_pretrained(tmp_path / "shallow")
    load(tmp_path / "shallow")


def test_a_network_that_nobody_refers_to_is_freed_at_once(families, bert, tmp_path):
    net = converted(families, bert)
    shallow, kept = copy.copy(net), weakref.ref(net)
    gc.disable()
    try:
        del net
        assert kept() is None
    finally:
        gc.enable()
    shallow.save_pretrained(tmp_path)
    load(tmp_path)


def test_a_classifier_and_accelerate_unwrap_to_the_same(families, bert, tmp_path):
    from accelerate import Accelerator

    net = converted(families, bert, classifier=True)
    accelerator = Accelerator(cpu=True)
    accelerator.unwrap_model(accelerator.prepare(Classifier(net))).net.save_pretrained(
        tmp_path, save_function=accelerator.save, is_main_process=accelerator.is_main_process
    )
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in load(tmp_path).state_dict().items())


def test_plain_folders_are_refused_by_name(bert, tmp_path):
    plain = bert.network()
    plain.save_pretrained(tmp_path / "plain")
    with pytest.raises(
        StoredNetworkError, match=r"plain/probattn\.json: not found; .* makes it probabilistic"
    ):
        probattn.from_pretrained(AutoModelForMaskedLM, tmp_path / "plain")
    save(plain, tmp_path / "saved")
    with pytest.raises(StoredNetworkError, match=r"names no method"):
        probattn.from_pretrained(AutoModelForMaskedLM, str(tmp_path / "saved"))


def test_the_card_says_what_was_said(net, tmp_path):
    describe(net, data="SST-2", metrics={"accuracy": 0.91, "ECE": 0.0312345}, base_model="someone/bert")
    net.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    header = hf.utils.hub.ModelCard(card).data
    assert (
        header.library_name == "transformers"
        and "probattn" in header.tags
        and header.base_model == "someone/bert"
    )
    assert (
        "| ECE | 0.03123 |" in card
        and "SST-2" in card
        and "* BayesianAttention: " in card
        and "rho 1.5" in card
    )
    assert "probattn.from_pretrained(transformers.AutoModelForMaskedLM" in card
    again = load(tmp_path)
    again.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == card  # what was said comes back
    (tmp_path / "README.md").write_text("mine")
    net.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    load(tmp_path)


class Hub:
    """What ``huggingface_hub.HfApi`` is asked for."""

    pushed = None

    def __init__(self, **options):
        self.options = options

    def create_repo(self, repo_id, **options):
        return type("Url", (), {"repo_id": f"me/{repo_id}"})

    def create_branch(self, **options):
        Hub.branch = options["branch"]

    def upload_folder(self, *, folder_path, allow_patterns, repo_id, **options):
        Hub.pushed = repo_id, {name: (folder_path / name).read_bytes() for name in allow_patterns}, options
        return "url"


@pytest.mark.parametrize("theirs", [None, "---\ntags:\n- mine\n---\nmine"])
def test_push_to_hub_uploads_all_that_load_needs(net, tmp_path, monkeypatch, theirs):
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    class AbsentError(EntryNotFoundError):
        def __init__(self):
            pass

    own = huggingface_hub.ModelCard

    class Card(own):
        @classmethod
        def load(cls, source, token=None):
            if isinstance(source, str):
                if theirs is None:
                    raise AbsentError
                return own(theirs)
            return own.load(source, token=token)

    monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
    monkeypatch.setattr(huggingface_hub, "ModelCard", Card)
    assert (
        net.push_to_hub("net", tags=["mine"], private=True, revision="dev", commit_message="first") == "url"
    )
    repo, files, options = Hub.pushed
    assert repo == "me/net" and Hub.branch == "dev"
    assert options == {"revision": "dev", "commit_message": "first"}
    assert files.keys() == FILES - (set() if theirs is None else {"README.md"})
    if theirs is None:
        assert {"mine", "probattn"} <= set(huggingface_hub.ModelCard(files["README.md"].decode()).data.tags)
    net.save_pretrained(tmp_path / "again", push_to_hub=True)
    assert Hub.pushed[0] == "me/again" and Hub.pushed[1].keys() == files.keys()
    with pytest.raises(TypeError, match=r"push_to_hub: expected one of .*got 'licence'"):
        net.push_to_hub("net", licence="mit")


def test_a_name_on_the_hub_is_read_from_the_cache(net, bert, families, tmp_path):
    commit = "a" * 40
    repo = tmp_path / "models--me--net"
    net.save_pretrained(repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    access = {"cache_dir": tmp_path, "local_files_only": True}
    again = probattn.from_pretrained(AutoModelForMaskedLM, "me/net", **access)
    assert torch.equal(families.forward(again, bert.inputs()), families.forward(net, bert.inputs()))
    load("me/net", revision=commit, **access)
    for name, revision in (("me/other", None), ("me/net", "nowhere")):
        with pytest.raises(StoredNetworkError, match=rf"{name}: cannot be read .*HF_HUB_OFFLINE") as caught:
            load(name, revision=revision, **access)
        assert "\n" not in str(caught.value)
    (repo / "snapshots" / commit / "probattn.json").unlink()
    with pytest.raises(StoredNetworkError, match="me/net: ") as caught:
        load("me/net", **access)
    assert "\n" not in str(caught.value)


def refused(call, error, match):
    with pytest.raises(error, match=match):
        call()
    return "refused"


def same(again, net, inputs):
    assert all(map(torch.equal, ANSWERS["answers"](again, inputs), ANSWERS["answers"](net, inputs)))
    return "kept"


def switched(families, net, inputs):
    before = families.observe(net, inputs)[1]
    net.set_attn_implementation("eager")
    return "kept" if before.keys() == families.observe(net, inputs)[1].keys() != set() else "left out"


def table_of_exits():
    page = Path(__file__).parents[3] / "docs" / "use" / "saving.md"
    rows = page.read_text().partition("| Call |")[2].splitlines()[2:]
    cells = [line.strip("| ").split(" | ") for line in rows if line.startswith("|")]
    return {way: says for way, _, says in cells}


class Exits:
    """A converted network, others beside it, and what becomes of it."""

    def __init__(self, families, bert, folder):
        self.families, self.folder, self.inputs = families, folder, bert.inputs()
        self.net = converted(families, bert, classifier=True)
        self.gpt, self.pair = (converted(families, families.BY_NAME[name]) for name in ("gpt2", "t5"))
        self.weights, self.plain = self.net.state_dict(), bert.classification()
        self.alike = convert(bert.classification(), families.FULL)

    def through(self, write):
        write(self.folder / "out")
        return same(load(self.folder / "out"), self.net, self.inputs)

    def stored(self, what):
        torch.save(what, self.folder / "out.pt")
        return torch.load(self.folder / "out.pt", weights_only=what is not self.net)

    def part(self):
        self.gpt.base_model.save_pretrained(self.folder / "part")
        return same(load(self.folder / "part"), self.gpt.base_model, self.families.BY_NAME["gpt2"].inputs())

    def left_out(self):
        self.net.save_pretrained(self.folder / "out")
        read, report = type(self.net).from_pretrained(self.folder / "out", output_loading_info=True)
        assert conversion(read) is None and not any(report.values())
        return "left out"

    def not_strict(self):
        unexpected = self.plain.load_state_dict(self.weights, strict=False).unexpected_keys
        assert set(unexpected) == {name for name in self.weights if "probattn" in name}
        return "left out"

    def loaded_alike(self):
        self.alike.load_state_dict(self.stored(self.weights))
        return same(self.alike, self.net, self.inputs)

    def half(self):
        smaller = copy.deepcopy(self.net).half()
        assert (
            smaller.state_dict().keys() == self.weights.keys()
            and smaller(**self.inputs).logits.isfinite().all()
        )
        return "kept"

    def quantised(self):
        names = {name for name, module in self.net.named_modules() if isinstance(module, torch.nn.Linear)}
        names -= {name for name in names if ".probattn." in name}
        small = torch.ao.quantization.quantize_dynamic(copy.deepcopy(self.net), names)
        assert len(inspect(small)) == len(inspect(self.net))
        assert (small(**self.inputs).logits - self.net(**self.inputs).logits).abs().max() < 0.3
        drawn = [
            posterior_predict(Classifier(each), self.inputs, num_samples=3, seed=0).logits
            for each in (small, self.net)
        ]
        assert (drawn[0] - drawn[1]).abs().max() < 0.3 and (drawn[0][0] != drawn[0][1]).any()
        return "kept"

    def parallel(self):
        several = copy.deepcopy(self.net)
        for module in several.modules():
            module._is_replica = True  # as torch.nn.parallel.replicate does
        return refused(lambda: several(**self.inputs), RuntimeError, "DataParallel")

    def traced(self):
        text = self.inputs["input_ids"]
        return refused(
            lambda: torch.jit.trace(self.net, text, strict=False),
            RuntimeError,
            "latent attention cannot be exported",
        )

    def merged(self):
        peft = pytest.importorskip("peft")
        config = peft.LoraConfig(target_modules=["query"])
        adapted = peft.get_peft_model(copy.deepcopy(self.net), config)
        return same(adapted.merge_and_unload(), self.net, self.inputs)

    def adapters(self):
        """The folder of a converted network's adapters, and their base network."""
        peft = pytest.importorskip("peft")
        self.plain.save_pretrained(self.folder / "base")
        base = type(self.net).from_pretrained(self.folder / "base")
        config = peft.LoraConfig(target_modules=["query"])
        adapted = peft.get_peft_model(convert(base, self.families.FULL), config)
        for name, value in adapted.named_parameters():
            if ".probattn." in name:
                torch.nn.init.normal_(value)
        adapted.save_pretrained(self.folder / "adapters")
        return self.folder / "adapters", {n: v for n, v in base.state_dict().items() if ".probattn." in n}

    def opened(self):
        folder, _ = self.adapters()
        with pytest.warns(UserWarning, match="which the base network lacks"):
            opened = AutoModelForSequenceClassification.from_pretrained(folder)
        return "left out" if conversion(opened) is None else "kept"

    def added(self):
        folder, sites = self.adapters()
        net = convert(type(self.net).from_pretrained(self.folder / "base"), self.families.FULL)
        net.load_adapter(str(folder))
        read = net.state_dict()
        return "kept" if sites and all(torch.equal(read[name], sites[name]) for name in sites) else "left out"


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated", "ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.* is (deprecated|not supported)")
def test_the_table_of_exits_is_true(families, bert, tmp_path):
    exits = Exits(families, bert, tmp_path)
    net, inputs = exits.net, exits.inputs
    trainer = Trainer(exits.plain, TrainingArguments(str(tmp_path / "trainer"), report_to=[], use_cpu=True))
    trainer.model = net
    true = {
        "`net.save_pretrained(folder)`": lambda: exits.through(exits.net.save_pretrained),
        "`Trainer(net).save_model(folder)`": lambda: exits.through(
            lambda folder: trainer.save_model(str(folder))
        ),
        "`net.base_model.save_pretrained(folder)`": exits.part,
        "`net.encoder.save_pretrained(folder)`": lambda: refused(
            lambda: exits.pair.encoder.save_pretrained(tmp_path / "no"), ValueError, "some of its sites"
        ),
        '`net.set_attn_implementation("eager")`': lambda: switched(families, copy.deepcopy(net), inputs),
        "`type(net)(net.config)`": lambda: (
            "left out" if conversion(type(net)(net.config)) is None else "kept"
        ),
        "`copy.copy(net)`": lambda: same(copy.copy(net), net, inputs),
        "`copy.deepcopy(net)`": lambda: same(copy.deepcopy(net), net, inputs),
        "`pickle.dumps(net)`": lambda: same(pickle.loads(pickle.dumps(net)), net, inputs),
        "`torch.save(net)`": lambda: same(exits.stored(net), net, inputs),
        "`torch.save(net.state_dict())`": exits.loaded_alike,
        "`plain.load_state_dict(net.state_dict())`": lambda: refused(
            lambda: exits.plain.load_state_dict(exits.weights), RuntimeError, r"Unexpected key\(s\).*probattn"
        ),
        "`plain.load_state_dict(net.state_dict(), strict=False)`": exits.not_strict,
        "`AutoModel.from_pretrained(folder)`": exits.left_out,
        "converters that read `model.safetensors` (GGUF)": exits.left_out,
        "`net.half()`, `net.to(...)`": exits.half,
        "`torch.ao.quantization.quantize_dynamic(net, names)`": exits.quantised,
        "`net.merge_and_unload()`": exits.merged,
        "`AutoModel.from_pretrained(adapters)`, `pipeline(model=adapters)`": exits.opened,
        "`net.load_adapter(adapters)`": exits.added,
        "`torch.nn.DataParallel(net)`": exits.parallel,
        "`torch.jit.trace(net)`": exits.traced,
        "`torch.export.export(net)`": lambda: refused(
            lambda: torch.export.export(net, (), inputs), Exception, "latent attention cannot be exported"
        ),
    }
    assert {way: happens() for way, happens in true.items()} == table_of_exits()
