"""Signed effects of tokens through attention: which of them speak for an answer, and which against it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from probattn.checks import check_choice, check_integer
from probattn.inference.effect_passes import OWNER, BatchEffects, Method, Request, Side
from probattn.inference.effect_results import AttentionEffects, Words
from probattn.inference.effect_targets import Target
from probattn.inference.ensembles.ensemble import ParticleEnsemble
from probattn.inference.predictive import Model, batched_inputs, check_call, prepared_batch, seeded_batches
from probattn.inference.session import evaluating
from probattn.sites.method import as_program, observed


def attention_effects(
    model: Model,
    batch: Mapping[str, Tensor] | Iterable[Any],
    *,
    target: Target = "answer",
    method: Method | int = "screened",
    words: Words | None = None,
    position: int | Sequence[int] | None = None,
    sites: Side | Sequence[str] | None = None,
    num_samples: int | None = None,
    seed: int | Sequence[int] = 0,
    chunk_size: int | None = None,
) -> AttentionEffects:
    r"""Signed effects of the attention to each token, or word, on a prediction.

    Let z be a number of the prediction (``target``), and add a bias :math:`b_j` to the score of every query for key j,
    in every head of every attention call. The network has a bias of 0; at :math:`-\infty` no query attends to token j,
    as with a padding mask. The slope is the gradient at 0, the knock-out the effect of masking the token:

    .. math:: \mathrm{slope}_j = \frac{\partial z}{\partial b_j}\Big|_{b=0}
        = \sum_{\text{calls, heads, queries}} \frac{\partial z}{\partial \log S_j}, \qquad
        \mathrm{knockout}_j = z(b_j = 0) - z(b_j = -\infty)

    The slopes of all tokens take one forward and one backward pass; each knock-out takes a forward pass, and many are
    batched. A token with a positive effect raises z, one with a negative effect lowers it. The slope of a word is the
    sum over its tokens; its knock-out masks all of them. Unlike deletion, masking does not move the other tokens.

    In a graph, token j is a node and the queries are the nodes to which its edges lead; each row has its own pass.

    The network need not be converted. By default attention is at its posterior expectation, which equals deterministic
    attention with the same scores if E[S] = exp(scores), as with ``sigma=0``; with ``num_samples`` it is drawn.

    Args:
        model: as in :func:`posterior_predict`, but not a :class:`ParticleEnsemble`; or a network that is not converted,
            of a family that :func:`probattn.models.convert` takes. It is not changed.
        batch: as in :func:`posterior_predict`; "labels" are ignored.
        target: the number z. "answer": the log-odds of the most probable class (with two classes the difference of
            their logits), the logit of the most probable label, or the first number; "doubt": the entropy in nats, so
            a positive effect makes the prediction less certain; the number of a class, label or output: its log-odds,
            logit or value; a pair of classes: the difference of their logits; or a function from predictions
            ``[R, ..., C]`` to numbers ``[R]``.
        method: "slope"; "knockout" for every token or word; "screened" for slopes of all, and knock-outs of the three
            with the largest slopes of each sign; an integer replaces the three. The word with the largest effect (for
            and against counted separately) was the same as with knock-outs of all words in 89 to 96% of cases with
            three (single texts), in 87 and 88% with six (pairs of texts).
        words: number of the word of each token, None or negative for a token outside all words: the encoding of a fast
            tokenizer (the words of a second text are numbered after those of the first), lists like its ``word_ids()``
            by row, or int64 ``[B, S]``. Default: each token is a word.
        position: which prediction to explain if a row has several (such as one per token), one number or one per row.
        sites: attention calls whose keys are the tokens: "encoder" (its self-attention and the cross-attention to it),
            "decoder" (its self-attention), or names of sites. Default: "encoder" if there is one.
        num_samples: number of draws of latent attention. Default: its expectation.
        seed: seed of the draws.
        chunk_size: number of rows (times draws) in a forward pass; bounds memory. Default: about 256, on a CPU 16.

    Returns:
        The effects ``[B, G]`` of G tokens or words.

    Raises:
        TypeError: the model is not a model of a batch, is an ensemble, or has attention that cannot be read; the batch
            is not a mapping of tensors.
        ValueError: no attention call; calls that differ in their number of keys, or within windows, so keys are not
            tokens (choose others with ``sites``); a target or position that the prediction does not have; words that do
            not match the tokens in number; draws for a network with layers that are not latent, or for a graph.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
        >>> net = BertForSequenceClassification(config).eval()
        >>> effects = attention_effects(net, {"input_ids": torch.arange(8).view(2, 4)}, words=[[None, 0, 0, 1]] * 2)
        >>> effects.effect.shape
        torch.Size([2, 2])
    """
    request = Request([target], method, position, sites, num_samples, chunk_size)
    return effects_on_targets(model, batch, request, words, seed)[0]


def effects_on_targets(
    model: Model,
    batch: Mapping[str, Tensor] | Iterable[Any],
    request: Request,
    words: Words | None = None,
    seed: int | Sequence[int] = 0,
) -> list[AttentionEffects]:
    """Effects on several targets, which share forward passes; knocked out is what leads for any of them."""
    program: Any = as_program(getattr(model, "_orig_mod", model))  # torch.compile's wrapper has no sites
    if isinstance(program, ParticleEnsemble):
        raise TypeError(
            f"{OWNER}: expected one network, got a ParticleEnsemble; take the effects of its particles"
        )
    check_call(OWNER, program)
    if isinstance(request.method, str):
        check_choice(OWNER, "method", request.method, Method)
    for name in ("method", "num_samples", "chunk_size"):
        value = getattr(request, name)
        if not isinstance(value, str | None):
            check_integer(OWNER, name, value, minimum=1)
    with torch.inference_mode(False), evaluating(program):  # nobody trains it while it is copied
        try:
            program, encoder, decoder = observed(program, request.num_samples is not None)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{OWNER}: {error}") from error
    request = request._replace(sites=_sites(encoder, decoder, request.sites))

    def of_batch(inputs: Mapping[str, Tensor], seed: tuple[int, ...]) -> list[AttentionEffects]:
        rows = batched_inputs(OWNER, prepared_batch(program, inputs), None, "labels")
        return BatchEffects(program, *rows, words, seed, request).effects()

    by_row = words is not None or any(isinstance(item, Tensor) for item in request.targets)
    by_row |= not (request.position is None or isinstance(request.position, int))
    if by_row and not isinstance(batch, Mapping | Tensor):
        raise ValueError(
            f"{OWNER}: words, targets and positions by row are those of one batch; call it for each"
        )
    parts = [of_batch(*seeded) for seeded in seeded_batches(OWNER, batch, seed)]
    if len(parts) == 1:
        return parts[0]
    return [AttentionEffects.together(of_target) for of_target in zip(*parts, strict=True)]


def _sites(
    encoder: Sequence[str], decoder: Sequence[str], sites: Side | Collection[str] | None
) -> frozenset[str] | None:
    """Names of the sites whose keys are the tokens; None for all."""
    if sites is not None and not isinstance(sites, str):
        return frozenset(sites)
    if sites is not None:
        check_choice(OWNER, "sites", sites, Side)
    names = {"encoder": encoder, "decoder": decoder, None: encoder or decoder}[sites]
    if sites is not None and not names:
        raise ValueError(f"{OWNER}: sites={sites!r}: the network has no such attention calls; name them")
    return frozenset(names) or None
