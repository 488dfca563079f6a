"""What the study of agreement measures besides what `probattn agreement` does."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from probattn.models import RecurrentForTranslation
from probattn.probes import mean_agreement, optimal_attention
from probattn.report import Rating
from probattn.tasks.agreement import Recorded, measure_agreement
from probattn.tasks.watching import Watched

PAIRS: tuple[tuple[Rating, Rating], ...] = (
    ("attention", "uniform"),
    ("uniform", "proxy"),
    ("saliency", "uniform"),
    ("attention", "probe"),
)
"""Ratings whose agreement is measured, in the columns of Table 2."""


def measure(folders: Mapping[str, Path]) -> dict[str, Any]:
    """The columns of the tables for one seed, of its runs by method, and the courses over steps."""
    row = measure_agreement(folders["learned"], folders["uniform"], folders["second"])
    learned, second, uniform = (Recorded.read(folders[key]) for key in ("learned", "second", "uniform"))
    last = learned.last
    kept = {name(pair): item for pair in PAIRS if (item := row.pair(*pair)) is not None}
    found: dict[str, Any] = {
        "agreement": {key: item.agreement for key, item in kept.items()},
        "tau": {key: item.tau for key, item in kept.items()},
        "chance": row.chance,
        "accuracy": row.accuracy,
        "uniform_accuracy": uniform.last.accuracy,
        "outputs": row.outputs,
        "best_step": row.uniform_step,
        "course": {
            "uniform": dict(row.course),
            "own": {step: each.agreement() for step, each in learned.rated.items()},
            "second": {step: last.agreement(v=each.attention) for step, each in second.rated.items()},
        },
    }
    ends = {f"xi{of}": row.second_accuracy for of in ("", "_tau")}
    ends |= {f"xi{of}_bleu": row.second_bleu for of in ("", "_tau")}
    for table, performance in ends.items():
        if performance is not None:
            end = {"performance": performance, "step": max(second.rated), "reached": True}
            values = {key: xi.model_dump() for key, item in kept.items() if (xi := getattr(item, table))}
            found[table] = values | {"end": end}
    if "frozen" in folders:
        found["frozen"] = measure_frozen(learned, Recorded.read(folders["frozen"]))
    return found


def measure_frozen(learned: Recorded, frozen: Recorded) -> dict[str, Any]:
    """What comes of attention where the probe is frozen: at the end, and over steps (appendix A.6, Table 10)."""
    final, ended = learned.last, frozen.last
    course = {step: final.agreement(v=each.attention) for step, each in frozen.rated.items()}
    best = max(course, key=course.__getitem__)
    return {
        "accuracy": ended.accuracy,
        "agreement": ended.agreement(),
        "with_learned": course[best],
        "best_step": best,
        "with_learned_last": course[max(course)],
        "course": course,
    }


def name(pair: tuple[Rating, Rating]) -> str:
    """A pair of ratings as a key."""
    return f"{pair[0]}_{pair[1]}"


def optimal(net: RecurrentForTranslation, watched: Watched, sentences: int) -> dict[str, float]:
    """How the best attention of a network with a linear output relates to its probe (appendix A.1)."""
    agreed, own, losses, least = [], [], [], []
    rows = Subset(watched.rows, range(min(sentences, len(watched.rows))))
    for batch in DataLoader(rows, batch_size=1, collate_fn=watched.collate):
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        with torch.no_grad():
            output = net(**inputs, output_attentions=True)
            states, queries = output.encoder_last_hidden_state[0], output.decoder_last_hidden_state[0]
            base = net.output(torch.zeros_like(states[:1]), torch.zeros_like(queries[:1]))
            positions = net.output(states, torch.zeros_like(queries[:1]).expand(len(states), -1)) - base
            alone = net.output(torch.zeros_like(states[:1]).expand(len(queries), -1), queries)
        target = batch["labels"][0]
        found = optimal_attention(positions[None], target, alone, tolerance=1e-6)
        probe = (positions[None] + alone[:, None]).log_softmax(dim=-1)
        probe = probe.gather(-1, target[:, None, None].expand(-1, len(states), 1))[..., 0]  # [T, S]
        weights = output.cross_attentions[0][0].mean(dim=0)
        agreed.append((mean_agreement(found.weights.float(), probe).item(), len(target)))
        own.append((mean_agreement(weights, probe).item(), len(target)))
        losses.append(torch.nn.functional.cross_entropy(output.logits[0], target, reduction="sum").item())
        least.append(found.loss.sum().item())
    words = sum(count for _, count in agreed)
    return {
        "optimal_probe": sum(value * count for value, count in agreed) / words,
        "attention_probe": sum(value * count for value, count in own) / words,
        "loss": sum(losses) / words,
        "least_loss": sum(least) / words,
        "outputs": words,
    }


def mean_course(courses: Iterable[Mapping[Any, float]]) -> dict[int, float]:
    """Means over seeds of what was measured at the same steps."""
    kept = [{int(step): value for step, value in course.items()} for course in courses]
    return {step: statistics.fmean(course[step] for course in kept) for step in kept[0]}
