"""A session leaves accelerate's state, random generators, modes and gradients as it found them."""

import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.tracking import GeneralTracker
from scipy import stats

from probattn.inference.checkpoint import CheckpointError
from probattn.inference.predictive import seed_words
from probattn.inference.session import (
    accelerator_session,
    capture_random_state,
    derived_seed,
    preserved_random_state,
    restore_random_state,
    seed_generators,
)

CPU = torch.device("cpu")


def draws() -> list[float]:
    """From every generator and every cache of it: numpy, from which scipy draws, and Python keep one normal number."""
    return [
        random.random(),
        random.gauss(0, 1),
        float(stats.uniform.rvs()),
        float(stats.norm.rvs()),
        float(torch.rand(())),
        float(torch.randn(())),
    ]


def test_a_restored_state_draws_the_same() -> None:
    for _ in range(3):  # with and without numbers kept back
        state = capture_random_state(CPU)
        first = draws()
        assert draws() != first
        restore_random_state(state, CPU)
        assert draws() == first
        random.gauss(0, 1)
        stats.norm.rvs()


def test_a_state_survives_a_safe_load(tmp_path) -> None:
    torch.save(capture_random_state(CPU), tmp_path / "random.pt")
    first = draws()
    restore_random_state(torch.load(tmp_path / "random.pt", weights_only=True), CPU)
    assert draws() == first


def test_the_same_seed_draws_the_same_and_ranks_differ() -> None:
    seen = []
    for seed in [(0, 0), (0, 0), (0, 1), (1, 0), (0, 0, 1)]:
        seed_generators(*seed)
        seen.append(draws())
    assert seen[0] == seen[1]
    for others in zip(*seen[1:], strict=True):
        assert len(set(others)) == 4


def test_what_is_drawn_inside_is_not_seen_outside() -> None:
    state = capture_random_state(CPU)
    expected = draws()
    restore_random_state(state, CPU)
    with preserved_random_state(CPU):
        seed_generators(3)
        draws()
    assert draws() == expected


def test_a_cpu_state_is_refused_on_another_device() -> None:
    with pytest.raises(CheckpointError, match=r"state of a cuda generator.*CUDA_VISIBLE_DEVICES="):
        restore_random_state(capture_random_state(CPU), torch.device("cuda"))


@pytest.mark.cuda
def test_the_devices_generator_is_restored_too() -> None:
    device = torch.device("cuda")
    state = capture_random_state(device)
    first = torch.rand(3, device=device)
    restore_random_state(state, device)
    assert torch.equal(torch.rand(3, device=device), first)


def state() -> list[dict[str, Any]]:
    return [dict(singleton._shared_state) for singleton in (AcceleratorState, GradientState, PartialState)]


def test_sessions_of_different_precision_follow_each_other() -> None:
    before = state()
    for precision in ("no", "bf16", "no"):
        with accelerator_session(precision=precision, cpu=True) as accelerator:
            assert accelerator.mixed_precision == precision
        assert state() == before


def test_the_callers_own_accelerator_survives_a_session() -> None:
    with accelerator_session(precision="no", cpu=True):  # stands in for the caller's state; undone at the end
        for singleton in (AcceleratorState, GradientState, PartialState):
            singleton._shared_state.clear()
        own = Accelerator(mixed_precision="bf16", cpu=True, gradient_accumulation_steps=3)
        before = state()
        with accelerator_session(precision="no", cpu=True) as accelerator:
            assert accelerator.mixed_precision == "no"
            assert accelerator.gradient_accumulation_steps == 1
        assert state() == before
        assert own.mixed_precision == "bf16"
        assert own.gradient_accumulation_steps == 3
        with pytest.raises(RuntimeError, match="inside"), accelerator_session(precision="no", cpu=True):
            raise RuntimeError("inside")
        assert state() == before


def test_trackers_are_finished_even_after_an_error() -> None:
    class Tracker(GeneralTracker):
        name = "list"
        requires_logging_directory = False
        finishes = 0

        @property
        def tracker(self) -> None:
            return None

        def finish(self) -> None:
            self.finishes += 1

    tracker = Tracker()
    session = accelerator_session(precision="no", cpu=True, trackers=[tracker])
    with suppress(RuntimeError), session as accelerator:
        accelerator.init_trackers("x")
        raise RuntimeError("inside")
    assert tracker.finishes == 1


LARGE = 2**32


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((LARGE + 5, 7), (5, 7 * LARGE + 1)),
        ((5, LARGE), (LARGE + 5, 1)),
        ((LARGE, 0), (0, 1)),
        ((LARGE**2, 3, 1), (0, LARGE, 3 * LARGE + 1)),
    ],
)
def test_seeds_of_several_words_are_not_those_of_others(first, second):
    assert derived_seed(*first) != derived_seed(*second)
    seeds = [np.random.SeedSequence(seed_words(seed)).generate_state(4).tolist() for seed in (first, second)]
    assert seeds[0] != seeds[1]
    net = torch.nn.Dropout(0.5)
    drawn = []
    for seed in (first, second):
        seed_generators(*seed)
        drawn.append(net(torch.ones(64)))
    assert not torch.equal(*drawn)


def test_smaller_seeds_are_those_of_numpy():
    """Results that were published rest on them."""
    for seed in ((0,), (5, 7), (LARGE - 1, 3, 0, 1)):
        state = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
        assert derived_seed(*seed) == int(state) >> 1
        assert seed_words(seed) == seed
