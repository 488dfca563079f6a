"""The lexical probe against loops and against attention to one position."""

import math

import pytest
import torch
from torch import nn

from probattn.probes import attention_weights, classifier_probe, lexical, lexical_probe


def seeded(number):
    return torch.Generator().manual_seed(number)


@pytest.fixture
def translation():
    """States, queries, targets and an output map with a hidden layer, as in Eq. 2."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 9)).double()
    states, queries = (
        torch.randn(2, *size, generator=seeded(1), dtype=torch.float64) for size in ((5, 4), (6, 3))
    )
    target = torch.randint(9, (2, 6), generator=seeded(2))
    return head, states, queries, target


def test_it_is_what_attention_to_one_position_gives(translation):
    head, states, queries, target = translation
    found = lexical_probe(lambda c, s: head(torch.cat((c, s), -1)), states, queries, target)
    for place in range(5):
        scores = torch.full((2, 6, 5), -torch.inf, dtype=torch.float64)
        scores[..., place] = 0
        context = attention_weights(scores) @ states  # [B, T, D]
        probabilities = head(torch.cat((context, queries), -1)).softmax(-1)
        expected = probabilities.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(found[..., place], expected)


def test_output_words_are_taken_a_few_at_a_time(translation, monkeypatch):
    head, states, queries, target = translation
    sizes = []

    def output(context, query):
        sizes.append(context.shape[1])
        return head(torch.cat((context, query), -1))

    whole = lexical_probe(output, states, queries, target)
    assert sizes == [1, 5]
    monkeypatch.setattr(lexical, "_LOGITS", 2 * 5 * 9 * 2)
    torch.testing.assert_close(lexical_probe(output, states, queries, target), whole)
    assert sizes[2:] == [1, 2, 2, 1]


def test_masks_and_logarithms(translation):
    head, states, queries, target = translation
    mask = torch.tensor([[True, True, False, True, False], [True] * 5])

    def output(context, query):
        return head(torch.cat((context, query), -1))

    plain = lexical_probe(output, states, queries, target)
    masked = lexical_probe(output, states, queries, target, mask)
    assert (masked[0, :, [2, 4]] == 0).all()
    torch.testing.assert_close(masked[1], plain[1])
    logs = lexical_probe(output, states, queries, target, mask, log=True)
    torch.testing.assert_close(logs.exp(), masked)
    assert logs[0, :, 2].isinf().all()


def test_it_has_gradients(translation):
    head, states, queries, target = translation
    assert torch.autograd.gradcheck(
        lambda h, s: lexical_probe(lambda c, q: head(torch.cat((c, q), -1)), h, s, target),
        (states.requires_grad_(), queries.requires_grad_()),
    )


@pytest.mark.parametrize("label", [0, 1])
def test_two_classes_are_equation_9(label):
    states, weight = torch.randn(3, 4, 5, generator=seeded(0)), torch.randn(5, generator=seeded(1))
    target = torch.full((3,), label)
    expected = ((2 * label - 1) * (states @ weight)).sigmoid()
    for output in (
        lambda h: h @ weight,
        lambda h: (h @ weight).unsqueeze(-1),
        lambda h: torch.stack((torch.zeros(3, 4), h @ weight), dim=-1),
    ):
        torch.testing.assert_close(classifier_probe(output, states, target), expected)


def test_equation_12_joins_probe_and_attention():
    """The classifier's probability is the sigmoid of the mean of the probes' log-odds."""
    states, weight = torch.randn(3, 4, 5, generator=seeded(2)), torch.randn(5, generator=seeded(3))
    attention = torch.rand(3, 4, generator=seeded(4)).softmax(-1)
    target = torch.tensor([0, 1, 1])
    probe = classifier_probe(lambda h: h @ weight, states, target)
    direct = ((2 * target - 1) * ((attention.unsqueeze(-1) * states).sum(1) @ weight)).sigmoid()
    torch.testing.assert_close((attention * probe.logit()).sum(-1).sigmoid(), direct)


def test_more_classes_masks_and_logarithms():
    states, weight = torch.randn(3, 4, 5, generator=seeded(5)), torch.randn(6, 5, generator=seeded(6))
    target = torch.tensor([5, 0, 2])
    mask = torch.rand(3, 4, generator=seeded(7)) < 0.5
    found = classifier_probe(lambda h: h @ weight.mT, states, target, mask)
    for row in range(3):
        for place in range(4):
            expected = (
                (weight @ states[row, place]).softmax(-1)[target[row]]
                if mask[row, place]
                else torch.tensor(0.0)
            )
            torch.testing.assert_close(found[row, place], expected)
    logs = classifier_probe(lambda h: h @ weight.mT, states, target, mask, log=True)
    torch.testing.assert_close(logs.exp(), found)


def test_logarithms_differ_where_probabilities_round_to_1():
    states = torch.tensor([[[20.0], [30.0]]])
    assert (classifier_probe(lambda h: h.squeeze(-1), states, torch.tensor([1])) == 1).all()
    logs = classifier_probe(lambda h: h.squeeze(-1), states, torch.tensor([1]), log=True)
    expected = [-math.log1p(math.exp(-20)), -math.log1p(math.exp(-30))]
    torch.testing.assert_close(logs, torch.tensor([expected]), rtol=1e-5, atol=0)


def test_logarithms_of_many_outputs_are_those_of_double_precision():
    """Three outputs, of which one is nearly certain: a difference of logarithms would be 0 everywhere."""
    margins = torch.linspace(8, 40, 30)
    logits = torch.stack((margins, torch.zeros(30), torch.ones(30)), dim=-1)
    for offset in (0.0, 1024.0):  # margins are rounded beside a large number
        moved = logits + offset
        others = (moved[:, 1:] - moved[:, :1]).double().exp().sum(-1)
        logs = classifier_probe(
            lambda _, x=moved: x[None], torch.zeros(1, 30, 2), torch.tensor([0]), log=True
        )
        torch.testing.assert_close(logs[0], -others.log1p().float(), rtol=1e-5, atol=0)
        found = classifier_probe(lambda _, x=moved: x[None], torch.zeros(1, 30, 2), torch.tensor([2]))
        torch.testing.assert_close(found[0], moved.double().softmax(-1)[:, 2].float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_once(dtype):
    logits = (3 * torch.randn(1, 6, 5, generator=torch.Generator().manual_seed(0)) + 20).to(dtype)
    found = classifier_probe(lambda _: logits, torch.zeros(1, 6, 2), torch.tensor([1]))
    assert found.dtype == dtype
    expected = logits.double().softmax(-1)[..., 1]
    torch.testing.assert_close(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-4)


def test_the_head_of_a_hugging_face_classifier_is_an_output_map():
    """BERT pools its first position, so that the probe there is what the network itself answers."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=3,
        output_hidden_states=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = BertForSequenceClassification(config).eval()
    target = torch.tensor([2, 0])
    with torch.no_grad():
        answer = network(torch.randint(50, (2, 6), generator=seeded(8)))
        pooler = network.bert.pooler
        probe = classifier_probe(
            lambda h: network.classifier(pooler.activation(pooler.dense(h))), answer.hidden_states[-1], target
        )
    torch.testing.assert_close(
        probe[:, 0], answer.logits.softmax(-1).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    )
    assert probe.shape == (2, 6)


def test_nothing_to_probe():
    states, queries = torch.rand(2, 4, 3), torch.rand(2, 0, 3)
    assert lexical_probe(lambda c, _: c, states, queries, torch.zeros(2, 0).long()).shape == (2, 0, 4)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda h, s, y: lexical_probe(lambda c, _: c[0], h, s, y),
            ValueError,
            r"give logits \[2, 1, 4, O\], got \[1, 4, 3\]",
        ),
        (
            lambda h, s, y: lexical_probe(lambda c, _: c, h, s, y + 3),
            ValueError,
            r"targets in 0 .. 2, got 3 .. 3",
        ),
        (lambda h, s, y: lexical_probe(lambda c, _: c, h, s, y.float()), TypeError, "integer targets"),
        (lambda h, s, y: lexical_probe(lambda c, _: c, h, s, y[:1]), ValueError, r"target \[B, T\], got"),
        (
            lambda h, s, y: lexical_probe(lambda c, _: c, h, s, y, torch.ones(2, 5, dtype=torch.bool)),
            ValueError,
            "a mask that fits",
        ),
        (
            lambda h, _, y: classifier_probe(lambda c: c, h, y),
            ValueError,
            r"states \[B, S, D\] and target \[B\]",
        ),
        (
            lambda h, _, y: classifier_probe(lambda c: c[:1], h, y[:, 0]),
            ValueError,
            "the output map to give logits",
        ),
    ],
)
def test_wrong_inputs_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call(torch.rand(2, 4, 3), torch.rand(2, 5, 3), torch.zeros(2, 5).long())
