"""Recipes of texts about knowledge graphs: data, network, training, search, report, and all of them together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import model_validator

from probattn.data import DataError, GraphTexts, read_graph_texts, read_relations
from probattn.data.files import DATA_VARIABLE, data_folder
from probattn.data.graph_texts import roles
from probattn.models import WritingOptions
from probattn.options import Count, Filled
from probattn.tasks.classification.recipe import PredictionRecipe
from probattn.tasks.sections.base import LimitsSection, Rate, Section, Seed, TopicsReportSection, key
from probattn.tasks.sections.derived import drawn_section, options_section
from probattn.tasks.sections.methods import Alignment, AttentionRecipe, Disagreement, MethodRecipe, Repulsion
from probattn.tasks.sections.training import TrainingRecipe, length_key, training_keys

ORIGIN = "https://github.com/rikdz/GraphWriter (data)"
STEPS = 20_000
"""Updates where neither steps nor epochs are given."""


class GraphTextDataRecipe(Section):
    """Texts about knowledge graphs in the form of AGENDA's files (Koncel-Kedziorski et al. 2019).

    Names of files without a folder are relative to `folder`; `./my.tsv` has a folder.

    Example:
        >>> GraphTextDataRecipe(folder="my", test="/other/test.tsv").file("test").as_posix()
        '/other/test.tsv'
    """

    folder: Filled | None = key(
        None, f"Folder with the files; null for the subfolder `agenda` in `{DATA_VARIABLE}`."
    )
    train: Filled = key("preprocessed.train.tsv", "File with the training texts.")
    validation: Filled | None = key(
        "preprocessed.val.tsv", "File with the validation texts; null to hold out a part of `train`."
    )
    test: Filled = key("preprocessed.test.tsv", "File with the test texts.")
    relations: Filled = key("relations.vocab", "File with the names of relations, one per line.")
    limits: LimitsSection = key(
        LimitsSection(),
        "Maximum numbers of texts; without a validation file, `validation` is by default a tenth of `train`.",
    )
    min_frequency: Count = key(
        5, "Minimum occurrences of a word of the vocabulary in the training titles, entities and texts."
    )
    max_length: int = key(400, "Maximum number of tokens, counting the end token; the rest is cut.", ge=2)

    def file(self, part: str) -> Path:
        """Path of the file of a part: "train", "validation" or "test"."""
        path = Path(getattr(self, part)).expanduser()
        if path.name != getattr(self, part):
            return path
        folder = (
            data_folder("agenda", "agenda", ORIGIN) if self.folder is None else Path(self.folder).expanduser()
        )
        return folder / path

    def load(self) -> Mapping[str, GraphTexts]:
        """Reads "train", "validation" and "test".

        Raises:
            DataError: the data are invalid; the message is one line.
        """
        relations = read_relations(self.file("relations"))
        train = self._read("train", relations)
        if self.validation is None:
            train, validation = train.split(self.limits.validation or max(1, len(train) // 10))
        else:
            validation = self._read("validation", relations).take(self.limits.validation)
        test = self._read("test", relations)
        return roles(train.take(self.limits.train), validation, test.take(self.limits.test))

    def _read(self, role: str, relations: tuple[str, ...]) -> GraphTexts:
        try:
            return read_graph_texts(self.file(role), relations)
        except DataError as error:
            raise DataError(f"graph_text.{role}: {error}") from None

    def path_keys(self) -> Iterable[str]:
        """Keys with paths: the folder, and files outside it."""
        files = {name: getattr(self, name) for name in ("train", "validation", "test", "relations")}
        return ("folder", *(name for name, path in files.items() if path and Path(path).name != path))


class GraphTextNetworkRecipe(Section):
    """GraphWriter; the defaults are those of Koncel-Kedziorski et al. 2019 and of their released settings."""

    width: int = key(500, "Size of word embeddings, vertices and hidden states.", ge=2)
    layers: Count = key(6, "Blocks of the graph transformer.")
    heads: Count = key(4, "Attention heads of every attention call; they divide `width`.")
    feed_forward: Count | None = key(None, "Width of feed-forward layers; null for four times `width`.")
    lstm_layers: Count = key(2, "Layers of the bidirectional LSTMs over titles and entities.")
    dropout: Rate = key(0.1, "Dropout of embeddings, inputs of the output layer and transformer blocks.")
    attention_dropout: Rate = key(0.1, "Attention dropout in the graph encoder; not for latent weights.")
    coverage: float = key(
        0.0, "Weight of a penalty, in nats, on copying an entity again (See et al. 2017, Eq. 12).", ge=0
    )

    @model_validator(mode="after")
    def _whole_heads(self) -> GraphTextNetworkRecipe:
        if self.width % self.heads or self.width % 2:
            raise ValueError(f"width: expected an even multiple of heads ({self.heads}), got {self.width}")
        return self


_Training: Any = drawn_section(
    {
        "epochs": length_key(
            f"Number of epochs, instead of `steps`; if both are null, training has {STEPS:,} updates."
        ),
        **training_keys(
            batch_size={"default": 32},
            length_pool={"default": 20},
            learning_rate={"default": 1e-3},
            weight_decay={"default": 0.0},
            schedule={"default": "constant_with_warmup"},
            gradient_clip={"default": 1.0},
        ),
    },
    TrainingRecipe,
)


class GraphTextTrainingRecipe(_Training):
    """Training from random weights; the objective is in nats per token of the texts.

    Example:
        >>> GraphTextTrainingRecipe(epochs=2).steps is None
        True
    """

    default_length: ClassVar[Mapping[str, int]] = {"steps": STEPS}


_Writing: Any = options_section(WritingOptions)


class WritingRecipe(_Writing):
    """Beam search for the texts."""


class GraphTextReportRecipe(TopicsReportSection):
    """Contents of the report."""

    samples: int = key(4, "Test texts that are shown with their graphs.", ge=0, le=100)
    seed: Seed = key(0, "Seed of the bootstrap resamples.")


class GraphTextRecipe(MethodRecipe):
    """Recipe of texts about graphs, identified by its section `graph_text`.

    Example:
        >>> recipe = GraphTextRecipe(graph_text={"train": "my.tsv"}, attention={"method": "deterministic"})
        >>> recipe.methods(), recipe.network.heads, recipe.search.num_beams
        ((), 4, 4)
    """

    without: ClassVar[tuple[str, ...]] = ("particles",)  # which keep no cache of keys and values

    introduction = """# Recipes of texts about graphs

A recipe with a section `graph_text` trains GraphWriter on titles, knowledge graphs and texts about them; see
[Texts about graphs](../concepts/graph_text.md). A section without keys, `graph_text: {}`, uses AGENDA. As in
[recipes of texts](reference.md), unknown keys are errors, and `--set` replaces single keys.
"""

    graph_text: GraphTextDataRecipe = key(GraphTextDataRecipe(), "What to train on and to measure on.")
    network: GraphTextNetworkRecipe = key(GraphTextNetworkRecipe(), "The network.")
    attention: AttentionRecipe = key(
        AttentionRecipe(),
        "The attention method; its `kind` is `self` for the graph transformer, `cross` for the decoder.",
    )
    alignment: Alignment
    repulsion: Repulsion
    disagreement: Disagreement
    training: GraphTextTrainingRecipe = key(GraphTextTrainingRecipe(), "How to train.")
    search: WritingRecipe = key(WritingRecipe(), "How to write.")
    prediction: PredictionRecipe = key(
        PredictionRecipe(batch_size=16),
        "How probabilities of the true texts are computed; texts are written without draws.",
    )
    report: GraphTextReportRecipe = key(GraphTextReportRecipe(), "What to report.")
