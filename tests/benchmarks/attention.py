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
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import pyro
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity
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
TRAINING_ROWS = 10_000
"""Data that the heads' posterior is thought to have; the time does not depend on it."""
QUIET = 0.5
"""Load average above which a measurement is not to be trusted."""


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

    def of_length(self, length: int) -> Shape:
        """The same number of tokens in texts of another length."""
        return replace(self, length=length, batch=max(1, self.batch * self.length // length))


SHAPES = {
    "minilm": Shape(6, 384, 12, 1536, 30522, 16, 128),
    "long": Shape(6, 384, 12, 1536, 30522, 8, 256),
    "long-recomputed": Shape(6, 384, 12, 1536, 30522, 8, 256, recompute=True),
    "tiny": Shape(2, 16, 2, 32, 50, 3, 8),
}
BAYESIAN: dict[str, BayesianAttention] = {
    "BAM": BayesianAttention.bam(),
    "BAM, log-normal": BayesianAttention.bam(posterior="lognormal"),
    "BABN": BayesianAttention(),
    "BABN, sigma 1e-6": BayesianAttention(sigma=1e-6),
}
ALIGNED: dict[str, AlignmentAttention] = {
    "aligned, GAN": AlignmentAttention("gan"),
    "aligned, CT": AlignmentAttention("ct"),
    "aligned, OT": AlignmentAttention("ot"),
    "aligned, MMD": AlignmentAttention("mmd"),
}
REPULSIVE: dict[str, RepulsiveAttention] = {
    "repulsive": RepulsiveAttention(),
    "repulsive, first layer": RepulsiveAttention(layers="first"),
}
PLAIN = ("eager", "sdpa")
KINDS = {
    "train": "training step",
    "expectation": "posterior expectation",
    "undriven": "undriven pass of a network converted from sdpa, to one of that network",
    "draws": f"{DRAWS} draws to one eager pass",
    "moments": "closed-form moments of two classes to one eager pass",
    "site-train": "training step of the site alone",
    "site-expectation": "expectation of the site alone",
}
LAST, COMPILED = "BABN, last layer", "BABN, compiled"
VARIANTS = {
    "train": (*PLAIN, *BAYESIAN, COMPILED, *ALIGNED, *REPULSIVE),
    "expectation": (*PLAIN, *BAYESIAN),
    "undriven": ("sdpa", "BAM", "BABN"),
    "draws": ("MC dropout", "BAM", "BABN", COMPILED, LAST),
    "moments": ("BAM", "BAM, log-normal", "BABN"),
    "site-train": (*PLAIN, *BAYESIAN),
    "site-expectation": (*PLAIN, *BAYESIAN),
}
BASES = {"undriven": "sdpa"}
"""What times are divided by, where it is not an eager pass."""
APART = ("draws", "moments")
"""Kinds whose base is no variant of theirs."""
BARS = {
    ("train", "BAM"): 1.15,
    ("train", "BABN"): 1.2,
    ("train", COMPILED): 1.2,
    ("train", "aligned, CT"): 1.25,
    ("train", "aligned, GAN"): 1.2,
    ("train", "aligned, OT"): 3.0,
    ("train", "repulsive"): 1.1,
    ("train", "repulsive, first layer"): 1.03,
    ("expectation", "BABN"): 1.15,
    ("undriven", "BABN"): 1.03,
    ("draws", "BABN"): 25.0,
    ("draws", COMPILED): 25.0,
    ("draws", LAST): 5.3,
    ("moments", "BABN"): 2.5,
}
MEMORY_BARS = {("train", "BABN"): 1.3}
"""The same of peak memory."""
BY_LENGTH = {
    "train": (*PLAIN, "BAM", "BABN", COMPILED),
    "undriven": ("sdpa", "BABN"),
    "draws": ("MC dropout", "BAM", "BABN", LAST),
    "moments": ("BAM", "BABN"),
}
"""What is measured of several lengths."""


@dataclass(frozen=True)
class Measurement:
    """One variant's seconds by round, their ratio to eager's of the same round, peak memory and added parameters."""

    kind: str
    variant: str
    seconds: list[float]
    ratios: list[float]
    peak_mib: float | None
    base_mib: float | None = None
    parameters: float | None = None

    def record(self) -> dict[str, Any]:
        """What the file holds: medians, spread and the bars."""
        bar, ratio = BARS.get((self.kind, self.variant)), spread(self.ratios)
        most = MEMORY_BARS.get((self.kind, self.variant))
        memory = self.peak_mib / self.base_mib if self.peak_mib and self.base_mib else None
        return {
            "kind": self.kind,
            "variant": self.variant,
            "seconds": statistics.median(self.seconds),
            "ratio": ratio,
            "peak_mib": self.peak_mib,
            "memory": memory,
            "memory_bar": most,
            "memory_passed": None if most is None or memory is None else memory <= most,
            "parameters": self.parameters,
            "bar": bar,
            "passed": None if bar is None else ratio["median"] <= bar,
        }


def spread(ratios: Sequence[float]) -> dict[str, Any]:
    """Median, quartiles and range over rounds."""
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "median": statistics.median(ratios),
        "quartiles": [low, high],
        "range": [min(ratios), max(ratios)],
    }


def build_step(kind: str, variant: str, shape: Shape, device: torch.device) -> Step:
    """What is timed, as a function without arguments."""
    if variant == COMPILED:
        return _compiled(build_step(kind, "BABN", shape, device))
    torch.manual_seed(0)
    if kind.startswith("site"):
        return _site_step(variant, shape, device, training=kind == "site-train")
    net = build_network(variant, shape, device, "sdpa" if kind == "undriven" else "eager")
    inputs, labels = _batch(shape, device)
    if kind == "train":
        return _train_step(net.train(), inputs, labels, variant)
    model = Classifier(net.eval())
    if kind == "draws" and variant == "MC dropout":
        return lambda: _dropout_draws(net.train(), inputs)
    if kind == "draws":
        return lambda: posterior_predict(model, inputs, DRAWS)
    if kind == "moments":
        return lambda: posterior_moments(model, inputs, classes=2, method="expansion")

    def expectation() -> None:
        with torch.no_grad():
            model(inputs)

    return expectation


@cache
def compiles() -> bool:
    """Whether sites can be compiled here."""
    try:
        compile_sites()
    except RuntimeError as error:
        print(f"{COMPILED!r} is left out: {error}")
        return False
    compile_sites(False)
    return True


def _compiled(step: Step) -> Step:
    """A step with compiled sites, whose kernels are made before it is timed."""

    def compiled() -> None:
        compile_sites()
        try:
            step()
        finally:
            compile_sites(False)

    return compiled


def _dropout_draws(net: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    """As many passes with dropout as there are draws (Gal & Ghahramani 2016)."""
    with torch.no_grad():
        return torch.stack([net(**inputs).logits for _ in range(DRAWS)])


def build_network(
    variant: str, shape: Shape, device: torch.device, attention: str = "eager"
) -> PreTrainedModel:
    """A network of the shape with the variant's attention, of random weights, converted from one with ``attention``."""
    with device:
        net = _network(shape, "sdpa" if variant == "sdpa" else attention).to(getattr(torch, shape.dtype))
    if variant == LAST:
        return convert(net, BAYESIAN["BABN"], layers="last")
    method = (
        BAYESIAN.get("BABN" if variant == COMPILED else variant)
        or ALIGNED.get(variant)
        or REPULSIVE.get(variant)
    )
    return net if method is None else convert(net, method)


def added_parameters(variant: str, shape: Shape) -> float:
    """Parameters that the variant adds, as a share of the network's."""
    counts = [
        sum(parameter.numel() for parameter in build_network(name, shape, torch.device("cpu")).parameters())
        for name in (variant, "eager")
    ]
    return counts[0] / counts[1] - 1


def _train_step(net: PreTrainedModel, inputs: dict[str, Tensor], labels: Tensor, variant: str) -> Step:
    model = Classifier(net)
    module = AttentionELBO()(model, AttentionGuide(model))
    heads = HeadParticles(net, num_data=TRAINING_ROWS) if variant in REPULSIVE else None

    def loss() -> Tensor:
        if variant in PLAIN:
            return F.cross_entropy(model(inputs), labels)
        return module({**inputs, "labels": labels}).loss

    def step() -> None:
        loss().backward()
        if heads is not None:
            heads.direct(0)
        net.zero_grad()

    return step


def _network(shape: Shape, attention: str) -> PreTrainedModel:
    config = BertConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocabulary,
        max_position_embeddings=max(512, shape.length),
    )
    net: PreTrainedModel = AutoModelForSequenceClassification.from_config(
        config, attn_implementation=attention
    )
    if shape.recompute:
        getattr(net, "activation_checkpointing_enable", net.gradient_checkpointing_enable)(
            {"use_reentrant": False}
        )
    return net


def _valid(shape: Shape, device: torch.device) -> Tensor:
    """Bool ``[B, T]``: lengths from half of T, every third sequence, to T."""
    rows = torch.arange(shape.batch)
    missing = torch.where(rows % 3 == 0, shape.length * (rows + 1) // (2 * shape.batch), 0)
    return (torch.arange(shape.length) < shape.length - missing[:, None]).to(device)


def _batch(shape: Shape, device: torch.device) -> tuple[dict[str, Tensor], Tensor]:
    tokens = torch.randint(1, shape.vocabulary, (shape.batch, shape.length)).to(device)
    labels = torch.arange(shape.batch, device=device) % 2
    return {"input_ids": tokens, "attention_mask": _valid(shape, device).long()}, labels


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


def timed(step: Step, device: torch.device) -> float:
    """Seconds of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def build_steps(kind: str, shape: Shape, device: torch.device, variants: Sequence[str]) -> dict[str, Step]:
    """Every variant's step, and the pass that draws and moments are compared with."""
    steps = {
        name: build_step(kind, name, shape, device) for name in variants if name != COMPILED or compiles()
    }
    return {"eager": build_step("expectation", "eager", shape, device)} | steps if kind in APART else steps


def time_steps(
    description: str, steps: Mapping[str, Step], rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of every variant by round; one round before them warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in track(range(rounds + 1), description=description, transient=True):
        for name, step in steps.items():
            taken = timed(step, device)
            if number:
                seconds[name].append(taken)
    return seconds


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


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures depend on, without saying whose machine it was."""
    return {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "load_before": os.getloadavg()[0],
    }


def print_tables(results: list[dict[str, Any]], console: Console) -> None:
    """A table for each kind: ratios with their quartiles, peak memory with its ratio, and the bars."""
    for kind in dict.fromkeys(result["kind"] for result in results):
        columns = ("variant", "seconds", "ratio", "quartiles", "peak MiB", "added", "bar")
        table = Table(*columns, title=KINDS[kind])
        for result in (result for result in results if result["kind"] == kind):
            ratio, memory, added = result["ratio"], result["memory"], result["parameters"]
            bars = (("", "bar", "passed"), ("memory ", "memory_bar", "memory_passed"))
            verdicts = [
                f"{what}{result[bar]}: {'met' if result[passed] else 'MISSED'}"
                for what, bar, passed in bars
                if result[passed] is not None
            ]
            table.add_row(
                result["variant"],
                f"{result['seconds']:.4f}",
                f"{ratio['median']:.2f}",
                "{:.2f}..{:.2f}".format(*ratio["quartiles"]),
                "" if memory is None else f"{result['peak_mib']:.0f} ({memory:.2f})",
                "" if added is None else f"{added:.2%}",
                "\n".join(verdicts),
            )
        console.print(table)


def measured(
    kind: str, variants: Sequence[str], sizes: Shape, rounds: int, device: torch.device, *, memory: bool
) -> list[dict[str, Any]]:
    """The records of some variants of a kind, timed in turns."""
    steps = build_steps(kind, sizes, device, variants)
    name = f"{KINDS[kind]}, {sizes.batch} x {sizes.length}, {sizes.dtype}"
    seconds = time_steps(name, steps, rounds, device)
    peaks = {name: peak_memory(step, device) if memory else None for name, step in steps.items()}
    base, records = BASES.get(kind, "eager"), []
    for name in (name for name in variants if name in steps):
        ratios = [own / other for own, other in zip(seconds[name], seconds[base], strict=True)]
        added = added_parameters(name, sizes) if kind == "train" else None
        records.append(
            Measurement(kind, name, seconds[name], ratios, peaks[name], peaks[base], added).record()
        )
    return records


def main(
    *,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds; ten or more for figures.")] = 12,
    quick: Annotated[bool, typer.Option(help="Two rounds and no memory: does it run?")] = False,
    shape: Annotated[str, typer.Option(help=f"One of: {', '.join(SHAPES)}.")] = "minilm",
    length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a text, in place of the shape's.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Texts of a batch, in place of the shape's.")
    ] = None,
    lengths: Annotated[
        str,
        typer.Option(help="Several lengths, parted by commas: each with as many tokens as the shape has."),
    ] = "",
    dtypes: Annotated[
        str, typer.Option(help="Types of the network, parted by commas: float32, bfloat16.")
    ] = "float32",
    kinds: Annotated[str, typer.Option(help="Kinds to measure, parted by commas.")] = "",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    output: Annotated[Path, typer.Option(help="The JSON file.")] = Path("bench/attention.json"),
) -> None:
    """Times attention, deterministic against Bayesian, aligned and repulsive, and writes and prints the ratios."""
    given = replace(SHAPES[shape], length=length or SHAPES[shape].length, batch=batch or SHAPES[shape].batch)
    shapes = [given.of_length(int(each)) for each in lengths.split(",")] if lengths else [given]
    console, about, variants = Console(), machine(torch.device(device)), BY_LENGTH if lengths else VARIANTS
    if about["load_before"] > QUIET:
        console.print(
            f"The machine is busy (load {about['load_before']:.1f}): these figures are not to be kept."
        )
    count, runs = 2 if quick else rounds, []
    output.parent.mkdir(parents=True, exist_ok=True)
    for sizes in (replace(each, dtype=dtype) for dtype in dtypes.split(",") for each in shapes):
        results: list[dict[str, Any]] = []
        runs.append({"shape": asdict(sizes), "results": results})
        for kind in kinds.split(",") if kinds else variants:
            own = measured(kind, variants[kind], sizes, count, torch.device(device), memory=not quick)
            if lengths:  # bars are for a shape's own length
                own = [each | dict.fromkeys(("bar", "passed", "memory_bar", "memory_passed")) for each in own]
            results += own
            print_tables(own, console)
            content = {"machine": about, "rounds": count} | ({"runs": runs} if lengths else runs[0])
            output.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    console.print(f"Written to {output}")


if __name__ == "__main__":
    typer.run(main)
