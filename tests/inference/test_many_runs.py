"""The driver of many runs: each as if alone, and exact after a kill."""

import pytest
import torch
from torch import nn

from probattn.inference.checkpoint import ConfigurationMismatchError
from probattn.inference.loop import NonFiniteError
from probattn.inference.many_runs import ManyRunsDriver
from probattn.inference.records import read_records


class Lines(nn.Module):
    """R linear regressions."""

    def __init__(self, starts):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(starts))
        self.offset = nn.Parameter(torch.zeros(len(starts)))

    def losses(self, batch):
        x, y = batch
        return (self.slope[:, None] * x + self.offset[:, None] - y).square().mean(-1)


def batch(step, seeds=(0, 1, 2)):
    x = torch.stack([torch.randn(5, generator=torch.Generator().manual_seed(100 * s + step)) for s in seeds])
    return x, 2 * x + 1


def driver(model, steps=12, **options):
    return ManyRunsDriver(
        model, batch, steps, **{"learning_rate": 0.1, "cpu": True, "progress": False, **options}
    )


def measure(model):
    def values(step, device):
        assert device.type == "cpu"
        return {"slope": model.slope.detach().clone(), "step_again": torch.tensor([float(step)])}

    return values


def test_each_run_is_trained_as_if_alone():
    several = Lines([0.0, 5.0, -1.0])
    driver(several).fit()
    alone = Lines([5.0])
    optimizer = torch.optim.Adam(alone.parameters(), lr=0.1)
    for step in range(1, 13):
        optimizer.zero_grad()
        alone.losses(batch(step, [1])).sum().backward()
        optimizer.step()
    torch.testing.assert_close(several.slope[1], alone.slope[0])
    torch.testing.assert_close(several.offset[1], alone.offset[0])


def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    options = {"evaluate_at": (0, 3, 5, 8, 12), "checkpoint_every": 4}
    whole = Lines([0.0, 5.0, -1.0])
    driver(whole, evaluate=measure(whole), folder=tmp_path / "whole", **options).fit()

    def killed(step):
        if step == 7:
            raise KeyboardInterrupt
        return batch(step)

    part = Lines([0.0, 5.0, -1.0])
    broken = driver(part, evaluate=measure(part), folder=tmp_path / "part", **options)
    broken.batches = killed
    with pytest.raises(KeyboardInterrupt):
        broken.fit()
    again = Lines([0.0, 5.0, -1.0])
    resumed = driver(again, evaluate=measure(again), folder=tmp_path / "part", **options).fit(resume=True)
    assert torch.equal(again.slope, whole.slope) and torch.equal(again.offset, whole.offset)
    records = [read_records(tmp_path / name / "metrics.jsonl") for name in ("whole", "part")]
    kept = [[{k: v for k, v in r.items() if k != "seconds"} for r in each] for each in records]
    assert kept[0] == kept[1]
    assert [r["step"] for r in kept[0]] == [0, 3, 5, 8, 12] == [r["step_again"][0] for r in kept[0]]
    assert resumed.validation["step"] == 12 and resumed.step == 12
    finished = driver(Lines([0.0, 0.0, 0.0]), evaluate=measure(again), folder=tmp_path / "part", **options)
    assert finished.fit(resume="auto").validation["slope"] == resumed.validation["slope"]


def test_a_resumed_run_has_the_random_numbers_of_the_uninterrupted_one(tmp_path):
    class Dropped(Lines):
        def losses(self, batch):
            return nn.functional.dropout(super().losses(batch).unsqueeze(0), 0.5).squeeze(0)

    def fit(steps, **options):
        torch.manual_seed(0)
        model = Dropped([0.0, 5.0, -1.0])
        driver(model, steps, **options).fit(resume="auto" if options else False)
        return model.slope

    whole = fit(6)
    fit(3, folder=tmp_path)
    assert torch.equal(fit(6, folder=tmp_path), whole)


def test_a_gradient_that_is_not_finite_changes_nothing():
    class Roots(Lines):
        def losses(self, batch):
            return self.slope.clamp_min(0).sqrt()

    model = Roots([1.0, 0.0, 3.0])
    with pytest.raises(NonFiniteError, match="step 1: expected finite gradients, got others in slope"):
        driver(model, 1).fit()
    assert model.slope.tolist() == [1.0, 0.0, 3.0]


def test_only_chosen_parameters_learn():
    model = Lines([0.0, 5.0, -1.0])
    driver(model, parameters=[model.offset]).fit()
    assert model.slope.tolist() == [0, 5, -1] and bool((model.offset != 0).all())


def test_other_options_are_not_resumed(tmp_path):
    driver(Lines([0.0, 1.0, 2.0]), folder=tmp_path).fit()
    with pytest.raises(ConfigurationMismatchError, match=r"learning_rate: checkpoint 0.1, this run 0.2"):
        driver(Lines([0.0, 1.0, 2.0]), folder=tmp_path, learning_rate=0.2).fit(resume=True)
    with pytest.raises(FileExistsError, match="holds a run already"):
        driver(Lines([0.0, 1.0, 2.0]), folder=tmp_path).fit()


def test_a_run_that_diverges_is_named():
    with pytest.raises(NonFiniteError, match=r"step 1: .* got inf in run 1 \(1 of 3 runs\)"):
        driver(Lines([0.0, 1e30, 2.0])).fit()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps: expected an integer >= 1"),
        ({"evaluate_at": (0, 13)}, "evaluate_at: expected steps from 0 to 12, got 13"),
        ({"learning_rate": 0.0}, "learning_rate: expected a number > 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        driver(Lines([0.0]), **options)
