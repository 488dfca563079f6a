"""Tiny networks with random weights of every supported family, what they are fed, and what their sites show."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyro
import pytest
import torch
import transformers as hf
from packaging.version import Version
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.distributions import kl_divergence

from probattn import BayesianAttention
from probattn.distributions.log_space_distribution import exp_carrying_log
from probattn.models import (
    DecomposableConfig,
    DecomposableForSequenceClassification,
    EsimConfig,
    EsimForSequenceClassification,
    GraphWriterConfig,
    GraphWriterForGeneration,
    McanConfig,
    McanForQuestionAnswering,
    RecurrentForTranslation,
    RecurrentTranslationConfig,
    SelfAttentiveConfig,
    SelfAttentiveForSequenceClassification,
)
from probattn.sites.posterior import SitePosterior
from probattn.sites.site import INFER_KEY

WORDS, LENGTH, TARGETS, EXTRA = 64, 6, 4, 3
FULL = BayesianAttention(rho=1.5, sigma=0.5)
POSITIONS = BayesianAttention(rho=1.5, sigma=0.5, upward="positions")
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,  # so that attention matters
}
DEBERTA_V3 = {
    "position_buckets": 4,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "type_vocab_size": 0,
}
PICTURE = {name: SMALL[name] for name in list(SMALL)[1:5]} | {"image_size": 16, "patch_size": 8}
PAIR = {
    "vocab_size": WORDS,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 40,
    "init_std": 0.3,
}


@dataclass(frozen=True)
class Family:
    """One supported family.

    Attributes:
        name: for the test's name.
        build: makes the network, its output token by token where the family has one.
        text: takes ``input_ids``.
        pixels: takes ``pixel_values``.
        pair: an encoder with a decoder.
        causal: its (decoder's) self attention is.
        plain: every mask hides padding alone, so that the upward maps may run along positions.
        generates: has ``generate``.
        classifier: makes the classification network, where there is one.
        places: takes ``position_ids``.
        layers: attention calls of a forward pass.
        pools: its queries are parameters, one for each head.
        projections: those that have a slice for each head.
        two_texts: tells two texts in a row apart by ``token_type_ids``.
        graph: reads a graph beside a text.
        regions: reads features of an image's regions beside a text.
        since: the release of transformers from which it is supported; before, it is refused.
        shows_since: the release from which the unconverted network gives all its weights when it is asked for them.
    """

    name: str
    build: Callable[[], hf.PreTrainedModel]
    text: bool = True
    pixels: bool = False
    pair: bool = False
    causal: bool = False
    plain: bool = False
    generates: bool = False
    classifier: Callable[[], hf.PreTrainedModel] | None = None
    places: bool = True
    layers: int = 2
    pools: bool = False
    projections: tuple[str, ...] = ("query", "key", "value")
    two_texts: bool = False
    graph: bool = False
    regions: bool = False
    since: str = "5.0"
    shows_since: str = "5.0"

    @property
    def padded(self) -> bool:
        """Whether its rows may be padded."""
        return self.text

    def require(self) -> None:
        """Skips the test where the installed transformers is too old for the family."""
        needs(self.since, self.name)

    def network(self) -> hf.PreTrainedModel:
        """A copy of the family's network, in evaluation mode, with eager attention."""
        self.require()
        return copy.deepcopy(_built(self.name, "build"))

    def classification(self) -> hf.PreTrainedModel:
        """A copy of the family's classification network."""
        self.require()
        return copy.deepcopy(_built(self.name, "classifier"))

    def inputs(self, rows: int = 2, seed: int = 0) -> dict[str, Tensor]:
        """Rows without padding."""
        generator = torch.Generator().manual_seed(seed)
        inputs = {}
        if self.text:
            inputs |= _words(rows, LENGTH, generator)
        if self.two_texts:
            inputs["token_type_ids"] = (torch.arange(LENGTH) >= LENGTH // 2 - 1).long().repeat(rows, 1)
        if self.pair:
            inputs |= {"decoder_" + name: value for name, value in _words(rows, TARGETS, generator).items()}
        if self.graph:
            inputs |= {
                "entity_ids": torch.randint(8, WORDS - 1, (rows, 3, 2), generator=generator),
                "entity_types": torch.randint(4, 8, (rows, 3), generator=generator),
                "relations": torch.tensor([[0, 1, 2], [2, 0, 0]]).repeat(rows, 1, 1),
            }
        if self.regions:
            inputs["region_features"] = torch.randn(rows, 5, 6, generator=generator)
        if self.pixels:
            size = 32 if self.name == "swin" else 16
            inputs["pixel_values"] = torch.randn(rows, 3, size, size, generator=generator)
        return inputs

    def pad(self, inputs: dict[str, Tensor], side: str) -> dict[str, Tensor]:
        """The same rows with padding on one side, whose words are no padding words: only the mask tells."""
        padded = dict(inputs)
        for prefix in ("", "decoder_"):
            if prefix + "input_ids" in inputs:
                padded |= {prefix + name: value for name, value in self._pad(inputs, prefix, side).items()}
        if self.two_texts:
            filler = inputs["token_type_ids"].new_zeros(len(inputs["token_type_ids"]), EXTRA)
            parts = (inputs["token_type_ids"], filler)
            padded["token_type_ids"] = torch.cat(parts if side == "right" else parts[::-1], 1)
        if self.places and not self.pair:
            padded["position_ids"] = (padded["attention_mask"].cumsum(1) - 1).clamp_min(0) + self._first_place
        return padded

    @property
    def _first_place(self) -> int:
        return {"roberta": 1 + SPECIAL["pad_token_id"], "mpnet": 2}.get(
            self.name, 0
        )  # MPNet's padding is always 1

    def _pad(self, inputs: dict[str, Tensor], prefix: str, side: str) -> dict[str, Tensor]:
        words, mask = inputs[prefix + "input_ids"], inputs[prefix + "attention_mask"]
        filler = torch.full((len(words), EXTRA), 7)
        if self.name == "roberta":
            filler = torch.zeros_like(filler)
        parts = [(words, mask), (filler, torch.zeros_like(filler))]
        parts = parts if side == "right" else parts[::-1]
        return {
            "input_ids": torch.cat([part[0] for part in parts], 1),
            "attention_mask": torch.cat([part[1] for part in parts], 1),
        }


def needs(release: str, what: str) -> None:
    """Skips a test under a release of transformers that is too old for what it tests, and says so."""
    if Version(hf.__version__) < Version(release):
        pytest.skip(f"{what} needs transformers {release}, installed is {hf.__version__}")


def _words(rows: int, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    words = torch.randint(8, WORDS - 1, (rows, length), generator=generator)
    words[:, -1] = WORDS - 1  # CLIP pools its end token
    return {"input_ids": words, "attention_mask": torch.ones_like(words)}


@cache
def _built(name: str, maker: str) -> hf.PreTrainedModel:
    family = next(each for each in FAMILIES if each.name == name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(len(name))
        net = getattr(family, maker)()
        for (
            key,
            parameter,
        ) in net.named_parameters():  # biases start at 0, norms at 1: a test would not see them
            if "embed_positions" not in key:  # Marian computes its own and saves none
                parameter.data += 0.05 * torch.randn_like(parameter)
    net.set_attn_implementation("eager")
    return net.eval()


def logits(output: Any) -> Tensor:
    """What the tests compare."""
    return output.logits if "logits" in output else output.logits_per_image


def forward(net: hf.PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    """Its logits without gradients."""
    with torch.no_grad():
        return logits(net(**inputs))


class Observer(Messenger):
    """Gives every site its expectation, so that padding changes no draw, and keeps the posteriors."""

    def __init__(self) -> None:
        super().__init__()
        self.sites: dict[str, SitePosterior] = {}

    def _pyro_sample(self, msg: Any) -> None:
        posterior = msg["infer"].get(INFER_KEY)
        if isinstance(posterior, SitePosterior):
            self.sites[msg["name"]] = posterior
            msg["value"] = exp_carrying_log(posterior.distribution.log_mean)


def observe(net: hf.PreTrainedModel, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, SitePosterior]]:
    """Logits and the posterior of every site at the posterior expectation."""
    with torch.no_grad(), Observer() as observer:
        out = logits(net(**inputs))
    return out, observer.sites


def maps(posterior: SitePosterior) -> dict[str, Tensor]:
    """What must not move: concentration, scale, prior and KL of every pair, ``[B, H, T, S]``."""
    weibull, gamma = posterior.distribution, posterior.prior
    shape = gamma.batch_shape
    return {
        "concentration": weibull.concentration.expand(shape),
        "scale": weibull.log_scale.exp().expand(shape),
        "prior": gamma.concentration.expand(shape),
        "kl": kl_divergence(weibull, gamma).expand(shape),
    }


def program(net: hf.PreTrainedModel, num_data: int | None = None) -> Callable[..., Any]:
    """A Pyro program with a likelihood on every logit."""

    def model(inputs: dict[str, Tensor]) -> Tensor:
        rows = len(next(iter(inputs.values())))
        with pyro.plate("data", num_data or rows, subsample=torch.arange(rows)):
            out = logits(net(**inputs))
            law = pyro.distributions.Normal(out, 1.0).to_event(out.dim() - 1)
            pyro.sample("y", law, obs=torch.ones_like(out))
        return out

    return model


def factors(net: hf.PreTrainedModel, inputs: dict[str, Tensor], ending: str) -> dict[str, Tensor]:
    """Every factor of a pass whose site ends so, ``[B]``, by the name of its attention call."""
    with torch.no_grad():
        found = poutine.trace(program(net)).get_trace(inputs)
        found.compute_log_prob()
    return {
        name.removesuffix(ending): site["log_prob"]
        for name, site in found.nodes.items()
        if name.endswith(ending)
    }


def windows_together(tensor: Tensor, rows: int) -> Tensor:
    """``[B * W, H, T, ...]`` as ``[B, H, W * T, ...]``, window after window."""
    parts = tensor.reshape(rows, -1, *tensor.shape[1:])
    return torch.cat(list(parts.unbind(1)), dim=2)


@contextmanager
def counted(net: torch.nn.Module) -> Iterator[list[int]]:
    """Counts the network's forward passes."""
    calls: list[int] = []
    handle = net.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        yield calls
    finally:
        handle.remove()


def trace(model: Callable[..., Any], *args: Any) -> Any:
    """Pyro's trace of a model."""
    return poutine.trace(model).get_trace(*args)


def small(**options: Any) -> dict[str, Any]:
    return SMALL | SPECIAL | options


def grouped(**options: Any) -> dict[str, Any]:
    return small(num_attention_heads=4, num_key_value_heads=2, **options)


def gpt2_options(**options: Any) -> dict[str, Any]:
    base = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40}
    return base | {"initializer_range": 0.3} | SPECIAL | options


def distilbert() -> dict[str, Any]:
    base = {"vocab_size": WORDS, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 16}
    return base | {"max_position_embeddings": 40, "initializer_range": 0.3, "pad_token_id": 0}


def disentangled(**options: Any) -> dict[str, Any]:
    base = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
    return small(**base, **options)


def opt() -> dict[str, Any]:
    base = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    base |= {"ffn_dim": 16, "max_position_embeddings": 40, "word_embed_proj_dim": 16, "init_std": 0.3}
    return base | SPECIAL


def clip() -> hf.PreTrainedModel:
    words = small(projection_dim=8, eos_token_id=WORDS - 1)
    return hf.CLIPModel(hf.CLIPConfig(text_config=words, vision_config=PICTURE, projection_dim=8))


def swin() -> hf.PreTrainedModel:
    options = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4]}
    return hf.SwinForImageClassification(
        hf.SwinConfig(**options, window_size=4, initializer_range=0.3, drop_path_rate=0.0)
    )


def modernbert(cls: Any) -> hf.PreTrainedModel:
    options = small(cls_token_id=1, sep_token_id=2, local_attention=4, global_attn_every_n_layers=2)
    return cls(hf.ModernBertConfig(**options))


def t5() -> dict[str, Any]:
    base = {"vocab_size": WORDS, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2}
    return base | {"decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 0}


def pair(cls: Any, config: Any) -> hf.PreTrainedModel:
    """With position embeddings of 0, since these families place tokens by their index, padding included."""
    start = {"decoder_start_token_id": 1, "forced_eos_token_id": None}
    net = cls(config(**PAIR, **SPECIAL, **start))
    for stack in (net.model.encoder, net.model.decoder):
        stack.embed_positions.register_forward_hook(lambda _module, _inputs, output: output * 0)
    return net


def self_attentive() -> hf.PreTrainedModel:
    sizes = {"embedding_size": 8, "hidden_size": 6, "attention_size": 8, "num_attention_heads": 4}
    return SelfAttentiveForSequenceClassification(
        SelfAttentiveConfig(vocab_size=WORDS, classifier_size=16, **sizes)
    )


def self_attentive_pairs() -> hf.PreTrainedModel:
    sizes = {"embedding_size": 8, "hidden_size": 6, "attention_size": 8, "num_attention_heads": 4}
    return louder(
        SelfAttentiveForSequenceClassification(
            SelfAttentiveConfig(vocab_size=WORDS, classifier_size=16, gate_size=5, **sizes)
        )
    )


def decomposable() -> hf.PreTrainedModel:
    return louder(
        DecomposableForSequenceClassification(
            DecomposableConfig(vocab_size=WORDS, embedding_size=8, hidden_size=12)
        )
    )


def louder(net: hf.PreTrainedModel) -> hf.PreTrainedModel:
    """The same with larger weights, so that attention matters."""
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(2)
    return net


def esim() -> hf.PreTrainedModel:
    return louder(
        EsimForSequenceClassification(EsimConfig(vocab_size=WORDS, embedding_size=8, hidden_size=6))
    )


def recurrent() -> hf.PreTrainedModel:
    sizes = {"embedding_size": 8, "hidden_size": 6, "decoder_hidden_size": 10, "output_size": 16}
    return RecurrentForTranslation(
        RecurrentTranslationConfig(vocab_size=WORDS, num_attention_heads=4, **sizes, **SPECIAL)
    )


def graphwriter() -> hf.PreTrainedModel:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "lstm_layers": 1}
    return louder(
        GraphWriterForGeneration(GraphWriterConfig(vocab_size=WORDS, num_relations=2, **sizes, **SPECIAL))
    )


def mcan() -> hf.PreTrainedModel:
    sizes = {
        "embedding_size": 6,
        "hidden_size": 8,
        "intermediate_size": 12,
        "fused_size": 8,
        "region_size": 6,
    }
    return louder(
        McanForQuestionAnswering(
            McanConfig(
                vocab_size=WORDS, num_labels=4, num_hidden_layers=2, num_attention_heads=2, **sizes, **SPECIAL
            )
        )
    )


FAMILIES = [
    Family(
        "bert",
        lambda: hf.BertForMaskedLM(hf.BertConfig(**small())),
        plain=True,
        classifier=lambda: hf.BertForSequenceClassification(hf.BertConfig(**small())),
    ),
    Family(
        "albert",
        lambda: hf.AlbertForMaskedLM(hf.AlbertConfig(**small(embedding_size=8))),
        plain=True,
        classifier=lambda: hf.AlbertForSequenceClassification(hf.AlbertConfig(**small(embedding_size=8))),
    ),
    Family(
        "roberta",
        lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**small())),
        plain=True,
        classifier=lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**small())),
    ),
    Family(
        "electra",
        lambda: hf.ElectraForMaskedLM(hf.ElectraConfig(**small(embedding_size=8))),
        plain=True,
        classifier=lambda: hf.ElectraForSequenceClassification(hf.ElectraConfig(**small(embedding_size=8))),
    ),
    Family(
        "distilbert",
        lambda: hf.DistilBertForMaskedLM(hf.DistilBertConfig(**distilbert())),
        plain=True,
        classifier=lambda: hf.DistilBertForSequenceClassification(hf.DistilBertConfig(**distilbert())),
    ),
    Family(
        "deberta_v2",
        lambda: hf.DebertaV2ForMaskedLM(hf.DebertaV2Config(**disentangled(**DEBERTA_V3))),
        plain=True,
        classifier=lambda: hf.DebertaV2ForSequenceClassification(
            hf.DebertaV2Config(**disentangled(**DEBERTA_V3))
        ),
    ),
    Family(
        "mpnet",
        lambda: hf.MPNetForMaskedLM(hf.MPNetConfig(**small())),
        plain=True,
        classifier=lambda: hf.MPNetForSequenceClassification(hf.MPNetConfig(**small())),
    ),
    Family(
        "vit",
        lambda: hf.ViTForImageClassification(hf.ViTConfig(**PICTURE)),
        text=False,
        pixels=True,
        plain=True,
        places=False,
        classifier=lambda: hf.ViTForImageClassification(hf.ViTConfig(**PICTURE)),
    ),
    Family("clip", clip, pixels=True, layers=4, causal=True, shows_since="5.2"),
    Family("swin", swin, text=False, pixels=True, places=False, layers=4, classifier=swin, since="5.9"),
    Family(
        "modernbert",
        lambda: modernbert(hf.ModernBertForMaskedLM),
        classifier=lambda: modernbert(hf.ModernBertForSequenceClassification),
        since="5.7",
    ),
    Family(
        "gpt2",
        lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**gpt2_options())),
        causal=True,
        generates=True,
        classifier=lambda: hf.GPT2ForSequenceClassification(hf.GPT2Config(**gpt2_options())),
    ),
    Family("opt", lambda: hf.OPTForCausalLM(hf.OPTConfig(**opt())), causal=True, generates=True),
    Family(
        "llama",
        lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**grouped())),
        causal=True,
        generates=True,
        classifier=lambda: hf.LlamaForSequenceClassification(hf.LlamaConfig(**grouped())),
    ),
    Family(
        "gemma2",
        lambda: hf.Gemma2ForCausalLM(
            hf.Gemma2Config(
                **grouped(head_dim=8, sliding_window=4, query_pre_attn_scalar=8, attn_logit_softcapping=2.0)
            )
        ),
        causal=True,
        generates=True,
    ),
    Family(
        "t5",
        lambda: hf.T5ForConditionalGeneration(hf.T5Config(**t5())),
        pair=True,
        causal=True,
        generates=True,
        layers=6,
        since="5.15",
        shows_since="5.20",
    ),
    Family(
        "bart",
        lambda: pair(hf.BartForConditionalGeneration, hf.BartConfig),
        pair=True,
        causal=True,
        generates=True,
        layers=6,
    ),
    Family(
        "marian",
        lambda: pair(hf.MarianMTModel, hf.MarianConfig),
        pair=True,
        causal=True,
        generates=True,
        layers=6,
    ),
    Family(
        "self_attentive",
        self_attentive,
        plain=True,
        classifier=self_attentive,
        places=False,
        layers=1,
        pools=True,
        projections=("query",),
    ),
    Family(
        "self_attentive_pairs",
        self_attentive_pairs,
        plain=True,
        classifier=self_attentive_pairs,
        places=False,
        layers=2,
        pools=True,
        projections=("query",),
        two_texts=True,
    ),
    *(
        Family(name, build, classifier=build, places=False, projections=(), two_texts=True)
        for name, build in (("decomposable", decomposable), ("esim", esim))
    ),
    Family(
        "recurrent",
        recurrent,
        pair=True,
        generates=True,
        places=False,
        layers=1,
        projections=("query",),
    ),
    Family("graphwriter", graphwriter, pair=True, places=False, layers=4, graph=True),
    Family("mcan", mcan, places=False, layers=6, regions=True),
]
BY_NAME = {family.name: family for family in FAMILIES}
FURTHER = (
    *("albert", "roberta", "electra", "distilbert", "opt", "llama", "marian"),
    *("self_attentive_pairs", "esim"),
    *("clip", "swin", "t5"),
)
"""Families whose attention is that of another one above, and three slow ones: tests of them are slow tests."""
BRIDGED = ("deberta_v2", "mpnet")
"""Families whose attention is computed by the site outside a driver too, for it has no function to call."""

REFUSED: dict[str, Callable[[], hf.PreTrainedModel]] = {
    "XLNet": lambda: hf.XLNetModel(
        hf.XLNetConfig(vocab_size=WORDS, d_model=16, n_layer=2, n_head=2, d_inner=16)
    ),
    "Longformer": lambda: hf.LongformerModel(hf.LongformerConfig(**small(), attention_window=4)),
    "GPTJ": lambda: hf.GPTJModel(hf.GPTJConfig(**gpt2_options(rotary_dim=4))),
}
