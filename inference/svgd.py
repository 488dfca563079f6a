"""The driver of Stein variational gradient descent."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from pyro.infer.svgd import SteinKernel
from torch import Tensor

from probattn.inference.head_particles import HeadParticles
from probattn.inference.svi import SVIDriver
from probattn.particles import ParticleKernel
from probattn.sites.repulsive import repulsive_heads


@dataclass(eq=False)
class SVGDDriver(SVIDriver):
    r"""Trains a network whose attention heads are particles of one posterior (An et al. 2020).

    The potential U is the loss of :class:`SVIDriver`, a mean over data: the cross-entropy of a deterministic network,
    the negative ELBO where attention weights are latent too, factors included. One forward pass gives the gradients of
    all heads at once. Gradients are clipped; those of the heads then become :math:`-\epsilon \phi`, the direction of
    SVGD, SPOS or SGLD that :class:`probattn.RepulsiveAttention` asks for; and the optimiser updates everything.

    Everything else, options, data, checkpoints, records, resuming, several processes, is that of :class:`SVIDriver`.
    Noise depends on the options' seed and the number of the update, and all processes draw the same. Records of
    training hold ``particles``: by set of heads the kernel's bandwidth, the ratio of repulsion to attraction, the
    smallest distance between two heads, the same over their length, and that length. Two heads that coincide bring a
    :class:`probattn.particles.CollapseWarning`.

    Args:
        kernel: any kernel of :mod:`probattn.particles`, or that Pyro's SVGD takes (``pyro.infer.svgd.SteinKernel``), in
            place of the options' own.

    Raises:
        TypeError: the model is no ``nn.Module``.
        ValueError: an option out of its range, or (from :meth:`fit`) a model without repulsive heads.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> import probattn
        >>> from probattn.models import Classifier, convert
        >>> size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        >>> net = BertForSequenceClassification(BertConfig(vocab_size=9, **size))
        >>> model = Classifier(convert(net, probattn.RepulsiveAttention()))
        >>> data = {"input_ids": torch.randint(1, 9, (8, 4)), "labels": torch.arange(8) % 2}
        >>> driver = SVGDDriver(model, batch_size=4, log_every=1, progress=False, cpu=True)
        >>> sorted(driver.fit(data, steps=2).train["particles"]["bert.encoder.layer.0.attention.self.query"])
        ['bandwidth', 'norm', 'relative_distance', 'repulsion_ratio', 'smallest_distance']
    """

    _: KW_ONLY
    kernel: SteinKernel | ParticleKernel | None = None

    def get_named_particles(self) -> dict[str, Tensor]:
        """The heads ``[H, D * E]`` by attention call and projection, as ``pyro.infer.SVGD`` gives its particles."""
        return {name: heads.particles() for name, (_, heads) in repulsive_heads(self.model).items()}

    def particles(self, num_data: int) -> HeadParticles:
        """What turns the heads' gradients into directions in a run over ``num_data`` rows."""
        return HeadParticles(self.model, num_data, self.kernel)
