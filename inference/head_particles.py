"""Attention heads as particles: gradients of a potential become directions before the optimiser sees them."""

from __future__ import annotations

from pyro.infer.svgd import SteinKernel
from torch import nn

from probattn.inference.particle_update import ParticleUpdate
from probattn.particles import ParticleKernel
from probattn.sites.repulsive import repulsive_heads


class HeadParticles(ParticleUpdate):
    r"""Turns the gradients of repulsive heads into :math:`-\epsilon \phi` (An et al. 2020, Algorithm 1).

    :class:`probattn.inference.SVGDDriver` does so in each update; in a loop of one's own :meth:`direct` stands between
    ``backward`` and the optimiser's step. Nothing of the network is copied. The heads are found once, here: a network
    that is converted anew needs a new one.

    Args:
        model: a module that is, or holds, a network converted with :class:`probattn.RepulsiveAttention`.
        num_data: N, size of the training data: the potential is the mean loss, so a normal prior enters it over N, and
            the noise of "spos" and "sgld" has the variance of N data at a temperature of 1.
        kernel: any kernel that Pyro's engine takes, in place of the one that the options name.

    Raises:
        ValueError: the model has no repulsive heads.

    Example:
        >>> import torch
        >>> import probattn
        >>> from probattn.models import convert
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> net = convert(BertModel(config), probattn.RepulsiveAttention(projections="query")).eval()
        >>> particles = HeadParticles(net, num_data=10)
        >>> {name: list(heads.shape) for name, heads in particles.named_particles().items()}
        {'encoder.layer.0.attention.self.query': [2, 32]}
        >>> net(torch.ones(1, 3, dtype=torch.long)).last_hidden_state.sum().backward()
        >>> particles.direct(step=0)
    """

    def __init__(
        self, model: nn.Module, num_data: int, kernel: SteinKernel | ParticleKernel | None = None
    ) -> None:
        heads = repulsive_heads(model)
        if not heads:
            raise ValueError(
                f"HeadParticles: {type(model).__name__} has no repulsive heads; convert(net, RepulsiveAttention()) "
                "first"
            )
        super().__init__(heads, num_data, kernel=kernel)
