"""``report.html``: one page that needs nothing but itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from probattn.files.durable import write_atomically
from probattn.inference.report.alignment import alignment_view
from probattn.inference.report.attention import attention_views
from probattn.inference.report.charts.svg import isolated, printable_lines
from probattn.inference.report.dynamics import dynamics_view
from probattn.inference.report.findings import evidence, findings, headline, opening
from probattn.inference.report.heads import heads_view
from probattn.inference.report.markup import plain
from probattn.inference.report.measures import MINUS, MODEL_LABELS, MODEL_TITLES, ROLE_TITLES
from probattn.inference.report.record import DataSet, RunDescription
from probattn.inference.report.results import Results
from probattn.inference.report.sections import (
    cards,
    entropy_figures,
    pavpu_figures,
    reliability_figures,
    risk_figures,
    tables,
    training_figures,
)
from probattn.inference.report.sites import EDGE_MEASURES, edge_rows, posterior_words, sites

RAMPS = {
    "mean-light": ("f7f9fc", "cfe0f2", "7fb0dd", "2f74b5", "0b3763"),
    "mean-dark": ("191d22", "173a5c", "2a6ba8", "6fb1ea", "e3f1ff"),
    "ratio-light": ("fcf8f3", "f6d9b8", "e7a05a", "bf5f17", "6b2d06"),
    "ratio-dark": ("1d1a17", "4a2a12", "96501b", "e08f48", "ffe9d2"),
    "cosine-light": ("b3611a", "f0cba4", "f7f7f4", "9cc3e6", "1f5fa6"),
    "cosine-dark": ("e59a52", "6b4220", "191d22", "234d78", "6fb0ee"),
}
"""Colours from nothing to the largest value; the style sheet's gradients name the same ones."""

SECTIONS = (
    ("found", "Findings"),
    ("compare", "Comparison"),
    ("runs", "Runs"),
    ("calibration", "Calibration"),
    ("entropy", "Foreign inputs"),
    ("selective", "Trust"),
    ("attention", "Attention"),
    ("alignment", "Queries and keys"),
    ("heads", "Heads"),
    ("edges", "Edges"),
    ("examples", "Inputs"),
    ("posterior", "Posterior"),
    ("dynamics", "Dynamics"),
    ("training", "Training"),
    ("run", "What was run"),
)


def write_report(results: Results, path: Path | str) -> Path:
    """Writes the report; readers see the old page or the new one, never a part.

    Args:
        results: the records, also the content of ``metrics.json``.
        path: the file, ``report.html`` by custom.

    Returns:
        The path.

    Raises:
        OSError: the file cannot be written; what was there stays.
    """
    path = Path(path)
    write_atomically(path, render_report(results).encode())
    return path


def render_report(results: Results) -> str:
    """The page as text: HTML with its styles, script and drawings inside; equal records give an equal page."""
    environment = make_environment()
    return environment.get_template("report.html").render(_context(environment, results))


def make_environment(package: str | None = None) -> Environment:
    """What renders the templates of reports, and those that lie beside the modules of another package."""
    own = PackageLoader("probattn.inference.report")
    environment = Environment(
        loader=own if package is None else ChoiceLoader([PackageLoader(package, ""), own]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_clean,
    )
    environment.filters["isolated"] = isolated
    return environment


def _clean(value: Any) -> Any:
    """Text from data without control characters, whatever expression of a template it comes from."""
    return printable_lines(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def run_context(
    environment: Environment, run: RunDescription, data_sets: Sequence[DataSet], seeds: Sequence[int] = ()
) -> dict[str, Any]:
    """What every report's page shows of its run; ``seeds`` are those of several."""
    return {
        "run": run,
        "seeds": ", ".join(map(str, seeds or (run.seed,))),
        "data_sets": data_sets,
        "plain": plain,
        "roles": ROLE_TITLES,
        "duration": duration(run.seconds),
        "recipe": run.recipe,
        "style": Markup(template_source(environment, "style.css")),
    }


def _context(environment: Environment, results: Results) -> dict[str, Any]:
    found = findings(results)
    context: dict[str, Any] = run_context(environment, results.run, results.data, results.seeds) | {
        "results": results,
        "plain_title": f"{isolated(results.run.name)}: uncertainty report",
        "headline": headline(results),
        "opening": opening(results),
        "evidence": evidence(results),
        "found": found,
        "level": _level(found),
        "tables": tables(results),
        "models": {score.model for score in results.scores},
        "latent": results.contender == "bayesian_mean",
        "contender": MODEL_TITLES[results.contender],
        "contender_label": MODEL_LABELS[results.contender],
        "foreign": any(data.role != "in_domain" for data in results.data),
        "reliability": reliability_figures(results),
        "entropy": entropy_figures(results),
        "risk": risk_figures(results),
        "pavpu": pavpu_figures(results),
        "dropout": any(score.draws == "dropout" for score in results.scores),
        "attention": attention_views(
            results.attention, _site_names(results), _script_json, results.contender
        ),
        "alignment": alignment_view(results.alignment),
        "heads": heads_view(results.heads),
        "minus": MINUS,
        "edges": edge_rows(results.edges),
        "edge_measures": EDGE_MEASURES,
        "uncertain": cards(results, results.uncertain),
        "mistakes": cards(results, results.mistakes),
        "sites": sites(results.health),
        "reductions": ", ".join(dict.fromkeys(site.reduction for site in results.health)),
        "reduced": any(site.kl_reduced is not None for site in results.health),
        "posterior": posterior_words(results.health),
        "dynamics": dynamics_view(results.dynamics),
        "training": training_figures(results.curves),
        "ramps": colour_channels(),
        "script": Markup(template_source(environment, "maps.js")),
    }
    context["contents"] = _contents(context)
    return context


def _site_names(results: Results) -> list[str]:
    """All attention calls that anything is known of, so that one call's label is the same everywhere."""
    aligned = () if results.alignment is None else results.alignment.sites
    compared = () if results.heads is None else results.heads.sites
    return [site.site for sites in (results.health, aligned, compared) for site in sites]


def _contents(context: dict[str, Any]) -> list[tuple[str, str]]:
    shown = {
        "found": context["found"],
        "compare": context["tables"],
        "runs": context["results"].runs,
        "calibration": context["reliability"],
        "entropy": context["entropy"],
        "selective": context["risk"] or context["pavpu"],
        "attention": context["attention"],
        "alignment": context["alignment"],
        "heads": context["heads"],
        "edges": context["edges"],
        "examples": context["uncertain"] or context["mistakes"],
        "posterior": context["sites"],
        "dynamics": context["dynamics"],
        "training": context["training"],
        "run": True,
    }
    return [(name, words) for name, words in SECTIONS if shown[name]]


def _level(found: list[Any]) -> str:
    return f"{found[0].difference.level:.0%}" if found else "95%"


def template_source(environment: Environment, name: str) -> str:
    """A file among the templates, as it is."""
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _script_json(value: Any) -> Markup:
    """JSON for a ``<script>``: no character that ends it."""
    words = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        words = words.replace(character, f"\\u{ord(character):04x}")
    return Markup(words)


def colour_channels() -> dict[str, tuple[str, ...]]:
    """Tables of the SVG filters that colour maps, by name of the ramp."""
    return {name: _channels(colours) for name, colours in RAMPS.items()}


def _channels(colours: tuple[str, ...]) -> tuple[str, ...]:
    """Red, green and blue of the colours as tables of an SVG filter."""
    return tuple(
        " ".join(f"{int(colour[start : start + 2], 16) / 255:.3f}" for colour in colours)
        for start in (0, 2, 4)
    )


def duration(seconds: float) -> str:
    """A time as people say it.

    Example:
        >>> duration(42.2), duration(754), duration(7380)
        ('42 seconds', '12.6 minutes', '2 h 3 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.1f} minutes"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"
