"""Records of attacks: figures, resuming, damage."""

import json

import pytest

from probattn.attacks import AttackedText, AttackFile, Share, read_attack, summarise
from probattn.inference.records import RecordsError
from probattn.tasks import RunError

SETTINGS = {"attack": "pruthi", "number": 3, "data": None, "similarity": 0.5}


def attacked(outcome="failed", **others):
    given = {
        "text": "a fine film",
        "label": "positive",
        "outcome": outcome,
        "probability": 0.9,
        "attacked": 0.4,
        "predicted": "negative",
        "perturbed": "a fime film",
        "words": 3,
        "changed": 1,
        "queries": 10,
    }
    return AttackedText(**(given | others))


def test_the_interval_is_clopper_and_pearsons():
    # The bounds solve P(X >= 2 | low) = P(X <= 2 | high) = 0.025 for X ~ Binomial(10, p).
    share = Share.counted(2, 10)
    below = sum(n * share.high**k * (1 - share.high) ** (10 - k) for k, n in ((0, 1), (1, 10), (2, 45)))
    above = 1 - (1 - share.low) ** 10 - 10 * share.low * (1 - share.low) ** 9
    assert (below, above) == (pytest.approx(0.025), pytest.approx(0.025))
    assert str(share) == "20.0% (2.5% to 55.6%)"
    assert str(Share.counted(0, 0)) == "-"


def test_figures_of_attacks():
    summary = summarise(
        [
            attacked("successful", queries=20, changed=2),
            attacked("failed", queries=10),
            attacked("exhausted", queries=30),
            attacked("skipped", queries=1),
        ]
    )
    assert (summary.failed.count, summary.failed.of, summary.exhausted) == (2, 3, 1)
    assert (summary.accuracy.value, summary.accuracy_attacked.value) == (0.75, 0.5)
    assert (summary.queries, summary.changed) == (20.0, pytest.approx(2 / 3))
    assert summarise([]).failed.value is None


def test_an_attack_goes_on_where_it_was(tmp_path):
    path = tmp_path / "new" / "pruthi.jsonl"
    with AttackFile(path, SETTINGS) as file:
        assert file.done == []
        file.append(attacked())
    with path.open("a") as opened:
        opened.write('{"kind": "text", "st')  # what a killed process leaves
    with AttackFile(path, SETTINGS) as file:
        assert file.done == [attacked()]
        file.append(attacked("skipped", first="a pair"))
    settings, texts = read_attack(path)
    assert settings == SETTINGS
    assert texts == [attacked(), attacked("skipped", first="a pair")]


def test_other_settings_are_refused_unless_it_begins_anew(tmp_path):
    path = tmp_path / "pruthi.jsonl"
    with AttackFile(path, SETTINGS) as file:
        file.append(attacked())
    message = r"with number 5 to continue, its number is 3; begin anew with --again"
    with pytest.raises(RunError, match=message):
        AttackFile(path, SETTINGS | {"number": 5})
    with AttackFile(path, SETTINGS | {"number": 5}, again=True) as file:
        assert file.done == []
    assert len(path.read_text().splitlines()) == 1


def test_two_programs_do_not_write_one_file(tmp_path):
    path = tmp_path / "pruthi.jsonl"
    with AttackFile(path, SETTINGS), pytest.raises(RunError, match="another program is writing"):
        AttackFile(path, SETTINGS)
    with AttackFile(path, SETTINGS):
        pass


def test_damaged_files_are_named(tmp_path):
    path = tmp_path / "pruthi.jsonl"
    path.write_text("no JSON\n")
    with pytest.raises(RecordsError, match=r"pruthi.jsonl, line 1"):
        AttackFile(path, SETTINGS)
    path.write_text('{"kind": "train", "step": 1}\n')
    with pytest.raises(RunError, match="expected the records of an attack, got others"):
        AttackFile(path, SETTINGS)
    lines = [{"kind": "attack", "step": 0, "settings": SETTINGS}, {"kind": "text", "step": 1, "text": "a"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RunError, match=r"line 2: expected an attacked text \(at label: Field required"):
        AttackFile(path, SETTINGS)
    path.write_text('{"kind": "attack", "st')
    with AttackFile(path, SETTINGS) as file:
        assert file.done == []
