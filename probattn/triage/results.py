"""What a policy does to data: the records of ``triage.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from probattn.report import RiskCoverage, RunDescription
from probattn.report.record import Count, Probability, Record
from probattn.triage.policy import Limit, Policy
from probattn.triage.shift import Shift


class Promised(Record):
    """What can be answered at another promised error."""

    error: Probability
    limit: Limit


class Outcome(Record):
    """What became of the inputs of a data set.

    Attributes:
        title: of the data set.
        role: validation, in_domain, shifted or out_of_domain.
        size: number of inputs.
        answered: of them.
        errors: wrong ones of the answered; None where the classes are unknown.
        wrong: wrong predictions of all; None where the classes are unknown.
        shift: how they differ from the calibration data; None for the calibration data themselves
            and without inputs.
        far: inputs that a person decides because they are far from the training data; None where the policy has no
            rule for that.
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
    """A class: inputs predicted as it, those answered and wrong ones of these; inputs of the class, those answered."""

    label: str
    predicted: Count
    answered: Count
    errors: Count
    bound: Probability | None
    true: Count
    true_answered: Count


class Wrong(Record):
    """Inputs of one class that were taken for another, and those of them that were answered."""

    label: str
    predicted: str
    count: Count
    answered: Count


class Costs(Record):
    """Mean cost of a decision, where a person's costs 1: all answered, by the policy, at the cheapest threshold."""

    cost: Annotated[float, Field(gt=0)]
    answer_all: Annotated[float, Field(ge=0)]
    policy: Annotated[float, Field(ge=0)]
    cheapest: Annotated[float, Field(ge=0)]
    cheapest_answered: Probability


class TriageResults(Record):
    """Everything that the page on a policy shows.

    Attributes:
        kind: "triage".
        run: description of the run.
        policy: what was found.
        promises: the same for other promised errors, each by itself.
        curve: error among the most confident inputs of the calibration data.
        outcomes: what the policy does to each data set, the calibration data first.
        pilot: how the validation data, which say where the tests begin, differ from the calibration data.
        classes: by class, on the calibration data.
        confused: wrong predictions of the calibration data, the most frequent first.
        costs: by cost of a wrong answer.
        set_sizes: number of calibration inputs by the size of their set; None without sets.
        doubts: what is to be known of the calibration data, in sentences.
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
