"""Draws for predictions are those of the site's own posterior, drawn with the same noise."""

import math

import pytest
import torch
from scipy import special

from probattn import BayesianAttention
from probattn.inference import AttentionGuide
from probattn.sites import AttentionMask, SeededNoise, SiteSpec, posterior
from probattn.sites.fused import CPU_PIECE, draw_weights
from probattn.sites.layout import PAIRS
from probattn.sites.mixes import UpwardMaps
from probattn.sites.site import AttentionSite
from probattn.sites.upward import SharedUpward, UpwardChain
from probattn.sites.weibull import WeibullConstants

SHAPE = (4, 2, 5, 7)
on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])


def with_minima(values):
    return values, values.flatten(1).amin(dim=1).tolist()


def by_hand(scores, positive, uniform, rho, floor):
    """S and W in float64 from scipy's gamma function."""
    scores, uniform = scores.double(), uniform.double().clamp_min(torch.finfo(torch.float32).eps)
    phi = torch.log_softmax(scores, dim=-1)
    k = rho * positive.double().repeat(len(scores) // len(positive), 1, 1, 1) + phi.exp() + floor
    logs = phi - torch.from_numpy(special.gammaln(1 + 1 / k.numpy())) + torch.log(-torch.log(uniform)) / k
    return logs, torch.softmax(logs, dim=-1)


@pytest.mark.parametrize("low", [3.0, 1.2, 0.6, 0.1, 0.004])
@pytest.mark.parametrize("floor", [0.0, 0.3])
@on_devices
def test_against_float64(low, floor, device):
    torch.manual_seed(1)
    scores, uniform = 3 * torch.randn(SHAPE), torch.rand(SHAPE)
    positive = low + torch.rand(2, *SHAPE[1:])
    positive[1] += 1  # rows of one call may take different ways
    logs, weights = by_hand(scores, positive, uniform, 1.0, floor)
    moved = scores.clone().to(device), *with_minima(positive.to(device)), uniform.clone().to(device)
    value, found = (tensor.cpu() for tensor in draw_weights(*moved, WeibullConstants(1.0, floor, 1.0)))
    assert value.isfinite().all() and (value >= 0).all()
    inside = logs > math.log(torch.finfo(torch.float32).tiny)
    torch.testing.assert_close(value.double()[inside].log(), logs[inside], atol=3e-5, rtol=3e-6)
    torch.testing.assert_close(found.double(), weights, atol=3e-6, rtol=3e-5)
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(SHAPE[:-1]))


def test_pieces_of_large_maps():
    torch.manual_seed(2)
    scores, uniform = torch.randn(6, 2, 300, 400), torch.rand(6, 2, 300, 400)
    assert scores[0].numel() * 2 > CPU_PIECE > scores[0].numel()
    positive = torch.rand(3, *scores.shape[1:]) + 0.5
    _, weights = by_hand(scores, positive, uniform, 4.0, 0.0)
    _, found = draw_weights(scores, *with_minima(positive), uniform, WeibullConstants(4.0, 0.0, 1.0))
    torch.testing.assert_close(found.double(), weights, atol=3e-6, rtol=1e-4)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_scores_and_noise_stay_finite(size):
    scores = torch.zeros(1, 1, 2, 3)
    scores[..., 0] = size
    uniform = torch.tensor([0.0, 0.5, 1 - 2**-24]).expand_as(scores).clone()
    for low in (2.0, 0.01):
        value, weights = draw_weights(
            scores.clone(),
            *with_minima(torch.full_like(scores, low)),
            uniform.clone(),
            WeibullConstants(1.0, 0.0, 1.0),
        )
        assert value.isfinite().all() and weights.isfinite().all()


def sites(calls, method=None):
    torch.manual_seed(0)
    method, spec, chain = method or BayesianAttention(), SiteSpec(num_heads=2, head_dim=3), UpwardChain()
    return [AttentionSite(method, spec, chain).eval() for _ in range(calls)]


def padding(rows, device="cpu"):
    valid = torch.arange(5, device=device)[None] < torch.tensor([5, 3, 0], device=device)[:, None]
    return AttentionMask(valid[:, None, None].repeat(rows // 3, 1, 5, 1), valid.repeat(rows // 3, 1))


METHODS = [
    BayesianAttention(),
    BayesianAttention(noise="truncated", floor=0.2, upward="positions", max_positions=9),
    BayesianAttention(rho=0.05),
    BayesianAttention.paper(max_positions=9),
    BayesianAttention(scores="raw"),
    BayesianAttention(sigma=0.5),
    BayesianAttention(rho=0.0, floor=0.4),
    BayesianAttention.bam(),
    BayesianAttention.bam(posterior="lognormal"),
]


@pytest.mark.parametrize(
    ("method", "fused"), [(BayesianAttention(), True), (BayesianAttention(scores="raw"), False)]
)
def test_the_default_is_drawn_with_its_weights_at_once(monkeypatch, method, fused):
    taken = []
    monkeypatch.setattr(posterior, "draw_weights", lambda *given: taken.append(1) or draw_weights(*given))
    (site,) = sites(1, method)
    scores = torch.randn(1, 2, 3, 3)

    class Predicting(AttentionGuide):
        def _draw(self, msg, q):
            msg["value"] = q.predict(self.noise, SharedUpward())

    def network():
        return site("site", scores, scores, scores)

    with torch.no_grad(), Predicting(network, noise=SeededNoise([0], "cpu")):
        network()
    assert bool(taken) == fused


@pytest.mark.parametrize("method", METHODS, ids=str)
@on_devices
def test_a_prediction_is_a_draw_of_the_guide(method, device):
    """Three calls in a chain, two draws folded and one alone, against the guide of training draw by draw."""
    chain = [site.to(device) for site in sites(3, method)]
    torch.manual_seed(3)
    tokens = torch.randn(3, 2, 5, 3).to(device)
    shared, seeds, found = SharedUpward(), [5, 6, 7], []

    def network(rows):
        hidden, mask, weights = tokens.repeat(rows // 3, 1, 1, 1), padding(rows, device), []
        for number, site in enumerate(chain):
            hidden, own = site(f"site{number}", hidden, hidden, hidden, mask)
            weights.append(own)
        return torch.stack(weights, dim=1)

    class Predicting(AttentionGuide):
        def _draw(self, msg, posterior):
            msg["value"] = posterior.predict(self.noise, shared)

    with torch.no_grad():
        for part in (seeds[:2], seeds[2:]):
            with Predicting(network, noise=SeededNoise(part, device)):
                found.append(network(3 * len(part)))
        expected = []
        for seed in seeds:
            with AttentionGuide(network, noise=SeededNoise([seed], device)):
                expected.append(network(3))
    torch.testing.assert_close(torch.cat(found), torch.cat(expected), atol=2e-5, rtol=1e-4)
    assert torch.cat(found)[2, 0].eq(0).all()  # a datum without tokens


def rows_of_paths(monkeypatch):
    """A list of the rows of every path that is computed from now on."""
    computed, compute = [], UpwardChain.compute

    def counted(chain, started, rows):
        computed.append(rows)
        return compute(chain, started, rows)

    monkeypatch.setattr(UpwardChain, "compute", counted)
    return computed


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_posterior_that_was_read_predicts_the_same(monkeypatch, method):
    """Reading q(S) before the prediction changes neither a draw nor what is shared with the next draws."""
    torch.manual_seed(3)
    tokens = torch.randn(3, 2, 5, 3)

    class Predicting(AttentionGuide):
        def __init__(self, model, seeds, shared, read):
            super().__init__(model, noise=SeededNoise(seeds, "cpu"))
            self.shared, self.read = shared, read

        def _draw(self, msg, posterior):
            if msg["name"] in self.read:
                assert posterior.distribution.mean.isfinite().all()
            msg["value"] = posterior.predict(self.noise, self.shared)

    def run(*read):
        chain, shared, outputs = sites(3, method), SharedUpward(), []
        computed = rows_of_paths(monkeypatch)

        def network(rows):
            hidden = tokens.repeat(rows // 3, 1, 1, 1)
            for number, site in enumerate(chain):
                hidden, _ = site(f"site{number}", hidden, hidden, hidden, padding(rows))
            return hidden

        with torch.no_grad():
            for seeds, names in (([5, 6], read), ([7], ())):
                with Predicting(network, seeds, shared, names):
                    outputs.append(network(3 * len(seeds)))
        return torch.cat(outputs), len(computed)

    plain, computed = run()
    assert computed == method.has_upward_path
    for read in (["site0"], ["site2"], ["site0", "site1", "site2"]):
        output, again = run(*read)
        assert torch.equal(output, plain)
        assert again == computed


def test_the_path_is_computed_once_for_draws_that_begin_alike(monkeypatch):
    chain, shared, computed = UpwardChain(), SharedUpward(), rows_of_paths(monkeypatch)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        maps = [UpwardMaps(BayesianAttention(), 1, None) for _ in range(2)]
    for own in maps:
        chain.join(own)

    def ask(scores, position, draws):
        return shared.outputs(chain.call(position, scores, PAIRS), draws)

    alike = torch.rand(2, 1, 3, 3).repeat(3, 1, 1, 1)
    first = ask(alike, 0, 3)
    assert ask(alike, 1, 3) is not first
    assert ask(alike[:2], 0, 1) is first  # the next pass, with fewer draws
    assert ask(alike[:2], 1, 1).concentration.shape == (2, 1, 3, 3)
    assert computed == [2]
    other = alike.clone()
    other[3] += 1  # draws that differ share nothing
    ask(other, 0, 3)
    ask(other, 1, 3)
    assert computed == [2, 6]
    ask(other[:2] + 1, 0, 1)  # another batch
    assert computed == [2, 6, 2]
    chain.call(0, other[:2] + 2, PAIRS)  # a pass whose first call asks for nothing
    ask(other[:2], 1, 1)
    assert computed == [2, 6, 2, 2]


def test_a_call_of_a_shared_path_is_cut_and_repeated_to_the_rows_asked_for():
    chain, scores = UpwardChain(), torch.rand(2, 1, 3, 3).repeat(3, 1, 1, 1)
    maps = UpwardMaps(BayesianAttention(), 1, None)
    chain.join(maps)
    whole = chain.call(0, scores, PAIRS).outputs(6)
    for first, then in ((2, 6), (6, 2)):
        call = chain.call(0, scores, PAIRS)
        assert len(call.outputs(first).concentration) == first
        torch.testing.assert_close(call.outputs(then).concentration, whole.concentration[:then])
