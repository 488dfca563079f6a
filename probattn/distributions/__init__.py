"""Positive distributions computed in log space, closed-form divergences between them, and a smoothed likelihood.

Importing this package registers two divergences with :func:`torch.distributions.kl_divergence`: that of a Weibull
from a gamma distribution (Zhang et al. 2021a, section 3.2), and that of one log-normal distribution from another. The
registered classes include those of torch and Pyro.
"""

from probattn.distributions.log_normal import LogNormal, kl_lognormal_lognormal
from probattn.distributions.log_space import (
    finite_exp,
    log_gamma_1p_reciprocal,
    log_standard_exponential,
    log_weibull_sample,
    weibull_gamma_kl,
)
from probattn.distributions.log_space_distribution import LogSpaceDistribution
from probattn.distributions.smoothed_categorical import SmoothedCategorical
from probattn.distributions.weibull import Gamma, Weibull, kl_weibull_gamma

__all__ = ["Gamma", "LogNormal", "LogSpaceDistribution", "SmoothedCategorical", "Weibull", "finite_exp"]
__all__ += ["kl_lognormal_lognormal", "kl_weibull_gamma", "log_gamma_1p_reciprocal"]
__all__ += ["log_standard_exponential", "log_weibull_sample", "weibull_gamma_kl"]
