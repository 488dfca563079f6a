"""What attention and probes of trained networks say of each other (Snell et al. 2021, Tables 2 to 7)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset
from transformers import PreTrainedModel

from probattn.cli.probing import Watched, recorded_bleu, recorded_steps
from probattn.models import RatedWords, RecurrentForTranslation, WordRatings
from probattn.probes import (
    BagOfWordsProxy,
    contextualized_agreement,
    gradient_saliency,
    kendall_tau,
    mean_agreement,
    optimal_attention,
)

Batch = Mapping[str, Tensor]
PAIRS = (("attention", "uniform"), ("uniform", "proxy"), ("saliency", "uniform"), ("attention", "probe"))
"""Ratings whose agreement is measured, in the columns of Table 2."""


def measure(
    folders: Mapping[str, Path], net: PreTrainedModel, watched: Watched, proxy: BagOfWordsProxy
) -> dict[str, Any]:
    """The columns of the tables for one seed.

    Args:
        folders: runs by method: "learned", "second" and "uniform".
        net: the network of "learned", in evaluation mode.
        watched: the examples.
        proxy: trained on the same data.

    Returns:
        Agreements, Kendall's tau and xi by pair of ratings, what they are by chance, and the courses over steps.
    """
    learned, second, uniform = (_rated(folders[name]) for name in ("learned", "second", "uniform"))
    last = learned[max(learned)]
    course = {step: last.agreement(v=each.probe) for step, each in uniform.items()}
    best = max(course, key=course.__getitem__)  # appendix A.7: the maximum over checkpoints
    ratings = {
        "attention": last.attention,
        "probe": last.probe,
        "uniform": uniform[best].probe,
        "proxy": flat(watched.batches(), lambda batch: _proxy_probe(proxy, batch)),
        "saliency": flat(watched.batches(), lambda batch: _saliency(net, batch)),
    }
    run = {step: (each.accuracy, last.agreement(v=each.attention)) for step, each in second.items()}
    found: dict[str, Any] = {
        "agreement": {name(pair): last.agreement(*(ratings[part] for part in pair)) for pair in PAIRS},
        "tau": {name(pair): _tau(last, *(ratings[part] for part in pair)) for pair in PAIRS},
        "chance": last.chance(),
        "accuracy": last.accuracy,
        "uniform_accuracy": uniform[max(uniform)].accuracy,
        "outputs": len(last.lengths),
        "best_step": best,
        "course": {
            "uniform": course,
            "own": {step: each.agreement() for step, each in learned.items()},
            "second": {step: agreed for step, (_, agreed) in run.items()},
        },
    }
    found["xi"] = _xi(found["agreement"], [(step, *pair) for step, pair in run.items()])
    bleu = recorded_bleu(folders["second"])
    if bleu:
        found["xi_bleu"] = _xi(
            found["agreement"], [(step, bleu[step], agreed) for step, (_, agreed) in run.items()]
        )
    if "frozen" in folders:
        frozen = _rated(folders["frozen"])
        ended = frozen[max(frozen)]
        found["frozen"] = {
            "accuracy": ended.accuracy,
            "agreement": ended.agreement(),
            "with_learned": last.agreement(v=ended.attention),
        }
    return found


def name(pair: tuple[str, str]) -> str:
    """A pair of ratings as a key."""
    return f"{pair[0]}_{pair[1]}"


def flat(batches: Iterable[Batch], rate: Callable[[Batch], Tensor]) -> Tensor:
    """Ratings ``[B, T, S]`` of all batches as :class:`RatedWords` keeps them, ``[P]``.

    Args:
        batches: of the watched examples.
        rate: rates one.
    """
    return RatedWords.gather(_as_ratings(batch, rate(batch)) for batch in batches).attention


def _as_ratings(batch: Batch, rating: Tensor) -> WordRatings:
    labels = batch["labels"]
    valid = (labels if labels.ndim == 2 else labels[:, None]) >= 0
    return WordRatings(rating, rating, batch["attention_mask"].bool(), valid, torch.zeros_like(valid))


def _rated(folder: Path) -> dict[int, RatedWords]:
    return {step: RatedWords.load(file) for step, file in recorded_steps(folder).items()}


def _tau(rated: RatedWords, u: Tensor, v: Tensor) -> float:
    (first, mask), (second, _) = rated.padded(u), rated.padded(v)
    return kendall_tau(first, second, mask).nanmean().item()


def _xi(agreements: Mapping[str, float], run: list[tuple[int, float, float]]) -> dict[str, Any]:
    found = {pair: contextualized_agreement(value, run) for pair, value in agreements.items()}
    shown = {
        pair: {"performance": each.performance, "step": each.step, "reached": each.reached}
        for pair, each in found.items()
    }
    return shown | {"end": {"performance": run[-1][1], "step": run[-1][0], "reached": True}}


def _targets(batch: Batch) -> Tensor:
    """Output words ``[B, T]``, any at padding; a class is a single one."""
    labels = batch["labels"]
    return labels.clamp(min=0) if labels.ndim == 2 else labels[:, None]


def _proxy_probe(proxy: BagOfWordsProxy, batch: Batch) -> Tensor:
    with torch.no_grad():
        return proxy.probe(batch["input_ids"], _targets(batch), batch["attention_mask"].bool(), log=True)


def _saliency(net: PreTrainedModel, batch: Batch) -> Tensor:
    """Length of the gradient of the right outputs' log-probabilities by each word's embedding, ``[B, T, S]``."""
    given = {key: value for key, value in batch.items() if key not in ("input_ids", "labels")}
    target = _targets(batch)

    def score(embeddings: Tensor) -> Tensor:
        logits = net(inputs_embeds=embeddings, **given).logits
        logits = logits if logits.ndim == 3 else logits[:, None]
        return logits.log_softmax(dim=-1).gather(-1, target[..., None])[..., 0]

    embedded = net.get_input_embeddings()(batch["input_ids"])
    found = gradient_saliency(score, embedded, batch["attention_mask"].bool())
    return found if found.ndim == 3 else found[:, None]


def train_proxy(
    rows: Any,
    collate: Any,
    sizes: tuple[int, int],
    *,
    width: int,
    steps: int,
    batch_size: int,
    rate: float,
    seed: int,
) -> BagOfWordsProxy:
    """The bag-of-words proxy of the same data, by Adam.

    Args:
        rows: tokenized training data.
        collate: rows to batch.
        sizes: numbers of input words and of outputs.
        width: of the embeddings.
        steps: updates.
        batch_size: examples of each.
        rate: learning rate.
        seed: of initial values and order.
    """
    generator = torch.Generator().manual_seed(seed)
    proxy = BagOfWordsProxy(*sizes, width, generator=generator)
    optimizer = torch.optim.Adam(proxy.parameters(), lr=rate)
    done = 0
    while done < steps:
        for batch in DataLoader(rows, batch_size, shuffle=True, collate_fn=collate, generator=generator):
            target = _targets(batch)
            valid = (batch["labels"] if batch["labels"].ndim == 2 else target) >= 0
            loss = proxy.loss(batch["input_ids"], target, batch["attention_mask"].bool(), valid)
            optimizer.zero_grad()
            (loss / valid.sum()).backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    return proxy


def optimal(net: RecurrentForTranslation, watched: Watched, sentences: int) -> dict[str, float]:
    """How the best possible attention of a network with a linear output relates to its probe (appendix A.1).

    Args:
        net: with ``output_size=0``.
        watched: the examples.
        sentences: over how many of them.
    """
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
