"""Recipes with the settings of the papers: with an encoder of another family by its name alone, and built."""

from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from torch import nn
from transformers import (
    AlbertConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    GPT2Config,
    RobertaConfig,
)

from probattn.inference import AttentionELBO, AttentionGuide
from probattn.models import VisualQuestionProgram
from probattn.recipes import load_any_recipe, recipe_names
from probattn.tasks import RunError
from probattn.tasks.classification.networks import load_head
from probattn.tasks.classification.recipe import PretrainedRecipe
from probattn.tasks.networks import put_methods
from probattn.tasks.registry import task_class
from probattn.tasks.visual_questions.task import new_network

PAPERS = [name for name in recipe_names() if name.endswith("_paper")]
NETWORKS = {name: load_any_recipe(name).network for name in PAPERS}
PRETRAINED = [
    name
    for name, network in NETWORKS.items()
    if isinstance(network, PretrainedRecipe) and not getattr(network, "is_new", False)
]
SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
FAMILIES = MappingProxyType(
    {
        "albert": AlbertConfig(**SIZES, embedding_size=8),
        "bert": BertConfig(**SIZES),
        "deberta": DebertaV2Config(**SIZES),
        "distilbert": DistilBertConfig(vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=16),
        "electra": ElectraConfig(**SIZES, embedding_size=8),
        "roberta": RobertaConfig(**SIZES),
    }
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small network of each family, saved without a head."""
    root = tmp_path_factory.mktemp("families")
    for name, config in FAMILIES.items():
        AutoModel.from_config(config).save_pretrained(root / name)
    return {name: root / name for name in FAMILIES}


def built(name: str, network: str | Path) -> nn.Module:
    """The network of a recipe whose one change is the network's name, with the recipe's attention."""
    recipe = load_any_recipe(name, [f"network.name={network}"])
    auto = getattr(task_class(type(recipe).model_fields), "auto", AutoModelForSequenceClassification)
    net = load_head(auto, recipe.network, ["a", "b"], seed=0)
    put_methods(net, recipe.methods(), recipe, str(network))
    return net


def test_all_recipes_of_text_encoders_are_tested() -> None:
    others = {
        "agenda",
        "vqa_v2",
        "imdb_additive",
        "yelp_self_attentive",
        "iwslt14_lstm",
        "wmt14_base",
        "wmt14_big",
    }
    assert len(PRETRAINED) == 14 and {*PAPERS} - {*PRETRAINED} == {f"{name}_paper" for name in others}


@pytest.mark.parametrize("encoder", FAMILIES)
@pytest.mark.parametrize("name", PRETRAINED)
def test_a_recipe_takes_another_encoder_by_its_name_alone(folders, name, encoder) -> None:
    net = built(name, folders[encoder])
    assert sites(net) == (1 if encoder == "albert" else 2)
    if NETWORKS[name].dropout is None:
        return
    hidden = 0.1 if name in {"rte_paper", "qqp_paper"} else 0.0
    drops = {part: module.p for part, module in net.named_modules() if isinstance(module, nn.Dropout)}
    layers = {share for part, share in drops.items() if ".layer" in part or "embeddings" in part}
    assert layers == {hidden} or (encoder == "electra" and layers <= {hidden})
    config = net.config.to_dict()
    attention = config.get("attention_probs_dropout_prob", config.get("attention_dropout"))
    assert attention == hidden


def sites(net: nn.Module) -> int:
    """Number of attention sites of a converted network."""
    return sum(type(module).__name__ == "AttentionSite" for module in net.modules())


@pytest.mark.parametrize("name", PRETRAINED)
def test_a_recipe_s_network_is_built_of_minilm(name: str) -> None:
    assert sites(built(name, "minilm")) == 6


def test_a_dropout_that_a_family_lacks_is_refused(tmp_path: Path) -> None:
    AutoModel.from_config(GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2)).save_pretrained(tmp_path)
    recipe = load_any_recipe("mrpc_paper", [f"network.name={tmp_path}"])
    with pytest.raises(RunError, match=r"network\.dropout\.classifier: expected a network with such"):
        load_head(AutoModelForSequenceClassification, recipe.network, ["a", "b"], seed=0)
    other = load_any_recipe("demo", ["network.config={classifier_dropout_prob: 0.1}"])
    with pytest.raises(RunError, match="'classifier_dropout_prob'; did you mean 'classifier_dropout'"):
        load_head(AutoModelForSequenceClassification, other.network, ["a", "b"], seed=0)


@pytest.mark.parametrize(("name", "regions"), [("vqa_v2_paper", 100), ("easy_vqa", None)])
def test_networks_of_visual_questions_train_a_step_with_the_paper_s_attention(name, regions) -> None:
    recipe = load_any_recipe(
        name,
        [
            "attention.preset=paper",
            *(f"network.{key}=16" for key in ("width", "feed_forward", "fused")),
            "network.heads=2",
        ],
    )
    net = new_network(recipe, 20, ["yes", "no"])
    put_methods(net, recipe.methods(), recipe, "mcan")
    length = recipe.visual_questions.max_length
    batch = {"input_ids": torch.ones(2, length, dtype=torch.long), "labels": torch.eye(2)}
    if regions is None:
        size = recipe.visual_questions.image_size
        batch["pixel_values"] = torch.zeros(2, 3, size, size)
    else:
        batch["region_features"] = torch.randn(2, regions, recipe.visual_questions.regions)
    program = VisualQuestionProgram(net, num_data=2)
    terms = AttentionELBO()(program, AttentionGuide(program))(batch)
    terms.loss.backward()
    assert terms.loss.isfinite()
