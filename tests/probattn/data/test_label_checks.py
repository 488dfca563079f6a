from pathlib import Path

import pytest

from probattn.data import DataWarning, Source
from probattn.data.checking import Rows, row_damages, usual_spellings


def warned(path: Path, rows: list[tuple[str, str]], **keys: str) -> list[str]:
    path.write_text("text;label\n" + "".join(f"{text};{label}\n" for text, label in rows))
    with pytest.warns(DataWarning) as caught:
        Source(str(path), **keys).load("train")
    return [str(warning.message).removeprefix(f"{path}: ") for warning in caught]


def test_texts_with_two_labels_are_counted_with_their_lines(tmp_path: Path) -> None:
    rows = [(f"text {n % 20}", "ab"[n // 20]) for n in range(40)]
    (message,) = warned(tmp_path / "a.csv", rows)
    assert message.startswith(
        "texts with different labels in different rows: 40 ('a' in line 2 and 'b' in line 22; 'a' in line 3 and 'b' in "
        "line 23; 'a' in line 4 and 'b' in line 24; ...)"
    )
    (message,) = warned(tmp_path / "b.csv", [("A text.", "a"), ("other", "b"), ("a  text", "b")])
    assert "rows: 2 ('a' in line 2 and 'b' in line 4)" in message and "correct the labels" in message


def test_case_variants_and_blanks_are_told_with_what_to_do(tmp_path: Path) -> None:
    labels = ["REFUND ", "Refund", "refund", "card", "refund", "REFUND "]
    rows = [(f"text {n}", label) for n, label in enumerate(labels)]
    blanks, variants = warned(tmp_path / "a.csv", rows)
    assert blanks.startswith("labels with blanks around them: 2 ('REFUND ' in line 2); they are read without")
    assert "'REFUND' (2) and 'Refund' (1) and 'refund' (2)" in variants
    assert "`label_map: {'Refund': 'REFUND', 'refund': 'REFUND'}`" in variants
    source = Source(str(tmp_path / "a.csv"), label_map={"REFUND": "refund", "Refund": "refund"})
    with pytest.warns(DataWarning, match="blanks around"):
        assert source.load("train").counts() == {"card": 1, "refund": 5}


def test_spellings_differ_in_case_and_in_what_separates_words() -> None:
    counts = {"card_arrival": 5, "Card arrival": 2, "card-Arrival": 1, "card  arrival": 1, "cardarrival": 1}
    others = dict.fromkeys(("A", "A-", "-1", "1", "+1", "C", "C++", "C#", "_x", "x y", "xy", "1.0", "10"), 1)
    assert usual_spellings(counts | others) == dict.fromkeys(
        ("Card arrival", "card-Arrival", "card  arrival"), "card_arrival"
    )
    rows = [
        {"text": text, "label": label} for text, label in (("one", "a b"), ("One!", "A_b"), ("two", "a b"))
    ]
    kinds = [item.kind for item in row_damages(Rows(rows, ["1", "2", "3"]), [row["label"] for row in rows])]
    assert kinds == ["classes that differ in case, blanks, _ or - alone"]  # one class, so no contradiction


def test_pairs_are_the_same_where_both_texts_are(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,second,label\nA,B,x\nA,C,y\nD,E,y\n")
    Source(str(path), text_pair="second").load("train")
    path.write_text("text,second,label\nA,B,x\na,b!,y\n")
    with pytest.warns(DataWarning, match=r"rows: 2 \('x' in line 2 and 'y' in line 3\)"):
        Source(str(path), text_pair="second").load("train")


def test_nothing_is_said_where_nothing_is_wrong() -> None:
    rows = [
        {"text": text, "label": label}
        for text, label in (("one", "a"), ("two", "b"), ("One", "a"), ("x", "ab"))
    ]
    assert row_damages(Rows(rows, ["line 2", "line 3", "line 4", "line 5"]), ["a", "b", "a", "ab"]) == []
