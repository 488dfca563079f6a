"""Signed effects of tokens through attention: which of them speak for an answer, and which against it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pyro.poutine.runtime import Message
from torch import Tensor

from probattn.checks import check_choice, check_integer
from probattn.distributions.log_space_distribution import carry_weights
from probattn.inference.configuration import check_sites, network_name
from probattn.inference.effect_results import AttentionEffects, Words, effects_of, summed, token_groups
from probattn.inference.effect_targets import Number, Reading, Target
from probattn.inference.ensembles.ensemble import ParticleEnsemble
from probattn.inference.guide import (
    AttentionGuide,
    differentiated,
    gradients,
    moved_rows,
    predictions,
    refuse_second_call,
    site_posterior,
)
from probattn.inference.posterior import link_of
from probattn.inference.predictive import (
    Answering,
    Model,
    batched_inputs,
    check_call,
    device_of,
    differentiable,
    draw_seed,
    joined_maps,
    prepared_batch,
    rows_per_pass,
    seeded_batches,
)
from probattn.inference.session import evaluating
from probattn.sites.edges import Edges
from probattn.sites.layout import Layout
from probattn.sites.masks import AttentionMask
from probattn.sites.method import as_program, observed
from probattn.sites.noise import SeededNoise
from probattn.sites.particle_layers import apart, particle_count, repeated_rows
from probattn.sites.posterior import SitePosterior, biased
from probattn.sites.site import log_weights

OWNER = "attention_effects"
SCREENED = 3
"""Tokens or words on each side whose slopes are followed by knock-outs."""
Method = Literal["slope", "knockout", "screened"]
Side = Literal["encoder", "decoder"]


class Request(NamedTuple):
    """Arguments of :func:`attention_effects`; ``sites`` are names once the network is read, None for all."""

    targets: Sequence[Target]
    method: Method | int = "screened"
    position: int | Sequence[int] | None = None
    sites: Side | Collection[str] | None = None
    num_samples: int | None = None
    chunk_size: int | None = None


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
    effects = [of_batch(*seeded) for seeded in seeded_batches(OWNER, batch, seed)]
    if len(effects) == 1:
        return effects[0]
    return [AttentionEffects.together(of_target) for of_target in zip(*effects, strict=True)]


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


class KeyEffects(Answering):
    """Pyro handler that adds a bias to the scores of every key, or takes keys away; where one draws, within its guide.

    ``removed``, bool ``[R, S]``, are keys that nobody attends to; None for ``biases`` of 0, ``[R, H, 1, S]`` by site.
    """

    owner: ClassVar[str] = OWNER
    predicts: ClassVar[bool] = True

    def __init__(
        self, sites: Collection[str] | None, removed: Tensor | None, data: int, *, expectation: bool
    ) -> None:
        super().__init__()
        self.takes_outputs = self._expectation = expectation
        self._sites, self._removed, self._data = sites, removed, data
        self.biases: dict[str, Tensor] = {}
        self.keys: dict[str, int] = {}
        self.met: set[str] = set()

    def _pyro_sample(self, msg: Message) -> None:
        if self._expectation:
            super()._pyro_sample(msg)

    def _value(self, name: str, posterior: SitePosterior) -> Tensor:
        if posterior.method.learns_scale:
            self._paths.add(name, posterior.call)
        return posterior.expect(*self._changed(name, posterior))

    def _pyro_post_sample(self, msg: Message) -> None:
        posterior = site_posterior(msg)
        if self._expectation or posterior is None:
            return
        name, value = str(msg["name"]), msg["value"]
        assert isinstance(value, Tensor)
        bias, layout = self._changed(name, posterior)
        weights = layout.weights(biased(log_weights(name, value, posterior.layout), bias))
        msg["value"] = carry_weights(weights.view_as(weights), weights, posterior.mask)

    def _changed(self, name: str, posterior: SitePosterior) -> tuple[Tensor | None, Layout]:
        """The bias of a site, and its layout without the keys that are taken away."""
        refuse_second_call(OWNER, name, self.met)
        self.met.add(name)
        layout, (rows, heads, _, keys) = posterior.layout, posterior.batch_shape
        if self._sites is not None and name not in self._sites:
            return None, layout
        if isinstance(layout, Edges):
            keys = layout.num_nodes
            if self._data > 1:
                raise ValueError(
                    f"{OWNER}: {name}: expected no num_samples, since draws of a graph share no pass"
                )
        self.keys[name] = keys
        if len(set(self.keys.values())) > 1:
            listed = ", ".join(f"{site} {number}" for site, number in self.keys.items())
            raise ValueError(
                f"{OWNER}: expected calls with the same keys, got these numbers: {listed}; name those whose keys are "
                "the tokens: sites=[...]"
            )
        if rows % self._data:
            raise ValueError(f"{OWNER}: {name}: expected {self._data} rows or a multiple of them, got {rows}")
        if self._removed is not None:
            return None, _without(self._removed.reshape(rows, keys), layout)
        dtype = torch.promote_types(posterior.dtype, torch.float32)
        bias = torch.zeros(rows, heads, 1, keys, dtype=dtype, device=posterior.device)
        self.biases[name] = bias.requires_grad_()
        return bias.index_select(-1, layout.source) if isinstance(layout, Edges) else bias, layout


def _without(removed: Tensor, layout: Layout) -> Layout:
    """The layout without keys, ``removed`` ``[R, S]``; of a graph without the edges that leave nodes, ``[1, N]``."""
    if isinstance(layout, Edges):
        return layout.without(removed[0])
    remaining = ~removed[:, None, None, :]
    if not isinstance(layout, AttentionMask):
        return AttentionMask(remaining)
    return AttentionMask(layout.valid & remaining, layout.query_valid)


class _Guide(AttentionGuide):
    """Draws without what only an objective needs."""

    def _draw(self, msg: Message, posterior: SitePosterior) -> None:
        if msg["value"] is None:
            msg["value"] = posterior.draw(self.noise, with_kl=False)


@dataclass(frozen=True)
class BatchEffects:
    """The rows of one batch, and what is requested of them; P draws or particles, or 1 for the expectation."""

    model: Any
    inputs: dict[str, Tensor]
    keys: set[str]
    rows: int
    words: Words | None
    seed: tuple[int, ...]
    request: Request

    @property
    def draws(self) -> int:
        """Draws of all particles, or 1."""
        return (self.request.num_samples or 1) * (particle_count(self.model) or 1)

    def effects(self) -> list[AttentionEffects]:
        """As requested, of each target."""
        request, device = self.request, device_of(self.inputs)
        alone = getattr(self.model, "draws_per_pass", None) == 1  # a pass is one of a whole graph
        if alone and (request.num_samples or 1) > 1:
            raise ValueError(f"{OWNER}: expected no num_samples for a model of one draw a pass; leave it out")
        size = 1 if alone else request.chunk_size or rows_per_pass(device)
        size = max(1, size // self.draws)
        link = link_of(OWNER, self.model)
        numbers = [Number(OWNER, item, request.position, self.rows, link) for item in request.targets]
        with torch.inference_mode(False), evaluating(self.model):
            chunks = torch.arange(self.rows, device=device).split(size)
            passes = list(zip(*(self._slopes(rows, numbers) for rows in chunks), strict=True))
            readings = [Reading.together([reading for reading, _ in of_target]) for of_target in passes]
            by_site = [joined_maps([slopes for _, slopes in of_target], 1) or {} for of_target in passes]
            # [P, B, S]
            tokens: list[Any] = [sum(s.sum(dim=2).flatten(2) for s in sites.values()) for sites in by_site]
            groups = token_groups(OWNER, self.words, tokens[0][0])
            slopes = [summed(item, groups) for item in tokens]
            pairs = self._pairs([item.mean(dim=0) for item in slopes])
            knocked = [
                self._without(some, groups, numbers, readings) for some in pairs.split(size) if len(some)
            ]
        without: list[Reading | None] = [Reading.together(parts) for parts in zip(*knocked, strict=True)]
        without = without or [None] * len(numbers)
        return [
            effects_of(reading, slope, sites, groups, pairs, less, link)
            for reading, slope, sites, less in zip(readings, slopes, by_site, without, strict=True)
        ]

    def _pairs(self, slopes: Sequence[Tensor]) -> Tensor:
        """Rows and groups ``[K, 2]`` whose knock-out is requested, by slopes ``[B, G]`` of each target."""
        method = SCREENED if self.request.method == "screened" else self.request.method
        if method == "slope":
            return slopes[0].new_empty((0, 2), dtype=torch.int64)
        present = ~slopes[0].isnan()
        if isinstance(method, int):
            number = min(method, present.shape[1])
            extremes = torch.zeros_like(present)
            for slope in (sign * item for item in slopes for sign in (1, -1)):
                side = torch.where(present, slope, -torch.inf)
                extremes.scatter_(1, side.topk(number, dim=1).indices, True)
            present &= extremes
        return present.nonzero()

    def _run(self, rows: Tensor, removed: Tensor | None) -> tuple[Tensor, KeyEffects]:
        """Predictions ``[P, R, ..., C]`` of some rows, and the handler of their pass."""
        expectation, particles = self.request.num_samples is None, particle_count(self.model)
        inputs = {name: value[rows] if name in self.keys else value for name, value in self.inputs.items()}
        total = len(rows) * self.draws
        handler = KeyEffects(self.request.sites, removed, total, expectation=expectation)
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(removed is None))
            inputs = differentiable(inputs)
            if self.draws > 1 or not expectation:
                inputs = repeated_rows(inputs, self.keys, self.draws)
            if particles is not None:
                stack.enter_context(apart(total, particles))
            if not expectation:
                # A datum's noise is its own, whichever others are in the pass.
                numbers = range(self.draws)
                seeds = [draw_seed((*self.seed, row), draw) for draw in numbers for row in rows.tolist()]
                noise = SeededNoise(seeds, device_of(inputs))
                stack.enter_context(_Guide(self.model, noise=noise))
            stack.enter_context(handler)
            logits = predictions(OWNER, self.model, inputs, total).unflatten(0, (self.draws, len(rows)))
        check_sites(OWNER, self.model, handler.met)
        unknown = sorted((self.request.sites or handler.keys.keys()) - handler.keys.keys())
        if unknown:
            have = ", ".join(sorted(handler.met)) or "none"
            raise ValueError(f"{OWNER}: expected sites of the model, got {unknown}; a pass met {have}")
        return logits, handler

    def _slopes(self, rows: Tensor, numbers: Sequence[Number]) -> list[tuple[Reading, dict[str, Tensor]]]:
        """What is read of some rows, and slopes by site ``[P, R, H, m, S]`` of m calls a row; of each target."""
        with differentiated(self.model), torch.enable_grad():
            logits, handler = self._run(rows, None)
            readings = [number.read(logits, rows) for number in numbers]
            for name in moved_rows(self.model, readings[0].value, handler.biases):
                raise ValueError(
                    f"{OWNER}: {name}: expected sites whose rows are those of the batch, in order, got predictions "
                    f"that depend on attention of other rows: {network_name(self.model)} moves rows before attention, "
                    "as sorting by length does, or mixes them; sort the batch before the call, or give rows one by one"
                )
            slopes, shape = [], (*logits.shape[:2], -1)
            for one in readings:
                number, again = one.value.sum(), one is not readings[-1]
                grads = gradients(OWNER, number, handler.biases, "take sites=[...]", retain=again)
                maps = {n: g.squeeze(2).unflatten(0, shape).transpose(2, 3) for n, g in grads.items()}
                slopes.append((one.detached(), maps))
        return slopes

    def _without(
        self, pairs: Tensor, groups: Tensor, numbers: Sequence[Number], readings: Sequence[Reading]
    ) -> list[Reading]:
        """What is read of rows in which nobody attends to a group's tokens; of the same answers, of each target."""
        rows, group = pairs.unbind(dim=1)
        removed = (groups[rows] == group[:, None]).repeat(self.draws, 1)
        logits, _ = self._run(rows, removed)
        return [
            number.read(logits, rows, reading.answer[rows])
            for number, reading in zip(numbers, readings, strict=True)
        ]
