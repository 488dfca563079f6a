"""ROUGE and METEOR by hand, BLEU against sacrebleu, repetition and coverage against loops."""

import random
import re
from types import SimpleNamespace

import pytest

from probattn.metrics import functional
from probattn.metrics.functional.texts import meteor_words

pytest.importorskip("nltk", reason="needs nltk, of the extra text_metrics")
pytest.importorskip("rouge_score", reason="needs rouge-score, of the extra text_metrics")

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


def test_rouge_by_hand():
    found = functional.rouge(
        ["police kill the gunman", "", "the the the"], ["Police killed the gunman!", "a b", "the end"]
    )
    assert found[0, 0].tolist() == [0.75, 0.75, 0.75]  # police, the, gunman
    assert found[0, 1].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3])  # the gunman
    assert found[0, 2].tolist() == [0.75, 0.75, 0.75]
    assert found[1].abs().sum() == 0
    expected = pytest.approx([1 / 3, 1 / 2, 0.4])
    assert found[2, 0].tolist() == expected


class Meanings:
    """A meaning that "cars" and "auto" share, in the form of nltk's corpus."""

    @staticmethod
    def synsets(word):
        lemmas = [SimpleNamespace(name=lambda name=name: name) for name in ("cars", "auto", "motor_vehicle")]
        return [SimpleNamespace(lemmas=lambda: lemmas)] if word == "cars" else []


def test_meteor_with_and_without_synonyms_by_hand():
    text, reference = ["my cars went"], ["my auto went fast"]
    # all three words are matched, in one run: P = 1, R = 3/4; without synonyms the two others, in two runs
    three = 0.75 / (0.9 + 0.1 * 0.75) * (1 - 0.5 / 27)
    two = (2 / 3 * 0.5) / (0.9 * 2 / 3 + 0.1 * 0.5) * 0.5
    assert functional.meteor(["My went fast"], ["my went FAST"]).item() == pytest.approx(1 - 0.5 / 27)
    assert functional.meteor(text, reference).item() == pytest.approx(two)
    assert functional.meteor(["x"], ["y"]).item() == 0
    with pytest.MonkeyPatch.context() as patch:  # nltk looks for the synonyms of stems
        patch.setattr("nltk.stem.porter.PorterStemmer.stem", lambda _, word, **__: word)
        assert functional.meteor(text, reference, Meanings).item() == pytest.approx(three)
    assert "synonyms of WordNet" in meteor_words(Meanings) and "without synonyms" in meteor_words(None)


def test_wordnet_is_nltks_corpus_where_it_is_there(monkeypatch):
    monkeypatch.setattr("nltk.data.path", [])
    assert functional.find_wordnet() is None


def test_repetition_is_that_of_loops():
    hypotheses, _ = random_texts()
    for length in (1, 2, 4):
        for text, share in zip(
            hypotheses, functional.repeated_ngrams(hypotheses, length).tolist(), strict=True
        ):
            words, seen, again = text.split(), set(), 0
            runs = [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]
            for run in runs:
                again += run in seen
                seen.add(run)
            assert share == pytest.approx(again / len(runs) if runs else 0)
    clauses = functional.repeated_clauses(hypotheses).tolist()
    for text, share in zip(hypotheses, clauses, strict=True):
        parts = [part.split() for part in re.split(r"[.,]", text)]
        long = [tuple(part) for part in parts if len(part) > 2]
        assert share == pytest.approx(1 - len(set(long)) / len(long) if long else 0)


def test_names_are_whole_words():
    found = functional.name_coverage(
        ["a deep  parser of speech", "", "data"],
        [["deep parser", "parse", "speech"], ["x"], ["data", "data"]],
    )
    assert found.tolist() == pytest.approx([2 / 3, 0, 1])


def test_bleu_of_shorter_ngrams_is_sacrebleus():
    sacrebleu = pytest.importorskip("sacrebleu.metrics", reason="needs sacrebleu")
    hypotheses, references = random_texts()
    counts = functional.bleu_counts(hypotheses, references)
    for order in (1, 2, 3, 4):
        expected = sacrebleu.BLEU(max_ngram_order=order).corpus_score(hypotheses, [references]).score
        assert functional.bleu_from_counts(counts, order).score == pytest.approx(expected)
    with pytest.raises(ValueError, match="expected an order from 1 to 4, got 5"):
        functional.bleu_from_counts(counts, 5)


@pytest.mark.parametrize("measure", [functional.rouge, functional.meteor, functional.name_coverage])
def test_unequal_numbers_are_refused(measure):
    with pytest.raises(ValueError, match="expected as many texts as references, at least one, got 1 and 2"):
        measure(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="got 0 and 0"):
        measure([], [])
