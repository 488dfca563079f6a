"""Saliency against derivatives worked out by hand and by differences."""

import pytest
import torch
from torch import nn

from probattn.probes import gradient_saliency


def seeded(number):
    return torch.Generator().manual_seed(number)


@pytest.fixture
def network():
    """A recurrent classifier with two outputs, in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder, head = nn.LSTM(4, 5, batch_first=True).double(), nn.Linear(5, 2).double()

    def scores(embeddings):
        return head(encoder(embeddings)[0].mean(1)).log_softmax(-1)

    return scores


@pytest.fixture
def embeddings():
    return torch.randn(3, 6, 4, generator=seeded(1), dtype=torch.float64)


def derivative(score, embeddings, b, s, direction, step=1e-5):
    """Central difference of one example's score along a direction of one word."""
    moved = embeddings.clone(), embeddings.clone()
    moved[0][b, s] += step * direction
    moved[1][b, s] -= step * direction
    return (score(moved[0])[b] - score(moved[1])[b]) / (2 * step)


def test_it_is_the_difference_that_a_word_makes(network, embeddings):
    def score(e):
        return network(e)[:, 0]

    table = torch.randn(9, 4, generator=seeded(2), dtype=torch.float64)
    norm, erase = (gradient_saliency(score, embeddings, kind=kind) for kind in ("norm", "erase"))
    replace = gradient_saliency(score, embeddings, kind="replace", table=table)
    axes = torch.eye(4, dtype=torch.float64)
    for b in range(3):
        for s in range(6):
            own = embeddings[b, s]
            gradient = torch.stack([derivative(score, embeddings, b, s, axis) for axis in axes])
            torch.testing.assert_close(norm[b, s], gradient.norm(), rtol=1e-6, atol=1e-9)
            torch.testing.assert_close(
                erase[b, s], derivative(score, embeddings, b, s, own), rtol=1e-6, atol=1e-9
            )
            falls = torch.stack([derivative(score, embeddings, b, s, own - other) for other in table])
            torch.testing.assert_close(replace[b, s], falls.max(), rtol=1e-6, atol=1e-9)


def test_every_output_word_has_its_own(network, embeddings):
    found = gradient_saliency(network, embeddings)
    assert found.shape == (3, 2, 6)
    for t in range(2):
        one = gradient_saliency(lambda e, t=t: network(e)[:, t], embeddings)
        torch.testing.assert_close(found[:, t], one)


def test_masked_words_have_none(network, embeddings):
    mask = torch.rand(3, 6, generator=seeded(3)) < 0.5
    plain = gradient_saliency(network, embeddings)
    torch.testing.assert_close(gradient_saliency(network, embeddings, mask), plain * mask.unsqueeze(1))


def test_it_leaves_nothing_behind(embeddings):
    weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
    leaf = embeddings.requires_grad_()
    with torch.no_grad():
        found = gradient_saliency(lambda e: (e @ weight).sum(1), leaf)
    assert weight.grad is None and leaf.grad is None and not found.requires_grad
    torch.testing.assert_close(found, torch.full((3, 6), 2.0, dtype=torch.float64))


def test_a_score_without_words_has_none():
    result = gradient_saliency(lambda e: e.sum((1, 2)).unsqueeze(-1)[:, :0], torch.rand(2, 3, 4)).shape
    assert result == (2, 0, 3)


WEIGHT = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("score", "options", "words"),
    [
        (lambda e: e.sum(), {}, r"scores \[2\] or \[2, T\], got \[\]"),
        (lambda _: torch.zeros(2), {}, "depends on the embeddings, got one without a gradient"),
        (lambda e: WEIGHT.sum().expand(len(e)), {}, "depends on the embeddings, got one of the model's"),
        (lambda e: e.sum((1, 2)), {"kind": "length"}, "kind: expected one of"),
        (lambda e: e.sum((1, 2)), {"kind": "replace"}, "a table of embeddings"),
        (lambda e: e.sum((1, 2)), {"table": torch.rand(5, 4)}, "a table of embeddings"),
        (
            lambda e: e.sum((1, 2)),
            {"kind": "replace", "table": torch.rand(5, 3)},
            r"a table \[V, 4\], got \[5, 3\]",
        ),
        (lambda e: e.sum((1, 2)), {"mask": torch.ones(2, 5, dtype=torch.bool)}, "a mask that fits"),
    ],
)
def test_wrong_inputs_are_named(score, options, words):
    with pytest.raises(ValueError, match=words):
        gradient_saliency(score, torch.rand(2, 3, 4), **options)
    with pytest.raises(ValueError, match=r"embeddings \[B, S, D\]"):
        gradient_saliency(score, torch.rand(3, 4))


def test_inference_mode_is_named():
    with torch.inference_mode(), pytest.raises(ValueError, match="inference_mode"):
        gradient_saliency(lambda e: e.sum((1, 2)), torch.rand(2, 3, 4))
