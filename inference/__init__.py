"""Inference: guides, the ELBO, drivers, prediction, checkpoints and reports."""

from typing import TYPE_CHECKING

if __name__ != "probattn.inference":
    raise ImportError(
        f"this folder is a part of probattn and no package called {__name__!r}: write `import probattn.inference`"
    )

from probattn.checks import imported_when_used

if TYPE_CHECKING:
    from probattn.inference.checkpoint import CheckpointError
    from probattn.inference.effect_results import AttentionEffects, Effect
    from probattn.inference.effects import attention_effects
    from probattn.inference.elbo import AttentionELBO, AttentionELBOModule, ELBOTerms
    from probattn.inference.ensembles.ensemble import ParticleEnsemble
    from probattn.inference.ensembles.particles import EnsembleOptions, EnsembleParticles
    from probattn.inference.expansion import posterior_moments
    from probattn.inference.explaining import explain
    from probattn.inference.explanation import Explanation, Word
    from probattn.inference.guide import AttentionGuide
    from probattn.inference.laplace import (
        FeatureDistance,
        Features,
        LastLayerLaplace,
        energy,
        last_features,
        last_layer,
    )
    from probattn.inference.loop import NonFiniteError
    from probattn.inference.many_runs import ManyRunsDriver
    from probattn.inference.moments import MomentCheck, Moments, share_by
    from probattn.inference.optimizers import OptimizerOptions, SchedulerOptions
    from probattn.inference.options import EarlyStopping, KLSchedule, RunOptions
    from probattn.inference.particle_update import HeadParticles
    from probattn.inference.posterior import Posterior
    from probattn.inference.predictive import PosteriorExpectation, posterior_expectation, posterior_predict
    from probattn.inference.program_elbo import TraceGraphMeanFieldELBO
    from probattn.inference.progress import StepObserver
    from probattn.inference.pyro_svgd import HeadSVGD
    from probattn.inference.records import read_records
    from probattn.inference.run import FitResult
    from probattn.inference.sampling import Generation, generate_with_uncertainty
    from probattn.inference.sharding import shard
    from probattn.inference.svi import SVGDDriver, SVIDriver

__all__ = ["share_by"]
__all__ += ["CheckpointError", "AttentionELBO", "AttentionELBOModule", "ELBOTerms", "ParticleEnsemble"]
__all__ += ["EnsembleOptions", "EnsembleParticles", "posterior_moments", "AttentionGuide"]
__all__ += ["FeatureDistance", "Features", "LastLayerLaplace", "energy", "last_features", "last_layer"]
__all__ += ["NonFiniteError", "ManyRunsDriver", "MomentCheck", "Moments"]
__all__ += ["OptimizerOptions", "SchedulerOptions", "EarlyStopping", "KLSchedule", "RunOptions"]
__all__ += ["HeadParticles", "HeadSVGD", "Posterior"]
__all__ += ["PosteriorExpectation", "posterior_expectation", "posterior_predict", "TraceGraphMeanFieldELBO"]
__all__ += ["StepObserver", "read_records", "FitResult", "Generation", "generate_with_uncertainty"]
__all__ += ["SVGDDriver", "SVIDriver", "shard"]
__all__ += ["AttentionEffects", "Effect", "Explanation", "Word", "attention_effects", "explain"]

_MODULES = """options progress records optimizers run guide effect_results explanation moments posterior
    elbo program_elbo loop checkpoint ensembles.ensemble ensembles.particles particle_update laplace predictive
    expansion sampling effects explaining many_runs pyro_svgd sharding svi"""

__getattr__ = imported_when_used(__name__, __all__, _MODULES.split(), options=())
