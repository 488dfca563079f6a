"""Sizes of GraphWriter, and its graph transformer: attention between vertices of entities, relations and the whole."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from probattn.models.layers import (
    Attended,
    OwnEncoderDecoderConfig,
    ProjectedAttention,
    additive_mask,
    eager_attention_forward,
)
from probattn.options import Count, Dropout


class GraphWriterConfig(OwnEncoderDecoderConfig):
    """Sizes of a network that writes a text about a title and a knowledge graph.

    The defaults are those of Koncel-Kedziorski et al. (2019) and of their released settings.

    Args:
        vocab_size: number V of words in titles, entities and texts, special tokens included.
        num_relations: number of types of relations.
        hidden_size: size d of embeddings, vertices and decoder states, even and a multiple of ``num_attention_heads``.
        num_hidden_layers: number of blocks of the graph transformer.
        num_attention_heads: number H of heads of every attention call.
        feed_forward_size: hidden units of a block's feed-forward layer; None for 4 d.
        lstm_layers: number of layers of the bidirectional LSTMs that read titles and entities.
        dropout: dropout rate of embeddings, between layers of LSTMs, after feed-forward layers and before the output
            layer, in [0, 1).
        attention_dropout: dropout rate of attention weights between vertices, in [0, 1); not applied to latent weights.
        **kwargs: options of ``PretrainedConfig``. Padding, begin and end are tokens 0, 2 and 3 by default; the decoder
            starts with "begin".

    Raises:
        ValueError: a size below 1, a ``hidden_size`` that does not fit the heads, or a dropout rate outside [0, 1).

    Example:
        >>> GraphWriterConfig(hidden_size=64).feed_forward_size
        256
    """

    model_type = "probattn_graphwriter"

    def __init__(
        self,
        *,
        vocab_size: Count = 10_000,
        num_relations: Count = 7,
        hidden_size: Count = 500,
        num_hidden_layers: Count = 6,
        num_attention_heads: Count = 4,
        feed_forward_size: Count | None = None,
        lstm_layers: Count = 2,
        dropout: Dropout = 0.1,
        attention_dropout: Dropout = 0.1,
        **kwargs: Any,
    ) -> None:
        self._take(GraphWriterConfig.__init__, locals())
        self.feed_forward_size = 4 * hidden_size if feed_forward_size is None else feed_forward_size
        if self.hidden_size % self.num_attention_heads or self.hidden_size % 2:
            raise ValueError(
                f"GraphWriterConfig.hidden_size: expected an even multiple of the heads ({self.num_attention_heads}), "
                f"got {self.hidden_size}"
            )
        super().__init__(**kwargs)


class Projected(NamedTuple):
    """Keys and values of all heads, ``[B, H, S, D]``, and their additive mask ``[B, 1, 1, S]``."""

    key: Tensor
    value: Tensor
    mask: Tensor


class VertexAttention(ProjectedAttention):
    """A state and what it takes from others, scores scaled, no map after (Koncel-Kedziorski et al. 2019)."""

    def __init__(self, config: GraphWriterConfig, dropout: float = 0.0) -> None:
        super().__init__(config, dropout, bias=False)

    def forward(self, states: Tensor, others: Tensor, mask: Tensor, real: Tensor | None) -> Attended:
        """Attends; see :meth:`attend`."""
        output, weights = self.attend(states, others, mask, real)
        return states + output, weights


class ContextAttention(VertexAttention):
    """The same from a decoder's states; by ``is_decoder`` conversion knows that the queries are those of a decoder."""

    is_decoder: ClassVar[bool] = True

    def project(self, others: Tensor, mask: Tensor) -> Projected:
        """Keys and values of others ``[B, S, d]`` for :meth:`expected`; ``mask`` ``[B, 1, 1, S]``."""
        return Projected(self.heads(self.key(others)), self.heads(self.value(others)), mask)

    def expected(self, state: Tensor, others: Projected) -> Tensor:
        """The context ``[B, d]`` of one state ``[B, d]`` under the weights themselves, without any method."""
        query = self.heads(self.query(state[:, None]))
        output, _ = eager_attention_forward(self, query, *others, scaling=self.scaling)
        return state + output.flatten(1)


NO_RELATION = -1
"""Numbers of a relation that is padding."""


def adjacency(entities: Tensor, relations: Tensor) -> Tensor:
    r"""Returns which vertex attends to which (Koncel-Kedziorski et al. 2019, section 3).

    A relation r from entity i to entity j becomes two vertices, one for each direction, and unlabelled edges:
    :math:`i \to r \to j` and :math:`j \to r^{-1} \to i`. A global vertex has edges to and from every entity. A vertex
    attends to itself and to the vertices to which its edges lead.

    Args:
        entities: bool ``[B, K]``, False at padding.
        relations: int64 ``[B, M, 3]``: number of the first entity, type of the relation, number of the second entity;
            -1 at padding.

    Returns:
        bool ``[B, N, N]``, N = K + 2 M + 1, True at (i, j) if vertex i attends to vertex j. Vertices are K entities, M
            forward relations, M backward relations and the global one; rows and columns of padding are False.

    Example:
        >>> adjacency(torch.ones(1, 2, dtype=torch.bool), torch.tensor([[[0, 0, 1]]]))[0].int()
        tensor([[1, 0, 1, 0, 1],
                [0, 1, 0, 1, 1],
                [0, 1, 1, 0, 0],
                [1, 0, 0, 1, 0],
                [1, 1, 0, 0, 1]], dtype=torch.int32)
    """
    batch, count = entities.shape
    number = relations.shape[1]
    size = count + 2 * number + 1
    real = relations[..., 0] != NO_RELATION  # [B, M]
    joined = torch.zeros(batch, size, size, dtype=torch.bool, device=entities.device)
    rows, indices = real.nonzero(as_tuple=True)
    head, tail = relations[rows, indices, 0], relations[rows, indices, 2]
    forwards, backwards = count + indices, count + number + indices
    for start, end in ((head, forwards), (forwards, tail), (tail, backwards), (backwards, head)):
        joined[rows, start, end] = True
    joined[:, :count, -1] = joined[:, -1, :count] = entities
    vertices = torch.cat([entities, real, real, entities.new_ones(batch, 1)], dim=1)
    return joined | torch.diag_embed(vertices)


class GraphBlock(nn.Module):
    """Attention and a feed-forward layer, each with LayerNorm (Koncel-Kedziorski et al. 2019, section 4.2)."""

    def __init__(self, config: GraphWriterConfig) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.feed_forward_size
        self.attention = VertexAttention(config, config.attention_dropout)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.feed_forward = nn.Sequential(
            nn.Linear(size, inner), nn.PReLU(), nn.Linear(inner, size), nn.Dropout(config.dropout)
        )

    def forward(self, vertices: Tensor, mask: Tensor, real: Tensor) -> Attended:
        """Vertices ``[B, N, d]`` after the block, and its weights ``[B, H, N, N]``; arguments as the attention's."""
        attended, weights = self.attention(vertices, vertices, mask, real)
        first, second = self.norms
        hidden = first(attended)
        return second(hidden + self.feed_forward(hidden)), weights


class GraphTransformer(nn.Module):
    """Vectors of relations and of the whole, and the blocks; entities bring their own vectors."""

    def __init__(self, config: GraphWriterConfig) -> None:
        super().__init__()
        self.num_relations = config.num_relations
        self.embed_relations = nn.Embedding(2 * config.num_relations + 1, config.hidden_size)
        self.blocks = nn.ModuleList(GraphBlock(config) for _ in range(config.num_hidden_layers))

    def forward(
        self, entities: Tensor, entity_mask: Tensor, relations: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        """Vertices ``[B, N, d]`` as in :func:`adjacency`, 0 at padding, which are real, and each block's weights."""
        joined = adjacency(entity_mask, relations)
        real = joined.diagonal(dim1=-2, dim2=-1)  # [B, N]
        kinds = relations[..., 1].clamp_min(0)
        whole = kinds.new_full((len(kinds), 1), 2 * self.num_relations)
        others = self.embed_relations(torch.cat([kinds, kinds + self.num_relations, whole], dim=1))
        vertices = torch.cat([entities, others.to(entities.dtype)], dim=1)
        mask = additive_mask(joined[:, None], vertices.dtype)
        maps: list[Tensor | None] = []
        for block in self.blocks:
            vertices, weights = block(vertices, mask, real)
            maps.append(weights)
        return vertices.masked_fill(~real[..., None], 0), real, maps
