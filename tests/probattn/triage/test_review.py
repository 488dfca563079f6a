"""A queue for people, in files and in Label Studio's format, and what they decide taken back."""

import csv
import json
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from random import Random

import openpyxl
import pytest
from scipy.stats import beta, binom

from probattn.cli.reviewing import rows_of as reviewed_rows
from probattn.cli.reviewing import write_labels
from probattn.cli.rows import with_answer, write_rows
from probattn.tasks import RunError, run_task
from probattn.triage import apply_policy, read_policy
from probattn.triage.policy import Policy
from probattn.triage.queue import SPANS, configuration, task_of
from probattn.triage.review import Review, exported_rows, review

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
TEXTS = ["the film was good", "a bad plot", "fine; really", 'a "poor" cast', ""] * 8


@pytest.fixture(scope="module")
def queued(run, command, tmp_path_factory):
    """A run with a policy that answers about half, and a file with a queue as tasks."""
    folder = tmp_path_factory.mktemp("review") / "run"
    shutil.copytree(run, folder)
    assert command("triage", folder, "--error", "0.9", "--num-samples", "3", "--quiet").exit_code == 0
    policy = read_policy(folder)
    source, scores = folder / "new.csv", []
    for text in TEXTS[:4]:
        (answer,) = map(
            json.loads, command("predict", folder, text, "--policy", folder, "--json").stdout.splitlines()
        )
        scores.append(1 - answer["probability"])
    limit = policy.limits[0].model_copy(update={"threshold": sum(sorted(scores)[1:3]) / 2})
    changed = policy.model_copy(update={"limits": (limit,), "error": 0.1})
    (folder / "policy.json").write_text(changed.model_dump_json(), encoding="utf-8")
    lines = [f"{number};{json.dumps(text) if ';' in text else text}" for number, text in enumerate(TEXTS)]
    lines = [line.replace('a "poor" cast', '"a ""poor"" cast"') for line in lines]
    source.write_text("id;text\n" + "\n".join(lines) + "\n", encoding="utf-8")
    options = ["--policy", folder, "--audit", "0.5", "--label-studio", folder / "queue.json", "--quiet"]
    done = command("predict", folder, "--input", source, "--output", folder / "out.csv", *options)
    assert done.exit_code == 0, done.output
    return folder, done


def rows_of(file):
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter=";"))


def test_the_file_keeps_its_delimiter_and_columns_and_says_why(queued):
    folder, _ = queued
    rows = rows_of(folder / "out.csv")
    assert [row["id"] for row in rows] == [str(number) for number in range(len(TEXTS))]
    assert [row["text"] for row in rows] == TEXTS
    kinds = {(row["decision"], row["why"]) for row in rows}
    assert kinds == {("answer", ""), ("answer", "audit"), ("person", "unsure"), ("person", "no text")}
    answered = [row for row in rows if row["decision"] == "answer"]
    assert 0.2 < sum(row["why"] == "audit" for row in answered) / len(answered) < 0.8
    for row in rows:
        assert row["reviewed"] == ""
        if row["text"]:
            name, _, share = row["likeliest"].partition("; ")[0].rpartition(" ")
            assert name == row["label"] and share == f"{float(row['probability']):.0%}"


def test_tasks_are_the_rows_that_people_see(queued):
    folder, done = queued
    tasks = json.loads((folder / "queue.json").read_text(encoding="utf-8"))
    seen = [row for row in rows_of(folder / "out.csv") if row["why"] not in {"", "no text"}]
    assert [task["data"]["id"] for task in tasks] == [row["id"] for row in seen]
    assert f"queue.json ({len(tasks):,})" in " ".join(done.output.split())
    tags = {
        tag.get("name"): tag for tag in ET.parse(folder / "queue.xml").getroot().iter() if tag.get("name")
    }
    names = {kind: {item.get("value") for item in tags[kind]} for kind in ("words", "reviewed")}
    for task, row in zip(tasks, seen, strict=True):
        (prediction,) = task["predictions"]
        first, *words = prediction["result"]
        assert first["value"]["choices"] == [row["label"]] and row["label"] in names["reviewed"]
        assert prediction["score"] == pytest.approx(float(row["probability"]))
        for item in words:
            value = item["value"]
            assert item["from_name"] == "words" and item["to_name"] == "text" in tags
            assert task["data"]["text"][value["start"] : value["end"]] == value["text"]
            assert set(value["labels"]) <= names["words"]


def test_label_studio_takes_them(queued):
    interface = pytest.importorskip("label_studio_sdk.label_interface").LabelInterface
    folder, _ = queued
    checked = interface((folder / "queue.xml").read_text(encoding="utf-8"))
    checked.validate()
    for task in json.loads((folder / "queue.json").read_text(encoding="utf-8")):
        assert checked.validate_task({"data": task["data"]})
        assert all(map(checked.validate_prediction, task["predictions"]))


def test_names_of_classes_are_escaped_and_pairs_have_two_texts():
    root = ET.fromstring(configuration(['a "b" & <c>'], paired=True))
    assert [tag.get("value") for tag in root.iter("Choice")] == ['a "b" & <c>']
    assert [tag.get("value") for tag in root.iter("Text")] == ["$text", "$pair"]
    assert root.find("Labels").get("toName") == "text,pair"


def decided(queued, command, *more, ending=".csv", wrong=()):
    """A reviewed file: the suggested class everywhere, the other in rows ``wrong`` of those that people see."""
    folder, _ = queued
    rows = rows_of(folder / "out.csv")
    other = {"negative": "positive", "positive": "negative"}
    seen = [row for row in rows if row["why"] not in {"", "no text"}]
    for number, row in enumerate(seen):
        row["reviewed"] = other[row["label"]] if number in wrong else row["label"]
    file = folder / f"reviewed{ending}"
    if ending == ".json":
        reviewed = {row["id"]: row["reviewed"] for row in seen}
        tasks = json.loads((folder / "queue.json").read_text(encoding="utf-8"))
        for task in tasks:
            result = {"from_name": "reviewed", "value": {"choices": [reviewed[task["data"]["id"]]]}}
            task["annotations"] = [{"was_cancelled": False, "result": [result]}]
        file.write_text(json.dumps(tasks), encoding="utf-8")
    else:
        with file.open("w", encoding="utf-8", newline="") as lines:
            writer = csv.DictWriter(lines, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    done = command("review", folder, file, *more)
    assert done.exit_code == 0, done.output
    return seen, done


@pytest.mark.parametrize("ending", [".csv", ".json"])
def test_a_review_counts_and_tests_the_answers_again(queued, command, ending):
    policy = read_policy(queued[0])
    for wrong in ((), range(100)):
        seen, done = decided(queued, command, "--json", ending=ending, wrong=wrong)
        result = Review.model_validate_json(done.stdout)
        checked = [row for row in seen if row["why"] == "audit"]
        bad = len(checked) if wrong else 0
        assert (result.reviewed, result.queue) == (len(seen), len(seen) - len(checked))
        assert result.agreed == (0 if wrong else result.queue) and result.listed == result.queue
        assert (result.checked.size, result.checked.wrong, result.checked.sampled) == (
            len(checked),
            bad,
            True,
        )
        assert result.checked.p_value == pytest.approx(binom.sf(bad - 1, len(checked), policy.error))
        bound = 1 if bad == len(checked) else beta.ppf(policy.confidence, bad + 1, len(checked) - bad)
        assert result.checked.bound == pytest.approx(bound)
    assert "the error rate is above the target" in " ".join(
        decided(queued, command, wrong=wrong)[1].stdout.split()
    )


def test_labels_for_the_next_training_in_a_workbook(queued, command):
    folder, _ = queued
    file = folder / "labels.xlsx"
    seen, done = decided(queued, command, "--output", file)
    assert f"({len(seen)} rows)" in done.stdout
    train = read_columns(folder)
    table = list(openpyxl.load_workbook(file).active.iter_rows(values_only=True))
    assert table[0] == train and table[1:] == [(row["text"], row["reviewed"]) for row in seen]
    again = command("predict", folder, "--input", file, "--output", folder / "again.xlsx", "--quiet")
    assert again.exit_code == 0, again.output
    first, *rest = openpyxl.load_workbook(folder / "again.xlsx").active.iter_rows(values_only=True)
    assert first[:2] == train and len(rest) == len(seen)
    assert isinstance(rest[0][first.index("probability")], float)


def read_columns(folder):
    train = run_task(folder).recipe.data.train
    return train.text, train.label


def test_what_cannot_be_reviewed_is_said(queued, command):
    folder, _ = queued
    done = command("review", folder, folder / "out.csv")
    assert (
        done.exit_code == 2
        and "out.csv: expected rows with a class in column 'reviewed', got none" in done.output
    )
    (folder / "other.json").write_text('{"a": 1}', encoding="utf-8")
    done = command("review", folder, folder / "other.json")
    assert done.exit_code == 2 and "expected an export of Label Studio, a list of tasks" in done.output
    done = command("predict", folder, "--input", folder / "out.csv", "--audit", "0.5")
    assert done.exit_code == 2 and "--audit: expected --policy with it, got none" in done.output
    policy = read_policy(folder)
    with pytest.raises(RunError, match="expected a file of `probattn predict --policy`"):
        review([{"reviewed": "good"}], policy)


def test_what_spreadsheets_change_changes_no_review(queued):
    policy = read_policy(queued[0]).model_copy(update={"classes": ("true", "false")})
    answer = {"decision": "answer", "why": "audit", "label": "true", "likeliest": "true 60%; false 40%"}
    rows = [answer | {"text": str(number), "reviewed": "true"} for number in range(20)]
    rows += [row | {"decision": "person", "why": "unsure", "text": f"{row['text']} more"} for row in rows]
    expected = review(rows, policy)
    assert (expected.checked.size, expected.checked.wrong, expected.queue, expected.agreed) == (20, 0, 20, 20)
    changes = {"label": " TRUE", "reviewed": "TRUE"}, {"decision": "Answer "}, {"why": "Audit"}
    for change in changes:
        changed = [{name: change.get(name, row[name]) for name in reversed(row)} for row in rows[:20]]
        assert review([*changed, *rows[20:]], policy) == expected
    copied = review([*rows, *rows], policy)
    assert copied.copies == 40 and "40 of them are copies of earlier rows" in "".join(copied.lines(policy))
    for change, words in (
        ({"label": "bank"}, "got the label 'bank'"),
        ({"decision": "yes"}, "and 'person', got 'yes'"),
    ):
        with pytest.raises(RunError, match=words):
            review([*rows, rows[0] | change], policy)


def test_people_s_classes_are_not_replaced(queued, command):
    folder, _ = queued
    decided(queued, command)
    before = (folder / "reviewed.csv").read_text(encoding="utf-8")
    options = ["--policy", folder, "--input", folder / "new.csv", "--quiet", "--output"]
    done = command("predict", folder, *options, folder / "reviewed.csv")
    assert done.exit_code == 2 and "expected a new file, as this one has classes of people" in done.output
    assert (folder / "reviewed.csv").read_text(encoding="utf-8") == before
    done = command("predict", folder, *options, folder / "nowhere" / "out.csv")
    assert done.exit_code == 2 and "expected a file in a folder that exists, got the folder" in done.output


def test_a_formula_stays_a_text_in_a_workbook(tmp_path):
    from probattn.files.spreadsheets import workbook_text, write_workbook

    rows = [["text", "n"], ["=1+1", 3], ["a\nb, c", 0.5], ["", None], ["@x", 2.0], ["\x0b\ud800\rz", 1]]
    with (tmp_path / "a.xlsx").open("wb") as file:
        write_workbook(file, rows)
    cells = list(openpyxl.load_workbook(tmp_path / "a.xlsx").active.iter_rows())
    assert cells[1][0].data_type == "s" and cells[1][1].value == 3
    assert workbook_text(tmp_path / "a.xlsx") == (
        'text,n\r\n=1+1,3\r\n"a\nb, c",0.5\r\n\r\n@x,2\r\n"\ufffd\ufffd\rz",1\r\n'
    )


def test_policies_of_least_cost_have_no_test(queued):
    policy: Policy = read_policy(queued[0]).model_copy(update={"error": None, "cost": 5.0})
    rows = [{"decision": "answer", "why": "", "label": "positive", "reviewed": "negative", "likeliest": ""}]
    result = review(rows, policy)
    assert result.checked.p_value is None and not result.checked.sampled
    assert "was it a random one?" in " ".join(result.lines(policy))


def test_no_file_that_is_read_is_replaced(queued, command, tmp_path):
    folder, _ = queued
    decided(queued, command)
    source = run_task(folder).recipe.data.train.source
    for output in (folder / "reviewed.csv", source):
        done = command("review", folder, folder / "reviewed.csv", "--output", output)
        assert done.exit_code == 2 and "it would replace rows that are read" in done.output
    done = command("review", folder, folder / "reviewed.csv", "--output", tmp_path / "labels.txt")
    assert done.exit_code == 2 and "expected .csv, .tsv, .xlsx or .jsonl" in done.output
    options = ["--policy", folder, "--input", folder / "new.csv", "--output", tmp_path / "out.csv"]
    for queue in (folder / "new.csv", tmp_path / "queue.xml", tmp_path / "none" / "queue.json"):
        done = command("predict", folder, *options, "--label-studio", queue)
        assert done.exit_code == 2 and "expected a file that ends in .json" in done.output
        assert not (tmp_path / "out.csv").exists()
    (tmp_path / "config.xml").write_text("<settings/>")
    done = command("predict", folder, *options, "--label-studio", tmp_path / "config.json")
    assert done.exit_code == 2 and "config.xml, where the labelling configuration goes" in done.output
    assert (tmp_path / "config.xml").read_text() == "<settings/>" and not (tmp_path / "out.csv").exists()
    for _ in range(2):  # its own earlier one is replaced
        command("predict", folder, *options, "--label-studio", tmp_path / "queue.json")
        assert "<Choices" in (tmp_path / "queue.xml").read_text()


def test_small_files_are_audited_at_every_row(queued):
    folder, _ = queued
    task, answered, size = run_task(folder), [0] * 10, 300
    base = {"label": "positive", "entropy": 0.0, "mutual_information": 0.0}
    sure = {**base, "probabilities": {"negative": 0.0, "positive": 1.0}}
    policy = replace(apply_policy(task, folder, folder, audit=0.1), reasons=None)
    for file in range(size):
        applied = replace(policy, draw=Random(0))
        for row in range(len(answered)):
            answered[row] += bool(applied.decide({**sure, "text": f"{file} {row}"})[0].reasons)
    expected = binom(size * len(answered), 0.1).interval(0.999)
    assert expected[0] <= sum(answered) <= expected[1] and min(answered) > 0


def test_inputs_may_have_the_columns_of_an_answer(queued):
    policy = read_policy(queued[0])
    answer = {
        "decision": "person",
        "why": ["unsure"],
        "label": "positive",
        "probability": 0.6,
        "reviewed": None,
    }
    answer["likeliest"] = ["positive 60%", "negative 40%"]
    old = {
        "text": "a",
        "label": "x",
        "decision": "answer",
        "why": "audit",
        "reviewed": "x",
        "likeliest": "x 9%",
    }
    row = with_answer(old, answer)
    with pytest.raises(RunError, match="column 'predicted_reviewed', got none in 1 rows"):
        review([row], policy)
    result = review([row | {"predicted_reviewed": "positive"}], policy)
    assert (result.queue, result.agreed, result.listed, result.checked) == (1, 1, 1, None)
    assert review([row], policy, "reviewed").new_classes == {"x": 1}
    task = task_of(with_answer(row, {"predicted_label": "y"}), {**answer, SPANS: []}, ["a"], "v")
    assert review([{**task["data"], "reviewed": "positive"}], policy).agreed == 1


def test_classes_are_read_as_they_were(queued, tmp_path):
    policy = read_policy(queued[0]).model_copy(update={"classes": ("=x", "1", "a; b")})
    answers = [{"decision": "person", "why": ["unsure"], "label": name} for name in policy.classes]
    answers = [{**item, "reviewed": item["label"], "likeliest": [f"{item['label']} 9%"]} for item in answers]
    write_rows((({"text": "a"}, item) for item in answers), "csv", tmp_path / "a.csv")
    rows = reviewed_rows(tmp_path / "a.csv")
    rows += [{**rows[1], "reviewed": value} for value in ("1.0", 1.0, float("nan"), None)]
    result = review(rows, policy)
    assert (result.rows, result.reviewed, result.agreed, result.listed) == (7, 5, 5, 5)
    assert not result.new_classes


def test_classes_are_those_of_the_network_or_left_out_of_the_labels(queued, command, tmp_path):
    """People's spelling is the network's where case alone differs; new classes are written when that is wanted."""
    folder, _ = queued
    decided(queued, command)
    rows = reviewed_rows(folder / "reviewed.csv")
    policy = read_policy(folder)
    first = policy.classes[0]
    spelt = [{**rows[0], "reviewed": value} for value in (first.upper(), "fraud", "?", " - ")]
    result = review(spelt, policy)
    assert result.reviewed == 2 and result.new_classes == {"fraud": 1}  # signs alone are no decision
    assert "correct them, or add --new-classes" in " ".join(result.lines(policy))
    write_rows(((row, {}) for row in spelt), "csv", tmp_path / "r.csv")
    for option, expected in (([], [first]), (["--new-classes"], [first, "fraud"])):
        done = command("review", folder, tmp_path / "r.csv", "--output", tmp_path / "l.csv", *option)
        assert done.exit_code == 0, done.output
        with (tmp_path / "l.csv").open(newline="") as file:
            assert [row["label"] for row in csv.DictReader(file)] == expected


def test_labels_after_the_training_rows_keep_its_columns_and_form(queued, monkeypatch, tmp_path):
    folder, _ = queued
    train = tmp_path / "train.csv"
    train.write_bytes("id;text;kind;channel\r\nt1;a fine film;positive;mail\r\n".encode("utf-8-sig"))
    task = run_task(folder)
    changed = task.recipe.data.train.model_copy(
        update={"source": str(train), "text": "text", "label": "kind"}
    )
    data = task.recipe.data.model_copy(update={"train": changed})
    task.recipe = task.recipe.model_copy(update={"data": data})
    row = {"id": "n1", "text": "dull", "decision": "person", "label": "positive", "reviewed": "negative"}
    options = {"with_training": True, "new_classes": False}
    columns = {"text": None, "pair": None, "label": None}
    count = write_labels(
        task, folder, [row], tmp_path / "l.csv", columns, ["negative", "positive"], **options
    )
    assert count == 2 and (tmp_path / "l.csv").read_bytes().decode() == (
        "\ufeffid;text;kind;channel\r\nt1;a fine film;positive;mail\r\nn1;dull;negative;\r\n"
    )


def test_of_several_annotators_the_last_one_counts(queued, tmp_path):
    """JSON-MIN has a row for each annotation, JSON one for the task."""
    policy, file = read_policy(queued[0]), tmp_path / "a.json"
    data = {
        "text": "a",
        "decision": "person",
        "why": "unsure",
        "label": "positive",
        "likeliest": "positive 90%",
    }
    classes = ["negative", "positive"]
    short = [
        {"id": 7, "annotation_id": number, **data, "reviewed": name} for number, name in enumerate(classes)
    ]
    annotations = [{"result": [{"from_name": "reviewed", "value": {"choices": [name]}}]} for name in classes]
    for tasks in (short, [{"id": 7, "data": data, "annotations": annotations}]):
        file.write_text(json.dumps([*tasks, {**short[0], "id": 8}] if tasks is short else tasks))
        result = review(exported_rows(file), policy)
        assert (result.rows, result.agreed) == (2 if tasks is short else 1, 1)


def test_exports_with_empty_annotations_and_other_tasks(queued, tmp_path):
    policy, file = read_policy(queued[0]), tmp_path / "a.json"
    data = {"decision": "answer", "why": "audit", "label": "positive", "likeliest": "positive 90%"}
    results = [[], [{"from_name": "reviewed", "value": {"choices": []}}], None]
    tasks = [{"data": data, "annotations": [{"result": result}, 5]} for result in results]
    named = {"result": [{"from_name": "reviewed", "value": {"choices": ["positive"]}}]}
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps([*tasks, {"data": data, "annotations": [named]}]).encode())
    result = review(exported_rows(file), policy)
    assert result.reviewed == 1 and result.checked.audited == 4
    assert "(of 4 that `--audit` chose: review the others too)" in " ".join(result.lines(policy))
    with pytest.raises(RunError, match="got no column 'decision'"):
        review([{**data, "reviewed": "positive"}, {"text": "a", "reviewed": "positive"}], policy)


def test_cells_that_a_workbook_cuts_are_told(tmp_path):
    from probattn.checks import PlainWarning
    from probattn.files.spreadsheets import workbook_text, write_workbook

    with (
        (tmp_path / "a.xlsx").open("wb") as file,
        pytest.warns(PlainWarning, match="1 cells are cut at 32,767"),
    ):
        write_workbook(file, [["text"], ["a" * 40_000], ["b" * 32_767]])
    assert workbook_text(tmp_path / "a.xlsx").split() == ["text", "a" * 32_767, "b" * 32_767]


def test_texts_of_another_column_and_classes_that_are_misspelt(queued, command, tmp_path):
    folder, _ = queued
    rows = rows_of(folder / "out.csv")
    text = read_columns(folder)[0]
    for number, row in enumerate(rows):
        row["message"] = row.pop(text)
        row[text] = f"other {number}"
        row["reviewed"] = (
            "Positiv" if row["why"] == "unsure" else "positive" if row["why"] == "no text" else ""
        )
    file = tmp_path / "reviewed.csv"
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    done = command(
        "review", folder, file, "--output", tmp_path / "a.csv", "--text-column", "message", "--new-classes"
    )
    unsure = [row for row in rows if row["why"] == "unsure"]
    assert f"Positiv ({len(unsure)}; positive?)" in " ".join(done.stdout.split())
    written = list(csv.DictReader((tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()))
    assert [row[text] for row in written] == [row["message"] for row in unsure]  # and none without a text
