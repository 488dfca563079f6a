"""Attention maps against numpy."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from probattn.report.attention import Example, attention_example, own_tokens

EXAMPLE = Example(text="a b c", predicted="yes", probability=0.6, spread=0.1, entropy=0.6)
TOKENS = ["a", "b", "c"]


def test_maps_are_means_and_ratios_over_draws(draw_weights: Callable[..., torch.Tensor]) -> None:
    weights = {"first": draw_weights(3, heads=4, seed=1), "second": draw_weights(3, heads=4, seed=2)}
    found = attention_example(EXAMPLE, TOKENS, weights, heads=(3, 0))
    expected = [("first", None), ("first", 3), ("first", 0), ("second", None), ("second", 3), ("second", 0)]
    assert [(item.site, item.head) for item in found.maps] == expected
    for item in found.maps:
        draws = weights[item.site].double().numpy()
        draws = draws.mean(axis=1) if item.head is None else draws[:, item.head]
        np.testing.assert_allclose(item.mean, draws.mean(0), atol=0.5001e-4)
        np.testing.assert_allclose(item.ratio, draws.std(0, ddof=1) / draws.mean(0), atol=0.5001e-3)


def test_the_average_over_heads_varies_less_than_a_head() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(200, 12, 3, 3, generator=generator)
    draws = draws / draws.sum(-1, keepdim=True)
    average, head = attention_example(EXAMPLE, TOKENS, {"s": draws}, heads=(5,)).maps
    assert np.mean(average.ratio) < 0.4 * np.mean(head.ratio)


def test_one_draw_and_masked_pairs_have_ratio_0() -> None:
    weights = torch.eye(3).expand(1, 2, 3, 3)
    item = attention_example(EXAMPLE, TOKENS, {"s": weights}).maps[0]
    assert item.mean == ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    assert item.ratio == ((0, 0, 0),) * 3
    expected = ((0, 0, 0),) * 3
    assert attention_example(EXAMPLE, TOKENS, {"s": weights.expand(5, 2, 3, 3)}).maps[0].ratio == expected


def test_queries_and_keys_may_differ() -> None:
    weights = torch.full((4, 2, 3, 2), 0.5)
    found = attention_example(EXAMPLE, TOKENS, {"cross": weights}, keys=["x", "y"], reason="uncertain")
    assert (found.queries, found.keys, found.reason) == (("a", "b", "c"), ("x", "y"), "uncertain")
    with pytest.raises(ValueError, match=r"expected weights \[P, H, 3, 3\].*got \[4, 2, 3, 2\]"):
        attention_example(EXAMPLE, TOKENS, {"cross": weights})


def test_what_does_not_fit_is_refused() -> None:
    weights = torch.full((4, 2, 3, 3), 1 / 3)
    with pytest.raises(ValueError, match="at least one site"):
        attention_example(EXAMPLE, TOKENS, {})
    with pytest.raises(ValueError, match=r"heads in 0..1, got 2"):
        attention_example(EXAMPLE, TOKENS, {"s": weights}, heads=(0, 2))


def test_padding_is_left_out() -> None:
    weights = torch.arange(2 * 3 * 4 * 5 * 5, dtype=torch.float).reshape(2, 3, 4, 5, 5)
    valid = torch.tensor([[1, 1, 1, 1, 1], [0, 1, 1, 0, 0], [1, 0, 0, 0, 0]])
    found = own_tokens({"s": weights}, 1, valid)["s"]
    torch.testing.assert_close(found, weights[:, 1, :, 1:3, 1:3])
