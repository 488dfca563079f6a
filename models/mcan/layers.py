"""Sizes of MCAN, and its layers: attention of words and regions, their reduction, and regions of an image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from probattn.checks import check_integer
from probattn.models.layers import (
    Attended,
    OwnAttention,
    OwnConfig,
    ProjectedAttention,
    additive_mask,
    eager_attention_forward,
)
from probattn.options import Count, Dropout

PAPER_ANSWERS = 3129
"""Answers to VQA-v2 that the papers' networks choose between."""


class McanConfig(OwnConfig):
    """Sizes of a network that answers a question about an image (Yu et al., CVPR 2019).

    The defaults are those of Zhang et al. (2021a, appendix A.3): four layers in encoder and decoder.

    Args:
        vocab_size: number of words of questions, padding (number 0) included.
        embedding_size: size of a word's embedding; 300 fits GloVe's vectors.
        hidden_size: size d of the states of words and regions, a multiple of ``num_attention_heads``.
        num_hidden_layers: number of layers of the encoder and of the decoder.
        num_attention_heads: number H of heads of every attention call in these layers.
        intermediate_size: hidden units of a feed-forward layer.
        fused_size: size of the vector to which question and image are fused.
        region_size: number F of features of a region.
        dropout: dropout rate of attention weights, of the output of each layer and within feed-forward layers, in
            [0, 1); not applied to latent weights.
        grid_channels: channels of the convolutions that compute regions from pixels; each convolution halves height and
            width, and the last has F channels. None if region features are the input.
        image_size: height and width of an image in pixels; only used with ``grid_channels``.
        glimpses: number g of weighted means that each attentional reduction computes.
        latent_reduction: whether conversion also replaces the attention of the attentional reductions; in the papers it
            only replaces the attention within layers.
        **kwargs: options of ``PretrainedConfig``; ``num_labels``, the number C of answers, is 3129 by default.

    Raises:
        ValueError: a size below 1, a size that does not fit the heads or the grid, or a dropout rate outside [0, 1).

    Example:
        >>> config = McanConfig(region_size=128, grid_channels=(32, 64, 128), image_size=64)
        >>> config.num_hidden_layers, config.grid_size
        (4, 8)
    """

    model_type = "probattn_mcan"

    def __init__(
        self,
        *,
        vocab_size: Count = 20_000,
        embedding_size: Count = 300,
        hidden_size: Count = 512,
        num_hidden_layers: Count = 4,
        num_attention_heads: Count = 8,
        intermediate_size: Count = 2048,
        fused_size: Count = 1024,
        region_size: Count = 2048,
        dropout: Dropout = 0.1,
        grid_channels: Sequence[int] | None = None,
        image_size: Count = 64,
        glimpses: Count = 1,
        latent_reduction: bool = False,
        **kwargs: Any,
    ) -> None:
        self._take(McanConfig.__init__, locals())
        self.grid_channels = None if grid_channels is None else list(grid_channels)
        self._check_grid()
        answers = {} if "id2label" in kwargs else {"num_labels": PAPER_ANSWERS}
        super().__init__(**answers | kwargs)

    @property
    def grid_size(self) -> int | None:
        """Height and width of the grid of regions that the convolutions compute; None without ``grid_channels``."""
        return None if self.grid_channels is None else self.image_size >> len(self.grid_channels)

    def _check_grid(self) -> None:
        channels = self.grid_channels
        for index, value in enumerate(channels or ()):
            check_integer("McanConfig", f"grid_channels[{index}]", value, minimum=1)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"McanConfig.hidden_size: expected a multiple of the heads ({self.num_attention_heads}), got "
                f"{self.hidden_size}"
            )
        if channels is None:
            return
        if not channels or channels[-1] != self.region_size:
            raise ValueError(
                f"McanConfig.grid_channels: expected one or more, the last {self.region_size} (region_size), got "
                f"{channels}"
            )
        if self.image_size % 2 ** len(channels):
            raise ValueError(
                f"McanConfig.image_size: expected a multiple of {2 ** len(channels)} for {len(channels)} halvings, "
                f"got {self.image_size}"
            )


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
    ) -> Attended:
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

    def forward(self, states: Tensor, mask: PaddingMask, *, maps: bool = False) -> Attended:
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
        size, inner, dropout = config.hidden_size, config.intermediate_size, nn.Dropout(config.dropout)
        super().__init__(nn.Linear(size, inner), nn.ReLU(), dropout, nn.Linear(inner, size))


class AddNorm(nn.Module):
    """A residual connection around a layer, with dropout of the layer's output, and layer normalisation after it."""

    def __init__(self, config: McanConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.LayerNorm(config.hidden_size)

    def forward(self, states: Tensor, output: Tensor) -> Tensor:
        """``[B, T, d]``, of the layer's input and output."""
        return self.norm(states + self.dropout(output))


class CoAttentionLayer(nn.Module):
    """States attend to themselves, and ``guided`` also to words: units SA and SGA (Yu et al. 2019, figure 2)."""

    def __init__(self, config: McanConfig, *, guided: bool) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(config)
        self.guided = MultiHeadAttention(config) if guided else None
        self.feed_forward = FeedForward(config)
        self.add_norm = nn.ModuleList(AddNorm(config) for _ in range(2 + guided))

    def forward(
        self, states: Tensor, words: Tensor, mask: PaddingMask, word_mask: PaddingMask, *, maps: bool
    ) -> tuple[Tensor, list[Tensor | None]]:
        """States ``[B, T, d]`` after the layer, and the maps of its attention calls ``[B, H, T, ...]``."""
        first, *others = self.add_norm
        output, weights = self.attention(states, states, mask, mask, maps=maps)
        states, all_weights = first(states, output), [weights]
        if self.guided is not None:
            output, weights = self.guided(states, words, mask, word_mask, maps=maps)
            states = others[0](states, output)
            all_weights.append(weights)
        return others[-1](states, self.feed_forward(states)), all_weights


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
        self.encoder = nn.ModuleList(CoAttentionLayer(config, guided=False) for _ in layers)
        self.decoder = nn.ModuleList(CoAttentionLayer(config, guided=True) for _ in layers)

    def forward(
        self, words: Tensor, regions: Tensor, word_mask: PaddingMask, mask: PaddingMask, *, maps: bool = False
    ) -> CoAttended:
        """Words ``[B, T, d]`` and regions ``[B, R, d]`` after all layers; ``maps``: whether maps are read."""
        of_words, maps_of_regions = [], []
        for layer in self.encoder:
            words, word_maps = layer(words, words, word_mask, word_mask, maps=maps)
            of_words += word_maps
        for layer in self.decoder:
            regions, region_maps = layer(regions, words, mask, word_mask, maps=maps)
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
            convolution = nn.Conv2d(before, channels, 3, stride=2, padding=1)
            layers += [convolution, nn.GroupNorm(groups, channels), nn.ReLU()]
            before = channels
        self.convolutions = nn.Sequential(*layers)

    def forward(self, pixels: Tensor) -> Tensor:
        """Regions ``[B, R, F]``, row by row, of pixels ``[B, 3, H, W]`` in [-1, 1]."""
        grid: Tensor = self.convolutions(pixels).flatten(2).mT
        return F.layer_norm(grid, grid.shape[-1:])
