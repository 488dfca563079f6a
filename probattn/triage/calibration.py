"""From predictions of held-out inputs to a policy, and to what it does."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from probattn.checks import shown
from probattn.metrics import functional
from probattn.report import RiskCoverage
from probattn.report.columns import drawn_risk_coverage
from probattn.tasks.answering import Drawing
from probattn.tasks.errors import RunError
from probattn.tasks.held_out import NEAR_ONE
from probattn.triage import policy as policies
from probattn.triage.options import Score, TriageOptions
from probattn.triage.shift import Seen, Shift, dataset_shift

PROMISES = (0.01, 0.02, 0.05, 0.1)
"""Errors for which a page says what can be answered."""
LARGER = (0.15, 0.2, 0.3, 0.4)
"""Further ones where none of these is attainable, up to the first that is."""
COSTS = (5.0, 20.0, 100.0)
"""Costs of a wrong answer for which a page says what a decision costs."""
CONFUSIONS = 132
"""Most pairs of classes that are kept: all pairs of twelve classes."""


def mislabelled(answer: policies.Answer, label: Any) -> bool:
    """Whether the class of an answer is another."""
    return bool(answer["label"] != label)


@dataclass(frozen=True)
class Judged:
    """Predictions of a data set with the true labels, for :func:`calibrate`.

    Attributes:
        title: name of the data set.
        role: "validation", "in_domain", "shifted" or "out_of_domain".
        source: where the inputs are from, for messages.
        answers: one dictionary per input, with ``label``, ``probabilities`` by class name, ``entropy`` and
            ``mutual_information``; or with ``uncertainty`` if the prediction is not a single class.
        labels: the true classes or answers; None if they are unknown.
        judge: function of an answer and the true one, True if the answer is wrong.
    """

    title: str
    role: str
    source: str
    answers: Sequence[policies.Answer]
    labels: Sequence[Any] | None
    judge: Callable[[policies.Answer, Any], bool] = mislabelled

    def __len__(self) -> int:
        return len(self.answers)

    def scores(self, score: Score) -> Tensor:
        """Uncertainty of each answer by the measure ``score``, float64 ``[N]``."""
        return torch.tensor(
            [policies.score_of(answer, score) for answer in self.answers], dtype=torch.float64
        )

    @cached_property
    def wrong(self) -> Tensor:
        """Whether each answer is wrong, bool ``[N]``.

        Raises:
            RunError: the classes are unknown.
        """
        if self.labels is None:
            raise RunError(f"{self.source}: expected inputs with their classes, got none")
        pairs = zip(self.answers, self.labels, strict=True)
        return torch.tensor([self.judge(*pair) for pair in pairs], dtype=torch.bool)

    @property
    def distances(self) -> Tensor:
        """Distance of each input from the training data, float64 ``[N]``.

        Raises:
            RunError: the answers have no distances.
        """
        return torch.tensor([policies.distance_of(answer) for answer in self.answers], dtype=torch.float64)

    def at_distances(self, distances: Tensor | None) -> Judged:
        """Returns a copy with the distance of each input from the training data, ``[N]``, unless that is None."""
        if distances is None:
            return self
        pairs = zip(self.answers, distances.double().tolist(), strict=True)
        return replace(self, answers=[{**answer, "distance": far} for answer, far in pairs])

    def near(self, rule: policies.NoveltyRule | None) -> Judged:
        """Returns the inputs nearer than the threshold of a rule; all inputs if it is None."""
        if rule is None:
            return self
        return self.rows((self.distances < rule.threshold).nonzero()[:, 0].tolist())

    def seen(self, score: Score, *, distances: bool = False) -> Seen:
        """Uncertainties and predicted classes, and distances on request, as :func:`dataset_shift` compares them."""
        labels = [answer["label"] if self.classes else "" for answer in self.answers]
        return Seen.of(self.scores(score), labels, self.distances if distances else ())

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; empty if the predictions are not single classes."""
        return tuple(self.answers[0].get("probabilities", ())) if self.answers else ()

    def predicted_as(self, label: str | None) -> Judged:
        """Returns the inputs with this predicted class; all inputs for None."""
        if label is None:
            return self
        return self.rows(row for row, answer in enumerate(self.answers) if answer["label"] == label)

    def rows(self, rows: Iterable[int]) -> Judged:
        """Returns the inputs with these numbers."""
        rows = list(rows)
        labels = None if self.labels is None else [self.labels[row] for row in rows]
        return replace(self, answers=[self.answers[row] for row in rows], labels=labels)


def judged_probabilities(
    probabilities: Tensor,
    target: Tensor | None,
    names: Iterable[str],
    *,
    mutual_information: Tensor | None = None,
    distances: Tensor | None = None,
    title: str = "Held-out inputs",
    role: str = "in_domain",
) -> Judged:
    """Makes input for :func:`calibrate` from class probabilities of any program.

    Args:
        probabilities: probabilities of the classes, ``[N, C]``.
        target: numbers of the true classes, integers ``[N]``; None if they are unknown.
        names: names of the C classes.
        mutual_information: mutual information of label and attention for each prediction, nats, ``[N]``; default 0.
        distances: distance of each input from the training data, ``[N]``, such as of
            :class:`probattn.inference.FeatureDistance`; needed for ``novelty``.
        title: name of the data set.
        role: "validation", "in_domain", "shifted" or "out_of_domain".

    Raises:
        ValueError: wrong shapes, names that are not different strings, or values that are not valid.

    Example:
        >>> judged = judged_probabilities(torch.tensor([[0.75, 0.25]]), torch.tensor([1]), ("bad", "good"))
        >>> judged.answers[0]["label"], judged.wrong
        ('bad', tensor([True]))
    """
    probabilities = torch.as_tensor(probabilities)
    names, target = list(names), None if target is None else torch.as_tensor(target)
    if target is not None and (target.is_floating_point() or target.is_complex()):
        raise ValueError(f"target: expected integers, the numbers of classes, got {target.dtype}")
    if len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"names: expected different words, got {list(names)[:12]}")
    if probabilities.dim() != 2 or probabilities.shape[1] != len(names):
        raise ValueError(
            f"probabilities: expected [N, {len(names)}] for {len(names)} classes, got {list(probabilities.shape)}"
        )
    for name, column in (("mutual_information", mutual_information), ("distances", distances)):
        if column is not None and torch.as_tensor(column).shape != probabilities.shape[:1]:
            raise ValueError(
                f"{name}: expected [{len(probabilities)}], got {list(torch.as_tensor(column).shape)}"
            )
    if target is not None and target.shape != probabilities.shape[:1]:
        raise ValueError(f"target: expected [{len(probabilities)}], got {list(target.shape)}")
    values = probabilities.double()
    unlike = ~((values >= 0).all(dim=-1) & ((values.sum(dim=-1) - 1).abs() < NEAR_ONE))  # NaN too
    if unlike.any():
        row = int(unlike.nonzero()[0])
        raise ValueError(
            f"probabilities: expected rows >= 0 that sum to 1, got {values[row].tolist()[:6]} in row {row}"
        )
    if target is not None and len(target) and not 0 <= int(target.min()) <= int(target.max()) < len(names):
        raise ValueError(
            f"target: expected classes 0..{len(names) - 1}, got {int(target.min())} to {int(target.max())}; leave "
            "inputs without a class out"
        )
    spread = values.new_zeros(len(values)) if mutual_information is None else mutual_information
    answers = [
        {
            "label": names[max(range(len(row)), key=row.__getitem__)],
            "probabilities": dict(zip(names, row, strict=True)),
            "entropy": total,
            "mutual_information": information,
        }
        for row, total, information in zip(
            values.tolist(), functional.entropy(values).tolist(), spread.tolist(), strict=True
        )
    ]
    labels = None if target is None else [names[item] for item in target.tolist()]
    far = None if distances is None else torch.as_tensor(distances)
    return Judged(title, role, title, answers, labels).at_distances(far)


def judged_scores(
    scores: Tensor, wrong: Tensor | None, *, title: str = "Held-out inputs", role: str = "in_domain"
) -> Judged:
    """Makes input for :func:`calibrate` from answers of any program that are not single classes (entities, numbers).

    Args:
        scores: uncertainty of each answer, ``[N]``, in any unit; larger means less certain.
        wrong: whether each answer is wrong, bool ``[N]``; None if that is unknown.
        title: name of the data set.
        role: "validation", "in_domain", "shifted" or "out_of_domain".

    Returns:
        Input for :func:`calibrate` with the default ``score``. ``Policy.decide`` takes ``{"uncertainty": 0.3}``.

    Raises:
        ValueError: the shapes differ, a score is not a finite number, or ``wrong`` is not bool.

    Example:
        >>> judged = judged_scores(torch.arange(100.0), torch.arange(100) >= 80)
        >>> policy = calibrate(judged, None, TriageOptions(error=0.05))
        >>> policy.decide({"uncertainty": 70.0}).words, policy.decide({"uncertainty": 90.0}).words
        ('answer', 'person')
    """
    scores = torch.as_tensor(scores).double()
    wrong = None if wrong is None else torch.as_tensor(wrong)
    if scores.dim() != 1 or not scores.isfinite().all():
        raise ValueError(f"scores: expected finite numbers [N], got {shown(scores.tolist())}")
    if wrong is not None and (wrong.dtype != torch.bool or wrong.shape != scores.shape):
        raise ValueError(f"wrong: expected bool [{len(scores)}], got {wrong.dtype} {list(wrong.shape)}")
    answers = [{"uncertainty": score} for score in scores.tolist()]
    flags = None if wrong is None else wrong.tolist()
    return Judged(title, role, title, answers, flags, lambda _, flag: bool(flag))


def calibrate(calibration: Judged, pilot: Judged | None, options: TriageOptions) -> policies.Policy:
    """Calibrates a policy: the largest threshold of uncertainty that passes the tests of the target error rate.

    Args:
        calibration: held-out predictions on which the target is tested; they must not have been used for any choice.
        pilot: other in-domain predictions, such as of the validation data, which choose the threshold at which the
            sequence of tests starts (:func:`probattn.metrics.functional.sequence_start`). None: the tests start at the
            most confident inputs.
        options: the guarantee, and how the predictions were made; by default with 20 draws of seed 0.

    Returns:
        The policy. If no threshold passes, it answers no input (its limits have no threshold).

    Raises:
        RunError: no inputs, or no true labels; other classes than in ``pilot``; a mutual information of 0 for all
            inputs, if it is the score; ``novelty`` with too few inputs or without distances; or ``by_class`` or
            ``sets`` without classes.
    """
    if not len(calibration):
        raise RunError(f"{calibration.source}: expected held-out inputs, got none")
    if pilot is not None and len(pilot) and set(pilot.classes) != set(calibration.classes):
        raise RunError(
            f"{pilot.source}: expected predictions of the classes {', '.join(calibration.classes[:12])}, got "
            f"{', '.join(pilot.classes[:12])}"
        )
    if options.score == "mutual_information" and not calibration.scores(options.score).any():
        raise RunError(
            f"{calibration.source}: expected a mutual information of some inputs, got 0 for all; give it to "
            "judged_probabilities, or take another score"
        )
    if not calibration.classes and (options.by_class or options.sets not in (None, "interval")):
        option = "by_class" if options.by_class else f"sets {options.sets}"
        raise RunError(
            f"{option}: expected predictions of one class for each input, got others; leave it out"
        )
    novelty, drawing = _novelty(calibration, options), Drawing.of(options=options)
    promised = {name: getattr(options, name) for name in ("error", "confidence", "cost", "score")}
    drawn = {name: getattr(drawing, name) for name in ("uncertainty", "num_samples", "seed")}
    return policies.Policy(
        **promised,
        **drawn,
        limits=tuple(_limits(calibration, pilot, options, novelty)),
        sets=_sets(calibration, options),
        novelty=novelty,
        classes=calibration.classes,
        data=calibration.source,
        size=len(calibration),
        held=calibration.seen(options.score, distances=novelty is not None),
    )


def check_size(size: int, novelty: float) -> None:
    """Refuses fewer held-out inputs than determine the distance that so small a share reaches."""
    if size < (minimum := math.ceil(1 / novelty - 1 - 1e-9)):
        raise RunError(
            f"novelty {novelty:g}: expected {minimum:,} held-out inputs or more, got {size:,}; give a larger share, or "
            "more held-out inputs"
        )


def _novelty(calibration: Judged, options: TriageOptions) -> policies.NoveltyRule | None:
    """The rule by a conformal quantile of the held-out distances, which new in-domain inputs reach as rarely."""
    if options.novelty is None:
        return None
    check_size(len(calibration), options.novelty)
    threshold = functional.conformal_quantile(calibration.distances, error=options.novelty)
    if not 0 < threshold < math.inf:
        raise RunError(
            f"novelty {options.novelty:g}: expected distances from the training data that are positive numbers, got "
            f"{threshold:g} for too many of the held-out inputs"
        )
    return policies.NoveltyRule(share=options.novelty, threshold=threshold)


def _limits(
    calibration: Judged, pilot: Judged | None, options: TriageOptions, novelty: policies.NoveltyRule | None
) -> Iterable[policies.Limit]:
    for label in calibration.classes if options.by_class else (None,):
        started = None if pilot is None else pilot.predicted_as(label)
        yield limit_of(calibration.predicted_as(label), started, options, label, novelty=novelty)


def limit_of(
    calibration: Judged,
    pilot: Judged | None,
    options: TriageOptions,
    label: str | None = None,
    *,
    novelty: policies.NoveltyRule | None,
) -> policies.Limit:
    """The limit for some inputs, predicted as ``label`` unless that is None, tested on those below ``novelty``.

    Given that distance, which is one of theirs, they are as independent as new ones that are nearer.
    """
    size, calibration = len(calibration), calibration.near(novelty)
    pilot = None if pilot is None else pilot.near(novelty)
    scores, wrong = calibration.scores(options.score), calibration.wrong
    if options.error is None:
        assert options.cost is not None
        controlled = functional.cheapest_threshold(
            scores, wrong, cost=options.cost, confidence=options.confidence
        )
    else:
        start = None
        if pilot is not None and len(pilot):
            start = functional.sequence_start(pilot.scores(options.score), pilot.wrong, error=options.error)
        controlled = functional.controlled_threshold(
            scores, wrong, error=options.error, confidence=options.confidence, start=start
        )
    return policies.Limit(
        label=label,
        threshold=_threshold(controlled, options.score, len(calibration.classes)),
        size=size,
        answered=controlled.answered,
        errors=controlled.errors,
        bound=controlled.bound if controlled.attained else None,
    )


def _threshold(controlled: functional.ControlledThreshold, score: Score, classes: int) -> float | None:
    """As a policy holds it: the largest score that there is where all inputs are answered."""
    if not controlled.attained:
        return None
    maximum = 1.0 if score == "least_confidence" else math.log(max(classes, 1)) + 1e-6
    maximum = maximum if classes else sys.float_info.max
    return min(controlled.threshold, maximum)


def _sets(calibration: Judged, options: TriageOptions) -> policies.SetRule | None:
    if options.sets is None or options.error is None:
        return None
    names, labels = calibration.classes, calibration.labels or ()
    if options.sets == "interval":  # Lei et al. 2018, section 5.2
        if not all("scale" in answer for answer in calibration.answers):
            raise RunError("sets interval: expected predictions of numbers, got others; leave it out")
        rows = zip(calibration.answers, labels, strict=True)
        misses = [abs(answer["prediction"] - number) / answer["scale"] for answer, number in rows]
        threshold = functional.conformal_quantile(
            torch.tensor(misses, dtype=torch.float64), error=options.error
        )
    else:
        unknown = sorted(set(labels) - set(names))
        if unknown:
            raise RunError(f"{calibration.source}: expected classes of the network, got {unknown[0]!r}")
        values = [[answer["probabilities"][name] for name in names] for answer in calibration.answers]
        threshold = functional.conformal_threshold(
            torch.tensor(values, dtype=torch.float64),
            torch.tensor([names.index(label) for label in labels]),
            error=options.error,
            score=options.sets,
        )
    return policies.SetRule(
        score=options.sets, error=options.error, threshold=None if math.isinf(threshold) else threshold
    )


def promises(
    calibration: Judged,
    pilot: Judged | None,
    options: TriageOptions,
    novelty: policies.NoveltyRule | None = None,
) -> tuple[policies.Promised, ...]:
    """Coverage at usual target error rates and the policy's, each tested alone, with one threshold for all classes."""
    promised: list[policies.Promised] = []
    usual = {*PROMISES, *(() if options.error is None else (options.error,))}
    for error in sorted({*usual, *LARGER}):
        if error not in usual and any(item.limit.threshold is not None for item in promised):
            continue
        alone = TriageOptions(error=error, confidence=options.confidence, score=options.score)
        limit = limit_of(calibration, pilot, alone, novelty=novelty)
        promised.append(policies.Promised(error=error, limit=limit))
    return tuple(promised)


def error_curve(calibration: Judged, score: Score) -> RiskCoverage:
    """Error among the most confident inputs; see :func:`probattn.report.columns.drawn_risk_coverage`."""
    return drawn_risk_coverage(calibration.scores(score), calibration.wrong.double())


def outcome(judged: Judged, policy: policies.Policy, shift: Shift | None = None) -> policies.Outcome:
    """What becomes of a data set; ``shift`` is that of :func:`shift_of`."""
    labelled, answered = judged.labels is not None, decisions(judged, policy)
    far = None if policy.novelty is None else len(judged) - len(judged.near(policy.novelty))
    return policies.Outcome(
        title=judged.title,
        role=judged.role,
        size=len(judged),
        answered=int(answered.sum()),
        errors=int((answered & judged.wrong).sum()) if labelled else None,
        wrong=int(judged.wrong.sum()) if labelled else None,
        shift=shift,
        far=far,
    )


def shift_of(judged: Judged, policy: policies.Policy) -> Shift | None:
    """How a data set differs from the one that the policy was calibrated on."""
    return dataset_shift(judged.seen(policy.score, distances=policy.novelty is not None), policy.held)


def decisions(judged: Judged, policy: policies.Policy) -> Tensor:
    """Whether each input is answered, bool ``[N]``."""
    return torch.tensor([policy.decide(answer).answered for answer in judged.answers], dtype=torch.bool)


def class_rows(calibration: Judged, answered: Tensor, confidence: float) -> tuple[policies.ClassRow, ...]:
    """What becomes of each class; nothing where there are none."""
    if not calibration.classes:
        return ()
    predicted, labels = [answer["label"] for answer in calibration.answers], calibration.labels or ()
    answered_rows = [row for row, item in enumerate(answered.tolist()) if item]
    counts = {
        "predicted": Counter(predicted),
        "answered": Counter(predicted[row] for row in answered_rows),
        "errors": Counter(predicted[row] for row in answered_rows if predicted[row] != labels[row]),
        "true": Counter(labels),
        "true_answered": Counter(labels[row] for row in answered_rows),
    }
    rows = []
    for name in calibration.classes:
        numbers = {key: count[name] for key, count in counts.items()}
        errors, size = numbers["errors"], numbers["answered"]
        bound = functional.error_bound(errors, size, confidence) if size else None
        rows.append(policies.ClassRow(label=name, bound=bound, **numbers))
    return tuple(rows)


def confusions(calibration: Judged, answered: Tensor) -> tuple[policies.Wrong, ...]:
    """The most frequent wrong predictions; nothing where there are no classes."""
    if not calibration.classes:
        return ()
    pairs = [
        (label, answer["label"])
        for label, answer in zip(calibration.labels or (), calibration.answers, strict=True)
    ]
    wrong = Counter(pair for pair in pairs if pair[0] != pair[1])
    answered_pairs = Counter(pair for pair, item in zip(pairs, answered.tolist(), strict=True) if item)
    return tuple(
        policies.Wrong(
            label=label, predicted=predicted, count=count, answered=answered_pairs[label, predicted]
        )
        for (label, predicted), count in wrong.most_common(CONFUSIONS)
    )


def costs(calibration: Judged, answered: Tensor, policy: policies.Policy) -> tuple[policies.Costs, ...]:
    """Mean cost of a decision, on the calibration data."""
    wrong, size = calibration.wrong, len(calibration)
    errors, left = int((answered & wrong).sum()), int((~answered).sum())
    rows = []
    for cost in COSTS if policy.cost is None else (policy.cost,):
        best = functional.cheapest_threshold(calibration.scores(policy.score), wrong, cost=cost)
        rows.append(
            policies.Costs(
                cost=cost,
                answer_all=cost * int(wrong.sum()) / size,
                policy=(cost * errors + left) / size,
                cheapest=(cost * best.errors + size - best.answered) / size,
                cheapest_answered=best.answered / size,
            )
        )
    return tuple(rows)


def set_sizes(calibration: Judged, policy: policies.Policy) -> dict[int, int] | None:
    """Number of inputs by the size of their set of classes."""
    if policy.sets is None or not policy.classes:
        return None
    return dict(sorted(Counter(len(policy.set_of(answer) or ()) for answer in calibration.answers).items()))
