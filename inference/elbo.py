"""The evidence lower bound of models with attention sites, with its parts kept apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, NamedTuple

import pyro
import torch
from pyro.distributions import Delta, Unit
from pyro.distributions.util import scale_and_mask
from pyro.infer import ELBO, TraceMeanField_ELBO
from pyro.infer.elbo import ELBOModule
from pyro.poutine.indep_messenger import CondIndepStackFrame
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.distributions import Categorical, kl_divergence

from probattn.distributions import LogNormal, Weibull
from probattn.distributions.log_space import computing_dtype
from probattn.host import on_cpu
from probattn.inference.configuration import refuse_sharded
from probattn.inference.guide import PREDICTION_KEY, AttentionGuide, refuse_other_parameter, site_posterior
from probattn.inference.particle_update import particle_sets
from probattn.inference.session import frozen_parameters
from probattn.sites.handlers import SHARED_STATE, DeferredFactor, compute_together
from probattn.sites.masks import AttentionMask
from probattn.sites.particle_layers import (
    batch_rows,
    bootstrap_weights,
    by_particle,
    particle_count,
    particle_record,
)
from probattn.sites.posterior import SitePosterior


class ELBOTerms(NamedTuple):
    """Parts of the loss per datum: sums over the batch, scaled by Pyro's plates and divided by the size of the data.

    Attributes:
        loss: ``kl - log_likelihood - factors``, which training minimises.
        log_likelihood: log density of the observed variables.
        kl: KL of posterior from prior, multiplied by the factors of ``kl_reduction`` and by ``kl_weight``.
        kl_nats: the same KL without these multipliers, summed over sites, heads and query-key pairs, in nats.
        factors: sum of the ``pyro.factor`` terms, such as the divergence of alignment attention with negative sign.
    """

    loss: Tensor
    log_likelihood: Tensor
    kl: Tensor
    kl_nats: Tensor
    factors: Tensor


class SiteTerms(NamedTuple):
    """One site's share of a step: KL in nats, plain and reduced; what diagnostics need of its posterior."""

    kl_nats: Tensor
    kl_reduced: Tensor
    relative: Callable[[], Weibull | LogNormal]
    mask: AttentionMask | None


class AttentionELBO(TraceMeanField_ELBO):
    """``TraceMeanField_ELBO`` that computes the analytic KL of attention sites without their log densities.

    ``pyro.infer.TraceMeanField_ELBO`` gives the same value and gradient, but also computes the log densities of all
    drawn weights, which the analytic KL does not need. Called with a model and an :class:`AttentionGuide` it returns an
    :class:`AttentionELBOModule`. With ``pyro.infer.SVI`` it behaves as any Pyro ELBO: a sum over data, not divided by
    their number. Each of ``num_particles`` needs a forward pass; ``vectorize_particles`` must be False.

    Example:
        >>> import torch, probattn
        >>> import pyro.distributions as dist
        >>> mha = probattn.MultiheadAttention(4, 2, batch_first=True)
        >>> def model(x, y):
        ...     with pyro.plate("data", len(x)):
        ...         output, _ = mha(x, x, x)
        ...         pyro.sample("y", dist.Normal(output, 1.0).to_event(2), obs=y)
        >>> x = torch.randn(3, 5, 4)
        >>> terms = AttentionELBO()(model, AttentionGuide(model))(x, x)
        >>> bool(torch.isclose(terms.loss, terms.kl - terms.log_likelihood))
        True
    """

    moves_particles: ClassVar[bool] = False
    """Whether the caller replaces the gradients of repulsive particles by directions, as :class:`HeadSVGD` does."""
    _model: Any = None
    _count = 1
    _trains = False

    def __call__(self, model: Callable[..., Any], guide: AttentionGuide) -> AttentionELBOModule:
        """Binds model and guide into a module that returns :class:`ELBOTerms`."""
        return AttentionELBOModule(model, guide, self)

    def _get_trace(
        self, model: Callable[..., Any], guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Trace, Trace]:
        if not isinstance(guide, AttentionGuide):
            traces: tuple[Trace, Trace] = super()._get_trace(model, guide, args, kwargs)
            return traces
        self._model, self._count = model, particle_count(model) or 1
        with _by_particle(model, args) as of_all, guide.outputs_alone():
            guide(*of_all, **kwargs)
            model_trace, guide_trace = guide.get_traces()
        guide.trace.nodes.clear()  # its maps would live until the next pass, through the backward one
        _compute_log_prob(model_trace)
        require_data(model_trace)
        _weigh(model_trace, model, args)
        if self._count > 1 and not torch.is_grad_enabled():
            _mix(model_trace, self._count)
        return model_trace, guide_trace

    def _differentiable_loss_particle(self, model_trace: Trace, guide_trace: Trace) -> tuple[float, Tensor]:
        layers = particle_record(self._model)
        moved = isinstance(self._model, nn.Module) and particle_sets(self._model)
        if (moved or (layers is not None and layers[1].method.couples)) and not self.moves_particles:
            raise ValueError(
                "AttentionELBO: under pyro.infer.SVI the repulsion of the model's particles would be left out; train "
                "with probattn.inference.SVGDDriver, or one set of particles with HeadSVGD"
            )
        for site in [*model_trace.nodes.values(), *guide_trace.nodes.values()] if self._trains else ():
            refuse_other_parameter(type(self).__name__, site)
        terms, _ = trace_terms(model_trace, guide_trace)
        loss = terms.loss * self.share(model_trace)
        return loss.item(), loss

    def loss_and_grads(self, model: Callable[..., Any], guide: Any, *args: Any, **kwargs: Any) -> float:
        """The loss, and gradients of Pyro's parameters, as in Pyro; ``RuntimeError`` if the model has other ones."""
        self._trains = True
        try:
            loss: float = super().loss_and_grads(model, guide, *args, **kwargs)
            return loss
        finally:
            self._trains = False

    def share(self, trace: Trace) -> float:
        """Factor of the loss with P layer particles: 1 / P if the plate of rows is not scaled to the data, else 1."""
        plate, declared = data_plate(trace), getattr(self._model, "num_data", None)
        unscaled = plate is None or (declared is None and plate.full_size in (None, plate.size))
        return 1 / self._count if unscaled else 1.0


def _compute_log_prob(trace: Trace) -> None:
    """Log densities of observed sites; on an accelerator without Pyro's warnings of a NaN, which wait for it."""
    functions = [site.get("fn") for site in trace.nodes.values()]
    compute_together([one for one in functions if isinstance(one, DeferredFactor)])
    for site in trace.nodes.values():
        if site["type"] == "sample" and site["is_observed"] and not on_cpu(site["value"]):
            with suppress(ValueError):  # which Pyro raises again below, with the shapes
                density = site["fn"].log_prob(site["value"], *site["args"], **site["kwargs"])
                log_prob = scale_and_mask(density, site["scale"], site["mask"])
                site |= {"unscaled_log_prob": density, "log_prob": log_prob, "log_prob_sum": log_prob.sum()}
    trace.compute_log_prob(site_filter=lambda _, site: site["is_observed"])


@contextmanager
def _by_particle(model: Callable[..., Any], args: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The arguments of a model, whose batch has its rows for each particle where layers are particles."""
    if particle_count(model) is None:
        yield args
    elif len(args) == 1 and isinstance(args[0], Mapping):
        with frozen_parameters(), by_particle(model, args[0], scale=True) as batch:
            yield (batch,)
    else:
        got = ", ".join(type(item).__name__ for item in args) or "nothing"
        raise TypeError(
            f"AttentionELBO: expected a model of one batch, a mapping of tensors, since its layers are particles, got "
            f"{got}"
        )


def _weigh(trace: Trace, model: Any, args: tuple[Any, ...]) -> None:
    """Weighs observed rows for each particle of a model, where its method asks for bootstrap weights."""
    present = particle_record(model)
    if present is None or not present[1].method.bootstrap or not present[0].training:
        return
    weights = bootstrap_weights(present[1].method, args[0], batch_rows(args[0])).flatten()
    for name, site in observed_sites(trace, factors=False).items():
        if not site_is_subsample(site):
            if site["log_prob"].shape != weights.shape:
                raise ValueError(
                    f"ParticleLayers.bootstrap: expected one label a row at {name!r}, {list(weights.shape)}, got "
                    f"{list(site['log_prob'].shape)}; set bootstrap=False"
                )
            site["log_prob_sum"] = (site["log_prob"] * weights.to(site["log_prob"])).sum()


def _mix(trace: Trace, count: int) -> None:
    """Gives observed rows of particles the likelihood of their mixture, which is what the network answers with."""
    plate = data_plate(trace)
    for site in observed_sites(trace, factors=False).values():
        if plate not in site["cond_indep_stack"]:
            continue
        assert plate is not None
        assert plate.dim is not None
        rows = site["unscaled_log_prob"].unflatten(plate.dim, (count, -1))
        mixed = rows.logsumexp(plate.dim - 1, keepdim=True) - math.log(count)
        log_prob = scale_and_mask(
            mixed.expand_as(rows).flatten(plate.dim - 1, plate.dim), site["scale"], site["mask"]
        )
        site["log_prob_sum"] = log_prob.sum()


class AttentionELBOModule(ELBOModule):
    """A model, its guide and the ELBO as one ``torch.nn.Module``; a call returns the parts of the loss.

    Args:
        model: the Pyro model; if it is an ``nn.Module``, its parameters are parameters of this module.
        guide: the guide.
        elbo: the estimator; the terms are averaged over its ``num_particles`` draws.
    """

    def __init__(self, model: Callable[..., Any], guide: Callable[..., Any], elbo: ELBO) -> None:
        nn.Module.__init__(self)
        self.model = model
        self.guide = guide
        self.elbo = elbo
        self._sites: dict[str, SiteTerms] = {}
        self._size = 1
        self.summed = False  # whether the last program had no plate, so that its terms are sums
        # Pyro's global store is keyed by name: two models with the same names would share entries.
        self._parameters_seen: Any = None

    @_disable_dynamo  # Pyro's handlers cannot be a part of a compiled graph; compile the network
    def forward(self, *args: Any, **kwargs: Any) -> ELBOTerms:
        """Runs the model ``elbo.num_particles`` times and returns the terms per datum; backpropagate ``terms.loss``.

        Raises:
            ValueError: no observed site or factor in the model; a latent site not in the guide; or sharded parameters.
        """
        refuse_sharded(self)
        with SHARED_STATE.changed() as changes:
            store = pyro.get_param_store()
            self._parameters_seen = changes.enter_context(store.scope(self._parameters_seen))
            return self.terms(*args, **kwargs)

    def terms(self, *args: Any, **kwargs: Any) -> ELBOTerms:
        """Computes the terms as :meth:`forward` does, but in Pyro's global parameter store, not this module's."""
        self._sites = {}
        draws: list[ELBOTerms] = []
        layers = particle_record(self.model)
        for model_trace, guide_trace in self.elbo._get_traces(self.model, self.guide, args, kwargs):
            self._refuse_untrained(model_trace, guide_trace)
            self.summed = data_plate(model_trace) is None
            without_plate = particle_count(self.model) or 1  # a sum over the rows of all particles
            self._size = without_plate if self.summed else data_size(model_trace)
            terms, self._sites = trace_terms(model_trace, guide_trace, self._size)
            draws.append(terms)
        several = len(draws) > 1
        means = ELBOTerms(*(torch.stack(v).mean() for v in zip(*draws, strict=True))) if several else draws[0]
        if layers is not None:
            layers[1].scale.watch(means.loss)
        return means

    def _refuse_untrained(self, *traces: Trace) -> None:
        """Refuses values of ``pyro.param`` that are no module's parameters, which no optimiser would have."""
        sites = [item for trace in traces for item in trace.nodes.items() if item[1]["type"] == "param"]
        trained = {id(parameter) for parameter in self.parameters()} if sites else set()
        for name, site in sites:
            value = getattr(site["value"], "unconstrained", lambda value=site["value"]: value)()
            if id(value) not in trained and not isinstance(value, nn.Parameter):
                raise ValueError(
                    f"AttentionELBO: expected parameters of the model or the guide, got pyro.param({name!r}), which no "
                    "optimiser would train; make it a pyro.nn.PyroParam of a PyroModule, or train with pyro.infer.SVI"
                )

    def diagnostics(self) -> dict[str, dict[str, float]]:
        """Statistics of the posterior in the last call, by site.

        They are ``kl_nats`` (KL per datum), ``kl_reduced`` (KL times the factor of ``kl_reduction``), ``concentration``
        (mean k over valid query-key pairs; Weibull only) and ``cv`` (mean over these pairs of standard deviation over
        mean of S). A cv near 0 means a collapsed posterior: its draws hardly differ. With activation checkpointing
        BABN with its default options has ``concentration`` and ``cv`` of the first datum of the batch.
        """
        return {name: _site_diagnostics(site, self._size) for name, site in self._sites.items()}


def _total(values: Sequence[Tensor]) -> Tensor | float:
    """The sum of numbers, in one operation where they are of one type."""
    alike = len({(value.dtype, value.device) for value in values}) == 1
    return torch.stack(list(values)).sum() if alike else sum(values)


def trace_terms(
    model_trace: Trace, guide_trace: Trace, size: float = 1
) -> tuple[ELBOTerms, dict[str, SiteTerms]]:
    """The objective's parts from a pair of traces, divided by ``size``, and the attention sites among them."""
    log_likelihood: Tensor | float = 0.0
    factors: list[Tensor] = []
    kl: Tensor | float = 0.0
    calls: list[_Call] = []
    for name, site in model_trace.nodes.items():
        if site["type"] != "sample" or site_is_subsample(site):
            continue
        if site["is_observed"]:
            if isinstance(site["fn"], Unit):
                factors.append(site["log_prob_sum"])
            else:
                log_likelihood = log_likelihood + site["log_prob_sum"]
            continue
        guide_site = guide_trace.nodes[name]
        posterior = site_posterior(site)
        if posterior is not None:
            calls.append(_call(name, posterior, guide_site))
        elif not site["infer"].get(PREDICTION_KEY):
            kl = kl + _divergence(name, site, guide_site).sum()
    kl_nats: Tensor | float = 0.0
    sites: dict[str, SiteTerms] = {}
    for alike in _alike(calls):
        weighted, plain, reduced = _sums(alike)
        kl, kl_nats = kl + weighted, kl_nats + plain.sum()
        for call, nats, share in zip(alike, plain, reduced, strict=True):
            sites[call.name] = SiteTerms(nats, share, call.posterior.relative(), call.posterior.mask)
    factor = _total(factors)
    # What a model lacks is a number, which no operation of a device is spent on.
    loss = kl - log_likelihood if isinstance(kl, Tensor) else -log_likelihood
    loss = loss - factor if isinstance(factor, Tensor) else loss
    loss = loss.to(computing_dtype(loss)) if isinstance(loss, Tensor) else loss
    terms = (loss, log_likelihood, kl, kl_nats, factor)
    reference = next((term for term in terms if isinstance(term, Tensor)), torch.as_tensor(0.0))
    divided = (torch.as_tensor(term / size, device=reference.device) for term in terms)
    return ELBOTerms(*divided), {call.name: sites[call.name] for call in calls}


class _Call(NamedTuple):
    """One attention call: its KL ``[B]`` in nats, and what weighs it: in the objective, its plates, its reduction."""

    name: str
    posterior: SitePosterior
    nats: Tensor
    scale: Tensor | float
    plain: float
    factor: Tensor | float
    mask: Any


def _call(name: str, posterior: SitePosterior, guide_site: dict[str, Any]) -> _Call:
    nats = posterior.kl()
    if len(nats) > 1 and not any(frame.vectorized for frame in guide_site["cond_indep_stack"]):
        raise ValueError(
            f"site {name!r}: expected the call in the plate of its {len(nats)} data, got it outside all plates, where "
            "a plate's subsampling would scale the likelihood and not the KL; put it into "
            'pyro.plate("data", ...)'
        )
    frames = (frame for frame in guide_site["cond_indep_stack"] if frame.full_size and frame.size)
    plain = math.prod((frame.full_size / frame.size for frame in frames), start=1.0)
    factor = posterior.reduction_factor()
    return _Call(name, posterior, nats, guide_site["scale"], plain, factor, guide_site["mask"])


def _alike(calls: list[_Call]) -> Iterator[list[_Call]]:
    """Calls whose sums are those of one tensor: of the same rows, weights and factors."""
    groups: dict[Any, list[_Call]] = {}
    for call in calls:
        weights = (call.scale, call.factor, call.mask)
        same = [item if isinstance(item, float) else id(item) for item in weights]
        key = (*same, call.plain, call.nats.shape, call.nats.dtype, call.nats.device)
        groups.setdefault(key, []).append(call)
    yield from groups.values()


def _sums(calls: list[_Call]) -> tuple[Tensor, Tensor, Tensor]:
    """The KL of such calls in the objective, ``[]``, and by call the KL in nats, plain and reduced, ``[L]``."""
    first, nats = calls[0], torch.stack([call.nats for call in calls])
    weighted = scale_and_mask(nats, first.scale, first.mask).sum()
    plain = scale_and_mask(nats.detach(), first.plain, first.mask)
    return weighted, plain.sum(dim=1), (plain * first.factor).sum(dim=1)


def _divergence(name: str, prior: dict[str, Any], posterior: dict[str, Any]) -> Tensor:
    """KL of a latent site that is no attention site, of its draw where there is no closed form."""
    law, value = posterior["fn"], posterior["value"]
    if not law.has_rsample and torch.is_grad_enabled() and law.log_prob(value).requires_grad:
        raise ValueError(
            f"AttentionELBO: the site {name!r} has draws without a gradient, of {law}, by which the likelihood moves "
            "its posterior; pyro.infer.TraceGraph_ELBO estimates that gradient, TraceEnum_ELBO with config_enumerate "
            "sums over the values"
        )
    divergence = site_divergence(prior, posterior)
    if divergence is not None:
        return divergence
    ratio = posterior["fn"].log_prob(value) - prior["fn"].log_prob(value)
    drawn: Tensor = scale_and_mask(ratio, posterior["scale"], posterior["mask"])
    return drawn


def site_divergence(prior: dict[str, Any], posterior: dict[str, Any]) -> Tensor | None:
    """KL of a latent site, elementwise, scaled and masked as in the guide; None where no closed form is registered."""
    q, p = posterior["fn"], prior["fn"]
    if isinstance(q, Categorical) and isinstance(p, Categorical):
        divergence = _categorical_divergence(q, p)
    else:
        try:
            divergence = kl_divergence(q, p)
        # Nothing is missing here: torch raises it for a pair without a closed form, and callers draw the divergence.
        except NotImplementedError:
            return None
    # A number, 0, where a law is masked out by mask(False).
    return torch.as_tensor(scale_and_mask(divergence, posterior["scale"], posterior["mask"]))


def _categorical_divergence(q: Categorical, p: Categorical) -> Tensor:
    """``kl_divergence(q, p)``, infinite only where q is positive and p forbids it, not where p underflows."""
    impossible = (p.probs == 0) & (p.logits.exp() > 0)
    ratio = (q.logits - p.logits).masked_fill(impossible, torch.inf).masked_fill(q.probs == 0, 0)
    return (q.probs * ratio).sum(dim=-1)


def observed_sites(trace: Trace, *, factors: bool) -> dict[str, dict[str, Any]]:
    """Observed sites of a trace by name: its ``pyro.factor`` terms, or all others."""
    samples = {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}
    observed = {name: site for name, site in samples.items() if site["is_observed"]}
    return {name: site for name, site in observed.items() if isinstance(site["fn"], Unit) == factors}


def data_size(trace: Trace) -> int:
    """Full size of the data plate; 1 without plates."""
    plate = data_plate(trace)
    return 1 if plate is None else int(plate.full_size or plate.size)


def data_plate(trace: Trace) -> CondIndepStackFrame | None:
    """The plate of attention and observed sites in the last dimension; else one of observed sites; None without plates.

    Of the plates of observed sites it is the first subsampled one, else the outermost that is vectorised, else the
    outermost.
    """
    samples = [site for site in trace.nodes.values() if site["type"] == "sample" and site["cond_indep_stack"]]
    frames = [
        frame
        for site in samples
        if site["is_observed"] and not isinstance(site["fn"], Delta)
        for frame in site["cond_indep_stack"]
    ]
    vectorised = [frame for frame in frames if frame.dim is not None]
    subsampled = [frame for frame in vectorised if frame.full_size not in (None, frame.size)]
    shared = {frame.name for frame in frames}
    of_attention = (frame for site in samples if site_posterior(site) for frame in site["cond_indep_stack"])
    batch = next((frame for frame in of_attention if frame.dim == -1 and frame.name in shared), None)
    return batch or next(iter([*subsampled, *vectorised, *frames]), None)


def require_data(trace: Trace) -> None:
    """Refuses a program that observes nothing, or a value to predict in place of data."""
    samples = [site for site in trace.nodes.values() if site["type"] == "sample"]
    for site in samples:
        if not site["is_observed"] and site["infer"].get(PREDICTION_KEY):
            raise ValueError(
                f"AttentionELBO: the site {site['name']!r} is not observed; give its labels to train or evaluate"
            )
    if not any(site["is_observed"] and not site_is_subsample(site) for site in samples):
        raise ValueError("AttentionELBO: expected an observed site or a factor in the model, found none")


@torch.no_grad()
def _site_diagnostics(site: SiteTerms, size: int) -> dict[str, float]:
    distribution, mask = site.relative(), site.mask

    def mean(values: Tensor) -> float:
        """Over valid pairs."""
        if mask is None or values.numel() == 1:
            return values.mean().item()
        present = mask.first()[1] if len(values) < len(mask.valid) else mask
        valid = present.pair_valid.expand(distribution.batch_shape)
        return (torch.where(valid, values, 0.0).sum() / valid.sum().clamp_min(1)).item()

    report = {"kl_nats": site.kl_nats.item() / size, "kl_reduced": site.kl_reduced.item() / size}
    report["cv"] = mean(distribution.stddev / distribution.mean)
    if isinstance(distribution, Weibull):
        report["concentration"] = mean(distribution.concentration)
    return report
