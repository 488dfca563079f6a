"""Networks that predict numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyro
from torch import Tensor, nn
from transformers import PreTrainedModel

from probattn.models.hosts.convert import conversion
from probattn.models.hosts.hosting import add_scale, scale_of
from probattn.models.hosts.saving import give_exits
from probattn.models.program import HeadProgram, Link, read_logits
from probattn.sites.observation import ObservationNoise, ObservationScale, ObservedNoise


class Regressor(HeadProgram):
    r"""A host network with observed numbers: :math:`y_{id} = f(x_i, S_i)_d + \sigma_d \epsilon_{id}`.

    Labels are numbers ``[B, D]``, or ``[B]`` for D = 1, predictions ``[B, D]`` in units of y. The site ``"label"`` is
    one event a row. The scale :math:`\sigma` is learned with a learning rate of its own (1e-2); it is a parameter of
    the network's submodule ``probattn``, which is saved and loaded with the network's sites.

    Args:
        net: a network whose output has ``logits`` ``[B, D]`` (``num_labels=D``), or is that tensor.
        noise: law of :math:`\epsilon`, and the first scale. Default: that of the network, if it has one, or normal
            with scale 1.
        num_data: size N of the training set. Default: the batch is the data.
        label_name: key of the labels in a batch.

    Raises:
        ValueError: ``num_data`` below 1; noise other than that of the network; of a call, predictions or labels of
            another shape, or labels that are not finite.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> model = Regressor(BertForSequenceClassification(BertConfig(num_labels=1, **sizes))).eval()
        >>> model({"input_ids": torch.ones(3, 4, dtype=torch.long)}).shape
        torch.Size([3, 1])
    """

    link: ClassVar[Link] = "identity"

    def __init__(
        self,
        net: nn.Module,
        *,
        noise: ObservationNoise | None = None,
        num_data: int | None = None,
        label_name: str = "labels",
    ) -> None:
        super().__init__(net, num_data=num_data, label_name=label_name)
        present = scale_of(net)
        if present is None:
            add_scale(
                net, noise or ObservationNoise(), int(getattr(getattr(net, "config", None), "num_labels", 1))
            )
            if isinstance(net, PreTrainedModel) and conversion(net) is None:
                give_exits(net, None)
        elif noise is not None and noise != present.noise:
            raise ValueError(
                f"{type(self).__name__}: expected the noise that the network has, {present.noise}, got {noise}; leave "
                "it out, or delete net.probattn"
            )

    @property
    def scale(self) -> ObservationScale:
        """The learned scale, and the law of the noise."""
        scale = scale_of(self.net)
        assert scale is not None
        return scale

    @property
    def noise(self) -> ObservedNoise:
        """Law and present scale of an observed number around its prediction."""
        return self.scale.learned()

    def read(self, output: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Predictions ``[B, D]``."""
        rows, size = len(next(iter(inputs.values()))), len(self.scale.log_scale)
        return read_logits(self, output, (rows, size), f"load it with num_labels={size}")

    def observe(
        self, prediction: Tensor, labels: Mapping[str, Tensor] | None, inputs: Mapping[str, Tensor]
    ) -> None:
        """The site ``"label"``, one event a row."""
        label = None if labels is None else labels[self.label_name]
        if label is not None:
            if label.dim() == 1:
                label = label.unsqueeze(-1)
            if label.shape != prediction.shape or not bool(label.isfinite().all()):
                raise ValueError(
                    f"{type(self).__name__}: expected finite numbers {list(prediction.shape)} as labels, got "
                    f"{label.dtype} {list(label.shape)}"
                )
            label = label.to(prediction.dtype).float()
        law = self.scale(prediction.float()).to_event(1)
        pyro.sample("label", law, obs=label, infer={"prediction": label is None})
