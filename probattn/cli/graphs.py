"""Commands on graphs; torch-geometric, which they need, is imported only for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from probattn.cli.errors import CommandError, one_line
from probattn.inference.report import Results
from probattn.inference.run import FitResult
from probattn.recipes import GraphRecipe


def train_graph(recipe: GraphRecipe, folder: Path, *, resume: bool, quiet: bool) -> dict[str, FitResult]:
    """Trains what a recipe of a graph asks for.

    Args:
        recipe: of a graph.
        folder: the run's folder, new unless resumed.
        resume: continue a run that was interrupted.
        quiet: no progress bars.

    Returns:
        Results by model.

    Raises:
        CommandError: torch-geometric is not installed, attention cannot be as asked, or the folder holds a run.
        DataError: the graph is not what the recipe says.
    """
    with _needs_torch_geometric():
        from probattn.cli.graph_training import prepare_graph, train_graph_run
    return train_graph_run(prepare_graph(recipe), folder, resume=resume, quiet=quiet)


def evaluate_graph(run: Path, recipe: GraphRecipe, baseline: Path | None) -> Results:
    """Measures a run on a graph.

    Args:
        run: the folder.
        recipe: of the run.
        baseline: None; a run on a graph is compared with the deterministic network beside it.

    Returns:
        The records.

    Raises:
        CommandError: torch-geometric is not installed, the run is not finished, or another baseline is named.
        DataError: the graph is not what it was.
    """
    if baseline is not None:
        raise CommandError(
            f"{run}: expected no --baseline, a run on a graph is compared with the deterministic network beside it "
            "(report.baseline in its recipe)"
        )
    with _needs_torch_geometric():
        from probattn.cli.graph_evaluating import evaluate_graph_run
    return evaluate_graph_run(run, recipe)


@contextmanager
def _needs_torch_geometric() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise CommandError(one_line(error)) from error
