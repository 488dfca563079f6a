"""Options of repulsive attention."""

import pytest

from probattn import RepulsiveAttention
from probattn.particles import CosineKernel, InverseMultiquadric, MedianRBF, UnsmoothedKernel


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "hmc"}, r"sampler: expected one of 'svgd', 'spos', 'sgld', got 'hmc'"),
        ({"projections": ()}, r"projections: expected some of 'query', 'key', 'value', each once, got \(\)"),
        ({"projections": ("query", "output")}, r"projections: .* each once, got \('query', 'output'\)"),
        ({"projections": ("key", "key")}, r"projections: .* each once, got \('key', 'key'\)"),
        ({"step_size": 0}, r"step_size: expected a number > 0, got 0"),
        ({"step_size": -0.1}, r"step_size: expected a number > 0, got -0\.1"),
        ({"repulsion": -1}, r"repulsion: expected a number >= 0, got -1"),
        ({"kernel": "rbf"}, r"kernel: expected one of 'median_rbf', .*, got 'rbf'"),
        ({"bandwidth": 0.0}, r"bandwidth: expected a number > 0 or None, got 0\.0"),
        ({"bandwidth": 1.0, "kernel": "cosine"}, r"bandwidth: the kernel 'cosine' has none; leave it out"),
        ({"bandwidth": 1.0, "kernel": "sliced_rbf"}, r"bandwidth: the kernel 'sliced_rbf' has none; .*"),
        ({"prior": "normal"}, r"prior: expected 'uniform' or a number > 0, got 'normal'"),
        ({"prior": 0.0}, r"prior: expected 'uniform' or a number > 0, got 0\.0"),
        ({"temperature": 0}, r"temperature: expected 'datum' or a number > 0, got 0"),
        ({"temperature": "one"}, r"temperature: expected 'datum' or a number > 0, got 'one'"),
        ({"temperature": float("inf")}, r"temperature: expected 'datum' or a finite number > 0, got inf"),
        ({"langevin": 0.0}, r"langevin: expected a number > 0, got 0\.0"),
        ({"layers": "middle"}, r"layers: expected 'all', .*, got 'middle'"),
        ({"layers": [0.5]}, r"layers: expected 'all', .*, one or more integers or None, got \[0\.5\]"),
        ({"attention": "none"}, r"attention: expected 'all', 'self', 'cross' or None, got 'none'"),
        ({"smoothing": 1}, r"smoothing: expected True or False, got 1"),
        ({"seed": -1}, r"seed: expected an integer >= 0, got -1"),
    ],
)
def test_options_out_of_range_are_refused_in_one_line(options, message):
    with pytest.raises(ValueError, match=rf"^RepulsiveAttention\.{message}$"):
        RepulsiveAttention(**options)


def test_kernels():
    assert isinstance(RepulsiveAttention().build_kernel(), MedianRBF)
    kernel = RepulsiveAttention(kernel="inverse_multiquadric", bandwidth=2.0).build_kernel()
    assert isinstance(kernel, InverseMultiquadric) and kernel.bandwidth == 2.0
    assert isinstance(RepulsiveAttention(kernel="cosine").build_kernel(), CosineKernel)
    apart = RepulsiveAttention(kernel="cosine", smoothing=False).build_kernel()
    assert isinstance(apart, UnsmoothedKernel) and isinstance(apart.kernel, CosineKernel)


def test_equal_options_are_equal():
    assert RepulsiveAttention(layers=[0, 1]) == RepulsiveAttention(layers=(0, 1))
    assert RepulsiveAttention(projections="key") == RepulsiveAttention(projections=["key"])
    assert hash(RepulsiveAttention(layers=[0])) == hash(RepulsiveAttention(layers=(0,)))


def test_the_defaults_are_the_papers_settings():
    """An et al. 2020: step 0.1 and weight 0.01 of the repulsion, the median's kernel, a uniform prior, Q, K and V."""
    method = RepulsiveAttention()
    assert (method.sampler, method.step_size, method.repulsion) == ("svgd", 0.1, 0.01)
    assert (method.kernel, method.bandwidth, method.prior) == ("median_rbf", None, "uniform")
    assert (method.projections, method.temperature, method.langevin) == (("query", "key", "value"), 1.0, 1.0)


def test_the_cosine_kernel_of_table_9_has_no_offset() -> None:
    assert RepulsiveAttention(kernel="cosine").build_kernel().offset == 1
    assert RepulsiveAttention(kernel="cosine", offset=0.0).build_kernel().offset == 0
    with pytest.raises(ValueError, match="offset: the kernel 'median_rbf' has none"):
        RepulsiveAttention(offset=0.0)
