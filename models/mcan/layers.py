"""Layers of words and of regions, and the convolutions that make regions of an image."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from probattn.models.mcan.attention import MultiHeadAttention, PaddingMask
from probattn.models.mcan.configuration import McanConfig

GROUPS = 8
"""Groups of channels that are normalised together, or as many as divide them."""


class FeedForward(nn.Sequential):
    """Two linear maps with a ReLU between them."""

    def __init__(self, config: McanConfig) -> None:
        size, inner = config.hidden_size, config.intermediate_size
        super().__init__(
            nn.Linear(size, inner), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(inner, size)
        )


class AddNorm(nn.Module):
    """A residual connection around a layer, with dropout of the layer's output, and layer normalisation after it.

    Args:
        config: sizes.
    """

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.hidden_size)

    def forward(self, states: Tensor, output: Tensor) -> Tensor:
        """``[B, T, d]``, of the layer's input and output."""
        normalised: Tensor = self.norm(states + self.dropout(output))
        return normalised


class SelfAttentionLayer(nn.Module):
    """Words attend to words: a unit SA (Yu et al. 2019, figure 2).

    Args:
        config: sizes.
    """

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)
        self.add_norm = nn.ModuleList(AddNorm(config) for _ in range(2))

    def forward(
        self, words: Tensor, mask: PaddingMask, *, maps: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Words ``[B, T, d]`` after the layer, and the map ``[B, H, T, T]``."""
        first, second = self.add_norm
        output, weights = self.attention(words, words, mask, mask, maps=maps)
        words = first(words, output)
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
        self.add_norm = nn.ModuleList(AddNorm(config) for _ in range(3))

    def forward(
        self, regions: Tensor, words: Tensor, mask: PaddingMask, word_mask: PaddingMask, *, maps: bool = False
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Regions ``[B, R, d]`` after the layer, and the maps ``[B, H, R, R]`` and ``[B, H, R, T]``."""
        first, second, third = self.add_norm
        output, weights = self.attention(regions, regions, mask, mask, maps=maps)
        regions = first(regions, output)
        output, guided = self.guided(regions, words, mask, word_mask, maps=maps)
        regions = second(regions, output)
        return third(regions, self.feed_forward(regions)), weights, guided


class CoAttended(NamedTuple):
    """Words and regions after all layers, and the attention maps of each layer."""

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
        self, words: Tensor, regions: Tensor, word_mask: PaddingMask, mask: PaddingMask, *, maps: bool = False
    ) -> CoAttended:
        """Runs the layers.

        Args:
            words: ``[B, T, d]``.
            regions: ``[B, R, d]``.
            word_mask: of words.
            mask: of regions.
            maps: whether the attention maps are wanted.
        """
        of_words, of_regions, guided = [], [], []
        for layer in self.encoder:
            words, weights = layer(words, word_mask, maps=maps)
            of_words.append(weights)
        for layer in self.decoder:
            regions, of_self, of_words_guided = layer(regions, words, mask, word_mask, maps=maps)
            of_regions.append(of_self)
            guided.append(of_words_guided)
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
        layers: list[nn.Module] = []
        before = 3
        for channels in config.grid_channels or ():
            groups = next(count for count in range(GROUPS, 0, -1) if channels % count == 0)
            layers += [
                nn.Conv2d(before, channels, 3, stride=2, padding=1),
                nn.GroupNorm(groups, channels),
                nn.ReLU(),
            ]
            before = channels
        self.convolutions = nn.Sequential(*layers)

    def forward(self, pixels: Tensor) -> Tensor:
        """Regions ``[B, R, F]``, row by row, of pixels ``[B, 3, H, W]`` in [-1, 1]."""
        grid: Tensor = self.convolutions(pixels).flatten(2).mT
        return F.layer_norm(grid, grid.shape[-1:])
