"""``report.html``: one page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from probattn.report.markup import Section, breakable, formatted, plain
from probattn.report.measures import (
    MINUS,
    MODEL_LABELS,
    MODEL_STYLES,
    MODEL_TITLES,
    ROLE_TITLES,
    capital,
    counted,
)
from probattn.report.record import DataSet, RunDescription
from probattn.report.results import Results
from probattn.report.sections import QUANTITIES, report_sections
from probattn.report.summary import evidence, headline, opening
from probattn.report.svg import isolated
from probattn.sites.particle_layers import ParticleLayers
from probattn.terminal import duration, printable_lines

RAMPS = {
    "mean-light": ("f7f9fc", "cfe0f2", "7fb0dd", "2f74b5", "0b3763"),
    "mean-dark": ("191d22", "173a5c", "2a6ba8", "6fb1ea", "e3f1ff"),
    "ratio-light": ("fcf8f3", "f6d9b8", "e7a05a", "bf5f17", "6b2d06"),
    "ratio-dark": ("1d1a17", "4a2a12", "96501b", "e08f48", "ffe9d2"),
    "cosine-light": ("b3611a", "f0cba4", "f7f7f4", "9cc3e6", "1f5fa6"),
    "cosine-dark": ("e59a52", "6b4220", "191d22", "234d78", "6fb0ee"),
}
"""Colours from zero to the largest value; the style sheet's gradients name the same ones."""


def render_report(
    results: Results,
    further: Iterable[Section | None] = (),
    *,
    package: str | None = None,
    quantities: Mapping[str, tuple[str, str]] = QUANTITIES,
) -> str:
    """The report as HTML with styles, script and drawings embedded; equal records give equal pages.

    Args:
        results: the records.
        further: sections of a task, inserted after the comparison.
        package: Python package that contains the templates of ``further``.
        quantities: heading and unit of each training curve, by the name of its quantity.
    """
    run, several = results.run, bool(results.runs)
    words = {"bayesian_mean": f"{run.num_samples} posterior draws", ParticleLayers.key: "mean of particles"}
    prediction = run.search or words.get(results.compared, "one pass")
    note = Markup(
        "Every number of this page is in <code>{}</code>, beside it, to the last digit. Intervals by {}; p values "
        "corrected by Holm's method."
    ).format("seeds.json" if several else "metrics.json", results.intervals)
    models = {score.model for score in results.scores}
    budget = f"{run.train_size:,} {results.in_domain.unit}, {counted(run.steps, 'step')}"
    both = several or ("deterministic" in models and len(models) > 1)
    return render_page(
        [
            *report_sections(results, further, quantities),
            run_section(run, results.data, note, results.seeds, results.classes),
        ],
        kind=results.kind,
        name=run.name,
        headline=headline(results),
        opening=opening(results),
        evidence=evidence(results),
        facts=(
            ("Network", plain(run.network)),
            ("Method", plain(run.method)),
            ("Trained on", f"{budget} each" if both else budget),
            ("Prediction", prediction),
        ),
        script="maps.js" if results.attention else "",
        package=package,
    )


def render_page(
    sections: Iterable[Section | None],
    *,
    kind: str,
    name: str,
    script: str = "",
    package: str | None = None,
    **words: Any,
) -> str:
    """A page of the sections that are not None; ``words`` are headline and facts, perhaps opening and evidence."""
    environment = _environment(package)
    shown = [section for section in sections if section is not None]
    return environment.get_template("page.html").render(
        {"opening": "", "evidence": "", **words},
        kind=kind,
        name=name,
        sections=[
            (item, Markup(environment.get_template(item.template).render(item.context))) for item in shown
        ],
        plain_title=f"{isolated(name)}: {kind} report",
        style=_source(environment, "style.css"),
        script=_source(environment, script) if script else "",
        ramps={name: _channels(colours) for name, colours in RAMPS.items()},
    )


def run_section(
    run: RunDescription,
    data_sets: Sequence[DataSet],
    note: Markup,
    seeds: Sequence[int] = (),
    classes: Sequence[str] = (),
) -> Section:
    """Description of the run; ``seeds`` are those of several, ``note`` names the file of the numbers."""
    context = {
        "run": run,
        "data_sets": data_sets,
        "note": note,
        "seeds": ", ".join(map(str, seeds or (run.seed,))),
        "classes": classes,
        "duration": duration(run.seconds),
    }
    return Section("run", "Run", "Run details", "run.html", context)


@cache  # compiled templates serve the next page too
def _environment(package: str | None) -> Environment:
    """Renders the templates of reports and those beside the modules of another package."""
    loader = PackageLoader("probattn.report")
    environment = Environment(
        loader=loader if package is None else ChoiceLoader([PackageLoader(package, ""), loader]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )
    options = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    environment.policies["json.dumps_kwargs"] = options
    environment.filters |= {"isolated": isolated, "formatted": formatted, "capital": capital}
    environment.globals |= {"plain": plain, "breakable": breakable, "minus": MINUS, "roles": ROLE_TITLES}
    environment.globals |= {"titles": MODEL_TITLES, "labels": MODEL_LABELS, "styles": MODEL_STYLES}
    return environment


def _source(environment: Environment, name: str) -> Markup:
    """A file among the templates, as it is."""
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])


def _clean(value: Any) -> Any:
    """Text from data without control characters, whatever expression of a template it comes from."""
    return printable_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _channels(colours: tuple[str, ...]) -> tuple[str, ...]:
    """Red, green and blue of the colours as tables of an SVG filter."""
    return tuple(
        " ".join(f"{int(colour[start : start + 2], 16) / 255:.3f}" for colour in colours)
        for start in (0, 2, 4)
    )
