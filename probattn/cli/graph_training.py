"""From a recipe of a graph to a finished run folder."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from probattn.cli.driving import part_names, train_parts
from probattn.cli.errors import CommandError, one_line
from probattn.cli.trained import BASELINE
from probattn.cli.training import accuracy, check_folder
from probattn.data import NodeGraph
from probattn.files.durable import write_tensors
from probattn.files.manifest import write_manifest
from probattn.inference import AttentionGuide, SVIDriver
from probattn.inference.optimizers import OptimizerOptions
from probattn.inference.options import EarlyStopping, KLSchedule
from probattn.inference.run import FitResult
from probattn.models.graph import GATOptions, GraphAttentionNetwork, NodeClassifier
from probattn.recipes import GraphRecipe

WEIGHTS = "weights.safetensors"
"""The network of a run, in its folder for the model."""


@dataclass(frozen=True)
class PreparedGraph:
    """What can be refused, made before the first file is written.

    Attributes:
        recipe: what was asked for.
        graph: the data.
    """

    recipe: GraphRecipe
    graph: NodeGraph


def prepare_graph(recipe: GraphRecipe) -> PreparedGraph:
    """Reads the graph.

    Raises:
        DataError: it is not what the recipe says.
    """
    return PreparedGraph(recipe, recipe.graph.load())


def build_node_classifier(prepared: PreparedGraph, *, baseline: bool) -> NodeClassifier:
    """The recipe's network as a Pyro program, or its deterministic baseline; same seed, same initial weights.

    Raises:
        CommandError: attention cannot be as asked.
    """
    recipe, graph = prepared.recipe, prepared.graph
    attention, alignment = (None, None) if baseline else recipe.methods()
    with torch.random.fork_rng():
        torch.manual_seed(recipe.training.seed)
        try:
            net = GraphAttentionNetwork(
                graph.num_features,
                graph.num_classes,
                GATOptions(**recipe.network.model_dump()),
                attention=attention,
                alignment=alignment,
                layers=recipe.attention.layers,
            )
        except ValueError as error:
            raise CommandError(one_line(error)) from error
    return NodeClassifier(net, graph, num_data=int(graph.train_mask.sum()))


def fit_graph(
    prepared: PreparedGraph,
    model: NodeClassifier,
    folder: Path | None = None,
    *,
    resume: bool = False,
    quiet: bool = False,
) -> FitResult:
    """Trains a program as its recipe says.

    Args:
        prepared: recipe and data.
        model: as :func:`build_node_classifier` makes it.
        folder: where records and checkpoints go; None keeps nothing.
        resume: continue a run that was interrupted.
        quiet: no progress bar.

    Returns:
        What came out; the model holds the weights to keep.
    """
    training, alignment = prepared.recipe.training, prepared.recipe.alignment
    train, validation = prepared.graph.rows("train"), prepared.graph.rows("validation")
    rule = training.early_stopping
    driver = SVIDriver(
        model,
        guide=AttentionGuide(model),
        optimizer=OptimizerOptions(
            "Adam",
            training.learning_rate,
            training.site_learning_rate,
            None if alignment is None else alignment.learning_rate,
            training.weight_decay,
        ),
        scheduler=None,
        kl_schedule=KLSchedule(
            training.kl_schedule, final=training.kl_weight, warmup_steps=training.kl_warmup_steps
        ),
        batch_size=max(len(train["nodes"]), len(validation["nodes"])),  # the whole graph at once
        shuffle=False,
        cpu=training.device == "cpu",
        max_grad_norm=training.gradient_clip,
        seed=training.seed,
        log_every=training.log_every,
        checkpoint_every=training.checkpoint_every,
        keep_last=training.keep,
        early_stopping=None if rule is None else EarlyStopping(**rule.model_dump()),
        validation_metrics=accuracy,
        folder=folder,
        fingerprint={"data": graph_digest(prepared.graph)},
        progress=not quiet,
    )
    return driver.fit(train, validation, epochs=training.epochs, resume="auto" if resume else False)


def train_graph_run(
    prepared: PreparedGraph, folder: Path, *, resume: bool = False, quiet: bool = False
) -> dict[str, FitResult]:
    """Trains what the recipe asks for: its network and, beside a latent or aligned one, the deterministic baseline.

    Args:
        prepared: recipe and data.
        folder: the run's folder, new unless resumed.
        resume: continue a run that was interrupted.
        quiet: no progress bars.

    Returns:
        Results by model: "model" and, if trained, "baseline".

    Raises:
        CommandError: the folder holds a run already, or none to resume.
    """
    recipe = prepared.recipe
    check_folder(recipe, folder, resume)
    names = part_names(any(recipe.methods()), recipe.report.baseline)
    models = {name: build_node_classifier(prepared, baseline=name == BASELINE) for name in names}

    def fit(model: NodeClassifier, place: Path) -> FitResult:
        return fit_graph(prepared, model, place, resume=resume, quiet=quiet)

    def keep(model: NodeClassifier, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        write_tensors(target / WEIGHTS, model.net.state_dict())
        write_manifest(target)

    return train_parts(recipe, folder, models, fit, keep)


def graph_digest(graph: NodeGraph) -> str:
    """A fingerprint of the data, so that a run is not resumed on others."""
    digest = hashlib.sha256()
    masks = (graph.train_mask, graph.validation_mask, graph.test_mask)
    for tensor in (graph.features, graph.labels, graph.edge_index, *masks):
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:16]
