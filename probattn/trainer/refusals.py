"""What a :class:`ProbabilisticTrainer` refuses before it begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyro.nn import PyroModule
from transformers import Trainer, TrainingArguments

from probattn.inference.ensembles.ensemble import ParticleEnsemble

REASONS: tuple[tuple[str, Callable[[TrainingArguments], bool], str], ...] = (
    (
        "label_smoothing_factor",
        lambda args: args.label_smoothing_factor != 0,
        "the likelihood is that of the program, not a smoothed loss; set it to 0, or smooth the likelihood, such as "
        "program=functools.partial(probattn.models.Translator, label_smoothing=0.1)",
    ),
    (
        "deepspeed",
        lambda args: bool(args.deepspeed),
        "its engine calls the network alone, and the divergence of the attention sites needs the whole program; launch "
        "plain processes (accelerate launch, torchrun)",
    ),
    (
        "fsdp",
        lambda args: bool(args.fsdp),
        "sharded parameters are whole only inside the network's own call, and the divergence of the attention sites "
        "needs them after it; launch plain processes (accelerate launch, torchrun)",
    ),
    (
        "torch_compile",
        lambda args: bool(args.torch_compile),
        "a compiled graph cannot hold pyro.sample; leave it out",
    ),
    (
        "n_gpu",
        lambda args: args.n_gpu > 1,
        "torch.nn.DataParallel runs threads that Pyro's handlers do not reach; launch one process per device "
        "(accelerate launch, torchrun), or show the program one device (CUDA_VISIBLE_DEVICES=0)",
    ),
)


def refuse_model(model: Any) -> None:
    """Refuses what is no network with a head: programs and ensembles."""
    if isinstance(model, ParticleEnsemble):
        raise TypeError(
            "ProbabilisticTrainer: expected a network, got a ParticleEnsemble, whose particles have a loss each; train "
            "it with probattn.inference.SVGDDriver"
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
            "the likelihood as a program: program=..."
        )
    if args is None:
        return
    for name, given, reason in REASONS:
        if given(args):
            raise ValueError(
                f"ProbabilisticTrainer: {name}={getattr(args, name)!r} is not supported: {reason}"
            )


def refuse_other_loss(loss: Any) -> None:
    """Refuses a loss that a class mixed in has of its own, and that would be left out."""
    function = getattr(loss, "__func__", loss)
    if function is not Trainer.compute_loss:
        raise TypeError(
            f"ProbabilisticTrainer: {function.__qualname__} would be left out, for the loss is the evidence lower "
            "bound; give the likelihood as a program: program=..., and leave that method out"
        )
