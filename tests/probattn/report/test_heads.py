"""The section on heads: its measures against loops, and a page that says what the records hold."""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from probattn.report.heads import HeadDrops, HeadRows, Heads, SiteHeads, heads_section, site_heads
from probattn.report.page import render_report
from probattn.report.results import Results

NAMES = ("net.layer.0.attention", "net.layer.1.attention")


def call(rows: int, queries: int, seed: int) -> SimpleNamespace:
    """Three heads of size 4 over five keys, the last query of the first row a padded one."""
    source = torch.Generator().manual_seed(seed)
    valid = torch.ones(rows, queries, dtype=torch.bool)
    valid[0, -1] = False
    return SimpleNamespace(
        output=torch.randn(rows, 3, queries, 4, generator=source),
        weights=torch.randn(rows, 3, queries, queries, generator=source).softmax(dim=-1),
        query_valid=valid,
    )


def test_heads_of_several_batches_against_loops() -> None:
    batches = [{NAMES[0]: call(2, 5, 0)}, {NAMES[0]: call(3, 4, 1)}]
    (found,) = site_heads(batches, "repulsive", {NAMES[0]: {"query": 2.5}})
    distances, lengths, overlaps, cosines = [], [], [], np.zeros((3, 3))
    for batch in batches:
        one = batch[NAMES[0]]
        for b, t in one.query_valid.nonzero().tolist():
            outputs = one.output[b, :, t].double().numpy()
            weights = one.weights[b, :, t].double().numpy()
            lengths += [np.linalg.norm(output) for output in outputs]
            for i, j in itertools.combinations(range(3), 2):
                distances.append(np.linalg.norm(outputs[i] - outputs[j]))
                overlaps.append(np.minimum(weights[i], weights[j]).sum())
            units = outputs / np.linalg.norm(outputs, axis=1, keepdims=True)
            cosines += units @ units.T
    cosines /= len(lengths) / 3
    assert found.distance == pytest.approx(np.mean(distances), rel=1e-5)
    assert found.relative == pytest.approx(np.mean(distances) / np.mean(lengths), rel=1e-5)
    assert found.overlap == pytest.approx(np.mean(overlaps), rel=1e-5)
    np.testing.assert_allclose(found.similarity, cosines, atol=1e-4)
    assert found.cosine == pytest.approx((cosines.sum() - 3) / 6, abs=1e-4)
    assert (found.model, found.site, found.lengths) == ("repulsive", NAMES[0], {"query": 2.5})


def test_what_cannot_be_compared_is_left_out_or_refused() -> None:
    single, plain = call(1, 3, 0), call(2, 3, 1)
    single.output, single.weights = single.output[:, :1], single.weights[:, :1]
    plain.weights = None
    (found,) = site_heads([{NAMES[0]: single, NAMES[1]: plain}], "deterministic", {})
    assert (found.site, found.overlap, found.lengths) == (NAMES[1], None, {})
    message = "expected a batch with an attention call of two heads or more, got none"
    with pytest.raises(ValueError, match=message):
        site_heads([{NAMES[0]: single}], "deterministic", {})


def site(model: str, name: str, relative: float = 1.0, **changed: object) -> SiteHeads:
    numbers = {"distance": 2.0, "overlap": 0.4, "similarity": ((1.0, -0.25), (-0.25, 1.0))}
    lengths = {"query": 3.0, "key": 2.0}
    return SiteHeads(model=model, site=name, relative=relative, **{"lengths": lengths, **numbers, **changed})


def measured(**changed: object) -> Heads:
    values = {"start": 1.1, "deterministic": 1.2, "repulsive": 1.35}
    sites = tuple(site(model, name, value) for model, value in values.items() for name in NAMES)
    rows = tuple(
        HeadRows(
            model=model, site=NAMES[1], text="a b", tokens=("a", "b"), weights=((0.25, 0.75), (top, 1 - top))
        )
        for model, top in (("deterministic", 0.9), ("repulsive", 0.5))
    )
    drops = (
        HeadDrops(model="deterministic", site=NAMES[0], accuracy=(0.8, 0.8)),
        HeadDrops(model="deterministic", site=NAMES[1], accuracy=(0.85, 0.7)),
        HeadDrops(model="repulsive", site=NAMES[0], accuracy=(0.75, 0.7)),
        HeadDrops(model="repulsive", site=NAMES[1], accuracy=(0.85, 0.6)),
    )
    whole = {"deterministic": 0.8, "repulsive": 0.85}
    found = {"texts": 5, "sites": sites, "masked_texts": 20, "whole": whole, "drops": drops, "rows": rows}
    return Heads(**{**found, **changed})


def section_of(results: Results, heads: Heads) -> str:
    page = render_report(results.model_copy(update={"heads": heads}))
    start = page.index('<section id="heads">')
    return page[start : page.index("</section>", start)]


def test_the_numbers_are_those_of_the_records(results: Results) -> None:
    heads = measured()
    section = section_of(results, heads)
    shown = {float(value) for value in re.findall(r'<data value="([^"]+)"', section)}
    for model in heads.models:
        assert {heads.mean(model, name) for name in ("distance", "relative", "cosine", "overlap")} <= shown
        assert heads.mean_length(model, "query") in shown
    assert heads.mean_length("start", "value") is None
    assert (heads.removable("deterministic"), heads.harmful("deterministic")) == (0.75, 0.25)
    assert (heads.removable("repulsive"), heads.harmful("repulsive")) == (0.25, 0.0)
    assert heads.removable("start") is None
    assert "Length of a head, value" not in section and "Length of a head, key" in section
    for words in ("Before training", "Deterministic", "Repulsive"):
        assert words in section
    assert "over 5 examples" in section and "measured over 20" in section
    assert "could not be loaded again" not in section


def test_words_say_what_was_found() -> None:
    view = heads_section(measured()).context
    assert view["words"] == (
        "Relative to their length, the outputs of two heads of the repulsive network lie 1.35 apart, and two heads "
        "spend 40% of their attention on the same tokens. In the deterministic network these are 1.20 and 40%."
    )
    expected = view["fallen"]
    assert "Of the 4 heads of the deterministic network, 2 can be taken out without any change" in expected
    assert "1 with a gain, and the most needed one costs 10.0 points" in view["fallen"]
    assert "of the repulsive network, 1 can be taken out" in view["fallen"]
    assert "costs 25.0 points" in view["fallen"]


def test_heads_that_nobody_misses_and_other_units() -> None:
    spared = tuple(item.model_copy(update={"accuracy": (0.9, 0.9)}) for item in measured().drops)
    whole = {item.model: 0.9 for item in spared}
    view = heads_section(
        measured(drops=spared, whole=whole, measure="token accuracy"), unit="sentence pairs"
    ).context
    assert view["fallen"].startswith(
        "Each of the 4 heads of the deterministic network can be taken out without any "
    )
    assert view["fallen"].endswith("change of token accuracy.")
    assert view["falls"][0].heading.startswith("Token accuracy lost")


def test_falls_are_sorted_lines_of_both_networks() -> None:
    view = heads_section(measured()).context
    (figure,) = view["falls"]
    lines = re.findall(r'class="line (\w+)" d="([^"]+)"', figure.svg)
    assert [css for css, _ in lines] == ["det", "bay"]
    for _, path in lines:
        heights = [float(y) for _, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]
        assert heights == sorted(heights) and len(heights) == 4  # down the page, from the most needed head


def test_maps_of_similarity_and_rows(results: Results) -> None:
    heads = measured()
    section = section_of(results, heads)
    assert section.count("ramp-cosine") == 2 * 3  # first and shown layer, three networks
    assert section.count("map-picture ramp-mean") == 2
    assert 'aria-label="Attention of each head, repulsive: \u2068a b\u2069"' in section
    alone = measured(drops=(), whole={}, rows=(), masked_texts=0)
    section = section_of(results, alone)
    assert "Importance of each head" not in section and "Attention of each head" not in section


def test_a_network_alone_without_its_start(results: Results) -> None:
    heads = measured(sites=(site("regularised", NAMES[0]),), drops=(), whole={}, rows=(), masked_texts=0)
    section = section_of(results, heads)
    assert "outputs of two heads of the regularised network lie 1.00 apart" in section
    assert "The network before training could not be loaded again" in section
    assert "In the deterministic network" not in section
    plain = measured(sites=(site("regularised", NAMES[0], overlap=None),), drops=(), whole={}, rows=())
    assert "attention" not in heads_section(plain).context["words"]


def test_records_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"similarity of .*: expected 2 rows of 2, got 2 of"):
        site("start", NAMES[0], similarity=((1.0, 0.0), (0.0,)))
    with pytest.raises(ValidationError, match=r"weights of .*: expected 1 rows of 1, got 1 of"):
        HeadRows(model="repulsive", site=NAMES[0], text="a", tokens=("a",), weights=((0.5, 0.5),))
    with pytest.raises(ValidationError, match="expected the accuracy with all heads of 'deterministic'"):
        measured(whole={"repulsive": 0.5})
