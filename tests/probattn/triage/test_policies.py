"""Policies from predictions that are known, and what they decide."""

import json
import math

import pytest
import torch

from probattn.metrics.functional import uncertainty
from probattn.tasks import RunError
from probattn.triage import (
    TriageOptions,
    calibrate,
    judged_probabilities,
    read_policy,
    write_policy,
)
from probattn.triage.calibration import class_rows, confusions, costs, decisions, outcome, promises
from probattn.triage.policy import score_of

NAMES = ("cold", "mild", "warm")


def judged(seed, size=600, role="in_domain"):
    """Draws of three classes whose labels are drawn from their mean, so that the network is calibrated."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2.5 * torch.randn(size, 3, generator=generator)
    draws = (logits + 0.5 * torch.randn(8, size, 3, generator=generator)).double().softmax(dim=-1)
    mean = draws.mean(dim=0)
    labels = torch.multinomial(mean, 1, generator=generator)[:, 0]
    information = uncertainty(draws, "mutual_information")
    found = judged_probabilities(mean, labels, NAMES, mutual_information=information, role=role)
    return found, draws, labels


@pytest.mark.parametrize(
    "score", ["least_confidence", "predictive_entropy", "expected_entropy", "mutual_information"]
)
def test_scores_are_those_of_the_metrics(score):
    found, draws, _ = judged(0)
    torch.testing.assert_close(found.scores(score), uncertainty(draws, score), rtol=1e-9, atol=1e-12)


def test_digits_are_kept_where_confidence_rounds_to_one():
    answers = [{"label": "a", "probabilities": {"a": 1.0, "b": small}} for small in (1e-12, 2e-12)]
    assert score_of(answers[0], "least_confidence") == 1e-12 < score_of(answers[1], "least_confidence")


def test_decisions_are_those_of_the_threshold(tmp_path):
    held, draws, labels = judged(1)
    policy = calibrate(held, judged(2)[0], TriageOptions(error=0.1))
    policy = read_policy(write_policy(policy, tmp_path / "policy.json"))
    mean = draws.mean(dim=0)
    limit = policy.limits[0]
    answered = 1 - mean.amax(dim=-1) <= limit.threshold
    wrong = mean.argmax(dim=-1) != labels
    assert [policy.decide(each).answered for each in held.answers] == answered.tolist()
    assert (limit.answered, limit.errors) == (int(answered.sum()), int((answered & wrong).sum()))
    assert 0.3 < limit.answered / 600 < 1 and limit.bound <= 0.1
    row = outcome(held, decisions(held, policy))
    assert (row.answered, row.errors, row.wrong) == (limit.answered, limit.errors, int(wrong.sum()))
    assert [each.error for each in promises(held, None, TriageOptions())] == [0.01, 0.02, 0.05, 0.1]


def test_each_predicted_class_has_its_own_promise():
    held, draws, labels = judged(3, size=3000)
    policy = calibrate(held, judged(4)[0], TriageOptions(error=0.1, by_class=True))
    predicted = draws.mean(dim=0).argmax(dim=-1)
    assert [each.label for each in policy.limits] == list(NAMES)
    kept = decisions(held, policy)
    rows = class_rows(held, kept, policy.confidence)
    for number, (limit, row) in enumerate(zip(policy.limits, rows, strict=True)):
        assert limit.size == row.predicted == int((predicted == number).sum())
        assert limit.answered == row.answered and limit.errors == row.errors
        assert row.bound == pytest.approx(limit.bound) and limit.bound <= 0.1
        assert row.true == int((labels == number).sum())
    assert sum(each.count for each in confusions(held, kept)) == int((predicted != labels).sum())
    assert sum(each.answered for each in confusions(held, kept)) == sum(row.errors for row in rows)


def test_costs_are_those_of_the_counts():
    held, _, _ = judged(5)
    policy = calibrate(held, None, TriageOptions(error=None, cost=4.0))
    (found,) = costs(held, decisions(held, policy), policy)
    assert found.policy == pytest.approx(found.cheapest) and found.policy < min(1, found.answer_all)
    # of a calibrated network the cheapest threshold is near one in four (Chow 1970)
    assert policy.limits[0].threshold == pytest.approx(0.25, abs=0.12)


def test_sets_are_those_of_the_rule():
    held, _, _ = judged(6)
    policy = calibrate(held, None, TriageOptions(error=0.1, sets="lac"))
    answer = {"label": "cold", "probabilities": dict(zip(NAMES, (0.6, 0.1, 0.3), strict=True))}
    inside = [name for name, each in answer["probabilities"].items() if 1 - each <= policy.sets.threshold]
    assert set(policy.set_of(answer)) == set(inside) and policy.set_of(answer)[0] == "cold"
    whole = policy.model_copy(update={"sets": policy.sets.model_copy(update={"threshold": None})})
    assert whole.set_of(answer) == ("cold", "warm", "mild")


def test_nothing_is_answered_where_the_promise_is_not_attainable():
    held, _, _ = judged(7, size=40)
    policy = calibrate(held, None, TriageOptions(error=0.01))
    assert policy.limits[0].threshold is None
    assert not any(policy.decide(each).answered for each in held.answers)
    sure = judged_probabilities(torch.tensor([[0.9, 0.05, 0.05]] * 100), torch.zeros(100, dtype=int), NAMES)
    policy = calibrate(sure, None, TriageOptions(error=0.05))
    assert policy.limits[0].threshold == 1.0 and json.loads(policy.model_dump_json())["error"] == 0.05


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"error": 1.5}, "error: expected a number between 0 and 1, got 1.5"),
        ({"confidence": 0.0}, "confidence: expected"),
        ({"cost": math.inf}, "cost: expected a positive number"),
        ({"error": None}, "expected a promised error, or the cost of a wrong answer, got neither"),
        ({"error": None, "cost": 2.0, "sets": "aps"}, "sets: expected a promised error"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        TriageOptions(**options)


def test_bad_input(tmp_path):
    held, _, _ = judged(8)
    policy = calibrate(held, None, TriageOptions())
    with pytest.raises(RunError, match="expected answers of the classes cold, mild, warm, got a, b"):
        policy.decide({"label": "a", "probabilities": {"a": 0.5, "b": 0.5}})
    with pytest.raises(RunError, match="expected held-out inputs, got none"):
        calibrate(held.rows([]), None, TriageOptions())
    unknown = judged_probabilities(torch.full((2, 3), 1 / 3), None, NAMES)
    with pytest.raises(RunError, match="expected inputs with their classes, got none"):
        calibrate(unknown, None, TriageOptions())
    with pytest.raises(RunError, match="`probattn triage RUN` makes one"):
        read_policy(tmp_path)
    (tmp_path / "policy.json").write_text("{}")
    with pytest.raises(RunError, match=r"policy\.json: expected a policy: at error: Field required"):
        read_policy(tmp_path)
    with pytest.raises(ValueError, match=r"expected \[N, 3\] for 3 classes, got \[2, 2\]"):
        judged_probabilities(torch.ones(2, 2), None, NAMES)
    with pytest.raises(ValueError, match=r"target: expected \[2\], got \[3\]"):
        judged_probabilities(torch.ones(2, 3), torch.zeros(3, dtype=int), NAMES)
