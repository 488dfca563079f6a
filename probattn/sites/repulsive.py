"""Options of particles, and repulsive attention: the heads of a projection as particles of one posterior."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from probattn.options import Natural, NonNegative, Options, Positive, Preset, SomeOf
from probattn.particles import (
    CosineKernel,
    FusedProjection,
    HeadSlices,
    IdentityKernel,
    InverseMultiquadric,
    LinearKernel,
    MarginalRBF,
    MedianRBF,
    ParticleKernel,
    ReleaseRBF,
    SlicedRBF,
    UnsmoothedKernel,
    head_slices,
)
from probattn.sites.method import Calls, Measured, Method, Parts, RecipeKeys, check_projections

Sampler = Literal["svgd", "spos", "sgld"]
KernelName = Literal[
    "median_rbf",
    "release_rbf",
    "marginal_rbf",
    "sliced_rbf",
    "inverse_multiquadric",
    "linear",
    "cosine",
    "identity",
]

_WIDE: dict[str, Any] = {
    "median_rbf": MedianRBF,
    "release_rbf": ReleaseRBF,
    "marginal_rbf": MarginalRBF,
    "inverse_multiquadric": InverseMultiquadric,
    "linear": LinearKernel,
}
"""Kernels with a bandwidth."""
_KERNELS = _WIDE | {"sliced_rbf": SlicedRBF, "cosine": CosineKernel, "identity": IdentityKernel}


@dataclass(frozen=True)
class ParticleOptions(Options):
    """Options of particles, which :class:`probattn.RepulsiveAttention` and ``EnsembleOptions`` describe for theirs."""

    sampler: Sampler = "svgd"
    _: KW_ONLY
    step_size: Positive = 0.1
    repulsion: NonNegative = 0.01
    kernel: KernelName = "median_rbf"
    bandwidth: Positive | None = None
    offset: NonNegative | None = None
    prior: Literal["uniform"] | Positive = "uniform"
    temperature: Literal["datum"] | Positive = 1.0
    langevin: Positive = 1.0
    seed: Natural = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kernels in (("bandwidth", _WIDE), ("offset", ("cosine",))):
            if getattr(self, name) is not None and self.kernel not in kernels:
                owner = type(self).__name__
                raise ValueError(f"{owner}.{name}: the kernel {self.kernel!r} has none; leave it out")

    @property
    def couples(self) -> bool:
        """True if particles act on each other, so that a single particle would have none to repel."""
        return self.sampler != "sgld" and self.repulsion > 0 and self.kernel != "identity"

    def build_kernel(self, generator: torch.Generator | None = None) -> ParticleKernel:
        """The kernel that the options name; ``generator`` gives a sliced one its directions."""
        directions = generator if self.kernel == "sliced_rbf" else None
        options = {"bandwidth": self.bandwidth, "offset": self.offset, "generator": directions}
        return _KERNELS[self.kernel](**{name: value for name, value in options.items() if value is not None})


@dataclass(frozen=True)
class RepulsionWords(Options):
    """Key of a repulsion recipe besides the method's options.

    Args:
        preset: source of the values of keys that are left out: this library's defaults, the settings of An et al. 2020
            ("paper"), or those of their code ("release").
    """

    preset: Preset = "default"


OWNER = "RepulsiveAttention"
RECORD = "_probattn_heads"  # attribute of a network that holds its HeadRecord

Projection = Literal["query", "key", "value"]


@dataclass(frozen=True)
class RepulsiveAttention(ParticleOptions, Method):
    r"""Attention whose heads are particles of one posterior (An et al. 2020).

    Particle i, :math:`\theta_i`, is the slice of a projection's weight that belongs to head i. After each backward pass
    :class:`probattn.inference.SVGDDriver` or :class:`probattn.ProbabilisticTrainer` replaces the gradient
    :math:`\nabla U` of the M heads of a projection by :math:`-\epsilon \phi` (Algorithm 1), with :math:`\phi` the
    direction of SVGD (Eq. 4), SPOS (Eq. 5) or SGLD (section C.1); then the optimiser makes its step. Each projection of
    each attention call is a separate set of particles. Forward pass and training of other parameters do not change.

    U is the loss, a mean over the batch, so the repulsive weight a must be far below 1: with a = 1 the heads would
    represent the posterior of a single datum. With standard normal noise :math:`\xi`, N data, temperature T and the
    Langevin weight w, the directions of the samplers with noise are:

    .. math::
        \text{sgld:} \quad -\nabla U + \sqrt{\frac{2 T}{N \epsilon}}\, \xi, \qquad
        \text{spos:} \quad \phi^{\mathrm{SVGD}} - w \nabla U + \sqrt{\frac{2 w T}{N \epsilon}}\, \xi.

    The SVGD term represents :math:`e^{-U / a}`, the Langevin term :math:`e^{-N U / T}`; they are equal if a = T / N.
    Eq. 5 as printed, :math:`\phi^{\mathrm{SVGD}} - \nabla U / b + \sqrt{2 / (b \epsilon)}\, \xi`, is
    ``temperature="datum", langevin=1 / b``.

    With ``smoothing=False`` a head follows only its gradient, :math:`\phi_i = -\nabla U(\theta_i) + \frac aM \sum_j
    \nabla_{\theta_j} \kappa(\theta_j, \theta_i)`, with :math:`\kappa` the kernel.

    With SGD ``step_size`` multiplies the learning rate, and the noise has this variance at learning rate 1, without a
    schedule. With Adam it only changes the size of the noise relative to the gradient, and the variance of the heads is
    not known.

    Args:
        sampler: "svgd" (Stein variational gradient descent), "spos" (the same with Langevin noise) or "sgld" (noise
            without repulsion).
        projections: projections whose heads repel each other; the heads of each are a separate set of particles.
        particles: what particle i is: a head ("heads"), or ("features", as in the authors' code) the output features i,
            i + H, i + 2H, ... of a projection with H heads; each particle then mixes all heads.
        layers: layers of each stack whose heads repel each other; numbers count from 0, negative ones from the end; or
            the calls of the "encoder", of the "decoder" (its self-attention) or the "cross" attention; None leaves it
            to ``convert``.
        attention: kind of attention calls whose heads repel each other; None leaves it to ``convert``.
        step_size: factor epsilon > 0 of the update direction of a head. Under "adam" and "adamw" it has no effect on
            "svgd", unless gradients are as small as the optimiser's eps; with "spos" and "sgld" a larger epsilon makes
            the noise smaller relative to the gradient.
        repulsion: weight a >= 0 of the repulsion (An et al. 2020, Eq. 4); no effect on "sgld". The loss is a mean per
            example, so a = 1/N matches the posterior of N examples and 1 is far too large. The paper's 0.01 lowered
            accuracy on three of five data sets and raised the validation loss on one.
        kernel: kernel between heads: "median_rbf" (the paper's), "release_rbf" (of the authors' code), "marginal_rbf",
            "sliced_rbf", "inverse_multiquadric", "linear", "cosine", or "identity", which couples no heads; see
            :mod:`probattn.particles`.
        bandwidth: bandwidth of the kernel, > 0; None for the kernel's rule. Not for "sliced_rbf", "cosine", "identity".
        offset: constant added to the kernel "cosine", >= 0; None for 1. It is 0 in Table 9 of An et al. 2020.
        prior: prior of the weights of a head: "uniform", or the standard deviation > 0 of a normal prior.
        temperature: temperature T > 0 of the noise of "spos" and "sgld", for the posterior exp(-N U / T) of N examples
            with mean loss U: 1 is the posterior, "datum" is T = N (Eq. 5 of An et al. 2020). The noise grows as
            sqrt(T).
        langevin: weight w > 0 of the Langevin term in "spos" relative to the SVGD term; 1 / b in Eq. 5 of An et al.
            2020. As w tends to 0, "spos" tends to "svgd".
        smoothing: whether each head also follows the other heads' gradients, weighted by the kernel. False with the
            kernel "cosine" is the second step in Table 9 of An et al. 2020.
        seed: seed of the noise and of random directions, >= 0; torch's global generators are not used.

    Raises:
        ValueError: an option is outside its range.

    Example:
        >>> type(RepulsiveAttention(projections=("query",), repulsion=0.1).build_kernel()).__name__
        'MedianRBF'
    """

    kind: ClassVar[str] = "repulsive"
    section: ClassVar[str] = "repulsion"
    key: ClassVar[str] = "repulsive"
    recipe: ClassVar[RecipeKeys] = RecipeKeys(
        "The repulsion between attention heads in training; null for none.",
        renamed={"repulsion": "weight"},
        extra=RepulsionWords,
        order=("sampler", "preset", "projections", "layers", "kind", "weight"),
    )
    summarised: ClassVar[tuple[str, ...]] = ("sampler", "repulsion")
    measured: ClassVar[tuple[Measured, ...]] = ("heads",)

    projections: SomeOf[Projection] = ("query", "key", "value")
    repulsion: NonNegative = field(default=0.001, kw_only=True)
    layers: Parts | None = None
    attention: Calls | None = None
    smoothing: bool = True
    particles: Literal["heads", "features"] = "heads"

    def __post_init__(self) -> None:
        object.__setattr__(self, "projections", check_projections(OWNER, self.projections, Projection))
        super().__post_init__()

    @classmethod
    def paper(cls, **options: Any) -> RepulsiveAttention:
        """The settings of An et al. 2020 for translation and graph-to-text; ``options`` replace single settings.

        The sampler is SVGD in all layers, with repulsion 0.01 and step size 0.1 (their appendix B).
        """
        return cls(**({"repulsion": 0.01, "step_size": 0.1} | options))

    @classmethod
    def release(cls, **options: Any) -> RepulsiveAttention:
        """The settings of the code that An et al. 2020 released; ``options`` replace single settings.

        They are those of its README for pre-training ELECTRA (github.com/bangann/Repulsive-Attention): SVGD in the
        first layer, repulsion 0.1, step size 0.01, the kernel :class:`probattn.particles.ReleaseRBF`. **The particles
        are not heads** but features of all heads, ``particles="features"``.
        """
        settings: dict[str, Any] = {
            "layers": "first",
            "particles": "features",
            "repulsion": 0.1,
            "step_size": 0.01,
            "kernel": "release_rbf",
        }
        return cls(**(settings | options))

    def summary(self) -> str:
        """Text with the sampler and the weight of the repulsion."""
        return f"repulsive heads by {self.sampler.upper()}, weight {self.repulsion:g}"

    def build_kernel(self, generator: torch.Generator | None = None) -> ParticleKernel:
        """The kernel that the options name; ``generator`` gives a sliced one its directions."""
        kernel = super().build_kernel(generator)
        return kernel if self.smoothing else UnsmoothedKernel(kernel)


@dataclass(frozen=True)
class HeadProjection:
    """The heads of one projection: of attention call ``site``, whose ``module`` holds it below ``path``."""

    site: str
    part: Projection
    module: str
    path: str
    heads: int  # H; of a fused projection that of its queries
    fused: FusedProjection | None = None
    interleaved: bool = False

    @property
    def name(self) -> str:
        """Name of the set of particles."""
        return f"{self.site}.{self.part}"

    def slices(self, net: nn.Module) -> HeadSlices:
        """The heads of ``net`` as they are now."""
        return self.within(net.get_submodule(self.module))

    def within(self, module: nn.Module) -> HeadSlices:
        """The same, of the attention module itself."""
        return head_slices(module, self.path, self.heads, fused=self.fused, interleaved=self.interleaved)


@dataclass(frozen=True)
class HeadRecord:
    """The heads of a network that are particles; stored on the network, it names its modules, so copies keep it."""

    method: RepulsiveAttention
    projections: tuple[HeadProjection, ...]


def repulsive_heads(model: nn.Module) -> dict[str, tuple[RepulsiveAttention, HeadSlices]]:
    """Options and heads of the projections of a model that are particles, by attention call and projection.

    Projections with one weight (tied keys and queries, or layers) are one set, under the name of the first.
    """
    records = {module: vars(module)[RECORD] for module in model.modules() if RECORD in vars(module)}
    heads: dict[tuple[Any, ...], tuple[str, tuple[RepulsiveAttention, HeadSlices]]] = {}
    for module, record in records.items():
        for projection in record.projections:
            slices = projection.slices(module)
            layout = {**vars(slices), "name": None, "parameter": id(slices.parameter)}
            heads.setdefault(tuple(layout.values()), (projection.name, (record.method, slices)))
    return dict(heads.values())
