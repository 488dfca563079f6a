"""The page stands alone, shows what metrics.json holds, and survives any text and any missing part."""

import base64
import html
import json
import os
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from probattn.inference import Explanation, Word
from probattn.report import evaluation
from probattn.report.attention import attention_example
from probattn.report.markup import breakable, site_labels
from probattn.report.measures import CLASS_MEASURES
from probattn.report.page import RAMPS, duration, render_report
from probattn.report.record import MODELS, SINGLE, Curve, DataSet, RunDescription
from probattn.report.results import Results, write_results
from probattn.report.sites import EDGE_MEASURES, SiteHealth
from probattn.report.summary import headline
from probattn.report.svg import isolated
from probattn.report.terminal import results_table
from probattn.report.words import WordsExample
from probattn.terminal import printable

VOID = {"meta", "link", "br", "input", "wbr"}
ALONE = [
    ("words", "Words"),
    ("findings", "Findings"),
    ("compare", "Comparison"),
    ("calibration", "Calibration"),
    ("entropy", "OOD inputs"),
    ("selective", "Selective prediction"),
    ("attention", "Attention"),
    ("alignment", "Queries and keys"),
    ("heads", "Heads"),
    ("edges", "Edges"),
    ("examples", "Inputs"),
    ("posterior", "Posterior"),
    ("dynamics", "Dynamics"),
    ("training", "Training"),
    ("run", "Run"),
]
"""Sections of the page of one run."""
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"'"


class Page(HTMLParser):
    """What the tests look at: elements with their attributes, text and the nesting of tags."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.data: list[tuple[str, str]] = []
        self.inside: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == [], "unclosed elements"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.inside.setdefault(tag, []).append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.inside[tag][-1] += data
        if "data" in self.open:
            self.data.append((self.elements[-1][1]["value"], data))

    def all(self, tag: str, css: str = "") -> list[dict[str, str | None]]:
        return [
            a
            for name, a in self.elements
            if name == tag and (not css or css in (a.get("class") or "").split())
        ]

    def sections(self) -> list[str]:
        return [attributes["id"] for attributes in self.all("section")]


@pytest.fixture(scope="module")
def text(results: Results) -> str:
    return render_report(results)


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_page_needs_nothing_but_itself(text: str, page: Page) -> None:
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "srcset", "poster", "data"):
            target = attributes.get(name)
            assert target is None or target.startswith(("#", "data:")), (tag, target)
        assert not any(name.startswith("on") for name in attributes)
    for forbidden in ("http:", "https:", "//cdn", "@import", "fetch(", "XMLHttpRequest", "sendBeacon"):
        assert forbidden not in text
    assert set(re.findall(r"url\((.)", text)) == {"#"}
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_every_section_and_figure_is_there(page: Page, results: Results) -> None:
    assert page.sections() == [name for name, _ in ALONE]
    links = [a["href"] for a in page.all("a") if not a["href"].startswith("#bin-")]
    assert links == [f"#{name}" for name, _ in ALONE]
    spoken = [a["aria-label"] for a in page.all("svg") if a.get("role") == "img"]
    for start, count in {
        "Reliability, ": 6,  # three models, two labelled sets
        "Predictive entropy, ": 3,
        "Risk against coverage, ": 2,
        "PAvPU, ": 2,
        "Loss during training": 1,
        "KL from the prior during training": 1,
        "Posterior mean of the attention weights": 3,
        "Standard deviation over mean of the attention weights": 3,
        "Probability of ": 12 + len(results.binned),
        "Attention agrees with the probe": 1,
        "Attention by step": 1,
        "Probe by step": 1,
        "spread ": 6,
    }.items():
        assert sum(label.startswith(start) for label in spoken) == count, start
    assert len(page.all("svg", "glyph")) == 18  # a difference each: 7 + 9 + 2 measures
    assert len(page.all("article", "card")) == 12 + len(results.binned)
    assert all(a.get("aria-label") for a in page.all("svg") if a.get("role") == "img")


def test_the_numbers_are_those_of_metrics_json(page: Page, results: Results, tmp_path: Path) -> None:
    content = json.loads(write_results(results, tmp_path / "metrics.json").read_text(encoding="utf-8"))
    shown = [(float(value), words) for value, words in page.data]
    values = {value for value, _ in shown}
    for score in content["scores"]:
        for measure, value in score["values"].items():
            known = value in values or measure not in CLASS_MEASURES
            assert value is None or known, (score["model"], score["data"], measure)
    for difference in content["differences"]:
        assert {difference["value"], difference["low"], difference["high"]} <= values
    for site in content["health"]:
        assert {site["spread"], site["kl_nats"], site["kl_reduced"], site["concentration"]} <= values
    for layer in content["edges"]:
        assert {layer[name] for name in EDGE_MEASURES} <= values
    for example in content["uncertain"] + content["mistakes"]:
        assert {example["probability"], example["spread"], example["baseline_probability"]} <= values


def test_the_words_are_the_numbers_rounded(page: Page) -> None:
    assert len(page.data) > 150
    for value, words in page.data:
        number = words.replace("\N{MINUS SIGN}", "-").replace(",", "").rstrip("%")
        number = number.removesuffix(" points").removesuffix(" nats")
        half = 0.5001 * 10.0 ** -len(number.partition(".")[2])
        assert any(abs(scale * float(value) - float(number)) <= half for scale in (1, 100)), (value, words)
        assert number != "-0.0"


def payloads(page: Page) -> list[dict]:
    """Numbers of maps for the script."""
    return [json.loads(block) for block in page.inside["script"] if block.startswith("{")]


def unpacked(words: str, scale: int) -> list[float]:
    raw = base64.b64decode(words)
    return [value / scale for value in struct.unpack(f"<{len(raw) // 2}H", raw)]


def test_the_script_gets_the_maps_to_the_last_digit(page: Page, results: Results) -> None:
    found = payloads(page)
    assert len(found) == len(results.attention)
    for payload, example in zip(found, results.attention, strict=True):
        assert (tuple(payload["queries"]), tuple(payload["keys"])) == (example.queries, example.keys)
        for entry, item in zip(payload["maps"], example.maps, strict=True):
            assert entry["site"] == item.site
            assert entry["head"] == ("average" if item.head is None else str(item.head))
            assert unpacked(entry["mean16"], 10_000) == [value for row in item.mean for value in row]
            assert unpacked(entry["ratio16"], 1_000) == [value for row in item.ratio for value in row]


def test_words_are_marked_with_their_side_and_what_they_change(page: Page, results: Results) -> None:
    marked = [a for a in page.all("span") if (a.get("class") or "").startswith("word ") and a.get("title")]
    expected = [
        (f"word {'for' if word.change > 0 else 'against'}", abs(word.change), item)
        for item in results.words
        for word in item.explanation.words
        if word.change is not None and abs(word.change) >= 0.01
    ]
    assert [a["class"] for a in marked] == [side for side, _, _ in expected] and len({*expected}) > 6
    for element, (_, change, item) in zip(marked, expected, strict=True):
        largest = max(abs(word.change) for word in item.explanation.words if word.change is not None)
        assert element["style"] == f"--w:{change / largest:.3f}"
        assert f"{100 * change:.0f} points" in element["title"]


def test_texts_stay_whole_and_words_that_lead_have_a_row(text: str, results: Results) -> None:
    section = text[text.index('<section id="words"') :]
    for item in results.words:
        paragraph = re.search('<p class="words".*?</p>', section, re.DOTALL)[0]
        section = section[section.index(paragraph) + len(paragraph) :]
        assert html.unescape(re.sub("<[^>]*>", "", paragraph)) == item.explanation.texts[0]
        rows = {
            re.sub("<[^>]*>", "", row).strip().split(chr(10))[0]
            for row in re.findall("<tr>.*?</tr>", section[: section.index("</details>")], re.DOTALL)
        }
        leading = item.explanation.words_for() + item.explanation.words_against()
        for word in leading:
            left = item.explanation.probability - word.change
            assert any(
                row.startswith(
                    f"{item.explanation.name_of(word)}{100 * word.change:+.0f} points".replace(
                        "-", "\N{MINUS SIGN}"
                    )
                )
                and f"{left:.0%}" in row
                and (word.answer is None or isolated(word.answer) in row)
                for row in rows
            )
    quiet = results.words[0].explanation
    quiet = replace(quiet, words=tuple(replace(word, change=0.0, doubt=0.0) for word in quiet.words))
    item = results.words[0].model_copy(update={"explanation": quiet})
    assert "No word changes the probability" in render_report(changed(results, words=(item,)))


def test_the_first_map_stands_without_script(page: Page, results: Results) -> None:
    of_heads = len(results.heads.rows) + len(results.heads.sites)  # the page's other maps
    of_courses = 2 * sum(len(item.maps) for item in results.dynamics)
    drawn = 2 * len(results.attention) + of_heads + of_courses
    assert len(page.all("image", "map-picture")) == drawn
    shades = [a["style"] for a in page.all("span", "tok")]
    assert len(shades) == sum(len(item.keys) for item in results.attention)
    assert shades.count("--w:1.000") == len(results.attention)
    assert "needs-script" in (page.all("div", "choices")[0]["class"] or "")


def test_every_choice_leads_to_a_map(page: Page, results: Results) -> None:
    radios = page.all("input")
    for number, payload in enumerate(payloads(page)):
        for name in ("site", "head"):
            offered = {a["value"] for a in radios if a["name"] == f"{name}-{number}"}
            assert offered == {entry[name] for entry in payload["maps"]}
            assert sum("checked" in a for a in radios if a["name"] == f"{name}-{number}") == 1


def test_the_style_sheet_names_the_colours_of_the_maps(text: str) -> None:
    for colours in RAMPS.values():
        assert ", ".join(f"#{colour}" for colour in colours) in text
    for name in RAMPS:
        assert f'id="ramp-{name}"' in text
        assert f"url(#ramp-{name})" in text
    assert "prefers-color-scheme: dark" in text


def changed(results: Results, **parts: object) -> Results:
    return Results(**{**dict(results), **parts})


def everywhere(results, words, sites, tokens) -> Results:
    """Results with the same words wherever there is text from outside."""
    example = results.uncertain[0].model_copy(
        update=dict.fromkeys(("text", "label", "predicted", "baseline_predicted"), words)
    )
    word = Word(words, 0, 0, len(words), 1.0, 0.4, words, 0.2)
    made = Explanation((words,), words, 0.5, 0.1, (word,))
    fields = ("name", "method", "network", "data", "device", "created", "recipe")
    run = {**dict.fromkeys(fields, words), "versions": {words: words}, "commands": (words,)}
    return changed(
        results,
        run=results.run.model_copy(update=run),
        data=tuple(item.model_copy(update={"title": words, "source": words}) for item in results.data),
        classes=(words, "b"),
        attention=(attention_example(example, tokens, sites, heads=(1,)),),
        words=(WordsExample(example=example, reason="chosen", explanation=made),),
        uncertain=(example,),
        mistakes=(example,),
        health=(SiteHealth(site=words, spread=0.1, kl_nats=1.0, reduction="mean"),),
        curves=(results.curves[0].model_copy(update={"name": words}),),
    )


def test_hostile_text_stays_text(results: Results, draw_weights: Callable[..., torch.Tensor]) -> None:
    sites = {HOSTILE: draw_weights(2), "s.1": draw_weights(2)}
    text = render_report(everywhere(results, HOSTILE, sites, (HOSTILE, "b")))
    page = Page(text)
    assert len(page.all("script")) == 2  # the numbers of maps, and the page's own
    assert not page.all("img")
    assert "<script>alert" not in text
    assert "<img" not in text
    assert payloads(page)[0]["queries"][0] == HOSTILE
    assert HOSTILE in "".join(page.inside["blockquote"])
    assert HOSTILE in "".join(page.inside["pre"])
    assert text.count("&lt;script&gt;alert(1)") > 20


@settings(max_examples=12, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=60))
def test_any_text_makes_a_page(results: Results, text: str) -> None:
    example = results.uncertain[0].model_copy(update={"text": text, "predicted": text, "label": text})
    weights = {"s": torch.full((2, 1, 1, 1), 1.0)}
    shown = attention_example(example, [text], weights)
    without = dict.fromkeys(("mistakes", "binned", "curves", "words", "edges", "dynamics", "health"), ())
    texts = {"uncertain": (example,), "attention": (shown,), "alignment": None, "heads": None}
    rendered = render_report(changed(results, **without, **texts))
    page = Page(rendered)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", rendered)
    assert len(payloads(page)) == 1


@pytest.mark.parametrize(
    ("missing", "sections"),
    [
        ({"differences": ()}, {"findings"}),
        ({"scores": (), "differences": ()}, {"findings", "compare", "calibration", "entropy", "selective"}),
        ({"health": ()}, {"posterior"}),
        ({"curves": ()}, {"training"}),
        ({"attention": ()}, {"attention"}),
        ({"words": ()}, {"words"}),
        ({"alignment": None}, {"alignment"}),
        ({"heads": None}, {"heads"}),
        ({"edges": ()}, {"edges"}),
        ({"dynamics": ()}, {"dynamics"}),
        ({"uncertain": (), "mistakes": ()}, {"examples"}),
        ({"uncertain": ()}, set()),
        ({"mistakes": ()}, set()),
    ],
)
def test_a_missing_part_leaves_its_section_out(results, missing, sections) -> None:
    page = Page(render_report(changed(results, **missing)))
    expected = [name for name, _ in ALONE if name not in sections]
    assert page.sections() == expected
    links = [a["href"] for a in page.all("a") if not a["href"].startswith("#bin-")]
    assert links == [f"#{name}" for name in expected]


def test_points_of_the_diagram_lead_to_the_mistakes_of_their_bin(page: Page, results: Results) -> None:
    own = results.score("bayesian_mean", "test")
    assert own is not None
    wrong = {f"bin-{100 * b.low:g}": round(b.count * (1 - b.accuracy)) for b in own.reliability}
    anchors = [anchor for anchor, number in wrong.items() if number]
    assert [a["href"] for a in page.all("a") if a["href"].startswith("#bin-")] == [f"#{a}" for a in anchors]
    assert [a["id"] for a in page.all("div", "cards") if "id" in a] == anchors
    assert len(results.binned) == sum(min(number, 2) for number in wrong.values())
    spoken = [words for words in page.inside["summary"] if words.startswith("Confidence ")]
    for words, anchor in zip(spoken, anchors, strict=True):
        assert f", {wrong[anchor]} wrong" in words
        assert ("2 of them shown" in words) == (wrong[anchor] > 2)
    without = Page(render_report(changed(results, binned=())))
    assert not [a for a in without.all("a") if a["href"].startswith("#bin-")]


@pytest.mark.parametrize("gone", ["imdb", "news", "both"])
def test_a_missing_data_set_is_not_spoken_of(results: Results, gone: str) -> None:
    keys = {"imdb", "news"} if gone == "both" else {gone}
    kept = {
        "data": tuple(item for item in results.data if item.key not in keys),
        "scores": tuple(item for item in results.scores if item.data not in keys),
        "differences": tuple(item for item in results.differences if item.data not in keys),
    }
    text = render_report(changed(results, **kept))
    assert len(Page(text).all("table", "compare")) == 3 - len(keys)
    assert ("IMDB" in text) == ("imdb" not in keys)
    assert ("Newsgroup" in text) == ("news" not in keys)
    assert ("detect out-of-distribution" in text) == (gone != "both")


@pytest.mark.parametrize("only", MODELS)
def test_one_model_alone(results: Results, only: str) -> None:
    like = "bayesian_mean" if only in (*SINGLE, "bayesian_moments") else only
    scores = tuple(
        score.model_copy(update={"model": only}) for score in results.scores if score.model == like
    )
    text = render_report(changed(results, scores=scores, differences=(), words=()))
    page = Page(text)
    heads = page.inside["thead"][0]
    assert ("Deterministic" in heads) == (only == "deterministic")
    assert ("posterior-mean weights" in heads) == (only == "bayesian_expectation")
    assert ("closed form" in heads) == (only == "bayesian_moments")
    assert ("mean of draws" in heads) == (only == "bayesian_mean")
    assert "Difference" not in heads
    assert not page.all("svg", "glyph")


def test_without_a_bayesian_model_no_draw_is_spoken_of(results: Results) -> None:
    scores = tuple(
        score.model_copy(update={"draws": None, "pavpu_curve": ()})
        for score in results.scores
        if score.model == "deterministic"
    )
    own = (results.attention[0].maps[0].model_copy(update={"ratio": ()}),)
    example = results.uncertain[0].model_copy(update={"draws": (), "spread": 0.0})
    found = changed(
        results,
        scores=scores,
        attention=(results.attention[0].model_copy(update={"maps": own, "example": example}),),
        uncertain=(example,),
        **dict.fromkeys(("words", "differences", "health", "curves", "mistakes", "edges", "dynamics"), ()),
        alignment=None,
        heads=None,
        run=results.run.model_copy(
            update={"method": "deterministic attention", "versions": {}, "recipe": ""}
        ),
    )
    assert found.compared == "deterministic"
    words = Page(render_report(found)).inside["main"][0]
    assert "with deterministic attention" in words and "one pass" in words
    assert "draws" not in words and "Bayesian" not in words and "posterior" not in words
    table = results_table(found)
    assert table.headings == ("measure", "deterministic") and table.notes == (f"{headline(found)}.",)


def test_better_lies_right_of_the_line_and_worse_left(text: str, page: Page, results: Results) -> None:
    shown = [
        (results.verdict(item), CLASS_MEASURES[item.measure].better, item.value)
        for data in results.data
        for measure in CLASS_MEASURES
        if (item := results.difference(measure, "bayesian_mean", data.key))
    ]
    marks, lines = page.all("circle", "mark"), page.all("line", "zero")
    assert [mark["class"].split()[1] for mark in marks] == [verdict for verdict, _, _ in shown]
    assert {"better", "unclear"} <= {verdict for verdict, _, _ in shown}
    for mark, line, (_, better, value) in zip(marks, lines, shown, strict=True):
        gain = value if better == "higher" else -value
        assert (float(mark["cx"]) - float(line["x1"])) * gain > 0 or abs(gain) < 0.002


def many_classes(run: RunDescription) -> Results:
    """Five classes, one site, one map of 200 tokens, no dropout, no second data set."""
    generator = torch.Generator().manual_seed(3)
    data = DataSet(key="t", title="Tickets", role="in_domain", size=60, labelled=True)
    labels = torch.randint(5, (60,), generator=generator)
    logits = 2 * torch.randn(11, 60, 5, generator=generator)
    logits[:, torch.arange(60), labels] += 2
    item = evaluation.PredictedData(
        data,
        labels,
        {
            "deterministic": evaluation.Predictions(logits[0].softmax(-1)),
            "bayesian_mean": evaluation.Predictions.from_draws(logits[1:].softmax(-1)),
        },
    )
    scores, differences = evaluation.evaluate([item], resamples=20)
    names, texts = [f"class {n}" for n in range(5)], ["word " * 300] * 60
    return Results(
        run=run.model_copy(update={"steps": 1}),
        classes=tuple(names),
        data=(data,),
        scores=scores,
        differences=differences,
        uncertain=tuple(evaluation.describe(item, evaluation.most_uncertain(item, 2), texts, names)),
        mistakes=tuple(evaluation.describe(item, evaluation.confident_mistakes(item, 2), texts, names)),
        health=(SiteHealth(site="net.attention", spread=0.2, kl_nats=5.0, reduction="sum"),),
        curves=(Curve(model="bayesian_mean", name="loss", kind="train", steps=(5,), values=(0.3,)),),
    )


def test_many_classes_one_site_long_texts(results, draw_weights) -> None:
    results = many_classes(results.run)
    tokens = [f"token{index}" for index in range(200)]
    weights = draw_weights(200, heads=2, num_draws=3)
    shown = attention_example(results.uncertain[0], tokens, {"net.attention": weights})
    text = render_report(changed(results, attention=(shown,)))
    page = Page(text)
    absent = {"alignment", "words", "heads", "edges", "dynamics"}
    assert page.sections() == [name for name, _ in ALONE if name not in absent]
    assert len(page.all("span", "tok")) == 200
    assert not page.all("input")  # one site, one head: nothing to choose
    assert ">more" not in text
    assert "word word" in page.inside["blockquote"][0]
    assert len(text) < 1_000_000
    assert "KL as trained" not in text
    assert "1 step each</dd>" in text
    bayesian = tuple(score for score in results.scores if score.model != "deterministic")
    assert "1 step</dd>" in render_report(changed(results, scores=bayesian, differences=()))


def test_cross_attention_shows_the_keys(results: Results) -> None:
    weights = {"decoder": torch.full((2, 1, 2, 3), 1 / 3)}
    shown = attention_example(results.uncertain[0], ["q1", "q2"], weights, keys=["k1", "k2", "k3"])
    page = Page(render_report(changed(results, attention=(shown,), words=())))
    assert [a["title"] for a in page.all("span", "tok")] == [isolated(f"k{n}") for n in (1, 2, 3)]


def test_writing_is_atomic(results, tmp_path, monkeypatch) -> None:
    path = write_results(results, tmp_path / "file")
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk is full"):
        write_results(changed(results, curves=()), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (["net.block.0.x", "net.block.1.x"], ["block 0", "block 1"]),
        (["enc.layer.0.self", "dec.layer.0.cross"], ["enc self", "dec cross"]),
        (["a.b", "a.b.c"], ["a.b", "a.b.c"]),
        (["only"], ["only"]),
        ([], []),
    ],
)
def test_sites_are_labelled_by_what_parts_them(names: list[str], labels: list[str]) -> None:
    assert site_labels(names) == dict(zip(names, labels, strict=True))


def test_times_are_written_as_people_say_them() -> None:
    expected = ["0 seconds", "89 seconds", "1.5 minutes", "1 h 30 min", "2 h 0 min"]
    assert [duration(value) for value in (0.4, 89, 90, 5400, 7199)] == expected


OVERRIDES = "\u202a\u202b\u202d\u202e\u2066\u2067\u2068"
TURNED = "cod\u202etxt.exe \u2069\u202c\u2067[/x]"
"""A right-to-left override left open, ends of what was never begun, and an isolate left open."""


def stray(words: str) -> bool:
    """Whether directions that are begun and ended within words do not match (Unicode Standard Annex 9, BD9 to BD11)."""
    pending: list[str] = []
    for character in words:
        if character in OVERRIDES:
            pending.append("\u202c" if character < "\u2060" else "\u2069")
        elif character in "\u202c\u2069" and (not pending or pending.pop() != character):
            return True
    return bool(pending)


def test_directions_end_where_a_text_ends(results, draw_weights) -> None:
    """In every piece of text and every attribute of the page; in sentences and titles, isolated besides."""
    sites = {f"{TURNED}.{number}": draw_weights(2) for number in range(2)}
    turned = everywhere(results, TURNED, sites, (TURNED, "b"))
    example = turned.uncertain[0].model_copy(update={"text": TURNED * 12})
    page = Page(render_report(changed(turned, uncertain=(example,), mistakes=(example,), binned=(example,))))
    attributes = [
        value for _, found in page.elements for value in found.values() if value and "\u202e" in value
    ]
    pieces = [
        piece for tag, found in page.inside.items() if tag not in {"script", "style"} for piece in found
    ]
    assert len(attributes) > 10 and sum("\u202e" in piece for piece in pieces) > 40
    assert [ascii(words)[:300] for words in (*attributes, *pieces) if stray(words)] == []
    for title in (found["title"] for _, found in page.elements if "\u202e" in (found.get("title") or "")):
        assert title[0] == "\u2068" and title[-1] == "\u2069"
    for label in (
        value for value in attributes if value.startswith(("Reliability", "Probability of", "PAvPU"))
    ):
        assert re.search("\u2068[^\u2068]*\u202e", label)
    payload = payloads(page)[0]
    offered = {found["value"] for found in page.all("input") if not found["name"].startswith("share-")}
    assert {entry["site"] for entry in payload["maps"]} == offered - {"average", "1"}
    assert not any(stray(token) for token in (*payload["queries"], *payload["keys"]))
    assert all("[/x]" in piece for piece in page.inside["blockquote"])


@given(st.text(st.sampled_from("ab" + OVERRIDES + "\u202c\u2069"), max_size=12), st.text("ab", max_size=3))
def test_printable_text_is_balanced_and_loses_no_letter(words: str, after: str) -> None:
    made = printable(words)
    assert not stray(made) and not stray(isolated(words) + after)
    assert [letter for letter in made if letter in "ab"] == [letter for letter in words if letter in "ab"]
    assert printable(made) == made
    if not stray(words):
        assert made == words


def test_names_break_after_an_underscore_and_nowhere_else() -> None:
    assert breakable("card_payment<b>") == "<bdi>card_<wbr>payment&lt;b&gt;</bdi>"


def test_cells_of_tables_that_scroll_break_between_words(text: str) -> None:
    """``overflow-wrap: anywhere`` of the body lets a cell shrink to a letter."""
    rules = dict(re.findall(r"^([^@{}\n]+) \{([^{}]*)\}$", text, re.MULTILINE))
    assert "overflow-wrap: anywhere" in rules["body"]
    assert rules[".scroll th, .scroll td"].strip() == "overflow-wrap: break-word;"
