"""mkdocs hook: the name of the site carries the version of the package, in its header and its titles."""

from typing import Any

import probattn


def on_config(config: Any, **_: Any) -> Any:
    """Adds the version to the name."""
    config["site_name"] = f"{config['site_name']} {probattn.__version__}"
    return config
