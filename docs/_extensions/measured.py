"""mkdocs hook: `<!-- name -->` in a page becomes the tables of docs/data/name.json.

The package `measured_tables` beside this file holds a module a name: `tables(content)` makes Markdown of what the file
holds, and `SOURCE` is the command that writes the file. Where a module has `PARTS`, the file holds them by name, a mark
is `<!-- name:part -->`, and the tables are those of a part. A module with `load(part)` has records of the package.
"""

import json
import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import measured_tables
from mkdocs.exceptions import PluginError

MODULES = {
    each.name: import_module(f"measured_tables.{each.name}")
    for each in iter_modules(measured_tables.__path__)
}
TABLES = {name: module for name, module in MODULES.items() if hasattr(module, "tables")}
MARK = re.compile(r"^<!-- (?P<mark>\w+(:[\w./-]+)?) -->$", re.MULTILINE)
INTERVAL = re.compile(r"\[([^][|,]+), ([^][|,]+)\]")
HYPHEN = re.compile(r"(?<![\w.)-])-(?=\d)")
UNMEASURED = "*No figures are in this version; `{}` makes them.*"


def marks() -> dict[str, tuple[str, str | None]]:
    """What may stand in a mark, each with its name and its part, None where there are no parts."""
    return {
        name if part is None else f"{name}:{part}": (name, part)
        for name, module in TABLES.items()
        for part in getattr(module, "PARTS", (None,))
    }


def typeset(tables: str) -> str:
    """Minus signs for hyphens before numbers, and intervals that no line end divides, in the rows of tables.

    Example:
        >>> typeset("| -1.5 [-2, -1] | En-De |")
        '| −1.5 [−2,\\xa0−1] | En-De |'
    """

    def row(line: str) -> str:
        joined = INTERVAL.sub("[\\1,\N{NO-BREAK SPACE}\\2]", line)
        return HYPHEN.sub("\N{MINUS SIGN}", joined)

    return "\n".join(row(line) if line.startswith("| ") else line for line in tables.split("\n"))


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Puts tables in the place of each mark of a page.

    Where no file of that name or no such part of it is in this version, the page says so; an unknown name and a file
    without a figure that its tables show fail the build.
    """
    data, known = Path(config["docs_dir"]) / "data", marks()

    def tables(match: re.Match[str]) -> str:
        where = page.file.src_uri
        if match["mark"] not in known:
            raise PluginError(
                f"{where}: expected the name of tables in {match[0]}, one of {', '.join(known)}"
            )
        name, part = known[match["mark"]]
        module, path = TABLES[name], data / f"{name}.json"
        if hasattr(module, "load"):
            content = module.load(part)
        else:
            content = json.loads(path.read_text("utf-8")) if path.exists() else None
            content = content if content is None or part is None else content.get(part)
        if content is None:
            return UNMEASURED.format(module.SOURCE)
        try:
            return typeset(module.tables(content))
        except KeyError as error:
            raise PluginError(
                f"{where}: docs/data/{path.name} has no {error}, which {match[0]} shows; "
                f"write the file anew with {module.SOURCE}"
            ) from error

    return MARK.sub(tables, markdown)
