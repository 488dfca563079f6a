"""Particles of a posterior: kernels, directions of SVGD, SPOS and SGLD, attention heads as particles, diagnostics.

M is the number of particles, N their dimension. The functions ``*_direction`` explain the abbreviations.
"""

from probattn.particles.directions import (
    CollapseWarning,
    ParticleDiagnostics,
    diagnose,
    sgld_direction,
    spos_direction,
    spread,
    svgd_direction,
)
from probattn.particles.heads import FusedProjection, HeadSlices, head_slices
from probattn.particles.kernels import (
    CosineKernel,
    IdentityKernel,
    Interaction,
    InverseMultiquadric,
    LinearKernel,
    MedianRBF,
    ParticleKernel,
    PyroKernel,
    ReleaseRBF,
    UnsmoothedKernel,
)
from probattn.particles.sliced import MarginalRBF, SlicedRBF

__all__ = ["svgd_direction", "spos_direction", "sgld_direction", "MedianRBF", "MarginalRBF"]
__all__ += ["SlicedRBF", "ReleaseRBF", "InverseMultiquadric", "LinearKernel", "CosineKernel"]
__all__ += ["IdentityKernel", "UnsmoothedKernel", "PyroKernel", "ParticleKernel", "Interaction"]
__all__ += ["HeadSlices", "FusedProjection", "head_slices", "diagnose", "spread", "ParticleDiagnostics"]
__all__ += ["CollapseWarning"]
