import pytest

from probattn.data import DataError, TextDataset

NUMBERED = TextDataset(
    texts=tuple(f"text {number}" for number in range(200)),
    labels=tuple(number % 3 for number in range(200)),
    label_names=("a", "b", "c"),
    source="numbers",
)


def test_a_larger_limit_holds_the_texts_of_a_smaller_one() -> None:
    small, large = NUMBERED.take(20), NUMBERED.take(50)
    assert len(small) == 20
    assert set(small.texts) < set(large.texts)
    assert NUMBERED.take(None) is NUMBERED
    assert NUMBERED.take(1000) is NUMBERED


def test_a_limit_keeps_order_and_labels() -> None:
    taken = NUMBERED.take(40)
    places = [NUMBERED.texts.index(text) for text in taken.texts]
    assert places == sorted(places)
    assert taken.labels == tuple(place % 3 for place in places)
    assert all(taken.counts().values())


def test_a_limit_does_not_depend_on_the_order() -> None:
    backwards = NUMBERED.rows(range(199, -1, -1))
    assert set(backwards.take(30).texts) == set(NUMBERED.take(30).texts)


def test_texts_from_the_shortest_both_of_a_pair_counted() -> None:
    assert TextDataset(("longer", "text"), None, (), "two").shortest_first() == [1, 0]
    assert TextDataset(("longer", "text"), None, (), "two", pairs=("", "longer")).shortest_first() == [0, 1]


def test_shared_texts_are_counted_whatever_their_spelling() -> None:
    other = TextDataset(("TEXT 3!", "another", "text  4 ."), None, (), "other")
    assert other.shared_with(NUMBERED) == 2
    assert NUMBERED.shared_with(other) == 2


@pytest.mark.parametrize(
    ("texts", "labels", "names", "message"),
    [
        ((), None, (), "somewhere: expected at least one text, got none"),
        (("a", "b"), (0,), ("x", "y"), "somewhere: expected 2 labels, got 1"),
        (("a", "b"), (0, 2), ("x", "y"), "somewhere: expected labels in 0..1, got 2"),
    ],
)
def test_what_does_not_fit_is_refused(texts, labels, names, message) -> None:
    with pytest.raises(DataError) as caught:
        TextDataset(texts, labels, names, "somewhere")
    assert str(caught.value) == message


def test_one_class_is_nothing_to_learn() -> None:
    data = TextDataset(("a", "b"), (1, 1), ("bad", "good"), "my.csv")
    with pytest.raises(DataError) as caught:
        data.require_classes()
    expected = "my.csv: expected at least two classes to train on, got one: all 2 labels are 'good'"
    assert str(caught.value) == expected
    with pytest.raises(DataError, match="expected labels to train on, got texts only"):
        TextDataset(("a",), None, (), "my.csv").require_classes()
    with pytest.raises(DataError, match="expected a limit >= 1, got 0"):
        data.take(0)
