"""Layers of MCAN: attention of words and regions, their reduction to vectors, and regions of an image."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.models.dot_product import (
    OwnAttention,
    ProjectedAttention,
    additive_mask,
    eager_attention_forward,
)
from probattn.models.mcan.configuration import McanConfig


class PaddingMask(NamedTuple):
    """Which words, or regions, are valid: bool ``[B, S]``, and the same as an additive key mask ``[B, 1, 1, S]``."""

    valid: Tensor
    additive: Tensor

    @classmethod
    def of(cls, valid: Tensor, dtype: torch.dtype) -> PaddingMask:
        """The mask of ``valid``, bool ``[B, S]``."""
        return cls(valid, additive_mask(valid, dtype)[:, None, None])


class MultiHeadAttention(ProjectedAttention):
    """Scaled dot-product attention of several heads with an output projection (Vaswani et al. 2017)."""

    def __init__(self, config: McanConfig) -> None:
        super().__init__(config, config.dropout)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, states: Tensor, others: Tensor, mask: PaddingMask, key_mask: PaddingMask, *, maps: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """States ``[B, T, d]`` after they attend to others ``[B, S, d]``, and the map, if ``maps`` are read."""
        output, weights = self.attend(states, others, key_mask.additive, mask.valid, output_attentions=maps)
        return self.output(output), weights


class AttentionalReduction(OwnAttention):
    """A question or an image as one vector, by dot products of v and ReLU(U x) (Yu et al. 2019, Eq. 9)."""

    def __init__(self, config: McanConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.key = nn.Linear(size, size)
        self.dropout = nn.Dropout(config.dropout)
        self.query = nn.Linear(size, config.glimpses, bias=False)
        self.output = nn.Linear(config.glimpses * size, config.fused_size)

    def forward(
        self, states: Tensor, mask: PaddingMask, *, maps: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """``[B, fused]`` of states ``[B, S, d]``, and the map ``[B, g, 1, S]``, if the implementation gives any."""
        # A copy: code that keeps the arguments of attention must not hold the parameter itself.
        queries = self.query.weight.to(states.dtype)[None, :, None].repeat(len(states), 1, 1, 1)
        attend = self.dot_product if self.config.latent_reduction else partial(eager_attention_forward, self)
        keys = self.dropout(torch.relu(self.key(states)))[:, None]  # [B, 1, S, d]
        output, weights = attend(queries, keys, states[:, None], mask.additive, output_attentions=maps)
        return self.output(output.flatten(1)), weights


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
    """A residual connection around a layer, with dropout of the layer's output, and layer normalisation after it."""

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.hidden_size)

    def forward(self, states: Tensor, output: Tensor) -> Tensor:
        """``[B, T, d]``, of the layer's input and output."""
        normalised: Tensor = self.norm(states + self.dropout(output))
        return normalised


class SelfAttentionLayer(nn.Module):
    """Words attend to words: a unit SA (Yu et al. 2019, figure 2)."""

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
    """Regions attend to regions and then to words: a unit SGA (Yu et al. 2019, figure 2)."""

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
    """Co-attention: the encoder's last words guide every layer of the decoder (Yu et al. 2019, section 3.2)."""

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        layers = range(config.num_hidden_layers)
        self.encoder = nn.ModuleList(SelfAttentionLayer(config) for _ in layers)
        self.decoder = nn.ModuleList(GuidedAttentionLayer(config) for _ in layers)

    def forward(
        self, words: Tensor, regions: Tensor, word_mask: PaddingMask, mask: PaddingMask, *, maps: bool = False
    ) -> CoAttended:
        """Words ``[B, T, d]`` and regions ``[B, R, d]`` after all layers; ``maps``: whether maps are read."""
        of_words, maps_of_regions = [], []
        for layer in self.encoder:
            words, weights = layer(words, word_mask, maps=maps)
            of_words.append(weights)
        for layer in self.decoder:
            regions, *region_maps = layer(regions, words, mask, word_mask, maps=maps)
            maps_of_regions.append(region_maps)
        return CoAttended(words, regions, tuple(of_words), *zip(*maps_of_regions, strict=True))


class ImageGrid(nn.Module):
    """Regions of an image by convolutions; normalised, so that noise of a variance is as strong in every network."""

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
