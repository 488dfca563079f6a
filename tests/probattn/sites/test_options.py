"""Options of the methods of attention: what is refused, what equals what, and what follows from them."""

import pytest

from probattn import AlignmentAttention, BayesianAttention, DisagreementAttention, RepulsiveAttention
from probattn.particles import CosineKernel, InverseMultiquadric, MedianRBF, UnsmoothedKernel

OUT_OF_RANGE = {
    BayesianAttention: [
        ({"posterior": "gamma"}, r"posterior: expected one of 'weibull', 'lognormal', got 'gamma'"),
        ({"concentration": "fixed"}, r"concentration: expected 'learned' or a number > 0, got 'fixed'"),
        ({"concentration": 0.0}, r"concentration: expected 'learned' or a number > 0, got 0\.0"),
        ({"upward": "keys"}, r"upward: expected one of 'heads', 'positions', got 'keys'"),
        ({"prior": "uniform"}, r"prior: expected one of 'contextual', 'constant', got 'uniform'"),
        ({"scores": "log"}, r"scores: expected one of 'normalised', 'raw', got 'log'"),
        ({"noise": "none"}, r"noise: expected one of 'exact', 'truncated', got 'none'"),
        ({"kl_reduction": "max"}, r"kl_reduction: expected one of 'mean', 'keys', 'sum', got 'max'"),
        ({"rho": -1.0}, r"rho: expected a number >= 0, got -1\.0"),
        ({"sigma": float("nan")}, r"sigma: expected a finite number >= 0, got nan"),
        ({"floor": -0.1}, r"floor: expected a number >= 0, got -0\.1"),
        ({"prior_concentration": 0.0}, r"prior_concentration: expected a number > 0"),
        ({"rate": 0.0}, r"rate: expected a number > 0"),
        ({"scale": 0.0}, r"scale: expected a number > 0"),
        ({"prior_scale": float("inf")}, r"prior_scale: expected a finite number > 0"),
        ({"prior_strength": 0.0}, r"prior_strength: expected 'learned' or a number > 0, got 0\.0"),
        ({"prior_strength": 2.0, "posterior": "lognormal"}, "prior_strength belongs to the gamma prior"),
        (
            {"prior_strength": "learned", "prior": "constant"},
            r"expected prior='contextual' with prior_strength='learned', got 'constant'",
        ),
        ({"prior_hidden": 0}, r"prior_hidden: expected an integer >= 1, got 0"),
        ({"max_positions": 0}, r"max_positions: expected an integer >= 1 or None, got 0"),
        ({"posterior": "lognormal", "sigma": 0.5}, "sigma belongs to the Weibull posterior"),
    ],
    AlignmentAttention: [
        (
            {"method": "wasserstein"},
            "method: expected one of 'ct', 'ot', 'gan', 'mmd', 'ct_heads', got 'wasserstein'",
        ),
        ({"weight": -0.1}, "weight: expected a number >= 0, got -0.1"),
        ({"reduction": "max"}, "reduction: expected one of 'sum', 'mean', got 'max'"),
        (
            {"layers": "some"},
            "layers: expected 'all', 'first', 'last', one or more integers or None, got 'some'",
        ),
        ({"attention": "both"}, "attention: expected 'all', 'self', 'cross' or None, got 'both'"),
        ({"max_tokens": 1}, "max_tokens: expected an integer >= 2 or None, got 1"),
        ({"hidden": 0}, "hidden: expected an integer >= 1 or None, got 0"),
        ({"discriminator": "conv"}, "discriminator: expected one of 'highway', 'mlp', 'release', got 'conv'"),
        ({"forward_weight": 1.5}, r"forward_weight: expected a number in \[0, 1\], got 1.5"),
        ({"epsilon": 0}, "epsilon: expected a number > 0, got 0"),
        ({"scaling": 1.0}, r"scaling: expected a number in \(0, 1\), got 1.0"),
        ({"sweeps": 2.5}, "sweeps: expected an integer >= 0, got 2.5"),
        ({"debias": 1}, "debias: expected True or False, got 1"),
        ({"bandwidth": "mean"}, "bandwidth: expected 'median' or a number > 0, got 'mean'"),
        ({"seed": -1}, r"seed: expected an integer in \[0, 9223372036854775808\), got -1"),
    ],
    DisagreementAttention: [
        ({"method": "cosine"}, r"method: expected one of 'frobenius', .*'parameters', got 'cosine'"),
        ({"weight": -1}, r"weight: expected a number >= 0, got -1"),
        ({"weight": float("nan")}, r"weight: expected a finite number >= 0, got nan"),
        ({"projections": ()}, r"projections: expected some of 'query', 'key', 'value', each once, got \(\)"),
        ({"projections": ("key", "key")}, r"projections: .* each once, got \('key', 'key'\)"),
        ({"layers": "middle"}, r"layers: expected 'all', .*, got 'middle'"),
        ({"attention": "none"}, r"attention: expected 'all', 'self', 'cross' or None, got 'none'"),
    ],
    RepulsiveAttention: [
        ({"sampler": "hmc"}, r"sampler: expected one of 'svgd', 'spos', 'sgld', got 'hmc'"),
        ({"projections": ()}, r"projections: expected some of 'query', 'key', 'value', each once, got \(\)"),
        ({"projections": ("query", "output")}, r"projections: .* each once, got \('query', 'output'\)"),
        ({"projections": ("key", "key")}, r"projections: .* each once, got \('key', 'key'\)"),
        ({"step_size": 0}, r"step_size: expected a number > 0, got 0"),
        ({"repulsion": -1}, r"repulsion: expected a number >= 0, got -1"),
        ({"kernel": "rbf"}, r"kernel: expected one of 'median_rbf', .*, got 'rbf'"),
        ({"bandwidth": 0.0}, r"bandwidth: expected a number > 0 or None, got 0\.0"),
        ({"bandwidth": 1.0, "kernel": "cosine"}, r"bandwidth: the kernel 'cosine' has none; leave it out"),
        ({"bandwidth": 1.0, "kernel": "sliced_rbf"}, r"bandwidth: the kernel 'sliced_rbf' has none; .*"),
        ({"prior": "normal"}, r"prior: expected 'uniform' or a number > 0, got 'normal'"),
        ({"temperature": 0}, r"temperature: expected 'datum' or a number > 0, got 0"),
        ({"temperature": float("inf")}, r"temperature: expected 'datum' or a finite number > 0, got inf"),
        ({"langevin": 0.0}, r"langevin: expected a number > 0, got 0\.0"),
        ({"layers": "middle"}, r"layers: expected 'all', .*, got 'middle'"),
        ({"attention": "none"}, r"attention: expected 'all', 'self', 'cross' or None, got 'none'"),
        ({"smoothing": 1}, r"smoothing: expected True or False, got 1"),
        ({"seed": -1}, r"seed: expected an integer >= 0, got -1"),
    ],
}


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [(method, *row) for method, rows in OUT_OF_RANGE.items() for row in rows],
)
def test_options_out_of_range_are_refused_in_one_line(method, options, message):
    with pytest.raises(ValueError, match=rf"^{method.__name__}.*{message}") as caught:
        method(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", [AlignmentAttention, DisagreementAttention, RepulsiveAttention])
def test_equal_options_are_equal(method):
    assert len({method(layers=[0, 1]), method(layers=(0, 1))}) == 1
    if method is not AlignmentAttention:
        assert method(projections="key") == method(projections=["key"])


@pytest.mark.parametrize(
    ("options", "concentration", "scale", "parameters"),
    [
        ({}, True, False, True),
        ({"sigma": 0.5}, True, True, True),
        ({"rho": 0.0}, False, False, True),
        ({"rho": 0.0, "prior": "constant"}, False, False, False),
        ({"rho": 0.0, "sigma": 0.5, "prior": "constant"}, False, True, True),
        ({"concentration": 10.0}, False, False, True),
        ({"concentration": 10.0, "prior": "constant"}, False, False, False),
        ({"posterior": "lognormal"}, False, False, True),
        ({"posterior": "lognormal", "prior": "constant"}, False, False, False),
    ],
)
def test_parameters_are_made_for_what_is_learned_alone(options, concentration, scale, parameters):
    method = BayesianAttention(**options)
    site = method.build(2, 4)
    assert (method.learns_concentration, method.learns_scale) == (concentration, scale)
    assert method.has_upward_path == (concentration or scale)
    assert method.has_parameters == parameters == bool(list(site.parameters()))
    assert (site.upward is not None) == method.has_upward_path


def test_a_strength_of_one_is_left_out_of_the_repr():
    """Checkpoints hold the options as text; those that are older than the option stay valid."""
    assert "prior_strength" not in repr(BayesianAttention())
    assert repr(BayesianAttention(prior_strength=2)).count("prior_strength=2.0") == 1
    expected = BayesianAttention(prior_strength="learned")
    assert eval(repr(BayesianAttention(prior_strength="learned"))) == expected


def test_kernels():
    assert isinstance(RepulsiveAttention().build_kernel(), MedianRBF)
    kernel = RepulsiveAttention(kernel="inverse_multiquadric", bandwidth=2.0).build_kernel()
    assert isinstance(kernel, InverseMultiquadric) and kernel.bandwidth == 2.0
    assert isinstance(RepulsiveAttention(kernel="cosine").build_kernel(), CosineKernel)
    apart = RepulsiveAttention(kernel="cosine", smoothing=False).build_kernel()
    assert isinstance(apart, UnsmoothedKernel) and isinstance(apart.kernel, CosineKernel)


def test_the_preset_has_the_papers_settings():
    """An et al. 2020: step 0.1 and weight 0.01 of the repulsion, the median's kernel, a uniform prior, Q, K and V."""
    method = RepulsiveAttention.paper()
    assert RepulsiveAttention() == RepulsiveAttention.paper(repulsion=0.001)
    assert (method.sampler, method.step_size, method.repulsion) == ("svgd", 0.1, 0.01)
    assert (method.kernel, method.bandwidth, method.prior) == ("median_rbf", None, "uniform")
    assert (method.projections, method.temperature, method.langevin) == (("query", "key", "value"), 1.0, 1.0)


def test_the_cosine_kernel_of_table_9_has_no_offset() -> None:
    assert RepulsiveAttention(kernel="cosine").build_kernel().offset == 1
    assert RepulsiveAttention(kernel="cosine", offset=0.0).build_kernel().offset == 0
    with pytest.raises(ValueError, match="offset: the kernel 'median_rbf' has none"):
        RepulsiveAttention(offset=0.0)
