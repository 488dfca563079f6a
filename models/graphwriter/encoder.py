"""The encoder: titles, entities and the graph between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from probattn.models.graphwriter.configuration import GraphWriterConfig
from probattn.models.graphwriter.graph import NO_RELATION, GraphTransformer
from probattn.models.lstm import read_padded

Inputs = dict[str, Tensor]


@dataclass
class GraphWriterEncoderOutput(ModelOutput):
    """What the decoder reads; the batch comes first, as a beam search requires.

    Attributes:
        last_hidden_state: vertices ``[B, N, d]``, entities first and the whole graph last, 0 at padding.
        vertex_mask: bool ``[B, N]``.
        title: states of the title's words ``[B, S, d]``, 0 at padding.
        title_mask: bool ``[B, S]``.
        entity_mask: bool ``[B, K]``.
        entity_types: int64 ``[B, K]``, tokens of the entities' types.
        attentions: weights ``[B, H, N, N]`` of each block, if requested.
    """

    last_hidden_state: Tensor | None = None
    vertex_mask: Tensor | None = None
    title: Tensor | None = None
    title_mask: Tensor | None = None
    entity_mask: Tensor | None = None
    entity_types: Tensor | None = None
    attentions: tuple[Tensor, ...] | None = None


class GraphWriterEncoder(nn.Module):
    """Bidirectional LSTMs over the title and over each entity's words, and the graph transformer.

    An entity's vector is the LSTM's last state in both directions. All words share ``embed_tokens``.
    """

    main_input_name = "input_ids"

    def __init__(self, config: GraphWriterConfig) -> None:
        super().__init__()
        size, layers = config.hidden_size, config.lstm_layers
        self.pad = int(config.pad_token_id or 0)
        self.embed_tokens = nn.Embedding(config.vocab_size, size, self.pad)
        self.dropout = nn.Dropout(config.dropout)
        self.title, self.entities = (
            nn.LSTM(
                size,
                size // 2,
                layers,
                batch_first=True,
                dropout=config.dropout if layers > 1 else 0.0,
                bidirectional=True,
            )
            for _ in range(2)
        )
        self.graph = GraphTransformer(config)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        entity_ids: Tensor | None = None,
        entity_types: Tensor | None = None,
        relations: Tensor | None = None,
        output_attentions: bool | None = None,
        **_: Any,
    ) -> GraphWriterEncoderOutput:
        """Reads titles and graphs; arguments are those of :class:`GraphWriterModel`.

        Raises:
            ValueError: entities, types or relations are missing, or their shapes or numbers do not fit.
        """
        title_mask = input_ids.ne(self.pad) if attention_mask is None else attention_mask.bool()
        check(input_ids, title_mask, entity_ids, entity_types, relations, self.graph.num_relations)
        entity_ids, relations = cast(Tensor, entity_ids), cast(Tensor, relations)
        entity_words = entity_ids.ne(self.pad)  # [B, K, W]
        entity_mask = entity_words.any(dim=-1)
        check_entities(entity_mask, relations)
        title, _last = read_padded(self.title, self._embed(input_ids), title_mask)
        entities = self._entities(entity_ids, entity_words)
        vertices, real, maps = self.graph(entities, entity_mask, relations)
        return GraphWriterEncoderOutput(
            last_hidden_state=vertices,
            vertex_mask=real,
            title=title,
            title_mask=title_mask,
            entity_mask=entity_mask,
            entity_types=entity_types,
            attentions=cast(tuple[Tensor, ...], tuple(maps))
            if output_attentions and None not in maps
            else None,
        )

    def _embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.embed_tokens(tokens))
        return embedded

    def _entities(self, tokens: Tensor, real: Tensor) -> Tensor:
        """Vectors ``[B, K, d]`` of entities with words ``[B, K, W]``, computed once for each that there is."""
        rows = real.any(dim=-1)  # [B, K]
        _, (hidden, _cell) = read_padded(self.entities, self._embed(tokens[rows]), real[rows])
        last = torch.cat([hidden[-2], hidden[-1]], dim=-1)  # [entities, d]
        empty = last.new_zeros(*rows.shape, last.shape[-1])
        return empty.masked_scatter(rows[..., None], last)


def check(
    input_ids: Tensor,
    title_mask: Tensor,
    entity_ids: Tensor | None,
    entity_types: Tensor | None,
    relations: Tensor | None,
    num_relations: int,
) -> None:
    """Raises ``ValueError`` unless the shapes fit each other and relations are known."""
    owner, batch = "GraphWriterEncoder", len(input_ids)
    for name, tensor in (
        ("entity_ids", entity_ids),
        ("entity_types", entity_types),
        ("relations", relations),
    ):
        if tensor is None:
            raise ValueError(
                f"{owner}: expected {name} beside input_ids, got none; give the graph of each title"
            )
    assert entity_ids is not None
    assert entity_types is not None
    assert relations is not None
    expected = {
        "attention_mask": (title_mask, list(input_ids.shape)),
        "entity_types": (entity_types, list(entity_ids.shape[:2])),
        "entity_ids": (entity_ids, [batch, *entity_ids.shape[1:3], 0][:3]),
        "relations": (relations, [batch, *relations.shape[1:2], 3]),
    }
    for name, (tensor, shape) in expected.items():
        if list(tensor.shape) != shape:
            raise ValueError(f"{owner}: expected {name} {shape}, got {list(tensor.shape)}")
    if relations.numel() and int(relations[..., 1].max()) >= num_relations:
        raise ValueError(
            f"{owner}: expected relations in 0..{num_relations - 1}, got {int(relations[..., 1].max())}"
        )


def check_entities(entities: Tensor, relations: Tensor) -> None:
    """Raises ``ValueError`` unless every row has an entity and relations join some of them."""
    counts = entities.sum(dim=1)
    if not bool(counts.all()):
        row = int((counts == 0).nonzero()[0])
        raise ValueError(
            f"GraphWriterEncoder: expected an entity in every row, got none in row {row}; a graph without entities "
            "has nothing to write about"
        )
    ends = relations[..., ::2]  # [B, M, 2]
    named = ends.clamp(0, entities.shape[1] - 1).flatten(1)
    fits = (ends >= 0) & (ends < entities.shape[1]) & (relations[..., 1:2] >= 0)
    padding = (relations == NO_RELATION).all(dim=-1, keepdim=True)
    valid = (entities.gather(1, named).unflatten(1, ends.shape[1:]) & fits) | padding
    if not bool(valid.all()):
        row, relation, side = (int(number) for number in (~valid).nonzero()[0])
        raise ValueError(
            f"GraphWriterEncoder: expected relations between entities of their row, got entity "
            f"{int(ends[row, relation, side])} in row {row}, relation {relations[row, relation].tolist()}"
        )
