"""Divergences between the queries and keys of attention heads, and the small networks that some of them train.

Letters of shapes: B rows of a batch, H heads, T queries, S keys, D the size of a head. "The authors' code" is that of
Zhang et al. 2021b, on alignment attention.
"""

from probattn.divergences.adversarial import (
    adversarial,
    conditional_transport,
    gradient_reversal,
    scale_gradient,
)
from probattn.divergences.mmd import mean_difference, median_bandwidth, mmd
from probattn.divergences.networks import Critic, Discriminator, Highway, Navigator
from probattn.divergences.release import ReleaseCritic, head_transport
from probattn.divergences.sinkhorn import sinkhorn

__all__ = ["adversarial", "conditional_transport", "head_transport", "mmd", "sinkhorn"]
__all__ += ["mean_difference", "median_bandwidth", "Critic", "Discriminator", "Highway", "Navigator"]
__all__ += ["ReleaseCritic", "gradient_reversal", "scale_gradient"]
