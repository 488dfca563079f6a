"""Encoder and decoder: titles, entities and the graph between them, and the text with copied entities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.utils.generic import ModelOutput

from probattn.models.graphwriter.graph import (
    NO_RELATION,
    ContextAttention,
    GraphTransformer,
    GraphWriterConfig,
    Projected,
)
from probattn.models.layers import additive_mask, all_maps, deep_lstm, read_padded
from probattn.models.translation.recurrent.lstms import DecoderState, masked_log_softmax

Inputs = dict[str, Tensor]


@dataclass
class GraphWriterEncoderOutput(ModelOutput):
    """Vertices ``[B, N, d]``, entities first, the whole last; title ``[B, S, d]``; batch first for a beam search."""

    last_hidden_state: Tensor | None = None
    vertex_mask: Tensor | None = None
    title: Tensor | None = None
    title_mask: Tensor | None = None
    entity_mask: Tensor | None = None
    entity_types: Tensor | None = None
    attentions: tuple[Tensor, ...] | None = None


class GraphWriterEncoder(nn.Module):
    """Bidirectional LSTMs over the title and over each entity's words, and the graph transformer."""

    main_input_name = "input_ids"

    def __init__(self, config: GraphWriterConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.pad = int(config.pad_token_id or 0)
        self.embed_tokens = nn.Embedding(config.vocab_size, size, self.pad)
        self.dropout = nn.Dropout(config.dropout)
        sizes = size, size // 2, config.lstm_layers
        self.title, self.entities = (deep_lstm(*sizes, config.dropout) for _ in range(2))
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
        """Reads titles and graphs, arguments of :class:`GraphWriterModel`; ``ValueError`` where they do not fit."""
        title_mask = input_ids.ne(self.pad) if attention_mask is None else attention_mask.bool()
        check(input_ids, title_mask, entity_ids, entity_types, relations, self.graph.num_relations)
        entity_ids, relations = cast(Tensor, entity_ids), cast(Tensor, relations)
        entity_words = entity_ids.ne(self.pad)  # [B, K, W]
        entity_mask = entity_words.any(dim=-1)
        check_entities(entity_mask, relations)
        title, _last = read_padded(self.title, self._embed(input_ids), title_mask)
        entities = self._entities(entity_ids, entity_words)
        vertices, real, maps = self.graph(entities, entity_mask, relations)
        attentions = all_maps(maps) if output_attentions else None
        read = (vertices, real, title, title_mask, entity_mask, entity_types)
        return GraphWriterEncoderOutput(*read, attentions)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embed_tokens(tokens))

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
    if entity_ids is None or entity_types is None or relations is None:
        graph = {"entity_ids": entity_ids, "entity_types": entity_types, "relations": relations}
        missing = next(name for name, tensor in graph.items() if tensor is None)
        raise ValueError(
            f"{owner}: expected {missing} beside input_ids, got none; give the graph of each title"
        )
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
        largest = int(relations[..., 1].max())
        raise ValueError(f"{owner}: expected relations in 0..{num_relations - 1}, got {largest}")


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


@dataclass(eq=False)
class FedState(DecoderState):
    """State after ``length`` tokens, the cache of ``generate``: hidden and cell ``[B, d]``, the context ``[B, 2d]``."""

    fed: Tensor

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keeps the rows of these beams, in place."""
        self.hidden, self.cell, self.fed = (
            state.index_select(0, beam_idx) for state in (self.hidden, self.cell, self.fed)
        )


class GraphWriterDecoder(nn.Module):
    """An LSTM with input feeding that attends to vertices and title (Koncel-Kedziorski et al. 2019, section 4.3).

    Contexts that are fed back are under the attention's own weights, no draws: so a text's attention is one call.
    """

    def __init__(self, config: GraphWriterConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.cell = nn.LSTMCell(3 * size, size)
        self.graph_attention = ContextAttention(config)
        self.title_attention = ContextAttention(config)

    def forward(
        self, embedded: Tensor, encoded: GraphWriterEncoderOutput, real: Tensor | None, past: FedState | None
    ) -> tuple[Tensor, Tensor, FedState, list[Tensor | None]]:
        """h ``[B, T, d]``, c ``[B, T, 2d]``, next state and weights; ``real`` bool ``[B, T]`` is False at padding."""
        vertices, title = cast(Tensor, encoded.last_hidden_state), cast(Tensor, encoded.title)
        valid = cast(tuple[Tensor, Tensor], (encoded.vertex_mask, encoded.title_mask))
        masks = [additive_mask(mask[:, None, None], vertices.dtype) for mask in valid]
        of_graph = self.graph_attention.project(vertices, masks[0])
        sources = of_graph, self.title_attention.project(title, masks[1])
        states, past = self._read(embedded, real, vertices[:, -1], sources, past)
        graph, graph_weights = self.graph_attention(states, vertices, masks[0], real)
        words, title_weights = self.title_attention(states, title, masks[1], real)
        return states, torch.cat([graph, words], dim=-1), past, [graph_weights, title_weights]

    def _read(
        self,
        embedded: Tensor,
        real: Tensor | None,
        start: Tensor,
        sources: tuple[Projected, Projected],
        past: FedState | None,
    ) -> tuple[Tensor, FedState]:
        """States ``[B, T, d]`` of the LSTM, which padding leaves as they are."""
        before = None if past is None else (past.hidden, past.cell, past.fed)
        state = before or (start, start, self._fed(start, sources))
        states = []
        for index, step in enumerate(embedded.unbind(dim=1)):
            hidden, cell = self.cell(torch.cat([step, state[2]], dim=-1), state[:2])
            following = (hidden, cell, self._fed(hidden, sources))
            if real is not None:
                pairs, here = zip(following, state, strict=True), real[:, index, None]
                hidden, cell, fed = (torch.where(here, new, old) for new, old in pairs)
                following = (hidden, cell, fed)
            state = following
            states.append(state[0])
        length = len(states) + (0 if past is None else past.length)
        return torch.stack(states, dim=1), FedState(*state[:2], length, state[2])

    def _fed(self, state: Tensor, sources: tuple[Projected, Projected]) -> Tensor:
        pairs = zip((self.graph_attention, self.title_attention), sources, strict=True)
        return torch.cat([attention.expected(state, source) for attention, source in pairs], dim=-1)


class CopyOutput(nn.Module):
    """Words, or by a gate copied entities (See et al. 2017; Koncel-Kedziorski et al. 2019, section 4.3)."""

    def __init__(self, config: GraphWriterConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.dropout = nn.Dropout(config.dropout)
        self.words = nn.Linear(3 * size, config.vocab_size)
        self.copies = nn.Linear(3 * size, size)
        self.gate = nn.Linear(3 * size, 1)

    def forward(self, states: Tensor, contexts: Tensor, entities: Tensor, entity_mask: Tensor) -> Tensor:
        """Log-probabilities ``[B, T, V + K]`` of words, then entities; finite where ``entity_mask`` is False."""
        read = self.dropout(torch.cat([states, contexts], dim=-1))
        gate = self.gate(read)
        gate = gate.to(torch.promote_types(gate.dtype, torch.float32))
        words = masked_log_softmax(self.words(read), None) + F.logsigmoid(-gate)
        copies = masked_log_softmax(self.copies(read) @ entities.mT, entity_mask[:, None])
        copies = copies + F.logsigmoid(gate)
        dtype = self.gate.weight.dtype  # not that of autocast, in which a sum over tokens has too few digits
        return torch.cat([words, copies], dim=-1).clamp_min(torch.finfo(dtype).min).to(dtype)
