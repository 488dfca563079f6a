"""Answers as spans: reading, windows, the joint law of both ends, SQuAD's measures, and a whole run."""

import json
import math
import random
from collections import defaultdict

import pytest
import torch
from runs import WORDS, overrides, refused, succeeds, tokenizer
from torchmetrics.functional.text import squad

from probattn.data import DataError
from probattn.inference.posterior import Posterior
from probattn.report import Results
from probattn.tasks import run_task
from probattn.tasks.fine_tuning.answers import Candidates, best_match, ends_of, exact_match, word_f1
from probattn.tasks.fine_tuning.encoding import Batch, padded
from probattn.tasks.fine_tuning.spans import Spans, SpansRecipe, SpansSection, best_threshold

TEXT = " ".join([*WORDS, *reversed(WORDS)])
"""24 words, more than two windows of the tiny network hold."""


def task(folder="minilm", train="none.json", **section):
    """A task whose windows the tiny network can read."""
    section = {"max_length": 16, "stride": 4, "max_answer_length": 3} | section
    return Spans(SpansRecipe(network={"name": str(folder)}, spans={"train": train, **section}))


def example(question, context, *answers):
    """An example as the section makes it, of answers by the word they begin with."""
    return {
        "question": question,
        "context": context,
        "answers": tuple((answer, context.index(answer)) for answer in answers),
    }


def batch_of(some, examples, codec):
    encoded = some.encode(codec, examples)
    return Batch(examples, encoded, padded(codec, [row for each in encoded for row in each.rows]), None)


def as_labelled(batch, size=6.0):
    """Logits of a network that is sure of every window's label, one draw."""
    places = torch.stack([batch.tensors["start_positions"], batch.tensors["end_positions"]], dim=1)
    return size * torch.nn.functional.one_hot(places, batch.tensors["input_ids"].shape[1])[None].float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("windows", "longest"), [([(0, 6)], 4), ([(0, 7), (4, 11)], 5), ([(0, 5), (2, 7), (4, 9)], 9)]
)
def test_the_joint_law_is_that_of_all_spans_one_by_one(windows, longest, dtype):
    """By loops over windows and both ends; token t has the characters 2t..2t + 1 and stands 3 positions later."""
    generator = torch.Generator().manual_seed(longest)
    width = max(end - start for start, end in windows)
    logits = 3 * torch.randn(4, len(windows), 2, width + 3, generator=generator, dtype=dtype)
    rows = [
        torch.tensor([(3 + t - start, 2 * t, 2 * t + 1) for t in range(start, end)]) for start, end in windows
    ]
    found = Candidates.of(rows, longest)
    law = Posterior(found.scores(logits)[:, None])

    readings = defaultdict(list)  # by first and last token: context on the scarcer side, and where it is read
    for window, (start, end) in enumerate(windows):
        for first in range(start, end):
            for last in range(first, min(end, first + longest)):
                readings[first, last].append((min(first - start, end - 1 - last), -window))
    expected = defaultdict(float)
    for draw in logits.double():
        scores = {None: min(float(window[0, 0] + window[1, 0]) for window in draw)}
        for (first, last), each in readings.items():
            window = -max(each)[1]
            shift = 3 - windows[window][0]
            scores[first, last] = float(draw[window, 0, first + shift] + draw[window, 1, last + shift])
        total = sum(map(math.exp, scores.values()))
        for outcome, score in scores.items():
            expected[outcome] += math.exp(score) / total / len(logits)

    names = [None, *map(tuple, found.ends.tolist())]
    assert len(names) == len(set(names)) and set(names) == set(expected)
    torch.testing.assert_close(
        law.mean_probabilities[0].double(),
        torch.tensor([expected[name] for name in names], dtype=torch.float64),
        rtol=1e-5,
        atol=1e-7,
    )
    assert law.entropy.item() == pytest.approx(-sum(p * math.log(p) for p in expected.values()), rel=1e-5)
    assert found.characters(0) == (None, None)
    values = [(2 * first, 2 * last + 1) for first, last in found.ends.tolist()]
    assert [found.characters(k) for k in range(1, len(names))] == values


def test_tokens_of_one_character_are_read_from_the_first_to_the_last():
    """As byte-level tokenizers cut an emoji: positions 2 and 3 share a character."""
    found = Candidates.of([torch.tensor([(1, 0, 1), (2, 1, 2), (3, 1, 2), (4, 2, 3)])], 2)
    assert found.tokens.tolist() == [[0, 1], [1, 2], [2, 3]]
    assert found.positions.tolist() == [[1, 1], [1, 3], [2, 3], [2, 4], [4, 4]]
    nothing = Candidates.of([torch.zeros(0, 3, dtype=torch.long)], 2)
    assert nothing.scores(torch.ones(5, 1, 2, 4)).shape == (5, 1)


def test_an_answer_of_any_window_is_found():
    codec = tokenizer()
    examples = [
        example("the film", TEXT, "good fine"),
        example("the plot", TEXT, "film plot cast"),
        example("the cast", TEXT, "fine good"),
        example("was", TEXT),
        example("was", "good film", "good"),
        example(TEXT, TEXT, "a was was a"),  # more than a predicted answer may have, and a question to be cut
    ]
    some = task()
    batch = batch_of(some, examples, codec)
    assert all(len(row["input_ids"]) <= 16 for each in batch.encoded for row in each.rows)
    assert [len(each.rows) for each in batch.encoded] == [3, 3, 3, 3, 1, 4]
    labels = [(row["start_positions"], row["end_positions"]) for row in batch.encoded[2].rows]
    assert labels[:-1] == [(0, 0)] * 2 and labels[-1] > (0, 0)
    posterior = Posterior(as_labelled(batch))
    answers = some.answer(posterior, batch)
    expected = ["good fine", "film plot cast", "fine good", "", "good"]
    assert [each["answer"] for each in answers[:5]] == expected
    assert [row[2] for row in Spans.table(answers[2:4]).groups[0].rows] == ["fine good", "no answer"]
    assert [some.truth(each) for each in examples[2:4]] == ["fine good", "no answer"]
    for each, given in zip(answers[:5], examples, strict=False):
        text, start = (*given["answers"], ("", None))[0]
        assert (each["start"], each["end"]) == (start, None if start is None else start + len(text))
        assert each["probability"] > 0.9 and each["best"][0]["answer"] == each["answer"]
    columns = some.record(posterior, batch)
    assert columns["exact"].tolist() == [1, 1, 1, 1, 1, 0]
    assert columns["answerable"].tolist() == [1, 1, 1, 0, 1, 1]
    assert columns["nll"].isnan().tolist() == [False] * 5 + [True]
    for row in (0, 3, 4):
        assert columns["nll"][row].item() == pytest.approx(-math.log(columns["confidence"][row]), abs=1e-6)
    figures = some.figures(columns)
    assert (
        figures["exact"] == pytest.approx(5 / 6) and figures["answered"] == 4 / 5 and figures["refused"] == 1
    )
    only = some.figures({name: column[3:4] for name, column in columns.items()})
    assert only["answered"] is None and only["nll"] == pytest.approx(columns["nll"][3].item())
    (listing,) = some.listings({"deterministic": columns})
    values = [("answerable", "5", "80.0%"), ("unanswerable", "1", "100.0%")]
    assert [row[1:4] for row in listing.rows] == values
    assert listing.about.endswith("cannot be given: 1.")


def test_several_true_answers_count_together():
    some, codec = task(), tokenizer()
    batch = batch_of(some, [example("the", "good film was bad", "good", "film was", "good film was")], codec)
    logits = torch.randn(
        3, 1, 2, batch.tensors["input_ids"].shape[1], generator=torch.Generator().manual_seed(0)
    )
    (joint,) = [joint for _, joint in some.outcomes(Posterior(logits), batch)]
    (answer,) = some.answer(Posterior(logits), batch)
    probability = joint.mean_probabilities[0]
    assert probability.sum().item() == pytest.approx(1, abs=1e-5) and len(probability) == 1 + 9
    # Spans in order: good, good film, good film was, film, film was, ...
    expected = -math.log(probability[1] + probability[3] + probability[5])
    assert some.record(Posterior(logits), batch)["nll"].item() == pytest.approx(expected, rel=1e-5)
    values = pytest.approx(probability.sort(descending=True).values[:5].tolist(), abs=1e-6)
    assert [span["probability"] for span in answer["best"]] == values


def test_matches_are_those_of_torchmetrics():
    """Whose script is SQuAD 1.1's: texts with words, as its answers have."""
    draw = random.Random(0)
    pieces = ["a", "The", "an", "fox", "Fox!", "red", "U.S.", "re-d", "  ", "theft", "42", "é"]
    for _ in range(200):
        texts = [" ".join(["fox's", *draw.choices(pieces, k=draw.randint(0, 5))]) for _ in range(4)]
        predicted, answers = texts[0], texts[1 : draw.randint(2, 4)]
        theirs = squad(
            [{"prediction_text": predicted, "id": "1"}],
            [{"answers": {"text": answers, "answer_start": [0] * len(answers)}, "id": "1"}],
        )
        expected = pytest.approx(theirs["exact_match"].item())
        assert 100 * best_match(exact_match, predicted, answers) == expected
        assert 100 * best_match(word_f1, predicted, answers) == pytest.approx(theirs["f1"].item(), rel=1e-5)
    for measure in (exact_match, word_f1):  # SQuAD 2.0's script
        assert best_match(measure, "", []) == best_match(measure, "the!", ["a", ""]) == 1
        assert best_match(measure, "fox", []) == best_match(measure, "", ["fox"]) == 0


ROWS = [
    ("Who ran?", "The fox ran, the fox won.", [("fox", 4), ("The fox", 0)]),
    ("Who won?", "The fox ran, the fox won.", [("fox", 17)]),
    ("Who lost?", "The fox ran, the fox won.", []),
]


def in_squad(rows):
    """SQuAD 2.0's form, where unanswerable questions have plausible answers."""
    asked = [
        {
            "id": str(number),
            "question": question,
            "is_impossible": not answers,
            "answers": [{"text": text, "answer_start": start} for text, start in answers],
        }
        | ({} if answers else {"plausible_answers": [{"text": "fox", "answer_start": 4}]})
        for number, (question, _, answers) in enumerate(rows)
    ]
    return json.dumps({"version": "v2.0", "data": [{"paragraphs": [{"context": rows[0][1], "qas": asked}]}]})


def in_lines(rows):
    """The hub's form."""
    return "\n".join(
        json.dumps({"question": question, "context": context, "answers": split_in_two(answers)})
        for question, context, answers in rows
    )


def split_in_two(answers):
    return {"text": [text for text, _ in answers], "answer_start": [start for _, start in answers]}


def in_texts(rows):
    """A column of texts and one of starts, of which one row has lists."""
    return "\n".join(
        json.dumps({"question": question, "context": context, "answers": texts, "answer_start": starts})
        for question, context, answers in rows
        for texts, starts in [
            split_in_two(answers).values() if len(answers) > 1 else (*answers, (None, None))[0]
        ]
    )


@pytest.mark.parametrize(
    ("name", "form"),
    [("a.json", in_squad), ("a.jsonl", in_lines), ("b.jsonl", in_texts)],
    ids=["squad", "hub", "texts"],
)
def test_forms_of_the_same_questions(tmp_path, name, form):
    file = tmp_path / name
    file.write_text(form(ROWS))
    section = SpansSection(train=str(file), validation=str(file), test=str(file))
    expected = [
        {"question": question, "context": context, "answers": tuple(answers)}
        for question, context, answers in ROWS
    ]
    assert section.load() == dict.fromkeys(("train", "validation", "test"), expected)


def test_a_table_and_contexts_as_a_whole(tmp_path):
    file = tmp_path / "asked.csv"
    lines = ["q,c,a,s"]
    for number in range(60):
        lines += [f"Who {number}?,fox {number} ran,fox {number},0.0", f"Why {number}?,fox {number} ran,,"]
    file.write_text("\n".join(lines))
    parts = SpansSection(train=str(file), question="q", context="c", answers="a", answer_start="s").load()
    assert sum(map(len, parts.values())) == 120
    contexts = [{each["context"] for each in part} for part in parts.values()]
    assert sum(map(len, contexts)) == 60 == len(set.union(*contexts))
    assert {len(each["answers"]) for part in parts.values() for each in part} == {0, 1}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"answers": "fox", "answer_start": 3}, "expected the answer 'fox' at character 3 .* got ' fo'"),
        ({"answers": "fox", "answer_start": -21}, "expected the answer 'fox' at character -21"),
        ({"answers": "fox"}, "expected a whole number as start of the answer 'fox', .* got None"),
        ({"answers": "fox", "answer_start": "4.5"}, "expected a whole number .* got '4.5'"),
        ({"answers": 7, "answer_start": 4}, "expected the text of an answer, got 7"),
        ({"answers": {"text": ["fox"]}}, "expected a start for each of 1 answers, got None"),
        ({"answers": "", "question": " "}, "expected text in 'question', got ' '; remove the row"),
        ({"answers": "", "context": None}, "expected text in 'context', got None"),
    ],
)
def test_rows_that_are_refused(tmp_path, fields, message):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"question": "Who?", "context": "The fox ran, the fox."} | fields))
    with pytest.raises(DataError, match=rf"a\.jsonl line 1: {message}") as caught:
        SpansSection(train=str(file)).load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1: expected JSON, got "),
        ("[]", "expected SQuAD's form"),
        ('{"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "b"}]}]}]}', "KeyError: 'answers'"),
        ('{"data": []}', "expected examples, got none"),
    ],
)
def test_files_that_are_refused(tmp_path, text, message):
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        SpansSection(train=str(file)).load()


def test_labels_of_squad_are_the_answers(public_data):
    """Each window's label covers the first answer, and a window without it does not hold it."""
    from transformers import AutoTokenizer

    from probattn.tasks.classification.recipe import NetworkRecipe

    path = public_data("squad") / "squad" / "dev-part-v2.0.json"
    codec = AutoTokenizer.from_pretrained(NetworkRecipe().locate())
    some = task(max_length=128, stride=32, max_answer_length=30, train=str(path))
    examples = [each for part in some.examples.values() for each in part][::4]
    equal, answerable = 0, 0
    for given, encoded in zip(examples, some.encode(codec, examples), strict=True):
        labels = [(row["start_positions"], row["end_positions"]) for row in encoded.rows]
        found = Candidates.of(encoded.notes, 30)
        if not given["answers"]:
            assert set(labels) == {(0, 0)} and found.true(given["answers"]) == [0]
            continue
        text, start = given["answers"][0]
        answerable += 1
        decoded = set()
        for window, (first, last) in zip(encoded.notes, labels, strict=True):
            low, high = int(window[0, 1]), int(window[-1, 2])
            assert (first > 0) == (low <= start and start + len(text) <= high)
            if first:
                a = int(window[window[:, 0] == first, 1])
                b = int(window[window[:, 0] == last, 2])
                assert a <= start and start + len(text) <= b
                decoded.add((a, b))
        (place,) = decoded
        whole = found.characters(found.true([(text, start)])[0])
        assert whole == place
        equal += given["context"][slice(*place)] == text
        assert ends_of(found.tokens, text, start) is not None
    assert answerable > 100 and equal > 0.97 * answerable


@pytest.fixture(scope="module")
def trained(network, tmp_path_factory):
    """A finished run of a few steps on long contexts."""
    folder = tmp_path_factory.mktemp("spans")
    draw = random.Random(0)
    with (folder / "asked.jsonl").open("w") as file:
        for number in range(60):
            words = draw.choices(WORDS, k=draw.randint(3, 20))
            context = " ".join(words)
            given = {} if number % 3 == 0 else {"answers": words[0], "answer_start": 0}
            row = {"question": "was the film good", "context": f"{context} {number}", "answers": None} | given
            file.write(json.dumps(row) + "\n")
    recipe = folder / "spans.yaml"
    recipe.write_text(
        f"spans: {{train: {folder}/asked.jsonl, max_length: 16, stride: 4, max_answer_length: 3}}\n"
        f"network: {{name: {network}}}\nattention: {{method: babn}}\n"
        "training: {steps: 4, batch_size: 8, log_every: 2, device: cpu}\n"
        "prediction: {num_samples: 3}\nreport: {resamples: 100, uncertain: 2}\n"
    )
    succeeds("train", recipe, "--output", folder / "run", "--quiet")
    return folder / "run"


def test_intervals_draw_contexts_with_all_their_questions(trained, monkeypatch):
    given = {}
    monkeypatch.setattr(
        "probattn.report.evaluation.paired_bootstrap", lambda *_, clusters, **__: given.update(clusters) or ()
    )
    task = run_task(trained)
    task.evaluate(trained)
    assert given == {"test": [each["context"] for each in task.examples["test"]]}


def test_a_run_is_measured_and_reported(trained):
    shown = json.loads(succeeds("evaluate", trained, "--json"))
    (data,) = shown["data"]
    models = {each["model"]: each["values"] for each in shown["scores"]}
    assert data["unit"] == "questions" and len(models) == 3
    assert (data["cluster"], data["clusters"]) == ("texts", data["size"])  # each context is asked once
    assert all(set(values) == set(Spans.measures) for values in models.values())
    assert all(value >= 0 for values in models.values() for value in values.values() if value is not None)
    succeeds("report", trained)
    results = Results.model_validate_json((trained / "metrics.json").read_text(encoding="utf-8"))
    assert results.words
    for item in results.words:
        assert item.example.text == "was the film good"
        assert item.explanation.texts == (item.example.text, item.example.pair)
        assert {word.text for word in item.explanation.words} == {0, 1}
    values = results.scores[0].values
    assert values["f1_tuned"] >= 0 and "Threshold of no answer" in [each.title for each in results.listings]
    page = (trained / "report.html").read_text()
    assert "With and without an answer" in page and "Exact match, answerable" in page


def test_questions_of_the_command_line_and_of_files(trained, tmp_path):
    context = "good film the plot was bad"
    line = json.loads(succeeds("predict", trained, context, "--pair", "was the film good", "--json"))
    assert (line["context"], line["question"]) == (context, "was the film good")
    start, end = line["start"], line["end"]
    assert line["answer"] == ("" if start is None else context[start:end])
    assert 0 < line["probability"] <= 1 and 0 <= line["mutual_information"] <= line["entropy"]
    expected = sorted((item["probability"] for item in line["best"]), reverse=True)
    assert [item["probability"] for item in line["best"]] == expected
    file = tmp_path / "new.csv"
    file.write_text(f"question,context\nwas the film good,{context}\nwas it,{TEXT}\n")
    succeeds("predict", trained, "--input", file, "--output", tmp_path / "out.jsonl")
    rows = [json.loads(row) for row in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and [row["context"] for row in rows] == [context, TEXT]
    assert all(row["answer"] == row["context"][row["start"] or 0 : row["end"] or 0] for row in rows)
    assert "pair" in refused("predict", trained, context)


def test_windows_that_share_more_than_half_are_refused(trained, tmp_path):
    recipe = trained.parent / "spans.yaml"
    keys = overrides("spans.stride=9")
    expected = refused("train", recipe, "--output", tmp_path / "x", *keys)
    assert "stride: expected at most half of max_length, 8, got 9" in expected


def test_the_threshold_of_no_answer_is_the_best_of_all():
    """Against every threshold, as SQuAD's script finds it; margins may be equal."""
    source = random.Random(0)
    for _ in range(50):
        count = source.randint(1, 30)
        margin = torch.tensor([float(source.randint(-4, 4)) for _ in range(count)], dtype=torch.float64)
        unanswerable = torch.tensor([source.random() < 0.5 for _ in range(count)])
        scores = torch.tensor([source.choice([0.0, 0.4, 1.0]) for _ in range(count)], dtype=torch.float64)
        scores = scores * ~unanswerable

        found, *others = [
            torch.where(margin <= threshold, scores, unanswerable.double()).mean().item()
            for threshold in [best_threshold(margin, scores, unanswerable), -math.inf, *margin.tolist()]
        ]
        assert found == pytest.approx(max(others))


def test_squads_files_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))

    def write(name, count):
        paragraphs = [
            {
                "context": f"In {year} it rained in Rome.",
                "qas": [
                    {
                        "id": f"{year}a",
                        "question": "When?",
                        "answers": [{"text": str(year), "answer_start": 3}],
                    },
                    {"id": f"{year}b", "question": "Why?", "is_impossible": True, "answers": []},
                ],
            }
            for year in range(1000, 1000 + count)
        ]
        (tmp_path / "squad").mkdir(exist_ok=True)
        (tmp_path / "squad" / name).write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))

    write("dev-part-v2.0.json", 60)
    parts = SpansSection(train="squad2").load()
    contexts = {split: {each["context"] for each in examples} for split, examples in parts.items()}
    assert sum(map(len, parts.values())) == 120 and sum(map(len, contexts.values())) == 60
    assert all(contexts.values())
    first = SpansSection(train="squad1").load()
    assert sum(map(len, first.values())) == 60 and all(each["answers"] for each in first["test"])
    write("train-v2.0.json", 50)
    write("dev-v2.0.json", 4)
    whole = SpansSection(train="squad2").load()
    assert len(whole["test"]) == 8 and len(whole["train"]) + len(whole["validation"]) == 100


@pytest.mark.parametrize("question", [5, "  ", None])
def test_a_question_that_is_none_is_named(trained, tmp_path, question):
    source = tmp_path / "outside.jsonl"
    source.write_text(json.dumps({"question": question, "context": "the film"}) + "\n", encoding="utf-8")
    section = run_task(trained).section_of_examples
    with pytest.raises(DataError, match=r"line 1: expected text in 'question', got"):
        section.read_examples(str(source), "test", labelled=False)
