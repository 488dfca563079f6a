"""What predictions expect of a model and its guide, checked, with errors that name it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any, cast

import torch
from pyro.poutine.runtime import Message
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from probattn.checks import check_choice
from probattn.inference.guide import PREDICTION_KEY, AttentionGuide
from probattn.inference.posterior import Link
from probattn.inference.session import derived_seed, preserved_random_state
from probattn.sites.posterior import SitePosterior
from probattn.sites.site import INFER_KEY


def link_of(owner: str, model: object) -> Link:
    """What makes probabilities of a model's predictions, its attribute ``link``; "softmax" without one."""
    link: Link = getattr(model, "link", "softmax")
    check_choice(owner, "the model's attribute link", link, Link)
    return link


@contextmanager
def naming_contract(owner: str, model: Any, inputs: object) -> Iterator[None]:
    """``TypeError`` that says what a model is called with, where one fails that takes the parts of a batch by name."""
    try:
        yield
    except (TypeError, AttributeError, KeyError) as error:
        parameters = signature(model.forward if isinstance(model, nn.Module) else model).parameters.values()
        required = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        named = isinstance(inputs, Mapping) and any(p.name in inputs for p in parameters)
        if len(required) <= 1 and not named:
            raise
        raise TypeError(
            f"{owner}: expected a model that takes a batch as one dictionary of tensors, forward(batch), got one that "
            f"takes ({', '.join(p.name for p in parameters)}); wrap it: lambda batch: model(batch[...], ...)"
        ) from error


def check_output(owner: str, output: object, rows: int | None = None) -> None:
    """Refuses what is no prediction (of so many rows): ``TypeError`` for no tensor, ``ValueError`` for its shape."""
    if not isinstance(output, Tensor):
        raise TypeError(
            f"{owner}: expected a model that returns its predictions, a tensor [B, ..., C], got "
            f"{type(output).__name__}; return the tensor alone"
        )
    if output.dim() < 2 or rows not in (None, len(output)):
        one = "; of one number a row return [B, 1], in a model whose attribute link is 'identity'"
        raise ValueError(
            f"{owner}: expected predictions [{rows or 'B'}, ..., C], a row for each of the batch's, got "
            f"{list(output.shape)}"
            f"{one if output.dim() == 1 else ''}"
        )


def is_other_latent(msg: Message) -> bool:
    """Whether a site without a value is latent, but neither attention nor a label to predict."""
    infer: Mapping[str, Any] = msg["infer"] or {}
    named = isinstance(infer.get(INFER_KEY), SitePosterior) or infer.get(PREDICTION_KEY)
    return not (named or msg["is_observed"] or msg["value"] is not None or site_is_subsample(msg))


def refuse_latent(owner: str, msg: Message) -> None:
    """Refuses a latent variable that would be drawn from its prior where there is a posterior of attention alone."""
    if is_other_latent(msg):
        raise ValueError(
            f"{owner}: the latent site {msg['name']!r} is not an attention site, so that it would be drawn from its "
            "prior; posterior_predict(guide, batch) draws it from its posterior; observe it, or mark a value to "
            f'predict with infer={{"{PREDICTION_KEY}": True}}'
        )


def draw_apart(msg: Message, seed: int, device: torch.device) -> None:
    """Gives a latent site a draw from its posterior, of a seed and its name; generators stay where they were."""
    with preserved_random_state(device):
        torch.manual_seed(derived_seed(seed, zlib.crc32(str(msg["name"]).encode())))
        msg["value"] = cast(Any, msg["fn"])()


def refuse_unstarted(owner: str, guide: AttentionGuide) -> None:
    """Refuses a guide whose parameters its first call will make."""
    if isinstance(guide, nn.Module) and not any(True for _ in guide.parameters()):
        raise ValueError(
            f"{owner}: this {type(guide).__name__} has no parameters yet; call it once on a batch with labels before"
        )
