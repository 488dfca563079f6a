"""Closed-form moments of predictions: against draws, quadrature and scipy, for every family, head and posterior."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as hf
from scipy import integrate, special, stats
from torch.utils.data import DataLoader

import probattn
from probattn.data.node_graph import NodeGraph
from probattn.inference import Moments, Posterior, posterior_moments, posterior_predict
from probattn.inference import moments as moments_module
from probattn.metrics.functional import mutual_information
from probattn.models import Classifier, convert, program_for
from probattn.models.graph import GraphAttentionNetwork, NodeClassifier
from probattn.sites.main_effects import variances

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
NARROW = probattn.BayesianAttention.bam(10.0)


def network(head="SequenceClassification", method=NARROW, **options):
    torch.manual_seed(0)
    config = hf.BertConfig(**SIZES, vocab_size=40, initializer_range=0.2, **options)
    return convert(getattr(hf, f"BertFor{head}")(config), method).eval()


def rows(number=6, length=7):
    ids = torch.randint(3, 40, (number, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, length - 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


class Logits(torch.nn.Module):
    """The first prediction of every row of a network of any family."""

    def __init__(self, net, logits):
        super().__init__()
        self.net, self.logits = net, logits

    def forward(self, inputs):
        found = self.logits(self.net(**inputs))
        return found if found.dim() == 2 else found[:, -1]


class Recurrent(torch.nn.Module):
    """An LSTM reads what a network gives; it notes whether cuDNN, which differentiates none in evaluation, may run."""

    def __init__(self, net):
        super().__init__()
        self.net, self.allowed = net, []
        self.lstm = torch.nn.LSTM(net.config.num_labels, 2, batch_first=True)

    def forward(self, inputs):
        self.allowed.append(torch.backends.cudnn.enabled)
        return self.lstm(self.net(**inputs).logits[:, None])[0][:, 0]


def difference(posterior, moments):
    """The number that is attributed, of draws."""
    leading = posterior.logits.gather(
        -1, moments.classes.expand(len(posterior.logits), *moments.classes.shape)
    )
    return leading[..., 0] - leading[..., 1]


@pytest.mark.parametrize("weight", [1e-4, 0.01, 0.1, 0.6, 0.95])
@pytest.mark.parametrize(
    ("noise", "spread", "law"),
    [
        ("exact", 0.3, stats.weibull_min(0.3)),
        ("exact", 0.7, stats.weibull_min(0.7)),
        ("exact", 3.0, stats.weibull_min(3.0)),
        ("normal", 0.5, stats.lognorm(0.5)),
        ("normal", 1.0, stats.lognorm(1.0)),
        ("normal", 2.0, stats.lognorm(2.0)),
    ],
)
def test_variances_of_one_weight_against_scipy(noise, spread, law, weight):
    mean = law.mean()

    def expected(function):
        def of(normal):  # f at a quantile, in a variable in which the tail is no corner
            return function(law.isf(special.ndtr(-normal)) / mean - 1) * stats.norm.pdf(normal)

        return integrate.quad(of, -12, 12, limit=500)[0]

    center = expected(lambda y: y / (1 + weight * y))
    truth = expected(lambda y: (y / (1 + weight * y) - center) ** 2)
    spreads = [spread, torch.tensor([spread])] if noise == "exact" else [spread]
    for each in spreads:  # of a constant concentration, and of a learned one
        first, effect = variances(noise, each, torch.tensor([weight]))
        assert first.item() == pytest.approx(law.var() / mean**2, rel=1e-5)
        assert effect.item() == pytest.approx(truth, rel=0.005)


@pytest.mark.parametrize("weight", [1e-6, 0.01, 0.5])
@pytest.mark.parametrize("scale", [10.0, 14.0])
def test_variances_of_laws_whose_own_variance_float32_cannot_hold(scale, weight):
    def effect_at(normal):
        y = math.expm1(scale * normal - scale**2 / 2)
        return y / (1 + weight * y)

    def expected(function):
        return sum(
            integrate.quad(lambda z: function(effect_at(z)) * stats.norm.pdf(z), low, low + 1)[0]
            for low in range(-10, 40)
        )

    limit = effect_at(-10.0)  # which f seldom leaves: deviations from it do not cancel
    center = expected(lambda f: f - limit)
    truth = expected(lambda f: (f - limit) ** 2) - center**2
    first, effect = variances("normal", scale, torch.tensor([weight]))
    assert first.item() > 1e38
    assert effect.item() == pytest.approx(truth, rel=0.01)


def test_variances_of_truncated_noise_against_scipy():
    def x(level, k=2.0):
        return (-math.log(level)) ** (1 / k)

    mean = integrate.quad(x, 0.1, 0.9)[0] / 0.8
    truth = integrate.quad(lambda level: (x(level) / mean - 1) ** 2, 0.1, 0.9)[0] / 0.8
    first, _ = variances("truncated", 2.0, torch.tensor([0.01]))
    assert first.item() == pytest.approx(truth, rel=1e-5)


def test_every_family_has_the_spread_of_its_draws(family, families):
    torch.manual_seed(0)
    model = Logits(convert(family.network(), NARROW), families.logits).eval()
    inputs = family.inputs(rows=4)
    moments = posterior_moments(model, inputs, classes=2, method="expansion", attribution=True)
    draws, chunk = (150, 1) if family.name == "clip" else (400, 400)
    drawn = difference(posterior_predict(model, inputs, draws, chunk_size=chunk), moments)
    ratio = moments.difference_std() / drawn.std(dim=0)
    # 400 draws know a standard deviation to 4%, 150 to 6%; these networks of six words are far from linear.
    assert ratio.log().abs().median() < 0.1, ratio
    total = sum(share.flatten(1).sum(dim=1) for share in moments.noise_share.values())
    torch.testing.assert_close(total, torch.ones_like(total))


METHODS = {
    "babn": probattn.BayesianAttention(),
    "scale": probattn.BayesianAttention(sigma=0.3, rho=6.0),
    "raw": probattn.BayesianAttention(scores="raw", rho=6.0),
    "truncated": probattn.BayesianAttention(noise="truncated"),
    "positions": probattn.BayesianAttention(upward="positions", max_positions=8, rho=8.0),
    "lognormal": probattn.BayesianAttention(posterior="lognormal", scale=0.2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_posterior_has_the_spread_of_its_draws(method, dtype):
    model = network(method=method, num_labels=3).to(dtype)
    moments = posterior_moments(model, rows(), classes=2, method="expansion")
    drawn = difference(posterior_predict(model, rows(), 400, chunk_size=400), moments)
    assert (moments.difference_std() / drawn.std(dim=0)).log().abs().median() < 0.12
    assert moments.covariance.dtype == dtype


def test_covariance_probabilities_and_information_of_three_classes():
    model = network(num_labels=3)
    moments = posterior_moments(model, rows())
    posterior = posterior_predict(model, rows(), 3000, chunk_size=500)
    centred = posterior.logits - posterior.logits.mean(dim=-1, keepdim=True)
    leading = centred.gather(-1, moments.classes.expand(3000, -1, -1))
    for row in range(6):
        torch.testing.assert_close(moments.covariance[row], leading[:, row].T.cov(), rtol=0.3, atol=0.02)
    torch.testing.assert_close(moments.mean_probabilities, posterior.mean_probabilities, rtol=0.0, atol=0.02)
    torch.testing.assert_close(moments.std, posterior.std, rtol=0.25, atol=0.005)
    assert torch.allclose(moments.mutual_information, posterior.mutual_information, rtol=0.3, atol=2e-3)


def test_heads_of_tokens_labels_and_numbers():
    tokens = network("TokenClassification", num_labels=3)
    some = posterior_moments(tokens, rows(), positions=[1, 3], method="expansion", attribution=(2, 0))
    assert some.logits.shape == (6, 2, 3)
    assert (some.classes[..., :2] == torch.tensor([2, 0])).all()
    every = posterior_moments(tokens, rows(), method="expansion")
    torch.testing.assert_close(
        every.mean_probabilities[:, [1, 3]], some.mean_probabilities, rtol=0, atol=5e-4
    )
    labels = program_for(network(num_labels=4, problem_type="multi_label_classification"))
    found = posterior_moments(labels, rows(), classes=4)
    draws = posterior_predict(labels, rows(), 600, chunk_size=600)
    torch.testing.assert_close(found.mean_probabilities, draws.mean_probabilities, rtol=0, atol=0.02)
    many = network(num_labels=9, problem_type="multi_label_classification")
    torch.nn.init.normal_(many.classifier.weight, std=20.0)  # the most probable label is far from 0
    found = posterior_moments(program_for(many), rows(), classes=2)
    best, certain = found.logits.argmax(dim=-1), found.logits.abs()
    assert (found.classes[:, 0] == certain.argmin(dim=-1)).all() and (found.classes == best[:, None]).any(
        1
    ).all()
    assert (found.covariance.diagonal(dim1=1, dim2=2) > 0).all()
    numbers = program_for(network(num_labels=2, problem_type="regression"))
    found = posterior_moments(numbers, rows(), attribution=1)
    draws = posterior_predict(numbers, rows(), 600, chunk_size=600)
    assert (found.std / draws.logits.std(dim=0)).log().abs().median() < 0.1
    with pytest.raises(ValueError, match=r"Moments.entropy: expected a head that predicts classes"):
        _ = found.entropy


def test_a_normal_distribution_of_two_logits_against_quadrature():
    variance = 2.3
    covariance = torch.tensor([[[variance, -variance], [-variance, variance]]], dtype=torch.float64) / 4
    moments = Moments(torch.tensor([[0.3, 1.5]], dtype=torch.float64), torch.tensor([[1, 0]]), covariance)
    law = stats.norm(1.2, math.sqrt(variance))

    def mean(function):
        return integrate.quad(lambda z: function(1 / (1 + math.exp(-z))) * law.pdf(z), -15, 15)[0]

    p = mean(lambda q: q)
    assert moments.mean_probabilities[0, 1].item() == pytest.approx(p, rel=1e-6)
    inner = mean(lambda q: stats.bernoulli(q).entropy())
    information = stats.bernoulli(p).entropy() - inner
    assert moments.mutual_information.item() == pytest.approx(information, rel=1e-5)
    assert moments.std[0, 1].item() == pytest.approx(math.sqrt(mean(lambda q: (q - p) ** 2)), rel=1e-5)


def test_points_have_the_moments():
    torch.manual_seed(0)
    factor = torch.randn(4, 3, 3, dtype=torch.float64)
    own = factor @ factor.mT
    centre = torch.eye(3, dtype=torch.float64) - 1 / 3
    moments = Moments(
        torch.randn(4, 5).double(), torch.tensor([[0, 2, 4]]).expand(4, 3), centre @ own @ centre
    )
    points = moments.draws(64)
    assert isinstance(points, Posterior)
    torch.testing.assert_close(points.logits.mean(dim=0), moments.logits)
    leading = points.logits[..., [0, 2, 4]]
    for row in range(4):
        torch.testing.assert_close(leading[:, row].T.cov(), moments.covariance[row])
    many = mutual_information(moments.draws(4096).logits, inputs="logits")
    torch.testing.assert_close(moments.mutual_information, many, rtol=0.02, atol=1e-3)


def test_chunks_loaders_and_modes_change_nothing():
    model = network(num_labels=3).train()
    whole = posterior_moments(model, rows(), attribution=True)
    assert model.training
    parts = posterior_moments(model, rows(), attribution=True, chunk_size=2)
    data = [{name: value[row] for name, value in rows().items()} for row in range(6)]
    loaded = posterior_moments(model, DataLoader(data, batch_size=4), attribution=True)
    with torch.inference_mode():
        inside = posterior_moments(model, rows(), attribution=True)
    for other in (parts, loaded, inside):
        torch.testing.assert_close(other.covariance, whole.covariance)
        for name in whole.noise_share:
            torch.testing.assert_close(other.noise_share[name], whole.noise_share[name], atol=1e-5, rtol=1e-3)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_wide_posteriors_are_checked_against_draws():
    wide = network(method=probattn.BayesianAttention(concentration=0.3), num_labels=2)
    with pytest.warns(UserWarning, match="the first-order expansion does not hold for 6 of 6 rows"):
        moments = posterior_moments(wide, rows())
    assert (moments.source, moments.num_samples.tolist()) == ("draws", [20] * 6)
    assert moments.check.residual > 0.25
    exact = posterior_predict(wide, rows(), 20)
    torch.testing.assert_close(moments.logits, exact.logits.mean(dim=0))
    assert posterior_moments(wide, rows(), method="expansion").source == "expansion"
    assert posterior_moments(network(), rows()).check is None


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_recurrent_network_behind_a_site(by_name, device):
    net = convert(by_name["bert"].classification(), probattn.BayesianAttention()).eval()
    model = Recurrent(net).to(device)
    inputs = {name: value.to(device) for name, value in by_name["bert"].inputs().items()}
    found = posterior_moments(model, inputs, method="expansion")
    assert found.source == "expansion" and found.covariance.isfinite().all()
    assert False in model.allowed and torch.backends.cudnn.enabled


def test_rows_that_depend_on_one_another(families, by_name):
    torch.manual_seed(0)
    model = Logits(convert(by_name["clip"].network(), NARROW), families.logits).eval()
    inputs = by_name["clip"].inputs(rows=3)
    moments = posterior_moments(model, inputs, classes=2, attribution=True, chunk_size=2)
    assert moments.logits.shape == (3, 3)  # each picture with the texts of all rows
    # The towers' sites of all rows move each picture's score: those of its own row are not all of the variance.
    for row in range(3):
        share = {name: item[row] for name, item in moments.noise_share.items()}
        own = sum(each[row].sum() for name, each in share.items())
        assert sum(each.sum() for each in share.values()).item() == pytest.approx(1, rel=1e-4)
        assert own < 0.99
    # All scores of all rows are differentiated one by one: three cost as much as two draws, four cost more.
    for number, source in ((3, "expansion"), (4, "draws")):
        inputs = by_name["clip"].inputs(rows=number)
        assert posterior_moments(model, inputs, classes=2, num_samples=2).source == source


def test_bad_calls_say_what_was_expected():
    model = network(num_labels=3)
    with pytest.raises(ValueError, match="num_samples: expected an integer >= 2, got 1"):
        posterior_moments(model, rows(), num_samples=1)
    with pytest.raises(
        ValueError, match=r"expected attribution of a pair of different classes among 0..2, got \(1, 1\)"
    ):
        posterior_moments(model, rows(), attribution=(1, 1))
    with pytest.raises(ValueError, match="expected classes >= 2, got 1"):
        posterior_moments(model, rows(), classes=1)
    with pytest.raises(
        ValueError, match="expected positions among none, for a row has a single prediction, got"
    ):
        posterior_moments(model, rows(), positions=[0])
    tokens = network("TokenClassification")
    for places in ([7], [-1], [0, 7], []):
        with pytest.raises(
            ValueError, match=rf"expected positions among 0\.\.6, got {re.escape(str(places))}"
        ):
            posterior_moments(tokens, rows(), positions=places)
    for place in (0, 6):
        assert posterior_moments(tokens, rows(), positions=[place], method="draws").logits.shape == (6, 1, 2)
    with pytest.raises(ValueError, match=r"a pair of different classes among 0\.\.2, got \(0, 3\)"):
        posterior_moments(model, rows(), attribution=(0, 3))
    labels = program_for(network(num_labels=3, problem_type="multi_label_classification"))
    with pytest.raises(ValueError, match=r"one label or number among 0\.\.2, got 3"):
        posterior_moments(labels, rows(), attribution=3)
    with pytest.raises(TypeError, match=r"posterior_moments: expected a model, such as .*got 3"):
        posterior_moments(3, rows())
    for name in ("classes", "chunk_size"):
        with pytest.raises(ValueError, match=f"{name}: expected an integer >= 1, got 0"):
            posterior_moments(model, rows(), **{name: 0})
    with pytest.raises(ValueError, match="method"):
        posterior_moments(model, rows(), method="guess")
    plain = Classifier(hf.BertForSequenceClassification(hf.BertConfig(**SIZES, vocab_size=40)))
    with pytest.raises(ValueError, match="no attention site; convert the network first"):
        posterior_moments(plain, rows())


def node_classifier(method):
    torch.manual_seed(0)
    nodes = torch.arange(30)
    index = torch.cat([torch.randint(0, 30, (2, 120)), nodes.repeat(2, 1)], dim=1)
    masks = {"train_mask": nodes < 15, "validation_mask": nodes >= 15, "test_mask": nodes < 0}
    names = {"label_names": ("a", "b", "c"), "source": "random edges"}
    graph = NodeGraph(features=torch.randn(30, 12), labels=nodes % 3, edge_index=index, **masks, **names)
    return NodeClassifier(GraphAttentionNetwork(12, 3, attention=method), graph).eval()


def test_nodes_of_a_graph_that_draws_check():
    model, inputs = node_classifier(probattn.BayesianAttention.bam(0.3)), {"nodes": torch.arange(4, 10)}
    with pytest.warns(UserWarning, match="does not hold for 6 of 6 rows"):
        moments = posterior_moments(model, inputs, classes=2)
    draws = posterior_predict(model, inputs, 20)  # the same
    torch.testing.assert_close(moments.logits, draws.logits.mean(dim=0))
    drawn = difference(draws, moments)
    torch.testing.assert_close(moments.difference_std(), drawn.std(dim=0))


@pytest.mark.slow
def test_nodes_of_a_graph_and_both_ends_of_a_span():
    model, inputs = node_classifier(NARROW), {"nodes": torch.arange(6)}
    found = posterior_moments(model, inputs, classes=2, method="expansion")
    drawn = difference(posterior_predict(model, inputs, 400), found)
    assert (found.difference_std() / drawn.std(dim=0)).log().abs().max() < 0.15
    spans = network("QuestionAnswering")
    found = posterior_moments(spans, rows(), classes=2, method="expansion")
    drawn = difference(posterior_predict(spans, rows(), 400, chunk_size=400), found)
    assert found.difference_std().shape == (6, 2)
    assert (found.difference_std() / drawn.std(dim=0)).log().abs().median() < 0.1


@pytest.mark.parametrize("number", [20, 21])
def test_the_test_of_the_two_likeliest_classes_is_that_of_scipy(number):
    covariance = torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]]) * torch.tensor([0.02, 0.3])[:, None, None]
    moments = Moments(torch.tensor([[0.1, 0.0], [0.2, 0.7]]), torch.tensor([[0, 1], [1, 0]]), covariance)
    p_values = moments.top_two_p_value(number)
    for row in range(2):
        mean, std = moments.mean[row].tolist(), moments.std[row].tolist()
        test = stats.ttest_ind_from_stats(mean[0], std[0], number, mean[1], std[1], number, equal_var=False)
        assert p_values[row].item() == pytest.approx(test.pvalue, rel=1e-3)
    with pytest.raises(ValueError, match="num_samples: expected an integer >= 2, got 1"):
        moments.top_two_p_value(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_labels_have_the_mean_and_deviation_of_quadrature(dtype):
    logits, variances = torch.tensor([[0.4, -1.0]], dtype=dtype), torch.tensor([[0.5, 2.0]], dtype=dtype)
    moments = Moments(logits, torch.tensor([[0, 1]]), torch.diag_embed(variances), link="sigmoid")
    for label in range(2):
        law = stats.norm(logits[0, label].item(), variances[0, label].sqrt().item())
        first, second = (
            integrate.quad(lambda x, p=power, q=law: special.expit(x) ** p * q.pdf(x), -12, 12)[0]
            for power in (1, 2)
        )
        assert moments.mean[0, label].item() == pytest.approx(first, rel=1e-4)
        assert moments.std[0, label].item() == pytest.approx(math.sqrt(second - first**2), rel=1e-3)


def test_one_label_of_many_is_the_least_certain_one():
    labels = program_for(network(num_labels=4, problem_type="multi_label_classification"))
    moments = posterior_moments(labels, rows(), classes=1, method="expansion")
    assert (moments.classes[:, 0] == moments.logits.abs().argmin(dim=-1)).all()
    assert (moments.classes[:, 0] != moments.logits.argmax(dim=-1)).any()


def test_parts_with_other_numbers_of_leading_classes_are_not_joined():
    parts = [posterior_moments(network(num_labels=3), rows(), classes=k, method="expansion") for k in (2, 3)]
    with pytest.raises(ValueError, match=r"as many leading classes, got \[2, 3\]"):
        Moments.together(parts)
    with pytest.raises(ValueError, match="at least one part"):
        Moments.together([])


def test_classes_beyond_the_leading_ones_keep_their_distance_to_the_mean_of_those():
    """Against quadrature over the difference of the two leading logits of five."""
    logits, variance = torch.tensor([[0.4, -0.5, 1.3, -1.0, 0.1]], dtype=torch.float64), 3.0
    covariance = torch.tensor([[[variance, -variance], [-variance, variance]]], dtype=torch.float64) / 4
    moments = Moments(logits, torch.tensor([[2, 0]]), covariance)
    law, centre = stats.norm(1.3 - 0.4, math.sqrt(variance)), (1.3 + 0.4) / 2

    def probabilities(gap):
        z = logits[0].numpy().copy()
        z[[2, 0]] = centre + gap / 2, centre - gap / 2
        return special.softmax(z)

    def mean(function):
        return integrate.quad(lambda gap: function(probabilities(gap)) * law.pdf(gap), -15, 15)[0]

    expected = [mean(lambda p, one=one: p[one]) for one in range(5)]
    squares = [mean(lambda p, one=one: p[one] ** 2) for one in range(5)]
    np.testing.assert_allclose(moments.mean[0], expected, rtol=1e-6)
    np.testing.assert_allclose(moments.std[0], np.sqrt(np.subtract(squares, np.square(expected))), rtol=1e-5)
    assert moments.entropy.item() == pytest.approx(stats.entropy(expected), rel=1e-6)
    inner = mean(stats.entropy)
    assert moments.mutual_information.item() == pytest.approx(stats.entropy(expected) - inner, rel=1e-5)


def test_information_of_labels_is_that_of_quadrature():
    logits, variances = torch.tensor([[0.4, -1.0, 2.0]], dtype=torch.float64), (0.5, 2.0)
    covariance = torch.diag(torch.tensor(variances, dtype=torch.float64))[None]
    moments = Moments(logits, torch.tensor([[1, 0]]), covariance, link="sigmoid")
    for label, variance in ((1, 0.5), (0, 2.0)):
        law = stats.norm(logits[0, label].item(), math.sqrt(variance))

        def mean(function, law=law):
            return integrate.quad(lambda z: function(special.expit(z)) * law.pdf(z), -15, 15)[0]

        entropy = stats.bernoulli(mean(lambda p: p)).entropy()
        inner = mean(lambda p: stats.bernoulli(p).entropy())
        assert moments.entropy[0, label].item() == pytest.approx(entropy, rel=1e-5)
        assert moments.mutual_information[0, label].item() == pytest.approx(entropy - inner, rel=1e-4)
    assert moments.std[0, 2] < 1e-7 and moments.mean[0, 2] == pytest.approx(special.expit(2.0))  # at its mean
    assert moments.attributed() == (logits[:, 1], covariance[:, 0, 0])


def test_numbers_have_the_deviations_of_their_covariance():
    covariance = torch.tensor([[[4.0, 1.0, 0.0], [1.0, 9.0, 0.5], [0.0, 0.5, -1e-9]]])
    moments = Moments(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[2, 0, 1]]), covariance, link="identity")
    assert moments.std.tolist() == [[3.0, 0.0, 2.0]] and moments.mean.tolist() == [[1.0, 2.0, 3.0]]
    for name in ("mean_probabilities", "entropy"):
        with pytest.raises(ValueError, match=rf"Moments\.{name}: expected a head that predicts classes"):
            getattr(moments, name)
    with pytest.raises(ValueError, match=r"Moments.top_two_p_value: expected a head that predicts classes"):
        moments.top_two_p_value()
    assert moments.attributed() == (torch.tensor([3.0]), torch.tensor([4.0]))
    for first, second in ((0, 1), (1, 2), (0, 2)):
        matrix = covariance[0].double().numpy()
        variance = matrix[first, first] + matrix[second, second] - 2 * matrix[first, second]
        assert moments.difference_std(first, second).item() == pytest.approx(math.sqrt(variance))
    assert moments.difference_std() == moments.difference_std(0, 1)
    below = replace(moments, covariance=-covariance)
    assert below.difference_std() == 0 and below.std[0, 0] == 0


@pytest.mark.parametrize("classes", [2, 3])
def test_draws_of_a_distribution_are_as_many_as_were_named(classes):
    centre = torch.eye(classes, dtype=torch.float64) - 1 / classes
    covariance = (centre @ torch.diag(torch.arange(1.0, classes + 1).double()) @ centre)[None]
    moments = Moments(torch.zeros(1, classes).double(), torch.arange(classes)[None], covariance)
    assert moments.draws().logits.shape == (100, 1, classes)
    assert torch.equal(moments.draws().logits, moments.draws(100).logits)
    assert torch.equal(moments.top_two_p_value(), moments.top_two_p_value(20))
    for number in (classes, 64, 65, 127):
        drawn = moments.draws(number).logits
        assert drawn.shape == (number, 1, classes)
        torch.testing.assert_close(torch.atleast_2d(drawn[:, 0].T.cov()), covariance[0])
    with pytest.raises(ValueError, match=f"num_samples: expected an integer >= {classes}, got {classes - 1}"):
        moments.draws(classes - 1)


def test_averages_are_over_forty_nodes_or_512_points():
    for size, number in ((1, 40), (2, 512), (5, 512)):
        points, weights = moments_module._nodes(size, torch.zeros(0, dtype=torch.float64))
        assert points.shape == (number, size) and weights.sum().item() == pytest.approx(1)
        second = torch.einsum("m,ma,mb->ab", weights, points, points)
        torch.testing.assert_close(second, torch.eye(size, dtype=torch.float64), rtol=0, atol=0.05)


def moments_of_rows(**options):
    logits = torch.tensor([[0.0, 2.0, 1.0, -1.0], [3.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0], [0.0] * 4])
    classes = logits.topk(4).indices
    fields = {"logits": logits, "classes": classes, "covariance": torch.zeros(4, 4, 4)}
    return Moments(**(fields | options))


def test_what_is_printed_names_rows_positions_numbers_and_sites():
    moments = moments_of_rows()
    p = special.softmax(moments.logits.numpy(), axis=1)
    line = f"  row 0: class 1 {p[0, 1]:.3f} ± 0.000, class 2 {p[0, 2]:.3f} ± 0.000, class 0 {p[0, 0]:.3f} ± 0.000"
    lines = str(moments).splitlines()
    assert lines[:2] == ["Moments(4 rows, softmax over 4, expansion)", line]
    assert len(lines) == 5 and lines[3].startswith("  row 2: class 0") and lines[4] == "  ..."
    three = str(moments.rows(torch.arange(3))).splitlines()
    assert three == ["Moments(3 rows, softmax over 4, expansion)", *lines[1:4]]
    counts = torch.tensor([0, 5, 5, 0])
    mixed = moments_of_rows(source="mixed", num_samples=counts, noise_share={"one": torch.zeros(4, 1, 1, 1)})
    assert str(mixed).startswith("Moments(4 rows, softmax over 4, mixed (2 of draws), shares of 1 sites)\n")
    tokens = Moments(
        torch.zeros(1, 7, 2), torch.tensor([[[0, 1]] * 7]), torch.zeros(1, 7, 2, 2), link="identity"
    )
    words = ["Moments(1 row, 2 numbers at 7 positions, expansion)"]
    assert str(tokens).splitlines() == [
        *words,
        "  row 0, position 0: number 0 0.000 ± 0.000, number 1 0.000 ± 0.000",
    ]


def test_printed_probabilities_are_those_of_a_logistic_normal_distribution():
    """Against scipy's quadrature: log-odds N(2, 4) of two classes; anything else is printed without an error."""
    covariance = torch.tensor([[[1.0, -1.0], [-1.0, 1.0]]])
    moments = Moments(torch.tensor([[0.0, 2.0]]), torch.tensor([[1, 0]]), covariance)
    powers = [
        integrate.quad(lambda z, k=k: stats.norm.pdf(z) * special.expit(2 + 2 * z) ** k, -10, 10)[0]
        for k in (1, 2)
    ]
    mean, std = powers[0], (powers[1] - powers[0] ** 2) ** 0.5
    assert (
        str(moments)
        .splitlines()[1]
        .startswith(f"  row 0: class 1 {mean:.3f} ± {std:.3f}, class 0 {1 - mean:.3f}")
    )
    for rows, classes, positions in ((0, 2, ()), (2, 3, (0,)), (5, 40, (2, 3)), (1, 200_000, ())):
        for link in ("softmax", "sigmoid", "identity"):
            for value in (0.0, torch.nan):
                logits = torch.randn(rows, *positions, classes, dtype=torch.float64) * 1e5
                leading = logits.topk(2).indices
                some = Moments(logits, leading, torch.full((*leading.shape, 2), value), link)
                assert all(len(line) <= 80 for line in str(some).splitlines())
                assert ("not finite" in str(some)) == (value != 0 and leading.numel() > 0)


@pytest.mark.parametrize("link", ["softmax", "sigmoid"])
def test_spreads_that_are_small_or_none_are_so(link):
    """In float32 the mean of squares less the squared mean would leave 1e-3 of nothing."""
    logits, classes = torch.tensor([[0.3, -0.2, 0.9]]), torch.tensor([[2, 0, 1]])
    none = Moments(logits, classes, torch.zeros(1, 3, 3), link)
    assert not none.std.any()
    small = 1e-8 * (torch.eye(3) - 1 / 3)[None]
    single, double = (
        Moments(logits.to(t), classes, small.to(t), link) for t in (torch.float32, torch.float64)
    )
    torch.testing.assert_close(single.std, double.std.float(), rtol=0.01, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_class_of_minus_infinity_has_no_probability_and_changes_no_other(dtype):
    """The first logit has a standard deviation of 3, the others of 0, so the centred ones have slopes 2, -1 and -1."""
    slopes = torch.tensor([[2.0, -1.0, -1.0]], dtype=dtype)
    logits = torch.tensor([[0.5, 0.1, -torch.inf]], dtype=dtype)
    some = Moments(logits, torch.tensor([[0, 1, 2]]), (slopes.mT @ slopes)[None])
    powers = [
        integrate.quad(lambda z, k=k: stats.norm.pdf(z) * special.expit(0.4 + 3 * z) ** k, -10, 10)[0]
        for k in (1, 2)
    ]
    assert some.mean[0, 2] == 0 and some.std[0, 2] == 0
    torch.testing.assert_close(some.mean[0, 0].item(), powers[0], rtol=0, atol=2e-3)
    torch.testing.assert_close(some.std[0, 0].item(), (powers[1] - powers[0] ** 2) ** 0.5, rtol=0, atol=3e-3)


def test_rows_have_their_shares_and_numbers_of_draws():
    maps = {"one": torch.arange(4.0).view(4, 1, 1, 1)}
    whole = moments_of_rows(
        noise_share=maps, slope={"one": -maps["one"]}, relative_variance=torch.arange(4.0)
    )
    some = whole.rows(torch.tensor([3, 1]))
    assert some.noise_share["one"].flatten().tolist() == [3, 1] and some.slope["one"].flatten().tolist() == [
        -3,
        -1,
    ]
    assert some.relative_variance.tolist() == [3, 1] and torch.equal(some.logits, whole.logits[[3, 1]])
    assert (some.source, some.num_samples) == ("expansion", None)
    assert (
        some != some.rows(torch.arange(2)) and len({some, whole, whole}) == 2
    )  # by identity, as tensors are
    assert moments_of_rows(num_samples=7, source="draws").drawn.all() and not whole.drawn.any()
    drawn = moments_of_rows(num_samples=7).rows(torch.tensor([2]))
    assert (drawn.source, drawn.num_samples.tolist()) == ("draws", [7])
    drawn = replace(drawn, logits=drawn.logits + 1, covariance=drawn.covariance + 2)
    replaced = whole.replaced(torch.tensor([1]), drawn)
    assert (replaced.source, replaced.num_samples.tolist()) == ("mixed", [0, 7, 0, 0])
    assert torch.equal(replaced.logits[1], drawn.logits[0]) and (replaced.covariance[1] == 2).all()
    assert (
        torch.equal(replaced.logits[[0, 2, 3]], whole.logits[[0, 2, 3]]) and not replaced.covariance[0].any()
    )
    joined = Moments.together([some, whole])
    assert joined.noise_share["one"].flatten().tolist() == [3, 1, 0, 1, 2, 3]
    assert joined.slope["one"].flatten().tolist() == [-3, -1, 0, -1, -2, -3]
    assert joined.relative_variance.tolist() == [3, 1, 0, 1, 2, 3] and joined.check is None
    assert Moments.together([some, replace(whole, relative_variance=None)]).relative_variance is None


def test_positions_that_a_shorter_part_lacks_are_not_numbers():
    parts = [
        Moments(
            torch.ones(1, length, 2),
            torch.tensor([[[0, 1]] * length]),
            torch.ones(1, length, 2, 2),
            link="sigmoid",
        )
        for length in (2, 3)
    ]
    joined = Moments.together(parts)
    assert joined.link == "sigmoid" and joined.logits.shape == (2, 3, 2)
    assert joined.logits[0, 2].isnan().all() and not joined.logits[1].isnan().any()
    assert not joined.classes[0, 2].any() and not joined.covariance[0, 2].any()
    plain = Moments.together([replace(part, link="softmax") for part in parts])
    assert plain.mean[1].isfinite().all() and plain.entropy.shape == (2, 3)


def test_entropies_of_tokens_are_those_of_scipy():
    logits = torch.randn(2, 3, 4, dtype=torch.float64)
    moments = Moments(logits, logits.topk(2).indices, torch.zeros(2, 3, 2, 2, dtype=torch.float64))
    expected = stats.entropy(special.softmax(logits.numpy(), axis=-1), axis=-1)
    np.testing.assert_allclose(moments.entropy, expected, rtol=1e-10)
    np.testing.assert_allclose(moments.mutual_information, 0, atol=1e-10)
    np.testing.assert_allclose(moments.mean, special.softmax(logits.numpy(), axis=-1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_moments_of_drawn_classes_are_those_of_numpy(dtype):
    logits = torch.randn(6, 2, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    classes = torch.tensor([[4, 0, 2], [1, 3, 0]])
    moments = moments_module.moments_of_draws(Posterior(logits), classes)
    assert moments.covariance.dtype == (dtype if dtype == torch.float64 else torch.float32)
    values = logits.double().numpy()
    for row in range(2):
        leading = values[:, row, classes[row]]
        expected = np.cov((leading - leading.mean(axis=1, keepdims=True)).T)
        np.testing.assert_allclose(moments.covariance[row], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(moments.logits, values.mean(axis=0), rtol=1e-4, atol=1e-6)
    assert (moments.source, moments.num_samples.tolist(), moments.link) == ("draws", [6, 6], "softmax")
    mean, variance = moments.attributed()
    gap = values[:, [0, 1], classes[:, 0]] - values[:, [0, 1], classes[:, 1]]
    np.testing.assert_allclose(mean, gap.mean(axis=0), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(variance, gap.var(axis=0, ddof=1), rtol=1e-3)


def test_differences_from_the_first_tell_the_covariance_of_numbers_less_their_mean():
    factor = np.random.default_rng(0).normal(size=(4, 4))
    covariance, centre = factor @ factor.T, np.eye(4) - 1 / 4
    maps = np.concatenate([np.ones((3, 1)), -np.eye(3)], axis=1)
    result = moments_module.centred(torch.from_numpy(maps @ covariance @ maps.T))
    np.testing.assert_allclose(result, centre @ covariance @ centre, atol=1e-12)


def test_six_classes_lead_unless_others_are_named_and_small_slopes_count_as_none():
    many = network(num_labels=8)
    assert posterior_moments(many, rows(), method="expansion").classes.shape == (6, 6)
    assert posterior_moments(many, rows(), classes=9, method="expansion").classes.shape == (6, 8)
    moments = posterior_moments(network(), rows(), attribution=True, method="expansion")
    for name, slope in moments.slope.items():
        squares = slope.double().square().flatten(1)
        matter = squares > 1e-3 * squares.mean(dim=1, keepdim=True)
        assert (
            torch.equal(moments.noise_share[name].flatten(1) > 0, matter) and 0 < matter.double().mean() < 1
        )
