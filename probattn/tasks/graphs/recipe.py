"""Recipes of graphs: data, network, training, report, and all of them together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from pydantic import Field, model_validator

from probattn.data import NodeGraph, load_planetoid
from probattn.models.gat_options import GATOptions
from probattn.options import Count, Filled, Natural
from probattn.tasks.sections.base import ReportSection, Section, Seed, key
from probattn.tasks.sections.derived import drawn_section, options_section
from probattn.tasks.sections.methods import AlignmentRecipe, AttentionRecipe, MethodRecipe
from probattn.tasks.sections.training import DriverSection, EarlyStoppingRecipe, training_keys

_Training: Any = drawn_section(
    {
        "epochs": (
            int,
            key(2000, "Epochs, each one update, unless early stopping ends training before.", ge=1),
        ),
        **training_keys(
            *("device", "seed", "kl_schedule", "log_every", "keep"),
            learning_rate={
                "default": 0.005,
                "description": "Learning rate of Adam; the paper uses 0.01 for Pubmed.",
            },
            site_learning_rate={"default": None},
            weight_decay={
                "default": 5e-4,
                "description": "L2 penalty of all parameters but biases; the paper uses 1e-3 for Pubmed.",
            },
            gradient_clip={"default": None},
            kl_weight={"default": 1.0, "description": "Weight of the KL after its warm-up."},
            kl_warmup_steps={
                "annotation": Natural,
                "default": 100,
                "description": "Updates in which the KL weight rises.",
            },
            checkpoint_every={
                "annotation": Count,
                "default": 100,
                "description": "Updates between checkpoints.",
            },
        ),
        "early_stopping": (
            EarlyStoppingRecipe | None,
            key(
                EarlyStoppingRecipe(
                    metric="log_likelihood", mode="max", patience=100, also={"accuracy": "max"}
                ),
                "Rule that ends training early, evaluated after every update; null for none.",
            ),
        ),
    },
    DriverSection,
)


class GraphTrainingRecipe(_Training):
    """Training on all labelled nodes at once, one update per epoch (Velickovic et al. 2018)."""

    def driver_options(self, **optimizer: Any) -> dict[str, Any]:
        """Options of the training loop; ``optimizer`` are further options of the optimiser."""
        return super().driver_options(name="Adam", **optimizer) | {"scheduler": None}


class GraphDataRecipe(Section):
    """A citation graph, with its standard split and with a self loop at every node."""

    name: str = Field(
        pattern=r"^[\w-]+$",
        description="Name of the graph: `cora`, `citeseer`, `pubmed`, or any other with files in Planetoid's form.",
    )
    folder: Filled | None = key(
        None, "Folder of the files `ind.<name>.*`; null: `<name>` in `PROBATTN_DATA`."
    )
    normalise_rows: bool = key(True, "Whether each node's features are divided by their sum.")

    def load(self) -> NodeGraph:
        """Reads the graph.

        Raises:
            DataError: the data are invalid; the message is one line.
        """
        graph = load_planetoid(self.name, self.folder)
        return (graph.with_normalised_rows() if self.normalise_rows else graph).with_self_loops()

    def path_keys(self) -> Iterable[str]:
        """Keys with paths: the folder."""
        return ("folder",)


_Network: Any = options_section(GATOptions)


class GraphNetworkRecipe(_Network):
    """The graph attention network of Velickovic et al. 2018."""


class GraphPredictionRecipe(Section):
    """Prediction by posterior draws: samples of all latent variables, one forward pass for each."""

    num_samples: Count = key(20, "Posterior draws per prediction.")
    seed: Seed = key(0, "Seed of the posterior draws.")


class GraphReportRecipe(ReportSection):
    """Contents of the report."""

    bins: int = key(10, "Bins of the calibration errors.", ge=2, le=100)


class GraphRecipe(MethodRecipe):
    """Recipe of the classification of a graph's nodes, identified by its section `graph`.

    Example:
        >>> recipe = GraphRecipe(graph={"name": "cora"}, attention={"method": "deterministic"})
        >>> recipe.methods(), recipe.training.learning_rate
        ((), 0.005)
    """

    introduction = """# Recipes of graphs

A recipe with a section `graph` trains a graph attention network on a citation graph; see
[Graph attention](../concepts/graph_attention.md). Only `graph.name` must be given. As in
[recipes of texts](reference.md), unknown keys are errors, and `--set` replaces single keys. The default of
`training.early_stopping` is `{metric: log_likelihood, mode: max, patience: 100, also: {accuracy: max}}`. If a recipe
has its own `training.early_stopping`, keys that it leaves out have the defaults of the table below.
"""

    takes_registered: ClassVar[bool] = False

    graph: GraphDataRecipe = Field(description="The graph to train on and to measure on.")
    network: GraphNetworkRecipe = key(GraphNetworkRecipe(), "The network.")
    attention: AttentionRecipe = key(
        AttentionRecipe(),
        "The attention method, with the keys of recipes for texts. `kind` has no effect. `upward: positions` and "
        "`width_scores: separate` are refused; `preset: paper` needs `upward: heads`, `preset: release` also "
        "`width_scores: shared`.",
    )
    alignment: AlignmentRecipe | None = key(
        None,
        "The alignment of queries and keys over the nodes; null for none. `max_tokens` counts nodes; null means 512.",
    )
    training: GraphTrainingRecipe = key(GraphTrainingRecipe(), "How to train.")
    prediction: GraphPredictionRecipe = key(GraphPredictionRecipe(), "How to predict.")
    report: GraphReportRecipe = key(GraphReportRecipe(), "What to report.")

    @model_validator(mode="after")
    def _suits_a_graph(self) -> GraphRecipe:
        method = self.attention.build()
        if method is not None and method.has_upward_path and method.upward == "positions":
            raise ValueError(
                "attention.upward: expected 'heads', since nodes have no positions, got 'positions'"
            )
        return self
