"""Sources of the random numbers behind a draw of the attention weights.

On a CPU a piece of 2^18 numbers has a stream of its own (NumPy's SFC64), so that the cores share the work and their
number changes nothing: torch fills a tensor on one core, and a training step waits for it at every site.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from probattn.host import on_cpu

_PIECE = 2**18
_CACHED = 2**15  # numbers that a processor's cache holds while they are mixed
_NUMPY_TYPES = (torch.float32, torch.float64)

Kind = Literal["uniform", "normal"]

Origin = tuple[Tensor | int, Tensor | int]  # places of a call's first query and first key in their texts


Rows = Callable[[int, Tensor], None]
"""Fills a contiguous tensor ``[N, S]`` with N rows of a map ``[R, H, T, S]``, of its ``R * H * T`` the given one on.

The same rows have the same numbers each time; rows that follow those of the last call cost no more than themselves.
"""


class Noise(Protocol):
    """Protocol of the random numbers from which a guide computes samples of S."""

    @property
    def draws(self) -> int:
        """P, the number of draws folded into the batch, draw after draw."""

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform(0, 1) numbers of ``like``'s shape, dtype and device; 0 is possible, 1 is not."""

    def normal(self, like: Tensor) -> Tensor:
        """N(0, 1) numbers of ``like``'s shape, dtype and device."""


class Scratch:
    """Memory that tensors of changing sizes take in turn: each ends the one before."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None

    def like(self, tensor: Tensor) -> Tensor:
        """A contiguous tensor of the same shape, type and device, of any values."""
        memory, size = self._memory, tensor.numel()
        kind = tensor.dtype, tensor.device
        if memory is None or (memory.dtype, memory.device) != kind or len(memory) < size:
            memory = self._memory = tensor.new_empty(size)
        return memory[:size].view(tensor.shape)


class _Source:
    """Uniform and normal numbers from one function of the kind."""

    _make: Callable[[Kind, Tensor], Tensor]

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform(0, 1) numbers of ``like``'s shape, dtype and device; 0 is possible, 1 is not."""
        return self._make("uniform", like)

    def normal(self, like: Tensor) -> Tensor:
        """N(0, 1) numbers of ``like``'s shape, dtype and device."""
        return self._make("normal", like)


class GlobalNoise(_Source):
    """Noise from torch's global generators, which ``pyro.set_rng_seed`` seeds.

    On a CPU these generators only seed the noise of each tensor; saving their state is enough to repeat a run.
    """

    draws = 1

    def rows(self, kind: Kind, like: Tensor) -> Rows | None:
        """A function that writes the next numbers, for ``like``, row by row; None if they are made otherwise (GPU)."""
        return _Streams(kind, [self._seed()], like) if _is_seeded(like) else None

    def seeds(self, like: Tensor) -> Tensor:
        """A seed for what a kernel draws, int64 ``[1]``, on ``like``'s device."""
        return torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=like.device)

    def _make(self, kind: Kind, like: Tensor) -> Tensor:
        if not _is_seeded(like):
            other = torch.rand_like if kind == "uniform" else torch.randn_like
            made = _by_kernel(self, kind, like)
            return other(like) if made is None else made
        noise = torch.empty_like(like, memory_format=torch.contiguous_format)
        _fill(kind, noise, self._seed())
        return noise

    @staticmethod
    def _seed() -> tuple[int, ...]:
        return (int(torch.randint(2**63 - 1, (), dtype=torch.int64)),)


class SeededNoise(_Source):
    """Noise with one seed per draw (posterior sample), for draws folded into the batch.

    The first dimension of every tensor holds P draws of B rows each, draw after draw. The numbers of a draw depend only
    on its seed, not on the other draws in its forward pass.

    Args:
        seeds: one integer >= 0 per draw.
        device: device of the numbers.
        mirrored: for each draw, whether 1 - u replaces u, and -n replaces n; empty for none.

    Attributes:
        scratch: buffer that new numbers overwrite, for callers that no longer need the previous ones; else None.

    Raises:
        ValueError: no seeds, or, in use, a first dimension that P does not divide.

    Example:
        >>> both = SeededNoise([3, 4], "cpu").uniform(torch.empty(4, 2))
        >>> alone = SeededNoise([4], "cpu").uniform(torch.empty(2, 2))
        >>> bool((both[2:] == alone).all())
        True
    """

    def __init__(
        self, seeds: Sequence[int], device: torch.device | str, mirrored: Sequence[bool] = ()
    ) -> None:
        if not seeds:
            raise ValueError("SeededNoise: expected at least one seed, got none")
        self._mirrored = mirrored or [False] * len(seeds)
        self._seeds = list(seeds)
        self._generators = [torch.Generator(device=device).manual_seed(seed) for seed in seeds]
        self._calls = 0
        self._starts: dict[torch.device, Tensor] = {}
        self.scratch: Scratch | None = None

    @property
    def draws(self) -> int:
        """P, the number of draws folded into the batch, draw after draw."""
        return len(self._seeds)

    def rows(self, kind: Kind, like: Tensor) -> Rows | None:
        """A function that writes the next numbers, for ``like``, row by row; None if they are made otherwise (GPU)."""
        if not _is_seeded(like) or not len(like) or len(like) % self.draws or any(self._mirrored):
            return None
        self._calls += 1
        return _Streams(kind, [(seed, self._calls) for seed in self._seeds], like)

    def seeds(self, like: Tensor) -> Tensor:
        """Seeds for what a kernel draws, int64 ``[P]``, on ``like``'s device; odd ones for mirrored draws."""
        self._check_rows(like)
        starts = self._starts.get(like.device)
        if starts is None:
            pairs = zip(self._seeds, self._mirrored, strict=True)
            numbers = [_signed((2 * seed + mirrored) % (1 << 64)) for seed, mirrored in pairs]
            starts = torch.tensor(numbers, dtype=torch.int64, device=like.device)
            self._starts[like.device] = starts
        self._calls += 1
        return starts + _signed(2 * self._calls * _GAMMA % (1 << 64))

    def _make(self, kind: Kind, like: Tensor) -> Tensor:
        if (made := _by_kernel(self, kind, like)) is not None:
            return made
        scratch = self.scratch or Scratch()
        noise = scratch.like(like)
        self._calls += 1
        draws = zip(self._chunks(noise), self._seeds, self._generators, self._mirrored, strict=True)
        for chunk, seed, generator, mirrored in draws:
            if _is_seeded(like):
                _fill(kind, chunk, (seed, self._calls))
            elif kind == "uniform":
                chunk.uniform_(generator=generator)
            else:
                chunk.normal_(generator=generator)
            if mirrored:  # the largest number below 1 becomes 0, and 0 that number
                chunk.neg_().add_(0.0 if kind == "normal" else 1 - torch.finfo(like.dtype).eps / 2)
        return noise

    def _check_rows(self, like: Tensor) -> None:
        rows, draws = like.shape[0], self.draws
        if rows % draws:
            raise ValueError(
                f"SeededNoise: expected a batch of {draws} draws folded into its first dimension, got {rows} rows; "
                "predict with chunk_size=1, or give inputs and attention a batch dimension"
            )

    def _chunks(self, noise: Tensor) -> tuple[Tensor, ...]:
        self._check_rows(noise)
        return noise.chunk(self.draws) if len(noise) else (noise,) * self.draws


def _by_kernel(noise: GlobalNoise | SeededNoise, kind: Kind, like: Tensor) -> Tensor | None:
    """The numbers of a map that a GPU's kernels draw where they need no map; None where they do not run."""
    from probattn.sites.fused import runs_kernels

    if like.dim() != 4 or not like.numel() or not runs_kernels(like):
        return None
    from probattn.sites.kernels import LONGEST, map_noise

    return map_noise(noise.seeds(like), like.shape, kind == "normal") if like.shape[3] <= LONGEST else None


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


_GAMMA = _signed(0x9E3779B97F4A7C15)
_ODD = (_signed(0xD1B54A32D192ED03), _signed(0xABC98388FB8FAC03))


class PlacedNoise(_Source):
    r"""Noise that depends only on an integer per row, the head, and the positions of query and key.

    A network with a cache of earlier tokens gets the same numbers as one that computes the tokens again. The numbers of
    a query are a stream of SplitMix64 (Steele, Lea and Flood 2014), :math:`m(s + j \gamma)` for the key at position j;
    the start s is a hash of the row's integer, the head and the query's position. Each further tensor differs.

    Args:
        keys: one integer for each row of the batch, int64 ``[R]``; rows with the same integer get the same noise.
        origin: positions of the first query and the first key of a tensor ``[R, H, T, S]``.
        draws: P, the number of draws folded into the batch.

    Example:
        >>> keys = torch.tensor([5])
        >>> whole = PlacedNoise(keys).uniform(torch.empty(1, 2, 4, 4))
        >>> last = PlacedNoise(keys, origin=(3, 1)).uniform(torch.empty(1, 2, 1, 3))
        >>> bool((whole[:, :, 3:, 1:] == last).all())
        True
    """

    def __init__(self, keys: Tensor, origin: Origin = (0, 0), draws: int = 1) -> None:
        self._keys, self._origin, self._calls = keys, origin, 0
        self.draws = draws

    def _make(self, kind: Kind, like: Tensor) -> Tensor:
        noise = torch.empty_like(like, memory_format=torch.contiguous_format)
        self.rows(kind, like)(0, noise.flatten(0, -2))
        return noise

    def rows(self, kind: Kind, like: Tensor) -> Rows:
        """A function that writes, row by row, the numbers of a tensor ``[R, H, T, S]``, normal ones by inversion."""
        precision = 53 if like.dtype == torch.float64 else 24
        starts, steps = self._streams(like)
        at_once = max(1, _CACHED // max(len(steps), 1)) if on_cpu(like) else max(1, len(starts))

        def fill(first: int, noise: Tensor) -> None:
            for begin in range(0, len(noise), at_once):
                chunk = slice(begin, begin + at_once)
                numbers = starts[first + begin : first + begin + len(noise[chunk]), None] + steps
                noise[chunk] = _shifted(_mix(numbers), 64 - precision)
            noise.mul_(2.0**-precision)
            if kind == "normal":
                torch.special.ndtri(noise.add_(2.0 ** -(precision + 1)), out=noise)

        return fill

    def _streams(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The start of each row's, head's and query's stream, ``[R * H * T]``, and what a key adds to it, ``[S]``."""
        _, heads, queries, keys = like.shape
        device = like.device
        self._calls += 1
        start = self._keys.to(device) + _signed(self._calls * _GAMMA % (1 << 64))
        for index, (count, first) in enumerate(((heads, 0), (queries, self._origin[0]))):
            number = torch.arange(count, device=device) + first
            start = _mix(_mix(start)[..., None] + (number + 1) * _ODD[index])
        return start.flatten(), (torch.arange(keys, device=device) + self._origin[1] + 1) * _GAMMA


def hashed(*words: int | str) -> int:
    """A 64-bit integer, the same in every process, from integers and texts."""
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _mix(numbers: Tensor) -> Tensor:
    """The output function of SplitMix64, elementwise and in place, on int64 as on unsigned numbers."""
    numbers.bitwise_xor_(_shifted(numbers, 30)).mul_(_signed(0xBF58476D1CE4E5B9))
    numbers.bitwise_xor_(_shifted(numbers, 27)).mul_(_signed(0x94D049BB133111EB))
    return numbers.bitwise_xor_(_shifted(numbers, 31))


def _shifted(numbers: Tensor, bits: int) -> Tensor:
    """Unsigned shift to the right."""
    return (numbers >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _is_seeded(like: Tensor) -> bool:
    return on_cpu(like) and like.dtype in _NUMPY_TYPES


def _stream(entropy: Sequence[int], number: int) -> np.random.Generator:
    """The stream of one piece."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy, spawn_key=(number,))))


def _draw(stream: np.random.Generator, kind: Kind, numbers: np.ndarray) -> None:
    """Fills an array with the next numbers of a stream."""
    make = stream.random if kind == "uniform" else stream.standard_normal
    make(out=numbers, dtype=numbers.dtype)


def _draw_uniform(stream: np.random.Generator, numbers: np.ndarray) -> None:
    """What a new stream's ``random`` gives for float32, bit for bit, in two thirds of its time."""
    # NumPy makes them one by one, of the low and then the high half of 64 random bits; here whole arrays are made.
    words = stream.integers(2**64 - 1, size=-(-numbers.size // 2), dtype=np.uint64, endpoint=True)
    halves = words.astype("<u8", copy=False).view("<u4")[: numbers.size]
    np.right_shift(halves, 8, out=halves)
    np.multiply(halves.view("<i4"), np.float32(2.0**-24), out=numbers, dtype=np.float32, casting="unsafe")


def _fill(kind: Kind, noise: Tensor, entropy: Sequence[int]) -> None:
    """Fills a contiguous CPU tensor, each piece of it from a stream that the entropy and its number give."""
    flat: np.ndarray = noise.detach().view(-1).numpy()
    draw = _draw_uniform if kind == "uniform" and flat.dtype == np.float32 else partial(_draw, kind=kind)

    def fill(number: int) -> None:
        draw(_stream(entropy, number), numbers=flat[number * _PIECE : (number + 1) * _PIECE])

    pieces = range(-(-flat.size // _PIECE))
    workers = min(len(pieces), torch.get_num_threads())

    def work(first: int) -> None:
        for number in pieces[first::workers]:
            fill(number)

    # NumPy lets go of Python's lock while it fills.
    helpers = [threading.Thread(target=work, args=(first,)) for first in range(1, workers)]
    for helper in helpers:
        helper.start()
    if workers:
        work(0)
    for helper in helpers:
        helper.join()


class _Streams:
    """The rows of a tensor whose equal parts :func:`_fill` fills, one from each entropy."""

    def __init__(self, kind: Kind, entropies: Sequence[Sequence[int]], like: Tensor) -> None:
        self._kind, self._entropies = kind, entropies
        self._size = like.numel() // len(entropies)
        self._position = 0
        self._stream: np.random.Generator | None = None

    def __call__(self, first: int, noise: Tensor) -> None:
        flat: np.ndarray = noise.detach().view(-1).numpy()
        position, done = first * noise.shape[-1], 0
        while done < flat.size:
            inside = position % self._size % _PIECE
            numbers = flat[done : done + min(_PIECE - inside, self._size - position % self._size)]
            if self._stream is None or position != self._position or not inside:
                self._stream = self._start(position - inside)
                _draw(self._stream, self._kind, np.empty(inside, flat.dtype))
            _draw(self._stream, self._kind, numbers)
            done += numbers.size
            position = self._position = position + numbers.size

    def _start(self, position: int) -> np.random.Generator:
        index, inside = divmod(position, self._size)
        return _stream(self._entropies[index], inside // _PIECE)


WORD = 32  # bits of the words in which numpy's seed sequences take integers


def seed_integers(integers: Sequence[int]) -> tuple[int, ...]:
    """Integers >= 0 for a numpy seed sequence, which differs wherever they do and are of the same number."""
    # numpy joins the words of all integers, so that (2^32 + 5, 7) and (5, 7 * 2^32 + 1) would be one seed. Where an
    # integer has several words, their numbers follow; smaller integers stay as they are.
    lengths = [max(1, -(-number.bit_length() // WORD)) for number in integers]
    return tuple(integers) if max(lengths, default=1) == 1 else (*integers, *lengths)
