"""The KL of one call in one sweep against the distributions' own, and how it is reduced."""

import pytest
import torch
from torch.distributions import kl_divergence
from torch.nn import functional as F

from probattn import BayesianAttention
from probattn.distributions import Gamma, LogNormal, Weibull
from probattn.sites import AttentionMask
from probattn.sites.layout import PAIRS
from probattn.sites.noise import GlobalNoise
from probattn.sites.posterior import PosteriorInputs, SitePosterior
from probattn.sites.upward import UpwardOutputs

SHAPE = (2, 3, 4, 5)
REAL = torch.tensor([[True, True, False, False], [True] * 4])
VALID = torch.tensor([[True, True, True, False, False], [True] * 5])[:, None, None, :]
MASKS = {
    "open": None,
    "padding": AttentionMask(VALID),
    "queries": AttentionMask(VALID.expand(-1, 1, 4, -1), REAL),
}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(method, scores, layout=PAIRS, **maps):
    """What a posterior follows from, with the upward path's output given."""
    return PosteriorInputs(method, scores, layout, computed=UpwardOutputs(**maps))


def call(method, log_alpha, mask):
    layout = PAIRS if mask is None else mask
    prior = Gamma(log_concentration=log_alpha, rate=method.rate).expand(torch.Size(SHAPE))
    rise = F.softplus(normal(*SHAPE, seed=1))
    return SitePosterior(inputs(method, normal(*SHAPE), layout, concentration=rise), prior)


@pytest.mark.parametrize("rate", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("mask", list(MASKS))
def test_the_kl_of_a_draw_is_that_of_the_distributions(rate, rows, mask):
    """With a rate that is not 1, and a prior by key or by pair."""
    posterior = call(BayesianAttention(rate=rate), normal(2, 3, rows, 5, seed=2), MASKS[mask])
    posterior.draw(GlobalNoise())
    elementwise = kl_divergence(posterior.distribution, posterior.prior)
    weight = torch.ones(SHAPE, dtype=torch.float64)
    if MASKS[mask] is not None:
        weight = MASKS[mask].pair_weight.expand(SHAPE).double()
    torch.testing.assert_close(posterior.kl(), (elementwise * weight).sum(dim=(1, 2, 3)))


@pytest.mark.parametrize(("posterior", "kind"), [("weibull", Weibull), ("lognormal", LogNormal)])
def test_a_posterior_has_the_scores_for_its_mean(posterior, kind):
    method = BayesianAttention(posterior=posterior, concentration="learned", scale=0.8, scores="raw")
    law = PosteriorInputs(method, normal(*SHAPE)).distribution()
    assert isinstance(law, kind)
    torch.testing.assert_close(law.mean, normal(*SHAPE).exp())


@pytest.mark.parametrize("mask", list(MASKS))
def test_reductions_count_pairs_and_queries(mask):
    """However a mask is laid out: one row for all queries counts as often as there are queries."""
    layout = PAIRS if MASKS[mask] is None else MASKS[mask]
    weight = torch.ones(SHAPE) if layout is PAIRS else layout.pair_weight.expand(SHAPE)
    pairs = weight.sum(dim=(1, 2, 3))
    queries = weight.amax(dim=-1).sum(dim=(1, 2))
    for reduction, count in (("mean", pairs), ("keys", queries), ("sum", torch.ones(2))):
        factor = (
            torch.as_tensor(layout.reduction_factor(reduction, torch.Size(SHAPE), torch.float32))
            .float()
            .expand(2)
        )
        torch.testing.assert_close(factor, 1 / count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_factor_is_as_exact_as_its_type(dtype):
    """One over 3 * 4 * 3 pairs and over 3 * 4 queries is no number of single precision."""
    mask = MASKS["padding"]
    for reduction, count in (("mean", 36), ("keys", 12)):
        factor = mask.reduction_factor(reduction, torch.Size(SHAPE), dtype)
        assert factor.dtype == dtype
        assert factor[0] == torch.tensor(1, dtype=dtype) / count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_learned_scale_that_vanishes_leaves_the_mean_and_finite_gradients(dtype):
    """softplus of -1000 is 0 in either type: lambda is exp(Phi) / Gamma(1 + 1/k), as with sigma = 0."""
    method = BayesianAttention(sigma=0.5, concentration="learned", scores="raw")
    scores = normal(*SHAPE).to(dtype).requires_grad_()
    scale = torch.full(SHAPE, -1000.0, dtype=dtype, requires_grad=True)
    concentration = F.softplus(normal(*SHAPE, seed=1)).to(dtype)
    law = inputs(method, scores, concentration=concentration, scale=F.softplus(scale)).distribution()
    without = inputs(method, scores, concentration=concentration).distribution()
    torch.testing.assert_close(law.mean, without.mean)
    gradients = torch.autograd.grad(law.mean.sum(), [scores, scale])
    assert all(bool(each.isfinite().all()) for each in gradients)
    torch.testing.assert_close(gradients[0], scores.detach().exp())
    assert bool((gradients[1] == 0).all())


@pytest.mark.parametrize("mask", list(MASKS))
def test_a_sweep_in_pieces_is_the_sweep(monkeypatch, mask):
    """Large maps are cut along the batch; mask, prior and gradients are those of each piece's own rows."""
    results = []
    for piece in (1, 2**18):
        monkeypatch.setattr("probattn.sites.fused.CPU_PIECE", piece)
        log_alpha = normal(2, 3, 1, 5, seed=2).requires_grad_()
        posterior = call(BayesianAttention(), log_alpha, MASKS[mask])
        posterior.inputs.raw.requires_grad_()
        torch.manual_seed(3)
        drawn = posterior.draw(GlobalNoise())
        kl = posterior.kl()
        weight = torch.arange(1, 3, dtype=torch.float64)
        loss = (kl * weight).sum() + drawn.log().sum()
        results.append((drawn, kl, *torch.autograd.grad(loss, [log_alpha, posterior.inputs.raw])))
    for apart, whole in zip(*results, strict=True):
        torch.testing.assert_close(apart, whole)
