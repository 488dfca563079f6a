"""Dot-product attention: which function a network calls, and what it computes."""

import pytest
import torch
from transformers import AttentionInterface, BertConfig

from probattn.models.layers import attention_function, eager_attention_forward


@pytest.mark.parametrize("name", [None, "eager"])
def test_eager_attention_is_our_own(name):
    config = BertConfig()
    config._attn_implementation_internal = name
    assert attention_function(config) is eager_attention_forward


def test_other_names_are_those_that_transformers_knows():
    config = BertConfig()
    config._attn_implementation_internal = "probattn"
    assert attention_function(config) is AttentionInterface()["probattn"]
    config._attn_implementation_internal = "nowhere"
    with pytest.raises(KeyError, match="nowhere"):
        attention_function(config)


@pytest.mark.parametrize("heads", [1, 3])
def test_eager_attention_is_the_softmax_of_the_scores(heads):
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 3, 4, 5), torch.randn(2, heads, 6, 5), torch.randn(2, heads, 6, 7)
    bias = torch.randn(2, 1, 4, 6)
    output, weights = eager_attention_forward(torch.nn.Identity(), query, key, value, bias, scaling=0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query, key.expand(-1, 3, -1, -1), value.expand(-1, 3, -1, -1), bias, scale=0.3
    )
    torch.testing.assert_close(output, expected.transpose(1, 2))
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, 3, 4))
