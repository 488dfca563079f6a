"""Kernels of Triton for draws of attention weights and the upward path; :mod:`probattn.sites.kernels` starts them.

A program of a draw holds whole rows of a map: scores, noise and the upward path are loaded once, W is stored once, and
the gradient makes everything else again. Arguments that are None are left out when a kernel is compiled.
"""

import math

import torch
import triton
import triton.language as tl

from probattn.distributions.special import DIGAMMA_COEFFICIENTS, EULER_MASCHERONI, LGAMMA_COEFFICIENTS
from probattn.sites.weibull import NOISE_RANGE

_L0, _L1, _L2, _L3, _L4, _L5 = (tl.constexpr(value) for value in LGAMMA_COEFFICIENTS.tolist())
_D0, _D1, _D2, _D3, _D4, _D5 = (tl.constexpr(value) for value in DIGAMMA_COEFFICIENTS.tolist())
_EULER = tl.constexpr(EULER_MASCHERONI)
_LOWEST, _HIGHEST = (tl.constexpr(value) for value in NOISE_RANGE)
_EPSILON = tl.constexpr(torch.finfo(torch.float32).eps)
_TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
_FORBIDDEN = tl.constexpr(-1e30)
_OUTSIDE = tl.constexpr(-math.inf)

LEARNED, CONSTANT, NORMAL = 0, 1, 2
"""Families of q(S): Weibull of a learned or a constant concentration, log-normal."""
_LEARNED, _NORMAL = tl.constexpr(LEARNED), tl.constexpr(NORMAL)


@triton.jit
def _log1p(x):
    shifted = 1.0 + x
    lost = shifted == 1.0
    return tl.where(lost, x, x * tl.log(shifted) / tl.where(lost, 1.0, shifted - 1.0))


@triton.jit
def _log_gamma_1p(x, log1p):
    w = 1.0 / (1.0 + x)
    series = ((((_L5 * w + _L4) * w + _L3) * w + _L2) * w + _L1) * w + _L0
    return (x + 0.5) * log1p - x + x * w * series


@triton.jit
def _digamma_1p(x, log1p):
    w = 1.0 / (1.0 + x)
    return log1p - w * (((((_D5 * w + _D4) * w + _D3) * w + _D2) * w + _D1) * w + _D0)


@triton.jit
def _log_softmax(values):
    values = values - tl.max(values, axis=1)[:, None]
    return values - tl.log(tl.sum(tl.exp(values), axis=1))[:, None]


@triton.jit
def _rows(queries, keys, heads, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Datum, head, query and key of a program's entries, their offset in the map, and which of them exist."""
    blocks = tl.cdiv(queries, ROWS)
    program = tl.program_id(0)
    map_index, block = program // blocks, program % blocks
    query = (block * ROWS + tl.arange(0, ROWS))[:, None]
    key = tl.arange(0, COLUMNS)[None, :]
    offset = map_index.to(tl.int64) * queries * keys + query * keys + key
    return map_index // heads, map_index % heads, query, key, offset, (query < queries) & (key < keys)


@triton.jit
def _allowed(valid, datum, head, query, key, queries, keys, by_datum, by_head, by_query, by_key):
    """Which pairs of a column of queries and a row of keys are allowed."""
    allowed = (query < queries) & (key < keys)
    if valid is not None:
        at = datum.to(tl.int64) * by_datum + head.to(tl.int64) * by_head
        at += query.to(tl.int64) * by_query + key.to(tl.int64) * by_key
        allowed = allowed & (tl.load(valid + at, mask=allowed, other=0) != 0)
    return allowed


@triton.jit
def _counted(allowed, real, datum, query, queries):
    """Which allowed pairs take part in the KL."""
    if real is not None:
        allowed = allowed & (tl.load(real + datum * queries + query, mask=query < queries, other=0) != 0)
    return allowed


@triton.jit
def _log_alpha(logits, strength, datum, head, groups, repeats, keys, key, allowed):
    """log alpha of the contextual prior, over the keys of each query, or the constant."""
    # With ``else``: code after a return is compiled too, and there are no logits to load.
    if logits is None:
        log_alpha = strength + tl.zeros(allowed.shape, tl.float32)
    else:
        at = (datum * groups + head // repeats).to(tl.int64) * keys + key
        values = tl.load(logits + at, mask=key < keys, other=0.0)
        log_alpha = _log_softmax(tl.where(allowed, values, _FORBIDDEN)) + strength
    return log_alpha


@triton.jit
def _uniform(words):
    """24 random bits as a number in [0, 1)."""
    return words.to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _exponential(words, low, high):
    """log(-log u) of 24 random bits, u uniform in [low, high)."""
    uniform = low + _uniform(words) * (high - low)
    return tl.log(-tl.log(tl.maximum(uniform, _EPSILON)))


@triton.jit
def _words(seed, row, head, query, start, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """24 random bits for ROWS queries at four times COLUMNS // 4 keys from ``start`` on, a quarter of them each."""
    none = tl.zeros((ROWS, COLUMNS // 4), tl.int32)
    quarter = none + (start // 4 + tl.arange(0, COLUMNS // 4)[None, :])
    first, second, third, fourth = tl.philox(seed >> 1, quarter, none + query, none + head, none + row)
    return first >> 8, second >> 8, third >> 8, fourth >> 8


@triton.jit
def _joined(first, second, third, fourth, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    return tl.reshape(tl.join(tl.join(first, second), tl.join(third, fourth)), (ROWS, COLUMNS))


@triton.jit
def site_noise(
    seed, row, head, query, start, low, high,
    NORMAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """log(-log u) or n of ROWS queries at COLUMNS keys from ``start`` on; a counter makes four numbers.

    ``seed`` is that of the draw, ``row`` its place among the rows of that draw. An odd seed mirrors the numbers of the
    even one before it: 1 - u replaces u (the largest number below 1 becomes 0), and -n replaces n.
    """
    first, second, third, fourth = _words(seed, row, head, query, start, ROWS, COLUMNS)
    mirrored = (seed & 1).to(tl.int32)
    if NORMAL:
        first, second = tl.pair_uniform_to_normal(_uniform(first), _uniform(second))
        third, fourth = tl.pair_uniform_to_normal(_uniform(third), _uniform(fourth))
        noise = _joined(first, second, third, fourth, ROWS, COLUMNS) * (1 - 2 * mirrored)
    else:
        words = _joined(first, second, third, fourth, ROWS, COLUMNS) ^ (mirrored * 0xFFFFFF).to(tl.uint32)
        noise = _exponential(words, low, high)
    return noise


@triton.jit
def noise_kernel(
    seeds, out, share, heads, queries, keys, NORMAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The numbers u or n of a map, from which :func:`site_noise` follows."""
    datum, head, query, _, offset, there = _rows(queries, keys, heads, ROWS, COLUMNS)
    seed, row = _stream(seeds, datum, share)
    if NORMAL:
        numbers = site_noise(seed, row, head, query, 0, 0.0, 1.0, True, ROWS, COLUMNS)
    else:
        first, second, third, fourth = _words(seed, row, head, query, 0, ROWS, COLUMNS)
        words = _joined(first, second, third, fourth, ROWS, COLUMNS)
        numbers = _uniform(words ^ ((seed & 1).to(tl.int32) * 0xFFFFFF).to(tl.uint32))
    tl.store(out + offset, numbers, mask=there)


@triton.jit
def _stream(seeds, datum, share):
    """Seed of a row's draw, and the place of the row among the ``share`` rows of it."""
    return tl.load(seeds + datum // share), datum % share


@triton.jit
def draw_kernel(
    scores, rise, noise, logits, valid, real, seeds, weights, log_sums, divergence, share, risen,
    by_datum, by_head, by_query, by_key, heads, groups, queries, keys,
    rho, floor, rate, log_rate, strength, spread, prior, low, high,
    FAMILY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """W, log sum_keys S and, where ``divergence`` is there, the KL of each query; arguments of :func:`draw_map`."""
    datum, head, query, key, offset, there = _rows(queries, keys, heads, ROWS, COLUMNS)
    allowed = _allowed(valid, datum, head, query, key, queries, keys, by_datum, by_head, by_query, by_key)
    counted = _counted(allowed, real, datum, query, queries)
    log_mean = _log_softmax(tl.where(key < keys, tl.load(scores + offset, mask=there, other=0.0), _OUTSIDE))
    log_mean = tl.where(there, log_mean, 0.0)
    mean = tl.maximum(tl.exp(log_mean), _TINY)
    if seeds is not None:
        seed, index = _stream(seeds, datum, share)
        drawn = site_noise(seed, index, head, query, 0, low, high, FAMILY == _NORMAL, ROWS, COLUMNS)
    else:
        drawn = tl.load(noise + offset, mask=there, other=0.5)
        if FAMILY != _NORMAL:
            drawn = tl.log(-tl.log(tl.maximum(drawn, _EPSILON)))
    if FAMILY == _NORMAL:
        location = log_mean - spread * spread / 2
        log_value = location + spread * drawn
    else:
        if FAMILY == _LEARNED:
            k = mean + floor
            if rise is not None:
                before = (datum - datum % risen).to(tl.int64) * heads * queries * keys
                k += rho * tl.load(rise + offset - before, mask=there, other=1.0)
        else:
            k = spread + tl.zeros(mean.shape, tl.float32)
        inverse = 1.0 / k
        location = log_mean - _log_gamma_1p(inverse, _log1p(inverse))
        log_value = location + drawn * inverse
    log_value = tl.where(there, log_value, _OUTSIDE)
    largest = tl.max(tl.where(query < queries, log_value, 0.0), axis=1)[:, None]
    powers = tl.exp(log_value - largest)
    total = tl.where(query < queries, tl.sum(powers, axis=1)[:, None], 1.0)
    reachable = tl.sum(allowed.to(tl.int32), axis=1)[:, None] > 0
    tl.store(weights + offset, tl.where(reachable, powers / total, 0.0), mask=there)
    rows = tl.program_id(0) // tl.cdiv(queries, ROWS) * queries + query
    tl.store(log_sums + rows, largest + tl.log(total), mask=query < queries)
    if divergence is not None:
        log_alpha = _log_alpha(logits, strength, datum, head, groups, heads // groups, keys, key, allowed)
        log_alpha = tl.where(counted, log_alpha, 0.0)
        if FAMILY == _NORMAL:
            distance = tl.where(counted, location - log_alpha, 0.0) / prior
            ratio = spread / prior
            terms = (distance * distance + ratio * ratio - 1.0) / 2 - tl.log(ratio)
        else:
            alpha = tl.exp(log_alpha)
            terms = alpha * (_EULER * inverse - location - log_rate) + tl.log(k) + rate * mean
            terms += _log_gamma_1p(alpha, _log1p(alpha)) - log_alpha - (_EULER + 1.0)
        terms = tl.sum(tl.where(counted, terms, 0.0), axis=1)[:, None]
        tl.store(divergence + rows, terms, mask=query < queries)


@triton.jit
def draw_backward_kernel(
    scores, rise, logits, valid, real, weights, log_sums, by_weights, by_divergence,
    to_scores, to_rise, to_logits,
    by_datum, by_head, by_query, by_key, heads, groups, queries, keys,
    rho, floor, rate, log_rate, strength, spread, prior,
    FAMILY: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients by scores, by the upward path and, summed over a program's queries, by the prior's logits."""
    datum, head, query, key, offset, there = _rows(queries, keys, heads, ROWS, COLUMNS)
    allowed = _allowed(valid, datum, head, query, key, queries, keys, by_datum, by_head, by_query, by_key)
    counted = _counted(allowed, real, datum, query, queries)
    log_mean = _log_softmax(tl.where(key < keys, tl.load(scores + offset, mask=there, other=0.0), _OUTSIDE))
    log_mean = tl.where(there, log_mean, 0.0)
    share_of_keys = tl.where(there, tl.exp(log_mean), 0.0)
    mean = tl.maximum(share_of_keys, _TINY)
    weight = tl.load(weights + offset, mask=there, other=0.0)
    pull = weight * tl.load(by_weights + offset, mask=there, other=0.0)
    to_value = pull - weight * tl.sum(pull, axis=1)[:, None]  # by log S
    by_kl = tl.zeros(weight.shape, tl.float32)
    log_alpha = tl.zeros(weight.shape, tl.float32)
    if by_divergence is not None:
        by_kl += tl.where(counted, tl.load(by_divergence + datum), 0.0)
        log_alpha = tl.where(
            counted,
            _log_alpha(logits, strength, datum, head, groups, heads // groups, keys, key, allowed),
            0.0,
        )
    alpha = tl.exp(log_alpha)
    if FAMILY == _NORMAL:
        distance = tl.where(counted, log_mean - spread * spread / 2 - log_alpha, 0.0)
        by_alpha = -by_kl * distance / (prior * prior)
        to_mean = to_value - by_alpha
    else:
        to_location = to_value - by_kl * alpha
        to_mean = to_location + by_kl * rate * mean
        if FAMILY == _LEARNED:
            k = mean + floor
            if rise is not None:
                k += rho * tl.load(rise + offset, mask=there, other=1.0)
            inverse = 1.0 / k
        else:
            inverse = 1.0 / (spread + tl.zeros(weight.shape, tl.float32))
        log1p = _log1p(inverse)
        log_gamma = _log_gamma_1p(inverse, log1p)
        if FAMILY == _LEARNED:
            # The noise follows from the draw.
            log_sum = tl.load(
                log_sums + tl.program_id(0) // tl.cdiv(queries, ROWS) * queries + query,
                mask=query < queries,
                other=0.0,
            )
            noise = (tl.log(tl.maximum(weight, _TINY)) + log_sum - log_mean + log_gamma) * k
            noise = tl.minimum(tl.maximum(noise, _LOWEST), _HIGHEST)
            to_inverse = to_value * noise + by_kl * alpha * _EULER
            to_inverse -= to_location * _digamma_1p(inverse, log1p)
            to_k = by_kl * inverse - to_inverse * inverse * inverse
            if rise is not None:
                tl.store(to_rise + offset, rho * to_k, mask=there)
            to_mean += to_k * mean
        surprise = _EULER * inverse - (log_mean - log_gamma) - log_rate
        by_alpha = by_kl * (alpha * (surprise + _digamma_1p(alpha, _log1p(alpha))) - 1.0)
        by_alpha = tl.where(counted, by_alpha, 0.0)
    to_mean = tl.where(there, to_mean, 0.0)
    to_mean -= share_of_keys * tl.sum(to_mean, axis=1)[:, None]  # from the log-softmax back
    tl.store(to_scores + offset, to_mean, mask=there)
    if to_logits is not None:
        at = (datum * groups + head // (heads // groups)).to(tl.int64) * keys + key
        values = tl.load(logits + at, mask=key < keys, other=0.0)
        share = tl.exp(_log_softmax(tl.where(allowed, values, _FORBIDDEN)))
        by_logits = by_alpha - tl.where(allowed, share, 0.0) * tl.sum(by_alpha, axis=1)[:, None]
        by_logits = tl.sum(tl.where(there, by_logits, 0.0), axis=0)[None, :]
        tl.store(to_logits + tl.program_id(0).to(tl.int64) * keys + key, by_logits, mask=key < keys)


@triton.jit
def mix_kernel(
    maps, weight, bias, mixed, weight_2, bias_2, mixed_2, heads, pairs,
    HEADS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One or two mixes of a block of columns; arguments of :func:`mix_maps`."""
    blocks = tl.cdiv(pairs, COLUMNS)
    head, other = tl.arange(0, HEADS)[:, None], tl.arange(0, HEADS)[None, :]
    pair = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    offset = (tl.program_id(0) // blocks).to(tl.int64) * heads * pairs + head.to(tl.int64) * pairs + pair
    there = (head < heads) & (pair < pairs)
    square = (head < heads) & (other < heads)
    values = tl.load(maps + offset, mask=there, other=0.0)
    matrix = tl.load(weight + head * heads + other, mask=square, other=0.0)
    shift = tl.load(bias + head, mask=head < heads, other=0.0)
    tl.store(mixed + offset, _softplus(tl.dot(matrix, values, input_precision="ieee") + shift), mask=there)
    if weight_2 is not None:
        matrix = tl.load(weight_2 + head * heads + other, mask=square, other=0.0)
        shift = tl.load(bias_2 + head, mask=head < heads, other=0.0)
        result = _softplus(tl.dot(matrix, values, input_precision="ieee") + shift)
        tl.store(mixed_2 + offset, result, mask=there)


@triton.jit
def _softplus(values):
    return tl.maximum(values, 0.0) + _log1p(tl.exp(-tl.abs(values)))


@triton.jit
def mix_backward_kernel(
    maps, weight, mixed, pull, weight_2, mixed_2, pull_2, to_maps, to_weights, to_biases,
    heads, pairs, total, span, MIXES: tl.constexpr, HEADS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of MIXES mixes, those of weights and biases summed over ``span`` of the ``total`` blocks of columns."""
    blocks = tl.cdiv(pairs, COLUMNS)
    head, other = tl.arange(0, HEADS)[:, None], tl.arange(0, HEADS)[None, :]
    square = (head < heads) & (other < heads)
    matrix = tl.load(weight + head * heads + other, mask=square, other=0.0)
    to_weight = tl.zeros((HEADS, HEADS), tl.float32)
    to_bias = tl.zeros((HEADS, COLUMNS), tl.float32)
    to_weight_2 = tl.zeros((HEADS, HEADS), tl.float32)
    to_bias_2 = tl.zeros((HEADS, COLUMNS), tl.float32)
    matrix_2 = matrix
    if MIXES == 2:
        matrix_2 = tl.load(weight_2 + head * heads + other, mask=square, other=0.0)
    first = tl.program_id(0) * span
    for index in range(first, tl.minimum(first + span, total)):
        pair = index % blocks * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        offset = (index // blocks).to(tl.int64) * heads * pairs + head.to(tl.int64) * pairs + pair
        there = (head < heads) & (pair < pairs)
        values = tl.load(maps + offset, mask=there, other=0.0)
        slope = _by_mix(mixed, pull, offset, there)  # that of softplus is 1 - exp(-softplus)
        result = tl.dot(tl.trans(matrix), slope, input_precision="ieee")
        to_weight += tl.dot(slope, tl.trans(values), input_precision="ieee")
        to_bias += slope
        if MIXES == 2:
            slope = _by_mix(mixed_2, pull_2, offset, there)
            result += tl.dot(tl.trans(matrix_2), slope, input_precision="ieee")
            to_weight_2 += tl.dot(slope, tl.trans(values), input_precision="ieee")
            to_bias_2 += slope
        tl.store(to_maps + offset, result, mask=there)
    row = tl.program_id(0) * MIXES * heads
    tl.store(to_weights + (row + head) * heads + other, to_weight, mask=square)
    tl.store(to_biases + row + head, tl.sum(to_bias, axis=1)[:, None], mask=head < heads)
    if MIXES == 2:
        row += heads
        tl.store(to_weights + (row + head) * heads + other, to_weight_2, mask=square)
        tl.store(to_biases + row + head, tl.sum(to_bias_2, axis=1)[:, None], mask=head < heads)


@triton.jit
def _by_mix(mixed, pull, offset, there):
    values = tl.load(mixed + offset, mask=there, other=0.0)
    near = values * (
        1.0 - values * (0.5 - values * (1.0 / 6 - values / 24))
    )  # 1 - exp(-x) without cancellation
    slope = tl.where(values < 0.03, near, 1.0 - tl.exp(-values))
    return tl.load(pull + offset, mask=there, other=0.0) * slope
