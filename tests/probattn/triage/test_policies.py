"""Policies from predictions that are known, and what they decide."""

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats

from probattn.metrics.functional import controlled_threshold, sequence_start, uncertainty
from probattn.options import DrawingOptions
from probattn.tasks import RunError
from probattn.triage import (
    Seen,
    TriageOptions,
    calibrate,
    dataset_shift,
    judged_probabilities,
    judged_scores,
    read_policy,
    shift,
    write_policy,
)
from probattn.triage import page as pages
from probattn.triage.calibration import (
    class_rows,
    confusions,
    costs,
    decisions,
    error_curve,
    outcome,
    promises,
    set_sizes,
    shift_of,
)
from probattn.triage.page import attainable, headline, opening, promise_words
from probattn.triage.policy import Policy, score_of

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
    row = outcome(held, policy)
    assert (row.answered, row.errors, row.wrong) == (limit.answered, limit.errors, int(wrong.sum()))
    assert [each.error for each in promises(held, None, TriageOptions())] == [0.01, 0.02, 0.05, 0.1]
    others = promises(held, None, TriageOptions(error=0.2))
    assert [each.error for each in others] == [0.01, 0.02, 0.05, 0.1, 0.2]
    assert others[-1].limit == calibrate(held, None, TriageOptions(error=0.2)).limits[0]


def test_each_predicted_class_has_its_own_promise():
    held, draws, labels = judged(3, size=3000)
    policy = calibrate(held, judged(4)[0], TriageOptions(error=0.1, by_class=True))
    predicted = draws.mean(dim=0).argmax(dim=-1)
    assert [each.label for each in policy.limits] == list(NAMES)
    assert promise_words(policy).endswith("95% confidence for each class; none for all classes jointly")
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
    values = torch.tensor([list(answer["probabilities"].values()) for answer in held.answers])
    expected = Counter((1 - values <= policy.sets.threshold).sum(dim=1).tolist())
    assert len(expected) > 1 and set_sizes(held, policy) == expected == dict(sorted(expected.items()))
    assert set_sizes(held, whole) == {3: 600}
    assert set_sizes(held, calibrate(held, None, TriageOptions(error=0.1))) is None


def test_nothing_is_answered_where_the_promise_is_not_attainable():
    held, _, _ = judged(7, size=40)
    policy = calibrate(held, None, TriageOptions(error=0.01))
    assert policy.limits[0].threshold is None
    assert not any(policy.decide(each).answered for each in held.answers)
    assert "none for all classes jointly" not in promise_words(policy)
    sure = judged_probabilities(torch.tensor([[0.9, 0.05, 0.05]] * 100), torch.zeros(100, dtype=int), NAMES)
    policy = calibrate(sure, None, TriageOptions(error=0.05))
    assert policy.limits[0].threshold == 1.0 and json.loads(policy.model_dump_json())["error"] == 0.05


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"error": 1.5}, r"TriageOptions.error: expected a number in \(0, 1\) or None, got 1.5"),
        ({"confidence": 0.0}, "confidence: expected"),
        ({"cost": math.inf}, "cost: expected a finite number > 0 or None, got inf"),
        ({"num_samples": 0}, "num_samples: expected an integer >= 1 or None, got 0"),
        ({"num_samples": 2.5}, "num_samples: expected an integer >= 1 or None, got 2.5"),
        ({"seed": -1}, "seed: expected an integer >= 0 or None, got -1"),
        ({"sets": "foo"}, "sets: expected 'lac', 'aps', 'interval' or None, got 'foo'"),
        ({"uncertainty": "foo"}, "uncertainty: expected"),
        ({"by_class": "no"}, "by_class: expected"),
        ({"error": "0.1"}, "error: expected a number"),
        ({"error": None, "cost": 2.0, "sets": "aps"}, "sets: expected a target error rate"),
        ({"score": "margin"}, "TriageOptions.score: expected one of 'least_confidence', .*, got 'margin'"),
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
    even = dict.fromkeys(NAMES, 1 / 3)
    for answer, words in (
        (
            {"label": "hot", "probabilities": even},
            "expected a label among its classes cold, mild, warm, got 'hot'",
        ),
        (
            {"label": "cold", "probabilities": {"cold": 1.5, "mild": -0.5, "warm": 0.0}},
            "expected probabilities >= 0",
        ),
        (
            {"label": "cold", "probabilities": even | {"cold": 0.5}},
            "expected probabilities >= 0 that sum to 1",
        ),
        ({"label": "cold", "probabilities": even | {"cold": math.nan}}, "expected probabilities >= 0"),
        ({"label": "cold", "probabilities": even, "entropy": math.nan}, "expected a finite entropy, got nan"),
    ):
        with pytest.raises(RunError, match=words):
            policy.decide(answer)
    others = judged_probabilities(torch.full((4, 2), 0.5), torch.zeros(4, dtype=int), ("hot", "icy"))
    with pytest.raises(RunError, match="expected predictions of the classes cold, mild, warm, got hot, icy"):
        calibrate(held, others, TriageOptions())
    with pytest.raises(RunError, match="expected a mutual information of some inputs, got 0 for all"):
        calibrate(others, None, TriageOptions(score="mutual_information"))
    with pytest.raises(ValueError, match="target: expected integers, the numbers of classes"):
        judged_probabilities(torch.full((1, 2), 0.5), torch.zeros(1), ("hot", "icy"))
    by_number = {0: "hot", 1: "icy"}
    assert judged_probabilities(torch.full((1, 2), 0.5), None, by_number.values()).classes == ("hot", "icy")
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
    even = torch.full((2, 3), 1 / 3)
    for values in (even.log(), even.index_fill(1, torch.tensor(0), torch.nan), 3 * even):
        with pytest.raises(ValueError, match=r"probabilities: expected rows >= 0 that sum .* in row 0"):
            judged_probabilities(values, None, NAMES)
    for place in (-1, 3, -100):
        refusal = r"target: expected classes 0\.\.2, got .*; leave inputs without"
        with pytest.raises(ValueError, match=refusal):
            judged_probabilities(even, torch.tensor([0, place]), NAMES)
    for names in (("a", "a", "b"), (0, 1, 2)):
        with pytest.raises(ValueError, match="names: expected different words"):
            judged_probabilities(even, None, names)
    numpy = judged_probabilities(even.numpy(), torch.tensor([0, 1]).numpy(), NAMES)
    assert numpy.answers == judged_probabilities(even, torch.tensor([0, 1]), NAMES).answers


@pytest.mark.parametrize(("copies", "least", "most"), [(1, 0.0, 0.09), (10, 0.14, 0.3)])
def test_copies_among_held_out_inputs_break_the_promise(copies, least, most):
    """Of 400 simulated calibrations 5% break a promise of 95% confidence, 20% with ten copies of each input."""
    torch.manual_seed(0)

    def draw(size):
        confidence = (2 * torch.randn(size, 2, dtype=torch.float64)).softmax(dim=-1).amax(dim=-1)
        return 1 - confidence, torch.rand(size) > confidence

    everywhere = draw(200_000)[0].sort().values
    risk = everywhere.cumsum(dim=0) / torch.arange(1, len(everywhere) + 1)  # the error is 1 - confidence
    broken = 0
    for _ in range(400):
        pilot, held = (
            [each.repeat_interleave(copies) for each in draw(size // copies)] for size in (500, 2000)
        )
        found = controlled_threshold(*held, error=0.05, start=sequence_start(*pilot, error=0.05))
        answered = int((everywhere <= found.threshold).sum()) if found.attained else 0
        broken += answered > 0 and risk[answered - 1].item() > 0.05
    assert least <= broken / 400 <= most


def far(judged, seed, apart=0.0):
    """The same predictions at distances that say something of their error."""
    noise = torch.rand(len(judged), generator=torch.Generator().manual_seed(seed)).double()
    return judged.at_distances(noise + 0.3 * judged.wrong + apart)


def test_far_inputs_go_to_a_person_and_the_test_is_of_the_others():
    held, pilot = far(judged(10)[0], 0), far(judged(11)[0], 1)
    options = TriageOptions(error=0.1, novelty=0.1)
    policy = calibrate(held, pilot, options)
    rank = math.ceil(601 * 0.9)
    assert policy.novelty.threshold == held.distances.sort().values[rank - 1].item()
    near = held.distances < policy.novelty.threshold
    assert int(near.sum()) == rank - 1
    first = sequence_start(
        *(each[pilot.distances < policy.novelty.threshold] for each in two(pilot)), error=0.1
    )
    known = controlled_threshold(*(each[near] for each in two(held)), error=0.1, start=first)
    (limit,) = policy.limits
    assert (limit.threshold, limit.answered, limit.errors) == (known.threshold, known.answered, known.errors)
    assert limit.size == 600 and limit.bound == known.bound
    kept = decisions(held, policy)
    assert kept.tolist() == (near & (held.scores(policy.score) <= known.threshold)).tolist()
    row = outcome(held, policy)
    assert (row.answered, row.errors, row.far) == (limit.answered, limit.errors, 600 - (rank - 1))
    others = promises(held, pilot, options, policy.novelty)
    assert others[-1].limit == limit and others[-1].error == 0.1
    elsewhere = far(judged(12)[0], 2, apart=2.0)
    assert outcome(elsewhere, policy).far == 600 and not decisions(elsewhere, policy).any()
    found = shift_of(elsewhere, policy)
    assert found.distance == 1.0
    assert found.differences == ("distance from the training data by 100 points (p < 0.0001)",)
    assert shift_of(far(judged(13)[0], 3), policy).differences == ()
    decision = policy.decide(held.answers[0])
    assert decision.novelty == held.distances[0].item() / policy.novelty.threshold
    assert policy.decide(held.answers[0] | {"distance": math.nan}).words == "person"


def two(judged):
    return judged.scores("least_confidence"), judged.wrong


def test_far_inputs_of_the_pilot_say_nothing_of_the_start():
    """Most confident inputs are wrong in the held-out data, and far ones of the pilot in between."""

    def sure(scores, wrong, distances):
        both = torch.stack([1 - scores, scores], dim=-1)
        return judged_probabilities(both, wrong.long(), ("yes", "no"), distances=distances)

    scores = torch.linspace(0.001, 0.4, 400).double()
    held = sure(scores, (scores < 0.004) | (scores > 0.2), torch.linspace(0.1, 0.2, 400).flip(0))
    near = sure(scores, scores > 0.2, torch.zeros(400))
    between = torch.linspace(0.005, 0.2, 200).double()
    far = sure(between, torch.ones(200, dtype=torch.bool), torch.full((200,), 9.0))
    pilot = near.rows(range(400))
    mixed = replace(pilot, answers=[*near.answers, *far.answers], labels=[*near.labels, *far.labels])
    options = TriageOptions(error=0.1, novelty=0.05)
    alone = calibrate(held, pilot, options).limits[0]
    assert alone.answered > 150 and calibrate(held, mixed, options).limits[0] == alone
    assert calibrate(held, mixed, TriageOptions(error=0.1)).limits[0].answered == 0


def test_a_third_comparison_makes_each_stricter():
    known = {"uncertainty": 0.2, "uncertainty_p": 4e-4, "classes": 0.0, "classes_p": 1.0}
    assert shift.Shift(**known).differences == ("uncertainty by 20 points (p = 0.0004)",)
    assert shift.Shift(**known, distance=0.0, distance_p=1.0).differences == ()


def test_each_class_has_a_promise_among_near_inputs():
    held = far(judged(14, size=3000)[0], 0)
    policy = calibrate(held, None, TriageOptions(error=0.2, by_class=True, novelty=0.05))
    kept = decisions(held, policy)
    for limit in policy.limits:
        own = torch.tensor([answer["label"] == limit.label for answer in held.answers])
        assert limit.size == int(own.sum()) and limit.answered == int((kept & own).sum()) > 0
        assert limit.errors == int((kept & own & held.wrong).sum())
    assert outcome(held, policy).far == 3000 - (math.ceil(3001 * 0.95) - 1)


@pytest.mark.slow
def test_promises_hold_where_far_inputs_go_to_a_person():
    """Of 150 simulated calibrations; distances and errors depend on each other, as they do in networks."""
    torch.manual_seed(0)
    broken = 0

    def draw(size):
        confidence = (2 * torch.randn(size, 2, dtype=torch.float64)).softmax(dim=-1).amax(dim=-1)
        wrong = torch.rand(size) > confidence
        return judged_of(confidence, wrong, torch.rand(size).double() + 0.5 * wrong + (1 - confidence))

    def judged_of(confidence, wrong, distances):
        both = torch.stack([confidence, 1 - confidence], dim=-1)
        return judged_probabilities(both, wrong.long(), ("yes", "no"), distances=distances)

    everywhere = draw(40_000)
    scores, wrong = two(everywhere)
    for _ in range(150):
        policy = calibrate(draw(400), draw(100), TriageOptions(error=0.1, novelty=0.1))
        if policy.limits[0].threshold is None:
            continue
        kept = (scores <= policy.limits[0].threshold) & (everywhere.distances < policy.novelty.threshold)
        broken += bool(kept.any()) and wrong[kept].double().mean().item() > 0.1
    assert broken <= stats.binom.ppf(0.999, 150, 0.05)


def test_bad_distances(tmp_path):
    held = judged(15, size=98)[0]
    message = r"expected the distance of each input, .* got none; give distances to"
    with pytest.raises(RunError, match=message):
        calibrate(held, None, TriageOptions(novelty=0.05))
    with pytest.raises(RunError, match=r"novelty 0\.01: expected 99 held-out inputs or more, got 98; give"):
        calibrate(far(held, 0), None, TriageOptions(novelty=0.01))
    with pytest.raises(RunError, match=r"that are positive numbers, got 0 for too many"):
        calibrate(held.at_distances(torch.zeros(98)), None, TriageOptions(novelty=0.05))
    with pytest.raises(RunError, match=r"that are positive numbers, got inf for too many"):
        calibrate(held.at_distances(torch.full((98,), torch.nan)), None, TriageOptions(novelty=0.05))
    with pytest.raises(ValueError, match=r"novelty: expected a number in \(0, 1\) or None, got 1"):
        TriageOptions(novelty=1)
    policy = calibrate(far(held, 0), None, TriageOptions(novelty=0.05))
    with pytest.raises(RunError, match="policy: expected the distance of each input"):
        policy.decide(held.answers[0])
    assert read_policy(write_policy(policy, tmp_path / "policy.json")) == policy
    for name in ("distances", "mutual_information"):
        with pytest.raises(ValueError, match=rf"{name}: expected \[2\], got \[3\]"):
            judged_probabilities(torch.full((2, 3), 1 / 3), None, NAMES, **{name: torch.ones(3)})


def seen(seed, size, mean=0.0, shares=(0.6, 0.3, 0.1)):
    """Uncertainties of a normal distribution and classes of these shares."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(size, generator=generator) + mean
    classes = torch.multinomial(torch.tensor(shares), size, replacement=True, generator=generator)
    return scores.tolist(), [NAMES[each] for each in classes]


def test_infinite_distances_are_compared_as_the_largest():
    near, far = Seen.of([0.5] * 4, "abab", range(1, 5)), Seen.of([0.5] * 4, "abab", [1.0, 2.0, 3.0, math.inf])
    assert dataset_shift(far, near).distance == 0.25
    assert Seen.model_validate_json(far.model_dump_json()) == far


def test_rounding_is_no_shift():
    """Scipy's exact p-value of 30 inputs fails there with a warning and is replaced."""
    scores = torch.rand(30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    other = torch.nextafter(scores, torch.full_like(scores, 2.0))
    found = dataset_shift(Seen.of(other.tolist(), ["a"] * 30), Seen.of(scores.tolist(), ["a"] * 30))
    assert (found.differences, found.uncertainty_p) == ((), 1.0)


def test_shift_is_that_of_scipys_tests():
    (scores, labels), (others, other_labels) = seen(0, 300, 0.3), seen(1, 500, shares=(0.56, 0.32, 0.12))
    found = dataset_shift(Seen.of(scores, labels), Seen.of(others, other_labels))
    expected = stats.ks_2samp(scores, others, method="asymp")
    assert (found.uncertainty, found.uncertainty_p) == pytest.approx((expected.statistic, expected.pvalue))
    counts = [[each.count(name) for name in NAMES] for each in (labels, other_labels)]
    assert found.classes_p == pytest.approx(stats.chi2_contingency(counts, correction=False).pvalue, rel=0.1)
    shares = [[count / sum(row) for count in row] for row in counts]
    assert found.classes == pytest.approx(sum(max(a - b, 0) for a, b in zip(*shares, strict=True)))
    few = dataset_shift(Seen.of(scores[:40], labels[:40]), Seen.of(others, other_labels))
    assert few.uncertainty_p == pytest.approx(stats.ks_2samp(scores[:40], others, method="exact").pvalue)


@pytest.mark.parametrize(
    "rows", [((6, 1, 0, 1), (9, 0, 0, 4)), ((1, 3, 0, 0), (8, 2, 1, 0)), ((0, 2), (12, 1))]
)
def test_the_p_value_of_classes_is_that_of_all_tables(rows):
    """Of every table with the same totals, by its hypergeometric probability; some classes have one input, or none."""
    totals = [sum(column) for column in zip(*rows, strict=True)]
    names = "abcd"[: len(totals)]

    def statistic(row):
        expected = [total * sum(rows[0]) / sum(totals) for total in totals]
        return sum((n - e) ** 2 / t for n, e, t in zip(row, expected, totals, strict=True) if t)

    probability = 0.0
    for row in itertools.product(*(range(total + 1) for total in totals)):
        if sum(row) == sum(rows[0]) and statistic(row) >= statistic(rows[0]) - 1e-9:
            ways = math.prod(math.comb(total, n) for total, n in zip(totals, row, strict=True))
            probability += ways / math.comb(sum(totals), sum(rows[0]))
    first, second = (
        Seen.of([0.5] * sum(row), "".join(name * n for name, n in zip(names, row, strict=True)))
        for row in rows
    )
    assert dataset_shift(first, second).classes_p == pytest.approx(probability, abs=0.015)


def test_the_headline_says_what_the_answers_are_chosen_by():
    held, _, _ = judged(8)
    held = held.at_distances(torch.rand(600, generator=torch.Generator().manual_seed(0)))
    outcomes = (SimpleNamespace(answered=300, size=600),)
    for options, words in (
        (TriageOptions(error=0.2), "50.0% of the inputs are answered at an error of at most 20%"),
        (
            TriageOptions(error=0.2, novelty=0.1),
            "50.0% of the inputs are answered at an error of at most 20%",
        ),
        (TriageOptions(error=None, cost=5.0), "50.0% of the inputs are answered, at the least cost"),
        (
            TriageOptions(error=None, cost=5.0, novelty=0.1),
            "50.0% of the inputs are answered, at the least cost among those near the training data",
        ),
        (
            TriageOptions(error=0.2, by_class=True),
            "50.0% of the inputs are answered, each class at an error of at most 20%",
        ),
    ):
        results = SimpleNamespace(policy=calibrate(held, None, options), outcomes=outcomes)
        assert headline(results) == words
        results.outcomes = (SimpleNamespace(answered=0, size=600),)
        assert headline(results).startswith("No input can be answered: ")


def test_where_nothing_is_answered_the_page_opens_with_what_the_promise_needs():
    """At 95% confidence 59 answered inputs without a wrong one are the fewest that show an error of 5%."""
    held, _, _ = judged(8)
    outcomes = (SimpleNamespace(answered=0, size=600, wrong=60),)
    assert 0.95**59 <= 0.05 < 0.95**58
    policy = calibrate(held, None, TriageOptions(error=0.05))
    promised = SimpleNamespace(policy=policy, outcomes=outcomes, promises=())
    words = "10.0% of all 600 held-out predictions are wrong"
    assert opening(promised).startswith(
        f"{words}; the guarantee needs 59 answered ones without an error, or more"
    )
    # 2 of 240 pass a test of 5%, but the tests start elsewhere.
    start = SimpleNamespace(
        policy=policy, outcomes=(SimpleNamespace(answered=0, size=240, wrong=2),), promises=()
    )
    assert stats.binomtest(2, 240, 0.05, alternative="less").pvalue < 0.05
    assert "all of them together would pass. But the tests start at a threshold from the val" in opening(
        start
    )
    cheapest = SimpleNamespace(
        policy=calibrate(held, None, TriageOptions(error=None, cost=5.0)), outcomes=outcomes
    )
    assert opening(cheapest) == f"{words}."


def test_where_nothing_is_answered_the_first_larger_target_that_is_attainable_is_named():
    held, pilot = (judged_scores(torch.linspace(0, 1, 300), torch.arange(300) % 7 == n) for n in (6, 3))
    options = TriageOptions(error=0.02)
    policy, listed = calibrate(held, pilot, options), promises(held, pilot, options)
    words = "an error of at most 2% with 95% confidence cannot be guaranteed with 300 held-out inputs"
    assert str(policy) == f"no input can be answered: {words}"
    assert [item.error for item in listed] == [0.01, 0.02, 0.05, 0.1, 0.15, 0.2]
    assert [item.limit.answered > 0 for item in listed] == [False] * 5 + [True]
    results = SimpleNamespace(
        policy=policy, promises=listed, outcomes=(SimpleNamespace(answered=0, size=300, wrong=42),)
    )
    assert attainable(results) is listed[-1]
    assert f"(--error 0.2 answers {listed[-1].limit.answered / 3:.1f}%)" in opening(results)


def test_inputs_have_a_class_each_or_none():
    held, _, _ = judged(8, size=4)
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        _ = replace(held, labels=held.labels[:3]).wrong


def test_the_chart_has_all_shares(monkeypatch):
    drawn = []
    monkeypatch.setattr(pages, "line_chart", lambda lines, x, y, _: drawn.append((lines, x, y)))
    curve = SimpleNamespace(coverage=(0.5, 1.0), risk=(0.0, 0.3))
    pages._chart(SimpleNamespace(curve=curve, policy=SimpleNamespace(error=0.05)))
    ((wrong, promise), x, y) = drawn[0]
    assert wrong.points == ((0.5, 0.0), (1.0, 0.3)) and promise.points == ((0.0, 0.05), (1.0, 0.05))
    assert (x.low, x.high, y.low) == (0, 1, 0) and y.high >= 0.3
    assert x.ticks[0] == y.ticks[0] == (0, "0") and x.ticks[-1] == (1, "100%")


@pytest.mark.slow
def test_inputs_of_one_kind_are_rarely_called_another(monkeypatch):
    """At the level of one in a hundred, over 400 samples: more than 10 have a probability of 0.3%."""
    monkeypatch.setattr(shift, "TABLES", 1000)  # for speed
    generator = torch.Generator().manual_seed(0)
    many = torch.tensor([0.3, 0.2, 0.1, *[0.4 / 40] * 40])

    def inputs(size):
        classes = torch.multinomial(many, size, replacement=True, generator=generator)
        return Seen.of(torch.randn(size, generator=generator), map(str, classes.tolist()))

    called = [0, 0]
    for _ in range(400):
        found = dataset_shift(inputs(60), inputs(900))
        called = [a + (p < 0.01) for a, p in zip(called, (found.uncertainty_p, found.classes_p), strict=True)]
    assert max(called) <= 10 and sum(called) > 0


def test_shifts_are_found_and_small_ones_are_not_worth_a_word():
    held = Seen.of(*seen(0, 1500))
    assert len(held.scores) == 1000 and held.size == 1500  # quantiles
    (words,) = dataset_shift(Seen.of(*seen(1, 200, 0.6)), held).differences
    assert words == "uncertainty by 20 points (p < 0.0001)"
    (words,) = dataset_shift(Seen.of(*seen(1, 200, shares=(0.2, 0.3, 0.5))), held).differences
    assert words.startswith("predicted classes by 4")
    one_class = Seen.of(seen(1, 20)[0], ["unknown"] * 20)
    (words,) = dataset_shift(one_class, held).differences
    assert words.startswith("predicted classes by 100 points")
    wide = Seen.of(*seen(2, 200_000)), Seen.of(*seen(3, 200_000, shares=(0.62, 0.28, 0.1)))
    assert dataset_shift(*wide).classes_p < 1e-4 and not dataset_shift(*wide).differences
    assert dataset_shift(Seen.of([], []), held) is None


def test_a_policy_without_what_others_are_compared_with_is_refused(tmp_path):
    held, _, _ = judged(9)
    policy = calibrate(held, None, TriageOptions(error=0.2))
    assert policy.held == held.seen(policy.score) and shift_of(held, policy).uncertainty == 0
    written = json.loads(policy.model_dump_json())
    del written["held"]
    (tmp_path / "policy.json").write_text(json.dumps(written))
    with pytest.raises(RunError, match=r"expected a policy: .*held"):
        read_policy(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"error": 0.0}, "error.*greater than 0"),
        ({"error": 1.0}, "error.*less than 1"),
        ({"confidence": 0.0}, "confidence.*greater than 0"),
        ({"confidence": 1.0}, "confidence.*less than 1"),
        ({"cost": 0.0}, "cost.*greater than 0"),
        ({"num_samples": -1}, "num_samples.*greater than or equal to 0"),
        ({"seed": -1}, "seed.*greater than or equal to 0"),
        ({"size": -1}, "size.*greater than or equal to 0"),
        ({"limits": ()}, "limits.*at least 1 item"),
        ({"novelty": {"share": 0.1, "threshold": 0.0}}, "threshold.*greater than 0"),
        ({"novelty": {"share": 1.0, "threshold": 1.0}}, "share.*less than 1"),
        ({"sets": {"score": "lac", "error": 1.0, "threshold": 0.5}}, "error.*less than 1"),
        ({"score": "margin"}, "score.*least_confidence"),
        ({"kind": "triage"}, "kind.*policy"),
    ],
)
def test_a_policy_has_numbers_in_their_range(change, words, tmp_path):
    policy = calibrate(judged(8)[0], None, TriageOptions())
    text = write_policy(policy, tmp_path / "policy.json").read_text(encoding="utf-8")
    assert text.startswith('{\n "kind": "policy",\n') and text.endswith("}\n")
    with pytest.raises(ValidationError, match=f"(?s){words}"):
        Policy.model_validate(policy.model_dump() | change)
    for name in ("num_samples", "size"):
        with pytest.raises(ValidationError, match="100000000"):
            Policy.model_validate(policy.model_dump() | {name: 10**8 + 1})


def test_defaults_of_options_and_what_a_policy_keeps_of_them():
    named = {"error": 0.05, "confidence": 0.95, "cost": None, "by_class": False, "score": "least_confidence"}
    named |= {"sets": None, "novelty": None, "uncertainty": "draws", "num_samples": None, "seed": None}
    assert TriageOptions() == TriageOptions(**named) == TriageOptions(error=None)
    assert TriageOptions(cost=2.0).error is None and TriageOptions(0.1, cost=2.0).error == 0.1
    usual = calibrate(judged(8)[0], None, TriageOptions())
    assert (usual.error, usual.num_samples, usual.seed) == (0.05, 20, 0)
    options = TriageOptions(confidence=0.9, cost=2.0, num_samples=7, seed=3, uncertainty="moments")
    policy = calibrate(judged(8)[0], None, options)
    assert (policy.confidence, policy.cost, policy.size, policy.data) == (0.9, 2.0, 600, "Held-out inputs")
    assert policy.drawing == DrawingOptions(num_samples=7, seed=3, uncertainty="moments")
    assert not policy.by_class and calibrate(judged(8)[0], None, TriageOptions(by_class=True)).by_class


@pytest.mark.parametrize("size", [50, 200, 601])
def test_a_curve_has_at_most_two_hundred_points_evenly_among_all(size):
    data = judged(16, size=size)[0]
    scores, wrong = (item.numpy() for item in two(data))
    risk = wrong[scores.argsort()].cumsum() / np.arange(1, size + 1)
    places = np.rint(np.linspace(0, size - 1, min(size, 200))).astype(int)
    curve = error_curve(data, "least_confidence")
    np.testing.assert_allclose(curve.coverage, (places + 1) / size)
    np.testing.assert_allclose(curve.risk, risk[places])


@pytest.mark.parametrize("cost", [None, 3.0])
def test_costs_are_those_of_each_threshold(cost):
    """Of 5, 20 and 100 decisions of a person, or of the given cost."""
    data = judged(17)[0]
    policy = calibrate(data, None, TriageOptions(error=0.2, cost=cost))
    answered, (scores, wrong) = decisions(data, policy).numpy(), (item.numpy() for item in two(data))
    result = costs(data, torch.tensor(answered), policy)
    assert [item.cost for item in result] == ([5, 20, 100] if cost is None else [3])
    order = scores.argsort()
    for item in result:
        assert item.answer_all == pytest.approx(item.cost * wrong.mean())
        assert item.policy == pytest.approx((item.cost * (answered & wrong).sum() + (~answered).sum()) / 600)
        errors = np.concatenate([[0], wrong[order].cumsum()])
        means = (item.cost * errors + 600 - np.arange(601)) / 600
        assert item.cheapest == pytest.approx(means.min())
        assert item.cheapest_answered in np.flatnonzero(np.isclose(means, means.min())) / 600


def test_bounds_of_classes_are_clopper_and_pearsons_and_confusions_the_most_frequent():
    data = judged(18)[0]
    answered = decisions(data, calibrate(data, None, TriageOptions(error=0.2)))
    labels, predicted = np.array(data.labels), np.array([item["label"] for item in data.answers])
    for row in class_rows(data, answered, 0.9):
        inside = answered.numpy() & (predicted == row.label)
        errors = int((inside & (labels != row.label)).sum())
        assert (row.answered, row.errors) == (int(inside.sum()), errors)
        assert row.bound == pytest.approx(stats.beta.ppf(0.9, errors + 1, row.answered - errors))
        assert row.true_answered == int((answered.numpy() & (labels == row.label)).sum())
    assert all(row.bound is None for row in class_rows(data, torch.zeros(600, dtype=torch.bool), 0.9))
    counts = [item.count for item in confusions(data, answered)]
    assert counts == sorted(counts, reverse=True) and len(counts) == 6
    names = [str(number) for number in range(13)]
    pairs = [(a, b) for a in range(13) for b in range(13) if a != b]
    sure = torch.nn.functional.one_hot(torch.tensor([b for _, b in pairs]), 13).double()
    many = judged_probabilities(sure, torch.tensor([a for a, _ in pairs]), names)
    assert len(pairs) == 156 and len(confusions(many, torch.ones(156, dtype=torch.bool))) == 132


def test_quantiles_are_a_thousand_values_from_the_smallest_to_the_largest():
    places = np.rint(np.linspace(0, 2000, 1000))
    assert Seen.of(torch.arange(2001).flip(0), ["a"] * 2001).scores == tuple(places)
    assert Seen.of(range(1000), ["a"] * 1000, range(1000)).distances == tuple(range(1000))


@pytest.mark.parametrize(
    ("value", "p", "told"),
    [(0.05, 4.9e-4, True), (0.05, 5e-4, False), (0.0499, 1e-9, False), (0.2, 4.9e-4, True)],
)
def test_a_difference_is_of_five_points_and_one_in_a_thousand(value, p, told):
    """Of two comparisons each at half of that."""
    for names in (("uncertainty", "classes"), ("classes", "uncertainty")):
        one, other = names
        result = shift.Shift(**{one: value, f"{one}_p": p, other: 0.0, f"{other}_p": 1.0})
        assert bool(result.differences) is told
    result = shift.Shift(uncertainty=0.5, uncertainty_p=1e-4, classes=0.5, classes_p=0.99e-4)
    expected = ("uncertainty by 50 points (p = 0.0001)", "predicted classes by 50 points (p < 0.0001)")
    assert result.differences == expected


def test_p_values_of_classes_lie_between_one_of_twenty_thousand_tables_and_one():
    same = Seen.of([0.5] * 10, "ab" * 5)
    assert dataset_shift(same, same).classes_p == 1
    apart = dataset_shift(Seen.of([0.5] * 500, "a" * 500), Seen.of([0.5] * 500, "b" * 500))
    assert apart.classes_p == 1 / 20_001 and apart.classes == 1
    assert (apart.distance, apart.distance_p) == (None, None)
    assert dataset_shift(same, Seen.of([0.5] * 10, "ab" * 5, range(10))).distance is None
    assert dataset_shift(same, Seen.of([], [])) is None


def test_a_test_of_a_hundred_inputs_is_exact():
    (scores, labels), (others, names) = seen(0, 101, 0.2), seen(1, 300)
    for size, method in ((100, "exact"), (101, "asymp")):
        result = dataset_shift(Seen.of(scores[:size], labels[:size]), Seen.of(others, names))
        expected = pytest.approx(stats.ks_2samp(scores[:size], others, method=method).pvalue)
        assert result.uncertainty_p == expected


@pytest.mark.parametrize(("novelty", "least"), [(0.05, 19), (0.1, 9), (0.3, 3), (0.01, 99)])
def test_as_few_inputs_as_tell_the_distance_are_enough(novelty, least):
    calibrate(far(judged(19, size=least)[0], 0), None, TriageOptions(novelty=novelty))
    with pytest.raises(RunError, match=rf"novelty {novelty}: expected {least} held-out inputs or more, got"):
        calibrate(far(judged(19, size=least - 1)[0], 0), None, TriageOptions(novelty=novelty))


@pytest.mark.parametrize("score", ["predictive_entropy", "expected_entropy"])
def test_where_all_is_answered_the_threshold_is_the_largest_entropy(score):
    sure = judged_probabilities(torch.tensor([[0.9, 0.05, 0.05]] * 100), torch.zeros(100, dtype=int), NAMES)
    policy = calibrate(sure, None, TriageOptions(error=0.05, score=score))
    assert policy.limits[0].threshold == pytest.approx(math.log(3) + 1e-6, abs=1e-9)
    even = judged_probabilities(torch.full((1, 3), 1 / 3), None, NAMES).answers[0]
    assert policy.decide(even).answered


def test_judged_probabilities_are_answers_of_their_classes():
    rows = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    data = judged_probabilities(rows, None, NAMES, title="Reviews", role="shifted", distances=[1, 2])
    expected = ("Reviews", "shifted", "Reviews", 2, None)
    assert (data.title, data.role, data.source, len(data), data.labels) == expected
    first, second = data.answers
    assert (first["label"], second["label"]) == ("cold", "warm")  # of equal ones the first
    assert first["entropy"] == pytest.approx(math.log(2)) and first["mutual_information"] == 0
    assert (first["distance"], second["distance"]) == (1, 2) and data.rows([1]).answers == [second]
    labelled = judged_probabilities(rows, torch.tensor([0, 1]), NAMES)
    assert labelled.role == "in_domain"
    assert labelled.rows([1]).labels == ["mild"]
    assert labelled.wrong.tolist() == [False, True]
    policy = calibrate(judged(8)[0], None, TriageOptions(error=0.2))
    row = outcome(data, policy)
    assert (row.errors, row.wrong, row.far, row.size, row.title) == (None, None, None, 2, "Reviews")
    with pytest.raises(RunError, match="Held-out inputs: expected classes of the network, got 'hot'"):
        calibrate(replace(labelled, labels=["hot", "mild"]), None, TriageOptions(sets="lac"))


def test_messages_name_a_dozen_classes():
    names = [f"class{number}" for number in range(14)]
    data = judged_probabilities(torch.full((20, 14), 1 / 14), torch.zeros(20, dtype=int), names)
    policy = calibrate(data, None, TriageOptions())
    message = r"expected answers of the classes class0, .*, class11, got a, b; make"
    with pytest.raises(RunError, match=message):
        policy.decide({"label": "a", "probabilities": {"a": 0.5, "b": 0.5}})
    with pytest.raises(RunError, match=r"got class0, .*, class11$"):
        calibrate(judged(8)[0], data, TriageOptions())
    with pytest.raises(RunError, match=r"expected predictions of the classes class0, .*, class11, got cold"):
        calibrate(data, judged(8)[0], TriageOptions())
    with pytest.raises(ValidationError, match=r"classes class0, .*, class11, got"):
        Policy.model_validate(
            policy.model_dump() | {"limits": (policy.limits[0].model_copy(update={"label": "a"}),)}
        )
    with pytest.raises(ValueError, match=r"got \['a', .*'l'\]$"):
        judged_probabilities(torch.full((1, 14), 1 / 14), None, [*"abcdefghijklm", "a"])
    with pytest.raises(ValueError, match=r"got \[1(\.0, 1){5}\.0\] in row 1"):
        judged_probabilities(torch.stack([torch.full((14,), 1 / 14), torch.ones(14)]), None, names)


def documents(size, generator, words=6):
    """Least confidence of texts of several tags, whose errors are as probable as the tags say, and their true risk."""
    confidence = 1 - 0.5 * torch.rand(size, words, generator=generator).double() ** 8
    wrong = torch.rand(size, words, generator=generator).double() > confidence
    return 1 - confidence.amin(dim=1), wrong.any(dim=1), 1 - confidence.prod(dim=1)


@pytest.mark.slow_but("0.1")
@pytest.mark.parametrize("error", [0.1, 0.2])
def test_guarantees_hold_for_answers_that_are_wrong_as_a_whole(error):
    """Of 300 simulated calibrations; the risk of every text is known, 1 less the product over its tags."""
    generator = torch.Generator().manual_seed(0)
    everywhere, _, risks = documents(100_000, generator)
    assert risks.mean().item() > 1.2 * error
    broken, answered = 0, []
    for _ in range(300):
        held, pilot = (judged_scores(*documents(size, generator)[:2]) for size in (600, 150))
        policy = calibrate(held, pilot, TriageOptions(error=error))
        kept = everywhere <= (policy.limits[0].threshold if policy.limits[0].threshold is not None else -1)
        answered.append(kept.double().mean().item())
        broken += bool(kept.any()) and risks[kept].mean().item() > error
    assert broken <= stats.binom.ppf(0.999, 300, 0.05) and np.mean(answered) > 0.1


def test_scores_of_any_program_give_a_policy(tmp_path):
    scores, wrong, _ = documents(600, torch.Generator().manual_seed(1))
    judged = judged_scores(40 * scores - 7, wrong)  # in any units
    policy = read_policy(write_policy(calibrate(judged, None, TriageOptions(error=0.2)), tmp_path / "p.json"))
    known = controlled_threshold(40 * scores - 7, wrong, error=0.2)
    (limit,) = policy.limits
    assert (limit.threshold, limit.answered, limit.errors) == (known.threshold, known.answered, known.errors)
    assert policy.classes == () and policy.held.predicted == {"": 600}
    decided = [policy.decide(answer).answered for answer in judged.answers]
    assert decided == (40 * scores - 7 <= known.threshold).tolist()
    assert not policy.decide({"uncertainty": math.nan}).answered
    found = shift_of(judged_scores(40 * scores[:200] - 3, None), policy)
    assert (found.classes, found.classes_p) == (None, None) and "uncertainty by" in found.differences[0]
    assert shift_of(judged.rows(range(200)), policy).differences == ()
    everything = calibrate(judged_scores(scores, wrong & False), None, TriageOptions(error=0.2))
    assert everything.decide({"uncertainty": 1e300}).answered
    kept = decisions(judged, policy)
    assert class_rows(judged, kept, 0.95) == confusions(judged, kept) == () and costs(judged, kept, policy)


def test_scores_without_a_rank_and_options_of_classes_are_refused():
    judged = judged_scores(torch.rand(50), torch.zeros(50, dtype=torch.bool))
    for scores, wrong, message in (
        (torch.tensor([0.5, math.nan]), None, r"scores: expected finite numbers \[N\], got \[0.5, nan\]"),
        (torch.rand(2, 2), None, r"scores: expected finite numbers \[N\]"),
        (torch.rand(3), torch.tensor([True]), r"wrong: expected bool \[3\], got torch.bool \[1\]"),
        (torch.rand(1), torch.ones(1), r"wrong: expected bool \[1\], got torch.float32"),
    ):
        with pytest.raises(ValueError, match=message):
            judged_scores(scores, wrong)
    for options, message in (
        ({"by_class": True}, "by_class: expected predictions of one class for each input, got others"),
        ({"sets": "lac"}, "sets lac: expected predictions of one class"),
        ({"sets": "interval"}, "sets interval: expected predictions of numbers, got others"),
        ({"score": "predictive_entropy"}, "expected answers with entropy and mutual_information, got uncert"),
    ):
        with pytest.raises(RunError, match=message):
            calibrate(judged, None, TriageOptions(error=0.2, **options))
    policy = calibrate(judged, None, TriageOptions(error=0.2))
    with pytest.raises(
        RunError, match="score least_confidence: expected answers with uncertainty, got answer"
    ):
        policy.decide({"answer": "yes"})
    with pytest.raises(RunError, match="expected answers of the classes none, got a, b"):
        policy.decide({"label": "a", "probabilities": {"a": 0.5, "b": 0.5}})
    with pytest.raises(RunError, match="expected answers of the classes cold, mild, warm, got none"):
        calibrate(judged_of_classes(), None, TriageOptions(error=0.2)).decide({"uncertainty": 0.1})
    with pytest.raises(RunError, match="got others"):
        calibrate(judged_of_classes(), None, TriageOptions(error=0.2, sets="interval"))


def judged_of_classes():
    return judged(8)[0]


@pytest.mark.parametrize("error", [0.05, 0.3])
def test_intervals_hold_the_true_number_as_often_as_stated(error):
    """Of normal errors in known units: the mean coverage over calibrations is that of the rank, in closed form."""
    generator = torch.Generator().manual_seed(0)
    size, coverages = 99, []
    for _ in range(400):
        scale = 0.5 + torch.rand(size, generator=generator).double()
        numbers = (3 * scale * torch.randn(size, generator=generator).double()).tolist()
        answers = [{"uncertainty": each, "prediction": 0.0, "scale": each} for each in scale.tolist()]
        held = replace(judged_scores(scale, scale > 1), answers=answers, labels=numbers)
        held = replace(held, judge=lambda answer, number: abs(answer["prediction"] - number) > 2)
        rule = calibrate(held, None, TriageOptions(error=error, sets="interval")).sets
        coverages.append(2 * stats.norm.cdf(rule.threshold / 3) - 1)
    rank = math.ceil((size + 1) * (1 - error) - 1e-9)
    expected = rank / (size + 1)
    deviation = math.sqrt(
        expected * (1 - expected) / (size + 2) / 400
    )  # of the mean of Beta(rank, size + 1 - rank)
    assert expected >= 1 - error - 1e-9 and np.mean(coverages) == pytest.approx(expected, abs=3.5 * deviation)
