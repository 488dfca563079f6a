"""Sizes of MCAN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probattn.checks import check_integer
from probattn.models.lstm import OwnConfig

PAPER_ANSWERS = 3129
"""Answers to VQA-v2 that the papers' networks choose between."""


class McanConfig(OwnConfig):
    """Sizes of a network that answers a question about an image (Yu et al., CVPR 2019).

    The defaults are those of the papers' network: four encoder-decoder layers (Zhang et al. 2021, appendix A.3), other
    sizes as Yu et al. have them.

    Args:
        vocab_size: words of questions, padding (number 0) included.
        embedding_size: of a word; 300 is that of GloVe's vectors.
        hidden_size: d, of words and regions, a multiple of ``num_attention_heads``.
        num_hidden_layers: L, of the encoder and of the decoder.
        num_attention_heads: of every attention call in these layers.
        intermediate_size: hidden units of a feed-forward layer.
        fused_size: of what question and image are fused to.
        region_size: F, the feature dimension of a region.
        dropout: share that is dropped in training, of attention weights, of the output of each layer and within
            feed-forward layers, in [0, 1). Latent weights have none.
        grid_channels: of the convolutions that make an image's regions from its pixels, each of which halves height
            and width, the last with F channels; None for regions that are given.
        image_size: height and width of an image in pixels, with ``grid_channels``.
        glimpses: attention maps of each attentional reduction.
        latent_reduction: whether the reductions go through attention methods too; in the papers the attention within
            the layers does.
        **kwargs: the rest is for ``PretrainedConfig``: ``num_labels``, C answers, is 3129 if neither it nor
            ``id2label`` is given.

    Raises:
        ValueError: a size below 1, one that does not fit the heads or the grid, or a dropout outside [0, 1).

    Example:
        >>> config = McanConfig(region_size=128, grid_channels=(32, 64, 128), image_size=64)
        >>> config.num_hidden_layers, config.grid_size
        (4, 8)
    """

    model_type = "probattn_mcan"

    def __init__(
        self,
        *,
        vocab_size: int = 20_000,
        embedding_size: int = 300,
        hidden_size: int = 512,
        num_hidden_layers: int = 4,
        num_attention_heads: int = 8,
        intermediate_size: int = 2048,
        fused_size: int = 1024,
        region_size: int = 2048,
        dropout: float = 0.1,
        grid_channels: Sequence[int] | None = None,
        image_size: int = 64,
        glimpses: int = 1,
        latent_reduction: bool = False,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.fused_size = fused_size
        self.region_size = region_size
        self.dropout = dropout
        self.grid_channels = None if grid_channels is None else list(grid_channels)
        self.image_size = image_size
        self.glimpses = glimpses
        self.latent_reduction = latent_reduction
        self._check_all()
        answers = {} if "id2label" in kwargs else {"num_labels": PAPER_ANSWERS}
        super().__init__(**answers | kwargs)

    @property
    def grid_size(self) -> int | None:
        """Height and width of the grid that the convolutions make; None for regions that are given."""
        return None if self.grid_channels is None else self.image_size >> len(self.grid_channels)

    def _check_all(self) -> None:
        others = ("grid_channels", "dropout", "latent_reduction")
        self._check(
            [name for name in vars(self) if name not in others],
            shares=("dropout",),
            flags=("latent_reduction",),
        )
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
