import hashlib
import re
import unicodedata
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from probattn.data.identity import SPLITS, first_of_each, order, position, split_of, text_key

TEXTS = st.text(max_size=60)


def slow_key(text: str) -> str:
    """The rule without the way around it for ASCII."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return re.sub(r"[\W_]+", "", folded) or folded.strip()


@given(TEXTS)
def test_the_fast_way_gives_the_same_key(text: str) -> None:
    assert text_key(text) == slow_key(text)


@given(st.text(alphabet=st.characters(codec="ascii"), max_size=60))
def test_the_fast_way_gives_the_same_key_in_ascii(text: str) -> None:
    assert text_key(text) == slow_key(text)


@given(TEXTS, st.sampled_from([" ", "\t", "  .", "!", "\u2026"]))
def test_punctuation_and_spacing_do_not_matter(text: str, mark: str) -> None:
    if any(character.isalnum() for character in text_key(text)):
        assert text_key(mark + text + mark) == text_key(text)


@given(st.lists(st.sampled_from(["A b", "a  B.", "c", "C!", "d", "!!", "??"]), max_size=12))
def test_the_first_of_each_key_is_kept(texts: list[str]) -> None:
    kept = first_of_each(map(text_key, texts))
    assert kept == sorted(kept)
    assert {text_key(texts[row]) for row in kept} == {text_key(text) for text in texts}
    for row in kept:
        assert text_key(texts[row]) not in {text_key(text) for text in texts[:row]}


def test_splits_have_their_shares() -> None:
    texts = [f"text number {number}" for number in range(20_000)]
    counts = Counter(split_of(text, validation=0.2, test=0.1) for text in texts)
    for split, share in zip(SPLITS, (0.7, 0.2, 0.1), strict=True):
        deviation = (20_000 * share * (1 - share)) ** 0.5
        assert abs(counts[split] - 20_000 * share) < 4 * deviation
    assert {split_of(text, 0.0, 0.0) for text in texts[:100]} == {"train"}
    assert {split_of(text, 0.0, 1.0) for text in texts[:100]} == {"test"}


def test_order_is_independent_of_the_split() -> None:
    places = [order(text) for n in range(5000) if split_of(text := f"text {n}") == "test"]
    mean = sum(places) / len(places)
    assert abs(mean - 0.5) < 4 * (1 / 12 / len(places)) ** 0.5
    assert all(0 <= place < 1 for place in places)


def test_a_position_is_the_hash_of_the_key() -> None:
    digest = hashlib.sha256(b"split\natext").hexdigest()
    assert position("A text.", "split") == int(digest[:14], 16) / 16**14


def test_half_a_surrogate_pair_has_a_place() -> None:
    assert 0 <= position("\ud800", "split") < 1
