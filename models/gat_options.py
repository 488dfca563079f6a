"""Options of the graph attention network, which recipes read without torch-geometric."""

from __future__ import annotations

from dataclasses import dataclass

from probattn.options import Count, Dropout, NonNegative, Options


@dataclass(frozen=True)
class GATOptions(Options):
    """Sizes and regularisation of the network (Velickovic et al. 2018, section 3.3, transductive learning).

    Args:
        heads: heads of the hidden layer, concatenated.
        features: features of a hidden head.
        output_heads: heads of the output layer, averaged; 1 for Cora and Citeseer, 8 for Pubmed in the paper.
        dropout: of both layers' inputs.
        attention_dropout: of the attention weights, latent ones too: each node sees a sample of its neighbours.
        negative_slope: of the leaky ReLU in the scores.

    Raises:
        ValueError: a size below 1 or a share outside [0, 1).
    """

    heads: Count = 8
    features: Count = 8
    output_heads: Count = 1
    dropout: Dropout = 0.6
    attention_dropout: Dropout = 0.6
    negative_slope: NonNegative = 0.2
