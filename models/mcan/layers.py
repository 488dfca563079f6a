"""Layers of words and of regions, and the convolutions that make regions of an image."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.models.mcan.attention import MultiHeadAttention
from probattn.models.mcan.configuration import McanConfig

GROUPS = 8
"""Groups of channels that are normalised together, or as many as divide them."""


class FeedForward(nn.Sequential):
    """Two maps with a ReLU between them."""

    def __init__(self, config: McanConfig) -> None:
        size, inner = config.hidden_size, config.intermediate_size
        super().__init__(
            nn.Linear(size, inner), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(inner, size)
        )


class Added(nn.Module):
    """What a layer gives is added to what it was given, and the sum is normalised.

    Args:
        config: sizes.
    """

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.hidden_size)

    def forward(self, states: Tensor, new: Tensor) -> Tensor:
        """``[B, T, d]``."""
        added: Tensor = self.norm(states + self.dropout(new))
        return added


class SelfAttentionLayer(nn.Module):
    """Words attend to words: a unit SA (Yu et al. 2019, figure 2).

    Args:
        config: sizes.
    """

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.added = nn.ModuleList(Added(config) for _ in range(2))

    def forward(self, words: Tensor, real: Tensor, *, maps: bool = False) -> tuple[Tensor, Tensor | None]:
        """Words ``[B, T, d]`` after the layer, and the weights ``[B, H, T, T]``."""
        first, second = self.added
        new, weights = self.attention(words, words, real, real, maps=maps)
        words = first(words, new)
        return second(words, self.feed_forward(words)), weights


class GuidedAttentionLayer(nn.Module):
    """Regions attend to regions and then to words: a unit SGA (Yu et al. 2019, figure 2).

    Args:
        config: sizes.
    """

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config)
        self.guided = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.added = nn.ModuleList(Added(config) for _ in range(3))

    def forward(
        self, regions: Tensor, words: Tensor, real: Tensor, word_real: Tensor, *, maps: bool = False
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Regions ``[B, R, d]`` after the layer, and the weights ``[B, H, R, R]`` and ``[B, H, R, T]``."""
        first, second, third = self.added
        new, own = self.attention(regions, regions, real, real, maps=maps)
        regions = first(regions, new)
        new, guided = self.guided(regions, words, real, word_real, maps=maps)
        regions = second(regions, new)
        return third(regions, self.feed_forward(regions)), own, guided


class CoAttended(NamedTuple):
    """Words and regions after all layers, and the weights of each layer."""

    words: Tensor
    regions: Tensor
    word_maps: tuple[Tensor | None, ...]
    region_maps: tuple[Tensor | None, ...]
    guided_maps: tuple[Tensor | None, ...]


class CoAttention(nn.Module):
    """Encoder-decoder of co-attention layers (Yu et al. 2019, section 3.2).

    All layers of the encoder come first; every layer of the decoder is guided by the encoder's last words.

    Args:
        config: sizes.
    """

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        layers = range(config.num_hidden_layers)
        self.encoder = nn.ModuleList(SelfAttentionLayer(config) for _ in layers)
        self.decoder = nn.ModuleList(GuidedAttentionLayer(config) for _ in layers)

    def forward(
        self, words: Tensor, regions: Tensor, word_real: Tensor, real: Tensor, *, maps: bool = False
    ) -> CoAttended:
        """Runs the layers.

        Args:
            words: ``[B, T, d]``.
            regions: ``[B, R, d]``.
            word_real: bool ``[B, T]``, False at padding.
            real: bool ``[B, R]``, likewise.
            maps: whether the weights are wanted.
        """
        of_words, of_regions, guided = [], [], []
        for layer in self.encoder:
            words, weights = layer(words, word_real, maps=maps)
            of_words.append(weights)
        for layer in self.decoder:
            regions, own, other = layer(regions, words, real, word_real, maps=maps)
            of_regions.append(own)
            guided.append(other)
        return CoAttended(words, regions, tuple(of_words), tuple(of_regions), tuple(guided))


class ImageGrid(nn.Module):
    """Regions of an image on a grid, by convolutions with stride 2, group normalisation and ReLU.

    A region's numbers are normalised to mean 0 and variance 1, so that noise of a given variance is as strong in every
    network.

    Args:
        config: sizes, with ``grid_channels``.
    """

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        before = 3
        for channels in config.grid_channels or ():
            groups = next(count for count in range(GROUPS, 0, -1) if channels % count == 0)
            parts += [
                nn.Conv2d(before, channels, 3, stride=2, padding=1),
                nn.GroupNorm(groups, channels),
                nn.ReLU(),
            ]
            before = channels
        self.convolutions = nn.Sequential(*parts)

    def forward(self, pixels: Tensor) -> Tensor:
        """Regions ``[B, R, F]``, row by row, of pixels ``[B, 3, H, W]`` in [-1, 1]."""
        grid: Tensor = self.convolutions(pixels).flatten(2).mT
        return F.layer_norm(grid, grid.shape[-1:])


def real_places(mask: Tensor | None, states: Tensor) -> Tensor:
    """bool ``[B, S]`` of a mask, True everywhere without one."""
    return states.new_ones(states.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
