"""How attention came out as it did: what a model knew about single words, and whether its attention follows it.

Snell et al. 2021, "Approximating How Single Head Attention Learns". Ratings of input positions are ``[..., T, L]``: a
row for each output word, an entry for each input position. A mask is True for what counts.
"""

from probattn.probes.agreement import agreement, mean_agreement, random_agreement
from probattn.probes.contextualized import ContextualizedAgreement, EvaluatedStep, contextualized_agreement
from probattn.probes.corpus import ParallelCorpus
from probattn.probes.ibm_model1 import NULL, IBMModel1
from probattn.probes.kendall import kendall_tau
from probattn.probes.parallel import read_parallel, split_words
from probattn.probes.vocabulary import UNKNOWN, Vocabulary

__all__ = [
    "agreement",
    "mean_agreement",
    "random_agreement",
    "kendall_tau",
    "contextualized_agreement",
    "ContextualizedAgreement",
    "EvaluatedStep",
    "IBMModel1",
    "NULL",
    "ParallelCorpus",
    "Vocabulary",
    "UNKNOWN",
    "read_parallel",
    "split_words",
]
