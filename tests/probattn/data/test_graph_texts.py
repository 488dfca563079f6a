"""Texts about graphs from files, their vocabulary, and batches."""

import warnings

import pytest
import torch

from probattn import data
from probattn.data.graph_texts import roles

NAMES = ("USED-FOR", "PART-OF")
LINE = "a parser .\tfast parser ; corpus\t<method> <material>\t0 0 1\twe train <method_0> on <material_1> .\t0 1 -1"


def read(tmp_path, *lines):
    file = tmp_path / "texts.tsv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return data.read_graph_texts(file, NAMES)


def test_a_line_is_read(tmp_path):
    row = read(tmp_path, LINE, LINE).rows[1]
    assert row == data.GraphText(
        "a parser .",
        ("fast parser", "corpus"),
        ("method", "material"),
        ((0, 0, 1),),
        "we train <method_0> on <material_1> .",
    )
    assert row.tokens() == ["we", "train", 0, "on", 1, "."]
    assert row.surface == "we train fast parser on corpus ."


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("0 0 1\t", "0 0 2\t", "relations between entities 0 to 1, got entity 2 in '0 0 2'"),
        ("0 0 1\t", "0 7 1\t", "relations 0 to 1 (USED-FOR, PART-OF), got 7 in '0 7 1'"),
        ("0 0 1\t", "0 1\t", "relations as three numbers, 'entity relation entity', got '0 1'"),
        ("0 0 1\t", "0 -1 1\t", "relations as three numbers"),
        ("0 0 1\t", f"0 {'9' * 5000} 1\t", "'entity relation entity', got '0 999"),
        ("<material_1>", f"<material_{'9' * 5000}>", "entities 0 to 1 in the text, got <material_999"),
        ("we train <method_0> on <material_1> .", " ", "a text in the fifth column, got none"),
        ("a parser .\t", " \t", "a title in the first column, got none"),
        ("fast parser ; corpus", "fast parser ; ", "a blank one as entity 1"),
        ("fast parser ; corpus", "", "a blank one as entity 0"),
        ("<method> <material>", "<method>", "a type for each of 2 entities, got 1"),
        (
            "<method> <material>",
            "<method> material",
            "types such as <method> in the third column, got 'material'",
        ),
        ("<material_1>", "<material_2>", "entities 0 to 1 in the text, got <material_2>"),
        (
            "<material_1> .",
            "<material_1>.",
            "expected spaces around the entities in the text, got '<material_1>.'",
        ),
        ("<material_1>", "<method_1>", "entity 1 in the text as <material_1>, by its type, got <method_1>"),
    ],
)
def test_what_is_wrong_with_a_line_is_said_with_its_number(tmp_path, old, new, words):
    assert old in LINE
    with pytest.raises(data.DataError) as caught:
        read(tmp_path, LINE, LINE.replace(old, new))
    said = str(caught.value)
    assert words in said and f"{tmp_path / 'texts.tsv'} line 2: expected" in said and "\n" not in said


def test_columns_that_are_missing_and_files_that_are_no_text(tmp_path):
    with pytest.raises(data.DataError, match=r"line 1: expected 5 columns .* got 3"):
        read(tmp_path, "\t".join(LINE.split("\t")[:3]))
    with pytest.raises(data.DataError, match="no such file"):
        data.read_graph_texts(tmp_path / "none.tsv", NAMES)
    (tmp_path / "names").write_text("A\nB\nA\n")
    with pytest.raises(data.DataError, match="expected each relation once, got 'A' twice"):
        data.read_relations(tmp_path / "names")


def test_types_that_training_texts_lack_are_refused(tmp_path):
    texts = read(tmp_path, LINE)
    message = r"texts.tsv, text 1: expected entities of the types metod, which .* 'method'; did"
    with pytest.raises(data.DataError, match=message):
        texts.check_types(["metod"])


def texts(number=20):
    rows = [
        data.GraphText(
            f"title {n}",
            (f"name {n}", "x"),
            ("task", "method"),
            ((0, 0, 1),),
            f"<task_0> word {n} <method_1>",
        )
        for n in range(number)
    ]
    return data.GraphTexts(tuple(rows), NAMES, "made up")


def test_choices_are_fixed_nested_and_leave_the_rest():
    whole = texts()
    five, eight = whole.take(5), whole.take(8)
    assert set(five.rows) < set(eight.rows)
    assert list(five.rows) == [row for row in whole.rows if row in five.rows]
    mixed = whole.at([*range(10, 20), *range(10)])
    assert set(mixed.take(5).rows) == set(five.rows)
    rest, held = whole.split(5)
    assert held.rows == five.rows and set(rest.rows) == set(whole.rows) - set(held.rows)
    with pytest.raises(data.DataError, match="expected 1 to 19 of its 20 texts to be held out, got 20"):
        whole.split(20)
    with pytest.raises(data.DataError, match="made up: expected two texts or more, one to hold out, got one"):
        whole.take(1).split(1)
    with pytest.raises(data.DataError, match="expected a limit >= 1, got 0"):
        whole.take(0)


def test_texts_of_the_training_data_among_others_are_counted():
    whole = texts()
    train, validation = whole.split(5)
    message = "made up: 15 of its 20 test texts are in the training data too"
    with pytest.warns(data.DataWarning, match=message):
        roles(train, validation, whole)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        roles(train, validation, validation)


def test_a_vocabulary_holds_frequent_words_types_and_no_copied_entity(tmp_path):
    vocabulary = data.GraphVocabulary.of(texts(), min_frequency=2)
    assert vocabulary.types == ("method", "task")
    # "title", "name", "x" and "word" stand 20 times, numbers 3 times each
    assert vocabulary.words[:4] == ("name", "title", "word", "x")
    assert vocabulary.words[4:] == tuple(sorted(map(str, range(20))))
    row = texts().rows[3]
    labels = vocabulary.labels(row)
    assert labels[0] == len(vocabulary) and labels[-2:] == [len(vocabulary) + 1, 3]
    assert vocabulary.tokens(labels) == [0, "word", "3", 1]
    assert vocabulary.encode("title unheard") == [4 + 2 + 1, 1]
    vocabulary.save(tmp_path / "v.json")
    assert data.GraphVocabulary.load(tmp_path / "v.json") == vocabulary
    (tmp_path / "v.json").write_text('{"words": []}')
    with pytest.raises(data.DataError, match="expected a vocabulary that a run has written"):
        data.GraphVocabulary.load(tmp_path / "v.json")
    with pytest.raises(data.DataError, match="expected words that stand in it 99 times, found none"):
        data.GraphVocabulary.of(texts(), min_frequency=99)


def test_batches_hold_what_the_rows_say():
    whole = texts()
    vocabulary = data.GraphVocabulary.of(whole)
    rows = data.TokenizedGraphTexts(whole, vocabulary)
    assert rows.lengths() == [5] * 20 and rows.mean_target_length == 5
    row = rows[0] | {"relations": [], "entity_ids": [[9]], "entity_types": [5], "labels": [8, 3]}
    batch = data.GraphTextCollate()([rows[1], row])
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        "input_ids": (2, 2),
        "attention_mask": (2, 2),
        "entity_ids": (2, 2, 2),
        "entity_types": (2, 2),
        "relations": (2, 1, 3),
        "decoder_input_ids": (2, 5),
        "decoder_attention_mask": (2, 5),
        "labels": (2, 5),
    }
    assert batch["labels"][1].tolist() == [8, 3, -100, -100, -100]
    assert batch["decoder_input_ids"][1].tolist() == [2, 8, 0, 0, 0]
    assert batch["relations"].tolist() == [[[0, 0, 1]], [[-1, -1, -1]]]
    assert batch["entity_ids"][1].tolist() == [[9, 0], [0, 0]]
    assert data.GraphTextCollate()([row])["relations"].tolist() == [[[-1, -1, -1]]]
    assert all(value.dtype == torch.int64 for value in batch.values())


def test_long_texts_are_cut_and_said_once():
    whole = texts()
    vocabulary = data.GraphVocabulary.of(whole)
    with pytest.warns(UserWarning, match=r"20 of 20 texts are longer than 3 tokens .* \(the longest has 5\)"):
        rows = data.TokenizedGraphTexts(whole, vocabulary, max_length=3)
    assert rows[0]["labels"] == [len(vocabulary), vocabulary.encode("word")[0], 3]
    with pytest.raises(data.DataError, match="expected at least 2 tokens"):
        data.TokenizedGraphTexts(whole, vocabulary, max_length=1)


def test_agenda(public_data):
    folder = public_data("agenda") / "agenda"
    names = data.read_relations(folder / "relations.vocab")
    assert len(names) == 7
    for part, entities in (("val", 12283), ("test", 12410)):
        found = data.read_graph_texts(folder / f"preprocessed.{part}.tsv", names)
        assert len(found) == 1000 and sum(len(row.entities) for row in found.rows) == entities
        assert found.types == ("material", "method", "metric", "otherscientificterm", "task")
        tokens = sum(len(row.tokens()) for row in found.rows)
        assert tokens == sum(len(row.text.split()) for row in found.rows)
