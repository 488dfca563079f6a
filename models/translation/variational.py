"""Translation with a latent alignment of each target token, and its guide (Deng et al. 2018)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, cast

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor, nn

from probattn.checks import check_choice
from probattn.models.heads.sequences import Translator
from probattn.models.hosts.convert import conversion
from probattn.models.layers import check_mask, valid_positions
from probattn.models.program import IGNORED, check_classes
from probattn.models.translation.recurrent.lstms import (
    AlignedTokens,
    AlignmentInference,
    RecurrentTranslationConfig,
)
from probattn.models.translation.recurrent.network import RecurrentForTranslation
from probattn.sites.handlers import is_handled

SITE = "alignment"
"""The latent site: the source token that a target token comes from."""

SMALLEST = 1e-30
"""Stands for a KL weight of 0, which ``poutine.scale`` refuses."""

Estimator = Literal["enumerate", "sample"]
"""Computation of the expectation over alignments: exact, or from a draw of each."""

MAX_PLATE_NESTING = 2
"""Plates of the program: sentence pairs and their tokens; ``TraceEnum_ELBO`` needs to know them."""


class VariationalTranslator(Translator):
    r"""Program of an LSTM encoder-decoder in which a latent alignment assigns one source token to each target token.

    .. math::

        z_t \sim \mathrm{Categorical}(\alpha_t), \qquad
        y_t \sim \mathrm{Categorical}(\mathrm{softmax}(N([h_{z_t}, s_t])))

    (Deng et al. 2018), with h, s and N of :class:`RecurrentForTranslation`: the attention weights
    :math:`\alpha_t` ``[S]`` are the prior probabilities of the alignment :math:`z_t`, and a token depends on the state
    of one source token instead of the mean of all. Under Pyro's handlers a call contains the plates ``"data"`` over
    sentence pairs and ``"tokens"`` over target tokens, and in them the sites ``"alignment"`` and ``"target"``;
    :class:`AlignmentGuide` is the guide.

    Args:
        net: a :class:`RecurrentForTranslation` with one attention head, not converted.
        prediction: how predictions outside Pyro's handlers, and :func:`probattn.models.translate`, compute the
            probability of a token: "mixture" over all alignments, or "soft" from the mean context. It is stored as
            ``net.config.latent_alignment``.
        **options: options of :class:`probattn.models.Translator`.

    Attributes:
        kl_weight: weight of the KL divergence of the posterior from the prior; 1 for the evidence lower bound.

    Raises:
        TypeError: ``net`` is not a :class:`RecurrentForTranslation`.
        ValueError: several attention heads, uniform attention, a converted network, or an unknown ``prediction``.

    Example:
        >>> from pyro.infer import TraceEnum_ELBO
        >>> from probattn.models import RecurrentTranslationConfig
        >>> sizes = {"vocab_size": 9, "embedding_size": 4, "hidden_size": 4, "hidden_dropout": 0.0}
        >>> model = VariationalTranslator(RecurrentForTranslation(RecurrentTranslationConfig(**sizes)))
        >>> source, target = torch.tensor([[4, 5, 3]]), torch.tensor([[6, 3]])
        >>> batch = {"input_ids": source, "decoder_input_ids": torch.tensor([[2, 6]]), "labels": target}
        >>> loss = TraceEnum_ELBO(max_plate_nesting=2).differentiable_loss(model, AlignmentGuide(model), batch)
        >>> loss.shape, model(batch).exp().sum(-1).round(decimals=4).tolist()
        (torch.Size([]), [[1.0, 1.0]])
    """

    def __init__(
        self, net: nn.Module, *, prediction: Literal["mixture", "soft"] = "mixture", **options: Any
    ) -> None:
        super().__init__(net, **options)
        if not isinstance(net, RecurrentForTranslation):
            raise TypeError(
                f"VariationalTranslator: expected a RecurrentForTranslation, got {type(net).__name__}; a Transformer's "
                "attention calls have no likelihood of a single alignment"
            )
        config = net.config
        if config.num_attention_heads != 1 or config.uniform_attention:
            raise ValueError(
                "VariationalTranslator: expected a network with one head of learned attention, got "
                f"{config.num_attention_heads} heads{', uniform' if config.uniform_attention else ''}"
            )
        if conversion(net) is not None:
            raise ValueError(
                "VariationalTranslator: expected a network with attention of its own, got a converted one; revert it"
            )
        check_choice("VariationalTranslator", "prediction", prediction, Literal["mixture", "soft"])
        config.latent_alignment = prediction
        self.kl_weight = 1.0

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Runs the network once: outside Pyro's handlers it predicts, under them it samples the sites.

        Args:
            batch: inputs and labels as for :class:`probattn.models.Translator`.

        Returns:
            Outside handlers the logits ``[B, T, V]``; under them the alignments, positions in the source, int64
                ``[B, T]``, or ``[S, 1, 1]`` if Pyro enumerates them.

        Raises:
            ValueError: no decoder inputs, labels of another shape or outside 0..V-1, or a source without real tokens.
        """
        inputs = self.inputs(batch)
        source = inputs.get("attention_mask")
        if source is not None and source.ndim == 2 and not bool(source.any(dim=1).all()):
            row = source.any(dim=1).tolist().index(False)
            raise ValueError(
                f"VariationalTranslator: expected a token that counts in every source, got none in row {row} of "
                "attention_mask; leave the pair out"
            )
        if not is_handled():
            return self.read(self.net(**inputs, **self.arguments), inputs)
        net = self._network
        hidden, states, _ = net.model.read(**inputs)
        prior = net.model.attention.log_weights(states, hidden, source)[:, 0]  # [B, T, S]
        labels, valid = self.targets(batch)
        rows = torch.arange(len(prior), device=prior.device)[:, None]
        with self.plates(valid):
            with poutine.scale(scale=max(self.kl_weight, SMALLEST)):
                alignment = pyro.sample(SITE, dist.Categorical(logits=prior))  # [B, T] or [S, 1, 1]
            units = net.output.units(hidden[rows, alignment], states)  # [..., B, T, H]
            counts = valid if source is None else valid & source.bool()[rows, alignment]
            likelihood = AlignedTokens(units, net.output.logits, counts, self.label_smoothing)
            pyro.sample("target", likelihood, obs=labels, infer={"prediction": labels is None})
        return cast(Tensor, alignment)

    @contextmanager
    def plates(self, valid: Tensor) -> Iterator[None]:
        """Context with the plates over pairs and tokens, their scale, and the mask ``valid`` (bool ``[B, T]``)."""
        rows, tokens = valid.shape
        subsample = None if self.num_data is None else torch.arange(rows, device=valid.device)
        with ExitStack() as stack:
            stack.enter_context(poutine.scale(scale=1 / (self.mean_length or 1.0)))
            stack.enter_context(pyro.plate("data", self.num_data or rows, subsample=subsample, dim=-2))
            stack.enter_context(pyro.plate("tokens", tokens, dim=-1))
            stack.enter_context(poutine.mask(mask=valid))
            yield

    def targets(self, batch: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor]:
        """Returns target tokens ``[B, T]``, 0 at padding (None without labels), and bool ``[B, T]``, False at padding.

        Raises:
            ValueError: labels of another shape or outside 0..V-1.
        """
        inputs, labels = self.inputs(batch), batch.get(self.label_name)
        decoder = inputs["decoder_input_ids"]
        if labels is None:
            return None, valid_positions(inputs.get("decoder_attention_mask"), decoder)
        check_classes(self, "labels", labels, decoder.shape, self._network.config.vocab_size, ignored=True)
        valid = labels != IGNORED
        return labels.where(valid, 0), valid

    @torch.no_grad()
    def soft_log_likelihood(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the log-likelihood of each target token given the mean context, ``[B, T]``, 0 at padding."""
        inputs = self.inputs(batch)
        labels, valid = self.targets(batch)
        assert labels is not None
        net = self._network
        hidden, states, _ = net.model.read(**inputs)
        weights = net.model.attention.log_weights(states, hidden, inputs.get("attention_mask"))[:, 0].exp()
        units = net.output.units(weights @ hidden, states)
        return AlignedTokens(units, net.output.logits, valid, self.label_smoothing).log_prob(labels)

    @property
    def _network(self) -> RecurrentForTranslation:
        return cast(RecurrentForTranslation, self.net)


class AlignmentGuide(PyroModule):
    r"""Guide of a :class:`VariationalTranslator`: posterior q of the alignments given source x and whole target y.

    .. math:: \mathcal L = \sum_t \mathrm E_{q(z_t \mid x, y)}[\log p(y_t \mid z_t)] - \mathrm{KL}(q_t \| \alpha_t)

    is the objective, the evidence lower bound (ELBO; Deng et al. 2018), with the prior :math:`\alpha_t`. The
    guide has its own LSTMs, which read source and target.

    Args:
        model: the program; its parameters do not become parameters of the guide.
        estimator: "enumerate" computes the expectation exactly, as a sum over source tokens, for
            ``pyro.infer.TraceEnum_ELBO``; the output network then runs for every pair of source and target token.
            "sample" draws one alignment per target token, for :class:`probattn.inference.TraceGraphMeanFieldELBO`, with
            the KL in closed form as in the paper, or for ``pyro.infer.TraceGraph_ELBO``, which samples the KL.
        baseline: with "sample", whether the score-function gradient uses the paper's baseline (section 4), the
            log-likelihood given the mean context; it needs one more forward pass.

    Raises:
        TypeError: ``model`` is not a :class:`VariationalTranslator`.
        ValueError: an unknown ``estimator``.

    Example:
        >>> from probattn.models import RecurrentTranslationConfig
        >>> sizes = {"vocab_size": 9, "embedding_size": 4, "hidden_size": 4}
        >>> model = VariationalTranslator(RecurrentForTranslation(RecurrentTranslationConfig(**sizes)))
        >>> guide = AlignmentGuide(model, "sample")
        >>> target = torch.tensor([[6, 3]])
        >>> guide({"input_ids": torch.tensor([[4, 5, 3]]), "decoder_input_ids": target, "labels": target}).shape
        torch.Size([1, 2])
    """

    def __init__(
        self, model: VariationalTranslator, estimator: Estimator = "enumerate", *, baseline: bool = True
    ) -> None:
        super().__init__()
        if not isinstance(model, VariationalTranslator):
            raise TypeError(f"AlignmentGuide: expected a VariationalTranslator, got {type(model).__name__}")
        check_choice("AlignmentGuide", "estimator", estimator, Estimator)
        self.estimator = estimator
        self.baseline = baseline
        # In a tuple, so that the model's parameters do not become the guide's too.
        self._program = (model,)
        config = cast(RecurrentForTranslation, model.net).config
        self.inference = AlignmentInference(cast(RecurrentTranslationConfig, config))

    @property
    def kl_weight(self) -> float:
        """Weight of the KL, the same as the program's; the library's training loops set it at every step."""
        return self._program[0].kl_weight

    @kl_weight.setter
    def kl_weight(self, weight: float) -> None:
        self._program[0].kl_weight = weight

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Draws or enumerates the alignments.

        Args:
            batch: inputs of the program, with ``input_ids`` and labels.

        Returns:
            Positions in the source, int64 ``[B, T]``, or ``[S, 1, 1]`` if enumerated.

        Raises:
            ValueError: no source tokens, no labels, or a mask of another shape.
        """
        model = self._program[0]
        inputs = model.inputs(batch)
        source, mask = inputs.get("input_ids"), inputs.get("attention_mask")
        if source is None:
            raise ValueError(
                "AlignmentGuide: expected 'input_ids' in the batch, which the posterior reads, got "
                f"{', '.join(sorted(batch))}"
            )
        check_mask("AlignmentGuide", "attention_mask", mask, source.shape)
        labels, valid = model.targets(batch)
        if labels is None:
            raise ValueError(
                f"AlignmentGuide: expected {model.label_name!r} in the batch, which the posterior reads; to predict, "
                "call the model itself"
            )
        posterior = self.inference(source, mask, labels, valid)
        with model.plates(valid), poutine.scale(scale=max(model.kl_weight, SMALLEST)):
            law, infer = dist.Categorical(logits=posterior), self._infer(batch, valid)
            alignment: Tensor = pyro.sample(SITE, law, infer=infer)
        return alignment

    def _infer(self, batch: Mapping[str, Tensor], valid: Tensor) -> dict[str, Any]:
        if self.estimator == "enumerate":
            return {"enumerate": "parallel"}
        if not self.baseline:
            return {}
        model = self._program[0]
        with poutine.block():
            value = model.soft_log_likelihood(batch)
        scale = (model.num_data or len(valid)) / len(valid) / (model.mean_length or 1.0)  # that of the plates
        value = scale * value
        while value.shape and value.shape[0] == 1:  # as TraceGraph_ELBO does with the costs it compares
            value = value.squeeze(0)
        return {"baseline": {"baseline_value": value}}
