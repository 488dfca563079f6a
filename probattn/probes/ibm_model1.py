"""IBM Model 1: which word translates to which, from co-occurrence alone (Brown et al. 1993)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from scipy.sparse import csr_matrix, hstack
from torch import Tensor

from probattn.checks import check_instance, check_integer
from probattn.data import DataError
from probattn.files.durable import write_atomically
from probattn.probes.corpus import ParallelCorpus, Vocabulary
from probattn.probes.rows import valid_positions

NULL = "<null>"
"""Word that ``IBMModel1.fit(..., null=True)`` adds to every source sentence; last row of :attr:`IBMModel1.table`."""
_FORMAT = "probattn.IBMModel1/1"
_PAIRS = 2**22  # pairs of a source word and a target word that are looked up at once: some 200 MiB


@dataclass(frozen=True, eq=False)
class IBMModel1:
    r"""Probabilities that a source word i translates to a target word o, fitted by expectation-maximisation.

    The first step starts from uniform probabilities. For sentence pairs m with source words x_l and target words y_t it
    gives the count table and the translation table of Snell et al. 2021, section 4.2,

    .. math::
        C_{i,o} &= \sum_m \sum_{l=1}^{L^m} \sum_{t=1}^{T^m} \frac{1}{L^m} 1[x_l^m = i]\, 1[y_t^m = o]
            && \text{(Eq. 16)}, \\
        \mathrm{Trans}(o \mid i) &= C_{i,o} \Big/ \sum_{o'} C_{i,o'} && \text{(Eq. 17)},

    and every further step replaces 1 / L by the word alignment under the table of the previous step,
    :math:`\mathrm{Trans}(y_t \mid x_l) / \sum_{l'} \mathrm{Trans}(y_t \mid x_{l'})` (Brown et al. 1993). The
    likelihood never falls from step to step. :meth:`fit` makes a model, which is never changed afterwards.

    Attributes:
        counts: expected counts of the last step, float64 ``[I, O]`` in compressed sparse rows; ``[I + 1, O]`` with
            NULL, its row last. Words that occur together in no sentence pair have no entry.
        source_vocabulary: the I source words.
        target_vocabulary: the O target words.
        steps: number of steps of expectation-maximisation that gave the counts.
        null: whether NULL was added to every source sentence, for target words that translate no source word.

    Example:
        >>> corpus = ParallelCorpus.from_words(
        ...     [["the", "house"], ["the", "book"], ["a", "book"]],
        ...     [["das", "Haus"], ["das", "Buch"], ["ein", "Buch"]],
        ... )
        >>> model = IBMModel1.fit(corpus)
        >>> model.translations("book")
        [('Buch', 0.5), ('das', 0.25), ('ein', 0.25)]
        >>> IBMModel1.fit(corpus, steps=20).translations("house", most=1)
        [('Haus', 0.968...)]
    """

    counts: csr_matrix = field(repr=False)
    source_vocabulary: Vocabulary = field(repr=False)
    target_vocabulary: Vocabulary = field(repr=False)
    steps: int
    null: bool = False

    @classmethod
    def fit(cls, corpus: ParallelCorpus, steps: int = 1, *, null: bool = False) -> IBMModel1:
        """Fits a model to sentence pairs by ``steps`` steps of expectation-maximisation.

        Args:
            corpus: sentence pairs.
            steps: steps of expectation-maximisation, >= 1; 1 gives Eq. 16 and 17.
            null: whether to add the word :data:`NULL` to every source sentence.

        Raises:
            TypeError: ``corpus`` is not a ParallelCorpus.
            ValueError: ``steps`` is less than 1.
        """
        words = "a ParallelCorpus; from_words makes one"
        check_instance("IBMModel1.fit", "corpus", corpus, ParallelCorpus, words)
        check_integer("IBMModel1.fit", "steps", steps, minimum=1)
        source = _source(corpus, null)
        lengths = np.asarray(source.sum(axis=1)).ravel()
        share = corpus.target.astype(np.float64)
        share.data /= np.repeat(lengths, np.diff(share.indptr))
        counts = expected_counts(source, share)
        model = cls(counts, corpus.source_vocabulary, corpus.target_vocabulary, 1, null)
        return model.improve(corpus, steps - 1)

    def improve(self, corpus: ParallelCorpus, steps: int = 1) -> IBMModel1:
        """A new model after ``steps`` >= 0 further steps of expectation-maximisation on the corpus of :meth:`fit`.

        Raises:
            ValueError: ``steps`` is negative, or the corpus has another vocabulary or a target word that no word of its
                source sentence translates to.
        """
        check_integer("IBMModel1.improve", "steps", steps, minimum=0)
        source = self._source_of(corpus)
        counts = self.counts
        for _ in range(steps):
            table = _row_shares(counts)
            share = corpus.target.astype(np.float64)
            totals = normalisers(source, corpus.target, table)
            if not totals.all():
                raise ValueError(
                    "IBMModel1: expected the corpus that the model was fitted to, "
                    "got a target word that none of its sentence's source words can translate to"
                )
            share.data /= totals
            counts = expected_counts(source, share, table)
        return replace(self, counts=counts, steps=self.steps + steps)

    @cached_property
    def table(self) -> csr_matrix:
        """Trans(o | i) (Eq. 17), float64, shape of ``counts``: a row sums to 1, or to 0 if the word never occurred."""
        return _row_shares(self.counts)

    def log_likelihood(self, corpus: ParallelCorpus) -> float:
        r"""Log-probability, in nats, of the target sentences given the source sentences and the target lengths.

        .. math:: \sum_m \sum_t \log \frac{1}{L^m} \sum_l \mathrm{Trans}(y_t^m \mid x_l^m)

        (Brown et al. 1993, without the constant for the lengths); -inf if no source word of a sentence translates to
        one of its target words. NULL counts as a source position if the model has it.

        Raises:
            ValueError: the corpus has another vocabulary.
        """
        source = self._source_of(corpus)
        lengths = np.asarray(source.sum(axis=1)).ravel()
        totals = normalisers(source, corpus.target, self.table)
        with np.errstate(divide="ignore"):
            logs = np.log(totals) - np.log(np.repeat(lengths, np.diff(corpus.target.indptr)))
        return float(logs @ corpus.target.data)

    def probe(self, source: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        r"""Probability that each source word translates to each target word.

        .. math:: \beta^{\mathrm{IBM}}_{t,l} = \mathrm{Trans}(y_t \mid x_l)

        (Snell et al. 2021, Eq. 18).

        Args:
            source: x, numbers of source words ``[..., L]``, as :meth:`Vocabulary.encode` gives them; numbers outside
                the vocabulary (unknown words, padding) are allowed and get probability 0.
            target: y, numbers of target words ``[..., T]``, under the same rules.
            mask: bool ``[..., L]``, True for a source position that counts.

        Returns:
            ``[..., T, L]`` float64; 0 at masked positions and for unknown words.

        Raises:
            TypeError: the numbers are not integers or ``mask`` is not bool.
            ValueError: ``mask`` does not fit ``source``.

        Example:
            >>> corpus = ParallelCorpus.from_words([["the", "house"]], [["das", "Haus"]])
            >>> model = IBMModel1.fit(corpus)
            >>> model.probe(torch.tensor([0, 1, -1]), torch.tensor([0]))
            tensor([[0.5000, 0.5000, 0.0000]], dtype=torch.float64)
        """
        for name, ids in (("source", source), ("target", target)):
            if ids.is_floating_point() or ids.dtype == torch.bool:
                raise TypeError(f"IBMModel1: expected integer {name} words, got {ids.dtype}")
        in_vocabulary = (source >= 0) & (source < len(self.source_vocabulary))
        in_vocabulary = in_vocabulary & valid_positions("IBMModel1", mask, source)
        heard = (target >= 0) & (target < len(self.target_vocabulary))
        rows, columns = torch.broadcast_tensors(source.unsqueeze(-2), target.unsqueeze(-1))  # [..., T, L]
        valid = (in_vocabulary.unsqueeze(-2) & heard.unsqueeze(-1)).expand(rows.shape)
        probabilities = torch.zeros(rows.shape, dtype=torch.float64)
        # Copies, because scipy asks for arrays that it may mark as writable.
        indices = [np.array(item[valid].numpy(force=True)) for item in (rows, columns)]
        entries = table_entries(self.table, *indices)
        probabilities[valid.cpu()] = torch.from_numpy(entries)
        return probabilities.to(source.device)

    def attention(self, source: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        r"""Word alignment: probability that a target word translates each of the source words of its sentence.

        .. math:: \alpha^{\mathrm{IBM}}_{t,l} = \beta^{\mathrm{IBM}}_{t,l} \Big/ \sum_{l'} \beta^{\mathrm{IBM}}_{t,l'}

        (Snell et al. 2021, Eq. 19). Without NULL rows sum to 1; with NULL the rest of each row is the share of NULL. A
        target word that no source word translates to has a row of zeros. Arguments and errors: see :meth:`probe`.
        """
        beta = self.probe(source, target, mask)
        total = beta.sum(dim=-1, keepdim=True)
        if self.null:
            total = total + self._null_probe(target).unsqueeze(-1)
        return torch.where(total > 0, beta / total, 0)

    def translations(self, word: str, most: int = 5) -> list[tuple[str, float]]:
        """The most probable translations of a source word.

        Args:
            word: a source word; also :data:`NULL` if the model was fitted with ``null=True``.
            most: maximum number of translations, >= 1.

        Returns:
            Target words with their probabilities, most probable first; ties in the order of the vocabulary.

        Raises:
            KeyError: the word is not in the source vocabulary.
            ValueError: ``most`` is less than 1.
        """
        check_integer("IBMModel1.translations", "most", most, minimum=1)
        if word == NULL and self.null:
            row = len(self.source_vocabulary)
        elif word in self.source_vocabulary.numbers:
            row = self.source_vocabulary.numbers[word]
        else:
            raise KeyError(
                f"IBMModel1: {word!r} is not among the {len(self.source_vocabulary):,} source words"
            )
        entries = slice(self.table.indptr[row], self.table.indptr[row + 1])
        shares, columns = self.table.data[entries], self.table.indices[entries]
        best = np.argsort(-shares, kind="stable")[:most]
        return [(self.target_vocabulary.words[columns[item]], float(shares[item])) for item in best]

    def save(self, path: str | Path) -> None:
        """Writes the model to a file in an existing folder, atomically: an ``OSError`` leaves an older file intact."""
        counts = self.counts
        arrays = {"data": counts.data, "indices": counts.indices, "indptr": counts.indptr.astype(np.int64)}
        header = {
            "format": _FORMAT,
            "source_words": json.dumps(self.source_vocabulary.words),
            "target_words": json.dumps(self.target_vocabulary.words),
            "steps": str(self.steps),
            "null": json.dumps(self.null),
        }
        write_atomically(Path(path), save(arrays, metadata=header))

    @classmethod
    def load(cls, path: str | Path) -> IBMModel1:
        """Reads a file; ``DataError`` if there is none, or it is damaged or was not written by :meth:`save`."""
        path = Path(path)
        if not path.is_file():
            got = "a folder" if path.is_dir() else "no file"
            raise DataError(f"{path}: expected the file of an IBM Model 1, got {got}")
        try:
            with safe_open(path, framework="numpy") as file:
                header = file.metadata() or {}
                if header.get("format") != _FORMAT:
                    raise DataError(
                        f"{path}: expected a file that IBMModel1.save wrote ({_FORMAT}), "
                        f"got one of format {header.get('format', 'unknown')!r}"
                    )
                arrays = tuple(file.get_tensor(name) for name in ("data", "indices", "indptr"))
            source, target = (tuple(json.loads(header[name])) for name in ("source_words", "target_words"))
            steps, null = int(header["steps"]), bool(json.loads(header["null"]))
            counts = csr_matrix(arrays, shape=(len(source) + null, len(target)))
            counts.check_format(full_check=True)
        except DataError:
            raise
        except (SafetensorError, KeyError, ValueError, TypeError, OSError) as error:
            raise DataError(
                f"{path}: damaged, cannot be read as an IBM Model 1 ({error}); fit and save it again"
            ) from error
        return cls(counts, Vocabulary(source), Vocabulary(target), steps, null)

    def _source_of(self, corpus: ParallelCorpus) -> csr_matrix:
        """The corpus' source words, once its vocabularies are known to be the model's."""
        pairs = (
            ("source", self.source_vocabulary, corpus.source_vocabulary),
            ("target", self.target_vocabulary, corpus.target_vocabulary),
        )
        for side, ours, theirs in pairs:
            if ours != theirs:
                raise ValueError(
                    f"IBMModel1: expected a corpus with the model's {len(ours):,} {side} words in their order, "
                    f"got another vocabulary of {len(theirs):,}"
                )
        return _source(corpus, self.null)

    def _null_probe(self, target: Tensor) -> Tensor:
        """Trans(y_t | NULL), ``[..., T]``."""
        row = torch.from_numpy(self.table[-1].toarray().ravel())
        heard = (target >= 0) & (target < len(self.target_vocabulary))
        return torch.where(heard, row.to(target.device)[torch.where(heard, target, 0).long()], 0)


def _source(corpus: ParallelCorpus, null: bool) -> csr_matrix:
    if not null:
        return corpus.source
    always = csr_matrix(np.ones((len(corpus), 1), dtype=corpus.source.dtype))
    return hstack([corpus.source, always], format="csr")


def _row_shares(counts: csr_matrix) -> csr_matrix:
    totals = np.asarray(counts.sum(axis=1)).ravel()
    shares = counts.data / np.repeat(totals, np.diff(counts.indptr))
    return csr_matrix((shares, counts.indices, counts.indptr), shape=counts.shape)


def expected_counts(source: csr_matrix, share: csr_matrix, table: csr_matrix | None = None) -> csr_matrix:
    """Expected number of times that each source word translated to each target word, given the normalisers' shares."""
    # Trans(o | i) sum_m X_mi Y_mo / Z_mo: equal words of a sentence have equal alignments.
    counts = csr_matrix(source.T.tocsr() @ share)
    counts.sort_indices()
    if table is None:
        return counts
    if counts.nnz == table.nnz and np.array_equal(counts.indices, table.indices):
        counts.data *= table.data
        return counts
    return csr_matrix(counts.multiply(table))


def normalisers(source: csr_matrix, target: csr_matrix, table: csr_matrix) -> np.ndarray:
    r"""For each target word of each sentence :math:`\sum_i X_{m,i}\, \mathrm{Trans}(o \mid i)`, over source words."""
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
    """Entries of a sparse table, 0 where it has none."""
    if not len(rows):
        return np.empty(0, dtype=table.dtype)
    return np.asarray(table[rows, columns]).ravel()
