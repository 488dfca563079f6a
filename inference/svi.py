"""The drivers of stochastic variational inference and of Stein variational gradient descent."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal

import torch
from pyro.infer import ELBO
from pyro.infer.autoguide import AutoGuide
from pyro.infer.svgd import SteinKernel
from torch import Tensor, nn

from probattn.checks import check_integer
from probattn.inference.checkpoint import Resume
from probattn.inference.configuration import (
    log_latent,
    refuse_unsupported,
    refuse_unwrapped,
    warn_of_frozen_sites,
)
from probattn.inference.elbo import AttentionELBOModule
from probattn.inference.ensembles.ensemble import ParticleEnsemble
from probattn.inference.ensembles.particles import EnsembleObjective, EnsembleOptions, EnsembleParticles
from probattn.inference.guide import AttentionGuide, refuse_unstarted
from probattn.inference.loop import NonFiniteError
from probattn.inference.options import RunOptions
from probattn.inference.particle_update import HeadParticles, ParticleUpdate, particle_sets
from probattn.inference.program_elbo import bind
from probattn.inference.run import FitResult, Run, TrainingInterrupted
from probattn.inference.session import (
    accelerator_session,
    frozen_parameters,
    preserved_random_state,
    seed_generators,
)
from probattn.inference.sharding import TrainedObjective, trained_objective
from probattn.inference.sources import check_data
from probattn.inference.training import ProgramTraining, Update
from probattn.particles import ParticleKernel


@dataclass(eq=False)
class SVIDriver(RunOptions):
    r"""Fits the posterior of a model's attention by stochastic variational inference.

    Minimises :math:`-\frac{1}{N} (\log p(y \mid x, S) - w \sum_l r_l\, \mathrm{KL}_l)` (Zhang et al. 2021a, section
    3.3), with N the size of the data, S drawn from the posterior once per forward pass, l an attention call, w the
    weight of ``kl_schedule`` and :math:`r_l` the factor of the option ``kl_reduction`` of its attention method (1 for
    "sum"). The driver uses accelerate: ``accelerate launch`` or ``torchrun`` set device and processes. All processes
    start from the same parameters and draw different noise.

    A run is determined by its options, the data and the initial weights: the order of the data depends on (seed,
    epoch), noise and dropout on (seed, rank). A run that was killed and resumed therefore repeats the uninterrupted
    one, on a CPU bit for bit, unless data sets draw random numbers in workers. Your random generators are unchanged.

    All options of :class:`RunOptions` are keyword arguments, and attributes that may be set between two runs.

    Args:
        model: a Pyro model that is an ``nn.Module``; ``model(batch)`` makes the ``pyro.sample`` statements, with the
            labels observed.
        guide: by default ``AttentionGuide(model)``. For a model with latent variables other than attention, any Pyro
            guide that is an ``nn.Module``; its parameters are trained and saved in checkpoints. If it has no attribute
            ``kl_weight``, the KL weight must be 1 throughout: ``KLSchedule("constant")``.
        elbo: by default ``AttentionELBO()``; with a guide of your own also Pyro's ``Trace_ELBO``,
            ``TraceMeanField_ELBO``, ``TraceGraph_ELBO`` or ``TraceEnum_ELBO``.

    Raises:
        TypeError: model or guide is not an ``nn.Module``, or ``elbo`` is none of these classes.
        ValueError: an option out of its range, or a KL schedule other than 1 for a guide without ``kl_weight``.

    Example:
        >>> import probattn, pyro
        >>> import pyro.distributions as dist
        >>> class Regression(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.attention = probattn.MultiheadAttention(4, 2, batch_first=True)
        ...     def forward(self, batch):
        ...         with pyro.plate("data", len(batch["x"])):
        ...             output, _ = self.attention(batch["x"], batch["x"], batch["x"])
        ...             pyro.sample("y", dist.Normal(output, 1.0).to_event(2), obs=batch["y"])
        >>> data = {"x": torch.randn(6, 5, 4), "y": torch.randn(6, 5, 4)}
        >>> driver = SVIDriver(Regression(), batch_size=2, scheduler=None, progress=False, cpu=True)
        >>> driver.fit(data, epochs=1).step
        3
    """

    model: nn.Module
    _: KW_ONLY
    guide: AttentionGuide | nn.Module | None = None
    elbo: ELBO | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise TypeError(
                f"SVIDriver.model: expected a torch.nn.Module, got {type(self.model).__name__}; wrap the function in a "
                "module (pyro.nn.PyroModule) that holds its parameters"
            )
        refuse_unwrapped(self.model)
        if not isinstance(self.guide, (AttentionGuide, nn.Module, NoneType)):
            raise TypeError(
                f"{type(self).__name__}.guide: expected an AttentionGuide or a torch.nn.Module, whose parameters are "
                f"trained, got {type(self.guide).__name__}; wrap a function in a module (pyro.nn.PyroModule)"
            )
        super().__post_init__()
        self._check_guide()
        self._resume: Resume = False

    def resume(self, folder: Path | str) -> SVIDriver:
        """Makes the next :meth:`fit` continue the run in ``folder``.

        Returns:
            The driver itself: ``driver.resume("runs/a").fit(data, epochs=3)``.
        """
        self.folder = folder
        self._resume = True
        return self

    def fit(
        self,
        train_data: Any,
        validation_data: Any = None,
        *,
        steps: int | None = None,
        epochs: int | None = None,
        resume: bool | Literal["auto"] = False,
    ) -> FitResult:
        """Trains the model in place and leaves it on its device in evaluation mode.

        Args:
            train_data: a mapping of tensors ``[N, ...]``, a data set with ``len()`` and ``[row]``, or a stream (an
                ``IterableDataset`` of torch or datasets), which needs ``shuffle=False`` and, unless it has ``len()``,
                ``steps``.
            validation_data: data in one of these forms; needed by early stopping.
            steps: number of updates of the whole run, >= 1; give either ``steps`` or ``epochs``.
            epochs: number of epochs of the whole run, >= 1.
            resume: True continues from the folder's newest checkpoint and refuses a corrupt one. "auto" starts a new
                run if there is no checkpoint, and uses the one before, with a warning, if the newest is corrupt.

        Returns:
            The result. The model has the weights of the last update; with early stopping, of the best evaluation.

        Raises:
            CheckpointError: no checkpoint to resume from; one that is corrupt or of other options; or a failed write.
            FileExistsError: the folder holds a run and ``resume`` is False.
            KeyboardInterrupt: SIGINT or SIGTERM arrived in the main thread. The current update was completed and, with
                a folder, saved in a checkpoint; a second signal stops the run without this.
            NonFiniteError: the loss or its gradient is not finite; the message names the step, sites and parameters.
            TypeError: data that cannot be indexed by row.
            ValueError: neither or both of steps and epochs; early stopping without validation data or its metric.
        """
        resume = resume or self._resume
        self._resume = False
        self._check_call(validation_data, steps, epochs, resume)
        train = check_data(train_data, "train_data", self)
        validation = None if validation_data is None else check_data(validation_data, "validation_data", self)
        refuse_unsupported(self.model)
        warn_of_frozen_sites(self.model)
        folder = None if self.folder is None else Path(self.folder)
        names = ("precision", "cpu", "trackers", "find_unused_parameters")
        session = accelerator_session(folder=folder, **{name: getattr(self, name) for name in names})
        with session as accelerator, preserved_random_state(accelerator.device), frozen_parameters():
            if accelerator.is_main_process:
                guided = self.guide is not None and type(self.guide) is not AttentionGuide
                log_latent(type(self).__name__, self.model, guided=guided)
            seed_generators(self.seed, accelerator.process_index)
            options = RunOptions(**{field.name: getattr(self, field.name) for field in fields(RunOptions)})
            particles = self.particles(len(train) if isinstance(train, Sized) else None)
            guide, objective = self.objective()
            refused = {"compile": self.compile, "precision 'fp16'": self.precision == "fp16"}
            refused |= {"particles": particles is not None, "observers": bool(self.observers)}
            refused["find_unused_parameters"] = self.find_unused_parameters
            owner = f"{type(self).__name__}.shard"
            trained = trained_objective(objective, accelerator, owner, sharded=self.shard, refused=refused)
            update = Update(options, guide, trained, particles)
            lengths = {"steps": steps, "epochs": epochs}
            data = {"rows": train, "validation": validation}
            training = ProgramTraining(options, accelerator, self.model, self.elbo, update, **data, **lengths)
            try:
                training.check_stopping()
                return Run(options, accelerator, training).train(resume)
            except (NonFiniteError, TrainingInterrupted):  # which all processes raise
                trained.pull()
                raise
            finally:
                trained.release()

    def objective(self) -> tuple[Any, AttentionELBOModule | EnsembleObjective]:
        """Returns the guide, whose ``kl_weight`` a run sets, and the module that maps a batch to :class:`ELBOTerms`."""
        guide = AttentionGuide(self.model) if self.guide is None else self.guide
        return guide, bind(self.model, guide, self.elbo)

    def particles(self, num_data: int | None) -> ParticleUpdate | None:
        """Returns None, since this driver moves no particles; :class:`SVGDDriver` overrides the method.

        Raises:
            ValueError: the model is an ensemble or has repulsive heads or layers; their repulsion would be left out.
        """
        if isinstance(self.model, ParticleEnsemble):
            raise ValueError(
                f"{type(self).__name__}: the model is an ensemble of particles; train it with "
                "probattn.inference.SVGDDriver"
            )
        if particle_sets(self.model):
            raise ValueError(
                f"{type(self).__name__}: the model has repulsive heads, or layers as particles that repel, and their "
                "repulsion would be left out; train with probattn.inference.SVGDDriver"
            )
        return None

    def _check_guide(self) -> None:
        guide = self.guide
        if isinstance(guide, AttentionGuide):
            refuse_unstarted(f"{type(self).__name__}.guide", guide)
        if guide is None or isinstance(guide, AttentionGuide):
            return
        if isinstance(guide, AutoGuide) and guide.prototype_trace is None:
            raise ValueError(
                f"{type(self).__name__}.guide: this {type(guide).__name__} has no parameters yet; call it once on a "
                "batch before"
            )
        constant = self.kl_schedule.kind == "constant" and self.kl_schedule.final == 1
        if not hasattr(guide, "kl_weight") and not constant:
            raise ValueError(
                f"{type(self).__name__}.kl_schedule: the guide has no attribute kl_weight, so that its KL has weight 1 "
                'throughout; set kl_schedule=KLSchedule("constant")'
            )

    def _check_call(self, validation: Any, steps: int | None, epochs: int | None, resume: Resume) -> None:
        if (steps is None) == (epochs is None):
            raise ValueError(
                f"SVIDriver.fit: expected one of steps and epochs, got steps={steps}, epochs={epochs}"
            )
        name, length = ("steps", steps) if epochs is None else ("epochs", epochs)
        check_integer("SVIDriver", f"fit({name})", length, minimum=1)
        if self.early_stopping is not None and validation is None:
            metric = self.early_stopping.metric
            raise ValueError(f"SVIDriver.fit: early stopping on {metric!r} needs validation_data")
        if resume and self.folder is None:
            raise ValueError(
                "SVIDriver.fit: resuming needs the folder of the run; give SVIDriver(folder=...)"
            )
        if self.precision == "fp16" and (self.cpu or not torch.accelerator.is_available()):
            raise ValueError("SVIDriver.precision: 'fp16' needs a GPU; use 'bf16' or 'no' on a CPU")


def _rows(batch: Any) -> int:
    """Rows of a batch, which all its tensors have."""
    values = batch.values() if isinstance(batch, Mapping) else [batch] if isinstance(batch, Tensor) else batch
    rows = {len(value) for value in values if isinstance(value, Tensor) and value.dim()}
    if len(rows) != 1:
        got = ", ".join(map(str, sorted(rows))) or "none"
        raise ValueError(
            f"SVGDDriver.step: expected num_data, the size of the data, unless the tensors of the batch have as many "
            f"rows as the data, got {type(batch).__name__} with rows {got}"
        )
    return rows.pop()


@dataclass(eq=False)
class SVGDDriver(SVIDriver):
    r"""Trains particles of one posterior: the attention heads of a network, or whole models.

    **Heads** (An et al. 2020). The potential U is the loss of :class:`SVIDriver`, a mean over data, including factors
    and the KL of latent weights. All heads share one likelihood, so one forward and backward pass gives all their
    gradients. These are clipped and then replaced by :math:`-\epsilon \phi`, the direction of SVGD, SPOS or SGLD
    according to the options in :class:`probattn.RepulsiveAttention`; the optimiser then updates all parameters. The
    layers of :class:`probattn.ParticleLayers` are trained in the same way.

    **Whole models** (Liu and Wang 2016). The model is a :class:`ParticleEnsemble`, and ``method`` has the options of
    its particles; by default the particles represent the posterior. Recorded losses are means over particles. The
    gradient of each particle is clipped separately; ``gradient_norm`` in a record is the root mean square of the
    gradients' norms. Parameters that particles share follow the gradient of the mean loss.

    Everything else is as in :class:`SVIDriver`. The noise depends only on the seed in the options of the particles and
    the number of the update. Training records have the key ``particles``: for each set of particles the kernel's
    bandwidth, the ratio of repulsion to attraction, the smallest distance between two particles (also divided by their
    root mean square norm) and this norm. Particles that coincide give a :class:`probattn.particles.CollapseWarning`.

    Args:
        kernel: a kernel of :mod:`probattn.particles`, or one that Pyro's SVGD takes (``pyro.infer.svgd.SteinKernel``);
            None for the one in the options of the particles.
        method: options of an ensemble's particles; by default ``EnsembleOptions()``. Leave it None for heads.

    Raises:
        TypeError: the model is not an ``nn.Module``.
        ValueError: an option out of its range, or (from :meth:`fit`) a model without particles.

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
        """Particles by name, detached, as ``pyro.infer.SVGD`` returns them.

        Returns:
            For heads, ``[H, D]`` (D numbers in one head's slice of the weight) by projection; for P whole models, their
            parameters ``[P, ...]`` by name.
        """
        if isinstance(self.model, ParticleEnsemble):
            return self.model.named_particles()
        return {name: particles.particles() for name, (_, particles) in particle_sets(self.model).items()}

    def step(self, batch: Any, *, num_data: int | None = None) -> dict[str, float]:
        """Makes one complete update outside a run, including the optimiser's step, like ``pyro.infer.SVGD.step``.

        The first call makes the optimiser. The KL weight is ``kl_schedule.final``. Precision, processes, schedules,
        records and checkpoints apply only to :meth:`fit`; the mode and device of the model do not change.

        Args:
            batch: the model's argument.
            num_data: size N of the training data; None if the batch is all of the data.

        Returns:
            The mean square of the gradients that the optimiser received, by the names of :meth:`get_named_particles`.

        Raises:
            ValueError: ``num_data`` differs from that of the first call, or the model has no particles.
        """
        size = _rows(batch) if num_data is None else num_data
        if self._update is None:
            guide, objective = self.objective()
            self._update, self._num_data = (
                Update(self, guide, TrainedObjective(objective), self.particles(size)),
                size,
            )
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
        """See :meth:`SVIDriver.objective`; in an ensemble each particle gets the gradient of its loss."""
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
        """Returns the object that replaces the particles' gradients by directions, for ``num_data`` training rows."""
        if num_data is None:
            raise ValueError(
                "SVGDDriver.fit: expected a stream with a method __len__, the number N of its rows, by which the "
                "particles' repulsion is divided; wrap it in one that has it"
            )
        if isinstance(self.model, ParticleEnsemble):
            method = EnsembleOptions() if self.method is None else self.method
            return EnsembleParticles(self.model, method, num_data, self.kernel)
        return HeadParticles(self.model, num_data, self.kernel)
