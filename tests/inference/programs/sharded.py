"""A driver's run, in one process or in two that share its parameters."""

from __future__ import annotations

import math
import os
import shutil
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import transformers as hf
from torch import Tensor, nn

from probattn import AlignmentAttention, BayesianAttention
from probattn.inference import (
    AttentionGuide,
    EarlyStopping,
    KLSchedule,
    NonFiniteError,
    OptimizerOptions,
    SVIDriver,
    posterior_predict,
)
from probattn.models import Classifier, convert

ROWS, TEST = 26, 7
SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


class Even:
    """Noise that is the same for every row."""

    draws = 1

    def uniform(self, like: Tensor) -> Tensor:
        return torch.full_like(like, 0.5)

    normal = uniform


def data(rows: int, seed: int) -> dict[str, Tensor]:
    words = torch.randint(1, 50, (rows, 8), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": words, "labels": words[:, 0] % 2}


def count(module: nn.Module, *_: Any) -> None:
    module.passes += module.training * (1 + int(os.environ.get("RANK", "0")))


def program() -> Classifier:
    """A network of which each process has other weights, and a buffer that each process changes in training."""
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    net = hf.BertForSequenceClassification(hf.BertConfig(intermediate_size=16, **SIZES))
    net.apply(lambda module: setattr(module, "p", 0.0) if isinstance(module, nn.Dropout) else None)
    net.classifier.register_buffer("passes", torch.zeros(1))
    net.classifier.register_forward_hook(count)
    methods = BayesianAttention(), AlignmentAttention(method="gan", weight=0.1)
    return Classifier(convert(net, *methods), num_data=ROWS)


def run(folder: Path, processes: int, *, resume: bool = False, **changed: Any) -> dict[str, Any]:
    """Weights, records and a prediction after six updates of eight rows."""
    model, seen = program(), []
    options: dict[str, Any] = {
        "optimizer": OptimizerOptions("SGD", learning_rate=0.05, arguments={"momentum": 0.9}),
        "kl_schedule": KLSchedule(final=0.3),
        "early_stopping": EarlyStopping(patience=9),
        "callbacks": [lambda _, model: seen.append(model.net.classifier.weight.abs().sum().item())],
        "shard": processes > 1,
        "batch_size": 8 // processes,
        "max_grad_norm": 0.5,
        "folder": folder,
        "checkpoint_every": 2,
        "log_every": 1,
        "eval_every": 2,
        "progress": False,
        "cpu": True,
    }
    driver = SVIDriver(model, guide=AttentionGuide(model, noise=Even()), **options | changed)
    result = driver.fit(data(ROWS, 0), data(TEST, 1), steps=6, resume=resume)
    predicted = posterior_predict(model, data(TEST, 1), num_samples=2, seed=0).logits
    return {
        "weights": dict(model.state_dict()),
        "loss": result.train["loss"],
        "validation": result.validation["loss"],
        "gradient_norm": result.train["gradient_norm"],
        "best_step": result.best_step,
        "kl_weight": driver.guide.kl_weight,
        "predicted": predicted,
        "seen": seen,
    }


def failing(ends: str) -> dict[str, Any]:
    """What is left of a run without a folder whose second process ends it at its third update."""
    model, rank = program(), int(os.environ["RANK"])
    calls: list[int] = []

    def end(module: nn.Module, _: Any, logits: Tensor) -> Tensor:
        calls.append(1)
        if not (module.training and rank and len(calls) >= 3):
            return logits
        if ends == "signal":
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return logits
        return logits * math.nan

    hook = model.net.classifier.register_forward_hook(end)
    options: dict[str, Any] = {"batch_size": 4, "progress": False, "cpu": True, "scheduler": None}
    optimizer = OptimizerOptions("SGD", learning_rate=0.05)
    found = {}
    for shard in (True, False):
        calls.clear()
        model.load_state_dict(program().state_dict() if shard else found["before"])
        guide = AttentionGuide(model, noise=Even())
        driver = SVIDriver(model, guide=guide, optimizer=optimizer, shard=shard, **options)
        if shard:  # the first process's weights
            weights = [model.state_dict()]
            torch.distributed.broadcast_object_list(weights, 0)
            found["before"] = {name: value.clone() for name, value in weights[0].items()}
        try:
            driver.fit(data(ROWS, 0), steps=5)
        except (NonFiniteError, KeyboardInterrupt) as error:
            found[shard] = type(error).__name__, {n: v.clone() for n, v in model.state_dict().items()}
    hook.remove()
    return found


def one_that_fails(folder: Path, rank: int, port: str) -> None:
    """Two runs that end early, one by a loss that is not finite, one by a signal, both in one process alone."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    os.environ.update(environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))
    torch.save({ends: failing(ends) for ends in ("nan", "signal")}, folder / f"rank-{rank}.pt")
    torch.distributed.destroy_process_group()


def one_of_two(folder: Path, rank: int, port: str) -> None:
    """Trains, resumes from the checkpoint before the last, and keeps what the process with this number saw."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    os.environ.update(environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    torch.set_num_threads(1)
    found: dict[str, Any] = {"whole": run(folder / "two", 2)}
    if rank == 0:
        shutil.rmtree(folder / "two" / "checkpoints" / "step-000006")
    torch.distributed.barrier()
    found["resumed"] = run(folder / "two", 2, resume=True)
    torch.save(found, folder / f"rank-{rank}.pt")
    torch.distributed.destroy_process_group()
