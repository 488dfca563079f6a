"""Classification of the nodes of a graph. torch-geometric is imported only when it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from probattn.data import NodeGraph
from probattn.files.durable import digest
from probattn.inference import SVIDriver
from probattn.models.program import seeded
from probattn.report import (
    DataSet,
    EdgeAttention,
    ModelKey,
    PredictedData,
    Predictions,
    Results,
    RunDescription,
    evaluate,
)
from probattn.report.measures import capital
from probattn.sites import METHODS, AlignmentAttention, BayesianAttention
from probattn.tasks.answering import Drawing, Limits
from probattn.tasks.errors import RunError, as_run_error
from probattn.tasks.graphs.recipe import GraphRecipe
from probattn.tasks.measured import predictions
from probattn.tasks.networks import Network, check_finished, load_weights, on_device, save_weights
from probattn.tasks.programs import Data, ProgramTask, is_plain_at
from probattn.tasks.task import BASELINE, MODEL
from probattn.tasks.topics import health

if TYPE_CHECKING:
    from probattn.models.graph import NodeClassifier


class Graphs(ProgramTask[GraphRecipe, Results, Data, "NodeClassifier"]):
    """Classification of the nodes of a citation graph, by a graph attention network (Velickovic et al. 2018)."""

    section = "graph"
    recipe_class = GraphRecipe
    unit = "nodes"
    limits = Limits(examples="a graph is predicted as a whole")

    @cached_property
    def graph(self) -> NodeGraph:
        """The graph of the recipe, read once."""
        return self.recipe.graph.load()

    def sizes(self) -> Mapping[str, int]:
        """Number of labelled nodes for training, validation and testing."""
        graph = self.graph
        masks = {"training": graph.train_mask, "validation": graph.validation_mask, "test": graph.test_mask}
        return {name: int(mask.sum()) for name, mask in masks.items()}

    def classes(self) -> Mapping[str, int]:
        """Number of training nodes of each class."""
        counts = torch.bincount(self.graph.labels[self.graph.train_mask], minlength=self.graph.num_classes)
        return dict(zip(self.graph.label_names, counts.tolist(), strict=True))

    def load_data(self) -> Data:
        """Indices of labelled nodes."""
        graph = self.graph
        return Data(graph.rows("train"), graph.rows("validation"), None, {"data": graph_digest(graph)})

    def program(self, *, baseline: bool = False) -> NodeClassifier:
        """The recipe's network as a Pyro program; see :meth:`ProgramTask.program`."""
        with as_run_error(ImportError):  # torch-geometric is not installed
            from probattn.models.graph import GATOptions, GraphAttentionNetwork, NodeClassifier
        recipe, graph = self.recipe, self.graph
        with seeded(recipe.training.seed), as_run_error(ValueError):
            net = GraphAttentionNetwork(
                graph.num_features,
                graph.num_classes,
                GATOptions(**recipe.network.model_dump()),
                attention=None if baseline else recipe.of(BayesianAttention),
                alignment=None if baseline else recipe.of(AlignmentAttention),
                layers=recipe.attention.layers,
            )
        return NodeClassifier(net, graph, num_data=int(graph.train_mask.sum()))

    def driver(self, program: NodeClassifier, **options: Any) -> SVIDriver:
        """The training loop: Adam on the whole graph, with the options of the recipe."""
        data = self.data
        all_nodes = {
            "batch_size": max(len(data.train["nodes"]), len(data.validation["nodes"])),
            "shuffle": False,
        }
        return super().driver(program, **(all_nodes | options))

    def save(self, program: NodeClassifier, folder: Path) -> None:
        """Saves the weights."""
        save_weights(program.net, folder)

    def network(self, folder: Path) -> Network[NodeClassifier]:
        """Makes the network of the recipe, or its baseline, and loads the trained weights."""
        baseline = is_plain_at(self, folder)
        check_finished(folder)
        program = self.program(baseline=baseline)
        load_weights(program.net, folder)
        return Network(on_device(program), folder, "deterministic" if baseline else self.key)

    @property
    def key(self) -> ModelKey:
        """Key of the network in results; of several methods, that of latent attention."""
        return METHODS.key(self.methods) or "deterministic"

    def baselines(
        self, run: Path, baseline: Path | None, network: Network[NodeClassifier]
    ) -> list[Network[NodeClassifier]]:
        """The deterministic network to compare with the run's network."""
        if baseline is not None:
            raise RunError(
                f"{run}: expected no --baseline, a run on a graph is compared with the deterministic network beside it "
                "(report.baseline in its recipe)"
            )
        path = run / BASELINE
        there = not self.is_plain and (path / MODEL).is_dir()
        return [self.network(path)] if there else []

    def words(self) -> Mapping[str, Any]:
        """Descriptions of network and data for the report."""
        graph, network = self.graph, self.recipe.network
        return {
            "network": f"graph attention, {network.heads} heads of {network.features}, {network.output_heads} at the "
            "output",
            "data": f"{graph.source}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges with self loops",
            "train_size": int(graph.train_mask.sum()),
        }

    def measure(self, run: RunDescription, networks: Sequence[Network[NodeClassifier]]) -> Results:
        """Predicts the test nodes with every network and measures the predictions."""
        predicted, report, last = self._predict(networks), self.recipe.report, networks[-1]
        latent, nodes = self.recipe.attention.build(), {"nodes": self._batch(last)["nodes"]}
        measured = evaluate(
            [predicted],
            resamples=report.resamples,
            level=report.level,
            seed=self.recipe.prediction.seed,
            num_bins=report.bins,
        )
        return self.results(
            run,
            networks,
            measured,
            classes=self.graph.label_names,
            data=(predicted.data,),
            health=health(
                last,
                [nodes],
                self.recipe.prediction,
                reduction=None if latent is None else latent.kl_reduction,
                chunk_size=1,
            ),
            edges=tuple(record for network in networks for record in _edges(network)),
        )

    def _batch(self, network: Network[NodeClassifier]) -> dict[str, Tensor]:
        device = network.program.edge_index.device
        return {name: value.to(device) for name, value in self.graph.rows("test").items()}

    def _predict(self, networks: Sequence[Network[NodeClassifier]]) -> PredictedData:
        graph = self.graph
        # A draw is one of the whole graph, so draws cannot share a pass.
        drawing = Drawing.of(self.recipe.prediction)._replace(chunk_size=1)
        models: dict[ModelKey, Predictions] = {}
        for network in networks:
            batches = network.tracked([self._batch(network)], f"predictions of {graph.source} (test)")
            models |= predictions(network, batches, drawing)
        described = DataSet(
            key="test",
            title=f"{capital(graph.source)} (test)",
            role="in_domain",
            size=int(graph.test_mask.sum()),
            labelled=True,
            source=graph.source,
            unit="nodes",
        )
        return PredictedData(described, graph.labels[graph.test_mask], models)


def _edges(network: Network[NodeClassifier]) -> list[EdgeAttention]:
    """Both layers, latent weights at their expectation."""
    from probattn.models.graph import measure_attention

    key: ModelKey = "bayesian_expectation" if network.key == "bayesian_mean" else network.key
    program = network.program
    measured = measure_attention(program.net, program.features, program.edges)
    return [EdgeAttention(model=key, **asdict(layer)) for layer in measured]


def graph_digest(graph: NodeGraph) -> str:
    """A fingerprint of the data, so that a run is not resumed on others."""
    masks = (graph.train_mask, graph.validation_mask, graph.test_mask)
    return digest(
        tensor.numpy().tobytes() for tensor in (graph.features, graph.labels, graph.edge_index, *masks)
    )
