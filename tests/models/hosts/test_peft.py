"""Networks with adapters of the PEFT library: both orders, trained, saved, loaded and merged."""

import json

import pytest
import torch
import transformers as hf
from packaging.version import Version

import probattn
from probattn import BayesianAttention, RepulsiveAttention
from probattn.inference import OptimizerOptions, SVIDriver, posterior_predict
from probattn.models import Classifier, Regressor, StoredNetworkError, convert, inspect, load, revert
from probattn.models.hosts import pretrained
from probattn.models.hosts.adapter import HostedSite
from probattn.models.hosts.convert import conversion

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)  # PEFT's own
TARGETS = {"bert": ["query", "value"], "gpt2": ["c_attn"], "t5": ["q", "v"]}
ORDERS = ("peft first", "conversion first")


def base(families, name, folder):
    """A network from a folder, since adapters name the one that they belong to."""
    net = families.BY_NAME[name].network()
    if name == "bert":
        net = families.BY_NAME[name].classification()
    net.save_pretrained(folder)
    return type(net).from_pretrained(folder)


def wrapped(net, order, targets, *methods):
    torch.manual_seed(0)
    methods = methods or (BayesianAttention(sigma=0.5),)
    # GPT-2 stores its weights transposed.
    config = peft.LoraConfig(
        r=2, target_modules=targets, init_lora_weights=False, fan_in_fan_out=net.config.model_type == "gpt2"
    )
    if order == "peft first":
        return convert(peft.get_peft_model(net, config), *methods)
    return peft.get_peft_model(convert(net, *methods), config)


def groups(net):
    named = dict(net.named_parameters())
    sites = {name for name in named if ".probattn." in name}
    adapters = {name for name in named if "lora_" in name}
    assert not sites & adapters
    return sites, adapters, named.keys() - sites - adapters


@pytest.fixture(scope="module")
def transformers_loads_adapters(families, tmp_path_factory):
    """Skips where transformers itself does not read a plain network's adapters."""
    folder = tmp_path_factory.mktemp("plain")
    least = hf.integrations.peft.MIN_PEFT_VERSION
    if Version(peft.__version__) < Version(least):
        pytest.skip(
            f"adapters of transformers {hf.__version__} need peft {least}, here is {peft.__version__}"
        )
    config = peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False)
    net = peft.get_peft_model(base(families, "bert", folder / "base"), config).eval()
    net.save_pretrained(folder / "adapters")
    again = type(net.get_base_model()).from_pretrained(folder / "base")
    again.load_adapter(str(folder / "adapters"))
    if not torch.equal(*(families.forward(each, families.BY_NAME["bert"].inputs()) for each in (net, again))):
        pytest.skip(f"transformers {hf.__version__} leaves adapters of peft {peft.__version__} random")


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("targets", ["own", "all-linear"])
def test_sites_and_adapters_are_trainable_and_nothing_else(families, tmp_path, name, order, targets):
    net = wrapped(base(families, name, tmp_path), order, TARGETS[name] if targets == "own" else targets)
    sites, adapters, _ = groups(net)
    assert sites and adapters
    assert {key for key, value in net.named_parameters() if value.requires_grad} == sites | adapters
    assert len(inspect(net)) == families.BY_NAME[name].layers and conversion(net) is not None
    inputs = families.BY_NAME[name].inputs()
    assert families.forward(net, inputs).isfinite().all()
    revert(net)
    assert not any(isinstance(module, HostedSite) for module in net.modules())


@pytest.mark.parametrize("first", [True, False])
def test_the_noise_of_a_regression_is_trainable_and_saved(families, tmp_path, first):
    """Also that of a program which the network had before its adapters, which froze it."""
    host = base(families, "bert", tmp_path / "base")
    if first:
        Regressor(host)
    net = wrapped(host, "conversion first", TARGETS["bert"])
    scale = Regressor(net).scale
    assert scale is host.probattn and scale.log_scale.requires_grad
    with torch.no_grad():
        scale.log_scale.fill_(2.0)
    net.save_pretrained(tmp_path / "both")
    again = probattn.from_pretrained(type(host), tmp_path / "both")
    assert torch.equal(Regressor(again).scale.log_scale, scale.log_scale)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("order", ORDERS)
def test_one_folder_holds_both(families, tmp_path, name, order):
    inputs = families.BY_NAME[name].inputs()
    net = wrapped(base(families, name, tmp_path / "base"), order, TARGETS[name]).eval()
    expected = families.forward(net, inputs)
    net.save_pretrained(tmp_path / "both")
    names = {file.name for file in (tmp_path / "both").iterdir()}
    assert names == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "manifest.json",
        "probattn.json",
        "probattn.safetensors",
    }
    assert "probattn" in (tmp_path / "both" / "README.md").read_text()
    again = probattn.from_pretrained(type(net.get_base_model()), tmp_path / "both")
    assert isinstance(again, peft.PeftModel)
    assert torch.equal(families.forward(again, inputs), expected)
    other = convert(
        type(net.get_base_model()).from_pretrained(tmp_path / "base"), BayesianAttention(sigma=0.5)
    )
    other = peft.PeftModel.from_pretrained(other, str(tmp_path / "both")).eval()
    assert torch.equal(families.forward(other, inputs), expected)
    merged = net.merge_and_unload()
    assert conversion(merged) is not None and not any("lora_" in key for key in merged.state_dict())
    assert (families.forward(merged, inputs) - expected).abs().max() < 1e-4
    merged.save_pretrained(tmp_path / "merged")
    assert torch.equal(families.forward(load(tmp_path / "merged"), inputs), families.forward(merged, inputs))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"target_modules": r"(\w+.?)+!"},
            r"expected patterns of modules that match in 0.5 seconds, got \['\(",
        ),
        ({"exclude_modules": r"(.*.*)*!"}, "expected patterns of modules that match"),
        ({"rank_pattern": {r"(\w+.?)+!": 2}}, "expected patterns of modules that match"),
        ({"target_modules": "(query"}, "expected regular expressions of modules"),
        (
            {"base_model_name_or_path": 5},
            "expected the name of a base network in base_model_name_or_path, got 5",
        ),
    ],
)
def test_adapters_of_bad_patterns_and_names_are_refused(families, tmp_path, monkeypatch, options, words):
    net = wrapped(base(families, "bert", tmp_path / "base"), ORDERS[0], TARGETS["bert"])
    net.save_pretrained(tmp_path / "net")
    (tmp_path / "net" / "manifest.json").unlink(missing_ok=True)
    file = tmp_path / "net" / "adapter_config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | options))
    if "that match" in words:
        monkeypatch.setattr(pretrained, "SECONDS", 0.5)
    with pytest.raises(StoredNetworkError, match=words):
        load(tmp_path / "net")
    monkeypatch.undo()
    file.write_text(json.dumps(content | {"target_modules": r".*\.(query|value)"}))
    assert load(tmp_path / "net")


@pytest.mark.usefixtures("transformers_loads_adapters")
@pytest.mark.parametrize("order", ORDERS)
def test_transformers_opens_the_folder_and_says_what_it_leaves_out(families, tmp_path, order):
    net = wrapped(base(families, "bert", tmp_path / "base"), order, ["query"]).eval()
    net.save_pretrained(tmp_path / "both")
    alone = peft.get_peft_model(
        type(net.get_base_model()).from_pretrained(tmp_path / "base"),
        peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False),
    ).eval()
    peft.set_peft_model_state_dict(alone, peft.get_peft_model_state_dict(net))
    with pytest.warns(
        UserWarning, match="trained with probabilistic attention, which the base network lacks"
    ):
        again = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "both")
    inputs = families.BY_NAME["bert"].inputs()
    assert torch.equal(families.forward(again, inputs), families.forward(alone, inputs))
    with pytest.warns(UserWarning, match="which the base network lacks"):
        pipe = hf.pipeline(
            "text-classification", str(tmp_path / "both"), tokenizer=hf.BertTokenizer(vocab={"a": 0})
        )
    assert type(pipe.model).__name__ == "BertForSequenceClassification"


def test_folders_of_earlier_versions_have_the_configuration_apart(families, tmp_path):
    net = wrapped(base(families, "bert", tmp_path / "base"), "peft first", ["query"]).eval()
    net.save_pretrained(tmp_path / "both")
    described = json.loads((tmp_path / "both" / "probattn.json").read_text())
    config = described.pop("config")
    (tmp_path / "both" / "probattn.json").write_text(json.dumps(described))
    (tmp_path / "both" / "config.json").write_text(json.dumps(config))
    (tmp_path / "both" / "manifest.json").unlink()
    inputs = families.BY_NAME["bert"].inputs()
    assert torch.equal(families.forward(load(tmp_path / "both"), inputs), families.forward(net, inputs))
    net.save_pretrained(tmp_path / "both")
    assert not (tmp_path / "both" / "config.json").exists()
    assert torch.equal(families.forward(load(tmp_path / "both"), inputs), families.forward(net, inputs))


def test_an_adapter_in_a_folder_below_brings_the_sites(families, tmp_path):
    net = wrapped(base(families, "bert", tmp_path / "base"), "peft first", ["query"])
    net.add_adapter("further", peft.LoraConfig(target_modules=["value"], init_lora_weights=False))
    net.set_adapter("further")
    net.eval().save_pretrained(tmp_path / "both")
    host = type(net.get_base_model()).from_pretrained(tmp_path / "base")
    host = convert(host, BayesianAttention(sigma=0.5))
    again = peft.PeftModel.from_pretrained(host, str(tmp_path / "both" / "further")).eval()
    inputs = families.BY_NAME["bert"].inputs()
    assert torch.equal(families.forward(again, inputs), families.forward(net, inputs))
    drawn = [posterior_predict(Classifier(each), inputs, 4, seed=0).logits for each in (again, net)]
    assert torch.equal(*drawn)


def test_the_configuration_of_the_base_network_is_the_one_that_was_saved(families, tmp_path):
    """It may have been read with other options than those in its folder."""
    base(families, "bert", tmp_path / "base")
    net = hf.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "base",
        num_labels=5,
        ignore_mismatched_sizes=True,
        problem_type="multi_label_classification",
    )
    options = {"target_modules": ["query"], "task_type": "SEQ_CLS"}
    net = convert(peft.get_peft_model(net, peft.LoraConfig(**options)), BayesianAttention()).eval()
    net.save_pretrained(tmp_path / "both")
    again = load(tmp_path / "both", ignore_mismatched_sizes=True)
    assert again.config.num_labels == 5 and again.config.problem_type == "multi_label_classification"
    inputs = families.BY_NAME["bert"].inputs()
    assert torch.equal(families.forward(again, inputs), families.forward(net, inputs))
    file = tmp_path / "both" / "probattn.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"config": {"model_type": "none"}}))
    (tmp_path / "both" / "manifest.json").unlink()
    with pytest.raises(StoredNetworkError, match=r"probattn.json: cannot be read \(KeyError: 'none'\)"):
        load(tmp_path / "both")


@pytest.mark.parametrize("order", ORDERS)
def test_parts_that_peft_copies_may_not_have_sites(families, tmp_path, order):
    net = base(families, "bert", tmp_path)
    config = peft.LoraConfig(target_modules=["query"], modules_to_save=["layer.1.attention"])
    refused = pytest.raises(
        ValueError,
        match=r"layer\.1\.attention\..*self: expected modules_to_save of PEFT to name parts without",
    )
    if order == "peft first":
        net = peft.get_peft_model(net, config)
        with refused:
            convert(net, BayesianAttention())
        assert convert(net, BayesianAttention(), layers="first") is net
    else:
        convert(net, BayesianAttention())
        before = {name: value.clone() for name, value in net.state_dict().items()}
        with refused:
            peft.get_peft_model(net, config)
        assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
        config = peft.LoraConfig(target_modules=["query"], modules_to_save=["classifier", "pooler"])
        assert conversion(peft.get_peft_model(net, config)) is not None


def test_a_card_has_no_path_of_a_disk(families, tmp_path):
    net = wrapped(base(families, "bert", tmp_path / "base"), "peft first", ["query"])
    net.save_pretrained(tmp_path / "both")
    (tmp_path / "base").rename(tmp_path / "gone")
    net.get_base_model().save_pretrained(tmp_path / "net")
    for file in ("both/README.md", "both/probattn.json", "net/README.md", "net/probattn.json"):
        assert str(tmp_path) not in (tmp_path / file).read_text(), file
    assert "Base model: base." in (tmp_path / "net" / "README.md").read_text()


def test_adapters_of_a_plain_network_say_that_the_posterior_is_left_out(families, tmp_path):
    net = wrapped(base(families, "bert", tmp_path / "base"), "peft first", ["query"])
    net.save_pretrained(tmp_path / "both")
    plain = type(net.get_base_model()).from_pretrained(tmp_path / "base")
    with pytest.warns(
        UserWarning, match="trained with probabilistic attention, which the base network lacks"
    ):
        peft.PeftModel.from_pretrained(plain, str(tmp_path / "both"))
    (tmp_path / "both" / "probattn.safetensors").write_bytes(b"1")
    for read in (
        load,
        lambda folder: peft.PeftModel.from_pretrained(
            convert(type(net.get_base_model()).from_pretrained(tmp_path / "base"), BayesianAttention()),
            str(folder),
        ),
    ):
        with pytest.raises(StoredNetworkError, match=r"probattn\.safetensors has 1 bytes"):
            read(tmp_path / "both")


class HubOfPeft:
    """A network with adapters and sites, cached as huggingface_hub does it, and what reads it without the hub."""

    def __init__(self, families, folder, monkeypatch):
        import huggingface_hub

        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
        self.base = folder / "base"
        net = wrapped(base(families, "bert", self.base), "peft first", ["query"]).eval()
        repo, commit = folder / "models--me--net", "a" * 40
        self.files, self.absent = repo / "snapshots" / commit, repo / ".no_exist" / commit
        net.save_pretrained(self.files)
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text(commit)
        self.net, self.access = net, {"cache_dir": str(folder), "revision": "main"}

    def read(self, *methods):
        host = type(self.net.get_base_model()).from_pretrained(self.base)
        return peft.PeftModel.from_pretrained(
            convert(host, *methods) if methods else host, "me/net", **self.access
        )


@pytest.fixture
def peft_hub(families, tmp_path, monkeypatch):
    return HubOfPeft(families, tmp_path, monkeypatch)


def test_adapters_on_the_hub_bring_their_sites(families, peft_hub):
    inputs = families.BY_NAME["bert"].inputs()
    again = peft_hub.read(BayesianAttention(sigma=0.5)).eval()
    expected = families.forward(peft_hub.net, inputs)
    assert torch.equal(families.forward(again, inputs), expected)
    drawn = [posterior_predict(Classifier(net), inputs, 4, seed=0).logits for net in (again, peft_hub.net)]
    assert torch.equal(*drawn)
    with pytest.warns(
        UserWarning, match="me/net: these adapters were trained with probabilistic attention, which"
    ):
        peft_hub.read()


@pytest.mark.usefixtures("transformers_loads_adapters")
def test_transformers_loads_adapters_of_the_hub_with_their_sites(families, peft_hub):
    host = convert(
        type(peft_hub.net.get_base_model()).from_pretrained(peft_hub.base), BayesianAttention(sigma=0.5)
    )
    host.load_adapter("me/net", adapter_kwargs=peft_hub.access)
    inputs = families.BY_NAME["bert"].inputs()
    assert torch.equal(families.forward(host, inputs), families.forward(peft_hub.net, inputs))


def test_damaged_adapters_on_the_hub_are_refused(peft_hub):
    weights = peft_hub.files / "probattn.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(StoredNetworkError, match=r"probattn\.safetensors has"):
        peft_hub.read(BayesianAttention(sigma=0.5))
    weights.unlink()
    with pytest.raises(StoredNetworkError, match=r"probattn\.safetensors is missing"):
        peft_hub.read(BayesianAttention(sigma=0.5))


def test_adapters_on_the_hub_of_which_it_is_not_known_whether_they_have_sites(peft_hub):
    (peft_hub.files / "probattn.json").unlink()
    peft_hub.read()
    with pytest.warns(
        UserWarning, match="me/net: expected probattn.json in the cache or the hub within"
    ) as caught:
        peft_hub.read(BayesianAttention(sigma=0.5))
    ours = [str(each.message) for each in caught if "me/net" in str(each.message)]
    assert len(ours) == 1 and "\n" not in ours[0]
    peft_hub.absent.mkdir(parents=True)
    (peft_hub.absent / "probattn.json").touch()  # the hub said before that there is none
    peft_hub.read(BayesianAttention(sigma=0.5))


def test_the_driver_trains_adapters_and_sites(families, tmp_path):
    net = wrapped(base(families, "bert", tmp_path), "conversion first", ["query", "value"])
    before = {name: value.clone() for name, value in net.named_parameters()}
    inputs = families.BY_NAME["bert"].inputs(rows=32)
    data = {**inputs, "labels": (inputs["input_ids"][:, 0] > 32).long()}
    program = Classifier(net, num_data=32)

    def loss():
        drawn = posterior_predict(program, inputs, num_samples=8, seed=0).logits.softmax(-1)
        return torch.nn.functional.nll_loss(drawn.mean(0).log(), data["labels"])

    first = loss()
    driver = SVIDriver(
        program,
        batch_size=16,
        optimizer=OptimizerOptions(learning_rate=0.02),
        scheduler=None,
        progress=False,
        cpu=True,
    )
    driver.fit(data, epochs=60)
    sites, adapters, others = groups(net)
    moved = {name for name, value in net.named_parameters() if not torch.equal(value, before[name])}
    assert not moved & others and adapters <= moved
    assert {name.split(".probattn.")[0] for name in moved & sites} == {
        name.split(".probattn.")[0] for name in sites
    }
    assert loss() < 0.8 * first


def test_sites_without_trainable_parameters_are_warned_of_once(families, tmp_path):
    net = families.BY_NAME["bert"].classification()
    convert(net, BayesianAttention())
    for name, parameter in net.named_parameters():
        parameter.requires_grad_("layer.0.attention.self.probattn" not in name)
    inputs = families.BY_NAME["bert"].inputs()
    driver = SVIDriver(Classifier(net), batch_size=2, scheduler=None, progress=False, cpu=True)
    with pytest.warns(
        UserWarning, match=r"1 attention sites have no trainable parameter.*layer\.0\.attention\.self"
    ) as caught:
        driver.fit({**inputs, "labels": torch.tensor([0, 1])}, steps=2)
    assert len(caught) == 1 and "layer.1" not in str(caught[0].message)


@pytest.mark.usefixtures("transformers_loads_adapters")
def test_transformers_own_adapters_leave_the_sites_too(families, tmp_path):
    net = convert(base(families, "bert", tmp_path / "base"), BayesianAttention(sigma=0.5))
    net.add_adapter(peft.LoraConfig(r=2, target_modules=["query"], init_lora_weights=False))
    sites, adapters, _ = groups(net)
    assert {key for key, value in net.named_parameters() if value.requires_grad} == sites | adapters
    inputs = families.BY_NAME["bert"].inputs()
    with torch.no_grad():
        for name in sites:
            net.get_parameter(name).add_(0.1)  # they are trained
    expected, drawn = (
        families.forward(net, inputs),
        posterior_predict(Classifier(net), inputs, 4, seed=0).logits,
    )
    net.save_pretrained(tmp_path / "both")
    assert not (tmp_path / "both" / "config.json").exists()
    again = load(tmp_path / "both")
    assert torch.equal(families.forward(again, inputs), expected)
    other = convert(type(net).from_pretrained(tmp_path / "base"), BayesianAttention(sigma=0.5))
    other.load_adapter(str(tmp_path / "both"))
    assert torch.equal(families.forward(other, inputs), expected)
    assert torch.equal(posterior_predict(Classifier(other), inputs, 4, seed=0).logits, drawn)
    alone = peft.get_peft_model(
        type(net).from_pretrained(tmp_path / "base"), peft.LoraConfig(target_modules=["query"])
    )
    alone.save_pretrained(tmp_path / "alone")
    trained = convert(type(net).from_pretrained(tmp_path / "base"), BayesianAttention(sigma=0.5))
    trained.load_state_dict(net.state_dict(), strict=False)
    trained.load_adapter(str(tmp_path / "alone"))  # adapters without sites leave those that are there
    assert all(torch.equal(trained.state_dict()[name], net.state_dict()[name]) for name in sites)
    (tmp_path / "both" / "probattn.safetensors").write_bytes(b"1")
    with pytest.raises(StoredNetworkError, match=r"probattn\.safetensors has 1 bytes"):
        convert(alone.unload(), BayesianAttention(sigma=0.5)).load_adapter(str(tmp_path / "both"))


def test_repulsive_heads_under_adapters_are_refused_by_name(families, tmp_path):
    with pytest.raises(ValueError, match="has no projection of its own for the query"):
        wrapped(base(families, "bert", tmp_path), "peft first", ["query"], RepulsiveAttention())
