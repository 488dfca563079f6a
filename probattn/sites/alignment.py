"""Options of alignment attention: which divergence between queries and keys, and how much of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Lt
from torch import Generator, nn

from probattn.divergences.networks import DiscriminatorKind
from probattn.options import Count, Natural, NonNegative, Options, Positive, Share
from probattn.sites.method import Calls, Layers, Measured, Method, RecipeKeys, build

AlignmentMethod = Literal["ct", "ot", "gan", "mmd"]
AlignmentReduction = Literal["sum", "mean"]


@dataclass(frozen=True)
class AlignmentTraining(Options):
    """Keys of an alignment recipe besides the method's options.

    Args:
        preset: where the values of keys that are left out come from: this library's defaults, or the settings of Zhang
            et al. 2021 (they differ for "ot").
        learning_rate: of the networks that "ct" and "gan" bring along: critic, navigator, discriminator.
    """

    preset: Literal["default", "paper"] = "default"
    learning_rate: Annotated[float, Gt(0), Lt(10)] = 1e-3


@dataclass(frozen=True)
class AlignmentAttention(Method):
    r"""Attention whose queries and keys are matched in distribution within each head (Zhang et al. 2021).

    .. math:: \log p(y \mid x) - w \sum_{\text{sites}} \sum_{\text{heads}} L(p_Q, p_K)

    with a divergence L between the empirical distributions of the queries and the keys of one sample, padding left out.
    Each attention call adds the Pyro factor ``site.alignment``, one term per sample. The attention itself stays what it
    was: deterministic, or Bayesian where :class:`BayesianAttention` is asked for too.

    The networks of "gan" and "ct" (discriminator; critic and navigator) are trained in the same step, the adversaries
    among them by gradient reversal. ``weight`` scales what reaches queries and keys, and the factor's value; these
    networks learn from the unweighted divergence, for any weight and reduction. At weight 0 the rest of the
    network trains as without alignment, bit for bit.

    Args:
        method: "ct" (conditional transport), "ot" (entropy-regularised optimal transport), "gan" (adversarial) or "mmd"
            (maximum mean discrepancy); see :mod:`probattn.divergences`.
        weight: weight w of the divergence in the objective, >= 0.
        reduction: "sum" over heads and sites, or "mean" over them (heads times sites weaker).
        layers: layers of each stack that are aligned; numbers count from 0, negative ones from the end; None leaves it
            to ``convert``.
        attention: kind of attention calls that are aligned; None leaves it to ``convert``.
        max_tokens: where a sample has more queries or keys, a random subset of that size stands for them, drawn anew in
            each training step from a generator of the site's own; None takes all.
        hidden: width of the hidden layers of discriminator, critic and navigator; None for the head size.
        discriminator: of "gan": "highway", or "mlp" for the paper's single MLP (section B.1.2).
        forward_weight: of "ct": share of the direction from queries to keys, in [0, 1].
        epsilon: of "ot": strength of the entropy, > 0.
        debias: of "ot": the debiased divergence, 0 for equal sets; False gives the paper's plan cost.
        scaling: of "ot": ratio of successive distances in the annealing, in (0, 1).
        sweeps: of "ot": sweeps at each distance of the annealing, >= 0. 0 is fastest, and off by several per cent and
            more; with others, problems that have not converged are solved again. Their accuracy is that of
            :func:`probattn.divergences.sinkhorn`.
        bandwidth: of "mmd": of the kernel, > 0; or "median" for each head's median distance in the first training batch
            that the site sees, frozen from then on. Under accumulation that is the first micro-batch, and with several
            processes that of the first one: unlike the other divergences, and unlike a number, "median" depends on how
            a batch is divided. :func:`probattn.divergences.median_bandwidth` gives a number.
        seed: of the initial networks and the subsets, >= 0; torch's global generators are not used.

    Raises:
        ValueError: an option is outside its range.

    Example:
        >>> AlignmentAttention("ot").debias
        True
        >>> AlignmentAttention.paper("ot").debias
        False
    """

    kind: ClassVar[str] = "alignment"
    section: ClassVar[str] = "alignment"
    key: ClassVar[str] = "aligned"
    recipe: ClassVar[RecipeKeys] = RecipeKeys(
        "The alignment of queries and keys, besides that method; null for none.",
        extra=AlignmentTraining,
        order=("method", "preset", "weight", "learning_rate"),
    )
    summarised: ClassVar[tuple[str, ...]] = ("method", "weight")
    measured: ClassVar[tuple[Measured, ...]] = ("alignment",)

    method: AlignmentMethod = "ct"
    weight: NonNegative = 0.01
    reduction: AlignmentReduction = "sum"
    layers: Layers | None = None
    attention: Calls | None = None
    max_tokens: Annotated[int, Ge(2)] | None = None
    hidden: Count | None = None
    discriminator: DiscriminatorKind = "highway"
    forward_weight: Share = 0.5
    epsilon: Positive = 0.01
    debias: bool = True
    scaling: Annotated[float, Gt(0), Lt(1)] = 0.5
    sweeps: Natural = 20
    bandwidth: Literal["median"] | Positive = "median"
    seed: Annotated[int, Ge(0), Lt(2**63)] = 0

    def summary(self) -> str:
        """The divergence and its weight."""
        return f"{self.method.upper()} alignment, weight {self.weight:g}"

    @classmethod
    def paper(cls, method: AlignmentMethod = "ct", **options: Any) -> AlignmentAttention:
        """The settings of Zhang et al. 2021, literally; ``options`` override single ones.

        Weight 0.01, summed over heads and sites, and the plan cost of optimal transport, solved accurately.
        """
        settings: dict[str, Any] = {"method": method, "debias": False, "sweeps": 50}
        return cls(**(settings | options))

    def build(
        self, num_heads: int, head_dim: int, *, num_sites: int = 1, generator: Generator | None = None
    ) -> nn.Module:
        """Makes the module that adds the factor of one attention call and holds its networks.

        Args:
            num_heads: H.
            head_dim: D, size of a key head.
            num_sites: calls that are aligned in the network, for ``reduction="mean"``.
            generator: source of the initial weights; by default one with the seed of these options. Layers that share
                one begin differently.

        Returns:
            The module, to be called with a name, queries and keys inside a Pyro model.
        """
        return build(self, num_heads, head_dim, num_sites=num_sites, generator=generator)

    def factor_weight(self, num_heads: int, num_sites: int) -> float:
        """Factor of a site's divergence, summed over its H heads, where ``num_sites`` calls are aligned."""
        return self.weight / (math.prod((num_heads, num_sites)) if self.reduction == "mean" else 1)
