"""Networks of classification: pretrained ones with their tokenizer, and those that are built from scratch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)

from probattn.checks import shortened
from probattn.data import TextDataset, WordVectors, word_tokenizer, word_vectors
from probattn.data.errors import suggestion
from probattn.models import (
    DecomposableConfig,
    DecomposableForSequenceClassification,
    EsimConfig,
    EsimForSequenceClassification,
    SelfAttentiveConfig,
    SelfAttentiveForSequenceClassification,
)
from probattn.models.hosts.pretrained import StoredNetworkError, network_class, open_pretrained
from probattn.models.hosts.store import verify_network
from probattn.models.program import seeded
from probattn.tasks.classification.recipe import NetworkRecipe, PretrainedRecipe, VocabularyRecipe
from probattn.tasks.errors import RunError, as_run_error
from probattn.tasks.networks import Network, named_outputs, quiet_loading

NEW_CLASSES: Mapping[str, tuple[Any, Any]] = {
    "self_attentive": (SelfAttentiveConfig, SelfAttentiveForSequenceClassification),
    "decomposable": (DecomposableConfig, DecomposableForSequenceClassification),
    "esim": (EsimConfig, EsimForSequenceClassification),
}
"""Configuration and network by the names of networks that are built from scratch."""

DROPOUT: Mapping[str, tuple[str, ...]] = {
    "hidden": (
        "hidden_dropout_prob",
        "hidden_dropout",
        "dropout",
        "dropout_rate",
        "resid_pdrop",
        "embd_pdrop",
        "embedding_dropout",
        "mlp_dropout",
        "activation_dropout",
    ),
    "attention": ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop"),
    "classifier": (
        "classifier_dropout_prob",
        "classifier_dropout",
        "seq_classif_dropout",
        "qa_dropout",
        "pooler_dropout",
    ),
}
"""What families of transformers call a dropout, by the key of ``network.dropout``."""

TrainedClassifier = Network[Any]

Mismatch = tuple[str, tuple[int, ...], tuple[int, ...]]
"""A weight's name, its shape as saved and its shape as wanted."""


@dataclass(frozen=True)
class Words:
    """Tokenizer of the training texts for a network built from scratch, and word vectors; None for random ones."""

    tokenizer: Any
    vectors: WordVectors | None

    def __str__(self) -> str:
        """Numbers of words, and of those that have a vector."""
        words = f"vocabulary: {len(self.tokenizer):,} words, padding and unknown ones included"
        if self.vectors is None:
            return words
        return f"{words}; {self.vectors.found:,} have a vector ({self.vectors.coverage:.1%} of the rest)"


def make_words(network: NetworkRecipe, data: TextDataset, *, seed: int) -> Words:
    """Vocabulary of the training texts, and its vectors; ``RunError`` if only the network or the texts are of pairs."""
    pairs = network.name != "self_attentive" or bool(network.config.get("gate_size"))
    if pairs != (data.pairs is not None):
        kinds = ("single texts", "pairs of texts")
        hint = "; for pairs give network.config a gate_size, such as 300" if not pairs else ""
        raise RunError(
            f"network {network.name!r}: expected {kinds[pairs]}, got {kinds[not pairs]} ({data.source}){hint}"
        )
    options = network.vocabulary or VocabularyRecipe()
    tokenizer = word_tokenizer([*data.texts, *(data.pairs or ())], pairs=pairs, **options.model_dump())
    if network.embeddings is None:
        return Words(tokenizer, None)
    return Words(tokenizer, word_vectors(tokenizer.get_vocab(), network.embeddings, seed=seed))


def new_config(network: NetworkRecipe, words: Words | None = None, **options: Any) -> PreTrainedConfig:
    """Configuration of a network that is built from scratch, for its words if any; ``RunError`` for a wrong entry."""
    entries: dict[str, Any] = dict(network.config)
    if words is not None:
        entries["vocab_size"] = len(words.tokenizer)
        entries["pad_token_id"] = words.tokenizer.pad_token_id
        if words.vectors is not None:
            size = words.vectors.weight.shape[1]
            if entries.setdefault("embedding_size", size) != size:
                raise RunError(
                    f"network.config: expected embedding_size {size}, that of the vectors, got "
                    f"{entries['embedding_size']}; leave it out"
                )
    config_class, _ = NEW_CLASSES[network.name]
    unknown = entries.keys() - config_class().to_dict().keys()
    if unknown:
        raise RunError(f"network.config: {network.name!r} has no entry {min(unknown)!r}")
    with as_run_error(TypeError, ValueError, where="network.config"):
        return config_class(**entries, **options)


def build_network(network: NetworkRecipe, words: Words | None = None, **options: Any) -> PreTrainedModel:
    """The network of :func:`new_config` with new weights, from torch's generator, and the vectors of its words."""
    config = new_config(network, words, **options)
    with as_run_error(TypeError, ValueError, where="network.config"):
        net: PreTrainedModel = NEW_CLASSES[network.name][1](config)
    if words is not None and words.vectors is not None:
        with torch.no_grad():
            cast(nn.Embedding, net.get_input_embeddings()).weight.copy_(words.vectors.weight)
    return net


def load_config(network: NetworkRecipe, words: Words | None = None) -> PreTrainedConfig:
    """The configuration of a recipe's network, without its weights; ``RunError`` where it cannot be loaded."""
    if network.is_new:
        return new_config(network, words)
    with quiet_loading():
        return cast(PreTrainedConfig, _load(AutoConfig, network, **config_entries(network)))


def load_classifier(
    network: NetworkRecipe, label_names: Sequence[str], *, seed: int, words: Words | None = None
) -> PreTrainedModel:
    """A network with a head for the classes, pretrained or new by ``seed``; errors as for :func:`load_head`."""
    if not network.is_new:
        return load_head(AutoModelForSequenceClassification, network, label_names, seed=seed)
    _check_own_labels(network, label_names)
    with seeded(seed), quiet_loading():
        return build_network(network, words, **named_outputs(label_names))


def load_head(
    auto: Any,
    network: PretrainedRecipe,
    label_names: Sequence[str] | None = None,
    *,
    seed: int,
    **options: Any,
) -> PreTrainedModel:
    """A pretrained network with a head by transformers' ``auto`` class; ``RunError`` where it does not load or fit."""
    _check_own_labels(network, label_names or ())
    labels = {} if label_names is None else {"num_labels": len(label_names), **named_outputs(label_names)}
    with seeded(seed), quiet_loading():
        net, report = _load(
            auto,
            network,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **(labels | options),
            **config_entries(network),
        )
        _check_sizes(network, report["mismatched_keys"], label_names or ())
        return cast(PreTrainedModel, net)


def config_entries(network: PretrainedRecipe) -> dict[str, Any]:
    """Configuration entries of a recipe, ``dropout`` by the family's names; ``RunError`` for unknown ones."""
    if not network.config and network.dropout is None:
        return {}
    config = _load(AutoConfig, network)
    for name in network.config:
        if not hasattr(config, name) and name != "attn_implementation":  # an option of from_pretrained
            near = suggestion(name, config.to_dict())
            advice = "; `network.dropout` sets it for every family" if "drop" in name else ""
            raise RunError(
                f"network.config: expected an entry of {type(config).__name__} ({network.name!r}), got {name!r}"
                f"{near or '; leave it out'}{advice}"
            )
    entries: dict[str, Any] = {}
    for role, share in (network.dropout.model_dump() if network.dropout else {}).items():
        names = [name for name in DROPOUT[role] if hasattr(config, name)]
        if share and not names:
            raise RunError(
                f"network.dropout.{role}: expected a network with such a dropout, got {type(config).__name__} "
                f"({network.name!r}), which has none; set it to null"
            )
        entries |= {name: share for name in names if share is not None}
    return entries | network.config


def _check_own_labels(network: PretrainedRecipe, label_names: Sequence[str]) -> None:
    """Refuses entries of the configuration that the data decide."""
    for key in ("num_labels", "id2label", "label2id"):
        if key in network.config:
            raise RunError(
                f"network.config: expected no {key!r}, which the {len(label_names)} classes of the data set; leave "
                "it out"
            )


def load_any(network: NetworkRecipe) -> PreTrainedModel:
    """A network with the head it was saved with, for looking at; ``RunError`` where it cannot be loaded."""
    with quiet_loading():
        if network.is_new:
            return build_network(network)
        config = _load(AutoConfig, network)
        cls = network_class((config.architectures or [""])[0], config) or AutoModel
        return _load(cls, network)


def load_tokenizer(network: PretrainedRecipe, auto: Any = AutoTokenizer) -> Any:
    """The tokenizer, or what else the network reads with, by transformers' Auto class; ``RunError`` without."""
    return _load(auto, network)


def _load(cls: Any, network: PretrainedRecipe, **options: Any) -> Any:
    if network.revision is not None:
        options["revision"] = network.revision
    source = network.locate()
    try:
        verify_network(Path(source))
        return open_pretrained(cls, source, **options)
    except StoredNetworkError as error:
        name = shortened(network.name, 100)
        raise RunError(f"network {name!r}: cannot be loaded ({error})") from error


def _check_sizes(
    network: PretrainedRecipe, mismatched: Iterable[Mismatch], label_names: Sequence[str]
) -> None:
    """Raises ``RunError`` where weights were left out: the head's, or those whose size the configuration changes."""
    differing = sorted(mismatched)
    if not differing:
        return
    name, saved, expected = differing[0]
    classes = len(label_names)
    title = f"network {shortened(network.name, 100)!r}"
    if classes and all((theirs[:1], ours[:1]) == (saved[:1], (classes,)) for _, theirs, ours in differing):
        if network.new_head:
            return
        listed = shortened(", ".join(label_names), 80)
        other = (
            f"train on data of {saved[0]} classes, or " if saved[0] > 1 else ""
        )  # a single output is regression
        raise RunError(
            f"{title}: expected a head for the {classes} classes of the data ({listed}), got one for {saved[0]}; "
            f"{other}replace the head by a new one: network.new_head=true"
        )
    raise RunError(
        f"{title}: expected {name} of shape {list(expected)}, got {list(saved)} ({len(differing)} such weights); make "
        "network.config agree with what was saved"
    )
