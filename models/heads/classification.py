"""Networks with a label a row: one class, several, the best of some choices, or numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import PreTrainedModel

from probattn.checks import shown
from probattn.distributions import SmoothedCategorical
from probattn.models.hosts.convert import conversion
from probattn.models.hosts.hosting import add_scale, scale_of
from probattn.models.hosts.saving import give_exits
from probattn.models.program import (
    Batch,
    Block,
    HeadProgram,
    Link,
    check_classes,
    read_logits,
    rows_of,
)
from probattn.sites.observation import ObservationNoise, ObservationScale, ObservedNoise

SOFT_TOLERANCE = 0.02
"""By how much the sum of a soft label may differ from 1: numbers may be rounded to two digits."""


class Classifier(HeadProgram):
    r"""A host network with an observed label: :math:`y_i \sim \mathrm{Categorical}(\mathrm{softmax}(f(x_i, S_i)))`.

    A ``PyroModule``, so that ``pyro.infer.SVI`` finds the host's parameters too. One call announces the plate
    ``"data"``, the host's attention sites (if it was converted) and the site ``"label"``; without labels in the
    batch the label is a value to predict. Labels are int64 ``[B]`` in 0..C-1, -100 where there is none, or soft labels
    ``[B, C]``: floats >= 0 that sum to 1 in a row (votes of annotators, a teacher's probabilities), NaN in a row
    without. Predictions are logits ``[B, C]``.

    Args:
        net: a network whose output has ``logits`` ``[B, C]`` (any Hugging Face sequence or image classifier), or is
            that tensor.
        num_data: size N of the training set, to which likelihood and KL are scaled; None for the batch.
        label_name: key of the labels in a batch.
        label_smoothing: share of the label that goes to all classes alike, in [0, 1), while training; the likelihood
            is then :class:`~probattn.distributions.SmoothedCategorical`, as it is with soft labels or weights.
        class_weights: of the log-likelihood of each class while training, ``[C]``, >= 0. Weights with mean 1 over the
            training labels, such as scikit-learn's ``compute_class_weight("balanced", ...)``, leave the balance of
            likelihood and KL as it is. They trade calibration for rare classes.

    Raises:
        ValueError: ``num_data`` below 1, ``label_smoothing`` or ``class_weights`` out of range, or logits or labels
            that do not fit.

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
        class_weights: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__(net, num_data=num_data, label_name=label_name)
        owner = type(self).__name__
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"{owner}.label_smoothing: expected a number in [0, 1), got {label_smoothing}")
        self.label_smoothing = label_smoothing
        advice = "scikit-learn's compute_class_weight gives balanced ones"
        weights = _weights_of(f"{owner}.class_weights", class_weights, advice)
        self.register_buffer("class_weights", weights, persistent=False)

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
        logits = prediction.float()
        law: Any = dist.Categorical(logits=logits)
        if label is not None:
            missing, soft = self._check(label, logits.shape), label.is_floating_point()
            if soft or (self.training and (self.label_smoothing or self.class_weights is not None)):
                law = SmoothedCategorical(logits, *(self.label_smoothing, self.class_weights) * self.training)
            if missing:
                valid = self.is_observed(label)
                law, label = law.mask(valid), label.where(valid[:, None] if soft else valid, 0)
        pyro.sample("label", law, obs=label, infer={"prediction": label is None})

    def _check(self, label: Tensor, shape: torch.Size) -> bool:
        """Whether some row has no label; ``ValueError`` for labels or weights that do not fit logits of the shape."""
        owner, classes = type(self).__name__, shape[1]
        _check_weights(f"{owner}.class_weights", self.class_weights, classes)
        if not label.is_floating_point() or label.shape != shape:
            return check_classes(self, "labels", label, shape[:1], classes, ignored=True)
        missing = label.isnan().all(dim=1)
        right = (label >= 0).all(dim=1) & ((label.sum(dim=1) - 1).abs() < SOFT_TOLERANCE)
        if not bool((right | missing).all()):
            row = int((~(right | missing)).nonzero()[0, 0])
            raise ValueError(
                f"{owner}: expected soft labels >= 0 that sum to 1 in each row, or NaN in a row without, got "
                f"{shown(label[row].tolist())} in row {row}; divide votes by their number, and for several labels "
                'a row set net.config.problem_type = "multi_label_classification"'
            )
        return bool(missing.any())

    def is_observed(self, labels: Tensor) -> Tensor:
        """True in rows with a class or a soft label, ``[B]``."""
        observed = super().is_observed(labels)
        return observed.any(dim=1) if labels.is_floating_point() else observed


class MultiLabelClassifier(HeadProgram):
    r"""A host network with any number of labels: :math:`y_{ic} \sim \mathrm{Bernoulli}(\sigma(f(x_i, S_i)_c))`.

    Labels are 0 or 1, ``[B, C]`` of any type, or floats between them (shares of votes); NaN, or -100 among whole
    numbers, where there is none. Predictions are logits ``[B, C]``; the site ``"label"`` is one event a row, the sum
    over its labels.

    Args:
        net: a network whose output has ``logits`` ``[B, C]``, or is that tensor.
        num_data: size N of the training set. Default: the batch is the data.
        label_name: key of the labels in a batch.
        positive_weights: of the log-likelihood of each label that is there while training, ``[C]``, >= 0, as
            ``pos_weight`` of ``torch.nn.BCEWithLogitsLoss``; more than 1 finds more of a rare label and trades its
            calibration. None weighs all alike.

    Raises:
        ValueError: ``num_data`` below 1, ``positive_weights`` out of range; of a call, logits or labels of another
            shape, or labels outside 0 to 1.

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

    def __init__(
        self,
        net: nn.Module,
        *,
        num_data: int | None = None,
        label_name: str = "labels",
        positive_weights: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__(net, num_data=num_data, label_name=label_name)
        advice = "such as the number of rows without a label by that with it"
        weights = _weights_of(f"{type(self).__name__}.positive_weights", positive_weights, advice)
        self.register_buffer("positive_weights", weights, persistent=False)

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """The site ``"label"``, one event a row."""
        label = None if labels is None else labels[self.label_name]
        law: Any = dist.Bernoulli(logits=prediction.float(), validate_args=False)
        if label is not None:
            _check_weights(
                f"{type(self).__name__}.positive_weights", self.positive_weights, prediction.shape[1]
            )
            if self.training and self.positive_weights is not None:
                law = _WeightedBernoulli(law.logits, self.positive_weights)
            observed = self.is_observed(label)
            if label.shape != prediction.shape or not bool((((label >= 0) & (label <= 1)) | ~observed).all()):
                raise ValueError(
                    f"{type(self).__name__}: expected labels from 0 to 1 {list(prediction.shape)}, got {label.dtype} "
                    f"{list(label.shape)}"
                    + ("" if label.shape != prediction.shape else " with other numbers")
                    + "; give one number for each class of a row, NaN where there is none"
                )
            law, label = law.mask(observed), label.where(observed, 0).float()
        pyro.sample("label", law.to_event(1), obs=label, infer={"prediction": label is None})


class _WeightedBernoulli(dist.Bernoulli):
    """Labels whose log-likelihood counts w times where they are there; with weights it is no density."""

    def __init__(self, logits: Tensor, weights: Tensor) -> None:
        super().__init__(logits=logits, validate_args=False)
        self.weights = weights

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> _WeightedBernoulli:
        return _WeightedBernoulli(self.logits.expand(batch_shape), self.weights)

    def log_prob(self, value: Tensor) -> Tensor:
        return -binary_cross_entropy_with_logits(
            self.logits,
            value.expand_as(self.logits),
            pos_weight=self.weights.to(self.logits),
            reduction="none",
        )


def _weights_of(name: str, values: Tensor | Sequence[float] | None, advice: str) -> Tensor | None:
    """Weights of classes as a tensor; an error for what is no number >= 0 for each."""
    if values is None:
        return None
    try:
        weights = torch.as_tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"{name}: expected numbers in the order of the classes, got {shown(values)}; {advice}"
        ) from error
    if weights.dim() != 1 or not bool(((weights >= 0) & weights.isfinite()).all()) or not weights.any():
        raise ValueError(f"{name}: expected a number >= 0 for each class, got {values}")
    return weights


def _check_weights(name: str, weights: Tensor | None, classes: int) -> None:
    if weights is not None and len(weights) != classes:
        raise ValueError(f"{name}: expected one for each of {classes} classes, got {len(weights)}")


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

    Labels are numbers ``[B, D]``, or ``[B]`` for D = 1, NaN where there is none; predictions are ``[B, D]`` in units of
    y. The site ``"label"`` is one event a row, the sum over its labels. The scale :math:`\sigma` is learned with a
    learning rate of its own (1e-2); it is a parameter of the network's submodule ``probattn``, which is saved and
    loaded with the network's sites.

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

    def is_observed(self, labels: Tensor) -> Tensor:
        """True where there is a number: not NaN."""
        return ~labels.isnan()

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """The site ``"label"``, one event a row."""
        label = None if labels is None else labels[self.label_name]
        if label is not None:
            if label.dim() == 1:
                label = label.unsqueeze(-1)
            observed = self.is_observed(label)
            if label.shape != prediction.shape or bool(label.isinf().any()):
                raise ValueError(
                    f"{type(self).__name__}: expected finite numbers {list(prediction.shape)} as labels, NaN where "
                    f"there is none, got {label.dtype} {list(label.shape)}"
                )
            label = label.where(observed, 0).to(prediction.dtype).float()
        law: Any = self.scale(prediction.float())
        law = (law if label is None else law.mask(observed)).to_event(1)
        pyro.sample("label", law, obs=label, infer={"prediction": label is None})
