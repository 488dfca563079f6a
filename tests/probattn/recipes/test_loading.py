from pathlib import Path

import pytest

from probattn import AlignmentAttention, BayesianAttention, RepulsiveAttention
from probattn.models import SelfAttentiveConfig
from probattn.recipes import RecipeError, load_any_recipe, load_recipe, read_recipe, recipe_names
from probattn.sites.bayesian import RELEASE_KL_WEIGHT

ROOT = Path(__file__).resolve().parents[3]
NAMES = (
    "demo",
    "sentiment_babn",
    "sentiment_bam",
    "sentiment_deterministic",
    "sentiment_paper",
    "sentiment_release",
)
LINGUISTIC = tuple(f"{task}_{method}" for task in ("cola", "mrpc") for method in ("ct", "gan", "ot", "soft"))
ADDITIVE = ("bbc_additive", "imdb_additive", "sst2_additive")
WHOLE = ("imdb_additive_paper", "yelp_self_attentive_paper")
HEADS = ("sentiment_repulsive", "sst2_self_attentive", "trec_self_attentive")
GRAPHS = (
    *(
        f"{graph}_{method}"
        for graph in ("citeseer", "cora")
        for method in ("babn", "bam", "ct", "deterministic", "gan")
    ),
    *(f"pubmed_{method}" for method in ("ct", "deterministic", "gan")),
)
UNDERSTANDING = (
    *(f"{data}_paper" for data in ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2")),
    *(
        f"{data}_babn"
        for data in ("cola", "mrpc", "mnli", "qnli", "qqp", "rte", "sick", "snli", "spam", "sst2")
    ),
    *(f"snli_{network}" for network in ("decomposable", "esim", "self_attentive")),
    "snli_bert_paper",
    "snli_roberta_paper",
    "mnli_release",
    "intents_particles",
)
TRANSLATION = (
    "iwslt14_lstm_paper",
    "multi30k_lstm",
    "multi30k_lstm_reduced",
    "multi30k_reduced",
    "multi30k_small",
    "wmt14_base_paper",
    "wmt14_big_paper",
)
GRAPH_TEXT = ("agenda_paper", "agenda_reduced")
VISUAL_QUESTIONS = ("easy_vqa", "vqa_v2_paper", "vqa_v2_release")
PRETRAINING = ("electra_reduced", "electra_small")
EXPERIMENTS = tuple(
    f"copying_{name}{size}"
    for name in ("heads", "heads_release", "locality", "permutations", "probe")
    for size in ("", "_reduced")
)

FINE_TUNING = (
    "choices_babn",
    "digits_babn",
    "labels_babn",
    "masked_babn",
    "relatedness_babn",
    "sequences_t5",
    "slots_babn",
    "spans_babn",
    "squad1_paper",
    "squad2_babn",
    "squad2_paper",
    "stsb_babn",
    "stsb_paper",
    "swag_babn",
    "swag_bert_paper",
)


def said(path: Path | str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my first.yaml"
    path.write_text(
        "data:\n  train: texts.csv\n  test: {source: test.tsv, text: review}\ntraining:\n  epochs: 2\n"
    )
    return path


def test_the_recipes_that_come_with_the_library() -> None:
    known = {
        *NAMES,
        *ADDITIVE,
        *WHOLE,
        *LINGUISTIC,
        *HEADS,
        *GRAPHS,
        *TRANSLATION,
        *GRAPH_TEXT,
        *VISUAL_QUESTIONS,
        *PRETRAINING,
        *EXPERIMENTS,
        *FINE_TUNING,
        *UNDERSTANDING,
    }
    assert recipe_names() == tuple(sorted(known))
    found = (ROOT / "probattn" / "tasks").glob("*/recipes/*.yaml")
    assert {path.stem for path in found} == known


@pytest.mark.parametrize("name", recipe_names())
def test_each_of_them_loads_and_round_trips(name: str, tmp_path: Path) -> None:
    recipe = load_any_recipe(name)
    assert (recipe.name, recipe.output) == (name, f"runs/{name}")
    again = tmp_path / "again.yaml"
    again.write_text(recipe.dump(), encoding="utf-8")
    assert load_any_recipe(again) == recipe


def test_what_they_are_named_after() -> None:
    methods = {name: load_recipe(name).attention.build() for name in NAMES}
    assert methods == {
        "demo": None,
        "sentiment_babn": BayesianAttention(),
        "sentiment_bam": BayesianAttention.bam(),
        "sentiment_deterministic": None,
        "sentiment_paper": BayesianAttention.paper(),
        "sentiment_release": BayesianAttention.release(),
    }


@pytest.mark.parametrize("data", ["sst2", "trec"])
def test_the_self_attentive_classifier_has_the_sizes_of_its_paper(data: str) -> None:
    recipe = load_recipe(f"{data}_self_attentive")
    assert recipe.network.is_new and recipe.data.train.source == data
    assert recipe.network.vocabulary is not None and recipe.network.vocabulary.split == "spaces"
    config = SelfAttentiveConfig(**recipe.network.config)
    sizes = (config.hidden_size, config.attention_size, config.num_attention_heads, config.classifier_size)
    assert sizes == (300, 350, 30, 2000)
    (method,) = recipe.methods()
    assert isinstance(method, RepulsiveAttention) and method.projections == ("query",)


def test_the_whole_classifiers_are_those_of_the_papers() -> None:
    """Snell et al. 2021, A.8; An et al. 2020, B.1, with the settings of Lin et al. 2017."""
    additive, attentive = (load_recipe(name) for name in WHOLE)
    sizes = additive.network.config
    assert (sizes["hidden_size"], sizes["attention_size"], sizes["num_attention_heads"]) == (256, 256, 1)
    assert (additive.training.steps, additive.training.batch_size, additive.training.eval_every) == (
        4000,
        32,
        250,
    )
    training, (method,) = attentive.training, attentive.methods()
    assert SelfAttentiveConfig(**attentive.network.config).classifier_size == 2000
    assert (training.optimizer, training.learning_rate, training.batch_size) == ("sgd", 0.06, 16)
    assert isinstance(method, RepulsiveAttention) and method.projections == ("query",)
    assert (attentive.repulsion.weight, attentive.repulsion.sampler) == (0.01, "svgd")


@pytest.mark.parametrize(
    ("encoder", "rate", "decay", "batch"), [("bert", 2e-5, 0.0, 16), ("roberta", 1e-5, 0.1, 32)]
)
def test_domain_generalisation_is_that_of_desai_and_durrett(
    encoder: str, rate: float, decay: float, batch: int
) -> None:
    """Zhang et al., ICML 2021, A.1.3."""
    recipe = load_recipe(f"snli_{encoder}_paper")
    training = recipe.training
    assert (training.epochs, training.gradient_clip, training.batch_size) == (3, 1.0, batch)
    assert (training.learning_rate, training.weight_decay) == (rate, decay)
    assert recipe.data.train.source == "snli" and recipe.data.shifted.source == "mnli"
    assert recipe.network.name.startswith(encoder)


def test_release_recipes_have_the_settings_of_the_authors_codes() -> None:
    aligned, films, images = (load_any_recipe(f"{name}_release") for name in ("mnli", "sentiment", "vqa_v2"))
    (method,) = aligned.methods()
    training = aligned.training
    assert method == AlignmentAttention.release("gan", layers="all", attention="all")
    assert aligned.alignment.learning_rate == 3e-5
    assert (training.steps, training.batch_size, training.accumulation) == (100_000, 8, 2)
    assert (training.learning_rate, training.warmup_steps) == (3e-5, 1000)
    for recipe in (films, images):
        assert (recipe.training.kl_weight, recipe.training.kl_schedule) == (RELEASE_KL_WEIGHT, "constant")
    assert images.methods() == (BayesianAttention.release(max_positions=100),)
    assert images.training.optimizer_arguments == {"betas": [0.9, 0.98], "eps": 1e-9}


@pytest.mark.parametrize("name", ADDITIVE)
def test_the_additive_classifier_is_that_of_snell_et_al(name: str) -> None:
    """Section 2.4; batches, vocabulary and vectors of appendix A.8."""
    recipe = load_recipe(name)
    data = name.removesuffix("_additive")
    assert recipe.data.train.source == ("bbc_news" if data == "bbc" else data)
    config = SelfAttentiveConfig(**recipe.network.config)
    assert (config.num_attention_heads, config.attention_activation, config.classifier_size) == (1, "relu", 0)
    assert config.classifier_dropout == 0 and config.num_hidden_layers == 1 and not config.uniform_attention
    assert recipe.network.vocabulary is not None and recipe.network.vocabulary.min_frequency == 3
    assert recipe.network.embeddings == "glove-6b-50d" and recipe.training.batch_size == 32
    assert recipe.methods() == () and not recipe.training.frozen_probe
    alike = load_recipe("sst2_additive")
    assert recipe.network.config == alike.network.config
    length = {"steps": alike.training.steps, "epochs": None, "eval_every": alike.training.eval_every}
    assert recipe.training.model_copy(update=length) == alike.training


@pytest.mark.parametrize("name", LINGUISTIC)
def test_the_linguistic_ones_differ_in_their_alignment_alone(name: str) -> None:
    task, method = name.split("_")
    recipe, soft = load_recipe(name), load_recipe(f"{task}_soft")
    options = {"weight": 0.001 if method == "ot" else 0.01, "reduction": "mean"}
    expected = (
        () if method == "soft" else (AlignmentAttention(method, layers="all", attention="all", **options),)
    )
    assert recipe.methods() == expected
    changed = {"alignment": soft.alignment, "name": soft.name, "output": soft.output, "report": soft.report}
    assert recipe.model_copy(update=changed) == soft
    assert recipe.report.baseline == (method != "soft")
    assert recipe.report.measures == soft.report.measures == {"mrpc": ["f1"], "cola": ["matthews"]}[task]
    assert soft.data.train.source == task


def test_a_file_gives_its_name_and_absolute_paths(file: Path) -> None:
    recipe = load_recipe("my first.yaml")
    assert (recipe.name, recipe.output) == ("my first", "runs/my first")
    assert recipe.data.train.source == str(file.parent / "texts.csv")
    assert recipe.data.test is not None
    assert (recipe.data.test.source, recipe.data.test.text) == (str(file.parent / "test.tsv"), "review")
    assert read_recipe(recipe.dump()) == recipe


def test_a_file_with_an_odd_name(tmp_path: Path) -> None:
    path = tmp_path / "_a+b.yml"
    path.write_text("data: {train: imdb}\n")
    assert load_recipe(path).name == "a-b"


def test_overrides(file: Path) -> None:
    overrides = [
        "training.learning_rate=3e-5",
        "training.early_stopping.patience=1",
        "data.train.text=review",
        "data.out_of_domain=bbc_news",
        "attention.layers=[0, -1]",
        "training.precision=no",
        "name=other",
        "report.texts=['a: b', c]",
    ]
    recipe = load_recipe(file, overrides)
    assert recipe.training.learning_rate == 3e-5
    assert recipe.training.early_stopping is not None and recipe.training.early_stopping.patience == 1
    assert (recipe.data.train.source, recipe.data.train.text) == (str(file.parent / "texts.csv"), "review")
    assert recipe.data.out_of_domain is not None
    assert recipe.attention.layers == [0, -1]
    assert recipe.training.precision == "no"
    assert (recipe.name, recipe.output) == ("other", "runs/other")
    assert recipe.report.texts == ["a: b", "c"]


def test_an_override_of_the_length_drops_the_other_one(file: Path) -> None:
    recipe = load_recipe(file, ["training.steps=7"])
    assert (recipe.training.steps, recipe.training.epochs) == (7, None)
    assert load_recipe("demo", ["training.epochs=1"]).training.epochs == 1
    for overrides in (
        ["training.steps=2", "training.epochs=null"],
        ["training.epochs=null", "training.steps=2"],
    ):
        training = load_recipe(file, overrides).training
        assert (training.steps, training.epochs) == (2, None)


def test_an_override_replaces_a_section_and_its_lines(file: Path) -> None:
    expected = "training.batch_size (override training={batch_size: 0}): expected a whole number >= 1, got 0"
    assert said(file, "training={batch_size: 0}") == expected


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "override 'seed': expected key=value, such as training.seed=1"),
        ("training.=1", "override 'training.=1': expected key=value, such as training.seed=1"),
        (
            "training.epochs.x=1",
            "override 'training.epochs.x=1': expected a section in training.epochs, got 2",
        ),
        (
            "training.seed=[1",
            (
                "override 'training.seed=[1': not valid YAML (line 1, column 10): while parsing a flow sequence, "
                "expected ',' or ']', but got '<stream end>'"
            ),
        ),
    ],
)
def test_what_is_no_override(file: Path, override: str, message: str) -> None:
    assert said(file, override) == message


def test_recipes_that_are_not_there(file: Path) -> None:
    beginning = (
        "expected a file that ends in .yaml or .yml, or a recipe that comes with the library (agenda_paper, "
    )
    assert said("sentiment_babm").startswith(beginning)
    assert said("sentiment_babm").endswith("yelp_self_attentive_paper); did you mean 'sentiment_bam'?")
    assert said("my_first.yaml") == "no such file; did you mean 'my first.yaml'?"


def test_files_that_are_no_recipe(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("")
    assert said(path) == "expected text, got an empty file"
    path.write_text("# nothing yet\n")
    assert said(path) == "expected keys and values, got none"
    path.write_bytes(b"data:\n  train: imdb\nname: caf\xe9\n")
    assert said(path).startswith("line 3: expected UTF-8 text, got the byte 0xe9 (offset 29)")


def test_sections_of_which_only_the_name_is_there() -> None:
    recipe = read_recipe("data: {train: imdb}\ntraining:\n  # epochs: 2\nreport:\n")
    assert recipe == read_recipe("data: {train: imdb}\n")
