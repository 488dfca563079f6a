"""mkdocs hook: `<!-- name -->` in a page becomes the tables of docs/data/name.json.

The package `measured_tables` beside this file holds a module a name: `tables(content)` makes Markdown of what the file
holds, and `SOURCE` is the command that writes the file.
"""

import json
import re
from pathlib import Path
from typing import Any

from measured_tables import alignment, benchmark, graphs, particles, repulsion, sentiment_study, translation
from mkdocs.exceptions import PluginError

TABLES = {
    "alignment": alignment,
    "benchmark": benchmark,
    "graphs": graphs,
    "particles": particles,
    "repulsion": repulsion,
    "sentiment_study": sentiment_study,
    "translation": translation,
}
MARK = re.compile(r"^<!-- (?P<name>\w+) -->$", re.MULTILINE)
UNMEASURED = "*No figures are in this version; `{}` makes them.*"


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Puts tables in the place of each mark of a page.

    Where no file of that name is in this version, the page says so; an unknown name and a file without a figure that
    its tables show fail the build.
    """
    data = Path(config["docs_dir"]) / "data"

    def tables(match: re.Match[str]) -> str:
        name, where = match["name"], page.file.src_uri
        if name not in TABLES:
            raise PluginError(
                f"{where}: expected the name of tables in {match[0]}, one of {', '.join(TABLES)}"
            )
        module, path = TABLES[name], data / f"{name}.json"
        if not path.exists():
            return UNMEASURED.format(module.SOURCE)
        try:
            return module.tables(json.loads(path.read_text("utf-8")))
        except KeyError as error:
            raise PluginError(
                f"{where}: docs/data/{path.name} has no {error}, which {match[0]} shows; "
                f"write the file anew with {module.SOURCE}"
            ) from error

    return MARK.sub(tables, markdown)
