"""The LSTM that writes the text, fed with its own contexts, and the mixture of words and copied entities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.models.dot_product import additive_mask
from probattn.models.graphwriter.configuration import GraphWriterConfig
from probattn.models.graphwriter.encoder import GraphWriterEncoderOutput
from probattn.models.graphwriter.graph import ContextAttention, Projected
from probattn.models.translation.recurrent.attention import masked_log_softmax
from probattn.models.translation.recurrent.lstms import DecoderState


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
    r"""An LSTM with input feeding (Luong et al. 2015) and attention to vertices and to the title's words.

    .. math:: h_t = \mathrm{LSTM}(h_{t-1}, [e(y_{t-1}); \bar c_{t-1}]), \qquad c_t = [c_t^g; c_t^s]

    (Koncel-Kedziorski et al. 2019, section 4.3); it starts from the vertex of the whole graph. The contexts
    :math:`\bar c` that are fed back are those under the attention's own weights, :math:`c` what the output reads. The
    two are the same but for a method that draws weights: there a text's attention stays one call, in which no draw
    reaches a later query.
    """

    def __init__(self, config: GraphWriterConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.cell = nn.LSTMCell(3 * size, size)
        self.graph_attention = ContextAttention(config)
        self.title_attention = ContextAttention(config)

    def forward(
        self,
        embedded: Tensor,
        encoded: GraphWriterEncoderOutput,
        real: Tensor | None,
        past: FedState | None,
    ) -> tuple[Tensor, Tensor, FedState, list[Tensor | None]]:
        """h ``[B, T, d]``, c ``[B, T, 2d]``, the next state, and the weights of both attention calls.

        Of embedded tokens ``[B, T, d]``; ``real``, bool ``[B, T]``, is False at padding, wherever it stands;
        ``past`` is the state to go on from.
        """
        vertices, title = cast(Tensor, encoded.last_hidden_state), cast(Tensor, encoded.title)
        masks = [
            additive_mask(cast(Tensor, mask)[:, None, None], vertices.dtype)
            for mask in (encoded.vertex_mask, encoded.title_mask)
        ]
        sources = (
            self.graph_attention.project(vertices, masks[0]),
            self.title_attention.project(title, masks[1]),
        )
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
        state = (
            (start, start, self._fed(start, sources)) if past is None else (past.hidden, past.cell, past.fed)
        )
        states = []
        for index, step in enumerate(embedded.unbind(dim=1)):
            hidden, cell = self.cell(torch.cat([step, state[2]], dim=-1), state[:2])
            following = (hidden, cell, self._fed(hidden, sources))
            if real is not None:
                here = real[:, index, None]
                hidden, cell, fed = (
                    torch.where(here, new, old) for new, old in zip(following, state, strict=True)
                )
                following = (hidden, cell, fed)
            state = following
            states.append(state[0])
        length = len(states) + (0 if past is None else past.length)
        return torch.stack(states, dim=1), FedState(*state[:2], length, state[2])

    def _fed(self, state: Tensor, sources: tuple[Projected, Projected]) -> Tensor:
        attentions = (self.graph_attention, self.title_attention)
        contexts = [
            module.expected(state, source) for module, source in zip(attentions, sources, strict=True)
        ]
        return torch.cat(contexts, dim=-1)


class CopyOutput(nn.Module):
    r"""Words of the vocabulary, or entities of the graph (See et al. 2017; Koncel-Kedziorski et al. 2019, section 4.3).

    .. math::

        p_t = \sigma(W_p [h_t; c_t] + b_p), \qquad
        P(\text{word}) = (1 - p_t)\, \mathrm{softmax}(W_o [h_t; c_t] + b_o), \qquad
        P(\text{entity } j) = p_t\, \mathrm{softmax}_j((W_c [h_t; c_t] + b_c)^\top v_j)

    with v the vertices of the entities.
    """

    def __init__(self, config: GraphWriterConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.dropout = nn.Dropout(config.dropout)
        self.words = nn.Linear(3 * size, config.vocab_size)
        self.copies = nn.Linear(3 * size, size)
        self.gate = nn.Linear(3 * size, 1)

    def forward(self, states: Tensor, contexts: Tensor, entities: Tensor, entity_mask: Tensor) -> Tensor:
        """Log-probabilities ``[B, T, V + K]`` of words and then entities, in the type of the weights.

        Of h ``[B, T, d]``, c ``[B, T, 2d]`` and v ``[B, K, d]``; where ``entity_mask``, bool ``[B, K]``, is False the
        probability is 0 and its logarithm finite.
        """
        read = self.dropout(torch.cat([states, contexts], dim=-1))
        gate = self.gate(read)
        gate = gate.to(torch.promote_types(gate.dtype, torch.float32))
        words = masked_log_softmax(self.words(read), None) + F.logsigmoid(-gate)
        copies = masked_log_softmax(self.copies(read) @ entities.mT, entity_mask[:, None]) + F.logsigmoid(
            gate
        )
        dtype = self.gate.weight.dtype  # not that of autocast, in which a sum over tokens has too few digits
        return torch.cat([words, copies], dim=-1).clamp_min(torch.finfo(dtype).min).to(dtype)
