"""Attacks on runs with an attack of the tests' own: resuming, tables, what is refused."""

import random
import shutil
import statistics
import sys
from dataclasses import replace

import pytest
import torch
from scipy import stats

from probattn import attacks
from probattn.attacks.building import load_textattack
from probattn.attacks.running import UNTRAINED, _texts, _warn_of_training_texts
from probattn.data import DataWarning, TextDataset
from probattn.files.durable import digest
from probattn.tasks import run_task

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
DATA = TextDataset(
    tuple(f"text {number}" for number in range(6)), (0, 1) * 3, ("negative", "positive"), "six texts"
)


class Coin:
    """A victim with noise: it remembers which text is under attack."""

    classes = ("negative", "positive")

    def __init__(self):
        self.number = None

    def begin(self, number):
        self.number = number

    def __call__(self, texts):
        return torch.full((len(texts), 2), 0.5, dtype=torch.float64)


def swapping(victim):
    """An attack that turns two letters and takes luck for success."""

    def attack(text, label):
        letters = list(text if isinstance(text, str) else text[1])
        random.shuffle(letters)
        return attacks.AttackedText(
            text=text if isinstance(text, str) else text[1],
            first=None if isinstance(text, str) else text[0],
            label=victim.classes[label],
            outcome=random.choice(["failed", "successful"]),
            probability=0.5,
            attacked=float(torch.rand(())),
            predicted=victim.classes[1 - label],
            perturbed="".join(letters),
            words=2,
            changed=1,
            queries=victim.number,
        )

    return attack


def test_an_interrupted_attack_ends_as_a_whole_one(tmp_path):
    victim = Coin()
    before = random.getstate()
    with attacks.AttackFile(tmp_path / "whole.jsonl", {}) as whole:
        attacks.attack_texts(swapping(victim), victim, DATA, whole, 7)
    assert random.getstate() == before
    once = swapping(victim)

    def killed(text, label):
        if text == "text 3":
            raise KeyboardInterrupt
        return once(text, label)

    with attacks.AttackFile(tmp_path / "parts.jsonl", {}) as parts, pytest.raises(KeyboardInterrupt):
        attacks.attack_texts(killed, victim, DATA, parts, 7)
    with attacks.AttackFile(tmp_path / "parts.jsonl", {}) as parts:
        assert len(parts.done) == 3
        attacks.attack_texts(once, victim, DATA, parts, 7)
    assert (tmp_path / "parts.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert [each.queries for each in parts.done] == list(range(6))


def test_of_pairs_the_second_text_is_attacked(tmp_path):
    victim = Coin()
    data = TextDataset(("a man",), (1,), ("negative", "positive"), "a pair", pairs=("a person",))
    with attacks.AttackFile(tmp_path / "pairs.jsonl", {}) as file:
        attacks.attack_texts(swapping(victim), victim, data, file, 0)
    assert (file.done[0].first, file.done[0].text) == ("a man", "a person")


@pytest.fixture
def faked(monkeypatch):
    """TextAttack's place taken by the attack above."""
    monkeypatch.setattr("probattn.attacks.running.build_attack", lambda *given: swapping(_Counting(given[0])))


class _Counting:
    number = 1

    def __init__(self, victim):
        self.classes = victim.classes


def test_a_run_is_attacked_and_compared(run, faked, tmp_path, command):
    for folder, prediction in ((run, "point"), (run, "draws"), (run / "baseline", "point")):
        file, result = attacks.attack_run(
            folder,
            attacks.AttackOptions("deepwordbug", prediction, number=5),
            output=tmp_path / folder.name / "attacks",
        )
        assert file.name == f"deepwordbug_{prediction}_0.json"
        assert result.summary.texts == 5
        assert result.settings["attack"] == "deepwordbug" and "similarity" not in result.settings
    assert result.method == "baseline"
    text = attacks.compared_attacks([tmp_path / run.name, tmp_path / "baseline"]).text(80)
    assert "deepwordbug on" in text and "BABN" in text and "baseline" in text
    assert max(map(len, text.splitlines())) <= 80
    _, texts = attacks.read_attack(file.with_suffix(".jsonl"))
    assert len(texts) == 5
    shown = command("attack-table", tmp_path / run.name)
    assert shown.exit_code == 0 and "draws" in shown.stdout, shown.output


def test_an_interval_is_over_networks_and_only_like_attacks_are_compared(run, faked, tmp_path):
    _, result = attacks.attack_run(
        run, attacks.AttackOptions("pruthi", "draws", number=5), output=tmp_path / "made"
    )

    def table(*found):
        for number, (failed, settings) in enumerate(found):
            share = result.summary.failed.model_copy(update={"value": failed})
            summary = result.summary.model_copy(update={"failed": share})
            each = result.model_copy(update={"summary": summary, "settings": result.settings | settings})
            place = tmp_path / f"{len(found)}" / "attacks" / f"{number}.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(each.model_dump_json(), encoding="utf-8")
        return attacks.compared_attacks(
            [tmp_path / f"{len(found)}"] * 2
        )  # a folder that is named twice counts once

    (group,) = table((0.2, {"seed": 0}), (0.4, {"seed": 1})).groups
    assert [row[1:4] for row in group.rows] == [("draws, 20", "1", "30.0")]
    two = {"network": "another"}
    (group,) = table((0.2, {"seed": 0}), (0.4, {"seed": 1}), (0.5, two)).groups
    (row,) = group.rows
    half = stats.t.ppf(0.975, 1) * statistics.stdev([30, 50]) / 2**0.5
    assert row[2:4] == ("2", f"40.0 ± {half:.1f}")
    found = table(
        (0.2, {}), (0.3, two | {"num_samples": 5}), (0.4, two), (0.5, two | {"texts": "others"})
    ).groups
    expected = [[("draws, 20", "2"), ("draws, 5", "1")], [("draws, 20", "1")]]
    assert [[row[1:3] for row in group.rows] for group in found] == expected
    assert found[1].title.endswith(", texts others")


def test_networks_of_other_recipes_are_no_further_seeds(run, faked, tmp_path):
    _, result = attacks.attack_run(
        run, attacks.AttackOptions("pruthi", number=5), output=tmp_path / "attacks"
    )
    recipe = run_task(run).recipe
    reseeded = recipe.model_copy(update={"training": recipe.training.model_copy(update={"seed": 5})})
    assert result.trained_by == digest([reseeded.model_dump_json(exclude=UNTRAINED)])
    other = {"trained_by": "f" * 64, "settings": result.settings | {"network": "another"}}
    (tmp_path / "attacks" / "other.json").write_text(result.model_copy(update=other).model_dump_json())
    (group,) = attacks.compared_attacks([tmp_path]).groups
    named = {f"{result.method}, {key[:6]}" for key in (result.trained_by, "f" * 64)}
    assert {row[0] for row in group.rows} == named and [row[2] for row in group.rows] == ["1", "1"]


def test_settings_hold_labels_weights_and_which_run(run, faked, tmp_path, monkeypatch):
    options = attacks.AttackOptions("pruthi", number=5)
    _, first = attacks.attack_run(run, options, output=tmp_path / "first")
    monkeypatch.setattr(
        "probattn.attacks.running._texts",
        lambda task, *given: replace(
            _texts(task, *given), labels=tuple(1 - one for one in _texts(task, *given).labels)
        ),
    )
    _, other = attacks.attack_run(run, options, output=tmp_path / "other")
    assert first.settings["texts"] != other.settings["texts"]
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    found = []
    for content in (b"one", b"two"):
        (encoder / "model.safetensors").write_bytes(content)
        found.append(attacks.AttackOptions("bae", encoder=str(encoder)).settings()["encoder"])
    assert found[0] != found[1] and found[0].startswith(str(encoder))
    place = shutil.copytree(run, tmp_path / "baseline", ignore=shutil.ignore_patterns("baseline"))
    _, named = attacks.attack_run(place, options, output=tmp_path / "named")
    assert named.method == first.method != "baseline"


def test_the_command_prints_what_came_of_it_and_goes_on(run, faked, tmp_path, command):
    given = ("attack", run, "--attack", "pruthi", "--number", 5, "--output", tmp_path, "--quiet")
    first = command(*given)
    assert first.exit_code == 0, first.output
    assert "attacks that failed" in first.stdout and "pruthi_point_0.json" in first.stdout
    lines = (tmp_path / "pruthi_point_0.jsonl").read_bytes()
    assert command(*given).stdout == first.stdout
    assert (tmp_path / "pruthi_point_0.jsonl").read_bytes() == lines
    other = command(*given, "--queries", 100)
    assert other.exit_code == 2 and "with queries 100 to continue, its queries is 500" in other.stderr
    assert command(*given, "--queries", 100, "--again").exit_code == 0


def test_an_interruption_says_how_to_go_on(run, tmp_path, command, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("probattn.attacks.running.build_attack", interrupted)
    result = command("attack", run, "--output", tmp_path, "--quiet")
    assert result.exit_code == 130
    assert "interrupted: the same command goes on where it was" in result.stderr
    result = command("attack", run, "--output", tmp_path, "--quiet", "--again")
    assert "interrupted: the same command without --again goes on where it was" in result.stderr


def test_texts_that_were_trained_on_are_counted():
    with pytest.warns(DataWarning, match="six texts: 2 of its 6 texts are in the training data of the run"):
        _warn_of_training_texts(DATA, DATA.rows([1, 4]))


def test_what_cannot_be_attacked_is_refused(run, tmp_path, command, monkeypatch):
    def refused(*words):
        result = command("attack", *words, "--output", tmp_path, "--quiet")
        assert result.exit_code == 2, result.output
        return result.stderr

    assert "expected a run folder with recipe.yaml" in refused(tmp_path)
    assert "--data: expected a data set that has a name" in refused(run, "--data", "nothing")
    assert "expected a run with latent attention" in refused(run / "baseline", "--prediction", "moments")
    monkeypatch.setitem(sys.modules, "textattack", None)
    load_textattack.cache_clear()
    assert "pip install 'probattn[attack]'" in refused(run)


def test_another_kind_of_run_is_refused(translation_run, tmp_path, command):
    result = command("attack", translation_run, "--output", tmp_path)
    assert result.exit_code == 2
    assert "expected a run that classifies texts, got one of translation" in result.stderr


def test_runs_without_attacks_are_refused(tmp_path, command):
    for place, words in (
        (tmp_path, "found none; make them"),
        (tmp_path / "no", "expected a folder of a run"),
    ):
        result = command("attack-table", place)
        assert result.exit_code == 2 and words in result.stderr
    folder = tmp_path / "attacks"
    folder.mkdir()
    (folder / "a.json").write_text("{}")
    result = command("attack-table", tmp_path)
    assert result.exit_code == 2 and "expected the result of an attack" in result.stderr


def test_options_are_checked_and_name_files():
    with pytest.raises(ValueError, match=r"AttackOptions.queries: expected an integer >= 2, got 1"):
        attacks.AttackOptions(queries=1)
    with pytest.raises(ValueError, match=r"AttackOptions.attack: expected one of 'textfooler'"):
        attacks.AttackOptions("clever")
    options = attacks.AttackOptions("bae", "draws", noise="fresh", data="textfooler_mr", seed=3)
    assert options.name == "bae_draws_textfooler_mr_fresh_3"
    assert attacks.AttackOptions(noise="fresh").name == attacks.AttackOptions().name  # a point has no noise
