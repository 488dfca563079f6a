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
    """Ratings of the input words by a network's attention and by its probe, for every output word of some examples.

    Attributes:
        attention: weights, one row after the other, ``[P]``, P the sum of ``lengths``.
        probe: logarithms of the lexical probe, ``[P]``.
        lengths: input words of each output word, int64 ``[W]``.
        example: the example of each output word, from 0, int64 ``[W]``.
        correct: whether the network's first choice was right, bool ``[W]``.
    """

    attention: Tensor
    probe: Tensor
    lengths: Tensor
    example: Tensor
    correct: Tensor

    @classmethod
    def gather(cls, batches: Iterable[WordRatings]) -> RatedWords:
        """Puts the ratings of batches together, in their order, without padding.

        Args:
            batches: of :func:`probattn.models.rate_words`.

        Raises:
            ValueError: there is none.

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
        """Other ratings ``[P]`` of the same examples, in the order of :meth:`gather`, as :meth:`agreement` takes them.

        Args:
            batches: the examples, with ``attention_mask`` and ``labels``.
            rate: gives ``[B, T, S]`` of one batch, T = 1 where labels are classes.
        """
        return cls.gather(_as_ratings(batch, rate(batch)) for batch in batches).attention

    def padded(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Values ``[P]`` row by row, ``[W, L]``, 0 behind a row's end, and where there are values, bool of that shape.

        Raises:
            ValueError: as many values as there are pairs were expected.
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
        """True if both have the same numbers of output words, and of input words for each."""
        return torch.equal(self.lengths, other.lengths) and torch.equal(self.example, other.example)

    def agreement(self, u: Tensor | None = None, v: Tensor | None = None, top: float = 0.05) -> float:
        r"""Mean agreement over output words (Snell et al. 2021, Eq. 10); :math:`A(\alpha, \beta)` by default.

        Args:
            u: ``[P]``; the attention by default.
            v: ``[P]``; the probe by default.
            top: share of the positions that count as highest.
        """
        first, mask = self.padded(self.attention if u is None else u)
        second, _ = self.padded(self.probe if v is None else v)
        return mean_agreement(first, second, top, mask).item()

    def chance(self, top: float = 0.05) -> float:
        """Expected agreement of ratings that are independent of each other."""
        return random_agreement(self.lengths, top).nanmean().item()

    @property
    def accuracy(self) -> float:
        """Share of output words that are the network's first choice."""
        return self.correct.double().mean().item()

    def save(self, path: Path | str) -> None:
        """Writes a file of safetensors; readers see the old file or the new one, never a part."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, {field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: Path | str) -> RatedWords:
        """Reads what :meth:`save` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it holds something else.
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
    r"""Bags of words that predict outputs (Snell et al. 2021, Eq. 5), for the drivers that train everything else.

    .. math:: y_t \sim \mathrm{Categorical}\Bigl(\sigma\Bigl(\frac1L \sum_l W e_{x_l}\Bigr)\Bigr)

    Args:
        proxy: W and e.
        num_data: size N of the training set.

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
        """Announces the outputs of a batch: words ``[B, T]``, -100 at padding, or classes ``[B]``.

        A batch has ``input_ids``, ``attention_mask`` and ``labels``. Returns logits ``[B, O]``.
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
        """Logarithm of the lexical probe (Eq. 6) of a batch, ``[B, T, S]``; T = 1 for classes."""
        labels = batch["labels"]
        target = (labels if labels.ndim == 2 else labels[:, None]).clamp(min=0)
        with torch.no_grad():
            return self.proxy.probe(batch["input_ids"], target, batch["attention_mask"].bool(), log=True)
