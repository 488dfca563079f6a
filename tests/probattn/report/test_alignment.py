"""The section on queries and keys says what the records hold."""

import re

import pytest

from probattn.report.alignment import Alignment, HeadCloud, SiteAlignment, alignment_section
from probattn.report.page import render_report
from probattn.report.results import Results


def site(model: str, scale: float, length: float = 2.0, **changed: object) -> SiteAlignment:
    numbers = {"mmd": (scale, 2 * scale), "mmd_centred": (0.1, 0.2), "query_norm": (length, length)}
    rest = {"key_norm": (3.0, 3.0), "auc": (0.9, 0.8), "auc_centred": (0.6, 0.6), "bandwidth": (1.0, 1.0)}
    return SiteAlignment(model=model, site="layer.0.attention", **{**numbers, **rest, **changed})


def with_alignment(results: Results, *sites: SiteAlignment, **changed: object) -> Results:
    found = Alignment(texts=5, bandwidth_of=sites[0].model, sites=sites, **changed)
    return results.model_copy(update={"alignment": found})


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (1.0, 0.1, "is 10 times smaller"),
        (0.1, 0.4, "is 4 times larger"),
        (0.1, 0.1, "is the same"),
        (0.1, -0.01, "is too small to compare"),
    ],
)
def test_the_words_are_the_ratio(results: Results, before: float, after: float, words: str) -> None:
    changed = with_alignment(results, site("deterministic", before), site("bayesian_mean", after))
    view = alignment_section(changed.alignment).context
    assert words in view["words"]
    assert "the same once a shift" in view["words"]
    assert "Queries are as long as they were and keys as long as they were." in view["words"]


def test_shrinking_is_said(results: Results) -> None:
    shorter = site("bayesian_mean", 0.1, length=1.0, key_norm=(6.0, 6.0))
    view = alignment_section(with_alignment(results, site("deterministic", 1.0), shorter).alignment).context
    assert "Queries are 50% shorter and keys 100% longer." in view["words"]


def test_the_numbers_are_those_of_the_records(results: Results) -> None:
    found = results.alignment
    text = render_report(results)
    section = text[text.index('<section id="alignment">') : text.index('<section id="examples">')]
    shown = {float(value) for value in re.findall(r'<data value="([^"]+)"', section)}
    for model in found.models:
        assert {found.total(model, "mmd"), found.total(model, "mmd_centred")} <= shown
        for name in ("query_norm", "key_norm", "auc", "auc_centred"):
            assert found.mean(model, name) in shown
    for one in found.sites:
        assert {sum(one.mmd), sum(one.mmd_centred)} <= shown
    assert section.count('class="cloud"') == len(found.clouds) == 6
    for name, css in (("query", "query"), ("key", "key-dot")):
        dots = [path.count("M") for path in re.findall(rf'class="cloud-dots {css}" d="([^"]*)"', section)]
        assert sorted(dots) == sorted(len(getattr(cloud, name)) for cloud in found.clouds)


def test_clouds_of_a_head_share_their_scale(results: Results) -> None:
    near = HeadCloud(
        model="bayesian_mean", site="layer.0.attention", head=0, query=((0.5, 0),), key=((0, 0),)
    )
    far = near.model_copy(update={"model": "deterministic", "query": ((5.0, 0.0),)})
    sites = (site("deterministic", 1.0), site("bayesian_mean", 1.0))
    changed = with_alignment(results, *sites, clouds=(far, near))
    ((_, drawings),) = alignment_section(changed.alignment).context["panels"]
    ends = [float(re.search(r'query" d="M([\d.]+)', svg).group(1)) - 66 for _, svg in drawings]
    assert ends[0] == pytest.approx(10 * ends[1], rel=0.01)
    assert 50 < ends[0] < 60
    assert [model for model, _ in drawings] == ["deterministic", "bayesian_mean"]


def test_one_network_alone(results: Results) -> None:
    changed = with_alignment(results, site("aligned", 0.5, auc=(), auc_centred=()))
    view = alignment_section(changed.alignment).context
    assert view["words"] == "The discrepancy of the aligned network is 1.5 in all."
    assert [title for title, *_ in view["quantities"]][-1] == "Key norm"
    assert ">Ratio<" not in render_report(changed)
    assert alignment_section(None) is None


def test_records_of_unequal_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="expected one number a head throughout"):
        site("aligned", 1.0, key_norm=(1.0,))
