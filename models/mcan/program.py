"""MCAN as a Pyro program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
from torch import Tensor

from probattn.models.program import HeadProgram, Link, read_logits


class VisualQuestionProgram(HeadProgram):
    r"""A network that answers questions about images, with an observed score of each answer.

    The score :math:`s_{ic} \in [0, 1]` of answer c to question i is the accuracy that it has with the annotators. The
    log density is the mean of a Bernoulli law's over labels that are right with that probability (Yu et al. 2019,
    section 3.3, after Teney et al. 2018):

    .. math:: \log p(s_i \mid x_i, S_i) = \sum_c s_{ic} \log \sigma(f_c) + (1 - s_{ic}) \log(1 - \sigma(f_c))

    Args:
        net: whose output has logits ``[B, C]``, such as :class:`probattn.models.McanForQuestionAnswering`.
        num_data: N, number of training questions. Default: the batch is the data.
        label_name: key of the scores in a batch, ``[B, C]``.

    Raises:
        ValueError: ``num_data`` below 1; of a call, logits or scores of another shape, or scores outside [0, 1].

    Example:
        >>> from probattn.models import McanConfig, McanForQuestionAnswering
        >>> config = McanConfig(vocab_size=9, num_labels=3, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        >>> net = McanForQuestionAnswering(config)
        >>> VisualQuestionProgram(net).eval()(net.dry_inputs()).shape
        torch.Size([2, 3])
    """

    link: ClassVar[Link] = "sigmoid"

    def read(self, output: Any, inputs: Mapping[str, Tensor]) -> Tensor:
        """Logits ``[B, C]``."""
        rows = len(next(iter(inputs.values())))
        return read_logits(self, output, (rows, None), "take probattn.models.McanForQuestionAnswering")

    def observe(
        self, prediction: Tensor, labels: Mapping[str, Tensor] | None, inputs: Mapping[str, Tensor]
    ) -> None:
        """The site ``"label"``, one event a question."""
        scores = None if labels is None else labels[self.label_name]
        if scores is not None:
            if scores.shape != prediction.shape:
                raise ValueError(
                    f"{type(self).__name__}: expected a score of each answer {list(prediction.shape)} as "
                    f"{self.label_name}, got {list(scores.shape)}"
                )
            if not bool(((scores >= 0) & (scores <= 1)).all()):
                raise ValueError(
                    f"{type(self).__name__}: expected scores in [0, 1], got {scores.min():g} to {scores.max():g}"
                )
            scores = scores.to(prediction.dtype)
        law = dist.Bernoulli(logits=prediction.float(), validate_args=False)  # scores are shares of 1
        pyro.sample("label", law.to_event(1), obs=scores, infer={"prediction": scores is None})
