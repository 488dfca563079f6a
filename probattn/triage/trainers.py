"""Policies of networks that a Hugging Face trainer holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from probattn.models.heads.classification import MultipleChoice
from probattn.models.program import IGNORED
from probattn.tasks.errors import RunError
from probattn.triage.calibration import Judged, calibrate, judged_probabilities, judged_scores
from probattn.triage.options import TriageOptions

if TYPE_CHECKING:
    from probattn.trainer import ProbabilisticTrainer
    from probattn.triage.policy import Policy

OWNER = "ProbabilisticTrainer.triage"


def triage_trainer(trainer: ProbabilisticTrainer, dataset: Any, pilot: Any, options: TriageOptions) -> Policy:
    """See :meth:`probattn.trainer.ProbabilisticTrainer.triage`."""
    if trainer.program.link == "identity":
        raise ValueError(
            f"{OWNER}: expected a head of classes, tokens or labels, got {type(trainer.program).__name__}"
        )
    drawn = trainer.prediction != "mean"
    if options.score == "mutual_information" or (drawn and options.score == "expected_entropy"):
        raise ValueError(
            f"{OWNER}: score: expected 'least_confidence' or 'predictive_entropy', since a trainer keeps no draws, got "
            f"{options.score!r}; give those of posterior_predict to probattn.triage.judged_probabilities and calibrate"
        )
    watched = trainer.eval_dataset  # or several by name
    if pilot is None and watched is not dataset and not isinstance(watched, dict):
        pilot = watched
    policy = calibrate(
        _judged(trainer, dataset, "the data set"),
        None if pilot is None else _judged(trainer, pilot, "pilot"),
        options,
    )
    samples = trainer.num_samples if drawn else 0
    uncertainty = "moments" if trainer.prediction == "moments" else "draws"
    return policy.model_copy(update={"num_samples": samples, "uncertainty": uncertainty})


def _judged(trainer: ProbabilisticTrainer, dataset: Any, name: str) -> Judged:
    """Predictions of a data set beside its labels; those of tokens, and several labels, are right as a whole."""
    predicted = trainer.predict(dataset, metric_key_prefix="triage")
    logits: Any = predicted.predictions
    if logits is None:
        raise RunError(f"{OWNER}: {name}: expected held-out inputs, got none")
    labels: Any = predicted.label_ids
    logits = logits[0] if isinstance(logits, tuple) else logits
    labelled = labels is not None and not isinstance(labels, tuple) and labels.shape
    several, tokens = trainer.program.link == "sigmoid", logits.ndim == 3
    if labelled != (logits.shape if several else logits.shape[:-1]) or logits.ndim != 2 + tokens:
        expected = "logits [N, C] and one class a row (labels.argmax(-1) of soft labels), or those of tokens or labels"
        got = f"predictions {list(logits.shape)} and {list(labelled) if labelled else 'no labels'}"
        raise ValueError(f"{OWNER}: {name}: expected {expected}, got {got}")
    values, target = trainer.program.aligned(torch.as_tensor(logits).double(), torch.as_tensor(labels))
    observed = trainer.program.is_observed(target).reshape(len(target), -1)
    # An input without all its labels, or of tokens without any, is neither right nor wrong.
    whole = observed.any(dim=1) if tokens else observed.all(dim=1)
    values, target = values[whole], target[whole]
    if not len(target):
        raise RunError(f"{OWNER}: {name}: expected held-out inputs with labels, got none")
    if several:
        probabilities = values.sigmoid()
        doubts, errors = torch.minimum(probabilities, 1 - probabilities), (values > 0) != (target > 0.5)
        return judged_scores(doubts.amax(dim=1), errors.any(dim=1), title=name)
    best, guesses = (probabilities := values.softmax(dim=-1)).max(dim=-1)
    if tokens:
        doubts, errors = (values * (target != IGNORED) for values in (1 - best, guesses != target))
        return judged_scores(doubts.amax(dim=1), errors.any(dim=1), title=name)
    numbered = isinstance(trainer.program, MultipleChoice)  # whose choices have no names
    names: Any = cast(Any, trainer.program.net).config.id2label
    classes = [str(number if numbered else names[number]) for number in range(logits.shape[1])]
    return judged_probabilities(probabilities, target, classes, title=name)
