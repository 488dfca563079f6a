"""Kernels of Triton for attention with noise, without a map; :mod:`probattn.sites.flash` starts them.

Dao (2023) computes softmax attention in blocks of queries and keys and rescales what is summed. Where the spread of
q(S) is a constant, a draw of W is a softmax of scores plus noise, so a block needs its noise besides, and the KL of a
query is a function of sums over its keys. The noise is a function of seed, head, query and key (Salmon et al. 2011), so
the gradient makes it again.
"""

import triton
import triton.language as tl

from probattn.sites.triton_kernels import (
    _EULER,
    _FORBIDDEN,
    _allowed,
    _counted,
    _digamma_1p,
    _log1p,
    _log_gamma_1p,
    _stream,
    site_noise,
)

STATISTICS = 5
"""Numbers of a query that the gradient needs: log-sum-exps of the scores with noise, and, for that of the KL, of the
scores and of the prior's logits, and sums of its gradients by log E[S] and by log alpha."""


_CHANGING = ("share", "queries", "keys")
"""Numbers that change from batch to batch; others have kernels for 1 and for multiples of 16."""


@triton.jit
def _block(heads, length, SIZE: tl.constexpr):
    """Datum, head and first row of a program's block of rows, the number of its head in the batch, and of all heads."""
    blocks = tl.cdiv(length, SIZE)
    at = tl.program_id(0) // blocks
    all_heads = (tl.num_programs(0) // blocks).to(tl.int64)
    return at // heads, at % heads, tl.program_id(0) % blocks * SIZE, at.to(tl.int64), all_heads


@triton.jit
def _rows_of(tensor, datum, head, row, length, width, by_datum, by_head, by_row, WIDTH: tl.constexpr):
    """Rows ``row`` of one head of a tensor ``[B, H, T, D]``, zeros where there are none."""
    column = tl.arange(0, WIDTH)[None, :]
    at = (
        datum.to(tl.int64) * by_datum
        + head.to(tl.int64) * by_head
        + row[:, None].to(tl.int64) * by_row
        + column
    )
    return tl.load(tensor + at, mask=(row[:, None] < length) & (column < width), other=0.0)


@triton.jit
def _pull_of(pull_of, at, there, width, WIDTH: tl.constexpr):
    """The gradient of the output of some queries."""
    column = tl.arange(0, WIDTH)[None, :]
    return tl.load(pull_of + at * width + column, mask=there & (column < width), other=0.0)


@triton.jit
def _some(allowed):
    return tl.max(tl.max(allowed.to(tl.int32), axis=1), axis=0) > 0


@triton.jit
def _log_alpha(logits, log_total, strength, datum, head, groups, repeats, key, keys, counted):
    """log alpha of the prior at the pairs that take part in the KL, 0 elsewhere."""
    # With ``else``: code after a return is compiled too, and there are no logits to load.
    if logits is None:
        log_alpha = strength
    else:
        at = (datum * groups + head // repeats).to(tl.int64) * keys + key
        values = tl.load(logits + at, mask=key < keys, other=0.0)
        log_alpha = values - log_total + strength
    return tl.where(counted, log_alpha, 0.0)


@triton.jit
def _at_most_0(values):
    return tl.minimum(values, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _raised(largest, total, scores, allowed):
    """Largest score and sum of exponentials after further scores, these exponentials, and the factor of older sums."""
    scores = tl.where(allowed, scores, _FORBIDDEN)
    now = tl.maximum(largest, tl.max(scores, axis=1)[:, None])
    powers = tl.where(allowed, tl.exp(scores - now), 0.0)
    shrink = tl.exp(largest - now)
    return now, total * shrink + tl.sum(powers, axis=1)[:, None], powers, shrink


@triton.jit
def _log_sum(largest, total):
    return tl.where(total > 0, largest + tl.log(tl.where(total > 0, total, 1.0)), 0.0)


@triton.jit(do_not_specialize=_CHANGING)
def attend_kernel(
    queries_of, keys_of, values_of, logits, valid, real, seeds, output, statistics, divergence,
    q_datum, q_head, q_row, k_datum, k_head, k_row, v_datum, v_head, v_row,
    by_datum, by_head, by_query, by_key,
    share, heads, key_heads, groups, queries, keys, width, value_width,
    factor, rate, surprise, strength, spread, prior, low, high,
    NORMAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Output and, where ``divergence`` is there, the KL of each query; ``statistics`` are ``[1 | 5, B, H, T]``."""
    datum, head, first, of_head, all_heads = _block(heads, queries, ROWS)
    row = first + tl.arange(0, ROWS)
    query = row[:, None]
    of_query = _rows_of(queries_of, datum, head, row, queries, width, q_datum, q_head, q_row, WIDTH)
    key_head = head // (heads // key_heads)
    seed, row_index = _stream(seeds, datum, share)
    log_total = tl.zeros((ROWS, 1), tl.float32)
    if divergence is not None and logits is not None:
        largest = tl.full((ROWS, 1), _FORBIDDEN, tl.float32)
        total = tl.zeros((ROWS, 1), tl.float32)
        for start in range(0, keys, COLUMNS):
            key = start + tl.arange(0, COLUMNS)[None, :]
            allowed = _allowed(
                valid, datum, head, query, key, queries, keys, by_datum, by_head, by_query, by_key
            )
            at = (datum * groups + head // (heads // groups)).to(tl.int64) * keys + key
            values = tl.load(logits + at, mask=key < keys, other=0.0)
            largest, total, _, _ = _raised(largest, total, values, allowed)
        log_total = _log_sum(largest, total)
    largest = tl.full((ROWS, 1), _FORBIDDEN, tl.float32)  # of the scores
    total = tl.zeros((ROWS, 1), tl.float32)
    highest = tl.full((ROWS, 1), _FORBIDDEN, tl.float32)  # of the scores with noise
    noisy_total = tl.zeros((ROWS, 1), tl.float32)
    summed = tl.zeros((ROWS, VALUE_WIDTH), tl.float32)
    # Sums over the pairs that take part in the KL. Weibull: their number, of alpha, of alpha times the score, of the
    # prior's terms and of alpha psi(1 + alpha). Log-normal: their number, mean and sum of squares around the mean of
    # the score less log alpha (Chan, Golub and LeVeque 1983).
    count = tl.zeros((ROWS, 1), tl.float32)
    mean = tl.zeros((ROWS, 1), tl.float32)
    second = tl.zeros((ROWS, 1), tl.float32)
    constants = tl.zeros((ROWS, 1), tl.float32)
    slopes = tl.zeros((ROWS, 1), tl.float32)
    for start in range(0, keys, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        key = column[None, :]
        allowed = _allowed(valid, datum, head, query, key, queries, keys, by_datum, by_head, by_query, by_key)
        counted = _counted(allowed, real, datum, query, queries)
        if _some(allowed):
            of_key = _rows_of(keys_of, datum, key_head, column, keys, width, k_datum, k_head, k_row, WIDTH)
            scores = tl.dot(of_query, tl.trans(of_key), input_precision=PRECISION) * factor
            if divergence is not None:
                largest, total, _, _ = _raised(largest, total, scores, allowed)
                log_alpha = _log_alpha(
                    logits, log_total, strength, datum, head, groups, heads // groups, key, keys, counted
                )
                number = tl.sum(tl.where(counted, 1.0, 0.0), axis=1)[:, None]
                if NORMAL:
                    distance = tl.where(counted, scores - log_alpha, 0.0)
                    centre = tl.sum(distance, axis=1)[:, None] / tl.maximum(number, 1.0)
                    apart = tl.where(counted, distance - centre, 0.0)
                    step = number / tl.maximum(count + number, 1.0)
                    second += tl.sum(apart * apart, axis=1)[:, None]
                    second += (centre - mean) * (centre - mean) * count * step
                    mean += (centre - mean) * step
                else:
                    alpha = tl.where(counted, tl.exp(log_alpha), 0.0)
                    log1p = _log1p(alpha)
                    mean += tl.sum(alpha, axis=1)[:, None]
                    second += tl.sum(alpha * tl.where(counted, scores, 0.0), axis=1)[:, None]
                    constants += tl.sum(_log_gamma_1p(alpha, log1p) - log_alpha, axis=1)[:, None]
                    slopes += tl.sum(alpha * _digamma_1p(alpha, log1p), axis=1)[:, None]
                count += number
            noise = site_noise(seed, row_index, head, query, start, low, high, NORMAL, ROWS, COLUMNS)
            scores += noise * (spread if NORMAL else 1.0 / spread)
            highest, noisy_total, powers, shrink = _raised(highest, noisy_total, scores, allowed)
            of_value = _rows_of(
                values_of, datum, key_head, column, keys, value_width, v_datum, v_head, v_row, VALUE_WIDTH
            )
            summed = summed * shrink
            summed += tl.dot(powers.to(of_value.dtype), of_value, input_precision=PRECISION)
    result = summed / tl.where(noisy_total > 0, noisy_total, 1.0)
    at = of_head * queries + query
    there = query < queries
    column = tl.arange(0, VALUE_WIDTH)[None, :]
    tl.store(
        output + at * value_width + column, result.to(output.dtype.element_ty),
        mask=there & (column < value_width),
    )  # fmt: skip
    rows = all_heads * queries  # of the whole batch
    tl.store(statistics + at, _log_sum(highest, noisy_total), mask=there)
    if divergence is not None:
        log_sum = _log_sum(largest, total)
        if NORMAL:
            # E[log S] is the score less its log-sum-exp and s^2 / 2.
            distance = mean - log_sum - spread * spread / 2
            ratio = spread / prior
            terms = (second + count * distance * distance) / (2 * prior * prior)
            terms += count * ((ratio * ratio - 1.0) / 2 - tl.log(ratio))
            by_mean = count * distance / (prior * prior)
            by_alpha = -by_mean
        else:
            pull = mean * (surprise + log_sum) - second
            means = tl.where(count > 0, rate, 0.0)  # E[S] of a query sums to 1
            terms = pull + constants + count * (tl.log(spread) - _EULER - 1.0) + means
            by_mean = means - mean
            by_alpha = pull + slopes - count
        tl.store(divergence + at, terms, mask=there)
        tl.store(statistics + rows + at, log_sum, mask=there)
        tl.store(statistics + 2 * rows + at, log_total, mask=there)
        tl.store(statistics + 3 * rows + at, by_mean, mask=there)
        tl.store(statistics + 4 * rows + at, by_alpha, mask=there)


@triton.jit
def _slopes(
    of_query, of_key, of_value, pull, inner, logits, valid, real, statistics, by_kl, seed, row_index, datum, head,
    query, start, rows, at, by_datum, by_head, by_query, by_key, heads, groups, queries, keys,
    factor, rate, surprise, strength, spread, prior, low, high,
    NORMAL: tl.constexpr, WITH_KL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """W of a block, the gradients by its scores and by the prior's logits before they are summed over queries."""
    key = start + tl.arange(0, COLUMNS)[None, :]
    there = query < queries
    allowed = _allowed(valid, datum, head, query, key, queries, keys, by_datum, by_head, by_query, by_key)
    counted = _counted(allowed, real, datum, query, queries)
    scores = tl.dot(of_query, tl.trans(of_key), input_precision=PRECISION) * factor
    noise = site_noise(seed, row_index, head, query, start, low, high, NORMAL, ROWS, COLUMNS)
    noise *= spread if NORMAL else 1.0 / spread
    log_sum = tl.load(statistics + at, mask=there, other=0.0)
    weights = tl.where(allowed, tl.exp(_at_most_0(scores + noise - log_sum)), 0.0)
    to_scores = weights * (tl.dot(pull, tl.trans(of_value), input_precision=PRECISION) - inner)
    to_logits = tl.zeros((ROWS, COLUMNS), tl.float32)
    if WITH_KL:
        log_sum = tl.load(statistics + rows + at, mask=there, other=0.0)
        log_total = tl.load(statistics + 2 * rows + at, mask=there, other=0.0)
        log_alpha = _log_alpha(
            logits, log_total, strength, datum, head, groups, heads // groups, key, keys, counted
        )
        means = tl.where(allowed, tl.exp(_at_most_0(scores - log_sum)), 0.0)  # E[S]
        if NORMAL:
            distance = scores - log_sum - spread * spread / 2 - log_alpha
            to_mean = tl.where(counted, distance / (prior * prior), 0.0)
            by_alpha = -to_mean
        else:
            alpha = tl.where(counted, tl.exp(log_alpha), 0.0)
            to_mean = tl.where(counted, rate * means - alpha, 0.0)
            by_alpha = alpha * (surprise - scores + log_sum + _digamma_1p(alpha, _log1p(alpha)))
            by_alpha -= tl.where(counted, 1.0, 0.0)
        sums = tl.load(statistics + 3 * rows + at, mask=there, other=0.0)
        to_scores += by_kl * (to_mean - means * sums)
        sums = tl.load(statistics + 4 * rows + at, mask=there, other=0.0)
        to_logits = by_kl * (by_alpha - tl.where(counted, tl.exp(log_alpha - strength), 0.0) * sums)
    return weights, to_scores, to_logits


@triton.jit(do_not_specialize=_CHANGING)
def attend_query_kernel(
    queries_of, keys_of, values_of, pull_of, inner_of, logits, valid, real, seeds, statistics, by_divergence, to_query,
    q_datum, q_head, q_row, k_datum, k_head, k_row, v_datum, v_head, v_row,
    by_datum, by_head, by_query, by_key,
    share, heads, key_heads, groups, queries, keys, width, value_width,
    factor, rate, surprise, strength, spread, prior, low, high,
    NORMAL: tl.constexpr, WITH_KL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient by the queries, of a block of them."""
    datum, head, first, of_head, all_heads = _block(heads, queries, ROWS)
    row = first + tl.arange(0, ROWS)
    query = row[:, None]
    key_head = head // (heads // key_heads)
    rows, at = all_heads * queries, of_head * queries + query
    of_query = _rows_of(queries_of, datum, head, row, queries, width, q_datum, q_head, q_row, WIDTH)
    pull = _pull_of(pull_of, at, query < queries, value_width, VALUE_WIDTH)
    inner = tl.load(inner_of + at, mask=query < queries, other=0.0)
    seed, row_index = _stream(seeds, datum, share)
    by_kl = 0.0
    if WITH_KL:
        by_kl = tl.load(by_divergence + datum)
    summed = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, keys, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        allowed = _allowed(
            valid, datum, head, query, column[None, :], queries, keys, by_datum, by_head, by_query, by_key
        )
        if _some(allowed):
            of_key = _rows_of(keys_of, datum, key_head, column, keys, width, k_datum, k_head, k_row, WIDTH)
            of_value = _rows_of(
                values_of, datum, key_head, column, keys, value_width, v_datum, v_head, v_row, VALUE_WIDTH
            )
            _weights, to_scores, _logits = _slopes(
                of_query, of_key, of_value, pull, inner, logits, valid, real, statistics, by_kl, seed, row_index, datum,
                head, query, start, rows, at, by_datum, by_head, by_query, by_key, heads, groups, queries, keys,
                factor, rate, surprise, strength, spread, prior, low, high, NORMAL, WITH_KL, ROWS, COLUMNS,
                PRECISION,
            )  # fmt: skip
            summed += tl.dot(to_scores.to(of_key.dtype), of_key, input_precision=PRECISION)
    column = tl.arange(0, WIDTH)[None, :]
    tl.store(
        to_query + at * width + column, (summed * factor).to(to_query.dtype.element_ty),
        mask=(query < queries) & (column < width),
    )  # fmt: skip


@triton.jit(do_not_specialize=_CHANGING)
def attend_key_kernel(
    queries_of, keys_of, values_of, pull_of, inner_of, logits, valid, real, seeds, statistics, by_divergence,
    to_key, to_value, to_logits,
    q_datum, q_head, q_row, k_datum, k_head, k_row, v_datum, v_head, v_row,
    by_datum, by_head, by_query, by_key,
    share, heads, key_heads, groups, queries, keys, width, value_width,
    factor, rate, surprise, strength, spread, prior, low, high,
    NORMAL: tl.constexpr, WITH_KL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients by the keys, the values and the prior's logits, of a block of keys of one query head."""
    datum, head, start, of_head, all_heads = _block(heads, keys, COLUMNS)
    column = start + tl.arange(0, COLUMNS)
    key_head = head // (heads // key_heads)
    rows = all_heads * queries
    of_key = _rows_of(keys_of, datum, key_head, column, keys, width, k_datum, k_head, k_row, WIDTH)
    of_value = _rows_of(
        values_of, datum, key_head, column, keys, value_width, v_datum, v_head, v_row, VALUE_WIDTH
    )
    seed, row_index = _stream(seeds, datum, share)
    by_kl = 0.0
    if WITH_KL:
        by_kl = tl.load(by_divergence + datum)
    key_sum = tl.zeros((COLUMNS, WIDTH), tl.float32)
    value_sum = tl.zeros((COLUMNS, VALUE_WIDTH), tl.float32)
    logit_sum = tl.zeros((1, COLUMNS), tl.float32)
    for first in range(0, queries, ROWS):
        row = first + tl.arange(0, ROWS)
        query = row[:, None]
        allowed = _allowed(
            valid, datum, head, query, column[None, :], queries, keys, by_datum, by_head, by_query, by_key
        )
        if _some(allowed):
            at = of_head * queries + query
            of_query = _rows_of(queries_of, datum, head, row, queries, width, q_datum, q_head, q_row, WIDTH)
            pull = _pull_of(pull_of, at, query < queries, value_width, VALUE_WIDTH)
            inner = tl.load(inner_of + at, mask=query < queries, other=0.0)
            weights, to_scores, by_logits = _slopes(
                of_query, of_key, of_value, pull, inner, logits, valid, real, statistics, by_kl, seed, row_index, datum,
                head, query, start, rows, at, by_datum, by_head, by_query, by_key, heads, groups, queries, keys,
                factor, rate, surprise, strength, spread, prior, low, high, NORMAL, WITH_KL, ROWS, COLUMNS,
                PRECISION,
            )  # fmt: skip
            value_sum += tl.dot(tl.trans(weights.to(pull.dtype)), pull, input_precision=PRECISION)
            key_sum += tl.dot(tl.trans(to_scores.to(of_query.dtype)), of_query, input_precision=PRECISION)
            logit_sum += tl.sum(by_logits, axis=0)[None, :]
    at = of_head * keys + column[:, None]
    wide = tl.arange(0, WIDTH)[None, :]
    there = column[:, None] < keys
    tl.store(
        to_key + at * width + wide, (key_sum * factor).to(to_key.dtype.element_ty),
        mask=there & (wide < width),
    )  # fmt: skip
    wide = tl.arange(0, VALUE_WIDTH)[None, :]
    tl.store(
        to_value + at * value_width + wide, value_sum.to(to_value.dtype.element_ty),
        mask=there & (wide < value_width),
    )  # fmt: skip
    if to_logits is not None:
        tl.store(to_logits + of_head * keys + column[None, :], logit_sum, mask=column[None, :] < keys)
