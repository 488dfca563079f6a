"""Claims of the papers: all are there, and their verdicts are those that their evidence gives."""

import json
import re
import statistics
from pathlib import Path

import claim_values
import pytest
from pydantic import ValidationError
from scipy import stats

from probattn.reproduce import Claim, Evidence, claims, claims_sheet, find_table, measured, papers

ITEMS = [(number, item) for number, claim in claims().items() for item in claim.evidence]
DATA = Path(claim_values.ROOT) / "docs" / "data"


def of(*values, **fields):
    """Evidence of differences."""
    return Evidence(values={str(seed): value for seed, value in enumerate(values)}, **fields)


def judged(*items):
    return Claim(paper="aa", text="", where="", evidence=items, verdict="no", because="").judged()


def statement(shows, **fields):
    return Evidence(statement="It does.", shows=shows, **fields)


def test_all_claims_are_there():
    assert list(claims()) == list(range(1, 69))
    assert [claim.paper for claim in claims().values()] == ["babn"] * 17 + ["aa"] * 16 + ["rma"] * 20 + [
        "ktiw"
    ] * 15


@pytest.mark.parametrize(("number", "claim"), claims().items())
def test_a_verdict_is_that_of_the_evidence(number, claim):
    assert claim.verdict == claim.judged()
    assert claim.because.endswith(".") and claim.text.endswith(".")


def test_every_gain_is_of_a_record():
    for number, item in ITEMS:
        if item.gain is None:
            continue
        assert item.differences()
        for table, row, base, column in filter(None, (item.gain, item.less)):
            assert table.split("/")[0] in (claims()[number].paper, "more")
            name, _, other = base.partition("/")
            if name.replace(".", "").isdigit():
                expected = {
                    seed: value - float(name)
                    for seed, value in measured(table).cells[row][column].values.items()
                }
                assert item.differences() == expected
                continue
            assert {row, name} <= set(find_table(table).rows)
            assert {column, other or column} <= set(find_table(table).columns)
            record = measured(table)
            assert record is not None
            first, second = record.cells[row][column].values, record.cells[name][other or column].values
            if item.less is None:
                expected = {seed: first[seed] - second[seed] for seed in first if seed in second}
                assert item.differences() == expected


def test_a_gain_may_be_less_another():
    item = next(item for _, item in ITEMS if item.less is not None and item.gain[3] == "noisy")
    cells = measured(item.gain[0]).cells
    noisy, plain = (
        {seed: cells["babn"][name].values[seed] - cells["soft"][name].values[seed] for seed in "012"}
        for name in ("noisy", "accuracy")
    )
    assert item.differences() == pytest.approx({seed: noisy[seed] - plain[seed] for seed in "012"})


def test_values_are_those_of_the_documentations_figures():
    text = claim_values.CLAIMS.read_text("utf-8")
    assert claim_values.updated(text) == text
    assert all(item.pick or item.gain or item.statement for _, item in ITEMS)
    assert all((DATA.parents[1] / item.source).is_file() for _, item in ITEMS if item.source)


def test_the_same_difference_by_hand():
    rows = json.loads((DATA / "methods.json").read_text())["methods"]["trec"]["rows"]
    babn, bam = (
        next(row for row in rows if (row["recipe"], row["variant"]) == (recipe, "point"))["gaps"]["accuracy"]
        for recipe in ("babn", "bam")
    )
    values = [100 * (one - other) for one, other in zip(babn["seeds"], bam["seeds"], strict=True)]
    assert list(claims()[2].evidence[2].values.values()) == pytest.approx(values, rel=1e-5, abs=1e-9)


def test_tables_name_claims_of_their_paper():
    for name, paper in papers().items():
        for key, table in paper.tables.items():
            assert all(claims()[number].paper == name for number in table.claims), (name, key)


@pytest.mark.parametrize("values", [(0.3, -0.2, 1.4), (0.1, 0.2, 0.4, 0.3, 0.9), tuple(range(10))])
def test_the_minimum_detectable_effect(values):
    freedom, scale = len(values) - 1, statistics.stdev(values) / len(values) ** 0.5
    expected = (stats.t.ppf(0.975, freedom) + stats.t.ppf(0.8, freedom)) * scale
    item = of(*values)
    assert item.detectable() == pytest.approx(expected)
    mean = item.mean()
    summary = {"mean": mean.mean, "low": mean.low, "high": mean.high, "seeds": mean.seeds}
    assert Evidence(summary=summary).detectable() == pytest.approx(expected)


def test_what_has_no_detectable_effect():
    assert of(1.0).detectable() is None
    assert statement("holds").detectable() is None
    assert of(1.0, 1.0).detectable() == 0


def test_outcomes():
    assert of(1.0, 1.1, 0.9).outcome() == "holds"
    assert of(1.0, 1.1, 0.9, better="lower").outcome() == "against"
    assert of(-1.0, -1.1, -0.9, better="lower").outcome() == "holds"
    assert of(-1.0, 1.1, 0.9).outcome() == "direction"
    assert of(1.0, -1.1, -0.9).outcome() == "no"
    assert of(0.0, 0.0).outcome() == "no"
    assert of(9.0).outcome() is None
    assert of(0.1, -0.1, 0.0, better="alike", margin=1).outcome() == "holds"
    assert of(3.0, -3.0, 0.1, better="alike", margin=1).outcome() == "direction"
    assert of(5.0, -1.0, 0.1, better="alike", margin=1).outcome() == "no"
    assert of(-5.0, -5.1, -4.9, better="alike", margin=1).outcome() == "against"
    assert statement("no").outcome() == "no"
    assert statement("holds", seeds=1).outcome() is None


def test_verdicts():
    holds, direction, no, against = (of(1.0, 1.1), of(-1.0, 1.1, 0.9), of(1.0, -1.1), of(-1.0, -1.1))
    assert judged() == "not measured"
    assert judged(of(1.0), statement("direction", seeds=1)) == "not measured"
    assert judged(holds, of(-9.0)) == "holds"
    assert judged(holds, statement("not measured")) == "direction"
    assert judged(statement("not measured")) == "not measured"
    assert judged(holds, direction) == "direction"
    assert judged(direction, direction, no) == "direction"
    assert judged(direction, no) == "no"
    assert judged(holds, holds, holds, against) == "no"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"values": {"0": 1.0}, "statement": "a", "shows": "no"},
        {"statement": "a"},
        {"values": {"0": 1.0}, "shows": "no"},
        {"values": {"0": 1.0}, "better": "alike"},
        {"values": {"0": 1.0}, "margin": 1.0},
    ],
)
def test_evidence_is_of_one_kind(fields):
    with pytest.raises(ValidationError, match="expected"):
        Evidence(**fields)


def test_counts_in_statements_are_those_of_the_figures():
    def shares(table, *rows, column="end"):
        return [round(20 * measured(f"ktiw/{table}").cells[row][column].values["0"]) for row in rows]

    said = {
        number: " ".join(item.statement for item in claims()[number].evidence) for number in (59, 60, 62, 64)
    }
    subsets, permuted, mixture = shares(
        "figure-3", "subsets_learned", "permutations_learned", "mixture_learned"
    )
    assert f"{permuted} of 20 runs learn permutations" in said[59]
    assert all(
        f"{subsets} of 20 runs learn sentences of 20 words from a set" in said[number] for number in (59, 60)
    )
    assert f"{mixture} of 20 runs learn the mixture" in said[60]
    heads = [re.search(r": (\d+) of 20", item.statement)[1] for item in claims()[62].evidence[:3]]
    counts = shares("figure-6", "bad_learned", "one_good_learned", "random_learned")
    assert heads == [str(count) for count in counts]
    cells = measured("ktiw/figure-6-release").cells
    bad, good, alone = (
        [round(20 * cells[row]["end"].values[seed]) for seed in ("0", "1", "2")]
        for row in ("bad_learned", "one_good_learned", "random_learned")
    )
    assert f"all bad {bad[0]}, {bad[1]} and {bad[2]} learn" in said[62]
    assert f"one good {good[0]}, {good[1]} and {good[2]}; Fisher's p at most 1.5e-4" in said[62]
    assert f"independently: {alone[0]}, {alone[1]} and {alone[2]} of 20 learn" in said[62]
    for first, others in zip(bad, zip(good, alone, strict=True), strict=True):
        tests = [stats.fisher_exact([[first, 20 - first], [number, 20 - number]]) for number in others]
        assert all(test.pvalue <= 1.5e-4 for test in tests)
    copied, ordered = shares("section-6.2", "learned_learned", "permuted_learned")
    assert f"{copied} of 20 runs" in said[64] and f"{ordered} of 20 the other" in said[64]
    assert shares("section-6.2", "learned_learned", column="110") == [20] and "within 110 updates" in said[64]
    for number, against, words in ((59, permuted, "0.008"), (62, counts[1], "0.60"), (62, counts[2], "0.09")):
        first = subsets if number == 59 else counts[0]
        p = stats.fisher_exact([[first, 20 - first], [against, 20 - against]]).pvalue
        assert round(p, len(words) - 2) == float(words) and words in said[number]
    keyword, last = (
        ("one_direction_largest_keyword", "two_directions_largest_keyword"),
        "one_direction_largest_last",
    )
    assert shares("figure-7", *keyword, column="20") == [20, 20]
    assert [shares("figure-7", last, column=step) for step in ("60", "240", "500", "end")] == [
        [20],
        [20],
        [20],
        [17],
    ]
    assert shares("figure-7", keyword[1]) == [20]


def test_times_in_statements_are_those_of_the_figures():
    def trained(name):
        results = json.loads((DATA / name).read_text())["results"]
        return {run["variant"]: run for run in results if run["kind"] == "train"}

    said = {
        number: " ".join(item.statement for item in claims()[number].evidence) for number in (9, 16, 32, 38)
    }
    two_cores, gpu = trained("benchmark.json"), trained("benchmark_cuda.json")
    assert (
        f"{two_cores['BABN']['ratio']['median']:.2f} times as long as with soft attention on two" in said[16]
    )
    assert f"{gpu['BABN']['ratio']['median']:.2f} times as long as with soft attention on an" in said[16]
    assert f"{100 * two_cores['BABN']['parameters']:.2f}% more" in said[16]
    for costs in (two_cores, gpu):
        gan, ct, ot = (costs[f"aligned, {name}"] for name in ("GAN", "CT", "OT"))
        words = f"{gan['ratio']['median']:.2f} times as long with GAN and {ct['ratio']['median']:.2f} with CT"
        assert words in said[32]
        assert gan["ratio"]["median"] < ct["ratio"]["median"] < ot["ratio"]["median"]
    latent, heads = (measured(key).cells for key in ("babn/table-4", "rma/table-2a"))
    for name in ("base", "babn", "va_enum"):
        assert f"{latent[name]['parameters'].values['0']:.3f}" in said[9]
    for name in ("babn", "va_enum", "va_sample"):
        assert f"{latent[name]['seconds'].values['0']:.3f}" in said[9]
    high, low = (
        latent[name]["seconds"].source.split()[place] for name, place in (("babn", -1), ("va_sample", -3))
    )
    assert float(high) < float(low)
    for name in ("rma", "r"):
        assert f"{heads[name]['seconds'].values['0'] / heads['ma']['seconds'].values['0']:.3f}" in said[38]


def test_the_rise_and_fall_in_statements_are_those_of_the_figures():
    cells = measured("ktiw/section-a.7").cells
    courses = {
        name: [[row[name].values[str(seed)] for row in cells.values() if name in row] for seed in range(3)]
        for name in ("sst", "bbc", "imdb", "multi30k")
    }
    assert all(8.9 < course[-1] < 11 and max(course) > 29 for course in courses["sst"])
    assert all(course[-1] < max(course) / 2 and course[1] == max(course) for course in courses["bbc"])
    assert sum(course[-1] == max(course) for course in courses["imdb"]) == 2
    assert all(0 < max(course) - course[-1] <= 0.45 for course in courses["multi30k"])


def test_the_list_fits_a_terminal(command):
    text = claims_sheet().text(80)
    assert all(len(line) <= 80 for line in text.splitlines())
    shown = command("reproduce", "claims").output
    for claim in claims().values():
        assert claim.verdict in shown
    assert "+0.1 [-1.0, +1.2]" in text
