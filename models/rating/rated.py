"""Rated words of a set of examples, and the bag-of-words proxy that rates them too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from probattn.files.durable import write_tensors
from probattn.models.program import Batch
from probattn.models.rating.words import WordRatings
from probattn.probes import BagOfWordsProxy, mean_agreement, random_agreement


@dataclass(frozen=True, eq=False)
class RatedWords:
    """Ratings of input words by attention and by lexical probe, for each of W output words of a data set.

    Ratings of all output words are concatenated; P is the sum of ``lengths``. Classifiers have one output per example.

    Attributes:
        attention: attention weights, ``[P]``.
        probe: logarithms of the lexical probe, ``[P]``.
        lengths: number of input words for each output word, int64 ``[W]``.
        example: number of the example of each output word, from 0, int64 ``[W]``.
        correct: bool ``[W]``, True if the right output word has the network's largest logit.
    """

    attention: Tensor
    probe: Tensor
    lengths: Tensor
    example: Tensor
    correct: Tensor

    @classmethod
    def gather(cls, batches: Iterable[WordRatings]) -> RatedWords:
        """Concatenates the ratings of batches, in their order, without padding.

        Args:
            batches: results of :func:`probattn.models.rate_words`.

        Raises:
            ValueError: there is no batch.

        Example:
            >>> ratings = WordRatings(
            ...     torch.tensor([[[0.2, 0.8, 0.0]]]), torch.tensor([[[-1.0, -2.0, -torch.inf]]]),
            ...     torch.tensor([[True, True, False]]), torch.tensor([[True]]), torch.tensor([[True]]),
            ... )
            >>> rated = RatedWords.gather([ratings])
            >>> rated.attention, rated.lengths, rated.agreement()
            (tensor([0.2000, 0.8000]), tensor([2]), 0.0)
        """
        columns: list[tuple[Tensor, ...]] = []
        before = 0
        for batch in batches:
            pairs = batch.query_mask[..., None] & batch.mask[:, None]  # [B, T, S]
            rows, _ = batch.query_mask.nonzero(as_tuple=True)
            ratings = batch.attention[pairs].float(), batch.probe[pairs].float()
            outputs = batch.mask.sum(dim=1)[rows], rows + before, batch.correct[batch.query_mask]
            columns.append((*ratings, *outputs))
            before += len(batch.mask)
        if not columns:
            raise ValueError("RatedWords.gather: expected ratings of at least one batch, got none")
        return cls(*(torch.cat(group).cpu() for group in zip(*columns, strict=True)))

    @classmethod
    def flat(cls, batches: Iterable[Batch], rate: Callable[[Batch], Tensor]) -> Tensor:
        """Computes other ratings ``[P]`` of the same examples, in the order of :meth:`gather`, for :meth:`agreement`.

        Args:
            batches: the examples, with ``attention_mask`` and ``labels``.
            rate: function from a batch to ratings ``[B, T, S]``, with T = 1 if labels are classes.
        """
        return cls.gather(_as_ratings(batch, rate(batch)) for batch in batches).attention

    def padded(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Returns values ``[P]`` as a matrix ``[W, max(lengths)]``, padded with 0, and its mask (bool, True at values).

        Raises:
            ValueError: the number of values is not P.
        """
        if values.shape != self.attention.shape:
            raise ValueError(
                f"RatedWords: expected {len(self.attention)} values, one for each pair of an output word and an input "
                f"word, got {list(values.shape)}; were other examples rated?"
            )
        longest = int(self.lengths.max()) if len(self.lengths) else 0
        mask = torch.arange(longest) < self.lengths[:, None]
        return torch.zeros(mask.shape).masked_scatter(mask, values.float()), mask

    def is_of_the_examples_of(self, other: RatedWords) -> bool:
        """Returns True if both have the same ``lengths`` and ``example``; words are not compared."""
        return torch.equal(self.lengths, other.lengths) and torch.equal(self.example, other.example)

    def agreement(self, u: Tensor | None = None, v: Tensor | None = None, top: float = 0.05) -> float:
        r"""Computes the mean agreement A(u, v) over output words (Snell et al. 2021, Eq. 10).

        Args:
            u: ratings ``[P]``. Default: ``attention``.
            v: ratings ``[P]``. Default: ``probe``.
            top: for agreement, v must rate a smaller share of positions than this above the one that u rates highest.
        """
        first, mask = self.padded(self.attention if u is None else u)
        second, _ = self.padded(self.probe if v is None else v)
        return mean_agreement(first, second, top, mask).item()

    def chance(self, top: float = 0.05) -> float:
        """Computes the expected agreement of independent random ratings, with ``top`` as in :meth:`agreement`."""
        return random_agreement(self.lengths, top).nanmean().item()

    @property
    def accuracy(self) -> float:
        """Share of output words for which ``correct`` is True."""
        return self.correct.double().mean().item()

    def save(self, path: Path | str) -> None:
        """Writes the ratings to a file in the safetensors format; an existing file is replaced atomically."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, {field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: Path | str) -> RatedWords:
        """Reads a file that :meth:`save` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is damaged or does not contain rated words.
        """
        try:
            tensors = load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path}: expected ratings of words, got a damaged file ({error})") from error
        names = [field.name for field in fields(cls)]
        if sorted(tensors) != sorted(names):
            raise ValueError(f"{path}: expected tensors {', '.join(names)}, got {', '.join(sorted(tensors))}")
        rated = cls(**tensors)
        if not rated._fits():
            shapes = ", ".join(f"{name} {tensors[name].dtype} {list(tensors[name].shape)}" for name in names)
            raise ValueError(f"{path}: expected ratings of words that fit each other, got {shapes}")
        return rated

    def _fits(self) -> bool:
        """True if tensors are of the kinds and sizes of :meth:`gather`, and ratings numbers."""
        pairs, outputs = (self.attention, self.probe), (self.lengths, self.example, self.correct)
        kinds = [torch.float32, torch.float32, torch.int64, torch.int64, torch.bool]
        if [item.dtype for item in (*pairs, *outputs)] != kinds or self.lengths.ndim != 1:
            return False
        return (
            bool((self.lengths >= 0).all())
            and all(pair.shape == (int(self.lengths.sum()),) for pair in pairs)
            and all(output.shape == self.lengths.shape for output in outputs)
            and not any(pair.isnan().any() for pair in pairs)
        )


def _as_ratings(batch: Mapping[str, Tensor], rating: Tensor) -> WordRatings:
    labels = batch["labels"]
    valid = (labels if labels.ndim == 2 else labels[:, None]) >= 0
    return WordRatings(rating, rating, batch["attention_mask"].bool(), valid, torch.zeros_like(valid))


class ProxyProgram(PyroModule):
    r"""The bag-of-words proxy model (Snell et al. 2021, Eq. 5) as a Pyro program, for the library's training loops.

    .. math:: y_t \sim \mathrm{Categorical}\Bigl(\mathrm{softmax}\Bigl(\frac1L \sum_{l=1}^L W e_{x_l}\Bigr)\Bigr)

    Every output word y of a text is predicted from the same mean over its L input words x.

    Args:
        proxy: module with the matrix W and the embeddings e.
        num_data: size N of the training set, to which the likelihood of a batch is scaled.

    Example:
        >>> program = ProxyProgram(BagOfWordsProxy(9, 3, 4), num_data=100)
        >>> batch = {"input_ids": torch.tensor([[4, 5, 0]]), "attention_mask": torch.tensor([[1, 1, 0]])}
        >>> program(batch | {"labels": torch.tensor([2])}).shape
        torch.Size([1, 3])
    """

    def __init__(self, proxy: BagOfWordsProxy, num_data: int) -> None:
        super().__init__()
        self.proxy = proxy
        self.num_data = num_data

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Samples the observed site ``"output"`` and returns the logits ``[B, O]`` over O output words.

        A batch has ``input_ids``, ``attention_mask`` and ``labels`` (words ``[B, T]``, -100 at padding, or classes
        ``[B]``).
        """
        source, labels = batch["input_ids"], batch["labels"]
        logits = self.proxy(source, batch["attention_mask"].bool())
        target = labels if labels.ndim == 2 else labels[:, None]
        rows = torch.arange(len(source), device=source.device)
        with pyro.plate("data", self.num_data, subsample=rows):
            words = dist.Categorical(logits=logits[:, None].expand(-1, target.shape[1], -1))
            pyro.sample("output", words.mask(target >= 0).to_event(1), obs=target.clamp(min=0))
        return logits

    def rate(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the logarithm of the lexical probe (Eq. 6), ``[B, T, S]`` for S input words; T = 1 for classes."""
        labels = batch["labels"]
        target = (labels if labels.ndim == 2 else labels[:, None]).clamp(min=0)
        with torch.no_grad():
            return self.proxy.probe(batch["input_ids"], target, batch["attention_mask"].bool(), log=True)
