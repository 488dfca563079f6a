"""Where the first-order expansion is kept and where draws replace it, row by row, against many draws."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as hf
from scipy import stats

import probattn
from probattn.inference import Moments, posterior_moments, posterior_predict
from probattn.inference.expansion import expansion_pays
from probattn.inference.expansion_check import (
    DOUBT,
    FAR,
    LAST,
    LOCAL,
    MORE,
    NEAR,
    STEP,
    WIDE,
    Expansion,
    Limits,
    PredictedModel,
    Residuals,
    SiteSlopes,
    deviations,
)
from probattn.inference.moments import MomentCheck, moments_of_draws
from probattn.inference.posterior import Posterior
from probattn.models import convert, program_for
from probattn.sites.posterior import mean_variances
from probattn.sites.upward import UpwardCall

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
LOGNORMAL = probattn.BayesianAttention(posterior="lognormal")


def network(method=LOGNORMAL, std=0.3, queries=1.0, **options):
    torch.manual_seed(3)
    config = hf.BertConfig(**SIZES, vocab_size=60, max_position_embeddings=64, **options)
    net = hf.BertForSequenceClassification(config)
    for name, parameter in net.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=std)
        if "query.weight" in name:
            parameter.data.mul_(queries)
    return convert(net, method).eval()


def rows(number=5, length=12):
    ids = torch.randint(3, 60, (number, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    for row in range(1, number):
        mask[row, length - 2 * row :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def ratios(net, batch, number=300):
    """Standard deviation of draws over that of the expansion, by row."""
    moments = posterior_moments(net, batch, method="expansion")
    logits = posterior_predict(net, batch, number, seed=5, chunk_size=60).logits
    pair = logits.gather(-1, moments.classes[:, :2].expand(number, -1, -1))
    return (pair[..., 0] - pair[..., 1]).std(dim=0) / moments.difference_std()


def test_rows_whose_standard_deviation_is_wrong_are_replaced_and_others_kept():
    net = network(
        queries=30.0
    )  # a saturated softmax: c^2 is 0.28, and one row varies three times as computed
    ratio = ratios(net, rows())
    off = ratio.log().abs().exp()
    assert off.max() > 2 and off.min() < 1.15
    with pytest.warns(UserWarning, match=r"the first-order expansion does not hold for \d of 5 rows"):
        moments = posterior_moments(net, rows())
    assert moments.source == "mixed"
    # 300 draws know a standard deviation to 4%, of tails like these to 10%.
    assert off[~moments.drawn].max() < 1.6 and moments.drawn[off > 1.8].all() and not moments.drawn.all()
    assert set(moments.num_samples[moments.drawn].tolist()) <= {20, 20 * MORE}
    assert not moments.num_samples[~moments.drawn].any()
    expansion = posterior_moments(net, rows(), method="expansion")
    torch.testing.assert_close(moments.logits[~moments.drawn], expansion.logits[~moments.drawn])
    torch.testing.assert_close(moments.covariance[~moments.drawn], expansion.covariance[~moments.drawn])
    drawn = (moments.difference_std() / expansion.difference_std() / ratio)[moments.drawn]
    assert ((drawn > 0.4) & (drawn < 2)).all()


@pytest.mark.parametrize(
    "method",
    [
        probattn.BayesianAttention.bam(0.3),  # all but linear, yet c^2 is 29
        probattn.BayesianAttention.bam(0.01),  # whose c^2 is beyond float32
        probattn.BayesianAttention(posterior="lognormal", scale=14.0),  # and Var[f] 1e-10
        probattn.BayesianAttention(posterior="lognormal", scale=30.0),  # whose Var[f] is too
    ],
    ids=["bam 0.3", "bam 0.01", "lognormal 14", "lognormal 30"],
)
def test_very_wide_weights_are_refused(method):
    net = network(method, std=0.02)
    with pytest.warns(UserWarning, match="does not hold for 5 of 5 rows"):
        moments = posterior_moments(net, rows())
    assert moments.source == "draws" and moments.relative_variance.min() > 10


def test_draws_decide_where_weights_are_wide_though_the_two_points_are_near():
    """The steepest direction is straight, and weights that act on one another add three quarters to the deviation."""
    net = network(probattn.BayesianAttention(sigma=1.0, rho=0.6), num_labels=3)
    torch.manual_seed(1)
    for name, parameter in net.named_parameters():
        if "upward" in name or "prior" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    ratio = ratios(net, rows())
    with pytest.warns(UserWarning, match="does not hold for"):
        moments = posterior_moments(net, rows())
    assert ((moments.relative_variance > LOCAL) & (moments.relative_variance < WIDE)).all()
    assert moments.check.rows == 5 and ratio.max() > 1.6 and moments.drawn[ratio > 1.4].all()


@pytest.mark.parametrize(
    "method",
    [
        LOGNORMAL,
        probattn.BayesianAttention(),
        probattn.BayesianAttention(sigma=0.3),
        probattn.BayesianAttention.bam(2.0),
    ],
    ids=["lognormal", "babn", "scale", "bam"],
)
def test_predictions_of_draws_have_the_variance_of_the_closed_form(method):
    net, batch = network(method, std=0.15), rows(2)
    moments = posterior_moments(net, batch, method="expansion", attribution=True)
    with torch.no_grad(), Expansion() as expansion:
        net(**batch)
    sites = {
        name: (slope.flatten(1)[None], expansion.points[name].weights.flatten(1))
        for name, slope in moments.slope.items()
    }
    model = PredictedModel(program_for(net), sites)
    drawn = posterior_predict(model, batch, 400, chunk_size=100).logits
    predicted = torch.cat(model.predicted)[..., 0]
    # 400 draws know a standard deviation to 3.5%; this near to linear, predictions are those of the network.
    assert (predicted.std(dim=0) / moments.difference_std()).log().abs().max() < 0.14
    pair = drawn.gather(-1, moments.classes[:, :2].expand(400, -1, -1))
    for row in range(2):
        assert np.corrcoef(predicted[:, row], pair[:, row, 0] - pair[:, row, 1])[0, 1] > 0.9


def test_the_relative_variance_is_that_of_the_distribution_where_its_scale_is_learned():
    net = network(probattn.BayesianAttention(sigma=1.0, rho=0.5)).double()
    with torch.no_grad(), Expansion() as expansion:
        net(**rows())
    for point in expansion.points.values():
        places = (point.weights.view(-1) > 0).nonzero().squeeze(1)
        law = point.inputs.distribution()
        expected = (law.variance / law.mean.square()).view(-1)[places]
        torch.testing.assert_close(
            mean_variances([point], len(point.weights), places).first, expected, rtol=1e-4, atol=0
        )


def test_draws_that_rounding_makes_equal_leave_a_data_set_in_closed_form():
    net = network(probattn.BayesianAttention.bam(1.0), std=0.02)
    for name, parameter in net.named_parameters():
        if "value" in name or "attention.output.dense" in name:
            parameter.data.mul_(1e-3)
    net.classifier.bias.data.copy_(torch.tensor([4.0, -4.0]))
    net, batch = net.bfloat16(), rows(4)
    assert posterior_predict(net, batch, 20).logits.float().std(dim=0).max() == 0
    moments = posterior_moments(
        net, [{name: value[row] for name, value in batch.items()} for row in range(4)]
    )
    assert moments.source == "expansion" and moments.covariance.isfinite().all()


def test_joined_parts_keep_what_each_row_is_from():
    closed = Moments(torch.zeros(2, 2), torch.tensor([[0, 1]] * 2), torch.zeros(2, 2, 2))
    some = moments_of_draws(Posterior(torch.randn(7, 1, 2)), torch.tensor([[0, 1]]))
    nothing = replace(closed, check=MomentCheck(0.0, 0.1, 2, 20, 0.0))  # draws that do not vary
    joined = Moments.together([nothing, replace(some, check=MomentCheck(1.3, 0.2, 1, 7, 0.4)), closed])
    assert joined.check.residual == 0.4
    assert (joined.source, joined.num_samples.tolist()) == ("mixed", [0, 0, 7, 0, 0])
    assert joined.rows(torch.tensor([2])).source == "draws"
    assert joined.rows(torch.tensor([0, 4])).source == "expansion"
    assert joined.rows(torch.tensor([0, 4])).num_samples is None
    assert joined.drawn.tolist() == [False, False, True, False, False]


def test_moments_of_draws_are_those_of_numpy():
    logits = torch.randn(5, 3, 4, dtype=torch.float64)
    classes = torch.tensor([[2, 0], [1, 3], [0, 1]])
    moments = moments_of_draws(Posterior(logits, link="sigmoid"), classes)
    for row in range(3):
        expected = np.cov(logits[:, row, classes[row]].numpy().T)
        np.testing.assert_allclose(moments.covariance[row].numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(moments.logits.numpy(), logits.numpy().mean(axis=0))


def test_the_expansion_costs_less_up_to_one_derivative_and_a_half_for_each_draw():
    for positions, pays in (
        (6, True),
        (7, False),
    ):  # five differences of six classes each; 20 draws count as 30
        assert expansion_pays(torch.zeros(20, 1, positions, 9), 20, "softmax") is pays
    for link in ("softmax", "identity"):  # seven positions of one difference, or of two numbers
        assert expansion_pays(torch.zeros(20, 1, 7, 2), 20, link)


def test_what_is_printed_has_means_and_standard_deviations():
    moments = posterior_moments(network(std=0.1), rows(5), method="expansion")
    lines = str(moments).splitlines()
    assert len(lines) == 5 and lines[-1] == "  ..."
    best = moments.classes[0, 0]
    mean, std = moments.mean[0, best], moments.std[0, best]
    assert lines[1].startswith(
        f"  row 0: class {best} {mean:.3f} ± {std:.3f}, class {moments.classes[0, 1]} "
    )


def pairs(numbers):
    """Logits of two classes with these differences."""
    return torch.stack([numbers, torch.zeros_like(numbers)], dim=-1)


def normal(mean, std):
    """Moments of two logits whose difference has these means and standard deviations."""
    variance = (torch.tensor(std).square() / 4)[:, None, None]
    classes = torch.tensor([[0, 1]] * len(mean))
    return Moments(pairs(torch.tensor(mean)), classes, variance * torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))


def test_residuals_are_those_of_numpy():
    torch.manual_seed(0)
    mean, std = [0.5, -1.0, 2.0], [1.0, 0.5, 2.0]
    expanded = normal(mean, std)
    predicted = torch.randn(20, 3) * torch.tensor(std)
    drawn = torch.tensor(mean) + predicted * torch.tensor([1.0, 0.5, 2.0]) + 0.3 * torch.randn(20, 3)
    residuals = Residuals.of(expanded, pairs(drawn), predicted)
    rest = (drawn - torch.tensor(mean) - predicted).numpy()
    np.testing.assert_allclose(residuals.variance, rest.var(axis=0, ddof=1) / np.square(std), rtol=1e-4)
    np.testing.assert_allclose(residuals.bias, np.abs(rest.mean(axis=0)) / std, rtol=1e-3)
    ratio = drawn.numpy().std(axis=0) / predicted.numpy().std(axis=0)
    np.testing.assert_allclose(residuals.ratio, np.maximum(ratio, 1 / ratio), rtol=1e-4)
    deviation = drawn.numpy().std(axis=0, ddof=1) / std
    np.testing.assert_allclose(residuals.deviation, np.maximum(deviation, 1 / deviation), rtol=1e-4)
    worst = int(residuals.variance.argmax())
    check = residuals.check(20)
    assert check[2:4] == (3, 20)
    assert check.ratio == pytest.approx(ratio[worst], rel=1e-4)
    assert check.bias == residuals.bias[worst] and check.residual == residuals.variance[worst]
    others = Residuals(*(values[:2] for values in residuals)).check(20)
    assert others.ratio == pytest.approx(ratio[1], rel=1e-4) and ratio[1] < 1


def test_deviations_at_two_standard_deviations_of_a_curve():
    mean, std, curve = torch.tensor([0.5, -1.0]), torch.tensor([1.0, 0.5]), torch.tensor([0.1, -0.2])
    sites = {"site": SiteSlopes(torch.ones(1, 2, 1), torch.ones(2, 1), torch.ones(1, 2, 1))}

    def predict(factors):
        steps = factors["site"][:, 0]  # in standard deviations
        return pairs(mean + std * steps + curve * steps**2)

    found = deviations(normal(mean.tolist(), std.tolist()), sites, predict)
    torch.testing.assert_close(found, 4 * curve.abs() / std, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("limits", [NEAR, FAR, LAST])
def test_each_limit_alone_gives_a_row_up(limits):
    rows = torch.tensor(
        [list(limits)] + [[v * (1 + 1e-3 * (i == j)) for j, v in enumerate(limits)] for i in range(4)]
    )
    residuals = Residuals(*rows.T, torch.zeros(5, dtype=torch.bool))
    assert residuals.beyond(Limits(*map(float, rows[0]))).tolist() == [False, True, True, True, True]
    assert NEAR.variance < LAST.variance < FAR.variance and NEAR.ratio < LAST.ratio < FAR.ratio


def test_draws_that_vary_half_as_much_as_computed_are_evidence_though_predictions_of_them_are_exact():
    """As where large values are too seldom to be among them."""
    torch.manual_seed(0)
    predicted = torch.randn(20, 2)
    predicted = predicted / predicted.std(dim=0) * torch.tensor([1.0, 0.5])
    residuals = Residuals.of(normal([0.0, 0.0], [1.0, 1.0]), pairs(predicted), predicted)
    torch.testing.assert_close(residuals.deviation, torch.tensor([1.0, 2.0]), rtol=1e-4, atol=0)
    assert residuals.beyond(NEAR).tolist() == residuals.beyond(LAST).tolist() == [False, True]
    few = Residuals.of(normal([0.0, 0.0], [1.0, 1.0]), pairs(predicted[1:]), predicted[1:])
    assert few.deviation.tolist() == [1.0, 1.0]  # 19 draws say too little of a standard deviation


@pytest.mark.parametrize(("variance", "share"), [(0.25, 0.998), (0.5, 0.11), (0.66, 0.005)])
def test_how_often_a_row_is_kept_by_the_distribution_of_its_residual_variance(variance, share):
    first, more = stats.chi2(19), stats.chi2(20 * MORE - 1)
    near, far = (first.cdf(19 * limits.variance / variance) for limits in (NEAR, FAR))
    kept = near + (far - near) * more.cdf((20 * MORE - 1) * LAST.variance / variance)
    assert kept == pytest.approx(share, rel=0.1)  # as the docstring of posterior_moments states


def test_the_rule_has_the_numbers_that_the_documentation_states():
    words = " ".join(posterior_moments.__doc__.split())
    variance, mean, ratio, deviation = (
        ", ".join(f"{value:g}" for value in values) for values in zip(NEAR, FAR, LAST, strict=True)
    )
    assert (
        f"over :math:`\\sigma^2`: {variance}; of |its mean| over :math:`\\sigma`: {mean}; of sd(z)" in words
    )
    assert f"over sd(l): {ratio}; with 20 draws or more, of sd(z) over :math:`\\sigma`: {deviation}." in words
    assert "three times as many new draws decide, by the third" in words
    assert f"the relative variance is at most {LOCAL:g} " in words
    assert f"relative variance above {WIDE:g} " in words and MORE == 3
    assert (
        f":math:`z_0 \\pm {STEP:g} \\sigma`. If both results differ from these by at most :math:`{DOUBT} \\sigma`"
        in words
    )


def test_a_prediction_without_variance_has_no_share_of_it():
    net = network()
    torch.nn.init.zeros_(net.classifier.weight)
    moments = posterior_moments(net, rows(), attribution=True)
    assert moments.source == "expansion" and not moments.covariance.any()
    for share in moments.noise_share.values():
        assert torch.equal(share, torch.zeros_like(share))
    assert torch.equal(moments.relative_variance, torch.zeros(5))


def test_draws_replace_the_expansion_of_rounded_predictions_which_have_no_derivative():
    net = network()
    net.bert.pooler.register_forward_hook(lambda *args: (args[-1] * 4).round() / 4)
    with pytest.warns(UserWarning, match=r"for 5 of 5 rows \(residual variance up to inf\)"):
        moments = posterior_moments(net, rows())
    draws = posterior_predict(net, rows(), 300, seed=5)
    assert moments.source == "draws" and (moments.std.max(dim=-1).values > 0.01).all()
    torch.testing.assert_close(moments.std, draws.std, rtol=0.5, atol=0.02)


def test_points_at_two_standard_deviations_need_no_concentrations(monkeypatch):
    outputs, calls = UpwardCall.outputs, []
    monkeypatch.setattr(UpwardCall, "outputs", lambda *args: calls.append(1) or outputs(*args))
    net = network(probattn.BayesianAttention(), std=0.1)
    posterior_moments(net, rows(1), method="expansion")
    number = len(calls)
    assert number == 2  # of two layers
    assert posterior_moments(net, rows(1)).check is None
    assert len(calls) == 2 * number


class OwnNetwork(torch.nn.Module):
    """A network whose rows nobody knows to be apart."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, **inputs):
        return self.net(**inputs).logits


def with_own_head(net):
    net.classifier = OwnHead(net.classifier)
    return net


def with_own_forward(net):
    net.classifier.forward = net.classifier.forward
    return net


class OwnHead(torch.nn.Module):
    """A head that could make rows depend on each other."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, hidden):
        return self.head(hidden)


@pytest.mark.parametrize(
    ("wrap", "passes"),
    [(lambda net: net, 1), (OwnNetwork, 2), (with_own_head, 2), (with_own_forward, 2)],
    ids=["hf", "own", "own head", "own forward"],
)
def test_a_row_runs_alone_where_nothing_else_tells_that_rows_are_apart(wrap, passes):
    net = network(std=0.1)
    sizes = []
    net.bert.embeddings.register_forward_pre_hook(
        lambda *given: sizes.append(len(given[2]["input_ids"])), with_kwargs=True
    )
    posterior_moments(wrap(net), rows(3), method="expansion")
    assert sizes == [3, 1][:passes]


def test_derivatives_need_no_prior(monkeypatch):
    net, batch = network(probattn.BayesianAttention(), std=0.1), rows(2)
    expected = posterior_moments(net, batch, method="expansion")

    def refuse(*_):
        raise AssertionError("a prior was made")

    monkeypatch.setattr(probattn.sites.prior.ContextualPrior, "logits", refuse)
    assert posterior_moments(net, batch, method="expansion").covariance.equal(expected.covariance)


def test_rows_that_more_draws_decide_have_the_moments_of_these(monkeypatch):
    monkeypatch.setattr("probattn.inference.expansion.DOUBT", -1.0)  # every row is drawn
    unclear = Limits(-1.0, *[float("inf")] * 3)
    monkeypatch.setattr("probattn.inference.expansion.NEAR", unclear)
    monkeypatch.setattr("probattn.inference.expansion.FAR", Limits(*[float("inf")] * 4))
    monkeypatch.setattr("probattn.inference.expansion.LAST", unclear)
    net, batch = network(std=0.1), rows(3)
    with pytest.warns(UserWarning, match="moments of draws"):
        moments = posterior_moments(net, batch, num_samples=8, seed=4)
    assert moments.num_samples.tolist() == [8 * MORE] * 3
    draws = posterior_predict(net, batch, 8 * MORE, seed=(4, 1))
    torch.testing.assert_close(moments.logits, draws.logits.mean(dim=0), rtol=1e-5, atol=1e-5)
