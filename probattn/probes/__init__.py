"""Probes of how attention is learned: a model's knowledge of single words, and its attention's agreement with it.

Snell et al. 2021, "Approximating How Single Head Attention Learns". Letters of shapes: B sentences, S or L input
positions (words of a sentence), T output words, I and O words of the source and the target vocabulary, C classes, D and
E units of hidden states. A rating gives each input position a number, such as its attention weight.
"""

from probattn.probes.agreement import (
    ContextualizedAgreement,
    EvaluatedStep,
    agreement,
    contextualized_agreement,
    kendall_tau,
    mean_agreement,
    random_agreement,
)
from probattn.probes.corpus import UNKNOWN, ParallelCorpus, Vocabulary, read_parallel, split_words
from probattn.probes.ibm_model1 import NULL, IBMModel1
from probattn.probes.lexical import SaliencyKind, classifier_probe, gradient_saliency, lexical_probe
from probattn.probes.optimal_attention import NotOptimalError, OptimalAttention, optimal_attention
from probattn.probes.proxy import (
    AttentionMode,
    BagOfWordsProxy,
    GradientFlow,
    additive_scores,
    attention_weights,
    frozen_probe,
    gradient_flow,
    gradient_flow_limit,
    luong_scores,
)

__all__ = ["lexical_probe", "classifier_probe", "agreement", "mean_agreement", "random_agreement"]
__all__ += ["kendall_tau", "contextualized_agreement", "ContextualizedAgreement", "EvaluatedStep"]
__all__ += ["gradient_saliency", "SaliencyKind", "attention_weights", "AttentionMode", "luong_scores"]
__all__ += ["additive_scores", "frozen_probe", "optimal_attention", "OptimalAttention"]
__all__ += ["NotOptimalError", "BagOfWordsProxy", "gradient_flow", "GradientFlow", "gradient_flow_limit"]
__all__ += ["IBMModel1", "NULL", "ParallelCorpus", "Vocabulary", "UNKNOWN", "read_parallel"]
__all__ += ["split_words"]
