"""Kernels and directions written out pair by pair in float64, after the equations."""

import math

import numpy as np
import torch

from probattn.particles import CosineKernel, InverseMultiquadric, LinearKernel, MarginalRBF, MedianRBF


def lower_median(values):
    return sorted(values)[(len(values) - 1) // 2]


def median_width(particles):
    count = len(particles)
    distances = [
        float(np.linalg.norm(particles[i] - particles[j])) for i in range(count) for j in range(i + 1, count)
    ]
    return lower_median(distances) ** 2 / math.log(count)


def median_rbf(particles):
    width = median_width(particles)
    return lambda x, y: torch.exp(-((x - y) ** 2).sum() / width)


def inverse_multiquadric(particles):
    width = median_width(particles)
    return lambda x, y: (1 + ((x - y) ** 2).sum() / width) ** -0.5


def linear(particles):
    mean = torch.from_numpy(particles.mean(axis=0))
    width = max(((row - particles.mean(axis=0)) ** 2).sum() for row in particles)
    return lambda x, y: 1 + (x - mean) @ (y - mean) / width


def cosine(particles):
    return lambda x, y: 1 + (x @ y) / (x.norm() * y.norm())


def marginal_rbf(particles):
    widths = torch.tensor(
        [median_width(particles[:, [d]]) for d in range(particles.shape[1])], dtype=torch.float64
    )
    return lambda x, y: torch.exp(-((x - y) ** 2) / widths)


KERNELS = {
    "MedianRBF": (MedianRBF, median_rbf),
    "MarginalRBF": (MarginalRBF, marginal_rbf),
    "InverseMultiquadric": (InverseMultiquadric, inverse_multiquadric),
    "LinearKernel": (LinearKernel, linear),
    "CosineKernel": (CosineKernel, cosine),
}


def svgd(particles, grads, make_kernel, repulsion):
    """Eq. 4 in a double loop; the gradient of the kernel by autograd, in its first argument."""
    count, size = particles.shape
    kernel = make_kernel(particles.numpy())
    found = torch.zeros(count, size, dtype=torch.float64)
    for i in range(count):
        for j in range(count):
            first = particles[j].clone().requires_grad_()
            value = kernel(first, particles[i])
            (slope,) = torch.autograd.grad(value.sum(), first)
            found[i] += -value.detach() * grads[j] + repulsion * slope
    return found / count
