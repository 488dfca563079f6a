"""ELECTRA's generator and discriminator as one Pyro program."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.poutine.runtime import am_i_wrapped
from torch import Tensor
from transformers import ElectraForMaskedLM, ElectraForPreTraining

from probattn.checks import check_batch, check_number, check_share
from probattn.models.electra.corruption import Corrupted, corrupt, draw_masked
from probattn.models.program import IGNORED, HeadProgram, Link, check_classes, read_logits

TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")
"""Embeddings that both networks read with, by their names in transformers."""


class ElectraProgram(HeadProgram):
    r"""ELECTRA's pre-training (Clark et al. 2020): masked tokens, and tokens that a generator replaced.

    Of a text x of n tokens a set m of :math:`\lceil 0.15\, n \rceil` is masked, drawn anew at every call; the special
    tokens never are. The generator G fills them in, and the discriminator D, with attention weights S, says of every
    token whether it is the original one:

    .. math::
        x_t \sim \mathrm{Categorical}\bigl(p_G(\cdot \mid x^{\text{masked}})\bigr), \; t \in m, \qquad
        \hat x_t \sim p_G(\cdot \mid x^{\text{masked}}), \; t \in m, \qquad
        [\hat x_t \neq x_t] \sim \mathrm{Bernoulli}\bigl(\sigma(D(\hat x, S)_t)\bigr)

    A batch of ``original_ids`` and ``attention_mask`` (and ``masked``, where the masks are given) announces the plate
    ``"data"``, the attention sites of the discriminator if it was converted, and the observed sites ``"masked"`` and
    ``"replaced"``, each one event a text. Masks and :math:`\hat x` are draws from torch's generator without a gradient,
    no latent variables: what is maximised is no bound of one joint density, as in the paper.

    The objective of a driver is the paper's loss, with means over the texts of the sums over tokens, each divided by
    its mean number in a text:

    .. math::
        \frac{1}{\bar m} \sum_{t \in m} -\log p_G(x_t \mid x^{\text{masked}}) +
        \frac{\text{weight}}{\bar n} \sum_{t \le n} -\log p_D([\hat x_t \neq x_t] \mid \hat x)

    so that it is in nats per token. ``mean_masked`` and ``mean_length`` are these numbers; without them they are those
    of the batch, and the loss is that of transformers' two classes. KL and factors of attention methods are divided by
    :math:`\bar n` too.

    A batch of ``input_ids`` and ``attention_mask`` is judged as it stands: the prediction is the discriminator's.

    Args:
        net: the discriminator, converted or not.
        generator: the generator, with a vocabulary and positions of the same size.
        mask_id: the token that stands for a masked one.
        special_ids: tokens that are never masked, such as padding, begin and end of a text.
        mask_probability: share of the tokens that are masked, in (0, 1).
        weight: of the discriminator's likelihood, > 0; 50 in the paper.
        tied: whether both read with the same embeddings of tokens, positions and segments, and the generator writes
            with that of tokens.
        num_data: N, number of training texts. Default: the batch is the data.
        mean_length: mean number of tokens of a training text, special ones included, > 0; None for the batch's.
        mean_masked: mean number of masked tokens of a training text, > 0; None for the batch's.

    Raises:
        ValueError: an argument outside its range, or networks that do not fit each other; of a call, a batch without
            texts, or tokens outside 0..V-1.

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
        for name, value in {
            "weight": weight,
            "mean_length": mean_length,
            "mean_masked": mean_masked,
        }.items():
            if value is not None:
                check_number(owner, name, value, positive=True)
        for size in ("vocab_size", "max_position_embeddings"):
            own, other = getattr(net.config, size), getattr(generator.config, size)
            if own != other:
                raise ValueError(
                    f"{owner}: expected a generator with {size} {own}, as the discriminator, got {other}"
                )
        if tied:
            tie_embeddings(net, generator)
        self.generator = generator
        self.mask_id, self.mask_probability, self.weight, self.tied = mask_id, mask_probability, weight, tied
        self.mean_length, self.mean_masked = mean_length, mean_masked
        self.register_buffer(
            "special", torch.tensor(sorted({*special_ids, mask_id}), dtype=torch.long), persistent=False
        )

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Runs generator and discriminator once, or the discriminator alone on texts that are to be judged.

        Args:
            batch: ``original_ids`` int64 ``[B, T]`` with ``attention_mask`` ``[B, T]`` (1 at tokens, 0 at padding) to
                learn from, optionally with bool ``masked`` ``[B, T]``; or ``input_ids`` to judge, with
                ``attention_mask``.

        Returns:
            Logits ``[B, T]`` of a token having been replaced.
        """
        check_batch(type(self).__name__, batch)
        if "original_ids" not in batch:
            judged: Tensor = super().forward(batch)
            return judged
        corrupted = self.corrupted(batch)
        inputs = {"input_ids": corrupted.input_ids, "attention_mask": attention_mask_of(batch)}
        if not am_i_wrapped():
            return self.read(self.net(**inputs), inputs)
        data = self.plate("data", len(corrupted.input_ids), corrupted.input_ids.device)
        with self._unit(inputs["attention_mask"]):
            with data:
                prediction = self.read(self.net(**inputs), inputs)
            with data:
                self._observe_masked(corrupted, inputs["attention_mask"])
                self.observe(prediction, {"replaced": corrupted.replaced}, inputs)
        return prediction

    def corrupted(self, batch: Mapping[str, Tensor], generator: torch.Generator | None = None) -> Corrupted:
        """Texts with tokens of the generator in the place of masked ones; the draws are ``generator``'s, or torch's."""
        ids, real = batch["original_ids"], attention_mask_of(batch)
        size = self.generator.config.vocab_size
        check_classes(self, "original_ids", ids, real.shape, size)
        masked = batch.get("masked")
        if masked is None:
            masked = draw_masked(self.candidates(batch), self.mask_probability, generator)
        return corrupt(self.generator, ids, real, masked, self.mask_id, generator)

    def candidates(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Tokens of ``original_ids`` that may be masked, bool ``[B, T]``."""
        return attention_mask_of(batch).bool() & ~torch.isin(batch["original_ids"], self.special)

    def read(self, output: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Logits ``[B, T]``."""
        rows = len(next(iter(inputs.values())))
        return read_logits(self, output, (rows, None), "use transformers' ElectraForPreTraining")

    def observe(
        self, prediction: Tensor, labels: Mapping[str, Tensor] | None, inputs: Mapping[str, Tensor]
    ) -> None:
        """The site ``"replaced"``, one event a text."""
        mask = inputs.get("attention_mask")
        real = torch.ones_like(prediction, dtype=torch.bool) if mask is None else mask.bool()
        given = None if labels is None else labels["replaced"].to(prediction.dtype)
        law = dist.Bernoulli(logits=prediction.float()).mask(real).to_event(1)
        with poutine.scale(scale=self.weight):
            pyro.sample("replaced", law, obs=given, infer={"prediction": given is None})

    def _observe_masked(self, corrupted: Corrupted, attention_mask: Tensor) -> None:
        """The site ``"masked"``, one event a text."""
        known = corrupted.targets != IGNORED
        masked = self.mean_masked or max(known.float().sum(dim=1).mean().item(), 1e-9)
        law = dist.Categorical(logits=corrupted.logits.float()).mask(known).to_event(1)
        with poutine.scale(scale=self._length(attention_mask) / masked):
            pyro.sample("masked", law, obs=corrupted.targets.where(known, 0))

    def _length(self, attention_mask: Tensor) -> float:
        return self.mean_length or attention_mask.float().sum(dim=1).mean().item()

    def _unit(self, attention_mask: Tensor) -> AbstractContextManager[Any]:
        scaled: AbstractContextManager[Any] = poutine.scale(scale=1 / self._length(attention_mask))
        return scaled


def attention_mask_of(batch: Mapping[str, Tensor]) -> Tensor:
    """The mask of a batch of ``original_ids``: 1 everywhere where it has none."""
    given = batch.get("attention_mask")
    return torch.ones_like(batch["original_ids"]) if given is None else given


def tie_embeddings(net: ElectraForPreTraining, generator: ElectraForMaskedLM) -> None:
    """Has the generator read with the discriminator's embeddings, and write with those of tokens.

    Raises:
        ValueError: embeddings of different size.
    """
    theirs, own = net.electra.embeddings, generator.electra.embeddings
    if net.config.embedding_size != generator.config.embedding_size:
        raise ValueError(
            f"tie_embeddings: expected networks with one embedding_size, got {net.config.embedding_size} "
            f"(discriminator) and {generator.config.embedding_size} (generator)"
        )
    for name in TABLES:
        setattr(own, name, getattr(theirs, name))
    generator.generator_lm_head.weight = theirs.word_embeddings.weight
