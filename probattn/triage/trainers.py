"""Policies of networks that a Hugging Face trainer holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from probattn.triage.calibration import Judged, calibrate, judged_probabilities
from probattn.triage.options import TriageOptions

if TYPE_CHECKING:
    from probattn.trainer import ProbabilisticTrainer
    from probattn.triage.policy import Policy

OWNER = "ProbabilisticTrainer.triage"


def triage_trainer(trainer: ProbabilisticTrainer, dataset: Any, pilot: Any, options: TriageOptions) -> Policy:
    """See :meth:`probattn.trainer.ProbabilisticTrainer.triage`."""
    if trainer.program.link != "softmax":
        raise ValueError(f"{OWNER}: expected a head that gives each input one class, got {trainer.program}")
    watched = trainer.eval_dataset  # or several by name
    if pilot is None and watched is not dataset and not isinstance(watched, dict):
        pilot = watched
    return calibrate(
        _judged(trainer, dataset, "the data set"),
        None if pilot is None else _judged(trainer, pilot, "pilot"),
        options,
    )


def _judged(trainer: ProbabilisticTrainer, dataset: Any, name: str) -> Judged:
    """Predictions of a data set beside its labels."""
    predicted = trainer.predict(dataset, metric_key_prefix="triage")
    logits: Any = predicted.predictions
    labels: Any = predicted.label_ids
    logits = logits[0] if isinstance(logits, tuple) else logits
    if labels is None or logits.ndim != 2 or labels.shape != logits.shape[:1]:
        shapes = (
            f"predictions {list(logits.shape)} and {'no labels' if labels is None else list(labels.shape)}"
        )
        raise ValueError(f"{OWNER}: {name}: expected logits [N, C] and one class a row, got {shapes}")
    names = cast(Any, trainer.program.net).config.id2label
    probabilities = torch.as_tensor(logits).double().softmax(dim=-1)
    classes = [str(names[number]) for number in range(logits.shape[1])]
    return judged_probabilities(probabilities, torch.as_tensor(labels), classes, title=name)
