"""The expectation step of IBM Model 1 on sparse matrices."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

_PAIRS = 2**22
"""Pairs of a source word and a target word that are looked up at once: some 200 MiB."""


def expected_counts(source: csr_matrix, share: csr_matrix, table: csr_matrix | None = None) -> csr_matrix:
    r"""Expected number of times that each source word translated to each target word.

    .. math:: C_{i,o} = \mathrm{Trans}(o \mid i) \sum_m X_{m,i} Y_{m,o} / Z_{m,o}

    for counts X and Y of words in sentences and the normalisers Z of :func:`normalisers`: the sum over positions,
    since equal words of a sentence have equal alignments.

    Example:
        >>> source, share = csr_matrix([[1, 1], [0, 2]]), csr_matrix([[0.5], [1.0]])
        >>> expected_counts(source, share).toarray()
        array([[0.5],
               [2.5]])
    """
    counts = csr_matrix(source.T.tocsr() @ share)
    counts.sort_indices()
    if table is None:
        return counts
    if counts.nnz == table.nnz and np.array_equal(counts.indices, table.indices):
        counts.data *= table.data
        return counts
    return csr_matrix(counts.multiply(table))


def normalisers(source: csr_matrix, target: csr_matrix, table: csr_matrix) -> np.ndarray:
    r"""For each target word of each sentence, the sum of its probabilities given the sentence's source words.

    .. math:: Z_{m,o} = \sum_i X_{m,i}\, \mathrm{Trans}(o \mid i)

    Example:
        >>> table = csr_matrix([[0.25, 0.75], [1.0, 0.0]])
        >>> normalisers(csr_matrix([[2, 1]]), csr_matrix([[1, 3]]), table)
        array([1.5, 1.5])
    """
    rows = np.repeat(np.arange(target.shape[0]), np.diff(target.indptr))
    per_cell = np.diff(source.indptr)[rows].astype(np.int64)
    ends = np.cumsum(per_cell)
    totals = np.empty(target.nnz)
    start = 0
    while start < target.nnz:
        done = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + _PAIRS, side="right")))
        cells = slice(start, stop)
        first = ends[cells] - per_cell[cells] - done  # of each cell's pairs, within this part
        shift = np.repeat(source.indptr[rows[cells]] - first, per_cell[cells])
        indices = np.arange(len(shift)) + shift
        columns = np.repeat(target.indices[cells], per_cell[cells])
        products = table_entries(table, source.indices[indices], columns) * source.data[indices]
        totals[cells] = np.add.reduceat(products, first)
        start = stop
    return totals


def table_entries(table: csr_matrix, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Entries of a sparse table, 0 where it has none.

    Example:
        >>> table_entries(csr_matrix([[0.0, 0.5]]), np.array([0, 0]), np.array([1, 0]))
        array([0.5, 0. ])
    """
    if not len(rows):
        return np.empty(0, dtype=table.dtype)
    return np.asarray(table[rows, columns]).ravel()
