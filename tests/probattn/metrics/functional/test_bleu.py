"""BLEU against sacrebleu's own score of a corpus, and what resampled counts give."""

import math
import random
import sys

import pytest
import torch

from probattn.metrics.functional import bleu, bleu_counts, bleu_from_counts

sacrebleu = pytest.importorskip("sacrebleu", reason="needs sacrebleu (the extra 'translation')")
WORDS = ["the", "a", "dog", "runs", "sleeps", "under", "tree", ",", ".", "Two", "men's", "well-known", "3.5"]


def sentences(seed, number=40):
    draw = random.Random(seed)
    references = [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(number)]
    changed = [" ".join(word for word in text.split() if draw.random() < 0.8) for text in references]
    return changed, references


@pytest.mark.parametrize("seed", range(3))
def test_it_is_sacrebleus(seed):
    hypotheses, references = sentences(seed)
    metric = sacrebleu.BLEU()
    theirs = metric.corpus_score(hypotheses, [references])
    ours = bleu(hypotheses, references)
    assert ours.score == theirs.score and ours.precisions == tuple(theirs.precisions)
    assert (ours.brevity_penalty, ours.hypothesis_length) == (theirs.bp, theirs.sys_len)
    assert ours.reference_length == theirs.ref_len > ours.hypothesis_length
    assert ours.signature == str(metric.get_signature())
    assert "case:mixed" in ours.signature and "tok:13a" in ours.signature


def test_by_hand():
    """3 of 4 words, 2 of 3 pairs, 1 of 2 triples, none of 1 quadruple: smoothed to a half; 4 words for 5."""
    found = bleu(["a b c x"], ["a b c d e"])
    expected = math.exp(1 - 5 / 4) * 100 * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25
    assert found.score == pytest.approx(expected)


def test_rows_can_be_chosen_and_repeated():
    hypotheses, references = sentences(5)
    counts = bleu_counts(hypotheses, references)
    assert counts.shape == (40, 10)
    rows = torch.tensor([3, 3, 17, 39])
    chosen = [[side[row] for row in rows] for side in (hypotheses, references)]
    assert bleu_from_counts(counts[rows]) == bleu(*chosen)


def test_an_empty_translation_counts_as_short():
    assert bleu([""], ["a b"]).score == 0
    assert bleu(["a b c d e", ""], ["a b c d e", "a b c d e"]).brevity_penalty == pytest.approx(math.exp(-1))


@pytest.mark.parametrize("given", [([], []), (["a"], []), (["a"], ["a", "b"])])
def test_unequal_numbers_and_nothing_are_refused(given):
    with pytest.raises(ValueError, match=f"got {len(given[0])} and {len(given[1])}"):
        bleu(*given)
    with pytest.raises(ValueError, match="at least one translation, got none"):
        bleu_from_counts(torch.zeros(0, 10))


def test_without_sacrebleu_the_line_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ImportError, match=r"pip install 'probattn\[translation\]'"):
        bleu(["a"], ["a"])
