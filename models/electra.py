"""ELECTRA: replaced token detection, its two networks as one program (Clark et al., ICLR 2020)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor
from transformers import ElectraForMaskedLM, ElectraForPreTraining

from probattn.checks import check_batch, check_number, check_share
from probattn.models.layers import valid_positions
from probattn.models.program import IGNORED, Batch, HeadProgram, Link, check_classes, divided_by
from probattn.sites.handlers import is_handled

__all__ = ["Corrupted", "ElectraProgram", "corrupt", "draw_masked", "masked_number", "tie_embeddings"]


@dataclass(frozen=True)
class Corrupted:
    """Texts with replaced tokens, and what the generator said of those that were masked.

    Attributes:
        input_ids: tokens with those of the generator at the masked places, int64 ``[B, T]``.
        replaced: bool ``[B, T]``, True where a token differs from the original one.
        masked: bool ``[B, T]``, True where the generator chose the token.
        logits: of the generator at the masked places of each row, in their order, ``[B, K, V]``.
        targets: original tokens there, int64 ``[B, K]``, :data:`IGNORED` where a row has fewer.
    """

    input_ids: Tensor
    replaced: Tensor
    masked: Tensor
    logits: Tensor
    targets: Tensor


def masked_number(candidates: Tensor, share: float) -> Tensor:
    r"""Number of masked tokens of texts with n candidates, :math:`\lceil \text{share} \cdot n \rceil`, float64.

    Example:
        >>> masked_number(torch.tensor([1, 20]), 0.15)
        tensor([1., 3.], dtype=torch.float64)
    """
    # In double precision less a little, so that 0.15 of 20 is 3 and not 4.
    return (candidates.double() * share - 1e-9).ceil()


def draw_masked(candidates: Tensor, share: float, generator: torch.Generator | None = None) -> Tensor:
    r"""Chooses the tokens that are masked: :math:`\lceil \text{share} \cdot n \rceil` of the n candidates of each text.

    Every choice of so many is as probable as any other (Clark et al. 2020, section 2).

    Args:
        candidates: bool ``[B, T]``, True where a token may be masked.
        share: in (0, 1).
        generator: of the draws, on the device of ``candidates``; None for torch's own.

    Returns:
        Bool ``[B, T]``.

    Example:
        >>> draw_masked(torch.tensor([[False, True, True, True, False]]), 0.5).sum()
        tensor(2)
    """
    noise = torch.rand(candidates.shape, generator=generator, device=candidates.device)
    rank = noise.masked_fill(~candidates, torch.inf).argsort(dim=1).argsort(dim=1)
    # Of every count, on the CPU: Apple's MPS has no double precision.
    number = masked_number(torch.arange(candidates.shape[1] + 1), share).long().to(candidates.device)
    return candidates & (rank < number[candidates.sum(dim=1), None])


def draw_tokens(logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Categorical draws ``[...]`` from logits ``[..., V]``, on a CPU 20 times as fast as ``torch.multinomial``."""
    probabilities = logits.float().softmax(dim=-1)
    if logits.device.type != "cpu":
        return torch.multinomial(probabilities.flatten(0, -2), 1, generator=generator).view(logits.shape[:-1])
    below = probabilities.cumsum(dim=-1)
    total = below[..., -1:]
    uniform = torch.rand(total.shape, generator=generator, device=total.device)
    # Of a total a little above 1 the largest U may round to it, behind the last category.
    return torch.searchsorted(below, uniform * total, right=True).squeeze(-1).clamp_max(logits.shape[-1] - 1)


def corrupt(
    net: ElectraForMaskedLM,
    original_ids: Tensor,
    attention_mask: Tensor,
    masked: Tensor,
    mask_id: int,
    generator: torch.Generator | None = None,
) -> Corrupted:
    r"""Replaces masked tokens by draws from a generator, :math:`\hat x_t \sim p_G(x_t \mid x^{\text{masked}})`.

    The draws have no gradient; the logits have one. Only the masked places go through the head over the vocabulary.

    Args:
        net: the generator.
        original_ids: tokens, int64 ``[B, T]``.
        attention_mask: 1 at tokens, 0 at padding, ``[B, T]``.
        masked: bool ``[B, T]``, which tokens it sees as masked.
        mask_id: the token that stands for a masked one.
        generator: of the draws, on the device of the texts; None for torch's own.

    Returns:
        The texts, and the generator's logits.
    """
    count = masked.sum(dim=1)
    width = max(int(count.max()), 1)
    indices = masked.int().argsort(dim=1, descending=True, stable=True)[:, :width]  # [B, K]
    is_masked = torch.arange(width, device=masked.device) < count[:, None]
    hidden = net.electra(original_ids.masked_fill(masked, mask_id), attention_mask=attention_mask)[0]
    masked_states = hidden.gather(1, indices[..., None].expand(-1, -1, hidden.shape[-1]))
    logits = net.generator_lm_head(net.generator_predictions(masked_states))  # [B, K, V]
    with torch.no_grad():
        drawn = draw_tokens(logits, generator)
        originals = original_ids.gather(1, indices)
        input_ids = original_ids.scatter(1, indices, drawn.where(is_masked, originals))
    targets = originals.masked_fill(~is_masked, IGNORED)
    return Corrupted(input_ids, input_ids != original_ids, masked, logits, targets)


TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")
"""Embeddings that both networks read with, by their names in transformers."""


class ElectraProgram(HeadProgram):
    r"""ELECTRA's pre-training (Clark et al. 2020): masked language modelling and replaced token detection.

    Of the :math:`n'` tokens of a text x of n tokens that are no special ones, a set m of
    :math:`\lceil 0.15\, n' \rceil` is masked, drawn again at every call unless the batch has it. The generator G fills
    them in, and the discriminator D, with attention weights S, says of every token whether it is the original one:

    .. math::
        x_t \sim \mathrm{Categorical}\bigl(p_G(\cdot \mid x^{\text{masked}})\bigr), \; t \in m, \qquad
        \hat x_t \sim p_G(\cdot \mid x^{\text{masked}}), \; t \in m, \qquad
        [\hat x_t \neq x_t] \sim \mathrm{Bernoulli}\bigl(\sigma(D(\hat x, S)_t)\bigr)

    A batch of ``original_ids`` and ``attention_mask``, and ``masked`` where the masks are given, announces the plate
    ``"data"``, the attention sites of the discriminator and the observed sites ``"masked"`` and ``"replaced"``, each
    one event a text. Masks and :math:`\hat x` are draws without a gradient, no latent variables: as in the paper, the
    objective is not an ELBO of one joint density. It is the mean over texts of

    .. math::
        \frac{1}{\bar m} \sum_{t \in m} -\log p_G(x_t \mid x^{\text{masked}}) +
        \frac{\text{weight}}{\bar n} \sum_{t \le n} -\log p_D([\hat x_t \neq x_t] \mid \hat x)

    in nats per token, by the mean numbers ``mean_masked`` and ``mean_length`` of a text's tokens, without them those of
    the batch; KL and factors of attention methods are divided by :math:`\bar n` too. A batch of ``input_ids`` and
    ``attention_mask`` goes through the discriminator alone, which observes ``replaced`` where the batch has it.

    Args:
        net: the discriminator, converted or not.
        generator: the generator, with a vocabulary and positions of the same size.
        mask_id: the token that stands for a masked one.
        special_ids: tokens that are never masked, such as [PAD], [CLS] and [SEP]; ``mask_id`` is one of them.
        mask_probability: share of the tokens that are masked, in (0, 1).
        weight: of the discriminator's likelihood, > 0; 50 in the paper.
        tied: whether both read with the same embeddings of tokens, positions and segments, and the generator writes
            with that of tokens.
        num_data: N, number of training texts. Default: the batch is the data.
        mean_length: mean number of tokens of a training text, special ones included, > 0; None for the batch's.
        mean_masked: mean number of masked tokens of a training text, > 0; None for the batch's.

    Raises:
        ValueError: an argument outside its range, or networks that do not fit each other; of a call, a batch without
            texts, tokens outside 0..V-1, or masks that are no bool ``[B, T]`` of its tokens.

    Example:
        >>> from transformers import ElectraConfig
        >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        >>> config = ElectraConfig(vocab_size=20, embedding_size=8, **sizes)
        >>> nets = ElectraForPreTraining(config), ElectraForMaskedLM(config)
        >>> program = ElectraProgram(*nets, mask_id=4, special_ids=(0, 2, 3, 4)).eval()
        >>> program({"input_ids": torch.tensor([[2, 7, 8, 3]])}).shape
        torch.Size([1, 4])
    """

    link: ClassVar[Link] = "sigmoid"
    advice: ClassVar[str] = "use transformers' ElectraForPreTraining"
    generator: ElectraForMaskedLM
    special: Tensor

    def __init__(
        self,
        net: ElectraForPreTraining,
        generator: ElectraForMaskedLM,
        *,
        mask_id: int,
        special_ids: Collection[int],
        mask_probability: float = 0.15,
        weight: float = 50.0,
        tied: bool = True,
        num_data: int | None = None,
        mean_length: float | None = None,
        mean_masked: float | None = None,
    ) -> None:
        super().__init__(net, num_data=num_data, label_name="replaced")
        owner = type(self).__name__
        check_share(owner, "mask_probability", mask_probability, zero=False, one=False)
        for name, value in {"weight": weight, "mean_length": mean_length, "mean_masked": mean_masked}.items():
            if value is not None:
                check_number(owner, name, value, positive=True)
        for size in ("vocab_size", "max_position_embeddings"):
            expected, received = getattr(net.config, size), getattr(generator.config, size)
            if expected != received:
                raise ValueError(
                    f"{owner}: expected a generator with {size} {expected}, as the discriminator, got {received}"
                )
        special, largest = sorted({*special_ids, mask_id}), net.config.vocab_size - 1
        if special[0] < 0 or special[-1] > largest:
            raise ValueError(f"{owner}: expected mask_id and special_ids in 0..{largest}, got {special}")
        if tied:
            tie_embeddings(net, generator)
        self.generator = generator
        self.mask_id, self.mask_probability, self.weight = mask_id, mask_probability, weight
        self.mean_length, self.mean_masked = mean_length, mean_masked
        self.register_buffer("special", torch.tensor(special), persistent=False)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Runs generator and discriminator once, or the discriminator alone.

        Args:
            batch: ``original_ids`` int64 ``[B, T]`` with ``attention_mask`` ``[B, T]`` (1 at tokens, 0 at padding) for
                both, optionally with bool ``masked`` ``[B, T]``; or ``input_ids`` with ``attention_mask`` for the
                discriminator, optionally with bool ``replaced`` ``[B, T]``.

        Returns:
            Logits ``[B, T]`` of a token having been replaced.
        """
        check_batch(type(self).__name__, batch)
        if "original_ids" not in batch:
            with divided_by(self._length(self.inputs(batch))):
                detected: Tensor = super().forward(batch)
            return detected
        corrupted, length = self.corrupted(batch), self._length(batch)
        inputs = {"input_ids": corrupted.input_ids, "attention_mask": attention_mask_of(batch)}
        if not is_handled():
            return self.read(self.net(**inputs), inputs)
        with divided_by(length), self.plate("data", len(corrupted.input_ids), corrupted.input_ids.device):
            prediction = self.read(self.net(**inputs), inputs)
            valid = corrupted.targets != IGNORED
            number = self.mean_masked or max(valid.float().sum(dim=1).mean().item(), 1e-9)
            tokens = dist.Categorical(logits=corrupted.logits.float()).mask(valid).to_event(1)
            with poutine.scale(scale=length / number):
                pyro.sample("masked", tokens, obs=corrupted.targets.where(valid, 0))
            self.observe(prediction, {"replaced": corrupted.replaced}, inputs)
        return prediction

    def observations(self, batch: Mapping[str, Tensor]) -> int:
        """Number of texts, of which the objective is a mean: it is in nats per token as it stands."""
        if "original_ids" not in batch:
            super().observations(batch)  # refuses a batch without labels
        return len(attention_mask_of(batch))

    def corrupted(self, batch: Mapping[str, Tensor], generator: torch.Generator | None = None) -> Corrupted:
        """Texts with tokens of the generator instead of masked ones; the draws are ``generator``'s, or torch's."""
        ids, real = batch["original_ids"], attention_mask_of(batch)
        size = self.generator.config.vocab_size
        check_classes(self, "original_ids", ids, real.shape, size)
        masked = batch.get("masked")
        if masked is None:
            masked = draw_masked(self.candidates(batch), self.mask_probability, generator)
        elif masked.dtype != torch.bool or masked.shape != real.shape or bool((masked & ~real.bool()).any()):
            raise ValueError(
                f"{type(self).__name__}: expected bool {list(real.shape)} as masked, False at padding, got "
                f"{masked.dtype} {list(masked.shape)}; choose masked tokens with probattn.models.electra.draw_masked"
            )
        return corrupt(self.generator, ids, real, masked, self.mask_id, generator)

    def candidates(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Tokens of ``original_ids`` that may be masked, bool ``[B, T]``."""
        return attention_mask_of(batch).bool() & ~torch.isin(batch["original_ids"], self.special)

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """The site ``"replaced"``, one event a text."""
        real = valid_positions(inputs.get("attention_mask"), prediction)
        target = None if labels is None else labels["replaced"].to(prediction.dtype)
        tokens = dist.Bernoulli(logits=prediction.float()).mask(real).to_event(1)
        with poutine.scale(scale=self.weight):
            pyro.sample("replaced", tokens, obs=target, infer={"prediction": target is None})

    def _length(self, batch: Mapping[str, Tensor]) -> float:
        return self.mean_length or attention_mask_of(batch).float().sum(dim=1).mean().item()


def attention_mask_of(batch: Mapping[str, Tensor]) -> Tensor:
    """The mask of a batch: 1 everywhere where it has none."""
    mask = batch.get("attention_mask")
    return torch.ones_like(next(iter(batch.values())), dtype=torch.long) if mask is None else mask


def tie_embeddings(net: ElectraForPreTraining, generator: ElectraForMaskedLM) -> None:
    """Has the generator read with the discriminator's embeddings, and write with those of tokens.

    Raises:
        ValueError: embeddings of different size.
    """
    theirs, embeddings = net.electra.embeddings, generator.electra.embeddings
    if net.config.embedding_size != generator.config.embedding_size:
        raise ValueError(
            f"tie_embeddings: expected networks with one embedding_size, got {net.config.embedding_size} "
            f"(discriminator) and {generator.config.embedding_size} (generator)"
        )
    for name in TABLES:
        setattr(embeddings, name, getattr(theirs, name))
    generator.generator_lm_head.weight = theirs.word_embeddings.weight
