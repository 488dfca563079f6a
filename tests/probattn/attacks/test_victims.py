"""Networks as what is attacked: what they answer, and that noise is what it is said to be."""

import pytest
import torch

from probattn.attacks import NetworkVictim, fixed_draws
from probattn.inference import posterior_expectation, posterior_moments, posterior_predict
from probattn.tasks import RunError, run_task

TEXTS = ["the film was good", "a bad plot", "the cast was fine fine fine a a", "good"]


@pytest.fixture(scope="session")
def task(run):
    return run_task(run)


@pytest.fixture(scope="session")
def trained(task, run):
    """The run's network with weights that make its answers differ from text to text, and its draws."""
    network = task.network(run)
    with torch.no_grad():
        for name, weights in network.net.named_parameters():
            if name.endswith((".query.weight", ".key.weight", ".value.weight", "dense.weight")):
                weights.mul_(20)
    return network


def batch(task, victim, texts=TEXTS):
    (only,) = victim._batches(texts)
    return only


def test_point_and_moments_are_the_librarys(task, trained):
    point = NetworkVictim(task, trained, "point")
    inputs = trained.moved(batch(task, point))
    expected = posterior_expectation(trained.program, inputs).softmax(-1).double().cpu()
    torch.testing.assert_close(point(TEXTS), expected, atol=1e-6, rtol=0)
    moments = NetworkVictim(task, trained, "moments")
    expected = posterior_moments(trained.program, inputs, method="expansion").mean_probabilities.cpu()
    torch.testing.assert_close(moments(TEXTS), expected.double(), atol=1e-6, rtol=0)
    assert point.classes == ("negative", "positive")


def test_rows_sum_to_one_as_exactly_as_textattack_asks(task, trained):
    for prediction in ("point", "draws", "moments"):
        rows = NetworkVictim(task, trained, prediction, 3)(TEXTS)
        assert rows.dtype == torch.float64
        assert bool(((rows.sum(-1) - 1).abs() < 1e-12).all())


def test_fixed_draws_are_a_function_of_the_text(task, trained):
    victim = NetworkVictim(task, trained, "draws", 5, 1)
    together = victim(TEXTS)
    victim.begin(3)
    for row, text in enumerate(TEXTS):  # alone, unpadded, asked later
        torch.testing.assert_close(victim([text])[0], together[row], atol=1e-6, rtol=0)
    assert (together[:, 0].max() - together[:, 0].min()) > 1e-2
    assert not torch.allclose(NetworkVictim(task, trained, "draws", 5, 2)(TEXTS), together, atol=1e-5)


@pytest.mark.slow
def test_fixed_draws_have_the_law_of_draws(task, trained):
    inputs = batch(task, NetworkVictim(task, trained))
    fixed = fixed_draws(trained.program, inputs, 300, 0)
    drawn = posterior_predict(trained.program, inputs, 300, seed=1, chunk_size=100).probabilities
    error = drawn.std(dim=0) * (2 / 300) ** 0.5
    assert bool(((fixed - drawn.mean(dim=0)).abs() < 5 * error + 1e-6).all())


def test_fresh_draws_change_with_queries_and_come_again_with_the_text(task, trained):
    victim = NetworkVictim(task, trained, "draws", 5, 0, "fresh")
    victim.begin(0)
    first, second = victim(TEXTS), victim(TEXTS)
    victim.begin(0)
    assert not torch.equal(first, second)
    assert torch.equal(first, victim(TEXTS))


def test_deterministic_networks_have_a_point_only(task, run):
    baseline = task.network(run / "baseline")
    assert NetworkVictim(task, baseline)(TEXTS).shape == (4, 2)
    with pytest.raises(RunError, match=r"--prediction draws: expected a run with latent attention"):
        NetworkVictim(task, baseline, "draws")
