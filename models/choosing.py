"""The program that a network's head asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

from probattn.models.heads.classification import (
    SOFT_TOLERANCE,
    Classifier,
    MultiLabelClassifier,
    MultipleChoice,
    Regressor,
)
from probattn.models.heads.sequences import Translator
from probattn.models.heads.tokens import (
    CausalLanguageModel,
    MaskedLanguageModel,
    SpanExtractor,
    TokenClassifier,
)
from probattn.models.program import Program
from probattn.sites.method import as_program, base_of

HEADS: Mapping[str, type[Program]] = {
    "MULTIPLE_CHOICE": MultipleChoice,
    "TOKEN_CLASSIFICATION": TokenClassifier,
    "QUESTION_ANSWERING": SpanExtractor,
    "IMAGE_CLASSIFICATION": Classifier,
    "SEQUENCE_CLASSIFICATION": Classifier,
    "SEQ_TO_SEQ_CAUSAL_LM": Translator,
    "MASKED_LM": MaskedLanguageModel,
    "CAUSAL_LM": CausalLanguageModel,
}
"""Programs by the name of transformers' table of the classes with that head, the first table that has a class first."""

PROBLEMS: Mapping[str, type[Program]] = {
    "single_label_classification": Classifier,
    "multi_label_classification": MultiLabelClassifier,
    "regression": Regressor,
}
"""Programs of classifiers by ``config.problem_type``."""


def program_for(
    net: nn.Module, *, labels: Tensor | None = None, num_data: int | None = None, **options: Any
) -> Program:
    """Makes the Pyro program of a network; the network's class and ``config.problem_type`` decide which one.

    For a sequence or image classifier without ``problem_type``, the rule is that of transformers' own loss:
    :class:`Regressor` if ``num_labels=1``, :class:`MultiLabelClassifier` if ``labels`` are floats, else
    :class:`Classifier`. An encoder-decoder with a language modelling head becomes a :class:`Translator`. A network
    class of your own can name its program in the class attribute ``program_class``, as
    :class:`probattn.models.McanForQuestionAnswering` does.

    Args:
        net: a Hugging Face network with a head, converted or not, a PEFT wrapper of such a network, or a program.
        labels: some labels of the data; floats mean several labels per input, whole numbers one class per input.
        num_data: size N of the training set, to which likelihood and KL of a batch are scaled. Default: the batch size.
        **options: further options of the program's class, such as ``mean_length``.

    Returns:
        The program; ``net`` itself if it is a program.

    Raises:
        TypeError: no program is known for the network's class, or the program has no such option.
        ValueError: ``labels`` are floats whose last dimension is not ``num_labels``, or fractions that sum to 1 per
            input, which are soft labels of one class.

    Example:
        >>> from transformers import BertConfig, BertForTokenClassification
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> type(program_for(BertForTokenClassification(config))).__name__
        'TokenClassifier'
    """
    if isinstance(net, Program):
        return net
    inner = base_of(net)
    program = _program_class(inner, labels)
    if program is None:
        raise TypeError(
            f"{type(inner).__name__}: no program is known for this head; expected a network for classification, "
            "regression, token classification, question answering, multiple choice or language modelling; load it with "
            "such an Auto class, or write a program of its own as probattn.models.Classifier is"
        )
    return program(net, num_data=num_data, **options)


def _program_class(net: nn.Module, labels: Tensor | None) -> type[Program] | None:
    if not isinstance(net, PreTrainedModel):
        return None
    declared: type[Program] | None = getattr(type(net), "program_class", None)
    if declared is not None:
        return declared
    head = next((name for cls in type(net).__mro__ for name in _heads(cls)), "")
    program = HEADS.get(head)
    if program is Classifier:
        return _classifier(net, labels)
    if program not in (Translator, MaskedLanguageModel, CausalLanguageModel):
        return program
    # A class in several tables (BART) is what its configuration makes of it.
    if getattr(net.config, "is_encoder_decoder", False):
        return Translator
    return CausalLanguageModel if program is Translator else program


def _heads(cls: type) -> Iterator[str]:
    """Names of transformers' tables that list a class; of a class from elsewhere also those that its name ends with."""
    name = cls.__name__
    for head in HEADS:
        table = getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES", {})
        if any(name == listed if isinstance(listed, str) else name in listed for listed in table.values()):
            yield head
    if not cls.__module__.startswith("transformers."):
        suffix = name.rpartition("For")[2]
        yield from (head for head in HEADS if head.replace("_", "").lower() == suffix.lower())


def _classifier(net: PreTrainedModel, labels: Tensor | None) -> type[Program]:
    problem = getattr(net.config, "problem_type", None)
    if problem is not None:
        return PROBLEMS[problem]
    if net.config.num_labels == 1:
        return Regressor
    if labels is None or not labels.is_floating_point():
        return Classifier
    if labels.ndim == 0 or labels.shape[-1] != net.config.num_labels:
        raise ValueError(
            f"{type(net).__name__}: expected labels as whole numbers, or for several labels of an input a number for "
            f"each of {net.config.num_labels}, got {labels.dtype} of shape {list(labels.shape[-1:])}; convert them to "
            "integers (pandas makes floats of a column with missing values)"
        )
    if (
        bool((labels != labels.round()).any())
        and abs(float(labels.sum()) / len(labels.view(-1, labels.shape[-1])) - 1) < SOFT_TOLERANCE
    ):
        soft = labels.view(-1, labels.shape[-1])
        soft = soft[(soft != soft.round()).any(dim=1)][0]
        raise ValueError(
            f"{type(net).__name__}: expected classes or labels that are 0 or 1, got {soft.tolist()}, with sum 1: for "
            "soft labels of one class take program=probattn.models.Classifier, for several labels of an input set "
            'net.config.problem_type = "multi_label_classification"'
        )
    return MultiLabelClassifier


as_program.register(PreTrainedModel, program_for)
