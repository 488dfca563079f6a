"""MCAN as a Pyro program."""

from __future__ import annotations

from probattn.models.heads.classification import MultiLabelClassifier


class VisualQuestionProgram(MultiLabelClassifier):
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

    soft = True
    advice = "take probattn.models.McanForQuestionAnswering"
