"""Makes the artefacts of an earlier version: its saved networks, finished runs and interrupted runs, one archive each.

Run with the code of that version: ``PYTHONPATH=CHECKOUT python tests/pins/old.py tests/pins/old``. An archive holds
``@HOME@`` for the folder in which its content is unpacked. What should come out again lies beside the archives:
predictions of the networks, the course of the interrupted runs to their end.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import probattn
from probattn import AlignmentAttention, BayesianAttention, DisagreementAttention, RepulsiveAttention
from probattn.inference import (
    EnsembleOptions,
    OptimizerOptions,
    ParticleEnsemble,
    SVGDDriver,
    posterior_predict,
)
from probattn.inference.configuration import attention_sites
from probattn.models import (
    Classifier,
    SelfAttentiveConfig,
    SelfAttentiveForSequenceClassification,
    convert,
    save,
)

sys.path.append(str(Path(__file__).resolve().parents[1] / "fuzz"))
runs: Any = importlib.import_module("runs")

HOME = "@HOME@"
IDS = torch.tensor([[2, 5, 9, 12, 3, 0], [2, 13, 4, 4, 10, 3]])
MASK = (IDS > 0).long()


def additive() -> Any:
    """A self-attentive network, which has words of its own."""
    torch.manual_seed(0)
    sizes = {
        "embedding_size": 5,
        "hidden_size": 4,
        "attention_size": 4,
        "num_attention_heads": 1,
        "vocab_size": 20,
    }
    return SelfAttentiveForSequenceClassification(SelfAttentiveConfig(**sizes))


def networks() -> dict[str, Any]:
    """Networks of every format and method."""
    torch.manual_seed(0)
    return {
        "plain": runs.bert(),
        "babn": convert(runs.bert(), BayesianAttention()),
        "bam": convert(
            runs.bert(), BayesianAttention.bam(posterior="lognormal"), layers=[0], attention="self"
        ),
        "adversarial": convert(runs.bert(), AlignmentAttention("gan")),
        "transport": convert(runs.bert(), AlignmentAttention("ot")),
        "conditional": convert(runs.bert(), BayesianAttention(), AlignmentAttention("ct")),
        "discrepancy": convert(runs.bert(), AlignmentAttention("mmd")),
        "svgd": convert(runs.bert(), RepulsiveAttention(projections=("query",))),
        "spos": convert(runs.bert(), RepulsiveAttention(sampler="spos", inverse_temperature=4.0)),
        "spos_default": convert(runs.bert(), RepulsiveAttention(sampler="spos")),
        "sgld": convert(runs.bert(), BayesianAttention(), RepulsiveAttention(sampler="sgld")),
        "sgld_datum": convert(runs.bert(), RepulsiveAttention(sampler="sgld", inverse_temperature=1.0)),
        "sgld_number": convert(runs.bert(), RepulsiveAttention(sampler="sgld", inverse_temperature=30.0)),
        "penalty": convert(runs.bert(), DisagreementAttention("positions")),
        "additive": convert(additive(), BayesianAttention()),
    }


@torch.no_grad()
def shake(net: Any) -> None:
    """Moves all parameters, so that predictions depend on each."""
    generator = torch.Generator().manual_seed(1)
    for parameter in net.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))


def logits(net: Any) -> dict[str, Any]:
    """What a network gives for two inputs: alone, and in two draws, which differ where weights are latent."""
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    with torch.no_grad():
        alone = net.eval()(**inputs).logits
    draws = 2 if attention_sites(net) else 1
    drawn = posterior_predict(Classifier(net), inputs, num_samples=draws, seed=0).logits
    return {"alone": alone.tolist(), "drawn": drawn.tolist()}


def ensemble(folder: Path) -> dict[str, Any]:
    """Two interrupted trainings of whole models as particles, and their courses to the end."""
    data = {
        "input_ids": torch.randint(1, 16, (12, 5), generator=torch.Generator().manual_seed(3)),
        "labels": torch.arange(12) % 2,
    }
    found = {}
    for name, options in {
        "svgd": EnsembleOptions(),
        "spos": EnsembleOptions(sampler="spos", inverse_temperature=4.0),
        "sgld": EnsembleOptions(sampler="sgld", inverse_temperature=2.0),
    }.items():
        place = folder / name
        driver = SVGDDriver(
            ParticleEnsemble(Classifier(runs.bert()), num_particles=2, spread=0.1),
            method=options,
            optimizer=OptimizerOptions("SGD", 0.1),
            batch_size=4,
            log_every=1,
            checkpoint_every=2,
            cpu=True,
            progress=False,
            folder=place,
        )
        driver.fit(data, steps=4)
        shutil.rmtree(place / "checkpoints" / "step-000004")
        found[name] = course(place)
    return found


def course(place: Path) -> dict[str, Any]:
    """Losses or accuracies of a run's records, by file, and the mean squares of the weights of its networks."""
    found: dict[str, Any] = {}
    for file in sorted(place.rglob("metrics.jsonl")):
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        values = [record.get("loss", record.get("accuracy")) for record in records]
        found[file.relative_to(place).as_posix()] = [value for value in values if value is not None]
    for file in sorted(place.rglob("model/model.safetensors")):
        weights = load_file(file).values()
        found[file.relative_to(place).as_posix()] = [weight.square().mean().item() for weight in weights]
    return found


def texts(folder: Path, method: str) -> str:
    """A recipe of texts without a baseline."""
    return f"""
network: {{name: {folder}/network}}
{method}
training: {{{runs.TRAINING}, optimizer: sgd, learning_rate: 0.1}}
data: {{train: {folder}/reviews.csv, shifted: {folder}/reviews.csv, max_length: null}}
prediction: {{num_samples: 3}}
report: {{{runs.REPORT}, texts: [the film was good], baseline: false}}
"""


def make_runs(folder: Path) -> dict[str, Any]:
    """Finished runs, which have no checkpoints, and interrupted ones; the course of these to their end."""
    whole = runs.recipes(folder)
    plain = "attention: {method: deterministic}\n"
    whole["repulsive"] = texts(folder, plain + "repulsion: {weight: 0.1}")
    interrupted = {
        "svi": texts(folder, "attention: {method: babn}"),
        "heads": texts(folder, plain + "repulsion: {weight: 0.1}"),
        "heads_spos": texts(folder, plain + "repulsion: {sampler: spos, inverse_temperature: 5}"),
        "heads_posterior": texts(folder, plain + "repulsion: {sampler: spos}"),
        "heads_sgld": texts(folder, plain + "repulsion: {sampler: sgld}"),
        "heads_number": texts(folder, plain + "repulsion: {sampler: sgld, inverse_temperature: 30}"),
        "translation_lstm": whole["lstm"],
        "graph": whole["graph"],
        "copying": whole["copying"],
    }
    found: dict[str, Any] = {}
    for name, text in {
        **whole,
        **{f"{name}-interrupted": text for name, text in interrupted.items()},
    }.items():
        file, place = folder / f"{name}.yaml", folder / name
        file.write_text(text, encoding="utf-8")
        command("train", file, "--output", place, "--quiet")
        if name in whole:
            command("report", place)
        else:
            found[name] = course(place)
        for checkpoints in sorted(place.rglob("checkpoints")):
            if name in whole:
                shutil.rmtree(checkpoints)
            else:
                shutil.rmtree(max(checkpoints.glob("step-*")))
                shutil.rmtree(checkpoints.parent / "model", ignore_errors=True)
    return found


def command(*arguments: object) -> None:
    """Runs a command, which should succeed."""
    result = runs.invoke(*arguments)
    if result.exit_code:
        raise RuntimeError(f"{arguments}: {result.output}") from result.exception


def pack(folder: Path, home: Path, target: Path) -> None:
    """An archive of a folder's content, without times and owners."""
    for page in folder.rglob("report.html"):
        page.unlink()
    for file in folder.rglob("*"):
        if file.is_file() and str(home).encode() in (content := file.read_bytes()):
            file.write_bytes(content.replace(str(home).encode(), HOME.encode()))

    def bare(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(target, "w:xz") as archive:
        for entry in sorted(folder.rglob("*")):
            archive.add(entry, entry.relative_to(folder).as_posix(), recursive=False, filter=bare)


def main(target: Path) -> None:
    """Writes everything below ``target``."""
    print("probattn", Path(probattn.__file__).parent)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    home = Path(tempfile.mkdtemp())
    predictions = {}
    for name, net in networks().items():
        shake(net)
        save(net, home / "networks" / name)
        predictions[name] = logits(net)
    pack(home / "networks", home, target / "networks.tar.xz")
    shutil.rmtree(home / "networks")
    found = {f"ensemble/{name}": values for name, values in ensemble(home / "ensemble").items()}
    pack(home / "ensemble", home, target / "ensemble.tar.xz")
    shutil.rmtree(home / "ensemble")
    (home / "data").mkdir()
    found |= make_runs(home / "data")
    pack(home / "data", home / "data", target / "runs.tar.xz")
    (target / "expected.json").write_text(
        json.dumps({"logits": predictions, "courses": found}, indent=1) + "\n"
    )
    print("kept", home)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
