"""What others rely on, as lines of text: public names, the command line, recipes, run folders, pages of reports.

``python tests/pins/pins.py --write`` writes the files in ``golden`` anew, those of run folders with ``--runs``; read
the difference before it is kept. The tests ask for every line that stands there, and allow further ones; pages of
reports, which are rendered from the records in ``results``, are compared word for word.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

from probattn.cli import app
from probattn.models.hosts.cache import CACHE
from probattn.recipes import (
    experiment_recipe_reference,
    graph_recipe_reference,
    graph_text_recipe_reference,
    load_any_recipe,
    pretraining_recipe_reference,
    recipe_names,
    recipe_reference,
    translation_recipe_reference,
    visual_question_recipe_reference,
)

HERE = Path(__file__).resolve().parent
GOLDEN, RESULTS = HERE / "golden", HERE / "results"
sys.path.append(str(HERE.parent / "fuzz"))
runs: Any = importlib.import_module("runs")

PACKAGES = (
    "probattn",
    "probattn.attacks",
    "probattn.models",
    "probattn.models.copying",
    "probattn.models.electra",
    "probattn.models.graph",
    "probattn.models.graphwriter",
    "probattn.models.mcan",
    "probattn.models.translation",
    "probattn.inference",
    "probattn.inference.ensembles",
    "probattn.report",
    "probattn.sites",
    "probattn.metrics",
    "probattn.metrics.functional",
    "probattn.probes",
    "probattn.data",
    "probattn.particles",
    "probattn.distributions",
    "probattn.divergences",
    "probattn.recipes",
    "probattn.trainer",
)
REFERENCES = {
    "texts": recipe_reference,
    "graph": graph_recipe_reference,
    "translation": translation_recipe_reference,
    "graph_text": graph_text_recipe_reference,
    "visual_questions": visual_question_recipe_reference,
    "pretraining": pretraining_recipe_reference,
    "experiment": experiment_recipe_reference,
}
NEEDS = {"graph": "torch_geometric", "translation": "sentencepiece", "lstm": "sentencepiece"}
"""Packages of extras, by the name of the run that needs them."""
RUNS = ("texts", "aligned", "probed", "repulsive", "graph", "translation", "lstm", "copying", "keyword")
"""Names of the runs of :func:`run_recipes`."""
SEVERAL = ("graph",)
"""Those of which several seeds are reported together."""


def public_names() -> Iterator[str]:
    """Names of the packages, the parameters of what can be called, and those of public methods."""
    described: dict[int, str] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in sorted(getattr(module, "__all__", ())):
            thing, place = getattr(module, name), f"{package}.{name}"
            yield place
            if not (inspect.isclass(thing) or inspect.isfunction(thing)):
                continue
            first = described.setdefault(id(thing), place)
            if first != place:
                yield f"{place} is {first}"
                continue
            yield from _parameters(place, thing)
            if inspect.isclass(thing):
                yield from _members(place, thing)


def _members(place: str, cls: type[Any]) -> Iterator[str]:
    """Public methods and properties that the library defines."""
    for name in sorted(vars_of(cls)):
        member = inspect.getattr_static(cls, name)
        own = getattr(member, "__func__", getattr(member, "fget", member))
        if name.startswith("_") or not getattr(own, "__module__", "").startswith("probattn"):
            continue
        if isinstance(member, property):
            yield f"{place}.{name} property"
        elif inspect.isfunction(own):
            yield f"{place}.{name}"
            yield from _parameters(f"{place}.{name}", getattr(cls, name))


def vars_of(cls: type[Any]) -> set[str]:
    """Names that a class and its bases define."""
    return {name for base in cls.__mro__ for name in vars(base)}


class _Made:
    """A default that pydantic makes, which its releases show as one thing or another."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Made()


def _parameters(place: str, thing: Any) -> Iterator[str]:
    """A line a parameter; and one with those that must be given, which further ones would break."""
    try:
        parameters = [each for each in inspect.signature(thing).parameters.values() if each.name != "self"]
    except (TypeError, ValueError):
        return
    made = {name for name, field in getattr(thing, "model_fields", {}).items() if field.default_factory}
    parameters = [each.replace(default=_MADE) if each.name in made else each for each in parameters]
    required = [each.name for each in parameters if _default(each) == "required"]
    yield f"{place} requires {' '.join(required) or 'nothing'}"
    for number, each in enumerate(parameters):
        if each.kind in {each.VAR_POSITIONAL, each.VAR_KEYWORD}:
            yield f"{place} {'*' if each.kind is each.VAR_POSITIONAL else '**'}"
        else:
            at = "keyword" if each.kind is each.KEYWORD_ONLY else str(number)
            name = "cache" if each.name == CACHE else each.name  # transformers' name for it, by its version
            yield f"{place} ({at}) {name}: {_default(each)}"


def _default(parameter: inspect.Parameter) -> str:
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        return ""
    if parameter.default is parameter.empty:
        return "required"
    return re.sub(r" at 0x\w+", "", repr(parameter.default))


def command_line() -> Iterator[str]:
    """Commands, their arguments and options, and what is said of them."""
    root: Any = get_command(app)
    for name, command in {"": root, **root.commands}.items():
        place = f"probattn {name}".strip()
        yield f"{place}: {_sentence(command.help)}"
        for parameter in command.params:
            shown = " ".join([*parameter.opts, *parameter.secondary_opts])
            repeated = getattr(parameter, "multiple", False) or parameter.nargs == -1
            flag = getattr(parameter, "is_flag", False)
            trait = "repeated" if repeated else "flag" if flag else f"default {parameter.default!r}"
            traits = (parameter.param_type_name, "required" if parameter.required else trait)
            yield f"{place} {shown} ({', '.join(traits)}): {_sentence(getattr(parameter, 'help', ''))}"


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split())


def recipe_keys() -> Iterator[str]:
    """Keys of recipes, what they take, and their defaults."""
    for kind, reference in REFERENCES.items():
        prefixes = [""]
        for line in reference().splitlines():
            if line.startswith("## Keys"):
                prefixes = [""]
            elif line.startswith("##"):
                prefixes = [f"{name}." for name in re.findall(r"`([\w.]+)`", line)]
            elif match := re.match(r"\| `(\w+)` \| (.*?) \| (`.*?`|must be given) \| ", line):
                for prefix in prefixes:
                    yield f"{kind} {prefix}{match[1]}: {match[2]}; default {match[3]}"


def built_in_recipes() -> Iterator[str]:
    """Every key of the recipes that come with the library; paths from the working directory on."""
    for name in recipe_names():
        content = yaml.safe_load(load_any_recipe(name).dump())
        for key, value in leaves(content):
            yield f"{name} {key}: {json.dumps(value).replace(f'{Path.cwd()}/', '')}"


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Keys of mappings within mappings, joined by dots."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{place}.{key}" if place else str(key))
    else:
        yield place, value


def run_recipes(folder: Path) -> dict[str, str]:
    """Small recipes of every kind by name, their data below ``folder``."""
    found = runs.recipes(folder)
    texts = found["texts"].replace("attention: {method: babn}", "attention: {method: deterministic}")
    return {**found, "repulsive": f"{texts}repulsion: {{weight: 0.1}}\n"}


def make_run(name: str, text: str, folder: Path) -> Path:
    """Trains a recipe and writes its report.

    Returns:
        The run's folder.
    """
    file, place = folder / f"{name}.yaml", folder / "runs" / name
    file.write_text(text, encoding="utf-8")
    for arguments in (("train", file, "--output", place, "--quiet"), ("report", place)):
        result = runs.invoke(*arguments)
        if result.exit_code:
            raise RuntimeError(f"{name}: {result.output}") from result.exception
    return place


def run_files(name: str, place: Path) -> Iterator[str]:
    """Files of a run's folder, and the keys of its records."""
    for file in sorted(place.rglob("*")):
        if not file.is_file() or file.name == ".lock":
            continue
        shown = file.relative_to(place).as_posix()
        yield f"{name} {shown}"
        if file.suffix == ".jsonl" and file.name == "metrics.jsonl":
            records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            for key in sorted({f"{record.get('kind', '')} {key}" for record in records for key in record}):
                yield f"{name} {shown} {key}"
        elif file.name == "metrics.json":
            for key in sorted(json.loads(file.read_text(encoding="utf-8"))):
                yield f"{name} {shown} {key}"


class _Text(HTMLParser):
    """What a page shows: text outside styles, scripts and what is hidden in the head."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, _attributes: Any) -> None:
        self._silent += tag in {"style", "script"}

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in {"style", "script"}

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.parts.append(data)


def page_text(page: str) -> Iterator[str]:
    """The visible text of a page, a line for each run of it between two tags."""
    parser = _Text()
    parser.feed(page)
    for part in parser.parts:
        if words := " ".join(part.split()):
            yield words


def report_text(name: str, place: Path) -> Iterator[str]:
    """The text of the report that the command writes for a run that was evaluated; in ``place``, a new folder."""
    _put_run(name, place)
    yield from _reported(place, page=place / "report.html")


def seeds_text(name: str, place: Path) -> Iterator[str]:
    """The text of the report of two runs that differ in their seed; in ``place``, a new folder."""
    first, second = place / "first", place / "second"
    _put_run(name, first)
    _put_run(name, second, seed=1)
    yield from _reported(first, second, page=first / "seeds.html")


def _put_run(name: str, place: Path, seed: int = 0) -> None:
    place.mkdir(parents=True)
    for source, target, key in (("json", "metrics.json", '"seed": '), ("yaml", "recipe.yaml", "  seed: ")):
        text = (RESULTS / f"{name}.{source}").read_text(encoding="utf-8")
        (place / target).write_text(text.replace(f"{key}0", f"{key}{seed}"), encoding="utf-8")


def _reported(*folders: Path, page: Path) -> Iterator[str]:
    result = runs.invoke("report", *folders)
    if result.exit_code:
        raise RuntimeError(result.output) from result.exception
    yield from page_text(page.read_text(encoding="utf-8"))


def read(name: str) -> list[str]:
    """The lines of a golden file."""
    return (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def missing(name: str, lines: Iterator[str]) -> list[str]:
    """Lines of a golden file that are not among those of this version."""
    found = set(lines)
    return [line for line in read(name) if line not in found]


def _write(name: str, lines: Iterator[str]) -> None:
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _write_runs(folder: Path) -> None:
    lines = []
    texts = run_recipes(folder)
    for name in RUNS:
        place = make_run(name, texts[name], folder)
        lines += list(run_files(name, place))
        _keep_results(place, RESULTS / f"{name}.json", folder)
    _write("run_files", iter(lines))


def _keep_results(place: Path, kept: Path, folder: Path) -> None:
    """Keeps the records of a run and its recipe, where none are kept."""
    if kept.exists():
        return
    kept.parent.mkdir(exist_ok=True)
    for source, target in (("metrics.json", kept), ("recipe.yaml", kept.with_suffix(".yaml"))):
        text = (place / source).read_text(encoding="utf-8")
        target.write_text(text.replace(str(folder), "/data"), encoding="utf-8")


def main() -> None:
    """Writes the golden files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True, help="write the golden files anew")
    parser.add_argument(
        "--runs", action="store_true", help="those of run folders too, which are trained for it"
    )
    chosen = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    for function in (public_names, command_line, recipe_keys, built_in_recipes):
        _write(function.__name__, function())
    with tempfile.TemporaryDirectory() as folder:
        if chosen.runs or not RESULTS.exists():
            _write_runs(Path(folder))
        for name in RUNS:
            _write(f"report_{name}", report_text(name, Path(folder) / "reports" / name))
        for name in SEVERAL:
            _write(f"seeds_{name}", seeds_text(name, Path(folder) / "seeds" / name))


if __name__ == "__main__":
    main()
