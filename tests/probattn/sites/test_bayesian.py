"""Options of Bayesian attention: what is refused, and what a site with them needs."""

import pytest

from probattn import BayesianAttention


@pytest.mark.parametrize(
    ("options", "words"),
    [
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
)
def test_options_out_of_range_are_refused(options, words):
    with pytest.raises(ValueError, match=f"BayesianAttention.*{words}"):
        BayesianAttention(**options)


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
    assert eval(repr(BayesianAttention(prior_strength="learned"))) == BayesianAttention(
        prior_strength="learned"
    )
