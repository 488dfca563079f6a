"""Entropy-regularised optimal transport between queries and keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from probattn.checks import check_integer, check_number, check_share, optional
from probattn.divergences.tokens import TokenSets, compare
from probattn.first_order import with_gradients
from probattn.host import on_cpu

START = 64.0
"""Distance at which the annealing starts. Larger point sets double it; below, a value depends on no other set."""
COARSEST = 32.0  # distance from which on sweeps refine the potentials, in units of the root of epsilon
RELAXATION = 1.8  # over-relaxation of a sweep, between 1 (Sinkhorn's own) and 2
BLOCK = 5  # sweeps between two evaluations of the kernel: more of them could leave the range of float32
LATE, SHARE = 0.02, 1e-3
"""Of the transport's cost, what lacking mass may cost: of a plan that is accepted, and of one that is solved again."""
SLOW = 0.5  # ratio of successive strengths for a problem that is solved again
FURTHER = 20  # times that a problem solved again has further sweeps at a distance, two blocks each, at most
SELF_SWEEPS = 30  # sweeps of a set's transport to itself, which converges by about half a digit in each
LEAST_LOGIT = -80.0  # below it, float32 would leave its normal numbers
LIMIT = 1e15  # largest factor by which a block may change the exponential of a potential
CPU_ENTRIES = 2**20
"""Costs of the problems that are solved at once on a CPU, where they stay in its cache; those of a problem at least."""


def sinkhorn(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    *,
    epsilon: float = 0.01,
    debias: bool = True,
    scaling: float = 0.5,
    sweeps: int = 50,
    query_mask: Tensor | None = None,
    key_mask: Tensor | None = None,
) -> Tensor:
    r"""Entropy-regularised optimal transport at cost c(q, k) = |q - k|^2 / 2 (Zhang et al. 2021b, Eq. 3).

    .. math::
        \pi_\epsilon &= \arg\min_\pi \langle \pi, c \rangle + \epsilon\, \mathrm{KL}(\pi \,\|\, p_Q \otimes p_K), \\
        L &= \langle \pi_\epsilon, c \rangle \quad \text{(the paper's plan cost, debias=False)}, \\
        L &= \mathrm{OT}_\epsilon(p_Q, p_K) - \tfrac12 \mathrm{OT}_\epsilon(p_Q, p_Q)
            - \tfrac12 \mathrm{OT}_\epsilon(p_K, p_K) \quad \text{(debias=True; Feydy et al. 2019)},

    over the tokens of one head and one example; :math:`\mathrm{OT}_\epsilon` is the minimum over :math:`\pi` in the
    first line. The debiased form is 0 for equal sets, else positive; the plan cost is positive for equal sets too. The
    square root of the entropy's strength, the blur, is annealed from 64 (more for larger sets) to
    :math:`\sqrt\epsilon`. geomloss solves down to a blur of :math:`32 \sqrt\epsilon`; over-relaxed Sinkhorn iterations
    at each further blur ("sweeps", Thibault et al. 2017) refine the potentials where they raise the dual objective.

    The plan cost is the dual objective minus :math:`\epsilon` times the plan's relative entropy; its error is of second
    order in the error of the plan's marginals. For normally distributed points and costs from 3 to 3500 times
    :math:`\epsilon`, its relative error is below 1e-3 with 10 sweeps, 2e-4 with 20 and 2e-5 with 50, that of its
    gradient below 1e-1, 3e-2 and 2e-3, respectively. The computed cost may be too low.

    With sweeps, a problem is solved again if mass that is missing in a marginal could cost more than 1% of the total:
    from the largest blur down, halving the strength, with up to 200 further sweeps each, until that share is at most
    1e-3. Tight clusters far apart, with different numbers of queries and keys, need this and take four times as long;
    their plan cost is then less than 1e-3 below the optimum of the linear program. Without sweeps, the cost of normally
    distributed points is some per cent too low, and most of the cost of clusters is missing.

    The gradient of both forms treats the plan as a constant (envelope theorem), which is exact for the debiased form;
    that of the plan cost omits the gradient of the entropy term. Second derivatives raise ``RuntimeError``.

    ``epsilon`` > 0 is the strength of the entropy, in units of the cost; ``debias`` selects the debiased divergence
    instead of the plan cost. ``scaling``, in (0, 1), is the ratio of successive blurs; ``sweeps``, an integer from 0,
    is the number of sweeps at each blur, after two plain updates of the potentials; with 0 no problem is solved again.
    The other arguments and the result ``[B, H]`` are those of :func:`mmd`. All is computed outside autocast.

    Raises:
        TypeError: queries or keys are not floating-point, or a mask is not bool.
        ValueError: shapes do not fit, or a number is out of its range.
        MissingPackageError: geomloss (extra ``transport``) is not installed.

    Example:
        >>> q = torch.randn(1, 2, 5, 3)
        >>> sinkhorn(q, q + torch.tensor([3.0, 4.0, 0.0])).round(decimals=2)
        tensor([[12.5000, 12.5000]])
    """
    check_number("sinkhorn", "epsilon", epsilon, positive=True)
    check_share("sinkhorn", "scaling", scaling, zero=False, one=False)
    check_integer("sinkhorn", "sweeps", sweeps, minimum=0)

    def measure(tokens: TokenSets) -> Tensor:
        clouds = _clouds(tokens)
        anneal = _Annealing(epsilon, scaling, sweeps, _diameter(*clouds))
        potentials = _in_pieces(partial(_potentials, anneal), *clouds)
        value, relative_entropy = _transport(*clouds, potentials, epsilon)
        if not debias:
            cost = value - epsilon * relative_entropy
        else:
            solve = partial(_self_potential, epsilon)
            alone = [_transport(cloud, cloud, _in_pieces(solve, cloud), epsilon)[0] for cloud in clouds]
            cost = value - (alone[0] + alone[1]) / 2
        return cost.view(tokens.query.shape[:2])

    return compare(measure, query, key, mask, query_mask, key_mask)


class _Cloud(NamedTuple):
    """Points ``[B * H, n, D]`` with probabilities ``[B * H, n]``."""

    points: Tensor
    weight: Tensor


class _Annealing(NamedTuple):
    epsilon: float
    scaling: float
    sweeps: int
    diameter: float

    @property
    def coarsest(self) -> float:
        """The distance at which geomloss hands over."""
        blur = math.sqrt(self.epsilon)
        return max(blur, min(COARSEST * blur, self.diameter))

    def strengths(self, distance: float, ratio: float) -> Iterator[float]:
        """The entropy's falling strength from a distance: squared distances, and epsilon at last."""
        strength = distance**2
        while strength > self.epsilon:
            yield strength
            strength *= ratio
        yield self.epsilon


def _clouds(tokens: TokenSets) -> tuple[_Cloud, _Cloud]:
    """Both sets around the queries' mean, since distances are the same there and rounding errors smaller."""
    with torch.no_grad():
        centre = (tokens.query * tokens.query_weight.unsqueeze(-1)).sum(dim=2, keepdim=True)
    query = _cloud(tokens.query - centre, tokens.query_mask, tokens.query_weight)
    return query, _cloud(tokens.key - centre, tokens.key_mask, tokens.key_weight)


def _cloud(points: Tensor, mask: Tensor | None, weight: Tensor) -> _Cloud:
    batch, heads, length, _ = points.shape
    if mask is not None:
        mask = mask.expand(batch, heads, length)
        first = mask.to(torch.uint8).argmax(dim=-1)[..., None, None]  # a token that counts, if there is one
        valid = points.detach().gather(2, first.expand(-1, -1, 1, points.shape[-1]))
        points = torch.where(mask.unsqueeze(-1), points, valid)
        weight = torch.where(mask.any(dim=-1, keepdim=True), weight, 1 / length)
    return _Cloud(points.flatten(0, 1), weight.expand(batch, heads, length).flatten(0, 1))


def _diameter(*clouds: _Cloud) -> float:
    """A power of 2, at least :data:`START`, no smaller than the extent of all points together."""
    points = torch.cat([cloud.points.detach().flatten(0, 1) for cloud in clouds])
    extent = (points.amax(dim=0) - points.amin(dim=0)).norm().item()
    if not START < extent < math.inf:
        return START
    return float(2.0 ** math.ceil(math.log2(extent)))


def _costs(source: _Cloud, target: _Cloud) -> Tensor:
    halves = [cloud.points.square().sum(dim=-1) / 2 for cloud in (source, target)]
    squares = halves[0].unsqueeze(-1) + halves[1].unsqueeze(-2)
    return torch.baddbmm(squares, source.points, target.points.mT, alpha=-1).clamp_min_(0)  # [B * H, n, m]


def _transport(
    source: _Cloud, target: _Cloud, potentials: tuple[Tensor, Tensor], epsilon: float
) -> tuple[Tensor, Tensor]:
    """A solved problem, by set: the regularised cost, with gradient, and the plan's relative entropy, without."""
    points = source.points, target.points
    with torch.no_grad():
        f, g = potentials
        log_ratio = (f.unsqueeze(-1) + g.unsqueeze(-2) - _costs(source, target)).div_(epsilon)
        plan = _exponential_(log_ratio.clone()).mul_(source.weight.unsqueeze(-1))
        plan.mul_(target.weight.unsqueeze(-2))
        relative_entropy = (plan * log_ratio).sum(dim=(-1, -2))
        dual = (source.weight * f).sum(dim=-1) + (target.weight * g).sum(dim=-1)
        # Of <plan, cost> at a constant plan.
        gradients = [
            torch.baddbmm(mass.unsqueeze(-1) * start, coupling, end, alpha=-1)
            for mass, start, coupling, end in (
                (plan.sum(dim=-1), points[0], plan, points[1]),
                (plan.sum(dim=-2), points[1], plan.mT, points[0]),
            )
            if any(point.requires_grad for point in points)
        ]
    value = with_gradients(dual, points, gradients) if gradients else dual
    return value, relative_entropy


@torch.no_grad()
def _in_pieces(solve: Callable[..., tuple[Tensor, Tensor]], *clouds: _Cloud) -> tuple[Tensor, Tensor]:
    """What ``solve`` makes of all problems, a cache full of them at a time."""
    source, target = clouds[0].weight, clouds[-1].weight
    limit = max(1, CPU_ENTRIES // (source.shape[1] * target.shape[1]))
    size = limit if on_cpu(source) else len(source)
    pieces = zip(*(zip(*(item.split(size) for item in cloud), strict=True) for cloud in clouds), strict=True)
    solved = [solve(*(_Cloud(*tensor) for tensor in piece)) for piece in pieces]
    first, second = (torch.cat(potentials) for potentials in zip(*solved, strict=True))
    return first, second


def _self_potential(epsilon: float, cloud: _Cloud) -> tuple[Tensor, Tensor]:
    """Both potentials of a set's transport to itself; they are equal, and 0 is near enough to begin with."""
    kernel = _exponential_(_costs(cloud, cloud).div_(-epsilon))
    scale = torch.ones_like(cloud.weight)
    for _ in range(SELF_SWEEPS):
        scale = (scale / _times(kernel, cloud.weight * scale)).sqrt()
    potential = epsilon * scale.log()
    return potential, potential


def _potentials(anneal: _Annealing, source: _Cloud, target: _Cloud) -> tuple[Tensor, Tensor]:
    """Potentials of source and target; the source's is optimal given the target's, so that its marginal is exact."""
    solver = optional("sinkhorn", "geomloss", "transport").SamplesLoss(
        "sinkhorn",
        p=2,
        blur=anneal.coarsest,
        diameter=anneal.diameter,
        scaling=anneal.scaling,
        debias=False,
        potentials=True,
        backend="tensorized",
    )
    with torch.set_grad_enabled(False):  # geomloss leaves gradients switched on
        f, g = solver(source.weight, source.points, target.weight, target.points)
    problem = _Problem(source.weight, target.weight, _costs(source, target))
    for epsilon in anneal.strengths(anneal.coarsest, anneal.scaling**2):
        f, g, _ = _refined(problem, f, epsilon, anneal.sweeps)
    if anneal.sweeps:
        # Mass by which the plan is off the target's marginal.
        kernel = _exponential_((f.unsqueeze(-1) + g.unsqueeze(-2) - problem.cost).div_(anneal.epsilon))
        lack = (problem.target * (_times(kernel.mT, problem.source) - 1).abs()).sum(dim=-1)
        rows = (lack > _allowed(problem, f, g, LATE)).nonzero().squeeze(-1)
        if len(rows):
            f[rows], g[rows] = _slowly(anneal, _Problem(*(tensor[rows] for tensor in problem)))
    return f, g


class _Problem(NamedTuple):
    """Probabilities of both sets, ``[B * H, n]`` and ``[B * H, m]``, and costs ``[B * H, n, m]``."""

    source: Tensor
    target: Tensor
    cost: Tensor


def _allowed(problem: _Problem, f: Tensor, g: Tensor, share: float) -> Tensor:
    """Mass ``[B * H]`` that costs a share of the dual objective at the largest distance."""
    dual = (problem.source * f).sum(dim=-1) + (problem.target * g).sum(dim=-1)
    return share * dual.clamp_min(0) / problem.cost.amax(dim=(-1, -2))


def _slowly(anneal: _Annealing, problem: _Problem) -> tuple[Tensor, Tensor]:
    """Potentials of hard problems: in small steps from the largest distance, at each until the marginals hold."""
    # While the plan hardly changes, the potentials are linear in the strength, so each step continues the last one.
    strengths = list(anneal.strengths(anneal.diameter, SLOW))
    f = before = torch.zeros_like(problem.source)
    rounding = 4 * torch.finfo(f.dtype).eps * problem.cost.amax(dim=(-1, -2))
    for index, epsilon in enumerate(strengths):
        start = f
        if index > 1:
            ratio = (strengths[index - 1] - epsilon) / (strengths[index - 2] - strengths[index - 1])
            start = f + ratio * (f - before)
        before = f
        f, g, lack = _refined(problem, start, epsilon, anneal.sweeps)
        for _ in range(FURTHER):
            late = lack > rounding / epsilon + _allowed(problem, f, g, SHARE)
            if not late.any():
                break
            *swept, still = _refined(problem, f, epsilon, 2 * BLOCK)
            f, g = (torch.where(late.unsqueeze(-1), *pair) for pair in zip(swept, (f, g), strict=True))
            lack = torch.where(late, still, lack)
    return f, g


def _refined(problem: _Problem, f: Tensor, epsilon: float, sweeps: int) -> tuple[Tensor, Tensor, Tensor]:
    """Two plain updates, then the sweeps where they ascend: the potentials, and the mass that the sweeps lack."""
    source, target, cost = problem
    g = _best_response(cost.mT, f, source, epsilon)
    f = _best_response(cost, g, target, epsilon)
    if not sweeps:
        return f, g, torch.zeros_like(f[:, 0])
    *swept, lack = _swept(problem, f, g, epsilon, sweeps)
    # Over-relaxation need not ascend; a set that it led astray keeps what it had.
    gain = (source * (swept[0] - f)).sum(dim=-1) + (target * (swept[1] - g)).sum(dim=-1)
    better = (gain >= 0).unsqueeze(-1)
    f, g = (torch.where(better, *pair) for pair in zip(swept, (f, g), strict=True))
    return f, g, lack


def _best_response(cost: Tensor, g: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """The source's potential that is optimal given the target's."""
    logits = torch.sub((g / epsilon + weight.log()).unsqueeze(-2), cost, alpha=1 / epsilon)  # [B * H, n, m]
    largest = logits.amax(dim=-1, keepdim=True)
    return -epsilon * (_exponential_(logits.sub_(largest)).sum(dim=-1).log() + largest.squeeze(-1))


def _swept(
    problem: _Problem, f: Tensor, g: Tensor, epsilon: float, sweeps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Potentials after over-relaxed updates, and the mass by which both marginals were off before the last sweep."""
    # As factors of a kernel: products with a matrix, no exponentials.
    source, target, cost = problem
    kernel, lack = torch.empty_like(cost), torch.zeros_like(f[:, 0])
    for done in range(0, sweeps, BLOCK):
        torch.add((f / epsilon).unsqueeze(-1), (g / epsilon).unsqueeze(-2), out=kernel)
        _exponential_(kernel.sub_(cost, alpha=1 / epsilon))
        u, v = torch.ones_like(f), torch.ones_like(g)
        for _ in range(min(BLOCK, sweeps - done)):
            of_source = _times(kernel, target * v)
            lack = (source * (u * of_source - 1).abs()).sum(dim=-1)
            u = _relaxed(u, of_source)
            of_target = _times(kernel.mT, source * u)
            lack += (target * (v * of_target - 1).abs()).sum(dim=-1)
            v = _relaxed(v, of_target)
        f, g = f + epsilon * u.log(), g + epsilon * v.log()
    return _best_response(cost, g, target, epsilon), g, lack


def _relaxed(factor: Tensor, marginal: Tensor) -> Tensor:
    """Between ``factor`` and its update ``1 / marginal``, beyond the latter, as a geometric mean."""
    marginal = marginal.clamp_(1 / LIMIT, LIMIT)
    return (factor * marginal).pow_(1 - RELAXATION).div_(marginal).clamp_(1 / LIMIT, LIMIT)


def _exponential_(logits: Tensor) -> Tensor:
    """``exp``, in place, of no less than :data:`LEAST_LOGIT`: where it underflows it is several times slower."""
    return logits.clamp_min_(LEAST_LOGIT).exp_()


def _times(kernel: Tensor, vector: Tensor) -> Tensor:
    """``[B * H, n]``, the kernel ``[B * H, n, m]`` times ``[B * H, m]``, as a row vector, which is much faster."""
    return torch.bmm(vector.unsqueeze(1), kernel.mT).squeeze(1)
