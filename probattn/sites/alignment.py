"""Options of alignment attention: which divergence between queries and keys, and how much of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Generator

from probattn.checks import check_choice, check_integer, check_number, check_share
from probattn.divergences.networks import DiscriminatorKind
from probattn.sites.checks import check_flag, check_selection

if TYPE_CHECKING:
    from probattn.sites.alignment_factor import AlignmentFactor

AlignmentMethod = Literal["ct", "ot", "gan", "mmd"]
AlignmentReduction = Literal["sum", "mean"]
OWNER = "AlignmentAttention"


@dataclass(frozen=True)
class AlignmentAttention:
    r"""Attention whose queries and keys are matched in distribution within each head (Zhang et al. 2021).

    .. math:: \log p(y \mid x) - w \sum_{\text{sites}} \sum_{\text{heads}} L(p_Q, p_K)

    with a divergence L between the empirical distributions of the queries and the keys of one sample, padding left out.
    Each attention call adds the Pyro factor ``site.alignment``, one term per sample. The attention itself stays what it
    was: deterministic, or Bayesian where :class:`BayesianAttention` is asked for too.

    The networks of "gan" and "ct" (discriminator; critic and navigator) are trained in the same step, the adversaries
    among them by gradient reversal. ``weight`` scales what reaches queries and keys, and the factor's value; these
    networks learn from the unweighted divergence, whatever the weight and the reduction. At weight 0 the rest of the
    network trains as without alignment, bit for bit.

    Args:
        method: "ct" (conditional transport), "ot" (entropy-regularised optimal transport), "gan" (adversarial) or "mmd"
            (maximum mean discrepancy); see :mod:`probattn.divergences`.
        weight: w, >= 0.
        reduction: "sum" over heads and sites, or "mean" over them (heads times sites weaker).
        layers: the layers of each stack that are aligned: "all", "first", "last" or their numbers; None leaves it to
            ``convert``.
        attention: "all", "self" or "cross", the kind of calls that are aligned; None leaves it to ``convert``.
        max_tokens: where a sample has more queries or keys, a random subset of that size stands for them, drawn anew in
            each training step from a generator of the site's own; None takes all.
        hidden: width of the hidden layers of discriminator, critic and navigator; None for the head size.
        discriminator: "highway", or "mlp" for the paper's single MLP (section B.1.2).
        forward_weight: "ct": share of the direction from queries to keys, in [0, 1].
        epsilon: "ot": strength of the entropy, > 0.
        debias: "ot": the debiased divergence, 0 for equal sets; False gives the paper's plan cost.
        scaling: "ot": ratio of successive distances in the annealing, in (0, 1).
        sweeps: "ot": sweeps at each distance of the annealing, >= 0. 0 is fastest, and off by several per cent and
            more; :func:`probattn.divergences.sinkhorn` has the accuracy of the others.
        bandwidth: "mmd": of the kernel, > 0; or "median" for each head's median distance in the first training batch
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

    method: AlignmentMethod = "ct"
    weight: float = 0.01
    reduction: AlignmentReduction = "sum"
    layers: Literal["all", "first", "last"] | Sequence[int] | None = None
    attention: Literal["all", "self", "cross"] | None = None
    max_tokens: int | None = None
    hidden: int | None = None
    discriminator: DiscriminatorKind = "highway"
    forward_weight: float = 0.5
    epsilon: float = 0.01
    debias: bool = True
    scaling: float = 0.5
    sweeps: int = 20
    bandwidth: float | Literal["median"] = "median"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(OWNER, "method", self.method, AlignmentMethod)
        check_choice(OWNER, "reduction", self.reduction, AlignmentReduction)
        check_choice(OWNER, "discriminator", self.discriminator, DiscriminatorKind)
        check_number(OWNER, "weight", self.weight, positive=False)
        check_share(OWNER, "forward_weight", self.forward_weight)
        check_number(OWNER, "epsilon", self.epsilon, positive=True)
        check_share(OWNER, "scaling", self.scaling, zero=False, one=False)
        if isinstance(self.bandwidth, str):
            check_choice(OWNER, "bandwidth", self.bandwidth, Literal["median"])
        else:
            check_number(OWNER, "bandwidth", self.bandwidth, positive=True)
        for name, least in (("max_tokens", 2), ("hidden", 1)):
            if getattr(self, name) is not None:
                check_integer(OWNER, name, getattr(self, name), least=least)
        for name in ("sweeps", "seed"):
            check_integer(OWNER, name, getattr(self, name), least=0)
        if self.seed >= 2**63:
            raise ValueError(f"{OWNER}.seed: expected an integer below 2**63, got {self.seed}")
        check_flag(OWNER, "debias", self.debias)
        words = Literal["all", "first", "last"]
        object.__setattr__(self, "layers", check_selection(OWNER, self.layers, self.attention, words))

    @classmethod
    def paper(cls, method: AlignmentMethod = "ct", **options: Any) -> AlignmentAttention:
        """The settings of Zhang et al. 2021, literally; ``options`` override single ones.

        Weight 0.01, summed over heads and sites, and the plan cost of optimal transport, solved accurately.
        """
        settings: dict[str, Any] = {"method": method, "debias": False, "sweeps": 50}
        return cls(**(settings | options))

    def build(
        self, num_heads: int, head_dim: int, *, num_sites: int = 1, generator: Generator | None = None
    ) -> AlignmentFactor:
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
        from probattn.sites.alignment_factor import AlignmentFactor

        return AlignmentFactor(self, num_heads, head_dim, num_sites=num_sites, generator=generator)

    def factor_weight(self, num_heads: int, num_sites: int) -> float:
        """What a site's divergence, summed over its heads, is multiplied by.

        Args:
            num_heads: H.
            num_sites: calls that are aligned.
        """
        return self.weight / (math.prod((num_heads, num_sites)) if self.reduction == "mean" else 1)
