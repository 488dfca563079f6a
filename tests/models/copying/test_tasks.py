"""Sentences of the synthetic tasks, and what is measured on them."""

import math

import pytest
import torch

from probattn.models.copying import (
    CopyTask,
    KeywordBatch,
    KeywordOutput,
    KeywordTask,
    keyword_measures,
    share_at,
    token_accuracy,
)


def test_permutations_hold_all_words():
    batch = CopyTask(types=6, length=6).draw([0, 1], 1, 50)
    assert torch.equal(batch.source.sort(-1).values, torch.arange(6).expand(2, 50, 6))
    assert torch.equal(batch.target, batch.source)
    assert not torch.equal(batch.source[0], batch.source[1])


def test_subsets_have_every_word_at_every_place_alike():
    source = CopyTask(types=6, length=4).draw([0], 1, 6000).source[0]
    assert all(len(set(row)) == 4 for row in source[:50].tolist())
    counts = torch.stack([torch.bincount(column, minlength=6) for column in source.T]).double()
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 45  # 24 cells, 20 degrees of freedom: P < 0.002


def test_mixture_takes_each_sentence_from_one_set():
    source = CopyTask(types=5, length=5, sets=2).draw([0], 1, 400).source[0]
    chosen = source // 5
    assert bool((chosen == chosen[:, :1]).all())
    assert abs(chosen[:, 0].double().mean() - 0.5) < 0.1
    assert torch.equal((source % 5).sort(-1).values, torch.arange(5).expand(400, 5))


def test_permuted_order_is_one_for_each_run():
    task = CopyTask(types=9, length=7, order="permuted")
    first, second = (task.draw([3, 4], step, 5) for step in (1, 2))
    assert torch.equal(first.positions, second.positions)
    assert not torch.equal(first.positions[0], first.positions[1])
    for run in range(2):
        assert torch.equal(first.target[run], first.source[run][:, first.positions[run]])


def test_draws_depend_on_seed_step_and_split_alone():
    task = CopyTask(types=9, length=7)
    whole = task.draw([3, 4, 5], 2, 5)
    assert torch.equal(task.draw([4], 2, 5).source[0], whole.source[1])
    others = [task.draw([4], 3, 5), task.draw([5], 2, 5), task.draw([4], 2, 5, "test")]
    assert not any(torch.equal(other.source[0], whole.source[1]) for other in others)


def test_keyword_stands_once_or_never():
    batch = KeywordTask(types=5, length=6).draw([0, 1], 1, 2000)
    found = batch.words == 0
    assert torch.equal(found.sum(-1), batch.labels.long())
    assert torch.equal(found.int().argmax(-1), batch.positions)
    assert abs(batch.labels.double().mean() - 0.5) < 0.03
    places = torch.bincount(batch.positions[batch.labels], minlength=6).double()
    assert float((places / places.sum() - 1 / 6).abs().max()) < 0.03
    others = torch.bincount(batch.words.flatten(), minlength=5)[1:].double()
    assert float((others / others.sum() - 1 / 4).abs().max()) < 0.01


def test_shares_and_accuracies_by_hand():
    logits = torch.tensor([[[[1.0, 0], [0, 1]]], [[[1, 0], [1, 0]]]])  # [2, 1, 2, 2]
    assert token_accuracy(logits, torch.tensor([[[0, 1]], [[1, 1]]])).tolist() == [1, 0]
    ratings = torch.tensor([[[[0.2, 0.2, 0.1], [0.1, 0.2, 0.7]]], [[[0.2, 0.1, 0.2], [0.3, 0.4, 0.3]]]])
    assert share_at(ratings, torch.tensor([[0, 1], [2, 1]])).tolist() == [0.5, 0.5]  # the first of equal ones


def test_keyword_measures_leave_out_what_is_not_there():
    odds = torch.tensor([[[1.0, 2, 4], [3, 5, 9], [7, 7, 7]]])
    labels = torch.tensor([[True, True, False]])
    batch = KeywordBatch(torch.zeros(1, 3, 3).long(), labels, torch.tensor([[0, 2, 0]]))
    found = keyword_measures(KeywordOutput(odds.mean(-1), odds), batch)
    assert found.keyword.item() == pytest.approx((1 + 9) / 2)
    assert found.next_word.item() == pytest.approx(2)
    assert found.mean.item() == pytest.approx((7 + 17) / 6)
    assert found.last.item() == pytest.approx((4 + 9) / 2)
    assert found.accuracy.item() == pytest.approx(2 / 3)
    none = keyword_measures(
        KeywordOutput(odds.mean(-1), odds), batch._replace(labels=torch.zeros(1, 3).bool())
    )
    assert math.isnan(none.keyword.item())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"types": 3, "length": 4}, r"types: expected at least length \(4\) words, got 3"),
        ({"sets": 0}, "sets: expected an integer >= 1"),
        ({"order": "reversed"}, "order: expected one of 'copy', 'permuted'"),
    ],
)
def test_impossible_tasks_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CopyTask(**options)
