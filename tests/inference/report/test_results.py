"""Records refuse what could not be measured or does not fit together."""

import math

import pytest
from pydantic import ValidationError

from probattn.inference.report.attention import AttentionExample, AttentionMap, Example
from probattn.inference.report.record import MEASURES, MODELS, SINGLE, DataSet, Entropy, Scores
from probattn.inference.report.results import Results
from probattn.inference.report.sites import SiteHealth

EXAMPLE = Example(text="a", predicted="yes", probability=0.6, spread=0.1, entropy=0.6)


def test_records_are_frozen(results: Results) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        results.run.name = "another"
    with pytest.raises(ValidationError, match="frozen"):
        results.scores[0].accuracy = 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "0.5", None, True])
def test_a_number_is_a_finite_number(value: object) -> None:
    with pytest.raises(ValidationError):
        SiteHealth(site="s", spread=value, kl_nats=1.0, reduction="mean")


@pytest.mark.parametrize("value", [-0.001, 1.001])
def test_a_share_lies_between_0_and_1(value: float) -> None:
    with pytest.raises(ValidationError, match="than or equal"):
        Scores(
            model="deterministic",
            data="test",
            accuracy=value,
            entropy=Entropy(mean=0.1, quantiles=(0.1, 0.2)),
        )


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
    for model in {*MODELS} - {*SINGLE}:
        for data in results.data:
            score = results.score(model, data.key)
            assert score is not None
            assert (score.model, score.data) == (model, data.key)
            for measure in MEASURES:
                assert score.measure(measure) == getattr(score, measure)
                difference = results.difference(measure, model, data.key)
                assert (difference is None) == (model == "deterministic" or score.measure(measure) is None)
    assert results.score("deterministic", "elsewhere") is None


def test_the_home_of_a_task_is_its_in_domain_set(results: Results) -> None:
    assert results.in_domain.role == "in_domain" and results.in_domain is results.home
    turned = Results(**{**dict(results), "data": results.data[::-1]})
    assert turned.in_domain == results.in_domain
