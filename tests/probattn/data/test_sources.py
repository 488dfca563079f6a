from pathlib import Path

import pytest

from probattn.data import DataError, Role, Source

pytestmark = pytest.mark.usefixtures("built_in")

NAMES = ("negative", "positive")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "reviews.csv"
    path.write_text("text,label\nfine,positive\ndull,negative\n")
    return str(path)


@pytest.mark.parametrize(
    ("role", "split"),
    [
        ("train", "train"),
        ("validation", "validation"),
        ("test", "test"),
        ("shifted", "all"),
        ("prediction", "all"),
    ],
)
def test_a_built_in_set_gives_the_usual_split_of_a_role(role: Role, split: str) -> None:
    data = Source("rotten_tomatoes").load(role, NAMES)
    assert data.source == f"rotten_tomatoes ({split})"
    assert data.label_names == NAMES
    assert Source("rotten_tomatoes", split="train").load(role).source == "rotten_tomatoes (train)"


def test_out_of_domain_labels_are_not_looked_at(file: str) -> None:
    news = Source("bbc_news").load("out_of_domain", NAMES)
    assert (news.labels, news.label_names, news.source) == (None, (), "bbc_news (all)")
    assert Source(file).load("out_of_domain", ("other", "names")).labels is None


def test_labels_index_the_names_of_the_training_data(file: str) -> None:
    assert Source(file).load().labels == (1, 0)
    assert Source(file).load("test", ("positive", "neutral", "negative")).labels == (0, 2)
    reviews = Source("rotten_tomatoes").load("test")
    swapped = Source("rotten_tomatoes").load("test", ("positive", "negative"))
    assert reviews.labels is not None and swapped.labels is not None
    assert swapped.labels == tuple(1 - label for label in reviews.labels)


def test_a_built_in_set_takes_the_names_of_the_training_data_through_a_map() -> None:
    source = Source("rotten_tomatoes", label_map={"negative": "0", "positive": "1"})
    assert source.load("shifted", ("0", "1")).label_names == ("0", "1")
    with pytest.raises(DataError) as caught:
        Source("imdb").load("shifted", ("bad", "good"))
    assert str(caught.value) == (
        "imdb (all): expected a label of the training data ('bad', 'good'), got 'negative'; "
        "correct it, or rename it with 'label_map'"
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            Source("roten_tomatoes"),
            (
                "unknown data set 'roten_tomatoes': expected a file that ends in .csv, "
                ".tsv, .tab, .xlsx, .jsonl, .ndjson, hub:owner/name, or a name (rotten_tomatoes, imdb, bbc_news, sst2, "
                "trec, mrpc, cola, cola_out_of_domain, customer_reviews, sms_spam, qqp, qnli, rte, mnli, "
                "mnli_mismatched, snli, scitail, sick, banking77, clinc150, glue_*, textfooler_*, vader_*); did you "
                "mean 'rotten_tomatoes'?"
            ),
        ),
        (
            Source("rotten_tomatoes", split="dev"),
            "rotten_tomatoes: expected a split train, validation, test, all, got 'dev'",
        ),
        (
            Source("rotten_tomatoes", split="tests"),
            "rotten_tomatoes: expected a split train, validation, test, all, got 'tests'; did you mean 'test'?",
        ),
        (Source("a.csv", split="test"), "a.csv: a file has no splits, got split 'test'; leave it out"),
    ],
)
def test_what_is_no_source_is_named(source: Source, message: str) -> None:
    with pytest.raises(DataError) as caught:
        source.load()
    assert str(caught.value) == message


def test_a_file_of_another_format_is_told_from_an_unknown_name(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"a\.docx: expected a file that ends in .*, got \.docx; export it"):
        Source(str(tmp_path / "a.docx")).load()
    with pytest.raises(DataError, match=r"unknown data set '.*b\.docx'"):
        Source(str(tmp_path / "b.docx")).load()


def test_one_class_only(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("text,label\nfine,good\ngreat,good\n")
    with pytest.raises(DataError) as caught:
        Source(str(path)).load()
    expected = f"{path}: expected at least two classes to train on, got one: all 2 labels are 'good'"
    assert str(caught.value) == expected
    assert Source(str(path)).load("test", ("bad", "good")).labels == (1, 1)
