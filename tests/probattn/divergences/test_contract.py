"""What every divergence promises, whatever it measures."""

import math
from functools import partial

import pytest
import torch

from probattn import divergences

SIZE = 4


def seeded(number):
    return torch.Generator().manual_seed(number)


def measures():
    networks = {
        "discriminator": divergences.Discriminator(SIZE, generator=seeded(0)),
        "navigator": divergences.Navigator(SIZE, generator=seeded(1)),
        "critic": divergences.Critic(SIZE, generator=seeded(2)),
    }
    transport = partial(
        divergences.conditional_transport, navigator=networks["navigator"], critic=networks["critic"]
    )
    return {
        "adversarial": partial(divergences.adversarial, discriminator=networks["discriminator"]),
        "conditional_transport": transport,
        "conditional_transport, forward": partial(transport, forward_weight=1.0),
        "conditional_transport, backward": partial(transport, forward_weight=0.0),
        "sinkhorn": divergences.sinkhorn,
        "sinkhorn, plan": partial(divergences.sinkhorn, debias=False),
        "mmd": divergences.mmd,
        "mmd, unbiased": partial(divergences.mmd, unbiased=True, bandwidth=2.0),
    }


@pytest.fixture(params=sorted(measures()))
def name(request):
    return request.param


@pytest.fixture
def measure(name):
    return measures()[name]


def sets(queries=5, keys=7, batch=3, heads=2):
    generator = seeded(7)
    query = torch.randn(batch, heads, queries, SIZE, generator=generator)
    key = torch.randn(batch, heads, keys, SIZE, generator=generator) * 1.5 + 0.5
    return query, key


def prefix(lengths, total):
    return torch.arange(total) < torch.tensor(lengths)[:, None]


def test_one_value_per_sample_and_head(measure):
    query, key = sets()
    assert measure(query, key).shape == (3, 2)


def test_masked_tokens_do_not_count(measure):
    query, key = sets()
    query_mask, key_mask = prefix([5, 3, 2], 5), prefix([2, 7, 4], 7)
    value = measure(query, key, query_mask=query_mask, key_mask=key_mask)
    for sample in range(3):
        alone = measure(
            query[sample : sample + 1, :, query_mask[sample]], key[sample : sample + 1, :, key_mask[sample]]
        )
        torch.testing.assert_close(value[sample : sample + 1], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("filler", [0.0, 1e4, math.nan, math.inf])
def test_what_padding_holds_changes_neither_value_nor_gradient(measure, filler):
    query, key = sets(6, 6)
    mask = prefix([6, 4, 1], 6)
    results = []
    for padding in (1.0, filler):
        parts = [
            tensor.masked_fill(~mask[:, None, :, None], padding).requires_grad_() for tensor in (query, key)
        ]
        value = measure(*parts, mask)
        value.sum().backward()
        results.append((value, *(part.grad for part in parts)))
    for before, after in zip(*results, strict=True):
        assert torch.equal(before, after)
    assert all(bool((grad[~mask[:, None].expand(-1, 2, -1)] == 0).all()) for grad in results[0][1:])


def test_the_order_of_tokens_does_not_matter(measure):
    query, key = sets()
    shuffled = (
        query[:, :, torch.randperm(5, generator=seeded(1))],
        key[:, :, torch.randperm(7, generator=seeded(2))],
    )
    torch.testing.assert_close(measure(*shuffled), measure(query, key), rtol=1e-5, atol=1e-5)


def test_heads_and_samples_are_apart(measure):
    query, key = sets()
    value = measure(query, key)
    for sample in range(3):
        for head in range(2):
            place = slice(sample, sample + 1), slice(head, head + 1)
            alone = measure(query[place], key[place])
            torch.testing.assert_close(alone, value[place], rtol=1e-5, atol=1e-5)


def test_a_mask_per_head_is_a_mask_of_each_head(measure):
    query, key = sets(6, 6)
    masks = torch.stack([prefix([6, 4, 2], 6), prefix([3, 5, 6], 6)], dim=1)  # [B, H, T]
    value = measure(query, key, masks)
    for head in range(2):
        alone = measure(query[:, head : head + 1], key[:, head : head + 1], masks[:, head])
        torch.testing.assert_close(value[:, head : head + 1], alone, rtol=1e-5, atol=1e-5)


def test_one_mask_serves_both(measure):
    query, key = sets(6, 6)
    mask = prefix([6, 4, 2], 6)
    assert torch.equal(measure(query, key, mask), measure(query, key, query_mask=mask, key_mask=mask))


@pytest.mark.parametrize("empty", ["queries", "keys", "both"])
def test_without_tokens_it_is_0_and_so_is_its_gradient(measure, empty):
    query, key = (tensor.requires_grad_() for tensor in sets())
    query_mask = prefix([5, 5 if empty == "keys" else 0, 5], 5)
    key_mask = prefix([7, 7 if empty == "queries" else 0, 7], 7)
    value = measure(query, key, query_mask=query_mask, key_mask=key_mask)
    value.sum().backward()
    assert bool((value[1] == 0).all()) and bool((value[0] != 0).all())
    for tensor in (query, key):
        assert bool(tensor.grad.isfinite().all()) and bool((tensor.grad[1] == 0).all())


def test_no_tokens_at_all_give_0(measure):
    query, key = sets(0, 7)
    assert torch.equal(measure(query, key), torch.zeros(3, 2))


def test_one_token_each_gives_the_cost_of_the_pair(name, measure):
    query, key = sets()
    single = torch.zeros(3, 5, dtype=torch.bool), torch.zeros(3, 7, dtype=torch.bool)
    single[0][:, 2] = single[1][:, 4] = True
    value = measure(query, key, query_mask=single[0], key_mask=single[1])
    q, k = query[:, :, 2], key[:, :, 4]
    networks = measure.keywords if isinstance(measure, partial) else {}
    with torch.no_grad():
        if name == "adversarial":
            probability = [networks["discriminator"](token).sigmoid() for token in (q, k)]
            expected = probability[0].log() + (1 - probability[1]).log()
        elif name.startswith("conditional"):
            expected = 1 - torch.cosine_similarity(networks["critic"](q), networks["critic"](k), dim=-1)
        elif name.startswith("sinkhorn"):
            expected = (q - k).square().sum(-1) / 2
        elif name == "mmd":
            expected = 2 - 2 * torch.exp(-(q - k).square().sum(-1) / 2)
        else:
            expected = torch.zeros(3, 2)  # no pair of different tokens
    torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("points", ["coincident", "zero"])
def test_coincident_points_are_safe(measure, points):
    query, key = (
        torch.full((2, 2, 4, SIZE), float(points == "coincident"), requires_grad=True) for _ in "qk"
    )
    value = measure(query, key)
    value.sum().backward()
    assert all(bool(each.isfinite().all()) for each in (value, query.grad, key.grad))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 200.0])
def test_low_precision_and_large_numbers_stay_finite(measure, dtype, scale):
    query, key = ((tensor * scale).to(dtype).requires_grad_() for tensor in sets())
    with torch.autocast("cpu", dtype):
        value = measure(query, key)
    assert value.dtype == torch.float32
    value.sum().backward()
    assert all(bool(each.isfinite().all()) for each in (value, query.grad, key.grad))
    again = measure(query.float(), key.float())
    torch.testing.assert_close(value, again, rtol=1e-4, atol=1e-4)


def test_the_gradient_mode_is_left_as_it_was(measure):
    with torch.no_grad():
        measure(*sets())
        assert not torch.is_grad_enabled()
    measure(*sets())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"mask": prefix([5, 3, 2], 5)}, ValueError, "5 queries and 7 keys; use query_mask and key_mask"),
        ({"mask": prefix([5, 3, 2], 5), "key_mask": prefix([5, 3, 2], 7)}, ValueError, "expected it alone"),
        ({"query_mask": torch.ones(3, 5)}, TypeError, "query_mask: expected bool"),
        ({"query_mask": prefix([5, 3], 5)}, ValueError, r"query_mask: expected \[3, 5\] or \[3, 1 or 2, 5\]"),
        ({"key_mask": prefix([5, 3, 2], 5)}, ValueError, r"key_mask: expected \[3, 7\]"),
    ],
)
def test_wrong_masks_are_refused(measure, options, error, message):
    with pytest.raises(error, match=message):
        measure(*sets(), **options)


def test_wrong_shapes_are_refused(measure):
    query, key = sets()
    with pytest.raises(ValueError, match=r"query: expected \[B, H, T or S, D\], got shape \[2, 5, 4\]"):
        measure(query[0], key)
    with pytest.raises(ValueError, match="alike in B, H and D"):
        measure(query, key[:, :1])
    with pytest.raises(TypeError, match="key: expected floating-point numbers"):
        measure(query, key.long())
