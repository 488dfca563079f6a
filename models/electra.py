"""ELECTRA's pre-training, masked language modelling and replaced token detection, as one Pyro program."""

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
    """B texts of T tokens in which the generator has replaced masked tokens, at most K per text.

    Attributes:
        input_ids: tokens, at masked positions those that the generator drew, int64 ``[B, T]``.
        replaced: bool ``[B, T]``, True for tokens that differ from the original ones.
        masked: bool ``[B, T]``, True at masked positions.
        logits: the generator's logits at the masked positions of each text, from left to right, ``[B, K, V]``.
        targets: original tokens at the same positions, int64 ``[B, K]``, -100 after the last one of a text.
    """

    input_ids: Tensor
    replaced: Tensor
    masked: Tensor
    logits: Tensor
    targets: Tensor


def masked_number(candidates: Tensor, share: float) -> Tensor:
    r"""Computes how many of n candidates are masked, :math:`\lceil \text{share} \cdot n \rceil`, as float64.

    Example:
        >>> masked_number(torch.tensor([1, 20]), 0.15)
        tensor([1., 3.], dtype=torch.float64)
    """
    # In double precision less a little, so that 0.15 of 20 is 3 and not 4.
    return (candidates.double() * share - 1e-9).ceil()


def draw_masked(candidates: Tensor, share: float, generator: torch.Generator | None = None) -> Tensor:
    r"""Draws the masked tokens: :math:`\lceil \text{share} \cdot n \rceil` of the n candidates of each text, uniformly.

    The procedure is that of Clark et al. 2020, section 2.

    Args:
        candidates: bool ``[B, T]``, True for tokens that may be masked.
        share: share of the candidates that are masked, in (0, 1).
        generator: random generator on the device of ``candidates``. Default: torch's own.

    Returns:
        Bool ``[B, T]``, True for masked tokens.

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
    """Draws categories, int64 ``[...]``, from logits ``[..., V]``; on a CPU faster than ``torch.multinomial``."""
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

    Gradients flow through the logits but not through the draws. Logits are computed only at masked positions.

    Args:
        net: the generator network.
        original_ids: original tokens x, int64 ``[B, T]``.
        attention_mask: ``[B, T]``, 1 at tokens, 0 at padding.
        masked: bool ``[B, T]``, True for masked tokens.
        mask_id: number of the mask token, [MASK].
        generator: random generator on the device of the texts. Default: torch's own.

    Returns:
        The texts with replaced tokens, and the generator network's logits.
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
"""Names in transformers of the embeddings that generator and discriminator share if they are tied."""


class ElectraProgram(HeadProgram):
    r"""ELECTRA's pre-training (Clark et al. 2020): masked language modelling and replaced token detection.

    In a text x of n tokens, of which :math:`n'` are not special tokens, a set m of :math:`\lceil 0.15\, n' \rceil` is
    masked (0.15: ``mask_probability``). The generator G predicts the masked tokens; the discriminator D, with attention
    weights S, gives the logit that a token is not the original one:

    .. math::
        x_t \sim \mathrm{Categorical}\bigl(p_G(\cdot \mid x^{\text{masked}})\bigr), \; t \in m, \qquad
        \hat x_t \sim p_G(\cdot \mid x^{\text{masked}}), \; t \in m, \qquad
        [\hat x_t \neq x_t] \sim \mathrm{Bernoulli}\bigl(\sigma(D(\hat x, S)_t)\bigr)

    Under Pyro's handlers, a call with ``original_ids`` contains the plate ``"data"`` over texts, in it the attention
    sites of the discriminator and the observed sites ``"masked"`` and ``"replaced"``. The set m (drawn at every call
    unless the batch has ``masked``) and :math:`\hat x` are drawn without gradients and are not sites: as in the paper,
    the objective is not an evidence lower bound (ELBO). Its likelihood terms are the mean over texts of

    .. math::
        \frac{1}{\bar m} \sum_{t \in m} -\log p_G(x_t \mid x^{\text{masked}}) +
        \frac{\text{weight}}{\bar n} \sum_{t \le n} -\log p_D([\hat x_t \neq x_t] \mid \hat x)

    in nats per token, with the mean numbers :math:`\bar m` (``mean_masked``) of masked tokens and :math:`\bar n`
    (``mean_length``) of tokens; KL and factors of attention methods are divided by :math:`\bar n` too. A batch with
    ``input_ids`` instead of ``original_ids`` runs the discriminator only.

    Args:
        net: the discriminator, converted or not.
        generator: the generator, with the same vocabulary size and number of positions.
        mask_id: number of the mask token, [MASK].
        special_ids: numbers of tokens that are never masked, such as [PAD], [CLS] and [SEP]; ``mask_id`` is added.
        mask_probability: share of the tokens that are masked, in (0, 1).
        weight: weight of the discriminator's log-likelihood, > 0; 50 in the paper.
        tied: whether the networks share the embeddings of tokens, positions and segments, and the generator's output
            layer the embeddings of tokens; see :func:`tie_embeddings`.
        num_data: number N of training texts, to which log densities of a batch are scaled. Default: the batch size.
        mean_length: mean number of tokens of a training text, special tokens included, > 0. Default: the batch's mean.
        mean_masked: mean number of masked tokens of a training text, > 0. Default: the batch's mean.

    Raises:
        ValueError: an argument outside its range, or networks that do not fit each other; in a call, a batch without
            texts, tokens outside 0..V-1, or ``masked`` that is not bool ``[B, T]`` or is True at padding.

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
            batch: for both networks ``original_ids`` int64 ``[B, T]``, optionally with bool ``masked`` ``[B, T]``; for
                the discriminator alone ``input_ids`` int64 ``[B, T]``, optionally with labels ``replaced``, bool
                ``[B, T]``. ``attention_mask`` ``[B, T]`` is 1 at tokens, 0 at padding; without it all tokens count.

        Returns:
            Logits of replacement, ``[B, T]``.
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
        """Returns the number of texts in a batch, over which the objective is a mean; ``ValueError`` without labels."""
        if "original_ids" not in batch:
            super().observations(batch)  # refuses a batch without labels
        return len(attention_mask_of(batch))

    def corrupted(self, batch: Mapping[str, Tensor], generator: torch.Generator | None = None) -> Corrupted:
        """Returns the texts of a batch with masked tokens replaced; ``generator`` is a ``torch.Generator``."""
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
        """Returns bool ``[B, T]``, True for tokens of ``original_ids`` that may be masked."""
        return attention_mask_of(batch).bool() & ~torch.isin(batch["original_ids"], self.special)

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """Samples the site ``"replaced"`` with log density ``[B]``, observed if there are ``labels``."""
        real = valid_positions(inputs.get("attention_mask"), prediction)
        target = None if labels is None else labels["replaced"].to(prediction.dtype)
        tokens = dist.Bernoulli(logits=prediction.float()).mask(real).to_event(1)
        with poutine.scale(scale=self.weight):
            pyro.sample("replaced", tokens, obs=target, infer={"prediction": target is None})

    def _length(self, batch: Mapping[str, Tensor]) -> float:
        return self.mean_length or attention_mask_of(batch).float().sum(dim=1).mean().item()


def attention_mask_of(batch: Mapping[str, Tensor]) -> Tensor:
    """Returns the ``attention_mask`` of a batch, or ones of the shape of its first tensor if it has none."""
    mask = batch.get("attention_mask")
    return torch.ones_like(next(iter(batch.values())), dtype=torch.long) if mask is None else mask


def tie_embeddings(net: ElectraForPreTraining, generator: ElectraForMaskedLM) -> None:
    """Makes the generator use the discriminator's embeddings, in place, those of tokens also in its output layer.

    Raises:
        ValueError: the networks have different embedding sizes.
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
