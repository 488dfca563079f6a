"""Distances between queries and keys against numpy, scikit-learn and cases whose answer is known."""

import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier

from probattn.report.alignment import Alignment
from probattn.report.distances import (
    TokenSample,
    clouds,
    gather,
    head_bandwidths,
    head_distances,
    site_alignments,
)

TEXTS, HEADS, LENGTH, SIZE = 24, 3, 9, 5


@dataclass
class Call:
    query: torch.Tensor
    key: torch.Tensor
    query_valid: torch.Tensor
    key_valid: torch.Tensor


def sample(seed: int = 0, shift: float = 0.0, scale: float = 1.0, texts: int = TEXTS) -> TokenSample:
    """Normal queries and keys in double precision, some of them padding that holds large numbers."""
    generator = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, texts, HEADS, LENGTH, SIZE, generator=generator, dtype=torch.float64)
    valid = torch.arange(LENGTH) < torch.randint(3, LENGTH + 1, (texts, 1), generator=generator)
    query = torch.where(valid[:, None, :, None], query, 1e3)
    key = torch.where(valid[:, None, :, None], scale * key + shift, -1e3)
    return TokenSample(query, key, valid, valid)


def tokens(found: TokenSample, head: int, row: int | slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
    """Real queries and keys of a head."""
    sides = ((found.query, found.query_valid), (found.key, found.key_valid))
    query, key = (points[row][..., head, :, :][valid[row]].numpy() for points, valid in sides)
    return query, key


def unbiased(query: np.ndarray, key: np.ndarray, bandwidth: float) -> float:
    """Gretton et al. 2012, Eq. 3, pair by pair."""

    def kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.exp(-((x[:, None] - y[None]) ** 2).sum(-1) / (2 * bandwidth**2))

    def within(x: np.ndarray) -> float:
        values = kernel(x, x)
        return (values.sum() - np.trace(values)) / (len(x) * (len(x) - 1))

    return within(query) + within(key) - 2 * kernel(query, key).mean()


def test_the_discrepancy_is_the_unbiased_one_within_each_text() -> None:
    found = sample(shift=0.4)
    bandwidth = torch.tensor([0.7, 1.5, 3.0], dtype=torch.float64)
    measured = head_distances(found, bandwidth)
    for head in range(HEADS):
        texts = [tokens(found, head, row) for row in range(TEXTS)]
        expected = np.mean([unbiased(*text, bandwidth[head].item()) for text in texts])
        assert measured.mmd[head].item() == pytest.approx(expected, abs=1e-12)
        means = [np.concatenate(side).mean(0) for side in zip(*texts, strict=True)]
        moved = [(query, key - means[1] + means[0]) for query, key in texts]
        expected = np.mean([unbiased(*text, bandwidth[head].item()) for text in moved])
        assert measured.mmd_centred[head].item() == pytest.approx(expected, abs=1e-12)


def test_norms_are_means_over_real_tokens() -> None:
    found = sample(scale=2.0)
    measured = head_distances(found, torch.ones(HEADS, dtype=torch.float64))
    for head in range(HEADS):
        query, key = tokens(found, head)
        assert measured.query_norm[head].item() == pytest.approx(np.linalg.norm(query, axis=-1).mean())
        assert measured.key_norm[head].item() == pytest.approx(np.linalg.norm(key, axis=-1).mean())


def test_the_classifier_is_that_of_scikit_learn() -> None:
    found = sample(shift=0.5)
    measured = head_distances(found, torch.ones(HEADS, dtype=torch.float64))
    halves = slice(TEXTS // 2), slice(TEXTS // 2, None)
    for head in range(HEADS):
        known, asked = (tokens(found, head, rows) for rows in halves)
        points = np.concatenate(known)
        labels = np.repeat([0, 1], [len(side) for side in known])
        classifier = KNeighborsClassifier(max(1, round(len(points) ** 0.5))).fit(points, labels)
        scores = classifier.predict_proba(np.concatenate(asked))[:, 1]
        expected = roc_auc_score(np.repeat([0, 1], [len(side) for side in asked]), scores)
        assert measured.auc[head].item() == pytest.approx(expected, abs=1e-6)


def test_a_shift_is_seen_raw_and_gone_when_centred() -> None:
    same, moved = sample(texts=120), sample(texts=120, shift=3.0)
    bandwidth = head_bandwidths(same)
    raw, apart = head_distances(same, bandwidth), head_distances(moved, bandwidth)
    assert (apart.mmd > 20 * raw.mmd.abs()).all()
    assert raw.mmd.abs().max() < 0.02  # an unbiased estimate of 0
    torch.testing.assert_close(apart.mmd_centred, raw.mmd_centred)
    assert (apart.auc > 0.95).all() and (raw.auc - 0.5).abs().max() < 0.08
    torch.testing.assert_close(apart.auc_centred, raw.auc_centred)


def test_shrinking_lowers_the_discrepancy_at_a_frozen_bandwidth_and_shows_in_the_norms() -> None:
    found = sample(shift=1.0)
    bandwidth = head_bandwidths(found)
    small = TokenSample(0.1 * found.query, 0.1 * found.key, found.query_valid, found.key_valid)
    before, after = head_distances(found, bandwidth), head_distances(small, bandwidth)
    assert (after.mmd < 0.1 * before.mmd).all()
    torch.testing.assert_close(after.query_norm, 0.1 * before.query_norm)
    torch.testing.assert_close(head_bandwidths(small), 0.1 * bandwidth)


def test_the_bandwidth_is_the_median_distance_within_texts() -> None:
    found = sample(seed=3)
    for head, value in enumerate(head_bandwidths(found).tolist()):
        distances = []
        for row in range(TEXTS):
            pooled = np.concatenate(tokens(found, head, row))
            apart = np.sqrt(((pooled[:, None] - pooled[None]) ** 2).sum(-1))
            distances += apart[np.triu_indices(len(pooled), 1)].tolist()
        below = np.mean(np.array(distances) < value)
        assert abs(below - 0.5) < 2 / len(distances)


def test_batches_of_different_lengths_are_one_sample() -> None:
    whole = sample(seed=1)
    short = whole.query_valid.sum(-1) <= 6
    parts = []
    for rows, length in ((short, 6), (~short, LENGTH)):
        cut = {name: value[rows] for name, value in vars(whole).items()}
        parts.append(
            {
                "call": Call(
                    cut["query"][:, :, :length],
                    cut["key"][:, :, :length],
                    cut["query_valid"][:, :length],
                    cut["key_valid"][:, :length],
                )
            }
        )
    joined = gather(parts)["call"]
    bandwidth = head_bandwidths(whole)
    torch.testing.assert_close(head_bandwidths(joined), bandwidth)
    for name in ("mmd", "mmd_centred", "query_norm", "key_norm"):
        value = getattr(head_distances(joined, bandwidth), name)
        torch.testing.assert_close(value, getattr(head_distances(whole, bandwidth), name))
    with pytest.raises(ValueError, match="at least one batch"):
        gather([])


def test_records_hold_every_head_and_sum_up() -> None:
    samples = {"one": sample(0, shift=0.5), "two": sample(1, shift=0.2)}
    bandwidths = {name: head_bandwidths(found) for name, found in samples.items()}
    sites = site_alignments(samples, bandwidths, "deterministic")
    record = Alignment(texts=TEXTS, bandwidth_of="deterministic", sites=sites)
    found = [head_distances(samples[name], bandwidths[name]) for name in samples]
    assert record.total("deterministic", "mmd") == pytest.approx(sum(each.mmd.sum().item() for each in found))
    expected = pytest.approx(torch.stack([e.auc for e in found]).mean().item())
    assert record.mean("deterministic", "auc") == expected
    assert record.total("bayesian_mean", "mmd") == 0
    assert record.mean("bayesian_mean", "auc") is None
    with pytest.raises(ValueError, match="expected a bandwidth of 'two', got those of one"):
        site_alignments(samples, {"one": bandwidths["one"]}, "deterministic")


def test_one_text_has_no_classifier() -> None:
    single = sample(texts=1)
    (site,) = site_alignments({"call": single}, {"call": head_bandwidths(single)}, "deterministic")
    assert site.auc == site.auc_centred == ()
    assert len(site.mmd) == HEADS


def test_clouds_are_principal_components() -> None:
    found = sample(seed=2, shift=2.0)
    cloud = clouds(found, "deterministic", "call", points=10_000)[1]
    query, key = tokens(found, 1)
    expected = PCA(2).fit_transform(np.concatenate([query, key]))
    flat = np.array(cloud.query + cloud.key)
    turned = np.sign((flat * expected).sum(0))
    np.testing.assert_allclose(flat, expected * turned, atol=6e-4)
    assert (cloud.head, cloud.site, len(cloud.query)) == (1, "call", len(query))


def test_clouds_hold_few_points_of_all_texts() -> None:
    found = sample()
    few = clouds(found, "deterministic", "call", points=7)
    assert len(few) == HEADS
    assert all(len(cloud.query) == len(cloud.key) == 7 for cloud in few)
    assert clouds(found, "deterministic", "call", points=7) == few


def test_tsne_keeps_apart_what_lies_apart() -> None:
    whole = sample(seed=4, shift=9.0)
    found = TokenSample(whole.query[:, :1], whole.key[:, :1], whole.query_valid, whole.key_valid)
    cloud = clouds(found, "deterministic", "call", projection="tsne", points=25)[0]
    query, key = np.array(cloud.query), np.array(cloud.key)
    radius = max(np.linalg.norm(side - side.mean(0), axis=-1).mean() for side in (query, key))
    assert np.linalg.norm(query.mean(0) - key.mean(0)) > 2 * radius
    assert clouds(found, "deterministic", "call", projection="tsne", points=25)[0] == cloud


def test_tsne_without_scikit_learn_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(ImportError, match=r"pip install 'probattn\[figures\]'"):
        clouds(sample(), "deterministic", "call", projection="tsne")
