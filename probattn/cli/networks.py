"""Loading pretrained networks and tokenizers for a command, or building them from nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from probattn.cli.errors import CommandError, one_line
from probattn.cli.words import Words, build_network
from probattn.data import DataError
from probattn.models.hosts.classes import network_class
from probattn.recipes import NetworkRecipe, RecipeError


def load_classifier(
    network: NetworkRecipe, label_names: Sequence[str], *, seed: int, words: Words | None = None
) -> PreTrainedModel:
    """A network with a classification head.

    Args:
        network: which one.
        label_names: names of the classes.
        seed: of the initial weights that the network does not bring.
        words: those of a network that is built from nothing.

    Returns:
        The network.

    Raises:
        CommandError: it cannot be loaded.
    """
    labels = dict(enumerate(label_names))
    options = {"id2label": labels, "label2id": {label: index for index, label in labels.items()}}
    with torch.random.fork_rng(), quiet_loading():
        torch.manual_seed(seed)
        if network.is_new:
            return build_network(network, words, **options)
        found: PreTrainedModel = _load(
            AutoModelForSequenceClassification, network, num_labels=len(labels), **options, **network.config
        )
        return found


def load_any(network: NetworkRecipe) -> PreTrainedModel:
    """A network with the head it was saved with, for looking at.

    Raises:
        CommandError: it cannot be loaded.
    """
    with quiet_loading():
        if network.is_new:
            return build_network(network)
        config = _load(AutoConfig, network)
        cls = network_class((config.architectures or [""])[0], config) or AutoModel
        found: PreTrainedModel = _load(cls, network)
        return found


def load_tokenizer(network: NetworkRecipe) -> Any:
    """The network's tokenizer.

    Raises:
        CommandError: it cannot be loaded.
    """
    return _load(AutoTokenizer, network)


def _load(cls: Any, network: NetworkRecipe, **options: Any) -> Any:
    if network.revision is not None:
        options["revision"] = network.revision
    try:
        return cls.from_pretrained(network.locate(), **options)
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, (RecipeError, DataError)):
            raise
        raise CommandError(f"network {network.name!r}: cannot be loaded ({one_line(error)})") from error


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Keeps transformers from reporting newly initialised heads: that is what is wanted here."""
    before = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
        if bars:
            transformers_logging.enable_progress_bar()
