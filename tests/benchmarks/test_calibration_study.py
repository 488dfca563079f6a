"""The study of simulation-based calibration: its procedure on posteriors that are known."""

import json
from pathlib import Path

import calibration_study
import pytest
import torch
from calibration_study import Attention, Regression, ranks, uniformity

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("model", [Attention, Regression])
def test_ranks_among_draws_of_the_exact_posterior_are_uniform(model):
    simulated = model.simulated(300, 1)
    drawn = simulated.exact(2)
    found = uniformity(ranks(simulated.truth[:, 0], drawn), len(drawn), 3)
    assert found["p"] > 0.01 and sum(found["histogram"]) == 300
    shifted = uniformity(ranks(simulated.truth[:, 0], drawn + 0.3), len(drawn), 3)
    assert shifted["p"] < 1e-6 and shifted["mean"] < found["mean"]
    centre = drawn.mean(dim=0)
    narrow = uniformity(ranks(simulated.truth[:, 0], centre + 0.2 * (drawn - centre)), len(drawn), 3)
    assert narrow["p"] < 1e-6 and narrow["spread"] > 1.2


def test_ranks_count_smaller_draws():
    draws = torch.tensor([[0.0, 5.0], [1.0, 6.0], [2.0, 7.0]])
    assert ranks(torch.tensor([1.5, 4.0]), draws).tolist() == [2, 0]


def test_the_exact_posterior_of_the_regression_is_that_of_its_density():
    simulated = Regression.simulated(1, 0)
    _, mean = simulated.normal(0)
    grid = torch.linspace(-6, 6, 601)
    first, second = torch.meshgrid(grid, grid, indexing="ij")
    weights = torch.stack([first, second], dim=-1).view(-1, 2)
    error = simulated.y[0] - weights @ simulated.inputs[0].T
    mass = (-0.5 * (weights.square().sum(dim=1) + error.square().sum(dim=1))).softmax(dim=0)
    torch.testing.assert_close(mass @ weights, mean, atol=1e-4, rtol=1e-4)


def test_every_posterior_is_ranked_and_shown(tmp_path, monkeypatch, capsys):
    output = tmp_path / "calibration.json"
    calibration_study.STUDY(replications=10, steps=3, moves=3, output=output).main()
    content = json.loads(output.read_text(encoding="utf-8"))
    expected = ["exact", *calibration_study.POSTERIORS, "exact", *calibration_study.SAMPLERS]
    assert [run["method"] for run in content["runs"]] == expected
    assert "sgld" in capsys.readouterr().out
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    from measured_tables import calibration

    assert calibration.tables(content).count("\n| ") == len(expected) + 2
