"""Drawings put marks where the numbers say, whatever the numbers are."""

import base64
import itertools
import math
import re
import struct
import zlib
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probattn.report import lines
from probattn.report.markup import grey_png, heatmap, shown
from probattn.report.record import Curve, Entropy, PAvPUPoint, ReliabilityBin, RiskCoverage
from probattn.report.svg import (
    Axis,
    bar_glyph,
    draws_glyph,
    interval_glyph,
    number,
    path,
    printable,
    spread_labels,
)

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def marks(svg: str, tag: str, css: str) -> list[ET.Element]:
    return [element for element in ET.fromstring(svg).iter(tag) if css in element.get("class", "").split()]


def points(element: ET.Element) -> list[tuple[float, float]]:
    numbers = [float(value) for value in NUMBER.findall(element.get("d", ""))]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def bin_at(low: float, accuracy: float, count: int = 10) -> ReliabilityBin:
    return ReliabilityBin(
        low=low,
        high=round(low + 0.1, 1),
        count=count,
        confidence=low + 0.05,
        accuracy=accuracy,
        accuracy_low=max(accuracy - 0.1, 0),
        accuracy_high=min(accuracy + 0.1, 1),
    )


def test_a_calibrated_bin_lies_on_the_diagonal() -> None:
    svg = lines.reliability_chart([bin_at(0.5, 0.55), bin_at(0.9, 0.8, count=30)], 0.4, "bay", "Reliability")
    (start, end) = points(marks(svg, "path", "diagonal")[0])
    calibrated, overconfident = (
        (float(dot.get("cx")), float(dot.get("cy"))) for dot in marks(svg, "circle", "dot")
    )

    def diagonal(x: float) -> float:
        return start[1] + (x - start[0]) / (end[0] - start[0]) * (end[1] - start[1])

    assert calibrated[1] == pytest.approx(diagonal(calibrated[0]), abs=0.02)
    assert overconfident[1] > diagonal(overconfident[0]) + 10  # below it: pixels grow downwards
    heights = [float(bar.get("height")) for bar in marks(svg, "rect", "bar")]
    assert heights[1] == pytest.approx(3 * heights[0], rel=0.01)


def test_diagrams_side_by_side_share_their_floor() -> None:
    assert lines.common_floor([[bin_at(0.5, 0.55)], [bin_at(0.5, 0.42)]]) == 0.3
    assert lines.common_floor([]) == 0.0


@pytest.mark.parametrize(
    ("gain", "low", "high"), [(0.2, 0.1, 0.3), (-0.2, -0.3, -0.1), (0.0, -1e-9, 1e-9), (0, 0, 0)]
)
def test_gains_lie_to_the_right_of_the_line(gain: float, low: float, high: float) -> None:
    svg = interval_glyph(gain, low, high, "better", "t")
    zero = float(marks(svg, "line", "zero")[0].get("x1"))
    mark = float(marks(svg, "circle", "mark")[0].get("cx"))
    interval = marks(svg, "line", "range")[0]
    assert (mark > zero) == (gain > 0)
    assert (mark < zero) == (gain < 0)
    assert float(interval.get("x1")) <= mark <= float(interval.get("x2"))


def test_draws_lie_between_0_and_1() -> None:
    svg = draws_glyph((0.0, 0.25, 1.0), 0.4, 0.5, "t")
    xs = [float(dot.get("cx")) for dot in marks(svg, "circle", "draw")]
    assert xs[1] - xs[0] == pytest.approx((xs[2] - xs[0]) / 4)
    assert float(marks(svg, "line", "mean")[0].get("x1")) == pytest.approx(xs[0] + 0.4 * (xs[2] - xs[0]))
    assert len(marks(svg, "path", "baseline")) == 1
    assert not marks(draws_glyph((0.1,), 0.1, None, "t"), "path", "baseline")
    assert 'width="1"' in bar_glyph(0.0, 0.0, "t")


def test_an_entropy_curve_rises_from_0_to_1() -> None:
    quantiles = tuple(math.log(3) * (index / 100) ** 2 for index in range(101))
    svg = lines.entropy_chart([("in domain", "in", Entropy(mean=0.4, quantiles=quantiles))], 3, "t")
    line = points(marks(svg, "path", "line")[0])
    assert line == sorted(line, key=lambda point: (point[0], -point[1]))
    xs, ys = zip(*line, strict=True)
    middle = line[51]  # the median, after the starting point
    assert middle[0] - xs[0] == pytest.approx((xs[-1] - xs[0]) / 4, abs=0.02)
    assert middle[1] == pytest.approx((max(ys) + min(ys)) / 2, abs=0.02)


def test_risk_starts_where_it_means_something() -> None:
    coverage = tuple((index + 1) / 100 for index in range(100))
    svg = lines.risk_chart([("a", "det", RiskCoverage(coverage=coverage, risk=(1.0, *(0.2,) * 99)))], "t")
    line = points(marks(svg, "path", "line")[0])
    assert len(line) == 96  # from 5% on
    assert len({y for _, y in line}) == 1


def test_pavpu_noise_is_not_magnified() -> None:
    curve = [PAvPUPoint(threshold=t, value=v, certain=0.5) for t, v in ((0.01, 0.74), (0.05, 0.75))]
    (low, high) = (
        float(dot.get("cy")) for dot in marks(lines.pavpu_chart([("a", "bay", curve)], "t"), "circle", "dot")
    )
    assert 0 < low - high < 20


@pytest.mark.parametrize("values", [(0.5,), (1.0, 1.0), (-1e6, 1e6), (0.0, 1e-9)])
def test_training_curves_of_any_size_stay_inside(values: tuple[float, ...]) -> None:
    curve = Curve(
        model="deterministic", name="loss", kind="train", steps=tuple(range(len(values))), values=values
    )
    svg = lines.training_chart([("a", "det", curve)], "t", "nats")
    _, _, width, height = map(float, ET.fromstring(svg).get("viewBox").split())
    assert all(0 <= x <= width and 0 <= y <= height for x, y in points(marks(svg, "path", "line")[0]))


@given(st.lists(st.floats(0, 200), min_size=1, max_size=6))
def test_labels_part_and_keep_their_order(positions: list[float]) -> None:
    placed = spread_labels(positions, 14, 0, 200)
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    for one, other in itertools.pairwise(order):
        assert placed[other] - placed[one] >= 14 - 1e-6
    assert min(placed) >= -1e-6
    assert max(placed) <= 200 + 1e-6


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 8))
def test_ticks_are_round_inside_and_told_apart(low: float, span: float, wanted: int) -> None:
    marked = lines.ticks(low, low + span, wanted)
    assert 1 <= len(marked) <= 2.5 * wanted + 1
    assert all(low - 1e-6 * span <= value <= low + span * (1 + 1e-6) for value, _ in marked)
    assert len({label for _, label in marked}) == len(marked)
    assert f"{lines.nice_step(span / wanted):e}"[0] in "125"


def test_numbers_are_written_with_the_digits_they_need() -> None:
    assert lines.ticks(0, 1, 4, percent=True)[::5] == ((0.0, "0"), (1.0, "100%"))
    assert [label for _, label in lines.ticks(0, 1500, 3)] == ["0", "500", "1,000", "1,500"]
    words = [lines.number_word(value) for value in (1500.0, 0.05, 12345.5, 2.5e-7, -3.0)]
    assert words == ["1,500", "0.05", "12,345.5", "2.5e-07", "\N{MINUS SIGN}3"]
    assert (lines.nice_step(0.25), lines.nice_step(375), lines.nice_top(0.217)) == (0.2, 500.0, 0.25)
    assert (number(3.0), number(0.126), number(-0.001)) == ("3", "0.13", "0")
    assert path([(0, 0), (1.25, 2)]) == "M0 0L1.25 2"
    expected = ("film", "uncharacte\N{HORIZONTAL ELLIPSIS}")
    assert (shown("\u0120film"), shown("uncharacteristically")) == expected


def test_runs_are_thin_and_their_median_is_thick() -> None:
    svg = lines.runs_chart([lines.Group("a", "bay", (0, 10), ((0.0, None), (1.0, 0.5)))], "Accuracy", "share")
    (first, second), (middle,) = marks(svg, "path", "thin"), marks(svg, "path", "middle")
    assert [len(points(each)) for each in (first, second, middle)] == [2, 1, 2]
    top, bottom = points(first)[1][1], points(first)[0][1]
    assert points(middle)[1][1] == pytest.approx(top + (bottom - top) / 4, abs=0.02)


def decoded(url: str) -> list[list[int]]:
    png = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    place, chunks = 8, {}
    while place < len(png):
        (length,) = struct.unpack(">I", png[place : place + 4])
        name, data = png[place + 4 : place + 8], png[place + 8 : place + 8 + length]
        expected = zlib.crc32(name + data)
        assert struct.unpack(">I", png[place + 8 + length : place + 12 + length])[0] == expected
        chunks[name] = data
        place += 12 + length
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour) == (8, 0)
    raw = zlib.decompress(chunks[b"IDAT"])
    assert len(raw) == height * (width + 1)
    return [list(raw[row * (width + 1) + 1 : (row + 1) * (width + 1)]) for row in range(height)]


def test_the_picture_holds_the_map() -> None:
    assert decoded(grey_png([[0.0, 0.25, 0.5], [1.0, 0.1, 0.5]], 0.5)) == [[0, 128, 255], [255, 51, 255]]
    assert decoded(grey_png([[0.0]], 0.0)) == [[0]]


@pytest.mark.parametrize(("tokens", "labels"), [(5, 5), (64, 64), (65, 4), (200, 10)])
def test_long_inputs_have_positions_for_labels(tokens: int, labels: int) -> None:
    names = [f"t{index}" for index in range(tokens)]
    svg = heatmap(names, names, [[0.1] * tokens] * tokens, 0.1, "mean", "t")
    assert len(marks(svg, "text", "token")) == 2 * labels


def test_labels_keep_the_whole_token_at_hand() -> None:
    svg = heatmap(["<script>", "donaudampfschifffahrt"], ["a"], [[0.5], [0.5]], 0.5, "ratio", "t")
    first, second, third = marks(svg, "text", "token")
    assert first.text == "<script>"
    assert "&lt;script&gt;" in svg
    assert second.text == "donaudampf…"
    assert second.find("title").text == "donaudampfschifffahrt"
    assert third.find("title") is None


@given(st.text(max_size=40))
def test_any_text_makes_a_label(token: str) -> None:
    label = shown(token)
    assert label
    assert len(label) <= 11
    svg = heatmap([token], [token], [[0.5]], 0.5, "mean", token)
    assert ET.fromstring(svg).get("aria-label") == printable(token)


@pytest.mark.parametrize("label", ["deterministic", "a condition of many letters"])
def test_labels_and_large_numbers_have_room_beside_the_plot(label: str) -> None:
    """In a font whose letters are 8 pixels wide, and its digits 7.7."""
    numbers = ((0.0, "0"), (210_000.0, "210,000"))
    root = ET.fromstring(
        lines.line_chart(
            [lines.Line(label, "det", ((0, 0), (1, 2e5)))],
            Axis(0, 1, "step", ()),
            Axis(0, 2.1e5, "nats", numbers),
            "t",
        )
    )
    width = float(root.get("viewBox").split()[2])
    texts = {text.text: float(text.get("x")) for text in root.iter() if text.tag.endswith("text")}
    assert texts[label] + 8 * len(label) <= width
    assert texts["210,000"] - 7.7 * len("210,000") >= 0


@pytest.mark.parametrize("label", ["det", "deterministic attention"])
@given(
    st.lists(
        st.sampled_from([0.0001, 0.001, 0.01, 0.05, 0.1, 0.2, 0.25, 0.5, 0.875]), min_size=2, unique=True
    )
)
def test_tick_labels_do_not_touch(label: str, thresholds: list[float]) -> None:
    """By the widths of DejaVu Sans at 12 pixels, 7.6 a digit and 3.8 a point; marks without a label have a hint."""
    points = [PAvPUPoint(threshold=value, value=0.5, certain=0.5) for value in sorted(thresholds)]
    root = ET.fromstring(lines.pavpu_chart([(label, "det", points)], "PAvPU"))
    base = max(float(text.get("y", 0)) for text in root.iter("text") if text.get("class") == "tick")
    spans = []
    for text in root.iter("text"):
        if text.get("class") == "tick" and float(text.get("y", 0)) == base:
            words = text.text or ""
            half = sum(3.8 if sign == "." else 7.6 for sign in words) / 2
            spans.append((float(text.get("x", 0)) - half, float(text.get("x", 0)) + half))
    assert spans and all(first[1] + 2 < second[0] for first, second in itertools.pairwise(sorted(spans)))
    hints = [mark for mark in root.iter("line") if mark.get("class") == "tickmark" and len(mark)]
    assert len(spans) + len(hints) == len(thresholds)
