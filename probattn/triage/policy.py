"""A policy, a file beside the run that it is for: up to which uncertainty inputs are answered; and what it does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, PrivateAttr, ValidationError, model_validator

from probattn.checks import shown
from probattn.files.durable import digest, write_atomically
from probattn.files.json_files import first_problem
from probattn.inference.laplace import FeatureDistance
from probattn.metrics.functional import prediction_sets
from probattn.options import DrawingOptions, Uncertainty
from probattn.report.record import Count, Probability, Record, RiskCoverage, RunDescription
from probattn.report.words import WordsExample
from probattn.tasks.errors import RunError
from probattn.tasks.held_out import answer_problem, named
from probattn.triage.options import Score, Sets
from probattn.triage.shift import Seen, Shift

POLICY = "policy.json"
"""Usual name of the file, in the folder of its run."""
FEATURES = ".features.safetensors"
"""Ending of the file beside a policy by which out-of-distribution inputs are detected."""

MOST = 10**8
"""Most held-out inputs, by far; numpy draws no tables of ten times as many."""
Share = Annotated[float, Field(gt=0, lt=1)]
Answer = Mapping[str, Any]
"""An answer of :meth:`probattn.tasks.Answering.predict` as an object for programs."""


class Limit(Record):
    """Threshold of a policy for all inputs, or for the inputs with one predicted class.

    Attributes:
        label: the predicted class; None for all inputs.
        threshold: largest uncertainty at which an input is answered; None if none is answered.
        size: number of held-out inputs.
        answered: number of answered held-out inputs.
        errors: number of wrong answers among the answered held-out inputs.
        bound: upper confidence bound of the error rate among answered inputs; None if none is answered.
    """

    label: str | None
    threshold: float | None
    size: Count
    answered: Count
    errors: Count
    bound: Probability | None

    @model_validator(mode="after")
    def _counts(self) -> Self:
        if not self.errors <= self.answered <= self.size:
            raise ValueError(
                f"expected errors <= answered <= size, got {self.errors}, {self.answered} and {self.size}"
            )
        if self.threshold is None and (self.answered or self.bound is not None):
            raise ValueError(
                f"expected no answers and no bound without a threshold, got {self.answered} answers"
            )
        return self


class SetRule(Record):
    """Rule of conformal sets: a set has the classes whose ``score`` is at most ``threshold``, all for None.

    For the score "interval", a set has the numbers within ``threshold`` predicted scales of the predicted number. Sets
    miss the true class (or number) with a probability of at most ``error``.
    """

    score: Sets
    error: Share
    threshold: float | None


class NoveltyRule(Record):
    """Rule for inputs far from the training data, by their distance in the features of the last layer.

    Attributes:
        share: largest share of in-domain inputs, on average over held-out data, that this rule leaves for human review.
        threshold: distance from which on an input needs human review.
        features: fingerprint of the file with features of the training data beside the policy; None without a file.
    """

    share: Share
    threshold: Annotated[float, Field(gt=0)]
    features: str | None = None
    _content: bytes = PrivateAttr(b"")

    def __eq__(self, other: object) -> bool:
        """Whether the fields are equal, of which ``features`` identifies the content."""
        return isinstance(other, NoveltyRule) and self.model_dump() == other.model_dump()

    __hash__ = Record.__hash__

    def measured_by(self, distance: FeatureDistance) -> NoveltyRule:
        """Returns a copy with the features of the training data, which :func:`write_policy` keeps beside the policy."""
        content = distance.dumped()
        rule = self.model_copy(update={"features": digest([content])})
        rule._content = content
        return rule

    def distance(self, file: Path | str) -> FeatureDistance:
        """Returns the distance from the training data, by the features beside the policy in ``file``.

        Raises:
            RunError: the features are missing, or belong to another policy.
        """
        if digest([self._content]) != self.features:
            raise RunError(
                f"{sibling(policy_file(file), FEATURES)}: expected the features of the training data that {file} was "
                f"made with, got {'others' if self._content else 'no such file'}; keep it beside the policy, or make "
                f"both again with `probattn triage`, --novelty {self.share:g} and the other options of this policy"
            )
        return FeatureDistance.loaded(self._content)


class Policy(Record):
    """Thresholds of uncertainty up to which inputs are answered; all others need human review.

    Attributes:
        kind: "policy".
        error: target error rate among answered inputs; None if the threshold has the least cost.
        confidence: probability, over the held-out data, that the guarantee holds.
        cost: cost of a wrong answer, in units of the cost of a human review; None if not used.
        score: uncertainty measure by which inputs are ordered.
        uncertainty: how probabilities are predicted, by "draws" or "moments".
        num_samples: number of posterior samples; 0 for one forward pass at the posterior expectation.
        seed: seed of the samples.
        limits: one threshold for all inputs, or one for each predicted class.
        sets: rule of conformal sets or intervals; None without them.
        novelty: rule for inputs far from the training data; None without one.
        classes: names of the classes; empty if an answer is not a single class (tokens, several labels, numbers).
        wrong_when: sentence that says when such an answer is wrong; None for classes.
        tolerance: largest difference of a predicted number from the true one that counts as right; None otherwise.
        data: source of the held-out data for calibration.
        size: number of these held-out inputs.
        held: their uncertainties and predicted classes, to test new inputs for a distribution shift.
        network: fingerprint of the network; None if it is not known, as after :func:`probattn.triage.calibrate`.
            ``probattn predict`` refuses such a policy. After ``ProbabilisticTrainer.triage``, that of the weights in
            memory (``"weights:..."``).
        inputs: fingerprint of the held-out data; None if it is not known.
        max_length: number of tokens to which texts were truncated; None if it is not known.
    """

    kind: Literal["policy"] = "policy"
    error: Share | None
    confidence: Share
    cost: Annotated[float, Field(gt=0)] | None
    score: Score
    uncertainty: Uncertainty
    num_samples: Annotated[int, Field(ge=0, le=MOST)]
    seed: Annotated[int, Field(ge=0)]
    limits: Annotated[tuple[Limit, ...], Field(min_length=1)]
    sets: SetRule | None
    novelty: NoveltyRule | None = None
    classes: tuple[str, ...]
    wrong_when: str | None = None
    tolerance: Annotated[float, Field(gt=0)] | None = None
    data: str
    size: Annotated[int, Field(ge=0, le=MOST)]
    held: Seen
    network: str | None = None
    inputs: str | None = None
    max_length: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        """Classes, limits and held-out inputs belong together."""
        labels = [limit.label for limit in self.limits]
        if len(set(self.classes)) != len(self.classes):
            raise ValueError(f"classes: expected different names, got {shown(self.classes)}")
        if labels != [None] and sorted(map(str, labels)) != sorted(self.classes):
            raise ValueError(
                f"limits: expected one for all inputs, or one for each of the classes {', '.join(self.classes[:12])}, "
                f"got {shown(labels)}"
            )
        other = next((name for name in self.held.predicted if name not in (self.classes or ("",))), None)
        if other is not None:
            raise ValueError(f"held.predicted: expected the classes of the policy, got {shown(other)}")
        sizes = {"limits": sum(limit.size for limit in self.limits), "held": self.held.size}
        unequal = next((name for name, size in sizes.items() if size != self.size), None)
        if unequal is not None:
            raise ValueError(f"{unequal}: expected as many inputs as size, {self.size}, got {sizes[unequal]}")
        return self

    def __str__(self) -> str:
        """What is answered of the held-out inputs, and at which error."""
        answered, errors = (
            sum(getattr(limit, name) for limit in self.limits) for name in ("answered", "errors")
        )
        if self.error is not None and not answered:
            target = f"an error of at most {100 * self.error:g}% with {self.confidence:.0%} confidence"
            return (
                f"no input can be answered: {target} cannot be guaranteed with {self.size:,} held-out inputs"
            )
        bound = self.limits[0].bound if len(self.limits) == 1 else None
        upper = "" if bound is None else f", at most {bound:.1%} with {self.confidence:.0%} confidence"
        target = (
            "at the least cost" if self.error is None else f"at an error of at most {100 * self.error:g}%"
        )
        share = answered / max(self.size, 1)
        return f"{answered:,} of {self.size:,} held-out inputs answered ({share:.1%}) {target}: {errors:,} wrong{upper}"

    @property
    def by_class(self) -> bool:
        """Whether each predicted class has a separate guarantee."""
        return self.limits[0].label is not None

    @property
    def drawing(self) -> DrawingOptions:
        """Number of samples, seed and method of predictions, for :meth:`probattn.tasks.Answering.predict`."""
        return DrawingOptions(num_samples=self.num_samples, seed=self.seed, uncertainty=self.uncertainty)

    def decide(self, answer: Answer) -> Decision:
        """Decides whether an input is answered.

        Args:
            answer: the prediction: "label" and "probabilities" by class name (for entropies also "entropy" and
                "mutual_information"), or "uncertainty" if the policy has no classes; "distance" if it has ``novelty``.

        Returns:
            The decision, with conformal set or interval, and distance from the training data, if the policy has them.

        Raises:
            RunError: the policy has other classes, label or probabilities are not valid, or a value is missing.
        """
        answer = named(answer)
        by_name = answer.get("probabilities", {})
        if set(by_name) != set(self.classes):
            got, expected = (
                ", ".join(map(str, list(names)[:12])) or "none" for names in (by_name, self.classes)
            )
            raise RunError(
                f"policy: expected answers of the classes {expected}, got {got}; make it for this run"
            )
        if by_name and (problem := answer_problem(answer)) is not None:
            raise RunError(f"policy: {problem}")
        limits = {limit.label: limit.threshold for limit in self.limits}
        threshold = limits.get(answer["label"] if self.by_class else None)
        novelty = self.novelty_of(answer)
        sure = threshold is not None and score_of(answer, self.score) <= threshold
        reasons = [UNSURE] * (not sure) + [FAR] * (novelty is not None and novelty >= 1)
        return Decision(not reasons, self.set_of(answer), novelty, tuple(reasons), self.interval_of(answer))

    def novelty_of(self, answer: Answer) -> float | None:
        """Distance of an input divided by the threshold of :attr:`novelty`; None without this rule.

        Raises:
            RunError: ``answer`` has no distance.
        """
        return None if self.novelty is None else distance_of(answer) / self.novelty.threshold

    def set_of(self, answer: Answer) -> tuple[str, ...] | None:
        """The conformal set of classes of an input, the most probable first; None without a rule of sets."""
        if self.sets is None or self.sets.score == "interval":
            return None
        by_name: Mapping[str, float] = answer["probabilities"]
        names = sorted(by_name, key=lambda name: -by_name[name])
        if self.sets.threshold is None:
            return tuple(names)
        values = torch.tensor([[by_name[name] for name in names]], dtype=torch.float64)
        inside = prediction_sets(values, self.sets.threshold, score=self.sets.score)[0]
        return tuple(name for name, is_inside in zip(names, inside.tolist(), strict=True) if is_inside)

    def interval_of(self, answer: Answer) -> tuple[float, float] | None:
        """Lower and upper end of the interval of a number; None without a rule, and if they would be infinite."""
        if self.sets is None or self.sets.score != "interval" or self.sets.threshold is None:
            return None
        half = self.sets.threshold * answer["scale"]
        return answer["prediction"] - half, answer["prediction"] + half


ANSWER, PERSON = "answer", "person"
"""Decisions."""
UNSURE, FAR, CHECKED = "unsure", "unlike the training data", "audit"
"""Why an input goes to human review; answers of the last kind are a random sample."""


@dataclass(frozen=True)
class Decision:
    """Decision of a policy on an input.

    Attributes:
        answered: whether the input is answered; otherwise it needs human review.
        classes: conformal set of classes; None if the policy has no sets.
        novelty: distance from the training data divided by its threshold; None if the policy has no such rule.
        reasons: why the input needs human review ("unsure", "unlike the training data", "no text"). Empty for an
            answer; "audit" for an answer in the random sample that people check.
        interval: ends of the interval of the number; None if the policy has no intervals.
    """

    answered: bool
    classes: tuple[str, ...] | None
    novelty: float | None = None
    reasons: tuple[str, ...] = ()
    interval: tuple[float, float] | None = None

    @property
    def words(self) -> str:
        """The decision as in files of predictions: "answer", or "person" for human review."""
        return ANSWER if self.answered else PERSON


def score_of(answer: Answer, score: Score) -> float:
    """The uncertainty of an answer: of one without classes its "uncertainty", or of its entropies.

    Raises:
        RunError: that is not there.

    Example:
        >>> answer = {"label": "a", "probabilities": {"a": 0.75, "b": 0.25}}
        >>> given = answer | {"entropy": 0.5623, "mutual_information": 0.1}
        >>> [round(score_of(given, name), 4) for name in ("least_confidence", "expected_entropy")]
        [0.25, 0.4623]
    """
    lacking = {"uncertainty"} if score == "least_confidence" else {"entropy", "mutual_information"}
    if "probabilities" not in answer and (lacking := lacking - answer.keys()):
        raise RunError(
            f"score {score}: expected answers with {' and '.join(sorted(lacking))}, got {', '.join(answer) or 'none'}"
        )
    if score == "least_confidence":  # the other classes have digits where the first rounds to 1
        others = (value for name, value in answer.get("probabilities", {}).items() if name != answer["label"])
        return float(answer["uncertainty"] if "uncertainty" in answer else sum(others))
    entropy, information = float(answer["entropy"]), float(answer["mutual_information"])
    values = {"predictive_entropy": entropy, "expected_entropy": entropy - information}
    return values.get(score, information)


def distance_of(answer: Answer) -> float:
    """The distance of an input from the training data, infinite where it is no number; ``RunError`` without one."""
    distance = answer.get("distance")
    if distance is None:
        raise RunError(
            "policy: expected the distance of each input, by which it abstains, got none; give distances to "
            "judged_probabilities"
        )
    return math.inf if math.isnan(distance) else float(distance)


def write_policy(policy: Policy, path: Path | str) -> Path:
    """Writes a policy as JSON and returns the path; an older file is replaced in one step.

    If it has ``novelty``, the features of the training data are written to ``triage.features.safetensors`` beside it,
    for a policy ``NAME.json`` to ``NAME.triage.features.safetensors``.

    Raises:
        OSError: the file cannot be written; an older file is unchanged.
    """
    path = Path(path)
    if policy.novelty is not None and policy.novelty._content:
        write_atomically(sibling(path, FEATURES), policy.novelty._content)
    write_atomically(path, (policy.model_dump_json(indent=1) + "\n").encode())
    if policy.novelty is None:
        sibling(path, FEATURES).unlink(missing_ok=True)  # of the policy that was replaced
    return path


def sibling(policy: Path, ending: str) -> Path:
    """The page, the records or the features of a policy, beside its file.

    Example:
        >>> [sibling(Path(name), ".html").name for name in ("policy.json", "urgent.json")]
        ['triage.html', 'urgent.triage.html']
    """
    stem = "" if policy.name == POLICY else f"{policy.stem}."
    return policy.with_name(f"{stem}triage{ending}")


def policy_file(path: Path | str) -> Path:
    """The file of a policy, of the folder of its run too."""
    path = Path(path)
    return path / POLICY if path.is_dir() else path


def read_policy(path: Path | str) -> Policy:
    """Reads a policy that :func:`write_policy` or ``probattn triage`` wrote.

    Args:
        path: the file, or a folder with ``policy.json``, such as that of a run.

    Raises:
        RunError: there is no policy, or the file is damaged.
    """
    file = policy_file(path)
    try:
        policy = Policy.model_validate_json(file.read_bytes())
        if policy.novelty is not None and (features := sibling(file, FEATURES)).exists():
            policy.novelty._content = features.read_bytes()
        return policy
    except OSError as error:
        raise RunError(
            f"{file}: expected a policy, it cannot be read ({error.strerror or error}); `probattn triage RUN` makes one"
        ) from None
    except ValidationError as error:
        raise RunError(f"{file}: expected a policy: {first_problem(error)}; make it again") from None


class Promised(Record):
    """What can be answered at another target error rate."""

    error: Probability
    limit: Limit


class Outcome(Record):
    """Results of a policy on a data set.

    Attributes:
        title: name of the data set.
        role: "validation", "in_domain", "shifted" or "out_of_domain".
        size: number of inputs.
        answered: number of answered inputs.
        errors: number of wrong answers among them; None if the true classes are unknown.
        wrong: number of wrong predictions among all inputs; None if the true classes are unknown.
        shift: difference from the calibration data; None for the calibration data, and without inputs.
        far: number of inputs beyond the distance of :class:`NoveltyRule`; None if the policy has no such rule.
    """

    title: str
    role: str
    size: Count
    answered: Count
    errors: Count | None
    wrong: Count | None
    shift: Shift | None = None
    far: Count | None = None


class ClassRow(Record):
    """Numbers of inputs predicted as a class (all, answered, answered wrongly) and truly of it (all, answered)."""

    label: str
    predicted: Count
    answered: Count
    errors: Count
    bound: Probability | None
    true: Count
    true_answered: Count


class Wrong(Record):
    """Number of inputs of class ``label`` that were predicted as class ``predicted``, and how many were answered."""

    label: str
    predicted: str
    count: Count
    answered: Count


class Costs(Record):
    """Mean cost of a decision, where a review costs 1: all answered, by the policy, at the cheapest threshold."""

    cost: Annotated[float, Field(gt=0)]
    answer_all: Annotated[float, Field(ge=0)]
    policy: Annotated[float, Field(ge=0)]
    cheapest: Annotated[float, Field(ge=0)]
    cheapest_answered: Probability


class TriageResults(Record):
    """Content of ``triage.json`` and of the page ``triage.html`` on a policy.

    Attributes:
        kind: "triage".
        run: description of the run.
        policy: the policy.
        promises: thresholds for other target error rates, each tested separately.
        curve: error rate among the most confident inputs of the calibration data, by coverage.
        outcomes: results of the policy on each data set, the calibration data first.
        pilot: difference of the validation data, which choose where the tests start, from the calibration data.
        classes: results by class on the calibration data.
        confused: wrong predictions of the calibration data, the most frequent first.
        costs: mean costs of a decision, by cost of a wrong answer.
        set_sizes: number of calibration inputs by the size of their conformal set; None without sets.
        doubts: sentences about problems of the calibration data.
        examples: calibration inputs for human review, with the words for and against the prediction.
    """

    kind: Literal["triage"] = "triage"
    run: RunDescription
    policy: Policy
    promises: tuple[Promised, ...]
    curve: RiskCoverage
    outcomes: tuple[Outcome, ...]
    pilot: Shift | None = None
    classes: tuple[ClassRow, ...]
    confused: tuple[Wrong, ...]
    costs: tuple[Costs, ...]
    set_sizes: Mapping[int, Count] | None
    doubts: tuple[str, ...] = ()
    examples: tuple[WordsExample, ...] = ()
