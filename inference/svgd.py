"""The driver of Stein variational gradient descent."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from pyro.infer.svgd import SteinKernel
from torch import Tensor

from probattn.inference.elbo import AttentionELBOModule
from probattn.inference.ensembles.ensemble import ParticleEnsemble
from probattn.inference.ensembles.objective import EnsembleObjective
from probattn.inference.ensembles.particles import EnsembleOptions, EnsembleParticles
from probattn.inference.guide import AttentionGuide
from probattn.inference.particle_update import HeadParticles, ParticleUpdate
from probattn.inference.program_elbo import bind
from probattn.inference.svi import SVIDriver
from probattn.inference.training import Update
from probattn.particles import ParticleKernel
from probattn.sites.repulsive import repulsive_heads


@dataclass(eq=False)
class SVGDDriver(SVIDriver):
    r"""Trains particles of one posterior: the attention heads of a network, or whole models.

    **Heads** (An et al. 2020). The potential U is the loss of :class:`SVIDriver`, a mean over data: the cross-entropy
    of a deterministic network, the negative ELBO where attention weights are latent too, factors included. One forward
    pass gives the gradients of all heads at once. Gradients are clipped; those of the heads then become
    :math:`-\epsilon \phi`, the direction of SVGD, SPOS or SGLD that :class:`probattn.RepulsiveAttention` asks for; and
    the optimiser updates everything.

    Kernels, :meth:`step` and :meth:`get_named_particles` are as in ``pyro.infer.SVGD``, which heads do not pass
    through: there a particle is a complete set of latent values, and the program is evaluated for each. All heads of
    a network have one likelihood together.

    **Whole models** (Liu and Wang 2016). The model is a :class:`ParticleEnsemble`, and ``method`` says how its
    particles move; by default they stand for the posterior itself. Losses in records, and of early stopping, are means
    over particles. Each particle's gradient is clipped by its own norm, as if it were alone; ``gradient_norm`` is the
    root of the mean square of these norms. What particles share follows the gradient of the mean loss.

    Everything else, options, data, checkpoints, records, resuming, several processes, is that of :class:`SVIDriver`.
    Noise depends on the options' seed and the number of the update, and all processes draw the same. Records of
    training hold ``particles``: by set of particles the kernel's bandwidth, the ratio of repulsion to attraction, the
    smallest distance between two particles, the same over their length, and that length. Two that coincide bring a
    :class:`probattn.particles.CollapseWarning`.

    Args:
        kernel: any kernel of :mod:`probattn.particles`, or that Pyro's SVGD takes (``pyro.infer.svgd.SteinKernel``), in
            place of the options' own.
        method: how an ensemble's particles move; by default ``EnsembleOptions()``. The options of heads are with the
            network.

    Raises:
        TypeError: the model is no ``nn.Module``.
        ValueError: an option out of its range, or (from :meth:`fit`) a model without repulsive heads that is no
            ensemble.

    Example:
        >>> import torch
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> import probattn
        >>> from probattn.inference import posterior_predict
        >>> from probattn.models import Classifier, convert
        >>> size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        >>> net = BertForSequenceClassification(BertConfig(vocab_size=9, **size))
        >>> model = Classifier(convert(net, probattn.RepulsiveAttention()))
        >>> data = {"input_ids": torch.randint(1, 9, (8, 4)), "labels": torch.arange(8) % 2}
        >>> driver = SVGDDriver(model, batch_size=4, log_every=1, progress=False, cpu=True)
        >>> sorted(driver.fit(data, steps=2).train["particles"]["bert.encoder.layer.0.attention.self.query"])
        ['bandwidth', 'norm', 'relative_distance', 'repulsion_ratio', 'smallest_distance']
        >>> ensemble = ParticleEnsemble(Classifier(BertForSequenceClassification(BertConfig(**size))), num_particles=3)
        >>> driver = SVGDDriver(ensemble, batch_size=4, progress=False, cpu=True)
        >>> list(driver.fit(data, steps=2).train["particles"]), ensemble.executions
        (['model'], {'objective': 'vectorized'})
        >>> posterior_predict(ensemble, data).logits.shape
        torch.Size([3, 8, 2])
    """

    _: KW_ONLY
    kernel: SteinKernel | ParticleKernel | None = None
    method: EnsembleOptions | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._update: Update | None = None
        self._updates, self._num_data = 0, 0
        ensemble = isinstance(self.model, ParticleEnsemble)
        if self.method is not None and not ensemble:
            raise ValueError(
                f"SVGDDriver.method: it moves whole models, and the model is a {type(self.model).__name__}; "
                "give a ParticleEnsemble, or put the options of heads into convert(net, RepulsiveAttention(...))"
            )
        if ensemble and self.precision == "fp16":
            raise ValueError(
                "SVGDDriver.precision: an ensemble's gradients are made before the scaling that 'fp16' needs; use "
                "'bf16' or 'no'"
            )

    def get_named_particles(self) -> dict[str, Tensor]:
        """Particles by name, as ``pyro.infer.SVGD`` gives them, detached.

        Returns:
            Of heads ``[H, D * E]`` by attention call and projection; of whole models the stacked parameters
            ``[P, ...]``.
        """
        if isinstance(self.model, ParticleEnsemble):
            return self.model.named_particles()
        return {name: heads.particles() for name, (_, heads) in repulsive_heads(self.model).items()}

    def step(self, batch: Any, *, num_data: int | None = None) -> dict[str, float]:
        """One update outside a run, with the contract of ``pyro.infer.SVGD.step``.

        The optimiser is made by the first call and kept. Precision, processes, schedules, records and checkpoints are
        those of :meth:`fit` alone, and the model stays in its mode and on its device.

        Args:
            batch: what the model takes.
            num_data: size N of the data of which it is a sample; None for data that are the batch, by the rows of its
                first tensor.

        Returns:
            By name as in :meth:`get_named_particles` the mean squared gradient, as the optimiser saw it.

        Raises:
            ValueError: another ``num_data`` than in the first call, or no particles.
        """
        size = len(next(iter(batch.values()))) if num_data is None else num_data
        if self._update is None:
            self._update, self._num_data = Update(self, *self.objective(), self.particles(size)), size
            self._update.weigh_kl(self.kl_schedule.final)
        if size != self._num_data:
            raise ValueError(
                f"SVGDDriver.step: expected data of {self._num_data} rows as in the first step, got {size}; give "
                "num_data"
            )
        update, particles = self._update, self._update.particles
        assert particles is not None
        update.optimizer.zero_grad()
        update.objective(batch).loss.backward()
        update.norms()
        update.direct(self._updates)
        squares = particles.mean_squared_gradients()
        update.optimizer.step()
        self._updates += 1
        return squares

    def objective(self) -> tuple[Any, AttentionELBOModule | EnsembleObjective]:
        """See :meth:`SVIDriver.objective`; that of an ensemble gives each particle the gradient of its own loss."""
        if not isinstance(self.model, ParticleEnsemble):
            return super().objective()
        guide = AttentionGuide(self.model.model) if self.guide is None else self.guide
        if not isinstance(guide, AttentionGuide) or guide.model is not self.model.model:
            raise ValueError(
                "SVGDDriver.guide: expected an AttentionGuide of the ensemble's own model, ensemble.model"
            )
        inner = bind(self.model.model, guide, self.elbo)
        return guide, EnsembleObjective(self.model, inner)

    def particles(self, num_data: int | None) -> ParticleUpdate:
        """The update that turns the particles' gradients into directions in a run over ``num_data`` rows."""
        if num_data is None:
            raise ValueError(
                "SVGDDriver.fit: expected a stream with a method __len__, the number N of its rows, by which the "
                "particles' repulsion is divided; wrap it in one that has it"
            )
        if isinstance(self.model, ParticleEnsemble):
            method = EnsembleOptions() if self.method is None else self.method
            return EnsembleParticles(self.model, method, num_data, self.kernel)
        return HeadParticles(self.model, num_data, self.kernel)
