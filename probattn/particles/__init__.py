"""Particles of a posterior: kernels, directions of SVGD, SPOS and SGLD, attention heads as particles, diagnostics."""

from probattn.particles.diagnostics import CollapseWarning, ParticleDiagnostics, diagnose, spread
from probattn.particles.directions import sgld_direction, spos_direction, svgd_direction
from probattn.particles.dot_product import CosineKernel, IdentityKernel, LinearKernel
from probattn.particles.heads import FusedProjection, HeadSlices, head_slices
from probattn.particles.kernel import Interaction, ParticleKernel
from probattn.particles.marginal import MarginalRBF
from probattn.particles.pyro_kernel import PyroKernel
from probattn.particles.radial import InverseMultiquadric, MedianRBF
from probattn.particles.sliced import SlicedRBF
from probattn.particles.unsmoothed import UnsmoothedKernel

__all__ = [
    "svgd_direction",
    "spos_direction",
    "sgld_direction",
    "MedianRBF",
    "MarginalRBF",
    "SlicedRBF",
    "InverseMultiquadric",
    "LinearKernel",
    "CosineKernel",
    "IdentityKernel",
    "UnsmoothedKernel",
    "PyroKernel",
    "ParticleKernel",
    "Interaction",
    "HeadSlices",
    "FusedProjection",
    "head_slices",
    "diagnose",
    "spread",
    "ParticleDiagnostics",
    "CollapseWarning",
]
