"""The bag-of-words proxy of early training and its gradient flow; the LSTM models' attention, and ways to train it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.functional import jvp
from torch.nn import functional as F

from probattn.checks import check_choice
from probattn.probes.corpus import ParallelCorpus
from probattn.probes.rows import valid_positions

AttentionMode = Literal["learned", "uniform"]
"""``"learned"``: the softmax of the scores. ``"uniform"``: 1 / L, whatever the scores, which then get no gradient."""


def luong_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    r"""Scores of dot attention, :math:`a_{t,l} = s_t^T W h_l` (Luong et al. 2015; Snell et al. 2021, Eq. 1).

    The query s is ``[..., T, E]``, the key h ``[..., S, D]``, the weight W ``[E, D]``; the scores are ``[..., T, S]``.

    Example:
        >>> luong_scores(torch.ones(1, 2), torch.tensor([[1.0], [3.0]]), torch.tensor([[1.0], [0.5]]))
        tensor([[1.5000, 4.5000]])
    """
    return torch.matmul(torch.matmul(query, weight), key.mT)


def additive_scores(key: Tensor, hidden: Tensor, vector: Tensor) -> Tensor:
    r"""Scores of additive attention without a query, :math:`a_l = v^T \mathrm{ReLU}(Q h_l)` (Snell et al. 2021, Eq. 7).

    The key h is ``[..., S, D]``, ``hidden`` Q ``[E, D]``, ``vector`` v ``[E]``; the scores are ``[..., S]``.

    Example:
        >>> additive_scores(torch.tensor([[1.0], [-1.0]]), torch.tensor([[2.0], [-1.0]]), torch.tensor([1.0, 10.0]))
        tensor([ 2., 10.])
    """
    return torch.matmul(torch.matmul(key, hidden.mT).relu(), vector)


def attention_weights(scores: Tensor, mask: Tensor | None = None, mode: AttentionMode = "learned") -> Tensor:
    r"""Attention weights over the positions that count: the softmax of the scores, or equal weights.

    The lexical probe of a model trained with ``"uniform"`` is the paper's :math:`\beta^{\mathrm{uf}}`: what the model
    learns about single words while its attention is not learned (Snell et al. 2021, section 3.2).

    Args:
        scores: attention scores ``[..., S]``.
        mask: bool ``[..., S]``, True for a position that counts.
        mode: ``"learned"`` for the softmax, ``"uniform"`` for equal weights.

    Returns:
        Weights ``[..., S]``; 0 at masked positions and in a row in which no position counts.

    Raises:
        TypeError: the scores are not floating-point, or ``mask`` is not bool.
        ValueError: ``mask`` does not fit, or ``mode`` is unknown.

    Example:
        >>> mask = torch.tensor([True, True, False])
        >>> attention_weights(torch.tensor([0.0, 1.0, 2.0]), mask)
        tensor([0.2689, 0.7311, 0.0000])
        >>> attention_weights(torch.tensor([0.0, 1.0, 2.0]), mask, "uniform")
        tensor([0.5000, 0.5000, 0.0000])
    """
    check_choice("attention_weights", "mode", mode, AttentionMode)
    if not scores.is_floating_point():
        raise TypeError(f"attention_weights: expected floating-point scores, got {scores.dtype}")
    valid = valid_positions("attention_weights", mask, scores)
    if mode == "uniform":
        return valid.to(scores.dtype) / valid.sum(dim=-1, keepdim=True).clamp(min=1)
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~valid, lowest).softmax(dim=-1).masked_fill(~valid, 0)


@contextmanager
def frozen_probe(
    model: nn.Module, attention: Sequence[nn.Module | nn.Parameter]
) -> Iterator[list[nn.Parameter]]:
    """Context manager that freezes all parameters but those of attention, so the lexical probe does not change.

    If attention could be learned without knowledge of words, attention over a frozen probe would resemble that of a
    model trained as usual. In the paper it does not (Snell et al. 2021, section A.6); runs of this library did not
    confirm this ([How attention learns](../concepts/how_attention_learns.md)).

    Args:
        model: the model; inside the block its parameters outside ``attention`` get no gradient.
        attention: the parameters that make the attention scores, or the modules that hold these parameters.

    Yields:
        The trainable parameters, for the optimiser. After the block, ``requires_grad`` of all parameters is restored.

    Raises:
        TypeError: ``attention`` is a single module or tensor, not a sequence.
        ValueError: ``attention`` holds no parameter, or one that is not the model's.

    Example:
        >>> model = nn.ModuleDict({"scores": nn.Linear(4, 1), "head": nn.Linear(4, 2)})
        >>> with frozen_probe(model, [model["scores"]]) as learning:
        ...     print(len(learning), model["head"].weight.requires_grad)
        2 False
        >>> model["head"].weight.requires_grad
        True
    """
    if isinstance(attention, (nn.Module, Tensor)):
        raise TypeError(
            f"frozen_probe: expected a list of attention, got one {type(attention).__name__}; put it in []"
        )
    selected: dict[int, nn.Parameter] = {}
    for item in attention:
        for parameter in item.parameters() if isinstance(item, nn.Module) else (item,):
            selected[id(parameter)] = parameter
    before = {id(parameter): (parameter, parameter.requires_grad) for parameter in model.parameters()}
    if not selected:
        raise ValueError("frozen_probe: expected attention with parameters, got none: nothing would learn")
    if unknown := [value for number, value in selected.items() if number not in before]:
        raise ValueError(
            f"frozen_probe: expected parameters of the model, got {len(unknown)} that are not, "
            f"the first of shape {list(unknown[0].shape)}"
        )
    try:
        for number, (parameter, _) in before.items():
            parameter.requires_grad_(number in selected)
        yield list(selected.values())
    finally:
        for parameter, required in before.values():
            parameter.requires_grad_(required)


_LOGITS = 2**24  # logits that exist at once: 64 MiB in float32


class BagOfWordsProxy(nn.Module):
    r"""Averages the embeddings of a sentence's words and predicts every output word from this mean alone.

    .. math::
        p_t = \sigma\Bigl(\frac1L \sum_l W e_{x_l}\Bigr), \qquad \beta^{\mathrm{px}}_{t,l} = \sigma(W e_{x_l})_{y_t}

    (Snell et al. 2021, Eq. 5 and 6): uniform attention, states that depend on one word each, and no decoder state.

    Args:
        source_size: I, size of the source vocabulary.
        target_size: O, size of the target vocabulary.
        width: d, dimension of the embeddings.
        generator: generator of the random initial values; None for torch's default generator.

    Attributes:
        embedding: e, ``[I, d]``; initial entries of W and e are drawn from N(0, 1 / d) (section 4.1).
        output: W, ``[O, d]``.

    Example:
        >>> proxy = BagOfWordsProxy(6, 5, 16)
        >>> source, target = torch.tensor([[0, 3, 5]]), torch.tensor([[1, 4]])
        >>> proxy(source).shape, proxy.probe(source, target).shape
        (torch.Size([1, 5]), torch.Size([1, 2, 3]))
    """

    def __init__(
        self, source_size: int, target_size: int, width: int, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        if min(source_size, target_size, width) < 1:
            raise ValueError(
                f"BagOfWordsProxy: expected sizes >= 1, got {source_size} x {target_size} words, width {width}"
            )
        self.embedding = nn.Parameter(torch.randn(source_size, width, generator=generator) / width**0.5)
        self.output = nn.Parameter(torch.randn(target_size, width, generator=generator) / width**0.5)

    def forward(self, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits ``[B, O]`` of the target words, the same for every output position; 0 for a sentence without words.

        Args:
            source: x, integers ``[B, S]`` in 0 .. I - 1; any at masked positions.
            mask: bool ``[B, S]``, True for a word that counts.
        """
        weights = attention_weights(self.embedding.new_zeros(source.shape), mask, "uniform")
        source = source if mask is None else source.where(mask, 0)
        bags = (weights.unsqueeze(-1) * F.embedding(source, self.embedding)).sum(dim=1)
        return F.linear(bags, self.output)

    def loss(
        self, source: Tensor, target: Tensor, mask: Tensor | None = None, target_mask: Tensor | None = None
    ) -> Tensor:
        """Sum of the negative log-likelihood over all output words, in nats (Snell et al. 2021, Eq. 14).

        ``target`` y holds integers ``[B, T]`` in 0 .. O - 1; ``target_mask``, bool ``[B, T]``, is True for an output
        word that counts. The other arguments are those of :meth:`forward`.
        """
        valid = valid_positions("BagOfWordsProxy", target_mask, target)
        losses = -self(source, mask).log_softmax(dim=-1).gather(-1, target.where(valid, 0))  # [B, T]
        return losses[valid].sum()

    def probe(
        self, source: Tensor, target: Tensor, mask: Tensor | None = None, *, log: bool = False
    ) -> Tensor:
        """Lexical probe of the proxy (Eq. 6), ``[B, T, S]``; 0 at masked positions, or -inf with ``log``.

        ``target`` holds integers ``[B, T]`` in 0 .. O - 1, also at padding; the other arguments are those of
        :meth:`forward`.
        """
        words = source if mask is None else source.where(mask, 0)
        logs = F.linear(F.embedding(words, self.embedding), self.output).log_softmax(dim=-1)  # [B, S, O]
        index = target.unsqueeze(-1).expand(*target.shape, source.shape[-1])
        rows = logs.mT.gather(1, index)  # [B, T, S]
        valid = valid_positions("BagOfWordsProxy", None if mask is None else mask.unsqueeze(1), rows)
        return rows.masked_fill(~valid, -torch.inf) if log else rows.exp().masked_fill(~valid, 0)


class GradientFlow(NamedTuple):
    """Time derivatives, ``[I, O]``, of the outputs of the proxy for each source word i alone, under gradient flow."""

    logits: Tensor
    """Derivative of the logits W e_i."""
    probabilities: Tensor
    """Derivative of the probabilities theta_i = softmax(W e_i)."""


def gradient_flow(proxy: BagOfWordsProxy, corpus: ParallelCorpus) -> GradientFlow:
    r"""Time derivative of each source word's logits and probabilities if W and e follow the negative gradient.

    .. math::
        \frac{\partial \hat\theta}{\partial \tau} = \dot W e + W \dot e, \qquad
        \dot W = -\frac{\partial L}{\partial W}, \quad \dot e = -\frac{\partial L}{\partial e}, \quad
        L = -\sum_m \sum_t \log p^m_{y_t^m}

    (Snell et al. 2021, Eq. 14, 39 and 41), as a Jacobian-vector product at the current parameters;
    :math:`\hat\theta = W e` are the logits. At random initial values the derivatives tend to
    :func:`gradient_flow_limit` as the width d grows.

    Args:
        proxy: the model with parameters W and e.
        corpus: sentence pairs m whose vocabularies have the proxy's sizes; the sums run over all pairs.

    Returns:
        Both derivatives as dense tensors without gradients; the vocabularies must be small enough for ``[I, O]``.

    Raises:
        ValueError: the vocabularies of the corpus have other sizes than the proxy.

    Example:
        >>> corpus = ParallelCorpus.from_words([["a", "b"], ["a"]], [["x", "y"], ["x"]])
        >>> proxy = BagOfWordsProxy(2, 2, 4096, generator=torch.Generator().manual_seed(0))
        >>> limit = torch.tensor([[1.0, -1.0], [0.0, 0.0]])  # C is [[1.5, 0.5], [0.5, 0.5]]
        >>> bool((gradient_flow(proxy, corpus).logits - limit).abs().max() < 0.1)
        True
    """
    expected = len(proxy.embedding), len(proxy.output)
    sizes = len(corpus.source_vocabulary), len(corpus.target_vocabulary)
    if sizes != expected:
        raise ValueError(
            f"gradient_flow: expected a corpus of {expected} source and target words, got {sizes}"
        )
    embedding, output = proxy.embedding.detach(), proxy.output.detach()
    to_embedding, to_output = _gradients(embedding, output, corpus)

    def logits(e: Tensor, w: Tensor) -> Tensor:
        return e @ w.mT  # [I, O]

    def probabilities(e: Tensor, w: Tensor) -> Tensor:
        return logits(e, w).softmax(dim=-1)

    primals, tangents = (embedding, output), (-to_embedding, -to_output)
    return GradientFlow(*(jvp(item, primals, tangents)[1] for item in (logits, probabilities)))


def gradient_flow_limit(counts: Tensor) -> GradientFlow:
    r"""Limit of :func:`gradient_flow` at initial values N(0, 1 / d) as the width d grows.

    .. math::
        \frac{\partial \hat\theta_{i,o}}{\partial \tau} \to 2 \Bigl(C_{i,o} - \frac1{|O|} \sum_{o'} C_{i,o'}\Bigr),
        \qquad \frac{\partial \theta_{i,o}}{\partial \tau} \to \frac{2}{|O|}
        \Bigl(C_{i,o} - \frac1{|O|} \sum_{o'} C_{i,o'}\Bigr)

    (Snell et al. 2021, Eq. 54 for the logits). Eq. 15 and 55 of the paper print the first limit for the probabilities
    too; their limit differs because near uniform probabilities the derivative of the softmax has a factor 1 / |O|. The
    counts C ``[I, O]`` are the dense ``counts`` of :class:`probattn.probes.IBMModel1` after one step without NULL.

    Example:
        >>> gradient_flow_limit(torch.tensor([[1.5, 0.5], [0.5, 0.5]])).probabilities
        tensor([[ 0.5000, -0.5000],
                [ 0.0000,  0.0000]])
    """
    logits = 2 * (counts - counts.mean(dim=-1, keepdim=True))
    return GradientFlow(logits, logits / counts.shape[-1])


def _gradients(embedding: Tensor, output: Tensor, corpus: ParallelCorpus) -> tuple[Tensor, Tensor]:
    """Gradients of the loss over the whole corpus, some sentences at a time."""
    leaves = embedding.clone().requires_grad_(), output.clone().requires_grad_()
    totals = torch.zeros_like(embedding), torch.zeros_like(output)
    rows = max(1, _LOGITS // max(embedding.shape[0], output.shape[0]))
    for start in range(0, len(corpus), rows):
        counts = [
            torch.from_numpy(item[start : start + rows].toarray()).to(embedding)
            for item in (corpus.source, corpus.target)
        ]
        with torch.enable_grad():
            bags = counts[0] / counts[0].sum(dim=-1, keepdim=True)  # [M, I]
            logs = F.linear(bags @ leaves[0], leaves[1]).log_softmax(dim=-1)  # [M, O]
            gradients = torch.autograd.grad(-(counts[1] * logs).sum(), leaves)
        totals = totals[0] + gradients[0], totals[1] + gradients[1]
    return totals
