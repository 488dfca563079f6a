"""Loading pretrained networks and tokenizers for a command, or building them from nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from probattn.checks import shortened
from probattn.cli.errors import CommandError
from probattn.cli.words import Words, build_network
from probattn.models.hosts.classes import network_class
from probattn.models.hosts.pretrained import StoredNetworkError, open_pretrained
from probattn.models.hosts.store import verify_network
from probattn.recipes import NetworkRecipe

Mismatch = tuple[str, tuple[int, ...], tuple[int, ...]]
"""A weight's name, its shape as saved and its shape as wanted."""


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
        CommandError: it cannot be loaded, or its head is for another number of classes.
    """
    labels = dict(enumerate(label_names))
    options = {"id2label": labels, "label2id": {label: index for index, label in labels.items()}}
    with torch.random.fork_rng(), quiet_loading():
        torch.manual_seed(seed)
        if network.is_new:
            return build_network(network, words, **options)
        found, report = _load(
            AutoModelForSequenceClassification,
            network,
            num_labels=len(labels),
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
            **network.config,
        )
        _check_sizes(network, report["mismatched_keys"], label_names)
        return cast(PreTrainedModel, found)


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
    source = network.locate()
    try:
        verify_network(Path(source))
        return open_pretrained(cls, source, **options)
    except StoredNetworkError as error:
        name = shortened(network.name, 100)
        raise CommandError(f"network {name!r}: cannot be loaded ({error})") from error


def _check_sizes(network: NetworkRecipe, mismatched: Iterable[Mismatch], label_names: Sequence[str]) -> None:
    """Makes sure that no weight of the folder was left out because it has another size.

    Raises:
        CommandError: one was: the head's, since the data have other classes, or one that the configuration changes.
    """
    differing = sorted(mismatched)
    if not differing:
        return
    name, saved, wanted = differing[0]
    classes = len(label_names)
    given = f"network {shortened(network.name, 100)!r}"
    if all((theirs[:1], ours[:1]) == (saved[:1], (classes,)) for _, theirs, ours in differing):
        listed = shortened(", ".join(label_names), 80)
        raise CommandError(
            f"{given}: expected a head for the {classes} classes of the data ({listed}), got one for {saved[0]}; train "
            f"on data of {saved[0]} classes, or take the network without its head: "
            "AutoModel.from_pretrained(...).save_pretrained(NEW_FOLDER), and its tokenizer beside it"
        )
    raise CommandError(
        f"{given}: expected {name} of shape {list(wanted)}, got {list(saved)} ({len(differing)} such weights); make "
        "network.config agree with what was saved"
    )


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
