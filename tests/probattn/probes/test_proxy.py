"""The proxy against loops, its gradient flow against small steps, and its limit at growing width."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from probattn import probes


def seeded(number):
    return torch.Generator().manual_seed(number)


def sentences(count=40, sizes=(12, 9), seed=0):
    generator = np.random.default_rng(seed)
    return [
        [torch.from_numpy(generator.integers(0, size, generator.integers(1, 8))) for _ in range(count)]
        for size in sizes
    ]


def corpus_of(sides, sizes):
    """A corpus whose words are the numbers of the sentences."""
    counts = [
        csr_matrix(np.stack([np.bincount(sentence, minlength=size) for sentence in sentences]))
        for sentences, size in zip(sides, sizes, strict=True)
    ]
    words = [probes.Vocabulary(tuple(map(str, range(size)))) for size in sizes]
    return probes.ParallelCorpus(*counts, *words)


@pytest.fixture
def corpus():
    return corpus_of(sentences(), (12, 9))


def loss_by_loops(model, pairs):
    total = torch.zeros(())
    for source, target in zip(*pairs, strict=True):
        probabilities = (model.output @ model.embedding[source].mean(0)).softmax(-1)
        for word in target:
            total = total - probabilities[word].log()
    return total


def padded(ragged):
    ids = torch.nn.utils.rnn.pad_sequence(ragged, batch_first=True)
    lengths = torch.tensor([len(each) for each in ragged])
    return ids, torch.arange(ids.shape[1]) < lengths.unsqueeze(-1)


def test_its_loss_is_that_of_loops_over_words():
    pairs = sentences()
    model = probes.BagOfWordsProxy(12, 9, 5, generator=seeded(0)).double()
    (source, mask), (target, target_mask) = (padded(side) for side in pairs)
    torch.testing.assert_close(
        model.loss(source, target, mask, target_mask), loss_by_loops(model, pairs).double(), check_dtype=False
    )


def test_its_probe_is_its_answer_to_one_word():
    model = probes.BagOfWordsProxy(12, 9, 5, generator=seeded(0))
    source, target = torch.tensor([[0, 3, 11], [4, 4, 1]]), torch.tensor([[8, 0], [2, 2]])
    found = model.probe(source, target)
    for b in range(2):
        for t in range(2):
            for place in range(3):
                alone = model(source[b, place].view(1, 1)).softmax(-1)[0, target[b, t]]
                torch.testing.assert_close(found[b, t, place], alone)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    masked = model.probe(source, target, mask)
    assert (masked[0, :, 2] == 0).all()
    torch.testing.assert_close(model.probe(source, target, mask, log=True).exp(), masked)


def test_it_begins_as_the_paper_says():
    model = probes.BagOfWordsProxy(300, 200, 400, generator=seeded(1))
    for parameter in model.parameters():
        assert parameter.mean().abs().item() < 1e-3
        assert parameter.var().item() == pytest.approx(1 / 400, rel=0.02)


def test_the_flow_is_the_limit_of_small_steps(corpus):
    pairs = sentences()
    model = probes.BagOfWordsProxy(12, 9, 6, generator=seeded(2)).double()
    found = probes.gradient_flow(model, corpus)
    assert model.embedding.grad is None and model.embedding.requires_grad
    loss_by_loops(model, pairs).backward()
    size = 1e-6
    ends = []
    for sign in (1, -1):
        e, w = (each.detach() - sign * size * each.grad for each in (model.embedding, model.output))
        ends.append((e @ w.mT, (e @ w.mT).softmax(-1)))
    for derivative, after, before in zip(found, *ends, strict=True):
        torch.testing.assert_close(derivative, (after - before) / (2 * size), rtol=1e-5, atol=1e-6)


def test_the_corpus_is_taken_a_few_sentences_at_a_time(corpus, monkeypatch):
    model = probes.BagOfWordsProxy(12, 9, 6, generator=seeded(2)).double()
    whole = probes.gradient_flow(model, corpus)
    monkeypatch.setattr(probes.proxy, "_LOGITS", 12 * 7)
    for found, expected in zip(probes.gradient_flow(model, corpus), whole, strict=True):
        torch.testing.assert_close(found, expected)


def test_the_flow_tends_to_the_counts_as_the_width_grows(corpus):
    """Eq. 54 for the logits; for the probabilities that over the number of output words."""
    limit = probes.gradient_flow_limit(torch.from_numpy(probes.IBMModel1.fit(corpus).counts.toarray()))
    errors = []
    for width in (64, 512, 4096, 32768):
        runs = [
            probes.gradient_flow(
                probes.BagOfWordsProxy(12, 9, width, generator=seeded(seed)).double(), corpus
            )
            for seed in range(5)
        ]
        errors.append(
            [
                np.mean([((found[k] - limit[k]).norm() / limit[k].norm()).item() for found in runs])
                for k in range(2)
            ]
        )
    errors = np.array(errors)
    assert (np.diff(errors, axis=0) < 0).all()
    assert (errors[-1] < 0.05).all()
    # The error falls as 1 / sqrt(d): by 22 from the first width to the last.
    slope = np.polyfit(np.log([64, 512, 4096, 32768]), np.log(errors), 1)[0]
    np.testing.assert_allclose(slope, -0.5, atol=0.1)
    torch.testing.assert_close(limit.probabilities * 9, limit.logits)  # |O| = 9, which Eq. 15 leaves out


def test_permutations_of_all_words_teach_it_nothing():
    orders = [torch.randperm(6, generator=seeded(seed)) for seed in range(10)]
    corpus = corpus_of((orders, orders[::-1]), (6, 6))
    limit = probes.gradient_flow_limit(torch.from_numpy(probes.IBMModel1.fit(corpus).counts.toarray()))
    assert limit.logits.abs().max() < 1e-12


def test_wrong_sizes_are_named(corpus):
    with pytest.raises(ValueError, match="sizes >= 1, got 3 x 0 words"):
        probes.BagOfWordsProxy(3, 0, 4)
    with pytest.raises(ValueError, match=r"a corpus of \(3, 4\) source and target words, got \(12, 9\)"):
        probes.gradient_flow(probes.BagOfWordsProxy(3, 4, 2), corpus)


def test_marks_of_padding_and_unknown_words_may_stand_at_masked_positions():
    proxy = probes.BagOfWordsProxy(6, 5, 4, generator=seeded(0))
    source, mask = torch.tensor([[0, 3, -1]]), torch.tensor([[True, True, False]])
    target, target_mask = torch.tensor([[1, -100]]), torch.tensor([[True, False]])
    torch.testing.assert_close(
        proxy.loss(source, target, mask, target_mask), proxy.loss(source[:, :2], target[:, :1])
    )
    probe = proxy.probe(source, target[:, :1], mask)
    torch.testing.assert_close(probe[..., :2], proxy.probe(source[:, :2], target[:, :1]))
    assert probe[0, 0, 2] == 0
