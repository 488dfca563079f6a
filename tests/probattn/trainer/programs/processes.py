"""A training in one process and in two that talk by gloo."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from accelerate.state import AcceleratorState, GradientState
from scene import Noiseless, Ordered, arguments, bert, classes, losses, network, tokens, weights
from transformers import TrainerCallback

import probattn

ROWS, TEST = 28, 5
"""Three steps of 8 and one of 4, in which each of two processes has 2."""


class Seen(TrainerCallback):
    """Keeps a sum of weights at the end of each epoch."""

    def __init__(self) -> None:
        self.sums: list[float] = []

    def on_epoch_end(self, *_: Any, model: Any, **__: Any) -> None:
        self.sums.append(model.classifier.weight.abs().sum().item())


def run(folder: Path, processes: int, resume: bool | None = None, *, shard: bool = False) -> dict[str, Any]:
    args = arguments(
        folder / f"run-{processes}{'-sharded' * shard}",
        per_device_train_batch_size=4 // processes,
        gradient_accumulation_steps=2,
        per_device_eval_batch_size=4 // processes,
        num_train_epochs=1,
        average_tokens_across_devices=True,
        max_grad_norm=1.0,
        save_strategy="steps",
        save_steps=2,
    )
    methods = (probattn.BayesianAttention(), probattn.AlignmentAttention("ct"))
    net = network(lambda: bert("TokenClassification", num_labels=3), *methods)
    data, seen = {"train_dataset": tokens(ROWS), "eval_dataset": tokens(TEST, seed=1)}, Seen()
    trainer = Noiseless(model=net, args=args, shard=shard, callbacks=[seen], **data)
    trainer.train(resume_from_checkpoint=resume)
    metrics, after = trainer.evaluate(), weights(net)
    found = {name: losses(trainer, name) for name in ("loss", "kl_nats", "log_likelihood")}
    if resume is None:  # again, with the optimizer as it is
        trainer.args.save_strategy = "no"
        trainer.train()
    own = Ordered(model=network(), args=args, train_dataset=classes(2)).noise(0, 0, 0)
    return {
        **found,
        "weights": after,
        "again": weights(net),
        "seen": seen.sums,
        "eval_loss": metrics["eval_loss"],
        "eval_kl": metrics["eval_kl"],
        "noise": own.uniform(torch.empty(1)).item(),
    }


def one_of_two(folder: Path, rank: int, port: str) -> None:
    """Trains, resumes from the checkpoint before the last, and keeps what the process with this number saw."""
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    os.environ.update(environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
    torch.set_num_threads(1)
    AcceleratorState._reset_state(reset_partial_state=True)  # what the forked process had before
    GradientState._reset_state()
    kinds = {}
    for shard in (False, True):
        found = kinds["sharded" if shard else "parallel"] = run(folder, 2, shard=shard)
        torch.distributed.barrier()
        if rank == 0:
            shutil.rmtree(folder / f"run-2{'-sharded' * shard}" / "checkpoint-4")
        torch.distributed.barrier()
        found["resumed"] = run(folder, 2, resume=True, shard=shard)["weights"]
    torch.save(kinds, folder / f"rank-{rank}.pt")
    torch.distributed.destroy_process_group()
