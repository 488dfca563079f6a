"""Policies of finished runs: their predictions of held-out data, kept beside them, and what follows from those."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probattn.files.durable import write_atomically
from probattn.files.json_files import write_json_lines
from probattn.inference.report import Sheet
from probattn.tasks import RunError, Task
from probattn.tasks.errors import one_line
from probattn.tasks.programs import ProgramTask, digest
from probattn.tasks.progress import note, tracked
from probattn.tasks.task import HeldOut
from probattn.triage.calibration import (
    Judged,
    TriageOptions,
    calibrate,
    class_rows,
    confusions,
    costs,
    decisions,
    error_curve,
    outcome,
    promises,
    set_sizes,
)
from probattn.triage.page import page
from probattn.triage.policy import POLICY, Answer, Decision, Policy, read_policy, write_policy
from probattn.triage.results import TriageResults
from probattn.triage.tables import decision_columns, decisions_table

FOLDER = "triage"
"""Folder, in that of a run, of its predictions of held-out data."""
KEPT = ("label", "probabilities", "entropy", "mutual_information")
"""What is kept of an answer."""


def triage_run(
    task: Task[Any, Any],
    run: Path,
    options: TriageOptions,
    *,
    data: str | None = None,
    output: Path | None = None,
    again: bool = False,
) -> tuple[Path, TriageResults]:
    """Calibrates a policy on the held-out data of a run, and writes it with its page.

    The promise is tested on the test data, or on ``data``; validation data say where the tests begin. What the policy
    does to shifted and out-of-domain data of the recipe is measured beside it; no promise holds there.

    Args:
        task: of the run.
        run: its folder.
        options: what is promised.
        data: a file of held-out texts with their classes, with the columns of the training data, or a named data set.
        output: the policy's file; ``policy.json`` in the run by default. The page and its records stand beside it, as
            ``triage.html`` and ``triage.json``.
        again: predict anew what an earlier call kept.

    Returns:
        The policy's file, and all that the page shows.

    Raises:
        DataError: the data are not what the recipe says.
        RunError: the folder holds no finished run of single classes, or the data no classes.
    """
    if not isinstance(task, ProgramTask):
        raise RunError(f"{run}: expected a run of one network, got one of {task.section}")
    own = task.network(run)
    described = task.describe(run, own)
    try:
        given = task.held_out(data)
    except RunError as error:
        raise RunError(f"{run}: {one_line(error)}") from error
    drawing = (
        options.drawn_as() if own.key == "bayesian_mean" else {**options.drawn_as(), "uncertainty": "draws"}
    )
    judged = {role: judge(task, run, role, each, drawing, again=again) for role, each in given.items()}
    pilot, held = judged.pop("validation"), judged.pop("test")
    policy = calibrate(held, pilot, replace(options, uncertainty=drawing["uncertainty"]))
    answered = decisions(held, policy)
    results = TriageResults(
        run=described,
        policy=policy,
        promises=promises(held, pilot, options),
        curve=error_curve(held, policy.score),
        outcomes=(
            outcome(held, answered),
            *(outcome(each, decisions(each, policy)) for each in judged.values()),
        ),
        classes=class_rows(held, answered, policy.confidence),
        confused=confusions(held, answered),
        costs=costs(held, answered, policy),
        set_sizes=set_sizes(held, policy),
    )
    file = output or run / POLICY
    file.parent.mkdir(parents=True, exist_ok=True)
    write_policy(policy, file)
    write_atomically(file.with_name("triage.json"), (results.model_dump_json(indent=1) + "\n").encode())
    write_atomically(file.with_name("triage.html"), page(results).encode())
    return file, results


def judge(
    task: Task[Any, Any],
    run: Path,
    role: str,
    held: HeldOut,
    drawing: Mapping[str, Any],
    *,
    again: bool = False,
) -> Judged:
    """Predictions of a data set, as ``predict`` makes them; those that the run's folder holds are taken from there."""
    file = run / FOLDER / f"{role}.jsonl"
    parts = (f"{text}\0" for text in (*held.texts, *(held.pairs or ()), *(held.labels or ())))
    head = {"data": digest([held.source, *parts]), **drawing}
    answers = None if again else _kept(file, head, len(held.texts))
    if answers is None:
        found = tracked(
            task.predict(run, held.texts, held.pairs, **drawing),
            f"predictions of {held.title}",
            total=len(held.texts),
        )
        objects = task.answers(list(found))[1]
        lacking = next((name for name in KEPT if objects and name not in objects[0]), None)
        if lacking is not None:
            raise RunError(f"{run}: expected answers of one class each, with {lacking}, got none")
        answers = [{name: each[name] for name in KEPT} for each in objects]
        file.parent.mkdir(exist_ok=True)
        write_json_lines(file, [head, *answers])
    return Judged(held.title, held.role, held.source, answers, held.labels)


def _kept(file: Path, head: Mapping[str, Any], size: int) -> list[dict[str, Any]] | None:
    """Predictions of an earlier call; None where there are none of these data, made in this way."""
    try:
        first, *rest = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
    except FileNotFoundError:
        return None
    except ValueError:
        note(f"{file}: cannot be read; its data are predicted anew")
        return None
    whole = len(rest) == size and all(isinstance(each, dict) and set(KEPT) <= set(each) for each in rest)
    return rest if first == head and whole else None


@dataclass(frozen=True)
class AppliedPolicy:
    """A policy at work on the predictions of a run.

    Attributes:
        task: of the run.
        policy: what decides.
        why_unsure: names the words that make an answer unsure; None where nothing does.
    """

    task: Task[Any, Any]
    policy: Policy
    why_unsure: Callable[[Answer], Sequence[str]] | None

    def decided(self, answer: Answer) -> tuple[Decision, tuple[str, ...]]:
        """What becomes of an object of :meth:`probattn.tasks.Task.answers`, and the words that make it unsure."""
        decision = self.policy.decide(answer)
        if decision.answered or self.why_unsure is None:
            return decision, ()
        return decision, tuple(self.why_unsure(answer))

    def columns(self, answer: Any) -> dict[str, Any]:
        """Columns for a file of one answer of :meth:`probattn.tasks.Task.predict`, the decision first."""
        given = self.task.answers([answer])[1][0]
        return {**decision_columns(*self.decided(given)), **self.task.columns(answer)}

    def answers(self, found: Sequence[Any]) -> tuple[Sheet, list[dict[str, Any]]]:
        """A table, and the same for programs."""
        objects = self.task.answers(found)[1]
        decisions = [self.decided(each) for each in objects]
        both = [
            {**each, **decision_columns(*decision)} for each, decision in zip(objects, decisions, strict=True)
        ]
        return decisions_table(objects, decisions, self.policy), both


def apply_policy(task: Task[Any, Any], run: Path, place: Path) -> AppliedPolicy:
    """Puts a policy to work.

    Args:
        task: of the run.
        run: its folder.
        place: the policy's file, or the folder that holds it.

    Raises:
        RunError: there is no policy, or it is damaged.
    """
    return AppliedPolicy(task, read_policy(place), task.why_unsure(run))
