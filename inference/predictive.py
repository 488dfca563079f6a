"""Predictions from the posterior: draws folded into the batch, and the posterior expectation."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal, Self, SupportsIndex, cast

import numpy as np
import pyro.distributions as dist
import torch
from accelerate.utils import send_to_device
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor, nn
from torch.utils.data import DataLoader

from probattn.checks import check_batch
from probattn.distributions.log_space_distribution import carried_log, carried_weights, exp_carrying_log
from probattn.inference.batches import as_rows, collate_rows
from probattn.inference.configuration import attention_sites, check_sites, network_name, refuse_unwrapped
from probattn.inference.ensembles.ensemble import ParticleEnsemble
from probattn.inference.guide import (
    PREDICTION_KEY,
    AttentionGuide,
    draw_apart,
    gradients,
    is_other_latent,
    predictions,
    refuse_latent,
    refuse_second_call,
    refuse_unstarted,
    site_posterior,
)
from probattn.inference.posterior import Link, Posterior, link_of
from probattn.inference.session import evaluating
from probattn.sites.answers import AnsweringPosterior
from probattn.sites.calling import described
from probattn.sites.method import as_program
from probattn.sites.noise import Scratch, SeededNoise, seed_integers
from probattn.sites.particle_layers import apart, particle_count, repeated_rows, runs_apart
from probattn.sites.posterior import SitePosterior
from probattn.sites.traced import GraphPass
from probattn.sites.trunk import RowsMovedError, Trunk
from probattn.sites.upward import LinkedPaths, SharedUpward

Model = Callable[[Mapping[str, Tensor]], Tensor]
BATCH_ROWS = 32
"""Rows of a data set that are predicted at once."""
ROWS_PER_PASS = 256
CPU_ROWS_PER_PASS = 16
"""On a CPU more rows save nothing, and maps that outgrow what the C library keeps are paged in again at every call."""


class Answering(Messenger):
    """Pyro handler that gives attention sites a value instead of a draw; ``owner`` refuses other latent variables."""

    owner: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self._paths = LinkedPaths()

    def _pyro_sample(self, msg: Message) -> None:
        posterior = site_posterior(msg)
        if posterior is None or msg["value"] is not None:
            predict_label(msg)
            refuse_latent(self.owner, msg)
        else:
            msg["value"] = self._value(str(msg["name"]), posterior)

    @abstractmethod
    def _value(self, name: str, posterior: SitePosterior) -> Tensor:
        """The value of a site."""


class PosteriorExpectation(Answering):
    """Pyro handler that gives every attention site its posterior expectation E[S] instead of a draw."""

    owner: ClassVar[str] = "posterior_expectation"
    takes_expectations: ClassVar[bool] = True
    """Tells converted networks that they may compute E[S] directly, without a ``pyro.sample`` statement."""

    def _value(self, name: str, posterior: SitePosterior) -> Tensor:
        if posterior.method.learns_scale:  # E[S] depends on the path
            self._paths.add(name, posterior.call)
        return exp_carrying_log(posterior.distribution.log_mean)


def predict_label(msg: Message) -> None:
    """Gives a label to predict its most likely value: a draw, which is not returned, would move torch's generators."""
    infer: Mapping[str, Any] = msg["infer"] or {}
    if msg["is_observed"] or msg["value"] is not None or not infer.get(PREDICTION_KEY):
        return
    law: Any = msg["fn"]
    while isinstance(law, dist.Independent | dist.MaskedDistribution):
        law = law.base_dist
    # Nothing is missing here: torch raises it for a law without a mode, and such a site draws its value.
    with suppress(NotImplementedError):
        msg["value"] = law.mode


def posterior_expectation(model: Model, batch: Mapping[str, Tensor]) -> Tensor:
    """Point prediction: one forward pass with each S at its posterior mean (Zhang et al. 2021a, section 5.1.1).

    The result differs from the mean over draws (:func:`posterior_predict`), since the normalised E[S] is not the mean
    of the normalised weights W. For a :class:`ParticleEnsemble` it is the log of the particles' mean probabilities.

    Args:
        model: a Hugging Face network with a head, or a Pyro model that maps a batch to logits; run without gradients.
        batch: the model's inputs; they are moved to its device.

    Returns:
        Logits ``[B, ..., C]``, or predicted numbers.

    Raises:
        TypeError: the model is not a model of a batch or does not return logits; the batch is not a mapping of tensors.
        ValueError: an empty batch.
    """
    model = as_program(model)
    check_call("posterior_expectation", model)
    check_batch("posterior_expectation", batch)
    inputs = {name: value for name, value in prepared_batch(model, batch).items() if name != "labels"}
    rows = [len(value) for value in inputs.values() if isinstance(value, Tensor) and value.dim()]
    if rows and not any(rows):
        raise ValueError("posterior_expectation: expected at least one row, got an empty batch")
    with evaluating(model), PosteriorExpectation():
        return predictions("posterior_expectation", model, inputs)


def posterior_predict(
    model: Model | AttentionGuide,
    batch: Mapping[str, Tensor] | Iterable[Any],
    num_samples: int = 20,
    *,
    seed: int | Sequence[int] = 0,
    chunk_size: int | None = None,
    attention: Literal["all"] | Sequence[str] | None = None,
    streaming: bool = False,
    antithetic: bool = False,
    batch_keys: Sequence[str] | None = None,
    label_name: str = "labels",
) -> Posterior:
    """Draws predictions, and attention weights if requested, from the posterior.

    Several draws are computed in one forward pass, as a batch of ``P * B`` rows (P draws of B rows); layers before the
    first latent variable run once for all draws. Models that are compiled or not an ``nn.Module``, and modules that
    draw random numbers or have hooks, run for each draw. Draw p takes its noise from a generator seeded with
    ``(seed, p)``: chunk size and number of draws do not change it, and torch's generators are not used.

    A :class:`ParticleEnsemble` without latent attention gives one draw per particle, P = number of particles. With
    latent attention, each particle gets ``num_samples`` draws; P is particles times draws, ordered by particle. The
    same holds for a network whose layers are particles (:class:`probattn.ParticleLayers`).

    Args:
        model: a Hugging Face network with a head (:func:`probattn.models.program_for` makes its Pyro model), or a Pyro
            model that maps a batch to logits (:class:`probattn.models.Classifier`). It runs in evaluation mode without
            gradients, and its mode is restored; for a plain function set the mode of its modules yourself. If the
            model has latent variables other than attention, pass its trained guide instead, an :class:`AttentionGuide`
            with posteriors of these variables (``guide.model`` is the model); each draw then needs a forward pass,
            whatever ``chunk_size`` is.
        batch: the model's inputs (labels are ignored), a data set of such rows, or a ``DataLoader``. The noise of a
            loader's batch depends on the seed and the number of the batch. Inputs are moved to the model's device.
        num_samples: P, number of draws, >= 1; for particles with latent attention, the number per particle.
        seed: non-negative integer, or a sequence of them (for example seed and batch number).
        chunk_size: number of draws in one forward pass; bounds memory. Default: the model's attribute
            ``draws_per_pass`` if it has one, else as many as make about 256 rows, on a CPU 16 rows.
        attention: names of the sites whose weights to return, or "all".
        streaming: whether to return mean and standard deviation of the weights instead of all draws.
        antithetic: whether every second draw takes the mirrored noise of the draw before (Hammersley & Morton 1956).
            Each draw still has the distribution of the posterior. The mean over draws is more accurate than with
            independent draws, the standard deviation less accurate, and tests that assume independence, such as that of
            PAvPU (:mod:`probattn.metrics`), are conservative.
        batch_keys: inputs whose first dimension is the batch. Default: all of them.
        label_name: name of the labels in the batch; they are removed.

    Returns:
        The draws.

    Raises:
        TypeError: the model is not a model of a batch, has a head without program or does not return logits; the batch
            is not a mapping of tensors.
        ValueError: fewer than one draw; an empty batch, or inputs of differing first dimension; an unknown site; a
            latent variable other than attention without guide; predictions of one class, not finite or not of shape
            ``[B, ..., C]``; or all draws are equal, since no attention site affects the predictions.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> import probattn
        >>> from probattn.models import Classifier, convert
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> model = Classifier(convert(BertForSequenceClassification(config), probattn.BayesianAttention()))
        >>> draws = posterior_predict(model, {"input_ids": torch.ones(3, 4, dtype=torch.long)}, 5, attention="all")
        >>> draws.logits.shape, [weights.shape for weights in draws.attention.values()]
        (torch.Size([5, 3, 2]), [torch.Size([5, 3, 2, 4, 4])])
    """
    guide = model if isinstance(model, AttentionGuide) else None
    model = as_program(model if guide is None else guide.model)
    check_call("posterior_predict", model)
    for name, number in (("num_samples", num_samples), ("chunk_size", chunk_size)):
        if number is not None and (not isinstance(number, SupportsIndex) or operator.index(number) < 1):
            raise ValueError(f"posterior_predict: expected {name} >= 1, an integer, got {number!r}")
    if attention is not None and not isinstance(attention, Collection):
        raise TypeError(
            f"posterior_predict: expected attention='all', names of sites or None, got {attention!r}"
        )
    if isinstance(attention, str) and attention != "all":
        attention = [attention]
    if guide is not None:
        refuse_unstarted("posterior_predict", guide)

    def predict(data: Mapping[str, Tensor], words: Sequence[int]) -> _Drawn:
        prepared = prepared_batch(network, data)
        inputs, keys, rows = batched_inputs("posterior_predict", prepared, batch_keys, label_name)
        chunk = chunk_size or preferred or rows_per_pass(device_of(inputs)) // rows or 1
        chunk = chunk if guide is None else 1
        folding = _Folding(inputs, keys, rows, chunk, AttentionDraws(attention, streaming), antithetic, guide)
        seeds = [draw_seed(words, draw // 2 if antithetic else draw) for draw in range(num_samples)]
        with evaluating(model):
            if isinstance(model, ParticleEnsemble):
                logits = _ensemble_logits(model, folding, seeds)
            elif particle_count(model) is not None:
                logits = _particle_logits(model, folding, seeds)
            else:
                logits = folding.logits(model, seeds)
        return logits, *folding.collector.results()

    network: Any = model.model if isinstance(model, ParticleEnsemble) else model
    preferred: int | None = getattr(network, "draws_per_pass", None)
    link = link_of("posterior_predict", network)
    noise = getattr(network, "noise", None) if link == "identity" else None
    drawn = [predict(*seeded) for seeded in seeded_batches("posterior_predict", batch, seed)]
    return Posterior(*_together(drawn, link), link, noise)


_Drawn = tuple[Tensor, dict[str, Tensor] | None, dict[str, Tensor] | None, dict[str, Tensor] | None]
"""Logits and attention of some rows: draws, means and standard deviations by site."""


def seeded_batches(
    owner: str, data: Any, seed: int | Sequence[int]
) -> Iterator[tuple[Mapping[str, Tensor], tuple[int, ...]]]:
    """A batch with its seed; or a loader's batches, or those of a data set's rows, whose numbers end their seeds."""
    words = seed_words(seed)
    if isinstance(data, Mapping | Tensor):
        check_batch(owner, data)
        yield cast(Mapping[str, Tensor], data), words
        return
    if not isinstance(data, DataLoader):
        # A loader takes a number from its generator, without one from torch's, which stay where they are.
        rows, generator = as_rows(data, owner), torch.Generator()
        data = DataLoader(rows, BATCH_ROWS, collate_fn=collate_rows, generator=generator)
    number = -1
    for number, batch in enumerate(data):
        check_batch(owner, batch)
        yield batch, (*words, number)
    if number < 0:
        raise ValueError(f"{owner}: expected at least one batch, got none")


def moved_batch(network: object, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The batch, on the device of a network's first parameter; as it is where that one is offloaded, on "meta"."""
    parameters = network.parameters() if isinstance(network, nn.Module) else iter(())
    device = next((value.device for value in parameters), None)
    if device is None or device.type == "meta":
        return batch
    return {name: send_to_device(value, device) for name, value in batch.items()}


def prepared_batch(network: object, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The batch on the network's device, without the labels that a program names, and with what it makes of them."""
    batch, prepare = moved_batch(network, batch), getattr(network, "inputs", None)
    return prepare(batch) if hasattr(network, "label_names") and callable(prepare) else batch


def _together(drawn: Sequence[_Drawn], link: Link) -> _Drawn:
    """The rows of all batches; shorter ones are filled up, predictions with NaN and maps with 0."""
    if link == "softmax" and drawn[0][0].shape[-1] == 1:
        raise ValueError(
            "posterior_predict: expected predictions of two classes or more, got one, always certain; set the "
            "model's attribute link to 'identity' for numbers, to 'sigmoid' for labels"
        )
    if len(drawn) == 1:
        return drawn[0]
    logits = joined([item[0] for item in drawn], 1, torch.nan)
    _, draws, means, spreads = zip(*drawn, strict=True)
    return logits, joined_maps(draws, 1), joined_maps(means, 0), joined_maps(spreads, 0)


def joined_maps(maps: Sequence[dict[str, Tensor] | None], dim: int) -> dict[str, Tensor] | None:
    """Maps by site behind one another; None where there are none."""
    present = [item for item in maps if item is not None]
    names = present[0] if present else ()
    return {name: joined([item[name] for item in present], dim, 0.0) for name in names} if present else None


def joined(tensors: Sequence[Tensor], dim: int, fill: float) -> Tensor:
    """Tensors behind one another, shorter ones filled up."""
    sizes = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors), strict=True)]
    filled = []
    for tensor in tensors:
        whole = tensor.new_full([*sizes[:dim], tensor.shape[dim], *sizes[dim + 1 :]], fill)
        whole[tuple(slice(int(size)) for size in tensor.shape)] = tensor
        filled.append(whole)
    return torch.cat(filled, dim=dim)


@dataclass
class AttentionDraws:
    """Gathers attention weights of wanted sites over passes, as draws, or ``streaming`` as running moments."""

    sites: Literal["all"] | Sequence[str] | None
    streaming: bool
    draws: dict[str, list[Tensor]] = field(default_factory=dict)
    moments: dict[str, tuple[int, Tensor, Tensor]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    def add(self, name: str, posterior: SitePosterior, value: Tensor, draws: int) -> None:
        """Takes over a site's drawn values of one pass, ``draws`` of them folded into the batch."""
        self.seen.add(name)
        if self.sites is None or (self.sites != "all" and name not in self.sites):
            return
        weights = carried_weights(value, posterior.mask)
        weights = posterior.weights(carried_log(value)) if weights is None else weights
        weights = weights.unflatten(0, (draws, -1))
        if self.streaming:
            self.moments[name] = _merge(self.moments.get(name), weights)
        else:
            self.draws.setdefault(name, []).append(weights)

    def copy(self) -> Self:
        """The same so far."""
        draws = {name: list(values) for name, values in self.draws.items()}
        return replace(self, draws=draws, moments=dict(self.moments), seen=set(self.seen))

    def check(self, model: object) -> None:
        """Raises ``ValueError`` unless the passes so far met the wanted sites of the model."""
        if self.sites == "all" or self.seen:
            check_sites("posterior_predict", model, self.seen)
        for name in () if self.sites is None or self.sites == "all" else self.sites:
            if name not in self.seen:
                names = ", ".join(sorted(self.seen)) or "none: convert the network first"
                raise ValueError(f"posterior_predict: no attention site {name!r}; the model has {names}")

    def results(self) -> tuple[dict[str, Tensor] | None, dict[str, Tensor] | None, dict[str, Tensor] | None]:
        """Draws, means and standard deviations by site; None for what is not kept."""
        if self.sites is None:
            return None, None, None
        values = self.moments if self.streaming else self.draws
        order = list(values if self.sites == "all" else self.sites)  # that of the pass, or the requested one
        if not self.streaming:
            return {name: torch.cat(self.draws[name]) for name in order}, None, None
        moments = {name: self.moments[name] for name in order}
        mean = {name: moment[1] for name, moment in moments.items()}
        std = {name: (m2 / max(count - 1, 1)).sqrt() for name, (count, _, m2) in moments.items()}
        return None, mean, std


def _merge(moments: tuple[int, Tensor, Tensor] | None, weights: Tensor) -> tuple[int, Tensor, Tensor]:
    """Count, mean and sum of squared deviations of all draws so far (Chan et al. 1979)."""
    count, mean = weights.shape[0], weights.mean(dim=0)
    m2 = (weights - mean).square().sum(dim=0)
    if moments is None:
        return count, mean, m2
    before, old_mean, old_m2 = moments
    total, delta = before + count, mean - old_mean
    return total, old_mean + delta * (count / total), old_m2 + m2 + delta.square() * (before * count / total)


@dataclass(frozen=True)
class _Folding:
    """Passes over one batch with draws folded into it."""

    inputs: dict[str, Tensor]
    keys: set[str]
    rows: int
    chunk: int
    collector: AttentionDraws
    antithetic: bool
    others: AttentionGuide | None = None

    def logits(self, model: Model, seeds: Sequence[int]) -> Tensor:
        """Logits ``[P, B, C]`` of a draw for each seed."""
        guide = _PredictionGuide(model, self.collector, self.others)
        shares = len(seeds) > 1 and self.others is None
        trunk = Trunk(model if shares else None, self.inputs, self.keys, self.rows)
        outputs: list[Tensor] = []
        with ExitStack() as stack:
            with apart(None) if runs_apart() else nullcontext():
                stack.enter_context(trunk.once(min(self.chunk, len(seeds))))
            for start in range(0, len(seeds), self.chunk):
                chunk = seeds[start : start + self.chunk]
                mirrored = [self.antithetic and bool(draw % 2) for draw in range(start, start + len(chunk))]
                guide.begin(chunk, device_of(self.inputs), mirrored)
                folded = repeated_rows(self.inputs, self.keys, len(chunk))
                before = self.collector.copy()
                try:
                    with guide, trunk.folded(len(chunk)):
                        output = predictions("posterior_predict", model, folded, len(chunk) * self.rows)
                except RowsMovedError:  # again, with nothing skipped
                    vars(self.collector).update(vars(before))
                    guide.begin(chunk, device_of(self.inputs), mirrored)
                    with guide:
                        output = predictions("posterior_predict", model, folded, len(chunk) * self.rows)
                outputs.append(output.unflatten(0, (len(chunk), self.rows)))
                if not start:
                    self.collector.check(model)
        logits = torch.cat(outputs)
        if len(seeds) > 1 and not runs_apart() and _equal(logits[:2]) and _equal(logits):
            self._refuse_equal(model, seeds)
        return logits

    def _refuse_equal(self, model: Model, seeds: Sequence[int]) -> None:
        """Refuses a model in which nothing is random, or whose predictions come from no attention site."""
        if not self.collector.seen:
            raise ValueError(
                f"posterior_predict: nothing is random in {network_name(model)}: no attention site announced itself, "
                f"and the {len(seeds)} draws are equal; convert it first, probattn.convert(net, "
                "probattn.BayesianAttention()) (after probattn.models.revert(net), if other methods converted it), or "
                "ask for one answer: num_samples=1 or posterior_expectation"
            )
        guide = _PredictionGuide(model, AttentionDraws("all", streaming=True), self.others)
        guide.begin(seeds[:1], device_of(self.inputs), [False])
        sources = guide.sources = dict[str, Tensor]()
        with torch.inference_mode(False), torch.enable_grad(), guide:
            total = predictions("posterior_predict", model, differentiable(self.inputs), self.rows).sum()
        # Of sites that are connected, single keys, zero weights or rounding make draws equal.
        gradients("posterior_predict", total, sources, f"its {len(seeds)} draws are equal")


def _equal(logits: Tensor) -> bool:
    """Whether draws ``[P, ...]`` differ by rounding alone."""
    size = 1 + logits.nan_to_num(0.0, 0.0, 0.0).abs().max()
    near = (logits - logits[:1]).abs() <= 16 * torch.finfo(logits.dtype).eps * size
    return bool((near | (logits == logits[:1]) | (logits.isnan() & logits[:1].isnan())).all())


def _ensemble_logits(ensemble: ParticleEnsemble, folding: _Folding, seeds: Sequence[int]) -> Tensor:
    """Of each particle its draws ``[P * draws, B, C]``, or its one answer where nothing is latent."""
    if not attention_sites(ensemble):
        folding.collector.check(ensemble)
        return ensemble.outputs(folding.inputs)
    outputs: list[Tensor] = []
    stacks = ensemble.stacks()
    for index in range(ensemble.num_particles):
        rows = {name: stack[index] for name, stack in stacks.items()}
        outputs.append(
            folding.logits(partial(ensemble.call, rows), [draw_seed((s, index), 0) for s in seeds])
        )
    return torch.cat(outputs)


def _particle_logits(model: Model, folding: _Folding, seeds: Sequence[int]) -> Tensor:
    """Of each particle of the layers its draws, or its one answer where nothing is latent: ``[P * draws, B, C]``."""
    count = particle_count(model)
    assert count is not None
    latent = isinstance(model, nn.Module) and attention_sites(model)
    seeds = seeds if latent or folding.others is not None else seeds[:1]
    size = max(1, folding.chunk // count)
    outputs: list[Tensor] = []
    for start in range(0, len(seeds), size):
        chunk = [
            draw_seed((seed, index), 0) for index in range(count) for seed in seeds[start : start + size]
        ]
        with apart(len(chunk) * folding.rows, count):
            outputs.append(replace(folding, chunk=len(chunk)).logits(model, chunk))
    return torch.cat(outputs)


def rows_per_pass(device: torch.device) -> int:
    """Rows that the draws of a pass fill, by default."""
    return CPU_ROWS_PER_PASS if device.type == "cpu" else ROWS_PER_PASS


class _PredictionGuide(AttentionGuide):
    """Draws without what only an objective needs; hands the weights on and forgets them."""

    predicts: ClassVar[bool] = True

    def __init__(self, model: Model, collector: AttentionDraws, others: AttentionGuide | None = None) -> None:
        super().__init__(model)
        self.collector, self._others = collector, others
        self.takes_outputs = collector.sites is None
        self._shared, self._scratch = SharedUpward(), Scratch()
        self._met: set[str] = set()
        self.sources: dict[str, Tensor] | None = None

    def begin(self, seeds: Sequence[int], device: torch.device, mirrored: Sequence[bool]) -> None:
        """Prepares the next pass, of a draw for each seed."""
        self.noise = SeededNoise(seeds, device, mirrored)
        self._apart = (seeds[0], device)
        self.graph_pass = GraphPass(self.noise, with_kl=False) if self.collector.sites is None else None
        self._met.clear()
        self.trace.nodes.clear()

    def _pyro_sample(self, msg: Message) -> None:
        super()._pyro_sample(msg)
        predict_label(msg)
        if self._others is not None and is_other_latent(msg):
            draw_apart(msg, *self._apart)

    def get_posterior(self, name: str, prior: TorchDistributionMixin) -> TorchDistributionMixin | Tensor:
        """Posterior of a latent site that is no attention site, from the guide that the caller gave."""
        if self._others is None:
            return super().get_posterior(name, prior)
        self._others.trace = self.trace  # for ``upstream_value``
        return self._others.get_posterior(name, prior)

    def _draw(self, msg: Message, posterior: SitePosterior) -> None:
        if msg["value"] is None:
            assert isinstance(self.noise, SeededNoise)
            done = isinstance(posterior, AnsweringPosterior) and posterior.uses_up_noise
            # A gradient would need the noise later, and inference mode makes memory that nothing else may write.
            free = done and not torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
            self.noise.scratch = self._scratch if free else None
            msg["value"] = posterior.predict(self.noise, self._shared)

    def _pyro_post_sample(self, msg: Message) -> None:
        posterior = site_posterior(msg)
        if posterior is None:
            super()._pyro_post_sample(msg)
            return
        name = str(msg["name"])
        refuse_second_call("posterior_predict", name, self._met)
        self._met.add(name)
        self.collector.add(name, posterior, cast(Tensor, msg["value"]), self.noise.draws)
        if self.sources is not None:
            msg["value"] = self.sources[name] = cast(Tensor, msg["value"]).detach().requires_grad_()


def check_call(owner: str, model: object) -> None:
    """Refuses what is no model of a whole batch."""
    network = model.model if isinstance(model, ParticleEnsemble) else model
    if isinstance(network, nn.Module):
        refuse_unwrapped(network, owner)
    elif not callable(network) or isinstance(network, type):
        raise TypeError(
            f"{owner}: expected a model, such as probattn.models.Classifier(net), got {network!r}"
        )


def batched_inputs(
    owner: str, batch: Mapping[str, Tensor], batch_keys: Sequence[str] | None, label_name: str
) -> tuple[dict[str, Tensor], set[str], int]:
    """Inputs without the labels, names of those with a row a datum, by default tensors with a dimension, and rows."""
    inputs = {name: value for name, value in batch.items() if name != label_name}
    with_rows = {n: len(value) for n, value in inputs.items() if isinstance(value, Tensor) and value.dim()}
    keys = set(with_rows if batch_keys is None else batch_keys)
    if not keys or keys - with_rows.keys():
        raise ValueError(
            f"{owner}: expected batch_keys among the inputs {sorted(with_rows)}, tensors with a row a datum, got "
            f"{sorted(keys) or described(inputs)}"
        )
    sizes = {name: with_rows[name] for name in sorted(keys)}
    if len(set(sizes.values())) != 1:
        raise ValueError(
            f"{owner}: expected one batch size, got {sizes}; name the batched inputs with batch_keys"
        )
    rows = next(iter(sizes.values()))
    if rows == 0:
        raise ValueError(f"{owner}: expected at least one row, got an empty batch")
    return inputs, keys, rows


def device_of(inputs: Mapping[str, Tensor]) -> torch.device:
    """Where the inputs are."""
    return next(value.device for value in inputs.values() if isinstance(value, Tensor))


def differentiable(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs; tensors made in inference mode, which cannot be saved for a backward pass, as copies."""
    return {n: v.clone() if isinstance(v, Tensor) and v.is_inference() else v for n, v in inputs.items()}


def seed_words(seed: int | Sequence[int]) -> tuple[int, ...]:
    """A seed as a tuple of integers, which differs wherever seeds do."""
    words = [seed] if isinstance(seed, SupportsIndex) else seed
    if not isinstance(words, Iterable) or not all(isinstance(word, SupportsIndex) for word in words):
        raise TypeError(f"posterior_predict: expected a seed >= 0, or a sequence of them, got {seed!r}")
    entropy = [operator.index(word) for word in words]
    if min(entropy, default=0) < 0:
        raise ValueError(f"posterior_predict: expected a seed >= 0, or a sequence of them, got {seed!r}")
    return seed_integers(entropy)


def draw_seed(entropy: Sequence[int], draw: int) -> int:
    """Seed of a draw's generator."""
    # The number of parts is one of them: a seed sequence takes (1,) and (1, 0) for the same.
    state = np.random.SeedSequence([len(entropy), *entropy], spawn_key=(draw,)).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))
