"""ROUGE and METEOR against the packages that others use, repetition and coverage against loops."""

from __future__ import annotations

import random
import re

import pytest
import torch

from probattn.metrics.functional import (
    bleu_counts,
    bleu_from_counts,
    find_wordnet,
    meteor,
    name_coverage,
    repeated_clauses,
    repeated_ngrams,
    rouge,
)
from probattn.metrics.functional.meteor import meteor_words
from probattn.metrics.functional.synonyms import WordNet

WORDS = [
    "the",
    "a",
    "model",
    "models",
    "modelling",
    "parser",
    "parsers",
    "speech",
    ",",
    ".",
    "we",
    "use",
    "uses",
    "used",
]


def random_texts(number=40):
    draw = random.Random(0)
    made = [" ".join(draw.choices(WORDS, k=draw.randint(1, 25))) for _ in range(2 * number)]
    return made[:number], made[number:]


def test_rouge_is_googles():
    scorer = pytest.importorskip("rouge_score.rouge_scorer", reason="needs rouge-score")
    hypotheses, references = random_texts()
    own = scorer.RougeScorer(["rouge1", "rouge2", "rougeL"])
    found = rouge(hypotheses, references)
    for row, pair in enumerate(zip(references, hypotheses, strict=True)):
        scores = own.score(*pair)
        expected = [
            [scores[name].precision, scores[name].recall, scores[name].fmeasure]
            for name in ("rouge1", "rouge2", "rougeL")
        ]
        torch.testing.assert_close(found[row], torch.tensor(expected, dtype=torch.float64))


def test_rouge_by_hand():
    found = rouge(
        ["police kill the gunman", "", "the the the"], ["Police killed the gunman!", "a b", "the end"]
    )
    assert found[0, 0].tolist() == [0.75, 0.75, 0.75]  # police, the, gunman
    assert found[0, 1].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])  # the gunman
    assert found[0, 2].tolist() == [0.75, 0.75, 0.75]
    assert found[1].abs().sum() == 0
    assert found[2, 0].tolist() == pytest.approx(
        [1 / 3, 1 / 2, 0.4]
    )  # a word counts as often as both have it


def test_meteor_without_synonyms_is_nltks():
    score = pytest.importorskip("nltk.translate.meteor_score", reason="needs nltk").single_meteor_score

    class Nothing:
        @staticmethod
        def synsets(_):
            return []

    hypotheses, references = random_texts()
    expected = [
        score(reference.split(), hypothesis.split(), wordnet=Nothing)
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    torch.testing.assert_close(meteor(hypotheses, references), torch.tensor(expected, dtype=torch.float64))


def write_wordnet(folder):
    """Two meanings of "car", one of "go", in the form of WordNet's files."""
    lines = ["  1 licence"]
    data = "\n".join(lines) + "\n"
    offsets = []
    for words in (["car", "auto", "motor_vehicle"], ["car", "railcar"]):
        offsets.append(len(data))
        listed = " ".join(f"{word} 0" for word in words)
        data += f"{offsets[-1]:08d} 06 n {len(words):02x} {listed} 000 | gloss\n"
    (folder / "data.noun").write_text(data)
    index = [f"car n 2 0 2 1 {offsets[0]:08d} {offsets[1]:08d}", f"auto n 1 0 1 0 {offsets[0]:08d}"]
    (folder / "index.noun").write_text("  1 licence\n" + "\n".join(index) + "\n")
    (folder / "data.verb").write_text("00000000 30 v 02 go 0 travel(p) 0 000 | gloss\n")
    (folder / "index.verb").write_text("go v 1 0 1 0 00000000\n")
    (folder / "verb.exc").write_text("went go\n")
    for part in ("adj", "adv"):
        (folder / f"data.{part}").write_text("")
        (folder / f"index.{part}").write_text("")


def test_synonyms_of_every_meaning_and_form(tmp_path):
    write_wordnet(tmp_path)
    words = WordNet(tmp_path)
    assert words.synonyms("cars") == {"car", "auto", "railcar"}
    assert words.synonyms("Auto") == {"auto", "car"}
    assert words.synonyms("went") == words.synonyms("going") == {"go", "travel"}
    assert words.synonyms("parser") == frozenset()


def test_meteor_with_synonyms_by_hand(tmp_path):
    pytest.importorskip("nltk", reason="needs nltk")
    write_wordnet(tmp_path)
    found = find_wordnet(tmp_path)
    text, reference = ["my cars went"], ["my auto went fast"]
    # all three words are matched, in one run: P = 1, R = 3/4; without synonyms the two others, in two runs
    three = 0.75 / (0.9 + 0.1 * 0.75) * (1 - 0.5 / 27)
    two = (2 / 3 * 0.5) / (0.9 * 2 / 3 + 0.1 * 0.5) * 0.5
    assert meteor(text, reference, found).item() == pytest.approx(three)
    assert meteor(text, reference).item() == pytest.approx(two)
    assert meteor(["x"], ["y"], found).item() == 0
    assert "synonyms of WordNet" in meteor_words(found) and "without synonyms" in meteor_words(None)
    (tmp_path / "index.adv").unlink()
    with pytest.raises(FileNotFoundError, match=r"expected WordNet's files, index\.adv is missing"):
        find_wordnet(tmp_path)


def test_wordnet_is_found_where_its_variable_says(tmp_path, monkeypatch):
    write_wordnet(tmp_path)
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path))
    assert find_wordnet().folder == tmp_path


def test_repetition_is_that_of_loops():
    hypotheses, _ = random_texts()
    for length in (1, 2, 4):
        for text, share in zip(hypotheses, repeated_ngrams(hypotheses, length).tolist(), strict=True):
            words, seen, again = text.split(), set(), 0
            runs = [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]
            for run in runs:
                again += run in seen
                seen.add(run)
            assert share == pytest.approx(again / len(runs) if runs else 0)
    clauses = repeated_clauses(hypotheses).tolist()
    for text, share in zip(hypotheses, clauses, strict=True):
        parts = [part.split() for part in re.split(r"[.,]", text)]
        long = [tuple(part) for part in parts if len(part) > 2]
        assert share == pytest.approx(1 - len(set(long)) / len(long) if long else 0)


def test_names_are_whole_words():
    found = name_coverage(
        ["a deep  parser of speech", "", "data"],
        [["deep parser", "parse", "speech"], ["x"], ["data", "data"]],
    )
    assert found.tolist() == pytest.approx([2 / 3, 0, 1])


def test_bleu_of_shorter_ngrams_is_sacrebleus():
    sacrebleu = pytest.importorskip("sacrebleu.metrics", reason="needs sacrebleu")
    hypotheses, references = random_texts()
    counts = bleu_counts(hypotheses, references)
    for order in (1, 2, 3, 4):
        expected = sacrebleu.BLEU(max_ngram_order=order).corpus_score(hypotheses, [references]).score
        assert bleu_from_counts(counts, order).score == pytest.approx(expected)
    with pytest.raises(ValueError, match="expected an order from 1 to 4, got 5"):
        bleu_from_counts(counts, 5)


@pytest.mark.parametrize("measure", [rouge, meteor, name_coverage])
def test_unequal_numbers_are_refused(measure):
    with pytest.raises(ValueError, match="expected as many texts as references, at least one, got 1 and 2"):
        measure(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="got 0 and 0"):
        measure([], [])
