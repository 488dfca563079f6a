"""The guide of attention sites, prior and posterior from one pass; what predictions expect of it and of a model."""

from __future__ import annotations

import logging
import math
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Any, Self, cast

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.guide import GuideMessenger
from pyro.poutine.runtime import Message
from pyro.poutine.trace_struct import Trace
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from probattn.inference.session import derived_seed, preserved_random_state
from probattn.sites.calling import called, output_of
from probattn.sites.fused import try_kernels
from probattn.sites.method import base_of
from probattn.sites.noise import GlobalNoise, Noise
from probattn.sites.posterior import SitePosterior
from probattn.sites.scores import without_cudnn
from probattn.sites.site import INFER_KEY
from probattn.sites.traced import GraphPass
from probattn.sites.upward import LinkedPaths

_LOG = logging.getLogger(__name__)

_IN_ORDER = ("probattn.", "transformers.", "peft.")
_ROW_BY_ROW = ("ForSequenceClassification", "ForTokenClassification", "ForImageClassification")
"""How transformers names networks that predict from a text or an image of its own for each row."""
PREDICTION_KEY = "prediction"
"""A site with ``infer={"prediction": True}`` that is not observed is drawn from the model: a label to predict."""


class AttentionGuide(GuideMessenger):
    r"""Guide that draws the attention weights of each site from their posterior in the model's forward pass.

    The posterior's parameters are parameters of the model, so the guide has none. It works with
    :class:`probattn.inference.AttentionELBO`, ``pyro.infer.TraceMeanField_ELBO`` and ``Trace_ELBO``, which all maximise

    .. math:: \mathcal L = \log p(y \mid x, S) - w \sum_l r_l\, \mathrm{KL}(q(S^l) \,\|\, p(S^l)), \quad S \sim q.

    :math:`r_l` is the factor of the option ``kl_reduction`` of attention call l; w and :math:`r_l` are multiplied into
    the scale of its Pyro site. The objective is the evidence lower bound only if w and all :math:`r_l` are 1, as with
    ``BayesianAttention(kl_reduction="sum")``. The default is the mean over query-key pairs; with Pyro's estimators the
    guide then logs a warning once.

    Args:
        model: the Pyro model, with its handlers (``scale``, ``condition``); Pyro runs it, not the model given to SVI.
        kl_weight: w, >= 0; may be set before each step, to anneal it.
        noise: source of random numbers; torch's global generators by default.

    Raises:
        ValueError: a negative weight.

    Example:
        >>> import pyro, torch, probattn
        >>> mha = probattn.MultiheadAttention(8, 2, batch_first=True)
        >>> guide = AttentionGuide(mha, kl_weight=0.1)
        >>> sorted(guide(*[torch.randn(1, 3, 8)] * 3))
        ['attention']
    """

    def __init__(
        self, model: Callable[..., Any], *, kl_weight: float = 1.0, noise: Noise | None = None
    ) -> None:
        super().__init__(model)
        self.kl_weight = kl_weight
        self.noise: Noise = GlobalNoise() if noise is None else noise
        self.takes_outputs = False
        self.graph_pass: GraphPass | None = None
        self._paths = LinkedPaths()
        self._weights: dict[Any, tuple[Any, ...]] = {}  # with what they are of, whose identity is the key
        self._extracted = 0
        self._logged = False

    def __enter__(self) -> Self:
        """Begins a pass."""
        self._paths.clear()
        self._weights.clear()
        self._extracted = 0
        try_kernels(self.model)
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Ends a pass; refuses one whose graph holds attention modules without their sites."""
        super().__exit__(kind, error, traceback)
        if error is None and self.graph_pass is not None:
            self.graph_pass.check()

    def get_traces(self) -> tuple[Trace, Trace]:
        """Traces of model and guide, as in Pyro's ``GuideMessenger``; logs once if the objective is not the ELBO."""
        self._extracted += 1
        if self._extracted > 1 and not (self.takes_outputs or self._logged):
            self._logged = True
            self._log_reduction()
        return super().get_traces()

    def _log_reduction(self) -> None:
        for name, site in self.trace.nodes.items():
            posterior = site_posterior(site)
            if posterior is not None and posterior.method.kl_reduction != "sum":
                factor = torch.as_tensor(posterior.reduction_factor()).float().mean().item()
                words = (
                    "AttentionGuide: the loss is not the negative evidence lower bound: the KL of site %r (and of "
                    "others) is multiplied by %.3g (kl_reduction=%r); kl_reduction='sum' of BayesianAttention gives it"
                )
                _LOG.warning(words, name, factor, posterior.method.kl_reduction)
                return

    @property
    def kl_weight(self) -> float:
        """Weight w of the KL in the objective."""
        return self._kl_weight

    @kl_weight.setter
    def kl_weight(self, weight: float) -> None:
        if not weight >= 0:
            raise ValueError(f"AttentionGuide.kl_weight: expected a number >= 0, got {weight}")
        self._kl_weight = float(weight)

    @contextmanager
    def outputs_alone(self) -> Iterator[None]:
        """Context in which sites compute only outputs and KLs, without storing the drawn weights."""
        self.takes_outputs, self.graph_pass = True, GraphPass(self.noise)
        try:
            yield
        finally:
            self.takes_outputs, self.graph_pass = False, None

    def _pyro_sample(self, msg: Message) -> None:
        infer, posterior = cast(dict[str, Any], msg["infer"]), site_posterior(msg)
        if msg["is_observed"] or site_is_subsample(msg):
            return
        if posterior is not None:
            self._answer(msg, infer, posterior)
        elif infer.get(PREDICTION_KEY):
            infer["prior"] = msg["fn"]
        else:
            super()._pyro_sample(msg)

    def _answer(self, msg: Message, infer: dict[str, Any], posterior: SitePosterior) -> None:
        prior = cast(TorchDistributionMixin, msg["fn"])
        batch_shape = posterior.batch_shape[:1]
        if batch_shape != prior.batch_shape:
            raise ValueError(
                f"site {msg['name']!r}: the call has batch shape {list(batch_shape)}, its plates "
                f"{list(prior.batch_shape)}; put the call into one plate over its batch dimension"
            )
        self._paths.add(str(msg["name"]), posterior.call)
        infer["prior"] = prior
        self._draw(msg, posterior)

    def _draw(self, msg: Message, posterior: SitePosterior) -> None:
        if msg["value"] is None:
            msg["value"] = posterior.draw(self.noise)
        msg["fn"] = posterior.event()
        msg["scale"] = self._weight(msg["scale"], posterior.reduction_factor())

    def _weight(self, scale: Tensor | float, factor: Tensor | float) -> Tensor | float:
        """Weight of a site's KL; one tensor for all sites of a pass that share its factors."""
        key = (scale if isinstance(scale, float) else id(scale), id(factor), self.kl_weight)
        if key not in self._weights:
            self._weights[key] = (scale, factor, scale * (self.kl_weight * factor))
        return self._weights[key][-1]

    def _pyro_post_sample(self, msg: Message) -> None:
        # Plates around the guide are known here, not before.
        outer = next((frame.name for frame in msg["cond_indep_stack"] if (frame.dim or 0) < -1), None)
        if outer is not None and site_posterior(msg) is not None:
            raise ValueError(
                f"site {msg['name']!r}: the plate {outer!r} would share the one draw that a forward pass makes for "
                "each datum; leave vectorize_particles of the ELBO, or parallel of Predictive, False"
            )
        super()._pyro_post_sample(msg)

    def get_posterior(self, name: str, prior: TorchDistributionMixin) -> TorchDistributionMixin | Tensor:
        """Posterior of a latent variable other than attention; override it for a model with such variables.

        A subclass of one of Pyro's automatic guides has such posteriors:
        ``class Guide(pyro.infer.autoguide.AutoNormalMessenger, AttentionGuide)``.

        Raises:
            ValueError: always, in this class.
        """
        raise ValueError(
            f"AttentionGuide: the latent site {name!r} is not an attention site; observe it, mark a value to predict "
            f'with infer={{"{PREDICTION_KEY}": True}}, or override AttentionGuide.get_posterior (class '
            "Guide(AutoNormalMessenger, AttentionGuide) does, and posterior_predict(guide, batch) takes it)"
        )


def predictions(owner: str, model: Any, inputs: Mapping[str, Any], rows: int | None = None) -> Tensor:
    """A model's predictions ``[R, ..., C]`` for a batch (of R rows), finite in each row; numbers may be ``[R]``."""
    logits = output_of(owner, called(owner, model, inputs))
    alone = logits.dim() == 1 and rows in (None, len(logits))
    logits = logits.unsqueeze(-1) if alone and getattr(model, "link", None) == "identity" else logits
    if logits.dim() < 2 or rows not in (None, len(logits)) or not logits.is_floating_point():
        advice = "; of one number a row set the model's attribute link to 'identity'" if alone else ""
        kind = "" if logits.is_floating_point() else f" of {logits.dtype}; return logits, not classes"
        raise ValueError(
            f"{owner}: expected predictions [{rows or 'B'}, ..., C], floats with a row for each of the batch's, got "
            f"{list(logits.shape)}{kind}{advice}"
        )
    # NaN and infinity stay in a maximum; of several positions some may be those of padding.
    best = logits.detach().amax(dim=-1).view(len(logits), -1) if logits.numel() else logits.new_zeros(1, 1)
    wrong = (~(best.abs() < torch.inf).any(dim=1)).nonzero()
    if len(wrong):
        raise ValueError(
            f"{owner}: expected finite predictions, got NaN or infinity in {len(wrong)} of {len(logits)} rows, first "
            f"in row {int(wrong[0])}; check the network's weights, its inputs and its masks"
        )
    return logits


def gradients(
    owner: str, number: Tensor, sources: Mapping[str, Tensor], advice: str, *, retain: bool = False
) -> dict[str, Tensor]:
    """Derivatives of a number by a tensor of each site, with a warning for sites that it does not come from.

    ``ValueError`` where it comes from none of them.
    """
    values, apart = list(sources.values()), list(sources)
    if number.requires_grad:
        grads = torch.autograd.grad(number, values, retain_graph=retain, allow_unused=True)
        apart = [name for name, grad in zip(sources, grads, strict=True) if grad is None]
    if len(apart) == len(sources):
        raise ValueError(
            f"{owner}: the prediction or target has no derivative by the attention weights of {', '.join(apart)}: the "
            "model leaves their output out, detaches it or computes under torch.no_grad, or was loaded in inference "
            f"mode; {advice}"
        )
    if apart:
        warnings.warn(
            f"{owner}: the output of {', '.join(apart)} reaches no prediction and has no effect",
            stacklevel=3,
        )
    by_site = zip(sources, grads, strict=True)
    return {name: torch.zeros_like(sources[name]) if grad is None else grad for name, grad in by_site}


def differentiated(model: object) -> AbstractContextManager[None]:
    """Context of a pass that is differentiated: without cuDNN where the network is recurrent."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return without_cudnn() if any(isinstance(one, nn.RNNBase) for one in modules) else nullcontext()


def _is_in_order(model: Any) -> bool:
    """Whether a model is a program of this package around a network of transformers or peft."""
    kinds = [type(one).__module__ for one in (model, getattr(model, "net", model))]
    return all(kind.startswith(_IN_ORDER) for kind in kinds)


def has_rows_apart(model: Any) -> bool:
    """Whether a model is known to predict every row from that row alone; False where only a pass tells."""
    net = getattr(model, "net", model)
    base = base_of(net)
    if not (_is_in_order(model) and type(base).__name__.endswith(_ROW_BY_ROW)):
        return False
    modules = [base, *net.modules()]
    return all(
        type(one).__module__.startswith((*_IN_ORDER, "torch.nn.")) and "forward" not in vars(one)
        for one in modules
    )


def moved_rows(model: Any, numbers: Tensor, sources: Mapping[str, Tensor]) -> list[str]:
    """Sites ``[... R m, ...]`` of m calls a row that have numbers ``[..., R]`` depend on other rows than theirs.

    Derivatives of weighted numbers have to be weighted derivatives. Networks of transformers keep their rows.
    """
    rows = numbers.shape[-1]
    if _is_in_order(model) or rows < 2 or not numbers.requires_grad:
        return []
    numbered = torch.arange(rows, device=numbers.device, dtype=torch.float64)
    weights = 1 + numbered * math.sqrt(1.25) % 1  # far from one another
    totals, values = (numbers.sum(), (numbers * weights.to(numbers)).sum()), list(sources.values())
    grads = [torch.autograd.grad(total, values, retain_graph=True, allow_unused=True) for total in totals]
    moved, eps = [], max(torch.finfo(dtype).eps for dtype in _computed_in(model, numbers))
    for name, *pair in zip(sources, *grads, strict=True):
        if pair[0] is not None:
            plain, weighted = (grad.reshape(*numbers.shape, -1).double() for grad in pair)
            gap = (weighted - weights[:, None] * plain).abs().amax(dim=-1)
            size = weighted.abs().amax(dim=-1)
            moved += [name] * bool((gap > eps**0.5 * size + min(100 * eps, 0.1) * size.max()).any())
    return moved


def _computed_in(model: Any, numbers: Tensor) -> set[torch.dtype]:
    """The floating types of a computation: of the numbers, the model's parameters, and autocast."""
    kind = numbers.device.type
    parameters = model.parameters() if isinstance(model, nn.Module) else ()
    cast_to = [torch.get_autocast_dtype(kind)] if torch.is_autocast_enabled(kind) else []
    return {numbers.dtype, *cast_to, *(item.dtype for item in parameters if item.is_floating_point())}


def site_posterior(site: Mapping[str, object]) -> SitePosterior | None:
    """The posterior of an attention site, from its message or its place in a trace; None for any other site."""
    infer: Any = site.get("infer") or {}
    posterior = infer.get(INFER_KEY)
    return posterior if isinstance(posterior, SitePosterior) else None


def refuse_second_call(owner: str, name: str, calls: Collection[str]) -> None:
    """Refuses an attention call whose name is among those of earlier ``calls`` of the pass."""
    if name in calls:
        raise RuntimeError(
            f"{owner}: two attention calls of one pass are named {name!r}; give each a name of its own "
            "(probattn.link(network) names layers; one layer that runs twice has one name, so call "
            "probattn.attention with two)"
        )


def refuse_other_parameter(owner: str, site: Mapping[str, Any]) -> None:
    """Refuses a parameter that Pyro's store has another one for, which Pyro would train instead."""
    if site["type"] != "param" or not isinstance(site["args"][-1], nn.Parameter):
        return
    if site["value"].unconstrained() is not site["args"][-1]:
        raise RuntimeError(
            f"{owner}: Pyro's parameter store has another {site['name']!r} than the model, of an earlier network, "
            "which would be trained instead; call pyro.clear_param_store() before the first step"
        )


def is_other_latent(msg: Message) -> bool:
    """Whether a site without a value is latent, but neither attention nor a label to predict."""
    named = site_posterior(msg) is not None or (msg["infer"] or {}).get(PREDICTION_KEY)
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
