"""Policies of finished runs: their predictions of held-out data, kept beside them, and what follows from those."""

from __future__ import annotations

import inspect
import shlex
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from torch import Tensor

from probattn.data import DataWarning
from probattn.files.durable import write_atomically
from probattn.inference import Explanation
from probattn.inference.laplace import FeatureDistance
from probattn.report import Example, Sheet, WordsExample
from probattn.tasks import RunError, Task, required
from probattn.tasks.answering import Answering, Deciding, Drawing
from probattn.tasks.held_out import HeldOut, network_digest
from probattn.tasks.networks import in_batches
from probattn.tasks.progress import note, shown, tracked
from probattn.triage import calibration
from probattn.triage import page as pages
from probattn.triage import policy as policies
from probattn.triage.options import TriageOptions
from probattn.triage.queue import REVIEWED, SPANS, spans, task_of, write_tasks
from probattn.triage.shift import Seen, dataset_shift

EXAMPLES = 3
"""Inputs on the page of a policy."""
MUTUAL = "its mutual information is 0: take another score"
"""Why a network without samples is not decided about by that."""


def triage_run(
    task: Task[Any, Any],
    run: Path,
    options: TriageOptions,
    *,
    data: str | None = None,
    output: Path | None = None,
    again: bool = False,
) -> tuple[Path, policies.TriageResults]:
    """Calibrates a policy on the held-out data of a run, and writes it with its page.

    The target is tested on the test data, or on ``data``; the validation data choose where the tests start. The policy
    is also evaluated on shifted and out-of-domain data of the recipe, for which no guarantee holds.

    Args:
        task: the task of the run.
        run: folder of the run.
        options: options of the policy.
        data: a file of held-out texts with their classes, with the columns of the training data, or a named data set.
        output: path of the policy; default ``policy.json`` in the run. Its folder also gets ``triage.html`` and
            ``triage.json``, with ``novelty`` also ``triage.features.safetensors``; for a policy ``NAME.json`` these
            names begin with ``NAME.``.
        again: whether to predict again instead of reading stored predictions.

    Returns:
        The path of the policy, and the content of its page.

    Raises:
        DataError: the data are not as the recipe says.
        RunError: the folder has no finished run of a task for policies, or the data have no classes; or ``novelty``
            and the network has no last layer with features.
    """
    deciding = required(task.deciding, run).within(options.tolerance)
    network = deciding.task.network(run)
    described = deciding.task.describe(run, network)
    held_out = deciding.held_out(data)
    drawing = required(deciding.task.answering, run).drawing(options)
    if network.key != "bayesian_mean":
        drawing = drawing._replace(uncertainty="draws")
    undrawn = MUTUAL if options.score == "mutual_information" else deciding.needs_draws
    if not network.has_draws and undrawn is not None:
        raise RunError(
            f"--score {options.score}: expected a run with latent attention or particles, whose draws differ; the "
            f"network in {run} is deterministic, and {undrawn}"
        )
    file = output or run / policies.POLICY
    _check_replaced(file)
    tested = held_out["test"]
    if not tested.unseen:
        raise RunError(
            f"{tested.source}: expected inputs that the run was not trained on, got none but those of its training and "
            "validation data"
        )
    doubts = tuple(tested.doubts())
    for doubt in doubts:
        warnings.warn(doubt, DataWarning, stacklevel=2)
    # before the predictions, so that what is refused costs none
    distances, distance = _distances_of(deciding, run, held_out, options.novelty)
    judged = {
        role: judge(deciding, run, role, value, drawing, again=again).at_distances(distances.get(role))
        for role, value in held_out.items()
    }
    pilot, reference = judged.pop("validation"), judged.pop("test")
    reference = reference.rows(tested.unseen)
    drawn = {name: getattr(drawing, name) for name in ("num_samples", "seed", "uncertainty")}
    policy = calibration.calibrate(reference, pilot, replace(options, **drawn))
    of_run: dict[str, Any] = {name: getattr(deciding, name) for name in ("wrong_when", "tolerance")}
    rule = policy.novelty
    novelty = None if rule is None or distance is None else rule.measured_by(distance)
    fingerprints = {"network": network_digest(run, task.recipe), "inputs": tested.digest}
    policy = policy.model_copy(update={**fingerprints, **of_run, "novelty": novelty})
    answered = calibration.decisions(reference, policy)
    commands = (described.commands[0], f"probattn triage NEW_FOLDER{_words_of(options, data)}")
    results = policies.TriageResults(
        run=described.model_copy(update={"commands": commands}),
        policy=policy,
        doubts=doubts,
        promises=calibration.promises(reference, pilot, options, policy.novelty),
        curve=calibration.error_curve(reference.near(policy.novelty), policy.score),
        outcomes=(
            calibration.outcome(reference, policy),
            *(
                calibration.outcome(item, policy, calibration.shift_of(item, policy))
                for item in judged.values()
            ),
        ),
        pilot=calibration.shift_of(pilot, policy),
        classes=calibration.class_rows(reference, answered, policy.confidence),
        confused=calibration.confusions(reference, answered),
        costs=calibration.costs(reference, answered, policy),
        set_sizes=calibration.set_sizes(reference, policy),
        examples=_for_a_person(deciding, run, tested, reference, answered),
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    policies.write_policy(policy, file)
    write_atomically(policies.sibling(file, ".json"), (results.model_dump_json(indent=1) + "\n").encode())
    write_atomically(policies.sibling(file, ".html"), pages.page(results).encode())
    return file, results


FIRST_ERROR = 0.1
"""Target error of the demo."""


def first_decisions(task: Task[Any, Any], run: Path) -> tuple[Sheet, Sheet]:
    """A policy for the run of the demo: what it does, and what it decides on the texts of the recipe's report."""
    policy, results = triage_run(task, run, TriageOptions(error=FIRST_ERROR))
    applied = apply_policy(task, run, policy)
    answers = applied.answering.predict(run, task.recipe.report.texts, options=applied.policy.drawing)
    return pages.triage_table(results), applied.answers(list(answers))[0]


def _for_a_person(
    deciding: Deciding, run: Path, inputs: HeldOut, judged: calibration.Judged, answered: Tensor
) -> tuple[WordsExample, ...]:
    """The words of the inputs for human review with the largest entropy."""
    reasons, examples = deciding.reasons(run), []
    if reasons is None:
        return ()
    left = [number for number, is_answered in enumerate(answered.tolist()) if not is_answered]
    for number in sorted(left, key=lambda number: -judged.answers[number]["entropy"])[:EXAMPLES]:
        row, answer = inputs.unseen[number], judged.answers[number]
        text, pair = inputs.texts[row], None if inputs.pairs is None else inputs.pairs[row]
        explanation = reasons({"text": text, "pair": pair, **answer})
        if explanation is not None:
            example = Example(
                text=text,
                pair=pair,
                label=None if judged.labels is None else judged.labels[number],
                predicted=answer["label"],
                probability=answer["probabilities"][answer["label"]],
                spread=0.0,
                entropy=answer["entropy"],
            )
            examples.append(WordsExample(example=example, reason="uncertain", explanation=explanation))
    return tuple(examples)


def _distances_of(
    deciding: Deciding, run: Path, held_out: Mapping[str, HeldOut], novelty: float | None
) -> tuple[dict[str, Tensor], FeatureDistance | None]:
    """How far from the training data held-out inputs are, and what measures that."""
    if novelty is None:
        return {}, None
    calibration.check_size(len(held_out["test"].unseen), novelty)
    read = deciding.features(run)
    distance = FeatureDistance.fit(read(None))
    return {role: distance(read(value).inputs) for role, value in held_out.items()}, distance


def _check_replaced(file: Path) -> None:
    """Refuses to write over what is no policy, and tells which policy is written over."""
    if not file.exists():
        return
    try:
        old = policies.read_policy(file)
    except RunError as error:
        raise RunError(f"{file}: is there and is no policy; give another --output, or remove it") from error
    note(f"{file} is replaced (guarantee: {pages.promise_words(old)}; calibrated on {old.data})")


def _words_of(options: TriageOptions, data: str | None) -> str:
    """The options of the command that are not its defaults."""
    values = {name: getattr(options, name) for name in inspect.signature(TriageOptions).parameters}
    changed = {name for name, value in values.items() if value != getattr(TriageOptions(), name)}
    return "".join(
        f" --{name.replace('_', '-')}{'' if value is True else f' {shlex.quote(str(value))}'}"
        for name, value in (values | {"data": data}).items()
        if value is not None and name in {*changed, "error", "data"}
    )


def judge(
    deciding: Deciding, run: Path, role: str, inputs: HeldOut, drawing: Drawing, *, again: bool = False
) -> calibration.Judged:
    """Predictions of a data set, as ``predict`` makes them, shortest first; those in the run's folder are read."""
    answers = None if again else inputs.stored(run, role, drawing)
    if answers is None:
        order = inputs.shortest_first()
        predicted = deciding.predict(run, inputs.rows(order), drawing)
        predictions = tracked(predicted, f"predictions of {inputs.title}", total=len(order))
        answering = required(deciding.task.answering, run)
        objects = dict(zip(order, map(deciding.read, answering.answers(list(predictions))[1]), strict=True))
        for item in objects.values():
            lacking = next((name for name in inputs.record.model_fields if name not in item), None)
            if lacking is not None:
                raise RunError(f"{run}: expected answers with {lacking}, got none")
        rows = [objects[index] for index in range(len(order))]
        answers = inputs.store(run, role, drawing, rows)
    read = list(map(deciding.read, answers))
    return calibration.Judged(inputs.title, inputs.role, inputs.source, read, inputs.labels, deciding.wrong)


@dataclass(frozen=True)
class AppliedPolicy:
    """A policy with the run to which it is applied, and counts of its decisions; see :func:`apply_policy`.

    Attributes:
        answering: answers of the run's task to new inputs.
        deciding: evaluation of the task's answers, for policies.
        policy: the policy.
        reasons: function from an answer to the words for and against it; None if the task has no such explanation.
        distances: function from inputs to distances from the training data; None if the policy does not use them.
        scores: uncertainty of each answer so far.
        far: distance of each input so far.
        decided: number of decisions so far, by predicted class and whether the input was answered.
        audit: share of the answers that is sampled at random for people to check.
        draw: random generator of this sample, seeded by the texts so far.
        tasks: tasks for Label Studio so far; None if they are not collected.
        surplus: columns that files of decisions leave out: one per class, and those of samples if there are none.
    """

    answering: Answering
    deciding: Deciding
    policy: policies.Policy
    reasons: Callable[[policies.Answer], Explanation | None] | None
    distances: Callable[[HeldOut], Tensor] | None = None
    scores: array[float] = field(default_factory=lambda: array("d"))
    far: array[float] = field(default_factory=lambda: array("d"))
    decided: Counter[tuple[str, bool]] = field(default_factory=Counter)
    audit: float = 0.0
    draw: Random = field(default_factory=lambda: Random(0))
    tasks: list[dict[str, Any]] | None = None
    surplus: frozenset[str] = frozenset()

    def decide(self, answer: policies.Answer) -> tuple[policies.Decision, Explanation | None]:
        """Decides on one element of :meth:`objects`; returns also the explanation of an input for human review."""
        answer = self.deciding.read(answer)
        decision = self.policy.decide(answer)
        self.scores.append(policies.score_of(answer, self.policy.score))
        if self.distances is not None:
            self.far.append(policies.distance_of(answer))
        self.decided[answer.get("label", ""), decision.answered] += 1
        if self.audit:
            self.draw.seed(f"{self.draw.random()} {[answer.get(name) for name in pages.INPUTS]}")
        if decision.answered and self.draw.random() < self.audit:
            decision = replace(decision, reasons=(policies.CHECKED,))
        return decision, self.reasons(answer) if decision.reasons and self.reasons else None

    def _columns(self, decision: policies.Decision, explanation: Explanation | None) -> dict[str, Any]:
        return pages.decision_columns(decision, explanation, explained=self.reasons is not None)

    @property
    def undecided(self) -> dict[str, Any]:
        """Columns of the decision for a row without text, which always needs human review."""
        decision = policies.Decision(answered=False, classes=None, reasons=("no text",))
        return self._columns(decision, None)

    def objects(self, answers: Sequence[Any]) -> list[dict[str, Any]]:
        """Answers as dictionaries, with distances from the training data if the policy uses them."""
        objects = self.answering.answers(answers)[1]
        if self.distances is None or not objects:
            return objects
        key = next(name for name in pages.INPUTS if name in objects[0])
        texts, pairs = ([str(item[name]) for item in objects if name in item] for name in (key, "pair"))
        inputs = HeldOut("these inputs", "given", "", texts, pairs or None, None)
        distances = self.distances(inputs).tolist()
        return [{**item, "distance": far} for item, far in zip(objects, distances, strict=True)]

    def columns(self, answers: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Columns of a file for each answer of :meth:`probattn.tasks.Answering.predict`, with the decision first.

        For classes there is a column of the most probable classes instead of one column per class, and an empty column
        ``reviewed`` for the class that a person chooses.
        """
        for batch in in_batches(answers, self.answering.task.recipe.prediction.batch_size):
            for answer, described in zip(batch, self.objects(batch), strict=True):
                decision, explanation = self.decide(described)
                columns = {**self._columns(decision, explanation), **self.answering.columns(answer)}
                columns = {name: value for name, value in columns.items() if name not in self.surplus}
                if not self.policy.classes:
                    yield columns
                    continue
                names = [name for name in ("decision", "why", "label", "probability") if name in columns]
                first: dict[str, Any] = {name: columns.pop(name) for name in names}
                likeliest = pages.likeliest(self.deciding.read(described)["probabilities"])
                marked = {} if self.tasks is None else {SPANS: spans(explanation)}
                yield {**first, REVIEWED: None, "likeliest": likeliest, **columns, **marked}

    def queued(
        self, row: Mapping[str, Any], columns: Mapping[str, Any], texts: Sequence[str]
    ) -> Mapping[str, Any]:
        """Returns the columns for a file; if Label Studio is used, collects a task for a row that people will see."""
        if self.tasks is None:
            return columns
        if columns["why"] and texts:
            self.tasks.append(task_of(row, columns, texts, self.answering.task.recipe.name))
        return {name: value for name, value in columns.items() if name != SPANS}

    def write_tasks(self, path: Path) -> tuple[int, Path]:
        """Writes the tasks for Label Studio; returns their number and the path of the labelling configuration."""
        tasks, paired = self.tasks or [], self.answering.columns_read[1] is not None
        return len(tasks), write_tasks(path, tasks, self.policy.classes, paired=paired)

    def answers(self, batch: Sequence[Any]) -> tuple[Sheet, list[dict[str, Any]]]:
        """A table of answers and decisions for a terminal, and the same as dictionaries."""
        objects = self.objects(batch)
        decided = [self.decide(item) for item in objects]
        both = [{**item, **self._columns(*decision)} for item, decision in zip(objects, decided, strict=True)]
        for item in both:
            item.pop("distance", None)  # the decision has it over the limit
        if self.policy.classes:
            return pages.decisions_table(objects, decided, self.policy), both
        return pages.with_decisions(self.answering.answers(batch)[0], decided, self.policy), both

    def summary(self) -> tuple[str, str | None]:
        """Text about the decisions so far, and a warning of a distribution shift, None without one."""
        answered = sum(count for (_, is_answered), count in self.decided.items() if is_answered)
        seen = Seen.of(self.scores, (label for label, _ in self.decided.elements()), self.far)
        shift = dataset_shift(seen, self.policy.held)
        words = pages.decision_words(answered, seen.size, self.policy, self.far)
        return words, pages.shift_words(shift, self.policy)


def apply_policy(
    task: Task[Any, Any], run: Path, path: Path, *, audit: float | None = None, tasks: bool = False
) -> AppliedPolicy:
    """Reads a policy to apply it to predictions of a run.

    Args:
        task: the task of the run.
        run: folder of the run.
        path: the policy's file, or the folder with it.
        audit: share of the answers, in [0, 1], that is sampled at random for people to check.
        tasks: whether to collect the inputs for human review as tasks for Label Studio.

    Raises:
        RunError: there is no policy, it is damaged or for another network, or its file of features is missing.
    """
    policy = policies.read_policy(path)
    deciding = required(task.deciding, run).within(policy.tolerance)
    if policy.network is None or policy.network != network_digest(run, task.recipe):
        other = (
            "got one that names no network"
            if policy.network is None
            else "got one for another, or for longer or shorter inputs, whose guarantee does not hold for it"
        )
        raise RunError(
            f"{path}: expected a policy for the network in {run}, {other}; `probattn triage "
            f"{shlex.quote(str(run))}` makes one"
        )
    if tasks and not policy.classes:
        raise RunError("--label-studio: expected a policy of classes, got one of other answers")
    drawn = (
        () if deciding.task.network(run).has_draws or not policy.classes else ("mutual_information", "spread")
    )
    return AppliedPolicy(
        required(task.answering, run),
        deciding,
        policy,
        deciding.reasons(run),
        _distances(deciding, run, policy, path),
        audit=audit or 0.0,
        tasks=[] if tasks else None,
        surplus=frozenset([*drawn, *(f"p_{name}" for name in policy.classes)]),
    )


def _distances(
    deciding: Deciding, run: Path, policy: policies.Policy, path: Path
) -> Callable[[HeldOut], Tensor] | None:
    """How far from the training data inputs are, by the features beside a policy; None without a rule for it."""
    if policy.novelty is None:
        return None
    distance, read = policy.novelty.distance(path), deciding.features(run)

    @shown(quiet=True)  # predictions show their progress
    def distances(inputs: HeldOut) -> Tensor:
        return distance(read(inputs).inputs)

    return distances
