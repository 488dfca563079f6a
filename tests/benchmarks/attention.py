"""Times attention, deterministic against Bayesian, aligned and repulsive: `make bench`.

The variants take turns within every round, so that a machine whose speed drifts treats them alike, and each time is
divided by that of eager attention in the same round (of the unconverted network with sdpa, for undriven passes). A
training step is forward, backward and `zero_grad`, in training mode with the network's usual dropout and without an
optimiser. Peak memory is what torch has allocated at most during a step, beyond what it held before it.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import pyro
import torch
import typer
import yaml
from rich.progress import track
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity
from torch.utils.benchmark.utils.timer import timer
from transformers import AutoModelForSequenceClassification, BertConfig, PreTrainedModel

from probattn import AlignmentAttention, AttentionMask, BayesianAttention, RepulsiveAttention, compile_sites
from probattn.inference import (
    AttentionELBO,
    AttentionGuide,
    HeadParticles,
    posterior_moments,
    posterior_predict,
)
from probattn.models import Classifier, convert
from probattn.sites import AttentionSite
from probattn.sites.answers import Attending

Step = Callable[[], Any]
DRAWS = 20


@dataclass(frozen=True)
class Shape:
    """Sizes of the network and of a batch; every third sequence is padded, by up to half of the length.

    ``recompute`` is for activation checkpointing: layers run again in the backward pass; ``dtype`` is the network's.
    """

    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    batch: int
    length: int
    recompute: bool = False
    dtype: str = "float32"


DECLARED = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
SHAPES = {name: Shape(**sizes) for name, sizes in DECLARED["shapes"].items()}
KINDS: dict[str, dict[str, Any]] = DECLARED["kinds"]
LAST, COMPILED = "BABN, last layer", "BABN, compiled"
BAYESIAN = {
    "BAM": BayesianAttention.bam(),
    "BAM, log-normal": BayesianAttention.bam(posterior="lognormal"),
    "BABN": BayesianAttention(),
    "BABN, sigma 1e-6": BayesianAttention(sigma=1e-6),
}
ALIGNED = {f"aligned, {name.upper()}": AlignmentAttention(name) for name in ("gan", "ct", "ot", "mmd")}
REPULSIVE = {"repulsive": RepulsiveAttention(), "repulsive, first layer": RepulsiveAttention(layers="first")}
METHODS = {**BAYESIAN, COMPILED: BAYESIAN["BABN"], LAST: BAYESIAN["BABN"], **ALIGNED, **REPULSIVE}


def build_step(
    kind: str, variant: str, shape: Shape, device: torch.device, *, compiled_network: bool = False
) -> Step:
    """What is timed, as a function without arguments; a training step may be that of a compiled network."""
    if variant == COMPILED:
        return compiled()(build_step(kind, "BABN", shape, device))  # a first step makes the kernels
    torch.manual_seed(0)
    if kind.startswith("site"):
        return _site_step(variant, shape, device, training=kind == "site-train")
    net = build_network(variant, shape, device, "sdpa" if kind == "undriven" else "eager")
    tokens = torch.randint(1, shape.vocabulary, (shape.batch, shape.length)).to(device)
    inputs = {"input_ids": tokens, "attention_mask": _valid(shape, device).long()}
    if compiled_network:
        net.compile(dynamic=True)
    if kind == "train":
        return _train_step(net.train(), inputs, torch.arange(shape.batch, device=device) % 2, variant)
    model = Classifier(net.eval())
    if kind == "moments":
        return lambda: posterior_moments(model, inputs, classes=2, method="expansion")
    if kind == "draws" and variant != "MC dropout":
        return lambda: posterior_predict(model, inputs, DRAWS)
    dropout = kind == "draws"  # Gal & Ghahramani 2016: as many passes with dropout as there are draws

    def passes() -> None:
        with torch.no_grad():
            for _ in range(DRAWS if dropout else 1):
                model(inputs)

    net.train(dropout)
    return passes


@contextmanager
def compiled() -> Iterator[None]:
    """Sites are compiled within it."""
    compile_sites()
    try:
        yield
    finally:
        compile_sites(False)


@cache
def compiles() -> bool:
    """Whether sites can be compiled here."""
    try:
        with compiled():
            return True
    except RuntimeError as error:
        print(f"{COMPILED!r} is left out: {error}")
        return False


def build_network(
    variant: str, shape: Shape, device: torch.device, attention: str = "eager"
) -> PreTrainedModel:
    """A network of the shape with the variant's attention, of random weights, converted from one with ``attention``."""
    config = BertConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocabulary,
        max_position_embeddings=max(512, shape.length),
    )
    attention = "sdpa" if variant == "sdpa" else attention
    with device:
        net = AutoModelForSequenceClassification.from_config(config, attn_implementation=attention)
        net = net.to(getattr(torch, shape.dtype))
    if shape.recompute:
        enable = getattr(net, "activation_checkpointing_enable", net.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
    if variant in METHODS:
        net = convert(net, METHODS[variant], layers="last" if variant == LAST else "all")
    return net


def added_parameters(variant: str, shape: Shape) -> float:
    """Parameters that the variant adds, as a share of the network's."""
    network, eager = (build_network(name, shape, torch.device("cpu")) for name in (variant, "eager"))
    return network.num_parameters() / eager.num_parameters() - 1


def _train_step(net: PreTrainedModel, inputs: dict[str, Tensor], labels: Tensor, variant: str) -> Step:
    model = Classifier(net)
    module = AttentionELBO()(model, AttentionGuide(model))
    heads = HeadParticles(net, num_data=10_000) if variant in REPULSIVE else None

    def step() -> None:
        plain = variant in ("eager", "sdpa")
        loss = F.cross_entropy(model(inputs), labels) if plain else module({**inputs, "labels": labels}).loss
        loss.backward()
        if heads is not None:
            heads.direct(0)
        net.zero_grad()

    return step


def _valid(shape: Shape, device: torch.device) -> Tensor:
    """Bool ``[B, T]``: lengths from half of T, every third sequence, to T."""
    rows = torch.arange(shape.batch)
    missing = torch.where(rows % 3 == 0, shape.length * (rows + 1) // (2 * shape.batch), 0)
    return (torch.arange(shape.length) < shape.length - missing[:, None]).to(device)


def _site_step(variant: str, shape: Shape, device: torch.device, *, training: bool) -> Step:
    """One attention call from queries, keys and values on; its output is summed to train it."""
    method, valid = BAYESIAN.get(variant), _valid(shape, device)
    size = (3, shape.batch, shape.heads, shape.length, shape.hidden // shape.heads)
    tensors = torch.randn(size, device=device).requires_grad_(training).unbind()
    mask = AttentionMask(valid[:, None, None, :].expand(-1, -1, shape.length, -1), valid)
    site = None if method is None else method.build(shape.heads, size[-1]).to(device).train(training)

    def attend() -> Tensor:
        if isinstance(site, AttentionSite):
            return site.attend_alone("attention", Attending(*tensors, mask))[0]
        query, key, value = tensors
        if variant == "sdpa":
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask.additive)
        scores = query @ key.transpose(-1, -2) * size[-1] ** -0.5 + mask.additive
        return torch.softmax(scores, dim=-1) @ value

    def model() -> None:
        with pyro.plate("data", shape.batch):
            pyro.factor("output", attend().sum(dim=(1, 2, 3)))

    module = AttentionELBO()(model, AttentionGuide(model))

    def step() -> None:
        with torch.set_grad_enabled(training):
            if not training:
                attend()
            elif site is None:
                attend().sum().backward()
            else:
                module().loss.backward()
                site.zero_grad()

    return step


def peak_memory(step: Step, device: torch.device) -> float:
    """MiB that torch holds at most during a step, beyond what it held before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        step()
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    return max(accumulate(size for _, size in changes)) / 2**20


def record(
    kind: str, variant: str, seconds: Sequence[float], base: Sequence[float], peaks: Sequence[float]
) -> dict[str, Any]:
    """Medians and spread over rounds, and the bars; ``peaks`` are of the variant and of its base."""
    ratios = [spent / other for spent, other in zip(seconds, base, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    peak, memory = (peaks[0], peaks[0] / peaks[1]) if peaks else (None, None)
    bar, most = (KINDS[kind].get(name, {}).get(variant) for name in ("bars", "memory_bars"))
    return {
        "kind": kind,
        "variant": variant,
        "seconds": statistics.median(seconds),
        "ratio": {"median": median, "quartiles": [low, high], "range": [min(ratios), max(ratios)]},
        "peak_mib": peak,
        "memory": memory,
        "memory_bar": most,
        "memory_passed": None if most is None or memory is None else memory <= most,
        "bar": bar,
        "passed": None if bar is None else median <= bar,
    }


def measured(
    kind: str, variants: Sequence[str], shape: Shape, rounds: int, device: torch.device, *, memory: bool
) -> list[dict[str, Any]]:
    """The records of some variants of a kind, timed in turns; one round before them warms up."""
    variants = [name for name in variants if name != COMPILED or compiles()]
    base = KINDS[kind].get("base", "eager")
    steps = {} if base in variants else {base: build_step("expectation", base, shape, device)}
    steps |= {name: build_step(kind, name, shape, device) for name in variants}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    title = f"{KINDS[kind]['title']}, {shape.batch} x {shape.length}, {shape.dtype}"
    for _ in track(range(rounds + 1), description=title, transient=True):
        for name, step in steps.items():
            start = timer()  # waits for a GPU
            step()
            seconds[name].append(timer() - start)
    peaks = {name: peak_memory(step, device) for name, step in steps.items()} if memory else {}
    print(title)
    records = []
    for name in variants:
        both = [seconds[name][1:], seconds[base][1:]]
        row = record(kind, name, *both, [peaks[name], peaks[base]] if memory else [])
        row["parameters"] = added_parameters(name, shape) if kind == "train" else None
        records.append(row)
        verdict = "" if row["bar"] is None else f", bar {row['bar']}: {'met' if row['passed'] else 'MISSED'}"
        print(f"  {name}: {row['seconds']:.4f} s, {row['ratio']['median']:.2f} times{verdict}")
    return records


def main(
    *,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds; ten or more for figures.")] = 12,
    quick: Annotated[bool, typer.Option(help="Two rounds and no memory: does it run?")] = False,
    shape: Annotated[str, typer.Option(help=f"One of: {', '.join(SHAPES)}.")] = "minilm",
    lengths: Annotated[str, typer.Option(help="Tokens of a text, several with commas; as many in all.")] = "",
    dtypes: Annotated[str, typer.Option(help="Types of the network, separated by commas.")] = "float32",
    kinds: Annotated[str, typer.Option(help=f"Some of: {', '.join(KINDS)}.")] = "",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    output: Annotated[Path, typer.Option(help="The JSON file.")] = Path("bench/attention.json"),
) -> None:
    """Times attention, deterministic against Bayesian, aligned and repulsive, and writes and prints the ratios."""
    sizes = SHAPES[shape]
    tokens, numbers = sizes.batch * sizes.length, map(int, lengths.split(",")) if lengths else [sizes.length]
    shapes = [replace(sizes, length=number, batch=max(1, tokens // number)) for number in numbers]
    where = torch.device(device)
    machine = {  # what the figures depend on, without saying whose machine it was
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "load_before": os.getloadavg()[0],
    }
    if machine["load_before"] > 0.5:
        print(f"The machine is busy (load {machine['load_before']:.1f}): these figures are not to be kept.")
    field = "by_length" if lengths else "variants"
    chosen = kinds.split(",") if kinds else [kind for kind in KINDS if field in KINDS[kind]]
    output.parent.mkdir(parents=True, exist_ok=True)
    count, runs = 2 if quick else rounds, []
    for run in (replace(each, dtype=dtype) for dtype in dtypes.split(",") for each in shapes):
        results: list[dict[str, Any]] = []
        runs.append({"shape": asdict(run), "results": results})
        for kind in chosen:
            rows = measured(kind, KINDS[kind][field], run, count, where, memory=not quick)
            if lengths:  # bars are for a shape's own length
                rows = [row | dict.fromkeys(("bar", "passed", "memory_bar", "memory_passed")) for row in rows]
            results += rows
            content = {"machine": machine, "rounds": count} | ({"runs": runs} if lengths else runs[0])
            output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"Written to {output}")


if __name__ == "__main__":
    typer.run(main)
