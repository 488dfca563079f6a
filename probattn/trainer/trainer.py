"""``transformers.Trainer`` that fits the posterior of a network's attention."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers.trainer_utils import EvalLoopOutput

from probattn.checks import PlainWarning, check_choice, check_instance, check_integer, check_number
from probattn.inference.compiled import CompiledNetworks
from probattn.inference.configuration import log_latent, warn_of_frozen_sites
from probattn.inference.loop import NonFiniteError
from probattn.inference.optimizers import added_parameters
from probattn.inference.options import FINE_TUNING_WEIGHT, KLSchedule
from probattn.inference.particle_update import particle_sets
from probattn.inference.session import (
    derived_seed,
    evaluating,
    frozen_parameters,
    preserved_random_state,
    seed_generators,
)
from probattn.inference.sharding import TrainedObjective, trained_objective
from probattn.inference.training import EVALUATION
from probattn.models.choosing import program_for
from probattn.models.heads.classification import Classifier, MultiLabelClassifier, Regressor
from probattn.models.heads.tokens import TokenClassifier
from probattn.models.hosts.description import CARD, note_evaluations
from probattn.models.hosts.saving import card_of
from probattn.models.program import HeadProgram
from probattn.sites.noise import Noise, SeededNoise
from probattn.trainer.checkpoints import Checkpoints
from probattn.trainer.evaluation import (
    EvaluationMeans,
    Prediction,
    add_to_card,
    labelled_rows,
    mean_of_draws,
    mean_of_moments,
    prediction_words,
    real_rows,
    with_program,
)
from probattn.trainer.refusals import (
    refuse_arguments,
    refuse_certain,
    refuse_model,
    refuse_other_loss,
    refuse_smoothing,
    size_for_particles,
    some_labels,
    warn_of_loss,
)
from probattn.trainer.updates import (
    Objective,
    Updates,
    calling,
    nothing_compiled,
    parameters_of,
    undecayed,
)

TRAINING = 0  # kind of the noise of training, beside that of evaluation


class ProbabilisticTrainer(Checkpoints):
    r"""``transformers.Trainer`` whose loss is the negative evidence lower bound per label, with a weighted KL.

    In an existing script, convert the network and use this class instead of ``Trainer``. The trainer's model is still
    the Hugging Face network, so saving, the hub, callbacks and generation do not change. For one update, with the
    labelled rows of all micro-batches and processes and their n observed labels, the loss is

    .. math:: -\frac{1}{n} \Big(\log p(y \mid x, S) - w \sum_l r_l\, \mathrm{KL}(q(S^l) \,\|\, p(S^l))\Big),
        \quad S \sim q,

    with w the weight of ``kl_schedule``, l an attention call and :math:`r_l` the factor of its ``kl_reduction``, 1 for
    "sum" (Zhang et al. 2021a, section 3.3). For a network that is not converted this is the usual cross-entropy. The
    noise depends on the seed, the step, the micro-batch and the process; a resumed run repeats the uninterrupted one.

    The loss includes the terms of alignment and disagreement attention; the gradients of alignment's networks are
    clipped separately from all others. After clipping and before the optimiser step, the gradients of repulsive heads
    are replaced by the directions of their sampler. Logs contain ``log_likelihood``, ``kl``, ``kl_nats``, ``factors``
    (per label, see :class:`probattn.inference.ELBOTerms`) and ``kl_weight``. Evaluations give the first four and
    ``eval_loss`` as exact means over labels, with the final KL weight and the same noise every time.

    The class can be combined with subclasses of ``Trainer``: ``class Mine(ProbabilisticTrainer, Seq2SeqTrainer)``.

    Args:
        *args: positional arguments of ``transformers.Trainer``.
        program: function from the network to its Pyro model. Default: :func:`probattn.models.program_for`, which
            chooses one by the class of the head. A ``mean_length`` of the program is ignored: the loss is per label.
        kl_schedule: weight of the KL; by default it rises over the first half of the updates to 1e-3, as in recipes.
            Fine-tuning needs a weight far below 1. ``KLSchedule()`` has weight 1, which with
            ``BayesianAttention(kl_reduction="sum")`` gives the evidence lower bound.
        site_learning_rate: learning rate of the parameters that the conversion added to attention calls, > 0; None for
            ``args.learning_rate``. If an optimizer is passed to the trainer, none of these rates is used.
        noise_learning_rate: learning rate of the log scale of regression noise, > 0; None for ``args.learning_rate``.
        alignment_learning_rate: learning rate of the networks of alignment attention, > 0; None for
            ``args.learning_rate``.
        prediction: what ``predict`` and ``compute_metrics`` get. "mean": the network's outputs with attention at its
            posterior expectation. "draws": the log of the mean probabilities over draws, in the shape of the logits
            (log-odds for labels 0 or 1, the mean in regression). "moments": the same in closed form
            (:func:`probattn.inference.posterior_moments`, method "auto").
        num_samples: number of draws for "draws", >= 1, or to check the closed form of "moments", >= 2.
        num_data: number of training labels, >= 1, for prior and noise of repulsive heads; None for the number of rows.
        shard: whether processes share parameters, gradients and states of the optimizer in training (FSDP2), each of
            them holding a part. Meanwhile the network is on the CPU, with the weights of the last evaluation,
            checkpoint or end of an epoch; for evaluations it is on the device. Without effect in a single process.
        **kwargs: keyword arguments of ``transformers.Trainer``.

    Raises:
        NonFiniteError: (in training) the loss or its gradient is not finite; the message names the sites.
        TypeError: the model is a Pyro model or an ensemble; there is no Pyro model for its head; or another base class
            defines ``compute_loss``, which would not be used.
        ValueError: an option out of its range; "draws" or "moments" for a network without attention sites; label
            smoothing for a head that does not have it; ``compute_loss_func``; ``torch.nn.DataParallel``, DeepSpeed or
            FSDP.

    Example:
        >>> import tempfile
        >>> import probattn
        >>> from probattn.models import convert
        >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
        >>> size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        >>> net = convert(BertForSequenceClassification(BertConfig(vocab_size=9, **size)), probattn.BayesianAttention())
        >>> rows = [{"input_ids": torch.tensor([1, 2 + i % 7]), "labels": i % 2} for i in range(8)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     args = TrainingArguments(folder, max_steps=2, use_cpu=True, report_to="none", disable_tqdm=True)
        ...     trainer = ProbabilisticTrainer(model=net, args=args, train_dataset=rows)
        ...     trainer.train().global_step
        {'train_runtime': ...}
        2
    """

    def __init__(
        self,
        *args: Any,
        program: Callable[[Any], HeadProgram] | None = None,
        kl_schedule: KLSchedule | None = None,
        site_learning_rate: float | None = 1e-3,
        noise_learning_rate: float | None = 1e-2,
        alignment_learning_rate: float | None = 1e-3,
        prediction: Prediction = "mean",
        num_samples: int = 20,
        num_data: int | None = None,
        shard: bool = False,
        **kwargs: Any,
    ) -> None:
        owner = "ProbabilisticTrainer"
        self._rates = {
            "sites": site_learning_rate,
            "noise": noise_learning_rate,
            "alignment": alignment_learning_rate,
        }
        for kind, rate in zip(("site", "noise", "alignment"), self._rates.values(), strict=True):
            if rate is not None:
                check_number(owner, f"{kind}_learning_rate", rate, positive=True)
        for name, number in (("num_samples", num_samples), ("num_data", num_data)):
            if number is not None:
                check_integer(owner, name, number, minimum=1)
        check_choice(owner, "prediction", prediction, Prediction)
        if prediction == "moments":
            check_integer(owner, "num_samples", num_samples, minimum=2)
        refuse_model(args[0] if args else kwargs.get("model"))
        refuse_arguments(args[1] if len(args) > 1 else kwargs.get("args"), kwargs.get("compute_loss_func"))
        refuse_other_loss(super().compute_loss)
        if kl_schedule is not None:
            words = "a KLSchedule, such as KLSchedule(final=1e-3)"
            check_instance(owner, "kl_schedule", kl_schedule, KLSchedule, words)
        self.kl_schedule = KLSchedule(final=FINE_TUNING_WEIGHT) if kl_schedule is None else kl_schedule
        self.prediction, self.num_samples, self.num_data = prediction, num_samples, num_data
        self._make_program = self._default_program if program is None else program
        self._objective: Objective | None = None
        self._bound_to: Any = None
        self._updates: Updates | None = None
        self.shard, self._trained = shard, TrainedObjective(None)
        self._evaluation = EvaluationMeans()
        super().__init__(*args, **kwargs)
        if prediction != "mean" and getattr(self.args, "predict_with_generate", False):
            raise ValueError(
                f"{owner}: prediction={prediction!r} gives probabilities of labels, and predict_with_generate "
                "texts; choose prediction='mean', whose texts are those of the posterior expectation"
            )
        # The loss below is divided by the number of labels: the trainer is not to divide it by that of micro-batches.
        self.model_accepts_loss_kwargs = True
        self.add_callback(calling("on_pre_optimizer_step", self._before_step))
        # Before callbacks that use the weights.
        self.callback_handler.callbacks.insert(0, calling("on_epoch_end", self._after_epoch))
        if program is None:
            warn_of_loss(self.model)
        refuse_certain(self._bound().program, prediction)

    def create_accelerator_and_postprocess(self) -> None:
        """Makes the accelerator, which clips the networks of alignment attention apart from all other parameters."""
        super().create_accelerator_and_postprocess()
        if self.accelerator.distributed_type in (DistributedType.DEEPSPEED, DistributedType.FSDP):
            raise ValueError(
                f"ProbabilisticTrainer: expected one process or data-parallel ones, got "
                f"{self.accelerator.distributed_type.value}; launch with accelerate's or torchrun's plain mode "
                "(shard=True shards parameters)"
            )
        self.accelerator.clip_grad_norm_ = self._clip

    @property
    def _network(self) -> nn.Module:
        return cast(nn.Module, self.model)

    @property
    def program(self) -> HeadProgram:
        """The Pyro model around the network: network and likelihood."""
        return self._bound().program

    def _bound(self) -> Objective:
        """The objective of the present network."""
        if self._objective is None or self._bound_to is not self.model:
            program = self._make_program(self.model)
            if factor := self.args.label_smoothing_factor:
                refuse_smoothing(program, factor)
                program.label_smoothing = factor
            if isinstance(program, TokenClassifier):
                program.mean_length = None  # the loss is per label already
            self._objective, self._bound_to = Objective.of(program), self.model
        return self._objective

    def _default_program(self, net: Any) -> HeadProgram:
        program = program_for(net, labels=some_labels(self.train_dataset, self.eval_dataset))
        if not isinstance(program, HeadProgram):
            raise TypeError(
                f"ProbabilisticTrainer: expected a program with a head, got {type(program).__name__}"
            )
        return program

    def noise(self, kind: int, *indices: int) -> Noise:
        """Source of the noise of one batch; equal arguments give equal noise, different in each process.

        Args:
            kind: 0 for training, 1 for evaluation.
            *indices: in training the number of completed steps and of the micro-batch, else the number of the batch.
        """
        seed = derived_seed(self.args.seed, self.args.process_index, kind, *indices)
        return SeededNoise([seed], self.args.device)

    # Training

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """As ``Trainer.train``. Frozen parameters, as with adapters, are allowed."""
        try:
            with frozen_parameters():
                return super().train(*args, **kwargs)
        except NonFiniteError:  # which all processes raise
            self._trained.pull()
            raise
        finally:
            if self._trained.whole is not self._trained.objective:
                self.model_wrapped, self._updates = self._network, None  # which hold the sharded copy
                self.accelerator.free_memory()
            self._trained.release()
            self._trained = TrainedObjective(None)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        """The optimizer of ``Trainer``, with separate groups and learning rates of parameters that conversion added."""
        provided = self.optimizer is not None
        added = added_parameters(self._bound())
        optimizer: Optimizer = super().create_optimizer(*args, **kwargs)
        if not provided:
            rates = {kind: rate or self.args.learning_rate for kind, rate in self._rates.items()}
            parameters_of(optimizer.param_groups, added, rates)
        return optimizer

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """As in ``Trainer``, without added parameters of fewer than two dimensions, which get no weight decay."""
        names = super().get_decay_parameter_names(model)
        left_out = undecayed(model, added_parameters(model))
        return [name for name in names if name not in left_out]

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """In training the objective around the network, prepared for precision and processes."""
        if not training:
            return self._network
        warn_of_frozen_sites(self._network)
        if self.is_world_process_zero():
            log_latent("ProbabilisticTrainer", self._network)
        self._objective = None  # a run of its own: accelerate changes what it prepares
        objective = self._bound()
        if self.args.torch_compile:
            backend, mode = self.args.torch_compile_backend or "inductor", self.args.torch_compile_mode
            objective.graphs = CompiledNetworks("torch_compile", objective.program, backend, mode)
        self._trained.release()  # where smaller batches are tried
        refused = {"torch_compile": self.args.torch_compile, "fp16": self.args.fp16}
        refused["repulsive heads"] = bool(particle_sets(objective))
        owner = "ProbabilisticTrainer.shard"
        trained = trained_objective(
            objective.elbo, self.accelerator, owner, sharded=self.shard, refused=refused
        )
        if trained.whole is not trained.objective:
            objective = Objective(trained.objective, repeatable=False)
        self._trained = trained
        self._updates = Updates(
            objective,
            self.accelerator,
            lambda: self.num_data or size_for_particles(self.train_dataset),
            self.kl_schedule.final,
        )
        trained.adopt(cast(Optimizer, self.optimizer))
        with nothing_compiled(self.accelerator):
            return trained.prepare(self.accelerator, objective)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> int | None:
        """Number of observed labels of an update, of all processes where they are averaged over."""
        if not batch_samples:
            return None
        count = sum(map(self.program.observations, batch_samples))
        if self.args.world_size > 1 and self.args.average_tokens_across_devices:
            count = int(self.accelerator.reduce(torch.tensor(count, device=device), "sum"))
        return count

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Negative evidence lower bound of a micro-batch, divided by the number of observed labels of the update."""
        if self.accelerator.unwrap_model(model) is self.model:  # in an evaluation, which has its own loss
            outputs = model(**inputs)
            loss = outputs["loss"] if isinstance(outputs, dict) else outputs[0]
            return (loss, outputs) if return_outputs else loss
        if return_outputs:
            raise ValueError(
                "ProbabilisticTrainer.compute_loss: return_outputs=True is for evaluation; in training the network "
                "runs inside the evidence lower bound, and its outputs are not kept"
            )
        updates = self._updates
        assert updates is not None
        guide = updates.objective.guide
        if num_items_in_batch is None:
            num_items_in_batch = self.program.observations(inputs)
        guide.kl_weight = self.kl_schedule.weight(self.state.global_step, max(self.state.max_steps, 1))
        guide.noise = self.noise(TRAINING, self.state.global_step, updates.micro_batch)
        labelled, rows = labelled_rows(self.program, inputs)
        share = rows / max(int(num_items_in_batch), 1)
        if self.args.average_tokens_across_devices:
            share *= self.accelerator.num_processes  # gradients are averaged over processes
        terms = model(labelled)
        updates.add(share * torch.stack([term.detach() for term in terms]))
        return share * terms.loss

    def _clip(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Tensor:
        assert self._updates is not None
        return self._updates.clip(max_norm)

    def _before_step(self) -> None:
        assert self._updates is not None
        step = self.state.global_step
        measured = self.state.logging_steps > 0 and (step + 1) % self.state.logging_steps == 0
        self._updates.before_step(step, measure=measured, folder=str(self.args.output_dir))
        note_evaluations(self._network, {})  # those were of other weights

    def _after_epoch(self) -> None:
        self._trained.pull()

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Logs the loss and its terms."""
        if "loss" in logs and self._updates is not None:
            logs.update(self._updates.take())
        super().log(logs, *args, **kwargs)

    # Evaluation

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """As in ``Trainer``, with the same noise at each evaluation; the loss is the mean over all labels."""
        device, means, compute = self.args.device, EvaluationMeans(), self.compute_metrics
        self._evaluation = means
        if compute is not None:
            self.compute_metrics = with_program(compute, self.program)
        try:
            with preserved_random_state(device):
                seed_generators(self.args.seed, self.args.process_index, EVALUATION)
                options = prediction_loss_only, ignore_keys, metric_key_prefix
                with nothing_compiled(self.accelerator), self._trained.ready():
                    output = super().evaluation_loop(dataloader, description, *options)
        finally:
            self.compute_metrics = compute
        figures, metrics = means.take(self.accelerator), output.metrics or {}
        named = {f"{metric_key_prefix}_{name}": value for name, value in figures.items()}
        if figures:
            words = prediction_words(self.prediction, self.num_samples)
            told = metrics | {"log_likelihood": figures["log_likelihood"]}
            data = getattr(dataloader, "dataset", None)
            add_to_card(self._network, metric_key_prefix, told, output.num_samples, data, words)
        elif (loss := f"{metric_key_prefix}_loss") in metrics:
            named = {loss: math.nan}
            advice = "labels that are missing are -100 or NaN"
            warnings.warn(
                f"no row of the data has a label, so {loss} is NaN; {advice}", PlainWarning, stacklevel=3
            )
        return output._replace(metrics={**metrics, **named})

    def triage(self, dataset: Any, *, error: float | None = 0.05, pilot: Any = None, **options: Any) -> Any:
        """Calibrates a policy: which inputs the network answers at a target error rate, and which need human review.

        Args:
            dataset: held-out labelled data that were used neither for training nor for any choice (epoch, settings). A
                row with several tokens or labels counts as right only if all are right. Texts that are also in
                ``train_dataset`` are left out, with a warning.
            error: largest allowed share of wrong answers among the answered inputs, kept with the ``confidence`` of the
                options (0.95); None if ``cost`` is given.
            pilot: other labelled in-domain data, which choose the threshold at which the sequence of tests starts.
                Default: ``eval_dataset``, unless it is ``dataset`` itself or a dictionary.
            **options: options of :class:`probattn.triage.TriageOptions`. ``novelty`` measures the distance from (up to
                4,000 inputs of) ``train_dataset``, in the features of the last layer.

        Returns:
            The :class:`probattn.triage.Policy`. ``print(policy)`` shows what it answers; its method ``decide`` decides
            on an input; :func:`probattn.triage.write_policy` saves it.

        Raises:
            RunError: no inputs; or ``novelty`` without classes, without a sized ``train_dataset`` of classes, or with
                several processes.
            ValueError: a head of numbers or spans, data without labels, or an option out of its range.

        Example:
            ``trainer.triage(test, error=0.1, sets="lac")``
        """
        triage: Any = import_module("probattn.triage.trainers")  # which stands on this package
        kind = import_module("probattn.triage").TriageOptions
        return triage.triage_trainer(self, dataset, pilot, kind(error=error, **options))

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor | None, Any, Any]:
        """Returns loss (negative evidence lower bound per label), prediction and labels of a batch."""
        labelled = bool(self.label_names) and all(inputs.get(name) is not None for name in self.label_names)
        number = self._evaluation.batches
        self._evaluation.batches += 1
        loss = self._evaluation_loss(self._prepare_inputs(inputs), number) if labelled else None
        if prediction_loss_only:
            return loss, None, None
        rows = labelled and isinstance(self.program, Classifier | MultiLabelClassifier | Regressor)
        if self.prediction == "mean" and not rows:
            _, scores, labels = super().prediction_step(model, inputs, False, ignore_keys, **kwargs)
            return loss, scores, labels
        inputs = self._prepare_inputs(inputs)
        targets = tuple(inputs[name] for name in self.label_names) if labelled else ()
        # transformers' loss knows no missing labels, and no soft ones of one class.
        if self.prediction == "mean":
            plain = self.program.inputs(inputs)
            _, scores, _ = super().prediction_step(model, plain, False, ignore_keys, **kwargs)
            return loss, scores, targets[0]
        refuse_certain(self.program, self.prediction)
        with self.accelerator.autocast():
            predict = mean_of_moments if self.prediction == "moments" else mean_of_draws
            seed = self.args.seed, self.args.process_index, number
            scores = predict(self.program, self.program.inputs(inputs), self.num_samples, *seed)
        predicted = scores if len(self.program.label_names) == 1 else scores.unbind(1)
        return loss, predicted, (targets[0] if len(targets) == 1 else targets) if labelled else None

    @torch.no_grad()
    def _evaluation_loss(self, inputs: Mapping[str, Any], number: int) -> Tensor:
        """The batch's loss by label under the final KL weight; its terms go into the means of the data set."""
        guide = self._bound().guide
        guide.kl_weight, guide.noise = self.kl_schedule.final, self.noise(EVALUATION, number)
        batch, rows = labelled_rows(self.program, real_rows(inputs, self.accelerator))
        labels = self.program.observations(batch)
        if labels == 0:
            return torch.zeros((), device=self.args.device)
        # Trainer sets the network's mode alone; a program that smooths labels does so while it trains.
        with evaluating(self.program), self.accelerator.autocast():
            terms = self._bound()(batch)
        self._evaluation.add(terms, rows, labels)
        return terms.loss * (rows / labels)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with self._trained.saving(self.optimizer):
            super()._save_checkpoint(*args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Writes the model card of ``Trainer`` with a description of the converted attention and its evaluations."""
        super().create_model_card(*args, **kwargs)
        if self.is_world_process_zero():
            with (Path(str(self.args.output_dir)) / CARD).open("a", encoding="utf-8") as file:
                file.write(card_of(self._network))
