"""What a :class:`ProbabilisticTrainer` asks of its network, arguments and data before it begins."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any, cast

import torch
from pyro.nn import PyroModule
from torch import Tensor
from transformers import Trainer, TrainingArguments

from probattn.checks import PlainWarning, check_share, shown
from probattn.inference.configuration import attention_sites
from probattn.inference.ensembles.ensemble import ParticleEnsemble
from probattn.models.program import HeadProgram
from probattn.sites.particle_layers import particle_count

LABELS = ("labels", "label", "label_ids")  # keys of the labels in a row, as transformers' collators know them
ROWS_READ = 1000
"""Rows whose labels are read, where that of the first one does not tell what labels are."""
LIBRARIES = ("transformers.", "torch.", "probattn.", "peft.")
PROGRAM = "program=functools.partial(probattn.models.Classifier, class_weights=...) for weights of classes"
PROCESSES = "launch plain processes (accelerate launch, torchrun)"
REASONS: Mapping[str, str] = {
    "deepspeed": "its engine calls the network alone, and the divergence of the attention sites needs the whole "
    f"program; {PROCESSES}",
    "fsdp": "sharded parameters are whole only inside the network's own call, and the divergence of the attention "
    f"sites needs them after it; {PROCESSES}, with ProbabilisticTrainer(shard=True)",
}
"""Arguments that are refused where they are set, and why."""


def refuse_model(model: Any) -> None:
    """Refuses what is no network with a head: programs and ensembles."""
    if isinstance(model, ParticleEnsemble):
        raise TypeError(
            "ProbabilisticTrainer: expected a network, got a ParticleEnsemble, whose particles have a loss each; train "
            "it with probattn.inference.SVGDDriver, or convert a network with probattn.ParticleLayers"
        )
    if isinstance(model, PyroModule):
        name = type(model).__name__
        raise TypeError(
            f"ProbabilisticTrainer: expected a network, got the program {name}; give its network, and the program's "
            f"class as program={name} where it is not the one that probattn.models.program_for chooses"
        )


def refuse_arguments(args: TrainingArguments | None, compute_loss_func: Any) -> None:
    """Refuses arguments that would change the objective, or under which Pyro's handlers do not hold."""
    if compute_loss_func is not None:
        raise ValueError(
            "ProbabilisticTrainer: compute_loss_func would replace the evidence lower bound; leave it out, or give "
            f"the likelihood as a program: {PROGRAM}"
        )
    if args is None:
        return
    for name, reason in REASONS.items():
        if getattr(args, name):
            raise ValueError(
                f"ProbabilisticTrainer: {name}={getattr(args, name)!r} is not supported: {reason}"
            )
    if args.n_gpu > 1:
        raise ValueError(
            f"ProbabilisticTrainer: {args.n_gpu} devices in one process are not supported: torch.nn.DataParallel runs "
            f"threads that Pyro's handlers do not reach; {PROCESSES}, or leave one device visible "
            "(CUDA_VISIBLE_DEVICES=0)"
        )


def refuse_certain(program: HeadProgram, prediction: str) -> None:
    """Refuses draws and moments of a network without attention sites, in which nothing is random."""
    particles = prediction == "draws" and particle_count(program) is not None
    if prediction != "mean" and not attention_sites(program) and not particles:
        raise ValueError(
            f"ProbabilisticTrainer: prediction={prediction!r} of a {type(program.net).__name__} without attention "
            "sites, in which nothing is random; convert it first, probattn.convert(net, "
            "probattn.BayesianAttention()) (after probattn.models.revert(net), if other methods converted it), or "
            "leave prediction at 'mean'"
        )


def refuse_smoothing(program: HeadProgram, factor: float) -> None:
    """Refuses a ``label_smoothing_factor`` out of its range, or for a program that has no smoothing or its own."""
    check_share("ProbabilisticTrainer", "args.label_smoothing_factor", factor, one=False)
    name, smoothing = type(program).__name__, getattr(program, "label_smoothing", None)
    if smoothing is None:
        raise ValueError(
            f"ProbabilisticTrainer: label_smoothing_factor={factor} is not supported with {name}, whose likelihood "
            "has no label smoothing; leave it out, or give a program that has: program=..."
        )
    if smoothing not in (0, factor):
        raise ValueError(
            f"ProbabilisticTrainer: label_smoothing_factor={factor}, but the program has label_smoothing={smoothing}; "
            "give one of them"
        )


def refuse_other_loss(loss: Any) -> None:
    """Refuses a loss that a class mixed in has of its own, and that would be left out."""
    function = getattr(loss, "__func__", loss)
    if function is not Trainer.compute_loss:
        raise TypeError(
            f"ProbabilisticTrainer: {function.__qualname__} would be left out, for the loss is the evidence lower "
            f"bound; give the likelihood as a program, {PROGRAM}, and leave that method out"
        )


def _labels_of(row: Any) -> Any:
    named = row if isinstance(row, Mapping) else {}
    return next((named[name] for name in LABELS if name in named), None)


def warn_of_loss(net: Any) -> None:
    """Warns of losses that are left out: of a user's class that takes labels, and of routers to experts."""
    forward = next((vars(kind)["forward"] for kind in type(net).__mro__ if "forward" in vars(kind)), None)
    module = getattr(forward, "__module__", "")
    if not module.startswith(LIBRARIES) and "labels" in inspect.signature(cast(Any, forward)).parameters:
        warnings.warn(
            f"ProbabilisticTrainer: the loss of {type(net).__name__}.forward is left out, for the loss is the evidence "
            f"lower bound; give the likelihood as a program, {PROGRAM}",
            PlainWarning,
            stacklevel=3,
        )
    config = getattr(net, "config", None)
    configs = (config, getattr(config, "text_config", None))
    # transformers adds it to losses of language models alone.
    generates = getattr(net, "can_generate", bool)()
    if generates and any(getattr(one, "output_router_logits", False) for one in configs):
        warnings.warn(
            f"ProbabilisticTrainer: {type(net).__name__} has config.output_router_logits=True, and the load-balancing "
            "loss of its routers is left out, for the loss is the evidence lower bound; freeze the weights of "
            "the routers, or set output_router_logits=False if the balance of the experts may change",
            PlainWarning,
            stacklevel=3,
        )


def some_labels(*data: Any) -> Tensor | None:
    """Labels of a row, which tell several classes from several labels; ``ValueError`` where they are no numbers.

    Labels of 0 and 1 whose sum is 1 may be soft labels of one class too: then those of more rows, ``[N, C]``.
    """
    rows: Any = next((row for row in data if hasattr(row, "__len__") and not isinstance(row, dict)), ())
    labels = _labels_of(rows[0]) if len(rows) else None
    try:
        first = None if labels is None else torch.as_tensor(labels)
        if first is None or not first.is_floating_point() or first.ndim != 1 or float(first.sum()) != 1:
            return first
        more = (torch.as_tensor(_labels_of(rows[number])) for number in range(min(len(rows), ROWS_READ)))
        return torch.stack(list(more))
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"ProbabilisticTrainer: expected numbers as labels, got {shown(labels)} in the first row; number the "
            "classes, with the names in config.label2id"
        ) from error


def size_for_particles(data: Any) -> int:
    """Number of rows of the training data; ``ValueError`` where it is not known."""
    if data is None or not hasattr(data, "__len__"):
        raise ValueError(
            "ProbabilisticTrainer: repulsive heads need the size of the training data, which has no length; give "
            "num_data"
        )
    return len(data)
