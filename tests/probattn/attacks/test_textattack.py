"""TextAttack's own attacks on tiny networks, with resources of a few words."""

import sys

import pytest
import torch
from runs import SPECIAL, WORDS, tokenizer
from transformers import BertConfig, BertForMaskedLM

from probattn.attacks import AttackOptions, attack_run, read_attack
from probattn.attacks.building import build_attack, load_textattack, stopwords
from probattn.tasks import RunError

pytestmark = [
    pytest.mark.textattack,
    pytest.mark.filterwarnings("ignore"),  # of the packages that TextAttack imports
]
GOOD = {"good", "fine", "great"}


class Keyword:
    """Answers by the words of a text."""

    classes = ("negative", "positive")

    def __init__(self):
        self.asked = []

    def begin(self, number):
        self.asked = []

    def __call__(self, texts):
        texts = [text if isinstance(text, str) else text[1] for text in texts]
        self.asked += texts
        rows = [0.9 if GOOD & set(text.split()) else 0.2 for text in texts]
        return torch.tensor([[1 - row, row] for row in rows], dtype=torch.float64)


@pytest.fixture
def vectors(tmp_path):
    """ "great" is near "good", and "nice" nearer."""
    file = tmp_path / "vectors.txt"
    file.write_text("good 1 0 0\nnice 0.99 0.1 0\ngreat 0.9 0.2 0\nbad 0 1 0\nplot 0 0 1\nstory 0 0.1 1\n")
    return file


def test_importing_it_leaves_the_environment_and_flair_as_they_were(monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert load_textattack().__name__ == "textattack"
    assert __import__("os").environ["TOKENIZERS_PARALLELISM"] == "false"
    flair = sys.modules.get("flair")
    assert flair is None or flair.__file__


@pytest.mark.parametrize("name", ["deepwordbug", "pruthi"])
def test_characters_change_a_word(name):
    victim = Keyword()
    attack = build_attack(victim, AttackOptions(name, queries=200))
    found = attack("the film was good", 1)
    assert found.outcome == "successful"
    assert (found.words, found.changed, found.predicted) == (4, 1, "negative")
    assert found.perturbed.startswith("the film was ") and "good" not in found.perturbed.split()
    assert found.probability == pytest.approx(0.9) and found.attacked == pytest.approx(0.2)
    skipped = attack("the film was good", 0)
    assert (skipped.outcome, skipped.queries, skipped.changed) == ("skipped", 1, 0)


def test_words_are_exchanged_for_near_ones(vectors):
    attack = build_attack(
        Keyword(),
        AttackOptions("textfooler", queries=200, vectors=str(vectors), tagger="none", encoder="none"),
    )
    assert attack("the plot was good", 1).perturbed == "the plot was nice"
    strict = build_attack(
        Keyword(),
        AttackOptions(
            "textfooler", queries=200, vectors=str(vectors), similarity=0.999, tagger="none", encoder="none"
        ),
    )
    assert strict("the plot was good", 1).outcome == "failed"


def test_parts_of_speech_stay(vectors):
    pytest.importorskip("textblob")
    vectors.write_text("good 1 0\ngoodness 0.99 0.1\nnice 0.9 0.2\n")
    attack = build_attack(
        Keyword(), AttackOptions("textfooler", queries=200, vectors=str(vectors), encoder="none")
    )
    assert attack("the plot was very good", 1).perturbed == "the plot was very nice"


def test_what_is_said_stays_near(vectors, network):
    loose = AttackOptions("textbugger", queries=200, vectors=str(vectors), encoder=str(network))
    found = build_attack(Keyword(), loose)("the plot was good", 1)
    assert found.outcome == "successful"


def test_of_a_pair_the_second_text_is_changed(vectors):
    attack = build_attack(
        Keyword(),
        AttackOptions("textfooler", queries=200, vectors=str(vectors), tagger="none", encoder="none"),
    )
    found = attack(("good is good", "it was good"), 1)
    assert (found.first, found.perturbed) == ("good is good", "it was nice")
    assert (found.words, found.changed) == (3, 1)


def test_a_language_model_replaces_words(tmp_path):
    torch.manual_seed(0)
    folder = tmp_path / "masked"
    words = tokenizer()
    words.mask_token = "[UNK]"
    words.save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=len(SPECIAL) + len(WORDS), max_position_embeddings=16, **sizes)
    BertForMaskedLM(config).save_pretrained(folder)
    attack = build_attack(
        Keyword(), AttackOptions("bae", queries=200, tagger="none", encoder="none", masked_lm=str(folder))
    )
    found = attack("film was good", 1)
    assert found.outcome == "successful" and found.changed == 1
    with pytest.raises(RunError, match="give it with --masked-lm"):
        build_attack(Keyword(), AttackOptions("bae", queries=200))


def test_the_queries_are_counted_and_end_an_attack():
    victim = Keyword()
    attack = build_attack(victim, AttackOptions("pruthi", queries=5))
    found = attack("longer texts have many characters to change and are good", 1)
    assert (found.outcome, found.queries) == ("exhausted", 5)
    assert len(victim.asked) <= 5


def test_stopwords_stay():
    assert {"the", "was"} <= stopwords()
    found = build_attack(Keyword(), AttackOptions("deepwordbug", queries=200))("the was film", 1)
    assert found.outcome == "skipped"
    found = build_attack(Keyword(), AttackOptions("deepwordbug", queries=200))("It was NOT The good", 1)
    assert found.outcome == "successful" and found.perturbed.startswith("It was NOT The ")


def test_missing_vectors_name_the_command(tmp_path):
    with pytest.raises(RunError, match="probattn attack-vectors --output"):
        build_attack(Keyword(), AttackOptions("textfooler", queries=200, vectors=str(tmp_path / "none.txt")))


@pytest.mark.parametrize("prediction", ["point", "draws", "moments"])
def test_a_run_is_attacked_and_goes_on_bit_for_bit(run, tmp_path, prediction):
    options = AttackOptions("deepwordbug", prediction, number=6, num_samples=3, queries=40)
    whole, result = attack_run(run, options, output=tmp_path / "whole")
    lines = whole.with_suffix(".jsonl").read_text().splitlines(keepends=True)
    part = tmp_path / "part" / whole.with_suffix(".jsonl").name
    part.parent.mkdir()
    part.write_text("".join(lines[:3]) + lines[3][:20])
    again, _ = attack_run(run, options, output=tmp_path / "part")
    assert part.read_text() == "".join(lines)
    assert again.read_text() == whole.read_text()
    assert result.summary.texts == 6 and "textattack" in result.versions
    _, texts = read_attack(part)
    assert all(each.queries <= 40 for each in texts)
