"""Heads of a network, or its layers, as particles of Pyro's own engine of Stein variational gradient descent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast, get_args

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.infer import SVGD
from pyro.infer.svgd import SteinKernel
from pyro.optim import PyroOptim
from pyro.poutine.runtime import Message
from pyro.poutine.trace_struct import Trace
from torch import Tensor, nn

from probattn.checks import check_instance, shortened
from probattn.first_order import with_gradients
from probattn.inference.elbo import AttentionELBO, data_plate, data_size
from probattn.inference.guide import AttentionGuide, refuse_other_parameter
from probattn.inference.particle_update import ParticleSet, particle_sets
from probattn.inference.session import frozen_parameters
from probattn.particles import HeadSlices, MarginalRBF, PyroKernel
from probattn.particles.kernels import Mode, WholeVectorKernel, check_kernel_gradient
from probattn.sites.repulsive import ParticleOptions

PARAMETER = "svgd_particles"
"""The name in Pyro's store under which its engine finds particles."""


class HeadSVGD(SVGD):
    r"""``pyro.infer.SVGD`` whose particles are attention heads or layers of a network, with Pyro's method ``step``.

    Particles are the M heads of one projection of one attention call (:class:`probattn.RepulsiveAttention`, An et al.
    2020), or M copies of a network's last layers (:class:`probattn.ParticleLayers`). A step runs the model once; the
    optimiser gets as gradient of particle i (Liu and Wang 2016)

    .. math:: -\phi_i = \frac1M \sum_{j=1}^M \left[\kappa(\theta_j, \theta_i) \nabla U(\theta_j)
        - N a\, \nabla_{\theta_j} \kappa(\theta_j, \theta_i)\right], \qquad U = N u + \frac{|\theta|^2}{2 \sigma^2},

    N times the gradient that :class:`HeadParticles` makes with step size 1. Here u is the loss of
    :class:`AttentionELBO`, a mean over N data (the rows of the batch, or ``num_data`` of the model); a and
    :math:`\sigma` are ``repulsion`` and ``prior`` of the network's method; a = 1 / N is ``pyro.infer.SVGD``. All heads
    share one likelihood; each layer particle has its own.

    After a step the particles are the weights of the network. Other parameters that the model registers with
    ``pyro.param``, as a ``PyroModule`` does, are trained by the same optimiser, unless ``requires_grad`` is False.
    Latent attention is drawn from its posterior, and its KL is part of u. Kernel, step size and seed of the method are
    not used. Only :class:`SVGDDriver` trains several projections and has noise ("spos", "sgld"), accumulated gradients,
    records and resumed runs.

    Args:
        model: the Pyro model, an ``nn.Module`` with a converted network, such as ``probattn.models.Classifier(net)``.
        kernel: a kernel of :mod:`probattn.particles` or Pyro that returns values and gradients as Pyro's kernels do.
        optim: an optimiser of ``pyro.optim``. U is a sum over data, so SGD needs 1 / N of its usual learning rate.
        mode: "multivariate" or "univariate". None: the mode of the kernel of :mod:`probattn.particles`; "univariate"
            for Pyro's kernels, as in Pyro.

    Raises:
        TypeError: the model is not an ``nn.Module``, the kernel has no such result (``SlicedRBF``), or the optimiser is
            not one of Pyro.
        ValueError: the model has no set of particles, several sets, or only one particle; its sampler is not "svgd";
            its heads have ``smoothing=False``; or the kernel does not have this mode.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> import probattn
        >>> from probattn.models import Classifier, convert
        >>> from probattn.particles import MedianRBF
        >>> size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        >>> net = BertForSequenceClassification(BertConfig(vocab_size=9, **size))
        >>> model = Classifier(convert(net, probattn.RepulsiveAttention(projections="query")))
        >>> engine = HeadSVGD(model, MedianRBF(), pyro.optim.Adam({"lr": 1e-3}))
        >>> list(engine.step({"input_ids": torch.randint(1, 9, (8, 4)), "labels": torch.arange(8) % 2}))
        ['bert.encoder.layer.0.attention.self.query']
        >>> [list(heads.shape) for heads in engine.get_named_particles().values()]
        [[2, 32]]
    """

    def __init__(
        self, model: nn.Module, kernel: SteinKernel, optim: PyroOptim, mode: Mode | None = None
    ) -> None:
        self._name, self._method, self._set = _one_set(model)
        form = "a kernel of Pyro's form, such as MedianRBF() of probattn.particles; others are for SVGDDriver"
        check_instance("HeadSVGD", "kernel", kernel, SteinKernel, form)
        check_instance("HeadSVGD", "optim", optim, PyroOptim, "an optimiser of pyro.optim")
        count = len(self._set.particles())
        super().__init__(model, kernel, optim, count, max_plate_nesting=0, mode=_mode(kernel, mode))
        self.model, self.guide, self.loss = model, _Guide(model, self._name), self._potential
        self._optim, self.optim, self.kernel = optim, self._update, _Weighted(kernel)
        self._particles = self._wide(self._set.particles()).requires_grad_()

    def get_named_particles(self) -> dict[str, Tensor]:
        """The particles, M vectors ``[M, D]`` of D weights, by the name of their set; detached copies."""
        return {self._name: self._set.particles().clone()}

    def _potential(self, model: nn.Module, guide: AttentionGuide, *args: Any, **kwargs: Any) -> Tensor:
        """U of the network's weights, with its gradient by the particles in Pyro's store."""
        self._particles.data = self._wide(self._set.particles())
        entry: Any = {"params": {PARAMETER: self._particles}, "constraints": {PARAMETER: constraints.real}}
        pyro.get_param_store().set_state(entry)  # whatever another engine left there
        pyro.param(PARAMETER)
        elbo = _Summed()
        with frozen_parameters():
            potential = elbo.differentiable_loss(model, guide, *args, **kwargs)
        model.zero_grad()
        potential.backward()
        gradients = self._wide(self._set.gradients())
        if not isinstance(prior := self._method.prior, str):
            gradients += self._particles.detach() / prior**2
        parameters = _parameters(self._set)
        if gradients.numel() == sum(parameter.numel() for parameter in parameters):
            for parameter in parameters:
                parameter.grad = None  # an optimiser leaves them alone; of a fused weight it trains the rest
        self.kernel.weight = self._method.repulsion * elbo.num_data
        return with_gradients(potential.detach(), [self._particles], [gradients])

    def _update(self, parameters: Any) -> None:
        """Takes the optimiser's step, and gives the network its particles."""
        self._optim(parameters)
        self._set.assign(self._particles.detach().view(self.num_particles, -1))

    @staticmethod
    def _wide(rows: Tensor) -> Tensor:
        """A copy as Pyro's engine holds particles, ``[M * N]``, at least float32."""
        return rows.to(torch.promote_types(rows.dtype, torch.float32), copy=True).flatten()


class _Weighted(SteinKernel):
    """A kernel whose repulsion has a weight."""

    def __init__(self, kernel: SteinKernel) -> None:
        self.kernel, self.weight = kernel, 1.0

    def log_kernel_and_grad(self, particles: Tensor) -> tuple[Tensor, Tensor]:
        log_kernel, gradient = self.kernel.log_kernel_and_grad(particles)
        check_kernel_gradient(self.kernel, gradient)
        return log_kernel, self.weight * gradient


class _Guide(AttentionGuide):
    """A guide with the particles as Pyro's engine reads them."""

    def __init__(self, model: Callable[..., Any], name: str) -> None:
        super().__init__(model)
        self._set_name = name

    def _unpack_latent(self, latent: Tensor) -> Iterator[tuple[dict[str, Any], Tensor]]:
        yield {"name": self._set_name, "fn": dist.Normal(0.0, 1.0)}, latent

    def _pyro_post_param(self, msg: Message) -> None:
        refuse_other_parameter("HeadSVGD", cast(Any, msg))
        super()._pyro_post_param(msg)


class _Summed(AttentionELBO):
    """The loss as a sum over N data, and N."""

    moves_particles = True
    num_data = 1.0

    def _differentiable_loss_particle(self, model_trace: Trace, guide_trace: Trace) -> tuple[float, Tensor]:
        whole = data_plate(model_trace) is not None
        self.num_data = self.share(model_trace) * data_size(model_trace) if whole else 1.0
        return super()._differentiable_loss_particle(model_trace, guide_trace)


def _one_set(model: nn.Module) -> tuple[str, ParticleOptions, ParticleSet]:
    """Name, options and particles of a model; refuses what Pyro's engine cannot move."""
    words = "a program that is a torch.nn.Module, such as probattn.models.Classifier(net)"
    check_instance("HeadSVGD", "model", model, nn.Module, words)
    sets = particle_sets(model)
    if not sets:
        raise ValueError(
            f"HeadSVGD: {type(model).__name__} has no particles; convert its network first, by "
            "RepulsiveAttention(projections='query', layers='first'), one projection of one attention call, or by "
            "ParticleLayers('svgd')"
        )
    if len(sets) > 1:
        raise ValueError(
            f"HeadSVGD: expected one set of particles, which is what Pyro's engine moves, got {len(sets)}: "
            f"{shortened(', '.join(sets), 200)}; convert one projection of one layer, RepulsiveAttention("
            "projections='query', layers='first'), or train with probattn.inference.SVGDDriver, which moves all of them"
        )
    ((name, (method, particles)),) = sets.items()
    smoothed = getattr(method, "smoothing", True)
    if method.sampler != "svgd" or not smoothed:
        got = f"sampler={method.sampler!r}" if smoothed else "smoothing=False"
        raise ValueError(
            f"HeadSVGD: expected particles with sampler='svgd' and smoothing, which is what Pyro's engine does, got "
            f"{got}; train with probattn.inference.SVGDDriver"
        )
    if len(particles.particles()) < 2:
        raise ValueError(f"HeadSVGD: expected two particles or more, got one, {name}")
    return name, method, particles


def _parameters(particles: ParticleSet) -> list[nn.Parameter]:
    """The parameters that hold particles."""
    return [particles.parameter] if isinstance(particles, HeadSlices) else list(particles.parameters.values())


def _mode(kernel: SteinKernel, mode: Mode | None) -> Mode:
    """The mode of Pyro's engine; refuses one that would change a kernel of this library."""
    fitting: Mode | None = "multivariate" if isinstance(kernel, WholeVectorKernel) else None
    if isinstance(kernel, PyroKernel):
        fitting = kernel.mode
    elif isinstance(kernel, MarginalRBF):
        fitting = "univariate"
    expected = get_args(Mode) if fitting is None else (fitting,)
    if mode is not None and mode not in expected:
        raise ValueError(
            f"HeadSVGD.mode: expected {' or '.join(map(repr, expected))} for a {type(kernel).__name__}, got {mode!r}"
        )
    return mode or fitting or "univariate"
