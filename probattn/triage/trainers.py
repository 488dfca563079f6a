"""Policies of networks that a Hugging Face trainer holds."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.utils.data import Subset

from probattn.checks import PlainWarning
from probattn.files.durable import digest
from probattn.inference.laplace import FITTED, FeatureDistance, Features, last_features, last_layer
from probattn.models.heads.classification import Classifier, MultipleChoice
from probattn.models.program import IGNORED
from probattn.tasks.errors import RunError
from probattn.tasks.progress import shown, tracked
from probattn.triage.calibration import Judged, calibrate, judged_probabilities, judged_scores
from probattn.triage.options import TriageOptions

if TYPE_CHECKING:
    from probattn.trainer import ProbabilisticTrainer
    from probattn.triage.policy import Policy

OWNER = "ProbabilisticTrainer.triage"
WEIGHTS = "weights:"
"""Start of the fingerprint of a network in memory."""
TOKENIZED = {"input_ids", "attention_mask", "token_type_ids"}
LABELS = {"label", "label_ids", "labels"}
OF_TRAINER = {
    "uncertainty": "prediction",
    "num_samples": "num_samples",
    "seed": "args.seed",
    "tolerance": None,
}
"""Options that a trainer's policy does not take, and where the trainer has them."""


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
    for name, of_trainer in OF_TRAINER.items():
        if getattr(options, name) != getattr(TriageOptions(), name):
            advice = f"which is {of_trainer} of the trainer" if of_trainer else "which is for regression"
            raise ValueError(f"{OWNER}: expected no {name}, {advice}, got {getattr(options, name)!r}")
    if dataset is trainer.train_dataset:
        raise ValueError(f"{OWNER}: expected held-out data, got the training data of the trainer")
    watched = trainer.eval_dataset  # or several by name
    if pilot is None and watched is not dataset and not isinstance(watched, dict):
        pilot = watched
    # First, as what is refused then costs nothing.
    distance = None if options.novelty is None else _distance(trainer)
    training = frozenset(_tokens(trainer, trainer.train_dataset) or ())

    def judged(data: Any, name: str) -> Judged:
        return _judged(trainer, _unseen(trainer, data, name, training) if training else data, name, distance)

    policy = calibrate(
        judged(dataset, "the data set"), None if pilot is None else judged(pilot, "pilot"), options
    )
    samples = trainer.num_samples if drawn else 0
    uncertainty = "moments" if trainer.prediction == "moments" else "draws"
    novelty = None if distance is None or policy.novelty is None else policy.novelty.measured_by(distance)
    changed = {
        "num_samples": samples,
        "uncertainty": uncertainty,
        "novelty": novelty,
        "seed": trainer.args.seed,
    }
    if trainer.args.world_size == 1:  # of several processes each may have a part of the weights
        network: Any = trainer.program.net
        changed["network"] = weights_digest(network.state_dict().values())
    return policy.model_copy(update=changed)


def weights_digest(tensors: Iterable[Tensor]) -> str:
    """A fingerprint of the different tensors among a network's weights, whatever their names and order."""
    flat = (tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors)
    return WEIGHTS + digest(sorted({digest([tensor.numpy().tobytes()]) for tensor in flat}))


def _distance(trainer: ProbabilisticTrainer) -> FeatureDistance:
    """The distance from the training data in the features of the last layer; ``RunError`` where there is none."""
    training: Any = trainer.train_dataset
    if not isinstance(trainer.program, Classifier) or isinstance(trainer.program, MultipleChoice):
        got = f"a head of one class for each input, got {type(trainer.program).__name__}"
    elif not hasattr(training, "__len__"):
        got = f"a train_dataset with a length, got {type(training).__name__}"
    elif trainer.args.world_size > 1:
        got = f"one process, got {trainer.args.world_size}"
    else:
        rows = torch.randperm(len(training), generator=torch.Generator().manual_seed(0))[:FITTED]
        features = _features(trainer, Subset(training, rows.sort().values.tolist()), "the training data")
        if features.labels is not None and features.labels.dim() == 1:
            labelled = features.labels != IGNORED
            return FeatureDistance.fit(Features(*(cast(Tensor, item)[labelled] for item in features)))
        got = "a train_dataset with one class for each input, got other labels or none"
    raise RunError(f"{OWNER}: novelty: expected {got}")


def _features(trainer: ProbabilisticTrainer, dataset: Any, name: str) -> Features:
    """What the last layer of a classifier reads of a data set."""
    network: Any = trainer.program.net
    loader = trainer.get_test_dataloader(dataset)
    try:
        layer = last_layer(network, network.config.num_labels)
        with shown(quiet=bool(trainer.args.disable_tqdm)):
            total = len(loader) if hasattr(dataset, "__len__") else None
            batches = map(trainer._prepare_inputs, tracked(loader, f"features of {name}", total))
            return last_features(trainer.program, batches, layer, label_name=trainer.program.label_names[0])
    except ValueError as error:
        raise RunError(f"{OWNER}: novelty: {error}") from error


def _tokens(trainer: ProbabilisticTrainer, dataset: Any) -> list[str] | None:
    """Token ids of the rows, to compare them; None for inputs other than texts, or without a length."""
    if not hasattr(dataset, "__len__") or not len(dataset) or not isinstance(dataset[0], Mapping):
        return None
    trainer._set_signature_columns_if_needed()
    taken = set(cast(Any, trainer._signature_columns)).difference(LABELS, trainer.label_names)
    names = taken.intersection(dataset[0])
    if "input_ids" not in names or not names <= TOKENIZED:
        return None
    rows = (dataset[number]["input_ids"] for number in range(len(dataset)))
    return [str(ids.tolist() if hasattr(ids, "tolist") else ids) for ids in rows]


def _unseen(trainer: ProbabilisticTrainer, dataset: Any, name: str, training: frozenset[str]) -> Any:
    """The rows of held-out data that are not in the training data, with a warning if that leaves some out."""
    inputs = _tokens(trainer, dataset) or []
    unseen = [number for number, tokens in enumerate(inputs) if tokens not in training]
    if len(unseen) == len(inputs):
        return dataset
    told = f"{len(inputs) - len(unseen):,} of its {len(inputs):,} inputs are in the training data too and are left out"
    warnings.warn(f"{OWNER}: {name}: {told}", PlainWarning, stacklevel=5)
    if not unseen:
        raise RunError(f"{OWNER}: {name}: expected held-out inputs, got training data alone")
    return Subset(dataset, unseen)


def _predicted(trainer: ProbabilisticTrainer, dataset: Any, prefix: str) -> Any:
    """A trainer's predictions, without options of the user's by which they are no array of logits."""
    preprocess, joined = trainer.preprocess_logits_for_metrics, trainer.args.eval_do_concat_batches
    trainer.preprocess_logits_for_metrics, trainer.args.eval_do_concat_batches = None, True
    try:
        return trainer.predict(dataset, metric_key_prefix=prefix)
    finally:
        trainer.preprocess_logits_for_metrics, trainer.args.eval_do_concat_batches = preprocess, joined


def _judged(
    trainer: ProbabilisticTrainer, dataset: Any, name: str, distance: FeatureDistance | None
) -> Judged:
    """Predictions of a data set beside its labels; those of tokens, and several labels, are right as a whole."""
    predicted = _predicted(trainer, dataset, "triage_pilot" if name == "pilot" else "triage")
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
    if not numbered and set(names) != set(range(logits.shape[1])):
        words = f"a name in config.id2label for each of {logits.shape[1]} classes"
        raise ValueError(f"{OWNER}: expected {words}, got {names}")
    classes = [str(number if numbered else names[number]) for number in range(logits.shape[1])]
    judged = judged_probabilities(probabilities, target, classes, title=name)
    if distance is None:
        return judged
    read = _features(trainer, dataset, name)
    if not torch.equal(cast(Tensor, read.labels), torch.as_tensor(labels)):
        raise RunError(
            f"{OWNER}: {name}: novelty: expected rows in one order in each evaluation, got two orders"
        )
    return judged.at_distances(distance(read.inputs)[whole])
