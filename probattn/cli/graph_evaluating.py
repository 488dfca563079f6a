"""From a finished run on a graph to the records of its report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from probattn.cli.description import method_words, spent
from probattn.cli.errors import CommandError, one_line
from probattn.cli.evaluating import RECORDS, now, package_versions
from probattn.cli.graph_training import WEIGHTS, PreparedGraph, build_node_classifier
from probattn.cli.trained import BASELINE, MODEL, RECIPE
from probattn.files.manifest import DamagedFolderError, verify_folder
from probattn.inference.records import Record, read_records
from probattn.inference.report import (
    DataSet,
    EdgeAttention,
    ModelKey,
    PredictedData,
    Predictions,
    Results,
    RunDescription,
    evaluate,
    predict_bayesian,
    predict_deterministic,
    site_health,
    training_curves,
    weight_spreads,
)
from probattn.models.graph import NodeClassifier, measure_attention
from probattn.recipes import GraphRecipe
from probattn.sites import BayesianAttention


@dataclass(frozen=True)
class TrainedGraph:
    """A network of a run on a graph.

    Attributes:
        prepared: recipe and data.
        model: the program, on the device where it predicts.
        folder: of its records.
        baseline: whether it is the deterministic network beside the run's own.
    """

    prepared: PreparedGraph
    model: NodeClassifier
    folder: Path
    baseline: bool = False

    @property
    def key(self) -> ModelKey:
        """What it is called in records: latent attention comes before alignment."""
        recipe = self.prepared.recipe
        if not self.baseline and recipe.of(BayesianAttention) is not None:
            return "bayesian_mean"
        return "deterministic" if self.baseline or not recipe.methods() else "aligned"

    @property
    def records(self) -> list[Record]:
        """What was recorded in training."""
        return read_records(self.folder / RECORDS)


def load_node_classifier(run: Path, prepared: PreparedGraph, *, baseline: bool = False) -> TrainedGraph:
    """Loads the trained network of a run folder, or its baseline.

    Raises:
        CommandError: the folder holds no finished run.
    """
    folder = run / BASELINE if baseline else run
    file = folder / MODEL / WEIGHTS
    if not file.is_file():
        raise CommandError(
            f"{run}: expected a finished run with {file.relative_to(run)}, found none; train it first"
        )
    model = build_node_classifier(prepared, baseline=baseline)
    try:
        verify_folder(file.parent)
        model.net.load_state_dict(load_file(file))
    except (DamagedFolderError, OSError, SafetensorError, RuntimeError) as error:
        reason = one_line(error)
        raise CommandError(
            f"{file}: does not fit its recipe, or is damaged ({reason}); train it again"
        ) from error
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return TrainedGraph(prepared, model.to(device or torch.device("cpu")).eval(), folder, baseline)


def evaluate_graph_run(run: Path, recipe: GraphRecipe) -> Results:
    """Predicts the test nodes with the run's network, and its baseline if there is one, and measures what came out.

    Args:
        run: the folder.
        recipe: of the run.

    Returns:
        The records.

    Raises:
        CommandError: the folder holds no finished run.
        DataError: the graph is not what it was.
    """
    prepared = PreparedGraph(recipe, recipe.graph.load())
    trained = load_node_classifier(run, prepared)
    networks = [trained]
    if trained.key != "deterministic" and (run / BASELINE / MODEL).is_dir():
        networks.insert(0, load_node_classifier(run, prepared, baseline=True))
    predicted = _predict(networks)
    measured = evaluate(
        [predicted],
        resamples=recipe.report.resamples,
        level=recipe.report.level,
        seed=recipe.prediction.seed,
        num_bins=recipe.report.bins,
    )
    details: dict[str, Any] = {"health": _health(trained)} if trained.key == "bayesian_mean" else {}
    return Results(
        run=_describe(run, trained),
        classes=prepared.graph.label_names,
        data=(predicted.data,),
        scores=measured.scores,
        differences=measured.differences,
        curves=tuple(curve for each in networks for curve in training_curves(each.records, each.key)),
        edges=tuple(record for each in networks for record in _edges(each)),
        **details,
    )


def _batch(trained: TrainedGraph) -> dict[str, torch.Tensor]:
    device = trained.model.edge_index.device
    return {name: value.to(device) for name, value in trained.prepared.graph.rows("test").items()}


def _predict(networks: list[TrainedGraph]) -> PredictedData:
    graph, prediction = networks[-1].prepared.graph, networks[-1].prepared.recipe.prediction
    models: dict[ModelKey, Predictions] = {}
    for trained in networks:
        batches = [_batch(trained)]
        if trained.key == "bayesian_mean":
            # A draw is one of the whole graph, so draws cannot share a pass.
            drawn = predict_bayesian(
                trained.model, batches, prediction.num_samples, seed=prediction.seed, chunk_size=1
            )
            models["bayesian_mean"] = Predictions.from_draws(drawn.draws)
            models["bayesian_expectation"] = Predictions(drawn.expectation)
            continue
        found = predict_deterministic(trained.model, batches, prediction.num_samples, seed=prediction.seed)
        models[trained.key] = (
            Predictions(found.probabilities)
            if found.draws is None
            else Predictions(found.probabilities, found.draws, "dropout")
        )
    size = int(graph.test_mask.sum())
    described = DataSet(
        key="test",
        title=f"{graph.source.capitalize()} (test)",
        role="in_domain",
        size=size,
        labelled=True,
        source=graph.source,
        unit="nodes",
    )
    return PredictedData(described, graph.labels[graph.test_mask], models)


def _edges(trained: TrainedGraph) -> list[EdgeAttention]:
    """Both layers, latent weights at their expectation."""
    key: ModelKey = "bayesian_expectation" if trained.key == "bayesian_mean" else trained.key
    model = trained.model
    measured = measure_attention(model.net, model.features, model.edges)
    return [EdgeAttention(model=key, **asdict(layer)) for layer in measured]


def _health(trained: TrainedGraph) -> tuple[Any, ...]:
    prediction = trained.prepared.recipe.prediction
    batch = {"nodes": _batch(trained)["nodes"]}
    spreads = weight_spreads(
        trained.model, [batch], prediction.num_samples, seed=prediction.seed, chunk_size=1
    )
    with_sites = [item["sites"] for item in trained.records if item.get("sites")]
    method = trained.prepared.recipe.attention.build()
    assert method is not None
    return tuple(site_health(spreads, with_sites[-1], method.kl_reduction)) if with_sites else ()


def _describe(run: Path, trained: TrainedGraph) -> RunDescription:
    recipe, graph = trained.prepared.recipe, trained.prepared.graph
    network = recipe.network
    return RunDescription(
        name=recipe.name,
        method=method_words(recipe),
        network=f"graph attention, {network.heads} heads of {network.features}, {network.output_heads} at the output",
        data=f"{graph.source}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges with self loops",
        train_size=int(graph.train_mask.sum()),
        **spent(run),
        num_samples=recipe.prediction.num_samples,
        device=f"{trained.model.edge_index.device.type}, float32",
        seed=recipe.training.seed,
        created=now(),
        versions=package_versions(),
        recipe=(run / RECIPE).read_text(encoding="utf-8"),
        commands=(f"probattn train {run / RECIPE} --output NEW_FOLDER", "probattn report NEW_FOLDER"),
    )
