"""IBM Model 1: which word translates to which, from co-occurrence alone (Brown et al. 1993)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_matrix, hstack
from torch import Tensor

from probattn.checks import check_instance, check_integer
from probattn.probes import ibm_file
from probattn.probes.corpus import ParallelCorpus, Vocabulary
from probattn.probes.expectation import expected_counts, normalisers, table_entries
from probattn.probes.rows import valid_positions

NULL = "<null>"
"""The word in every source sentence where the NULL option is set; the last row of the table then."""


@dataclass(frozen=True, eq=False)
class IBMModel1:
    r"""A table of translation probabilities, by expectation-maximisation from a uniform one.

    One step gives the count table and the translation table of Snell et al. 2021, section 4.2,

    .. math::
        C_{i,o} &= \sum_m \sum_{l=1}^{L^m} \sum_{t=1}^{T^m} \frac{1}{L^m} 1[x_l^m = i]\, 1[y_t^m = o]
            && \text{(Eq. 16)}, \\
        \mathrm{Trans}(o \mid i) &= C_{i,o} \Big/ \sum_{o'} C_{i,o'} && \text{(Eq. 17)},

    and every further step replaces 1 / L by the alignment of the table so far,
    :math:`\mathrm{Trans}(y_t \mid x_l) / \sum_{l'} \mathrm{Trans}(y_t \mid x_{l'})` (Brown et al. 1993). The
    likelihood never falls from step to step. Made by :meth:`fit`; nothing changes afterwards.

    Attributes:
        counts: expected counts of the last step, float64 ``[I, O]`` in compressed rows; with NULL one row more, the
            last. Words that never met have no entry.
        source_vocabulary: the I source words.
        target_vocabulary: the O target words.
        steps: steps of expectation-maximisation behind the counts.
        null: whether every source sentence held the word NULL, which takes target words that translate none.

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
        """Counts, and improves the counts by expectation-maximisation; returns the model.

        Args:
            corpus: sentence pairs.
            steps: steps of expectation-maximisation, >= 1; 1 gives Eq. 16 and 17.
            null: whether to put the word NULL into every source sentence.

        Raises:
            TypeError: the corpus is none.
            ValueError: ``steps`` is less than 1.
        """
        check_instance(
            "IBMModel1.fit", "corpus", corpus, ParallelCorpus, "a ParallelCorpus; from_words makes one"
        )
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
            ValueError: ``steps`` is negative, the corpus has other words, or its pairs hold words that never met in the
                model's.
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
        return IBMModel1(
            counts, self.source_vocabulary, self.target_vocabulary, self.steps + steps, self.null
        )

    @cached_property
    def table(self) -> csr_matrix:
        """Trans(o | i), float64 ``[I, O]`` in compressed rows: rows sum to 1, those of unseen words to 0 (Eq. 17)."""
        return _row_shares(self.counts)

    def log_likelihood(self, corpus: ParallelCorpus) -> float:
        r"""Logarithm of the probability of the target sentences given the source sentences and their own lengths.

        .. math:: \sum_m \sum_t \log \frac{1}{L^m} \sum_l \mathrm{Trans}(y_t^m \mid x_l^m)

        (Brown et al. 1993, without the constant for the lengths), in nats; -inf where a target word can come from
        none of the source words. NULL counts as a position if the model has it.

        Raises:
            ValueError: the corpus has other words.
        """
        source = self._source_of(corpus)
        lengths = np.asarray(source.sum(axis=1)).ravel()
        totals = normalisers(source, corpus.target, self.table)
        with np.errstate(divide="ignore"):
            each = np.log(totals) - np.log(np.repeat(lengths, np.diff(corpus.target.indptr)))
        return float(each @ corpus.target.data)

    def probe(self, source: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        r"""Probability that each source word translates to each target word.

        .. math:: \beta^{\mathrm{IBM}}_{t,l} = \mathrm{Trans}(y_t \mid x_l)

        (Snell et al. 2021, Eq. 18).

        Args:
            source: numbers of words ``[..., L]``, as :meth:`Vocabulary.encode` gives them; any number outside the
                vocabulary (unknown words, padding) translates to nothing.
            target: numbers of words ``[..., T]``, likewise.
            mask: bool ``[..., L]``, True for a source position that counts.

        Returns:
            ``[..., T, L]`` float64; 0 at masked positions and for unknown words.

        Raises:
            TypeError: the numbers are not integers or ``mask`` is not bool.
            ValueError: ``mask`` does not fit.

        Example:
            >>> corpus = ParallelCorpus.from_words([["the", "house"]], [["das", "Haus"]])
            >>> model = IBMModel1.fit(corpus)
            >>> model.probe(torch.tensor([0, 1, -1]), torch.tensor([0]))
            tensor([[0.5000, 0.5000, 0.0000]], dtype=torch.float64)
        """
        for name, ids in (("source", source), ("target", target)):
            if ids.is_floating_point() or ids.dtype == torch.bool:
                raise TypeError(f"IBMModel1: expected integer {name} words, got {ids.dtype}")
        known_words = (source >= 0) & (source < len(self.source_vocabulary))
        known_words = known_words & valid_positions("IBMModel1", mask, source)
        heard = (target >= 0) & (target < len(self.target_vocabulary))
        rows, columns = torch.broadcast_tensors(source.unsqueeze(-2), target.unsqueeze(-1))  # [..., T, L]
        valid = (known_words.unsqueeze(-2) & heard.unsqueeze(-1)).expand(rows.shape)
        probabilities = torch.zeros(rows.shape, dtype=torch.float64)
        # Copies, because scipy asks for arrays that it may mark as writable.
        places = [np.array(item[valid].numpy(force=True)) for item in (rows, columns)]
        entries = table_entries(self.table, *places)
        probabilities[valid.cpu()] = torch.from_numpy(entries)
        return probabilities.to(source.device)

    def attention(self, source: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        r"""Probability that each source word, and no other of the sentence, is responsible for each target word.

        .. math:: \alpha^{\mathrm{IBM}}_{t,l} = \beta^{\mathrm{IBM}}_{t,l} \Big/ \sum_{l'} \beta^{\mathrm{IBM}}_{t,l'}

        (Snell et al. 2021, Eq. 19.) Rows sum to 1; with NULL, what is missing to 1 is NULL's. A target word that no
        word of the sentence translates to has a row of zeros. Arguments, shape and errors are those of :meth:`probe`.
        """
        beta = self.probe(source, target, mask)
        total = beta.sum(dim=-1, keepdim=True)
        if self.null:
            total = total + self._null_probe(target).unsqueeze(-1)
        return torch.where(total > 0, beta / total, 0)

    def translations(self, word: str, most: int = 5) -> list[tuple[str, float]]:
        """The most probable translations of a source word.

        Args:
            word: a source word, or :data:`NULL` where that is an option taken.
            most: how many to give at most, >= 1.

        Returns:
            Target words with their probability, the most probable first; those that are equally so by number.

        Raises:
            KeyError: the word is not in the vocabulary.
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
        """Writes the model to a file in an existing folder atomically; ``OSError`` leaves an older file untouched."""
        words = self.source_vocabulary.words, self.target_vocabulary.words
        ibm_file.write(Path(path), ibm_file.Content(self.counts, *words, self.steps, self.null))

    @classmethod
    def load(cls, path: str | Path) -> IBMModel1:
        """Reads the file of :meth:`save`; ``DataError`` for no such file, or one that is damaged or of another kind."""
        content = ibm_file.read(Path(path))
        vocabularies = Vocabulary(content.source_words), Vocabulary(content.target_words)
        return cls(content.counts, *vocabularies, content.steps, content.null)

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
