"""mkdocs hook: the site's name carries the version of the package, as its header and the titles of its pages show it."""

from typing import Any

import probattn


def on_config(config: Any, **_: Any) -> Any:
    """Adds the version to the name."""
    config["site_name"] = f"{config['site_name']} {probattn.__version__}"
    return config
