"""The likelihood of aligned tokens against torch's cross-entropy, place by place."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from probattn.models.translation.recurrent import lstms
from probattn.models.translation.recurrent.lstms import AlignedTokens


@pytest.mark.parametrize("epsilon", [0.0, 0.2])
def test_the_log_density_is_the_cross_entropy_where_it_counts(epsilon):
    torch.manual_seed(0)
    layer, units = torch.nn.Linear(3, 7), torch.randn(4, 2, 5, 3)
    labels, counts = torch.randint(7, (2, 5)), torch.rand(4, 2, 5) < 0.5
    found = AlignedTokens(units, layer, counts, epsilon).log_prob(labels)
    for place in range(4):
        for row in range(2):
            for step in range(5):
                logits = layer(units[place, row, step])
                own = -cross_entropy(logits, labels[row, step], label_smoothing=epsilon)
                expected = own if counts[place, row, step] else torch.zeros(())
                torch.testing.assert_close(found[place, row, step], expected)
    (grad,) = torch.autograd.grad(found.sum(), layer.weight)
    (again,) = torch.autograd.grad(
        AlignedTokens(units[counts], layer, torch.tensor(True), epsilon)
        .log_prob(labels.expand(4, 2, 5)[counts])
        .sum(),
        layer.weight,
    )
    torch.testing.assert_close(grad, again)


def test_logits_are_made_for_what_counts_alone_and_in_blocks(monkeypatch):
    seen = []

    class Watched(torch.nn.Linear):
        def forward(self, units):
            seen.append(len(units))
            return super().forward(units)

    layer, units = Watched(6, 7), torch.randn(4, 2, 3, 6)
    counts = torch.tensor([[True, False, False], [True, True, False]])
    tokens, labels = AlignedTokens(units, layer, counts, 0.1), torch.randint(7, (2, 3))
    whole = tokens.log_prob(labels)
    assert seen == [4 * 3]
    seen.clear()
    monkeypatch.setattr(lstms, "BLOCK", 5 * 7)
    torch.testing.assert_close(tokens.log_prob(labels), whole)
    assert seen == [5, 5, 2]
    nothing = AlignedTokens(units, layer, torch.tensor(False)).log_prob(labels)
    assert nothing.shape == (4, 2, 3) and not nothing.any()


def test_draws_follow_the_softmax():
    torch.manual_seed(0)
    logits = torch.tensor([0.0, 1.0, 2.0])
    layer = torch.nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(3))
    tokens = AlignedTokens(logits.expand(2, 3), layer, torch.tensor(True)).expand((5, 2))
    drawn = tokens.sample((2000,))
    assert drawn.shape == (2000, 5, 2)
    shares = torch.bincount(drawn.flatten(), minlength=3) / drawn.numel()
    torch.testing.assert_close(shares, logits.softmax(0), atol=0.02, rtol=0)
