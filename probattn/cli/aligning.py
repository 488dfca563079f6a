"""How far apart the queries and keys of a finished run's networks lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from probattn.cli.errors import CommandError
from probattn.cli.trained import EvaluationOptions, TrainedModel
from probattn.data import TextDataset
from probattn.inference.report import (
    Alignment,
    ModelKey,
    TokenSample,
    clouds,
    gather,
    head_bandwidths,
    site_alignments,
)
from probattn.models import AttentionCalls, CapturedCall, capture, inspect
from probattn.recipes import Recipe


def measure_alignment(
    trained: TrainedModel, baseline: TrainedModel | None, data: TextDataset, options: EvaluationOptions
) -> Alignment | None:
    """Compares queries and keys of the calls that conversion changed, with the baseline's beside them.

    The bandwidth of the kernel is the baseline's, so that it does not move with what is measured; without a baseline
    it is the network's own.

    Args:
        trained: the run's network.
        baseline: the deterministic network beside it.
        data: the texts; a fixed choice of ``report.alignment_texts`` is looked at.
        options: how the run is evaluated.

    Returns:
        The records; None where no text is to be looked at.
    """
    report = options.report
    if not report.alignment_texts:
        return None
    chosen = data.take(report.alignment_texts)
    calls = inspect(trained.net)
    models: dict[ModelKey, TrainedModel] = {} if baseline is None else {"deterministic": baseline}
    models[trained.key] = trained
    samples = {key: gather(captured(model, chosen, options, calls)) for key, model in models.items()}
    first = next(iter(samples))
    bandwidths = {name: head_bandwidths(sample) for name, sample in samples[first].items()}
    shown = [call.name for call in inspect(trained.net, layers=report.map_layers)]
    return Alignment(
        texts=len(chosen),
        bandwidth_of=first,
        sites=tuple(
            record for key, found in samples.items() for record in site_alignments(found, bandwidths, key)
        ),
        projection=report.projection,
        clouds=tuple(
            cloud
            for key, found in samples.items()
            for name in shown
            for cloud in clouds(found[name], key, name, projection=report.projection, seed=options.seed)
        ),
    )


def captured(
    model: TrainedModel, data: TextDataset, options: EvaluationOptions, calls: AttentionCalls
) -> Iterator[Mapping[str, CapturedCall]]:
    """Queries and keys of a network on every batch of a data set."""
    for batch in model.batches(data, options):
        inputs = {name: tensor.to(model.device) for name, tensor in batch.items() if name != "labels"}
        yield capture(model.net, inputs, calls)


def token_samples(
    model: TrainedModel, data: TextDataset, options: EvaluationOptions
) -> dict[str, TokenSample]:
    """Queries and keys of every attention call of a network over a data set, by call."""
    return gather(captured(model, data, options, inspect(model.net)))


def check_projection(recipe: Recipe) -> None:
    """Refuses a figure that cannot be drawn before anything is trained for it.

    Raises:
        CommandError: the recipe asks for t-SNE, and scikit-learn is not there.
    """
    wanted = (
        recipe.alignment is not None and recipe.report.alignment_texts and recipe.report.projection == "tsne"
    )
    if wanted and find_spec("sklearn") is None:
        raise CommandError(
            "report.projection: 'tsne' needs the package scikit-learn, which is not installed; install it: "
            "pip install 'probattn[figures]', or set it to 'pca'"
        )
