"""Inference: guides, the ELBO, drivers, prediction, checkpoints and reports."""

if __name__ != "probattn.inference":
    raise ImportError(
        f"this folder is a part of probattn and no package called {__name__!r}: write `import probattn.inference`"
    )

from probattn.inference.elbo import AttentionELBO, ELBOTerms
from probattn.inference.guide import AttentionGuide
from probattn.inference.predictive import (
    Posterior,
    PosteriorExpectation,
    posterior_expectation,
    posterior_predict,
)
from probattn.inference.svi import SVIDriver

__all__ = [
    "AttentionELBO",
    "AttentionGuide",
    "ELBOTerms",
    "Posterior",
    "PosteriorExpectation",
    "SVIDriver",
    "posterior_expectation",
    "posterior_predict",
]
