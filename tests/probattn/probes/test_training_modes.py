"""Scores and weights of the two LSTM models' attention, and the modes that part attention from probe."""

import pytest
import torch
from torch import nn

from probattn import probes


class Classifier(nn.Module):
    """The paper's classifier (Eq. 7, 8) with a one-way LSTM."""

    def __init__(self, mode="learned"):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.encoder = nn.LSTM(6, 5, batch_first=True)
        self.hidden = nn.Linear(5, 4, bias=False)
        self.vector = nn.Parameter(torch.randn(4))
        self.output = nn.Linear(5, 1, bias=False)
        self.mode = mode

    def states(self, words):
        return self.encoder(self.embedding(words))[0]

    def attention(self, states):
        return probes.attention_weights(
            probes.additive_scores(states, self.hidden.weight, self.vector), mode=self.mode
        )

    def forward(self, words):
        states = self.states(words)
        return self.output((self.attention(states).unsqueeze(-1) * states).sum(1)).squeeze(-1)

    def probe(self, words, labels):
        return probes.classifier_probe(self.output, self.states(words), labels)


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(11, (8, 7), generator=generator), torch.randint(2, (8,), generator=generator)


def model(mode="learned"):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Classifier(mode)


def train(network, parameters, words, labels, steps=5):
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(network(words), labels.float()).backward()
        optimizer.step()


def test_scores_are_equations_1_and_7():
    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(2, 3, 4, generator=generator), torch.randn(2, 5, 6, generator=generator)
    weight = torch.randn(4, 6, generator=generator)
    expected = torch.einsum("bte,ed,bsd->bts", query, weight, key)
    torch.testing.assert_close(probes.luong_scores(query, key, weight), expected)
    hidden, vector = torch.randn(7, 6, generator=generator), torch.randn(7, generator=generator)
    for b in range(2):
        for s in range(5):
            expected = vector @ (hidden @ key[b, s]).clamp(min=0)
            torch.testing.assert_close(probes.additive_scores(key, hidden, vector)[b, s], expected)


@pytest.mark.parametrize("mode", ["learned", "uniform"])
def test_weights_are_those_of_the_positions_that_count(mode):
    scores = torch.randn(4, 6, generator=torch.Generator().manual_seed(2)) * 50
    mask = torch.tensor([[True] * 6, [False] * 6, [True, False] * 3, [False] * 5 + [True]])
    found = probes.attention_weights(scores, mask, mode)
    for row in (0, 2, 3):
        kept = scores[row, mask[row]]
        expected = kept.softmax(-1) if mode == "learned" else torch.full_like(kept, 1 / len(kept))
        torch.testing.assert_close(found[row, mask[row]], expected)
    assert (found[~mask] == 0).all()
    torch.testing.assert_close(probes.attention_weights(scores, None, mode)[0], found[0])


def test_uniform_attention_does_not_learn_but_the_probe_does(data):
    words, labels = data
    network = model("uniform")
    before = network.probe(words, labels).detach()
    train(network, network.parameters(), words, labels)
    assert network.hidden.weight.grad is None and network.vector.grad is None
    torch.testing.assert_close(network.attention(network.states(words)), torch.full((8, 7), 1 / 7))
    assert (network.probe(words, labels) - before).abs().max() > 1e-3


def test_a_frozen_probe_does_not_learn_but_attention_does(data):
    words, labels = data
    network = model()
    network.embedding.weight.requires_grad_(False)
    before = network.probe(words, labels).detach(), network.attention(network.states(words)).detach()
    with probes.frozen_probe(network, [network.hidden, network.vector]) as learning:
        assert {id(parameter) for parameter in learning} == {id(network.hidden.weight), id(network.vector)}
        train(network, learning, words, labels, steps=20)
    torch.testing.assert_close(network.probe(words, labels), before[0], rtol=0, atol=0)
    assert (network.attention(network.states(words)) - before[1]).abs().max() > 1e-3
    expected = ["embedding.weight"]
    assert [name for name, parameter in network.named_parameters() if not parameter.requires_grad] == expected


def test_parameters_thaw_after_an_error():
    network = model()
    with pytest.raises(RuntimeError, match="stop"), probes.frozen_probe(network, [network.hidden]):
        raise RuntimeError("stop")
    assert all(each.requires_grad for each in network.parameters())


def test_wrong_calls_are_named():
    network = model()
    with pytest.raises(ValueError, match="got none: nothing would learn"), probes.frozen_probe(network, []):
        pass
    with pytest.raises(ValueError, match=r"got 1 that are not, the first of shape \[3\]"):
        probes.frozen_probe(network, [nn.Parameter(torch.zeros(3))]).__enter__()
    with pytest.raises(ValueError, match=r"mode: expected one of 'learned', 'uniform', got 'frozen'"):
        probes.attention_weights(torch.zeros(3), mode="frozen")
    for one in (network.hidden, network.vector):
        with pytest.raises(TypeError, match="expected a list of attention, got one"):
            probes.frozen_probe(network, one).__enter__()
    with pytest.raises(TypeError, match=r"floating-point scores, got torch\.int64"):
        probes.attention_weights(torch.zeros(3).long(), mode="uniform")
    with pytest.raises(TypeError, match="a bool mask"):
        probes.attention_weights(torch.zeros(3), torch.ones(3))
