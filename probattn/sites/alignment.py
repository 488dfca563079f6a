"""Alignment attention: which divergence between queries and keys, how much of it, and its factor at one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from torch import Generator, Tensor, nn
from torch.func import functional_call, vmap

from probattn.checks import optional
from probattn.divergences import (
    Critic,
    Discriminator,
    Navigator,
    ReleaseCritic,
    adversarial,
    conditional_transport,
    head_transport,
    mmd,
    scale_gradient,
    sinkhorn,
)
from probattn.divergences.mmd import median_distances
from probattn.divergences.networks import DiscriminatorKind
from probattn.host import on_cpu
from probattn.options import Count, Natural, NonNegative, Options, Positive, Preset, Share
from probattn.sites.handlers import announce, is_handled
from probattn.sites.method import Calls, Layers, Measured, Method, RecipeKeys
from probattn.sites.noise import seed_integers
from probattn.sites.scores import repeat_heads

AlignmentMethod = Literal["ct", "ot", "gan", "mmd", "ct_heads"]
AlignmentReduction = Literal["sum", "mean"]
AlignmentSides = Literal["both", "queries", "keys"]


@dataclass(frozen=True)
class AlignmentTraining(Options):
    """Keys of an alignment recipe besides the method's options.

    Args:
        preset: source of the values of keys that are left out: this library's defaults, the settings of Zhang et al.
            2021b ("paper", different only for "ot"), or those of their code ("release"; it calls `ct_heads` act).
        learning_rate: learning rate of the networks that "ct", "ct_heads" and "gan" add.
    """

    preset: Preset = "default"
    learning_rate: Annotated[float, Gt(0), Lt(10)] = 1e-3


@dataclass(frozen=True)
class AlignmentAttention(Method):
    r"""Attention whose queries and keys are matched in distribution within each head (Zhang et al. 2021b).

    .. math:: \log p(y \mid x) - w \sum_{\text{sites}} \sum_{\text{heads}} L(p_Q, p_K)

    with a divergence L between the empirical distributions of the queries and the keys of one example, without padding.
    Each attention call NAME adds the Pyro factor ``NAME.alignment``, with one term per example. Attention itself is
    computed as without alignment.

    The networks of "gan" (discriminator), "ct" and "ct_heads" (critic and navigator) are trained in the same step, the
    adversaries by gradient reversal. ``weight`` scales the value of the factor and the gradient of queries and keys;
    these networks learn from the unweighted divergence (times the scale of a plate with subsampling), for any
    ``weight`` and ``reduction``. At weight 0 the rest of the network trains as without alignment, bit for bit.

    Args:
        method: "ct" (conditional transport), "ot" (entropy-regularised optimal transport), "gan" (adversarial), "mmd"
            (maximum mean discrepancy) or "ct_heads" (conditional transport between the queries and keys of all heads of
            a token, as in the authors' code); see :mod:`probattn.divergences`.
        weight: weight w of the divergence in the objective, >= 0.
        moves: what gets the gradient of the divergence: "both", only the "queries" or only the "keys".
        reduction: "sum" of the divergence over heads and attention calls, or their "mean".
        layers: layers of each stack that are aligned; numbers count from 0, negative ones from the end; None leaves
            it to ``convert``.
        attention: kind of attention calls that are aligned; None leaves it to ``convert``.
        max_tokens: maximum number of queries and of keys that are compared: a random subset, drawn again in each
            training step; None for all, in graphs for 512 nodes. Not with "ct_heads".
        hidden: width of the hidden layers of discriminator, critic and navigator; None for the size of a head.
        discriminator: discriminator of "gan": "highway", "mlp" (the paper's single MLP, section B.1.2) or "release"
            (that of the authors' code).
        forward_weight: for "ct" and "ct_heads": share of the transport from queries to keys, in [0, 1]; the rest is
            from keys to queries.
        epsilon: for "ot": strength of the entropy regularisation, > 0.
        debias: for "ot": whether the divergence is debiased (0 for equal sets); False gives the paper's transport cost.
        scaling: for "ot": factor by which the blur (square root of the entropic regularisation) shrinks between
            annealing steps, in (0, 1); closer to 1 is slower and more accurate.
        sweeps: for "ot": Sinkhorn iterations at each annealing step whose blur is at most 32 times the final one, >= 0.
            0 is fastest, but errors are several per cent or larger; with 1 or more, problems that did not converge are
            solved a second time with more iterations (see :func:`probattn.divergences.sinkhorn`).
        bandwidth: for "mmd": bandwidth of the kernel, > 0, or "median": each head's median distance in the first
            micro-batch (of the first process), fixed from then on. :func:`probattn.divergences.median_bandwidth` gives
            a number that does not depend on batches.
        seed: seed of the initial networks and of the subsets, >= 0; torch's global generators are not used.

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
        "The alignment of queries and keys, in addition to the attention method; null for none.",
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
    moves: AlignmentSides = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method == "ct_heads" and self.max_tokens is not None:
            raise ValueError(
                "AlignmentAttention.max_tokens: expected None with 'ct_heads', which compares the heads of a token, "
                f"since queries and keys are drawn apart, got {self.max_tokens}"
            )

    def summary(self) -> str:
        """The divergence and its weight, such as "OT alignment, weight 0.01"."""
        return f"{self.method.upper()} alignment, weight {self.weight:g}"

    @classmethod
    def paper(cls, method: AlignmentMethod = "ct", **options: Any) -> AlignmentAttention:
        """The settings of Zhang et al. 2021b; ``options`` replace single ones.

        Weight 0.01, the sum over heads and attention calls, and for "ot" the plan cost (not debiased) with 50 sweeps.
        """
        settings: dict[str, Any] = {"method": method, "debias": False, "sweeps": 50}
        return cls(**(settings | options))

    @classmethod
    def release(cls, method: AlignmentMethod = "gan", **options: Any) -> AlignmentAttention:
        """The settings of the code that Zhang et al. 2021b released; ``options`` replace single ones.

        They are those of its deleted script (ALBERT, github.com/szhang42/alignment_attention): weight 0.01, the mean
        over heads and calls, hidden layers of width 16. In "gan" only keys get the gradient, and the
        discriminator is "release"; "ct_heads" is the conditional transport there; "ot" has the blur 0.05 and no sweeps.

        Raises:
            ValueError: "ct", instead of which the code has "ct_heads", or "mmd", whose loss the code does not define.
        """
        settings: dict[str, Any] = {"weight": 0.01, "reduction": "mean", "hidden": 16}
        special: dict[str, dict[str, Any]] = {
            "gan": {"moves": "keys", "discriminator": "release"},
            "ct_heads": {},
            "ot": {"epsilon": 0.05**2, "sweeps": 0},
        }
        if method not in special:
            raise ValueError(
                "AlignmentAttention.release: expected 'gan', 'ot' or 'ct_heads' (its conditional transport), got "
                f"{method!r}"
            )
        return cls(**({"method": method} | settings | special[method] | options))

    def build(
        self, num_heads: int, head_dim: int, *, num_sites: int = 1, generator: Generator | None = None
    ) -> AlignmentFactor:
        """Makes the factor of one attention call; arguments are those of :class:`AlignmentFactor`."""
        return AlignmentFactor(self, num_heads, head_dim, num_sites=num_sites, generator=generator)

    def factor_weight(self, num_heads: int, num_sites: int) -> float:
        """The weight of a call's divergence summed over heads: w, or w / (num_heads num_sites) for the mean."""
        return self.weight / (math.prod((num_heads, num_sites)) if self.reduction == "mean" else 1)


SUFFIX = ".alignment"  # suffix of an attention call's name in that of its factor


class AlignmentFactor(nn.Module):
    r"""Adds ``-weight * (sum over heads of L)`` to a Pyro model's log density, one term per example of a batch.

    Call the module inside the plate over the batch. Outside Pyro's handlers, in prediction, it does nothing. The
    divergence is computed only when the log density is requested.

    Args:
        method: options of the attention method.
        num_heads: H, the number of query heads.
        head_dim: D, the size of a head.
        num_sites: number of aligned attention calls in the network, by which ``reduction="mean"`` divides.
        generator: source of the initial weights; by default a new one with the seed of the options. Factors that are
            given the same generator get different initial weights.

    Attributes:
        weight: multiplier of the divergence summed over heads, see :meth:`AlignmentAttention.factor_weight`.

    Example:
        >>> import pyro
        >>> from pyro import poutine
        >>> align = AlignmentAttention("ct", weight=0.1).build(num_heads=4, head_dim=8)
        >>> def model(query, key):
        ...     with pyro.plate("data", len(query)):
        ...         align("attend", query, key)
        >>> trace = poutine.trace(model).get_trace(*torch.randn(2, 3, 4, 5, 8))
        >>> trace.compute_log_prob()
        >>> trace.nodes["attend.alignment"]["log_prob"].shape
        torch.Size([3])
    """

    bandwidth: Tensor
    draws: Tensor

    def __init__(
        self,
        method: AlignmentAttention,
        num_heads: int,
        head_dim: int,
        *,
        num_sites: int = 1,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.method = method
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.weight = method.factor_weight(num_heads, num_sites)
        source = torch.Generator().manual_seed(method.seed) if generator is None else generator
        self.discriminator: Discriminator | None = None
        self.critic: Critic | None = None
        self.navigator: Navigator | None = None
        if method.method == "gan":
            kind = method.discriminator
            self.discriminator = Discriminator(head_dim, method.hidden, kind=kind, generator=source)
        if method.method in ("ct", "ct_heads"):
            critic, size = (Critic, None) if method.method == "ct" else (ReleaseCritic, method.hidden)
            self.critic = critic(head_dim, method.hidden, size, generator=source)
            self.navigator = Navigator(head_dim, method.hidden, size, generator=source)
        if method.method == "ot":
            optional("AlignmentAttention('ot')", "geomloss", "transport")
        if method.method == "mmd" and method.bandwidth == "median":
            self.register_buffer("bandwidth", torch.zeros(num_heads))  # 0: not known yet
        if method.max_tokens is not None:
            self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AlignmentFactor:
        """Moves and casts as modules do, but not below float32, in which divergences are computed."""
        super()._apply(fn, recurse)
        for tensor in (*self.parameters(), *self.buffers()):
            if tensor.dtype in (torch.float16, torch.bfloat16):
                tensor.data = tensor.data.float()
        return self

    def extra_repr(self) -> str:
        """The options, for ``print(network)``."""
        return str(self.method)

    def forward(
        self,
        name: str,
        query: Tensor,
        key: Tensor,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> None:
        """Registers the factor ``name + ".alignment"``, ``[B]``, with Pyro.

        Args:
            name: name of the attention call.
            query: ``[B, H, T, D]``.
            key: ``[B, G, S, D]``, G dividing H.
            query_mask: bool ``[B, T]`` or ``[B, 1 | H, T]``, True for a real token; None for all.
            key_mask: bool ``[B, S]`` or ``[B, 1 | H, S]``, True for a token that some query may attend to; None for
                all.

        Raises:
            RuntimeError: in training mode with gradients, outside Pyro's handlers (no guide, SVI or driver is active).
            ValueError: the number of heads or the size of a head is wrong.
        """
        if is_handled():
            where = f"site {name + SUFFIX!r}"
            if query.shape[1] != self.num_heads:
                raise ValueError(f"{where}: expected {self.num_heads} query heads, got {query.shape[1]}")
            self._check_sizes(where, query, key)
        announce(
            name + SUFFIX,
            _Aligned(self, query, key, query_mask, key_mask),
            torch.Size([len(query)]),
            training=self.training,
            what="alignment",
        )

    def divergence(
        self, query: Tensor, key: Tensor, query_mask: Tensor | None = None, key_mask: Tensor | None = None
    ) -> Tensor:
        """The unweighted divergence of each head, ``[B, H]``; arguments are those of a call, without ``name``.

        Measure under ``torch.no_grad()``: with gradients a call counts as training, which fixes the bandwidth.
        Minimising it also trains discriminator, critic and navigator. ``ValueError`` if the size of a head is wrong.
        """
        self._check_sizes("AlignmentFactor.divergence", query, key)
        key = repeat_heads(key, query.shape[1])
        query, query_mask, key, key_mask = self.subsets(query, query_mask, key, key_mask)
        masks: dict[str, Any] = {"query_mask": query_mask, "key_mask": key_mask}
        if self.method.method == "mmd":
            return mmd(query, key, bandwidth=self._bandwidth(query, key, **masks), **masks)
        return self.measure(self.networks)(query, key, **masks)

    def _check_sizes(self, where: str, query: Tensor, key: Tensor) -> None:
        for name, tokens in (("queries", query), ("keys", key)):
            if tokens.shape[-1] != self.head_dim:
                raise ValueError(f"{where}: expected {name} of size {self.head_dim}, got {tokens.shape[-1]}")

    @property
    def networks(self) -> dict[str, nn.Module]:
        """Discriminator, navigator and critic, as far as present, by the names of the divergence's arguments."""
        names = ("discriminator", "navigator", "critic")
        return {name: net for name in names if isinstance(net := getattr(self, name), nn.Module)}

    def measure(self, networks: Mapping[str, Any]) -> Callable[..., Tensor]:
        """The divergence function that the options select ("mmd" excepted), with these networks as arguments."""
        method = self.method
        if method.method == "gan":
            return partial(adversarial, **networks)
        if networks:
            transport = conditional_transport if method.method == "ct" else head_transport
            return partial(transport, forward_weight=method.forward_weight, **networks)
        options = {name: getattr(method, name) for name in ("epsilon", "debias", "scaling", "sweeps")}
        return partial(sinkhorn, **options)

    def subsets(
        self, query: Tensor, query_mask: Tensor | None, key: Tensor, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
        """Queries, their mask, keys and their mask, as given or, above ``max_tokens``, of random subsets of tokens."""
        limit = self.method.max_tokens
        if limit is None or max(query.shape[2], key.shape[2]) <= limit:
            return query, query_mask, key, key_mask
        if torch.is_grad_enabled():
            self.draws += 1
        integers = seed_integers([self.method.seed, int(self.draws)])
        entropy = np.random.SeedSequence(integers).generate_state(1, np.uint64)
        source = torch.Generator().manual_seed(int(entropy[0] >> np.uint64(1)))
        queries = random_subset(query, query_mask, limit, source)
        return (*queries, *random_subset(key, key_mask, limit, source))

    def _bandwidth(self, query: Tensor, key: Tensor, **masks: Tensor | None) -> float | Tensor:
        if not isinstance(self.method.bandwidth, str):
            return self.method.bandwidth
        if bool((self.bandwidth > 0).all()):
            return self.bandwidth
        median = median_distances(query, key, **masks).to(self.bandwidth)
        bandwidth = torch.where(self.bandwidth > 0, self.bandwidth, median)
        if torch.is_grad_enabled():
            self.bandwidth.copy_(bandwidth)
        return torch.where(bandwidth > 0, bandwidth, 1.0)  # coincident points: any bandwidth serves


@dataclass(frozen=True, eq=False)
class _Aligned:
    """The log factor ``[B]`` of one call; those of several calls at once where launching kernels is what costs."""

    factor: AlignmentFactor
    query: Tensor
    key: Tensor
    query_mask: Tensor | None = None
    key_mask: Tensor | None = None

    @property
    def kind(self) -> Hashable:
        """None on a CPU, and where a factor has no network."""
        factor, tensors = self.factor, (self.query, self.key, self.query_mask, self.key_mask)
        if on_cpu(self.query) or not factor.networks:
            return None
        like = [None if item is None else (item.shape, item.dtype, item.device) for item in tensors]
        modes = tuple(module.training for module in factor.networks.values())
        return (_Aligned, factor.method, factor.num_heads, factor.weight, *like, *modes)

    def __call__(self) -> Tensor:
        """Queries and keys get the weighted gradient, the site's networks the unweighted one."""
        query, key = self._scaled(self.query, self.key)
        return self._weighted(self.factor.divergence(query, key, self.query_mask, self.key_mask))

    def together(self, others: Sequence[_Aligned]) -> Sequence[Tensor]:
        """The log factors of several calls, whose data stand beside one another, ``[L * B, ...]``."""
        heads = self.query.shape[1]
        subsets = [
            one.factor.subsets(one.query, one.query_mask, repeat_heads(one.key, heads), one.key_mask)
            for one in others
        ]
        query, query_mask, key, key_mask = (
            None if items[0] is None else torch.cat(cast(list[Tensor], items))
            for items in map(list, zip(*subsets, strict=True))
        )
        assert query is not None
        assert key is not None
        networks = [one.factor.networks for one in others]
        joint = {name: partial(_jointly, [of_call[name] for of_call in networks]) for name in networks[0]}
        measure = self.factor.measure(joint)
        scaled = self._scaled(query, key)
        return self._weighted(measure(*scaled, query_mask=query_mask, key_mask=key_mask)).chunk(len(others))

    def _scaled(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        moves, weight = self.factor.method.moves, self.factor.weight
        queries = scale_gradient(query, weight if moves in ("both", "queries") else 0.0)
        return queries, scale_gradient(key, weight if moves in ("both", "keys") else 0.0)

    def _weighted(self, divergence: Tensor) -> Tensor:
        total = divergence.sum(dim=-1)
        value = total.detach()
        return -(self.factor.weight * value + (total - value))


def _jointly(networks: Sequence[nn.Module], vectors: Tensor) -> Tensor:
    """What networks of L calls make of vectors ``[L * B, ...]``, each of the data of its call."""
    parameters = [dict(network.named_parameters()) for network in networks]
    stacked = {name: torch.stack([one[name] for one in parameters]) for name in parameters[0]}
    by_call = vectors.unflatten(0, (len(networks), -1))
    made: Tensor = vmap(partial(functional_call, networks[0]))(stacked, by_call)
    return made.flatten(0, 1)


def random_subset(
    tokens: Tensor, mask: Tensor | None, limit: int, source: Generator
) -> tuple[Tensor, Tensor | None]:
    """Up to ``limit`` random tokens of ``[B, H, T, D]`` and their mask, valid ones first; all where T <= limit."""
    batch, heads, length, size = tokens.shape
    if length <= limit:
        return tokens, mask
    rank = torch.rand(batch, 1, length, generator=source).to(tokens.device)
    if mask is not None:
        mask = mask[:, None] if mask.dim() == 2 else mask
        rank = rank + (~mask).float()
    indices = rank.topk(limit, dim=-1, largest=False).indices  # [B, 1 | H, limit]
    subset = tokens.gather(2, indices.expand(batch, heads, limit).unsqueeze(-1).expand(-1, -1, -1, size))
    return subset, None if mask is None else mask.gather(2, indices)
