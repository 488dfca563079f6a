"""MCAN in the shape of transformers' networks, and as a Pyro program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForVisualQuestionAnswering
from transformers.utils.generic import ModelOutput

from probattn.models.heads.classification import MultiLabelClassifier
from probattn.models.layers import OwnPreTrainedModel, all_maps, check_mask, read_padded, valid_positions
from probattn.models.mcan.layers import (
    AttentionalReduction,
    CoAttended,
    CoAttention,
    ImageGrid,
    McanConfig,
    PaddingMask,
)
from probattn.models.program import Program


class VisualQuestionProgram(MultiLabelClassifier):
    r"""Program of a network that answers questions about images, trained on a score of each answer.

    The score :math:`s_{ic} \in [0, 1]` of answer c to question i is its accuracy among the annotators' answers. With
    the logits f and the attention weights S, the log density is the expectation of a Bernoulli log density over a label
    that is 1 with probability :math:`s_{ic}` (Yu et al. 2019, section 3.3, after Teney et al. 2018):

    .. math:: \log p(s_i \mid x_i, S_i) = \sum_c s_{ic} \log \sigma(f_c) + (1 - s_{ic}) \log(1 - \sigma(f_c))

    Args:
        net: a network whose output has logits ``[B, C]``, such as :class:`probattn.models.McanForQuestionAnswering`.
        num_data: number of training questions, to which log densities of a batch are scaled. Default: the batch size.
        label_name: key of the scores in a batch, ``[B, C]``.
        positive_weights: as in :class:`probattn.models.MultiLabelClassifier`.

    Raises:
        ValueError: ``num_data`` below 1; in a call, logits or scores of another shape, or scores outside [0, 1].

    Example:
        >>> from probattn.models import McanConfig, McanForQuestionAnswering
        >>> config = McanConfig(vocab_size=9, num_labels=3, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        >>> net = McanForQuestionAnswering(config)
        >>> VisualQuestionProgram(net).eval()(net.dry_inputs()).shape
        torch.Size([2, 3])
    """

    advice = "take probattn.models.McanForQuestionAnswering"


DRY_WORDS, DRY_REGIONS = 7, 5
"""Lengths of the dry run where regions are given; they differ, so that guided attention does not look like self."""


@dataclass
class McanOutput(ModelOutput):
    """Output of :class:`McanForQuestionAnswering`; attention weights are None unless requested.

    Attributes:
        loss: binary cross-entropy in nats, summed over answers, mean over the batch; None without labels.
        logits: logits of the answers, ``[B, C]``.
        encoder_attentions: weights of words for words, for each layer ``[B, H, T, T]``.
        decoder_attentions: weights of regions for regions, for each layer ``[B, H, R, R]``.
        cross_attentions: weights of words for regions, for each layer ``[B, H, R, T]``.
        word_weights: weights of words in the reduction of the question, ``[B, g, T]`` with g ``glimpses``.
        region_weights: weights of regions in the reduction of the image, ``[B, g, R]``.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None
    decoder_attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    word_weights: Tensor | None = None
    region_weights: Tensor | None = None


class McanForQuestionAnswering(OwnPreTrainedModel, auto=[AutoModel, AutoModelForVisualQuestionAnswering]):
    r"""Deep modular co-attention network, which answers questions about images (Yu et al., CVPR 2019).

    An LSTM reads the T words of each of B questions. In the encoder words attend to words; in the decoder R regions of
    the image, with F features each, attend to regions and to words, with H heads. An attentional reduction (a weighted
    mean) makes one vector of the words, :math:`\tilde x`, and one of the regions, :math:`\tilde y`, and

    .. math:: z = \mathrm{LayerNorm}(W_x^\top \tilde x + W_y^\top \tilde y), \qquad p = \sigma(W_s^\top z)

    (Eq. 9 to 11) with the probabilities p of C answers, which need not sum to 1: a question may have several right
    answers. The order of the regions has no effect.

    Args:
        config: sizes.

    Attributes:
        grid: the convolutions that compute regions from pixels; None if region features are the input.

    Example:
        >>> config = McanConfig(vocab_size=9, num_labels=3, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        >>> net = McanForQuestionAnswering(config).eval()
        >>> net(**net.dry_inputs()).logits.shape
        torch.Size([2, 3])
    """

    config_class = McanConfig
    base_model_prefix = "mcan"
    program_class: ClassVar[type[Program]] = VisualQuestionProgram

    def __init__(self, config: McanConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.embedding_size, config.pad_token_id)
        self.lstm = nn.LSTM(config.embedding_size, size, batch_first=True)
        self.grid = None if config.grid_channels is None else ImageGrid(config)
        self.project = nn.Linear(config.region_size, size)
        self.layers = CoAttention(config)
        self.question_reduction, self.image_reduction = (AttentionalReduction(config) for _ in range(2))
        self.norm = nn.LayerNorm(config.fused_size)
        self.classifier = nn.Linear(config.fused_size, int(config.num_labels or 0))
        self.post_init()

    def dry_inputs(self) -> dict[str, Tensor]:
        """Returns a small example batch: two rows, the second padded, whose numbers of words and regions differ."""
        config = self.config
        grid = config.grid_size
        length = DRY_WORDS + (grid is not None and grid**2 == DRY_WORDS)
        words = torch.arange(length) % max(1, config.vocab_size - 1) + min(1, config.vocab_size - 1)
        mask = torch.ones(2, length, dtype=torch.long)
        mask[1, -2:] = 0
        inputs = {"input_ids": words.repeat(2, 1), "attention_mask": mask}
        if grid is None:
            ramp = torch.linspace(-1, 1, 2 * DRY_REGIONS * config.region_size)
            inputs["region_features"] = ramp.view(2, DRY_REGIONS, -1).to(self.dtype)
            inputs["region_mask"] = torch.tensor([[1] * DRY_REGIONS, [1] * (DRY_REGIONS - 1) + [0]])
        else:
            ramp = torch.linspace(-1, 1, 6 * config.image_size**2)
            inputs["pixel_values"] = ramp.view(2, 3, *[config.image_size] * 2).to(self.dtype)
        return {name: value.to(self.device) for name, value in inputs.items()}

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        region_features: Tensor | None = None,
        region_mask: Tensor | None = None,
        pixel_values: Tensor | None = None,
        *,
        feature_noise: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        **_: Any,
    ) -> McanOutput:
        """Computes the logits of the answers.

        Args:
            input_ids: words of the questions, int64 ``[B, T]``.
            attention_mask: ``[B, T]``, 0 at padding. Default: 0 at the padding token.
            region_features: features of regions, ``[B, R, F]``; required unless the network has a grid.
            region_mask: ``[B, R]``, 0 at padding; None without padding.
            pixel_values: images, ``[B, 3, image_size, image_size]`` in [-1, 1]; required if the network has a grid.
            feature_noise: noise ``[B, R, F]`` that is added to the features of regions; None for no noise.
            labels: score of each answer, ``[B, C]`` in [0, 1], from which the loss is computed.
            output_attentions: whether to return attention weights; None for the configuration's value.

        Returns:
            Logits ``[B, C]`` and, if requested, loss and attention weights.

        Raises:
            ValueError: a missing input, shapes that do not fit, or a mask that is 0 in a whole row.
        """
        maps = bool(self.config.output_attentions if output_attentions is None else output_attentions)
        if input_ids is None:
            owner = type(self).__name__
            raise ValueError(f"{owner}: expected input_ids, the words of the questions, got none")
        regions = self._regions(region_features, pixel_values, feature_noise)
        self._check_mask("attention_mask", attention_mask, input_ids, "word")
        self._check_mask("region_mask", region_mask, regions, "region")
        if attention_mask is None:
            attention_mask = input_ids.ne(self.config.pad_token_id or 0)
        words, _last = read_padded(self.lstm, self.embed_tokens(input_ids), attention_mask)
        regions = self.project(regions)
        word_mask = PaddingMask.of(attention_mask.bool(), words.dtype)
        mask = PaddingMask.of(valid_positions(region_mask, regions), regions.dtype)
        attended: CoAttended = self.layers(words, regions, word_mask, mask, maps=maps)
        question, word_weights = self.question_reduction(attended.words, word_mask, maps=maps)
        image, region_weights = self.image_reduction(attended.regions, mask, maps=maps)
        logits = self.classifier(self.norm(question + image))
        loss = None
        if labels is not None:
            summed = F.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="sum")
            loss = summed / len(logits)
        if not maps:
            return McanOutput(loss, logits)
        reductions: Any = (None if one is None else one[:, :, 0] for one in (word_weights, region_weights))
        layers: Any = map(all_maps, (attended.word_maps, attended.region_maps, attended.guided_maps))
        return McanOutput(loss, logits, *layers, *reductions)

    def _regions(self, features: Tensor | None, pixels: Tensor | None, noise: Tensor | None) -> Tensor:
        """Features ``[B, R, F]``."""
        owner, name = type(self).__name__, "region_features" if self.grid is None else "pixel_values"
        inputs = features if self.grid is None else pixels
        if inputs is None:
            raise ValueError(f"{owner}: expected {name}, got none; give an image to each question")
        flat, size = self.grid is None, self.config.image_size
        shape = [*inputs.shape[:2], self.config.region_size] if flat else [len(inputs), 3, size, size]
        if list(inputs.shape) != shape:
            raise ValueError(f"{owner}: expected {name} {shape}, got {list(inputs.shape)}")
        regions: Tensor = inputs if self.grid is None else self.grid(inputs)
        if noise is not None and noise.shape != regions.shape:
            raise ValueError(
                f"{owner}: expected feature_noise {list(regions.shape)}, got {list(noise.shape)}"
            )
        return regions if noise is None else regions + noise

    def _check_mask(self, name: str, mask: Tensor | None, states: Tensor, what: str) -> None:
        """Raises ``ValueError`` unless a mask that is given fits ``[B, S, ...]`` and leaves something in every row."""
        if mask is None:
            return
        owner = type(self).__name__
        check_mask(owner, name, mask, states.shape[:2])
        some = mask.bool().any(dim=1)
        if not bool(some.all()):
            row = int((~some).nonzero()[0])
            raise ValueError(f"{owner}: expected a {what} in every row, got none in row {row}")
