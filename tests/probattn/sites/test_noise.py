"""Noise: the same on any number of cores, exact, and part of torch's random state."""

import numpy as np
import pytest
import torch
from scipy import stats

from probattn.sites import GlobalNoise, PlacedNoise, SeededNoise
from probattn.sites import noise as module

MAKERS = {"uniform": stats.uniform.cdf, "normal": stats.norm.cdf}
LARGE = torch.empty(2, 3 * module._PIECE // 4)  # one and a half pieces


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_follow_their_distribution_across_pieces(kind, dtype):
    torch.manual_seed(1)
    for noise in (GlobalNoise(), SeededNoise([1], "cpu")):
        drawn = getattr(noise, kind)(LARGE.to(dtype))
        assert drawn.dtype == dtype and drawn.shape == LARGE.shape
        assert stats.kstest(drawn.flatten().numpy(), MAKERS[kind]).pvalue > 1e-3
        flat = drawn.flatten()
        assert len(flat[: module._PIECE // 2].unique()) > module._PIECE // 2 * 0.97
        assert not torch.equal(flat[: module._PIECE // 2], flat[module._PIECE :])
        if kind == "uniform":
            assert drawn.min() >= 0 and drawn.max() < 1


@pytest.mark.parametrize("kind", MAKERS)
def test_the_number_of_cores_changes_nothing(kind, monkeypatch):
    found = []
    for cores in (1, 2, 5):
        monkeypatch.setattr(module.torch, "get_num_threads", lambda cores=cores: cores)
        torch.manual_seed(2)
        found.append((getattr(GlobalNoise(), kind)(LARGE), getattr(SeededNoise([4], "cpu"), kind)(LARGE)))
    for both in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(both, found[0], strict=True))


def test_torchs_random_state_is_all_there_is_to_keep():
    noise, like = GlobalNoise(), torch.empty(5)
    torch.manual_seed(3)
    noise.uniform(like)
    state = torch.get_rng_state()
    first, second = noise.uniform(like), noise.normal(like)
    torch.set_rng_state(state)
    other = GlobalNoise()
    assert torch.equal(first, other.uniform(like)) and torch.equal(second, other.normal(like))
    assert not torch.equal(first, other.uniform(like))


def test_every_call_and_every_draw_has_numbers_of_its_own():
    noise, like = SeededNoise([7, 8], "cpu"), torch.empty(4, 3)
    first, second = noise.uniform(like), noise.uniform(like)
    parts = [*first.chunk(2), *second.chunk(2)]
    assert len({tuple(part.flatten().tolist()) for part in parts}) == 4
    assert noise.draws == 2 and GlobalNoise().draws == 1


def test_transposed_and_half_precision_tensors():
    assert GlobalNoise().uniform(torch.empty(3, 4).t()).shape == (4, 3)
    assert SeededNoise([1], "cpu").normal(torch.empty(3, 4).t()).shape == (4, 3)
    assert GlobalNoise().normal(torch.empty(3, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert GlobalNoise().uniform(torch.empty(0, 3)).shape == (0, 3)


def test_rows_that_do_not_split_are_refused():
    message = "expected a batch of 2 draws folded into its first dimension, got 3 rows"
    with pytest.raises(ValueError, match=message):
        SeededNoise([1, 2], "cpu").uniform(torch.empty(3, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("source", ["global", "seeded", "placed"])
def test_rows_are_those_of_the_whole_map_in_any_order_and_again(source, kind, dtype):
    def make():
        torch.manual_seed(0)
        keys = torch.tensor([5, 6, 7, 8])
        return {"global": GlobalNoise(), "seeded": SeededNoise([3, 4], "cpu"), "placed": PlacedNoise(keys)}[
            source
        ]

    like = torch.empty((), dtype=dtype).expand(4, 3, 150, 301)  # more than two pieces
    whole = getattr(make(), kind)(like).flatten(0, 2)
    rows, found = make().rows(kind, like), torch.empty_like(whole)
    assert rows is not None
    for first in [*range(0, len(whole), 97), 900, 3, 100]:
        found[first : first + 97] = torch.nan
        rows(first, found[first : first + 97])
        assert torch.equal(found[first : first + 97], whole[first : first + 97])
    assert torch.equal(found, whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_mirrored_noise(dtype):
    like = torch.empty(4, 3000, dtype=dtype)
    first, second = SeededNoise([3, 3], "cpu", [False, True]).uniform(like).chunk(2)
    assert (second >= 0).all() and (second < 1).all()
    torch.testing.assert_close(
        first.double() + second.double(), torch.ones(2, 3000).double(), atol=1e-2, rtol=0
    )
    first, second = SeededNoise([3, 3], "cpu", [False, True]).normal(like).chunk(2)
    assert torch.equal(first, -second)
    assert SeededNoise([3, 3], "cpu", [False, True]).rows("uniform", like) is None


@pytest.mark.parametrize("count", [1, 2, 7, 2**18, 2**18 + 1, 3 * 2**17])
def test_uniform_numbers_are_those_of_numpys_generator(count):
    found = SeededNoise([5], "cpu").uniform(torch.empty(1, count))[0].numpy()
    for number, start in enumerate(range(0, count, 2**18)):
        stream = np.random.Generator(np.random.SFC64(np.random.SeedSequence((5, 1), spawn_key=(number,))))
        part = found[start : start + 2**18]
        np.testing.assert_array_equal(part, stream.random(part.size, dtype=np.float32))
