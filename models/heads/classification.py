"""Networks with a label a row: one class, several, the best of some choices, or numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
from torch import Tensor, nn
from transformers import PreTrainedModel

from probattn.distributions import SmoothedCategorical
from probattn.models.hosts.convert import conversion
from probattn.models.hosts.hosting import add_scale, scale_of
from probattn.models.hosts.saving import give_exits
from probattn.models.program import Batch, Block, HeadProgram, Link, check_classes, read_logits, rows_of
from probattn.sites.observation import ObservationNoise, ObservationScale, ObservedNoise


class Classifier(HeadProgram):
    r"""A host network with an observed label: :math:`y_i \sim \mathrm{Categorical}(\mathrm{softmax}(f(x_i, S_i)))`.

    A ``PyroModule``, so that ``pyro.infer.SVI`` finds the host's parameters too. One call announces the plate
    ``"data"``, the host's attention sites (if it was converted) and the site ``"label"``; without labels in the
    batch the label is a value to predict. Labels are int64 ``[B]`` in 0..C-1, predictions logits ``[B, C]``.

    Args:
        net: a network whose output has ``logits`` ``[B, C]`` (any Hugging Face sequence or image classifier), or is
            that tensor.
        num_data: size N of the training set, to which likelihood and KL are scaled; None for the batch.
        label_name: key of the labels in a batch.
        label_smoothing: share of the label that goes to all classes alike, in [0, 1), while training; the likelihood
            is then :class:`~probattn.distributions.SmoothedCategorical`.

    Raises:
        ValueError: ``num_data`` below 1, ``label_smoothing`` outside [0, 1), or logits or labels that do not fit.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> model = Classifier(BertForSequenceClassification(config)).eval()
        >>> model({"input_ids": torch.ones(3, 4, dtype=torch.long)}).shape
        torch.Size([3, 2])
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        num_data: int | None = None,
        label_name: str = "labels",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(net, num_data=num_data, label_name=label_name)
        if not 0 <= label_smoothing < 1:
            owner = type(self).__name__
            raise ValueError(f"{owner}.label_smoothing: expected a number in [0, 1), got {label_smoothing}")
        self.label_smoothing = label_smoothing

    def read(self, output: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Logits ``[B, C]`` of two classes or more."""
        logits = super().read(output, inputs)
        if logits.shape[1] < 2:
            raise ValueError(
                f"{type(self).__name__}: expected a network of two classes or more, got logits {list(logits.shape)}: a "
                "single output is regression; use probattn.models.Regressor, or load it with num_labels=2 or more"
            )
        return logits

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """The site ``"label"``."""
        label = None if labels is None else labels[self.label_name]
        if label is not None:
            check_classes(self, "labels", label, prediction.shape[:1], prediction.shape[1])
        law: Any = dist.Categorical(logits=prediction.float())
        if self.training and self.label_smoothing and label is not None:
            law = SmoothedCategorical(prediction.float(), self.label_smoothing)
        pyro.sample("label", law, obs=label, infer={"prediction": label is None})


class MultiLabelClassifier(HeadProgram):
    r"""A host network with any number of labels: :math:`y_{ic} \sim \mathrm{Bernoulli}(\sigma(f(x_i, S_i)_c))`.

    Labels are 0 or 1, ``[B, C]`` of any type, predictions logits ``[B, C]``; the site ``"label"`` is one event a row.

    Args:
        net: a network whose output has ``logits`` ``[B, C]``, or is that tensor.
        num_data: size N of the training set. Default: the batch is the data.
        label_name: key of the labels in a batch.

    Raises:
        ValueError: ``num_data`` below 1; of a call, logits or labels of another shape, or labels other than 0 and 1.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> class Net(nn.Module):
        ...     def forward(self, x):
        ...         return x
        >>> MultiLabelClassifier(Net())({"x": torch.zeros(2, 3)}).shape
        torch.Size([2, 3])
    """

    link: ClassVar[Link] = "sigmoid"
    soft: ClassVar[bool] = False
    """Whether labels may lie between 0 and 1 too: shares of labels that are 1."""

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """The site ``"label"``, one event a row."""
        label = None if labels is None else labels[self.label_name]
        if label is not None:
            right = (label >= 0) & (label <= 1) if self.soft else (label == 0) | (label == 1)
            if label.shape != prediction.shape or not bool(right.all()):
                expected = "from 0 to 1" if self.soft else "0 or 1"
                raise ValueError(
                    f"{type(self).__name__}: expected labels {expected} {list(prediction.shape)}, got {label.dtype} "
                    f"{list(label.shape)}"
                    + ("" if label.shape != prediction.shape else " with other numbers")
                    + "; give one number for each class of a row"
                )
            label = label.float()
        law = dist.Bernoulli(logits=prediction.float(), validate_args=False if self.soft else None)
        pyro.sample("label", law.to_event(1), obs=label, infer={"prediction": label is None})


class MultipleChoice(Classifier):
    r"""A host network that scores K choices.

    .. math:: y_i \sim \mathrm{Categorical}(\mathrm{softmax}_k f(x_{ik}, S_{ik}))

    Inputs are ``[B, K, ...]``, labels int64 ``[B]`` in 0..K-1, predictions logits ``[B, K]``. The network runs
    ``B * K`` rows; its attention sites stand in a plate ``"choices"`` of that many, ``"label"`` in ``"data"``.

    Args:
        net: a network whose output has ``logits`` ``[B, K]`` (AutoModelForMultipleChoice), or is that tensor.
        num_data: size N of the training set. Default: the batch is the data.
        label_name: key of the labels in a batch.

    Raises:
        ValueError: ``num_data`` below 1; of a call, inputs, logits or labels that do not fit.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertForMultipleChoice
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> model = MultipleChoice(BertForMultipleChoice(config)).eval()
        >>> model({"input_ids": torch.ones(3, 4, 5, dtype=torch.long)}).shape
        torch.Size([3, 4])
    """

    def attention_plate(self, data: Block, inputs: Batch) -> Block:
        """The plate of all choices of all rows."""
        first = next(iter(inputs.values()))
        if first.dim() < 2:
            owner = type(self).__name__
            raise ValueError(f"{owner}: expected inputs [B, K, ...] of K choices, got {list(first.shape)}")
        rows, choices = first.shape[:2]
        return self.plate("choices", rows * choices, first.device, each=choices)

    def read(self, output: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Logits ``[B, K]``."""
        shape = next(iter(inputs.values())).shape[:2]
        return read_logits(self, output, tuple(shape), "load it with AutoModelForMultipleChoice")


class Regressor(HeadProgram):
    r"""A host network with observed numbers: :math:`y_{id} = f(x_i, S_i)_d + \sigma_d \epsilon_{id}`.

    Labels are numbers ``[B, D]``, or ``[B]`` for D = 1, predictions ``[B, D]`` in units of y. The site ``"label"`` is
    one event a row. The scale :math:`\sigma` is learned with a learning rate of its own (1e-2); it is a parameter of
    the network's submodule ``probattn``, which is saved and loaded with the network's sites.

    Args:
        net: a network whose output has ``logits`` ``[B, D]`` (``num_labels=D``), or is that tensor.
        noise: law of :math:`\epsilon`, and the first scale. Default: the network's, or normal with scale 1.
        num_data: size N of the training set. Default: the batch is the data.
        label_name: key of the labels in a batch.

    Raises:
        ValueError: ``num_data`` below 1; noise other than the network's; of a call, shapes or labels that do not fit.

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
            size = int(getattr(getattr(net, "config", None), "num_labels", 1))
            add_scale(net, noise or ObservationNoise(), size)
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
        size = len(self.scale.log_scale)
        return read_logits(self, output, (rows_of(inputs), size), f"load it with num_labels={size}")

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
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
