"""Records refuse what does not fit together; metrics.json comes back as it went, or says what is wrong with it."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from probattn.inference.records import LARGEST
from probattn.report.attention import AttentionExample, AttentionMap, Example
from probattn.report.measures import CLASS_MEASURES
from probattn.report.record import MODELS, SINGLE, Curve, DataSet
from probattn.report.results import Results, ResultsFileError, read_results, write_results
from probattn.report.sites import SiteHealth

EXAMPLE = Example(text="a", predicted="yes", probability=0.6, spread=0.1, entropy=0.6)


def test_records_are_frozen(results: Results) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        results.run.name = "another"
    with pytest.raises(ValidationError, match="frozen"):
        results.scores[0].values = {"accuracy": 1.0}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "0.5", None, True])
def test_a_number_is_a_finite_number(value: object) -> None:
    with pytest.raises(ValidationError):
        SiteHealth(site="s", spread=value, kl_nats=1.0, reduction="mean")


@pytest.mark.parametrize("value", [-0.001, 1.001])
def test_a_share_lies_between_0_and_1(results: Results, value: float) -> None:
    first, *others = results.scores
    wrong = first.model_copy(update={"values": {**first.values, "accuracy": value}})
    with pytest.raises(ValidationError, match=r"accuracy: expected a share in \[0, 1\], got -?[01]\.001"):
        Results(**{**dict(results), "scores": (wrong, *others)})


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValidationError, match="colour"):
        DataSet(key="k", title="t", role="in_domain", size=1, labelled=True, colour="red")


@pytest.mark.parametrize(
    ("mean", "ratio"),
    [
        (((0.5,), (0.5,)), ((0.0, 0.0), (0.0, 0.0))),
        (((0.5, 0.5), (0.5, 0.5)), ((0.0, 0.0),)),
        (((0.5, 0.5), (0.5,)), ((0.0, 0.0), (0.0, 0.0))),
    ],
)
def test_maps_have_a_row_per_query_and_a_column_per_key(mean: tuple, ratio: tuple) -> None:
    with pytest.raises(ValidationError, match="one row per query token"):
        AttentionExample(
            example=EXAMPLE,
            reason="chosen",
            queries=("a", "b"),
            keys=("a", "b"),
            maps=(AttentionMap(site="s", mean=mean, ratio=ratio),),
        )


def test_an_attention_example_has_a_map() -> None:
    with pytest.raises(ValidationError, match="at least 1"):
        AttentionExample(example=EXAMPLE, reason="chosen", queries=("a",), keys=("a",), maps=())


def test_records_name_known_data_sets(results: Results) -> None:
    stray = results.scores[0].model_copy(update={"data": "elsewhere"})
    with pytest.raises(ValidationError, match="elsewhere"):
        Results(**{**dict(results), "scores": (stray,)})
    with pytest.raises(ValidationError, match="name one of the data sets"):
        Results(**{**dict(results), "data": (*results.data, results.data[0])})


def test_scores_and_differences_are_found_by_name(results: Results) -> None:
    for model in {*MODELS} - {*SINGLE, "bayesian_moments"}:  # which this run of earlier versions has not
        for data in results.data:
            score = results.score(model, data.key)
            assert score is not None
            assert (score.model, score.data) == (model, data.key)
            for measure in CLASS_MEASURES:
                assert score.values.get(measure) == results.value(measure, model, data.key)
                difference = results.difference(measure, model, data.key)
                assert (difference is None) == (model == "deterministic" or score.values.get(measure) is None)
    assert results.score("deterministic", "elsewhere") is None


def test_the_in_domain_set_is_told_by_its_role(results: Results) -> None:
    assert results.in_domain.role == "in_domain"
    turned = Results(**{**dict(results), "data": results.data[::-1]})
    assert turned.in_domain == results.in_domain


def test_round_trip_is_exact(results: Results, tmp_path: Path) -> None:
    path = write_results(results, tmp_path / "metrics.json")
    again = read_results(path)
    assert again == results
    assert again.model_dump_json() == results.model_dump_json()


@given(st.lists(st.floats(-LARGEST, LARGEST), min_size=1, max_size=20), st.text(max_size=30))
def test_any_finite_number_and_any_text_survive(tmp_path_factory, results, values, text) -> None:
    curve = Curve(
        model="deterministic", name="x", kind="train", steps=tuple(range(len(values))), values=tuple(values)
    )
    run = results.run.model_copy(update={"name": text})
    small = Results(run=run, classes=results.classes, data=results.data, scores=(), curves=(curve,))
    path = tmp_path_factory.mktemp("run") / "metrics.json"
    again = read_results(write_results(small, path))
    assert [value.hex() for value in again.curves[0].values] == [value.hex() for value in values]
    assert again.run.name == text


def written(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe{}", "expected JSON, got .* at line 1 column 1"),
        ("", "expected JSON, got .* at line 1 column 0"),
        ('{"schema_version": 1,\n "run": ', "expected JSON, got .* at line 2 column 8"),
        ("[1, 2]", r"at the whole: .*object, got \[1, 2\]"),
        ("{}", "this is no metrics.json"),
        ('{"schema_version": 2}', "expected schema version 4, got 2"),
        ('{"schema_version": 1}', "expected schema version 4, got 1"),
        ('{"schema_version": 4}', r"at run: Field required, got .* \(and 2 more\)"),
        *(
            (content, "metrics.json: ")
            for content in (
                "[" * 100_000,
                '{"schema_version": 1, "run": ' + "[" * 100_000,
                '{"schema_version": 1, "kind": ' + "9" * 5000 + "}",
                '{"schema_version": 1, "kind": []}',
                '{"schema_version": 1, "kind": {"a": 1}}',
                '{"schema_version": 1, "kind": "experiment"}',
                '{"schema_version": [1]}',
                '{"schema_version": NaN}',
                '{"schema_version": "' + "x" * 5000 + '"}',
                "null",
                b"\x00",
            )
        ),
    ],
)
def test_unreadable_files_say_why_in_one_line(content: bytes | str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path / "metrics.json", content)
    with pytest.raises(ResultsFileError, match=message) as caught:
        read_results(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("scores", 0, "values", "accuracy"), 1.5, r"accuracy: expected a share in \[0, 1\], got 1\.5"),
        (("scores", 0, "values", "accuracy"), "half", "scores.0.values.accuracy"),
        (("scores", 0, "colour"), 1, "scores.0.colour: Extra inputs"),
        (("run", "steps"), -1, "run.steps"),
        (("data", 0, "role"), "somewhere", "data.0.role"),
        (("attention", 0, "maps", 0, "mean"), [[0.5]], "attention.0: .*one row per query"),
        (("scores", 0, "risk_coverage", "risk"), [0.5], "expected as many risks as coverages"),
        (("scores", 0, "entropy", "quantiles"), [0.5], "at least 2 items"),
        (("curves", 0, "values"), [0.5], "expected as many values as steps"),
        *(
            (("curves", 0, "values", 0), value, r"curves\.0\.values\.0")
            for value in (1e200, -1.7e308, 10**400)
        ),
    ],
)
def test_wrong_values_are_named_by_their_place(results, tmp_path, place, value, message) -> None:
    content = json.loads(write_results(results, tmp_path / "metrics.json").read_text(encoding="utf-8"))
    assert content["schema_version"] == 4
    target = content
    for step in place[:-1]:
        target = target[step]
    target[place[-1]] = value
    with pytest.raises(ResultsFileError, match=message):
        read_results(written(tmp_path / "wrong.json", json.dumps(content)))


def test_every_truncation_is_noticed(results: Results, tmp_path: Path) -> None:
    content = write_results(results, tmp_path / "metrics.json").read_bytes()
    for length in range(0, len(content) - 2, len(content) // 40):
        with pytest.raises(ResultsFileError):
            read_results(written(tmp_path / "part.json", content[:length]))


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_results(tmp_path / "metrics.json")
