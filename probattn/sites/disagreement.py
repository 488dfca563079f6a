"""Options of disagreement regularisation: a penalty on heads that are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from probattn.checks import check_choice, check_number
from probattn.sites.checks import check_parts, check_selection
from probattn.sites.repulsive import Projection, Words

if TYPE_CHECKING:
    from probattn.sites.disagreement_factor import DisagreementFactor

DisagreementMethod = Literal["frobenius", "subspaces", "positions", "outputs", "parameters"]
OWNER = "DisagreementAttention"


@dataclass(frozen=True)
class DisagreementAttention:
    r"""Attention whose heads pay for being alike: the penalties that repulsive attention is compared with.

    .. math:: \log p(y \mid x) - w \sum_{\text{sites}} P

    with a penalty P of one sample and attention call, in :mod:`probattn.sites.head_penalties`:

    - "frobenius": :math:`\|A A^\top - I\|_F^2`, A the heads' weights of one query, mean over queries (Lin et al. 2017,
      Eq. 8);
    - "subspaces", "positions", "outputs": minus the disagreement of Li et al. 2018 (Eq. 7, 8, 9), the mean over pairs
      of heads of the cosine between values, of the product of attention weights, of the cosine between outputs;
    - "parameters": the same on the heads' slices of the projections (An et al. 2020, section C.6), the first of the
      three steps of their Table 9. It knows no samples: every one gets the same. The other two steps are
      ``RepulsiveAttention(kernel="cosine", smoothing=False)`` and, under a driver with
      ``kernel=CosineKernel(offset=0.0)``, ``RepulsiveAttention()``.

    Each attention call adds the Pyro factor ``site.disagreement``, one term per sample; the attention itself stays what
    it was. Attention dropout is left out of what is penalised; latent weights are penalised as drawn. At weight 0
    the network trains as without it, bit for bit.

    Args:
        method: what is penalised.
        weight: w, >= 0. Li et al. 2018 take 1.
        projections: "parameters": whose heads.
        layers: "all", "first" or "last" of each stack, its numbers, or the calls of the "encoder", of the "decoder"
            (its self-attention) or the "cross"-attention; None leaves it to ``convert``.
        attention: "all", "self" or "cross", the kind of calls; None leaves it to ``convert``.

    Raises:
        ValueError: an option is outside its range.

    Example:
        >>> DisagreementAttention("outputs", weight=1.0, layers="last").looks_at
        'output'
    """

    method: DisagreementMethod = "outputs"
    weight: float = 0.1
    projections: tuple[Projection, ...] = ("query", "key", "value")
    layers: Words | Sequence[int] | None = None
    attention: Literal["all", "self", "cross"] | None = None

    def __post_init__(self) -> None:
        check_choice(OWNER, "method", self.method, DisagreementMethod)
        check_number(OWNER, "weight", self.weight, positive=False)
        object.__setattr__(self, "projections", check_parts(OWNER, self.projections, Projection))
        object.__setattr__(self, "layers", check_selection(OWNER, self.layers, self.attention, Words))

    @property
    def looks_at(self) -> Literal["weights", "value", "output", "parameters"]:
        """What of an attention call is penalised."""
        if self.method in ("frobenius", "positions"):
            return "weights"
        if self.method == "parameters":
            return "parameters"
        return "value" if self.method == "subspaces" else "output"

    def build(self) -> DisagreementFactor:
        """Makes the module that adds the factor of one attention call.

        Returns:
            The module, to be called with a name and what it looks at, inside a Pyro model.
        """
        from probattn.sites.disagreement_factor import DisagreementFactor

        return DisagreementFactor(self)
