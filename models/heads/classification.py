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
from probattn.models.program import Batch, Block, HeadProgram, Link, check_classes, read_logits, rows_of
from probattn.sites.observation import ObservationNoise, ObservationScale, ObservedNoise

SOFT_TOLERANCE = 0.02
"""By how much the sum of a soft label may differ from 1: numbers may be rounded to two digits."""


class Classifier(HeadProgram):
    r"""A network with one class label: :math:`y_i \sim \mathrm{Categorical}(\mathrm{softmax}(f(x_i, S_i)))`.

    f gives the logits and S are the attention weights. As a ``PyroModule``, the program makes the network's parameters
    known to ``pyro.infer.SVI``. Under Pyro's handlers a call contains the plate ``"data"``, in it the attention sites
    of a converted network and the site ``"label"``, which is observed if the batch has labels and else sampled. Labels
    of B inputs are int64 ``[B]`` in 0..C-1, -100 for an unlabelled input, or soft labels ``[B, C]``: floats >= 0 that
    sum to 1 for each input (votes of annotators, a teacher's probabilities), NaN for an unlabelled input.

    Args:
        net: a network whose output has ``logits`` ``[B, C]`` (any Hugging Face sequence or image classifier), or is
            that tensor.
        num_data: size N of the training set, to which likelihood and KL of a batch are scaled. Default: the batch size.
        label_name: key of the labels in a batch.
        label_smoothing: share of each label's probability that is spread evenly over all classes, in [0, 1), in
            training mode; the likelihood is then :class:`~probattn.distributions.SmoothedCategorical`, as it is with
            soft labels or class weights.
        class_weights: weight of each class in the log-likelihood in training mode, ``[C]``, >= 0. Weights with mean 1
            over the training labels, such as scikit-learn's ``compute_class_weight("balanced", ...)``, do not change
            the balance of likelihood and KL. Larger weights of rare classes worsen calibration.

    Raises:
        ValueError: ``num_data`` below 1, ``label_smoothing`` or ``class_weights`` out of range; in a call, logits or
            labels that do not fit.

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
        """Returns the logits ``[B, C]`` in the network's output; ``ValueError`` for fewer than two classes."""
        logits = super().read(output, inputs)
        if logits.shape[1] < 2:
            raise ValueError(
                f"{type(self).__name__}: expected a network of two classes or more, got logits {list(logits.shape)}: a "
                "single output is regression; use probattn.models.Regressor, or load it with num_labels=2 or more"
            )
        return logits

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """Samples the site ``"label"``, observed if there are ``labels``."""
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
        """Returns bool ``[B]``, True for inputs with a class or a soft label."""
        observed = super().is_observed(labels)
        return observed.any(dim=1) if labels.is_floating_point() and labels.dim() > 1 else observed


class MultiLabelClassifier(HeadProgram):
    r"""A network with C independent labels: :math:`y_{ic} \sim \mathrm{Bernoulli}(\sigma(f(x_i, S_i)_c))`.

    f gives the logits ``[B, C]`` and S are the attention weights. Labels of B inputs are ``[B, C]`` of any type, 0 or 1
    or a fraction between them (share of votes); a missing label is NaN, or -100 among whole numbers. The log density
    of the site ``"label"`` is ``[B]``, summed over the labels of an input.

    Args:
        net: a network whose output has ``logits`` ``[B, C]``, or is that tensor.
        num_data: size N of the training set, to which likelihood and KL of a batch are scaled. Default: the batch size.
        label_name: key of the labels in a batch.
        positive_weights: weights ``[C]``, >= 0, of the log-likelihood of each label's positive case in training mode,
            as ``pos_weight`` of ``torch.nn.BCEWithLogitsLoss``; a weight above 1 raises the recall of a rare label and
            worsens its calibration. None is 1 for all.

    Raises:
        ValueError: ``num_data`` below 1, ``positive_weights`` out of range; in a call, logits or labels of another
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
        """Samples the site ``"label"`` with log density ``[B]``, observed if there are ``labels``."""
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
    r"""A network that scores K choices per question, of which one is right.

    .. math:: y_i \sim \mathrm{Categorical}(\mathrm{softmax}_k f(x_{ik}, S_{ik}))

    f gives the score of a choice and S are the attention weights. Inputs are ``[B, K, ...]``, labels int64 ``[B]`` in
    0..K-1, predictions logits ``[B, K]``. The network runs on ``B * K`` rows; its attention sites are in a plate
    ``"choices"`` of this size, the site ``"label"`` in the plate ``"data"`` of size B.

    Args:
        net: a network whose output has ``logits`` ``[B, K]`` (AutoModelForMultipleChoice), or is that tensor.
        num_data: size N of the training set, to which likelihood and KL of a batch are scaled. Default: the batch size.
        label_name: key of the labels in a batch.

    Raises:
        ValueError: ``num_data`` below 1; in a call, inputs, logits or labels that do not fit.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertForMultipleChoice
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> model = MultipleChoice(BertForMultipleChoice(config)).eval()
        >>> model({"input_ids": torch.ones(3, 4, 5, dtype=torch.long)}).shape
        torch.Size([3, 4])
    """

    def attention_plate(self, data: Block, inputs: Batch) -> Block:
        """Returns the plate ``"choices"`` over the ``B * K`` rows of the network."""
        first = next(iter(inputs.values()))
        if first.dim() < 2:
            owner = type(self).__name__
            raise ValueError(f"{owner}: expected inputs [B, K, ...] of K choices, got {list(first.shape)}")
        rows, choices = first.shape[:2]
        return self.plate("choices", rows * choices, first.device, each=choices)

    def read(self, output: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the logits ``[B, K]`` in the network's output."""
        shape = next(iter(inputs.values())).shape[:2]
        return read_logits(self, output, tuple(shape), "load it with AutoModelForMultipleChoice")


class Regressor(HeadProgram):
    r"""A network that predicts D numbers: :math:`y_{id} = f(x_i, S_i)_d + \sigma_d \epsilon_{id}`.

    f gives the predictions ``[B, D]`` in units of y and S are the attention weights. Labels are numbers ``[B, D]``, or
    ``[B]`` for D = 1; NaN marks a missing label. The log density of the site ``"label"`` is ``[B]``, summed over the
    labels of an input. The scale :math:`\sigma` is learned, in the library's training loops with the learning rate
    1e-2 by default; it is in the submodule ``net.probattn``, which is saved with the network.

    Args:
        net: a network whose output has ``logits`` ``[B, D]`` (``num_labels=D``), or is that tensor.
        noise: distribution of :math:`\epsilon` and initial scale. Default: those that the network already has, else
            normal with scale 1.
        num_data: size N of the training set, to which likelihood and KL of a batch are scaled. Default: the batch size.
        label_name: key of the labels in a batch.

    Raises:
        ValueError: ``num_data`` below 1; ``noise`` differs from the noise that the network already has; in a call,
            shapes or labels that do not fit.

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
        """The module with the learned scale and the distribution of the noise."""
        scale = scale_of(self.net)
        assert scale is not None
        return scale

    @property
    def noise(self) -> ObservedNoise:
        """Distribution of the difference between label and prediction, with its present scale in units of y."""
        return self.scale.learned()

    def read(self, output: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the predictions ``[B, D]`` in the network's output."""
        size = len(self.scale.log_scale)
        return read_logits(self, output, (rows_of(inputs), size), f"load it with num_labels={size}")

    def is_observed(self, labels: Tensor) -> Tensor:
        """Returns bool of the labels' shape, False at NaN."""
        return ~labels.isnan()

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """Samples the site ``"label"`` with log density ``[B]``, observed if there are ``labels``."""
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
            label = label.where(observed, 0).float()
        law: Any = self.scale(prediction.float())
        law = (law if label is None else law.mask(observed)).to_event(1)
        pyro.sample("label", law, obs=label, infer={"prediction": label is None})
