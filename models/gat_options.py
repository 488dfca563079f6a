"""Options of the graph attention network, which recipes read without torch-geometric."""

from __future__ import annotations

from dataclasses import dataclass

from probattn.options import Count, Dropout, NonNegative, Options


@dataclass(frozen=True)
class GATOptions(Options):
    """Sizes and dropout rates of the graph attention network (Velickovic et al. 2018, section 3.3, transductive).

    Args:
        heads: attention heads of the hidden layer, whose outputs are concatenated.
        features: output features of each head of the hidden layer.
        output_heads: attention heads of the output layer, averaged; in the paper 1, or 8 for Pubmed.
        dropout: dropout rate of the inputs of both layers.
        attention_dropout: dropout of attention weights, latent ones too: each node sees a random subset of neighbours.
        negative_slope: negative slope of the leaky ReLU in the attention scores.

    Raises:
        ValueError: a size below 1 or a share outside [0, 1).
    """

    heads: Count = 8
    features: Count = 8
    output_heads: Count = 1
    dropout: Dropout = 0.6
    attention_dropout: Dropout = 0.6
    negative_slope: NonNegative = 0.2
