"""The page on a comparison and its table, of results that no run made."""

import itertools
import math
import re
from xml.etree import ElementTree as ET

import pytest
from pydantic import ValidationError

from probattn.comparison import ComparisonResults
from probattn.comparison.page import _frontier, comparison_table, headline, page, row_title
from probattn.comparison.variants import Interval, Row
from probattn.report import Comparison

BETTER = Comparison(
    model="draws", value=0.2, low=0.1, high=0.3, p=1e-4, corrected=1e-3, seeds=(0.2, 0.2, 0.2)
)
WORSE = BETTER.model_copy(update={"value": -0.2, "low": -0.3, "high": -0.1, "seeds": (-0.2, -0.2, -0.2)})
UNCLEAR = BETTER.model_copy(update={"corrected": 0.2})
SIZES = {"train": 12345, "validation": 100, "test": 2000, "out_of_domain": 3000}


def interval(mean, low=None, high=None):
    return Interval(mean=mean, low=low, high=high, seeds=1 if low is None else 3)


def row(recipe, variant, cost, coverage=None, gaps=(), **options):
    values = {} if coverage is None else {"coverage": interval(*coverage)}
    return Row(recipe=recipe, variant=variant, cost=interval(cost), values=values, gaps=dict(gaps), **options)


def results(*rows, **options):
    fields = {
        "error": 0.05,
        "reference": ("one", "point"),
        "methods": {"one": "deterministic", "a longer one": "BABN"},
        "data": "texts of films",
        "sizes": SIZES,
        "seeds": (0, 1, 2),
        "set": ("data.train=trec",),
        "versions": {"torch": "2.9"},
        "rows": rows,
    }
    return ComparisonResults(**(fields | options))


@pytest.fixture
def several():
    return results(
        row("one", "point", 1.0, (0.5, 0.44, 0.56)),
        row("one", "maximum", 1.0),
        row("one", "dropout", 20.0, (0.46,)),
        row("a longer one", "point", 0.9, (0.52, 0.5, 0.54)),
        row("a longer one", "moments", 2.5, (0.6, 0.1, 0.99), closed_form=0.25),
        row("a longer one", "draws", 20.0, (0.56,)),
        row("a longer one", "draws_temperature", 20.0, (0.62,)),
    )


def drawn(results):
    """The elements of the chart of coverage, by tag and first class."""
    root = ET.fromstring(_frontier(results, "coverage", "Coverage"))
    return root, lambda tag, css: [it for it in root if it.tag == tag and it.get("class", "").startswith(css)]


def numbers(element, *names):
    return [float(element.get(name)) for name in names]


def test_a_chart_has_a_dot_a_way_at_its_cost_and_its_measure(several):
    """By the ticks of the axes: costs are on a logarithmic scale, shares on a linear one."""
    _, elements = drawn(several)
    ticks = {
        (it.get("text-anchor"), it.text.rstrip("%")): numbers(it, "x", "y") for it in elements("text", "tick")
    }
    costs = {float(cost): x for (anchor, cost), (x, _) in ticks.items() if anchor == "middle"}
    shares = {float(share): y - 4 for (anchor, share), (_, y) in ticks.items() if anchor == "end"}
    assert [*costs] == [1, 2, 5, 10, 20] and [*shares] == [45, 50, 55, 60, 65]
    one, decade, height = costs[1], costs[10] - costs[1], (shares[50] - shares[60]) / 10
    assert costs[2] == pytest.approx(one + math.log10(2) * decade, abs=0.02)
    expected = [("det", "one, one pass", 1.0, 0.5), ("det", "one, dropout draws", 20.0, 0.46)]
    expected += [
        ("bay", "a longer one, one pass", 1.0, 0.52),  # what costs less than a pass stands at one
        ("bay", "a longer one, moments, 25% in closed form", 2.5, 0.6),
        ("bay", "a longer one, draws, temperature", 20.0, 0.62),  # of equal costs the best first
        ("bay", "a longer one, posterior draws", 20.0, 0.56),
    ]
    dots = elements("circle", "dot")
    assert len(dots) == len(expected)
    for dot, (style, words, cost, share) in zip(dots, expected, strict=True):
        assert dot.get("class") == f"dot {style}" and dot.get("r") == "3"
        assert dot[0].text == f"{words}: {100 * share:.1f}%"
        x, y = numbers(dot, "cx", "cy")
        assert x == pytest.approx(one + math.log10(cost) * decade, abs=0.02)
        assert y == pytest.approx(shares[50] - (100 * share - 50) * height, abs=0.02)


def test_a_line_goes_through_what_no_cheaper_way_exceeds(several):
    """To the right edge, where its name stands; the thin lines are intervals as far as the drawing reaches."""
    root, elements = drawn(several)
    assert root.get("viewBox") == "0 0 420 280"
    assert root.get("aria-label").startswith("Coverage against cost. one; a")
    right = 420 - (20 + 8 * len("a longer one"))
    low, high = 0.46 - 0.3 * 0.16, 0.62 + 0.3 * 0.16  # 30% of the range beyond the extreme means
    widest = math.log10(1.2 * 20) + 0.05

    def at(cost, share):
        x = 44 + (math.log10(cost) + 0.05) / (widest + 0.05) * (right - 44)
        return x, 240 - (share - low) / (high - low) * 214

    def points(path):
        return [float(value) for pair in re.split("[ML]", path.get("d"))[1:] for value in pair.split()]

    def flat(*pairs):
        return pytest.approx([value for pair in pairs for value in pair], abs=0.02)

    one, other = elements("path", "line")
    assert (one.get("class"), other.get("class")) == ("line det", "line bay")
    for path, corners in (
        (one, [at(1, 0.5), (right, at(1, 0.5)[1])]),
        (other, [at(1, 0.52), at(2.5, 0.6), at(20, 0.62), (right, at(1, 0.62)[1])]),
    ):
        assert points(path) == flat(*corners)
    whiskers = elements("path", "leader")
    assert [it.get("class") for it in whiskers] == ["leader det", "leader bay", "leader bay"]
    for path, ends in zip(
        whiskers,
        ([at(1, 0.44), at(1, 0.56)], [at(1, 0.5), at(1, 0.54)], [at(2.5, low), at(2.5, high)]),
        strict=True,
    ):
        assert points(path) == flat(*ends)
    labels = elements("text", "end-label")
    expected = [("one", "end-label det"), ("a longer one", "end-label bay")]
    assert [(it.text, it.get("class")) for it in labels] == expected
    for label, share in zip(labels, (0.5, 0.62), strict=True):
        assert numbers(label, "x", "y") == pytest.approx([right + 8, at(1, share)[1] + 4], abs=0.02)


def test_labels_at_one_height_do_not_touch_and_stay_inside():
    """Of four recipes; a fifth has the first colour again, and one without such data no line."""
    names = [f"recipe {number}" for number in range(6)]
    same = results(
        *(row(name, "point", 1.0, (0.5,)) for name in names[:5]),
        row(names[5], "point", 1.0),
        methods=dict.fromkeys(names, "BABN"),
        reference=("recipe 0", "point"),
    )
    _, elements = drawn(same)
    heights = sorted(float(it.get("y")) for it in elements("text", "end-label"))
    assert [b - a for a, b in itertools.pairwise(heights)] == pytest.approx([14] * 4, abs=0.02)
    expected = [f"line {style}" for style in ("det", "bay", "exp", "mom", "det")]
    assert [it.get("class") for it in elements("path", "line")] == expected
    grid = [it.text for it in elements("text", "tick") if it.text.endswith("%")]
    assert {"49%", "50%", "51%"} & {*grid} and all(49 <= float(it[:-1]) <= 51 for it in grid)  # equal means


def test_shares_of_a_drawing_are_between_none_and_all():
    rows = [
        row(name, "point", 1.0, (share,)) for name, share in zip("abcd", (0.0, 0.0, 1.0, 1.0), strict=True)
    ]
    _, elements = drawn(results(*rows, methods=dict.fromkeys("abcd", "BABN")))
    assert [float(it.get("cy")) for it in elements("circle", "dot")] == [240, 240, 26, 26]
    assert sorted(float(it.get("y")) for it in elements("text", "end-label")) == [30, 44, 230, 244]


def test_few_shares_are_marked_and_areas_are_no_percentages():
    rows = [row("one", "point", 1.0, (0.46,)), row("one", "draws", 20.0, (0.64,))]
    areas = [item.model_copy(update={"values": {"auroc": item.values["coverage"]}}) for item in rows]
    for measure, measured, labels in (("coverage", rows, ["50", "60%"]), ("auroc", areas, ["0.5", "0.6"])):
        root = ET.fromstring(_frontier(results(*measured), measure, "title"))
        marks = [it.text for it in root if it.get("class") == "tick" and it.get("text-anchor") == "end"]
        assert marks == labels


def test_costs_are_marked_up_to_a_hundred_passes():
    for most, last in ((120.0, 7), (30.0, 5), (34.0, 6)):  # up to half as much again as the largest
        _, elements = drawn(results(row("one", "point", 1.0, (0.5,)), row("one", "draws", most, (0.6,))))
        marks = [it.text for it in elements("text", "tick") if it.get("text-anchor") == "middle"]
        assert marks == ["1", "2", "5", "10", "20", "50", "100"][:last]


def test_a_page_says_what_was_compared(several):
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page(several).split("</style>")[-1]))
    text = text.replace(" &nbsp; ", " ").replace("&nbsp;", " ")
    for words in (
        "one against a longer one",
        "Differences are to one, one pass, paired by seed.",
        "Data texts of films",
        "Trained on 12,345 texts",
        "Measured on 2,000 texts",
        "Seeds 3",
        "Coverage at 5% error",
        "Keys of all recipes data.train=trec",
        "Seeds 0, 1, 2",
        "torch 2.9",
        "a longer one BABN",
    ):
        assert words in text, words
    places = [text.index(words) for words in ("Quality against cost", "All figures", "The runs")]
    assert places == sorted(places)
    assert "AUROC of out-of-distribution inputs" not in text
    assert re.search(r"moments, 25% in closed form +60\.0% +2\.5", text)
    assert re.search(r"maximum probability \(OOD\) +– +1\.0", text)  # no value, and no gap


def test_cells_have_the_gap_to_the_reference():
    some = results(
        row("one", "point", 1.0, (0.5,)),
        row("one", "laplace", 1.0, (0.7,), {"coverage": BETTER}),
        row("one", "draws", 20.0, (0.3,), {"coverage": WORSE}),
        row("one", "moments", 2.5, (0.75,), {"coverage": UNCLEAR}, closed_form=1.0),
    )
    text = page(some)
    verdicts = re.findall(r'(\d\d\.\d)%</data><span class="gap (\w+)"><b><data value="([^"]+)"', text)
    assert verdicts == [("70.0", "better", "0.2"), ("30.0", "worse", "-0.2"), ("75.0", "unclear", "0.2")]
    words = "one, Laplace, last layer, has significantly more coverage at 5% error: 70.0% of the texts"
    assert headline(some) == words and words in text
    nothing = "No prediction method has significantly more coverage at 5% error than the reference"
    assert headline(results(*some.rows[2:])) == nothing
    best = some.rows[1].model_copy(update={"variant": "draws", "values": {"coverage": interval(0.71)}})
    assert headline(results(*some.rows, best)).startswith("one, posterior draws, has significantly")
    table = comparison_table(some)
    assert table.headings == ("", "coverage", "cost")
    assert [cells for group in table.groups for cells in group.rows] == [
        ("one pass", "50.0% ", "1.0"),
        ("Laplace, last layer", "70.0%*", "1.0"),
        ("posterior draws", "30.0%*", "20.0"),
        ("moments", "75.0% ", "2.5"),
    ]


def test_a_table_has_a_group_for_each_recipe_and_says_what_its_numbers_are(several):
    table = comparison_table(several)
    assert [group.title for group in table.groups] == ["one: deterministic", "a longer one: BABN"]
    assert [len(group.rows) for group in table.groups] == [3, 4]
    assert table.groups[0].rows[1] == ("maximum probability (OOD)", "", "1.0")
    assert row_title(several.rows[4]) == "moments, 25% in closed form"
    meaning, mark = table.notes
    assert meaning.startswith("Means over 3 seeds; cost in passes of one.") and "at most 5% wrong" in meaning
    assert mark.startswith("* marks significant differences to one, one pass, for these test texts")
    measured = several.rows[0].model_copy(
        update={"values": {name: interval(0.5) for name in ("nll", "aurc", "ece")}}
    )
    assert comparison_table(results(measured)).headings == ("", "NLL", "ECE", "cost")


def test_records_of_a_comparison_refuse_what_is_no_error():
    for error in (0.0, 1.0):
        with pytest.raises(ValidationError, match="error"):
            results(error=error)
    assert row("one", "draws", 1.0).closed_form is None


def test_what_costs_more_and_reaches_as_much_is_no_corner_of_the_line():
    _, elements = drawn(
        results(row("one", "point", 1.0, (0.5, 0.4, 0.6)), row("one", "draws", 20.0, (0.5, 0.4, 0.6)))
    )
    (line,) = elements("path", "line")
    assert line.get("d").count("L") == 1 and len(elements("path", "leader")) == 1
