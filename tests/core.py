"""What the library does without the packages of its extras: ``python tests/core.py [ABSENT PACKAGE ...]``.

Converts a tiny network, trains it, predicts, measures, saves and loads; then asks for what extras bring. The last line
of what it prints is a JSON object: what was computed, and the error of each thing that was not there.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any


def work(folder: Path) -> tuple[dict[str, Any], dict[str, Callable[[], object]]]:
    """Goes through the core; returns what came of it, and by name what extras would allow."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

    import probattn
    from probattn.divergences import sinkhorn
    from probattn.inference import SVGDDriver, SVIDriver, posterior_moments, posterior_predict
    from probattn.metrics import CalibrationError, ReliabilityDiagram
    from probattn.models import Classifier, convert, load, save

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=30, **sizes)
    data = {"input_ids": torch.randint(1, 30, (8, 6)), "labels": torch.arange(8) % 2}
    words = {"input_ids": data["input_ids"]}

    net = convert(BertForSequenceClassification(config), probattn.BayesianAttention())
    fitted = SVIDriver(Classifier(net), batch_size=4, cpu=True).fit(data, steps=2)
    draws = posterior_predict(net, words, num_samples=3)
    moments = posterior_moments(net, words)
    error = CalibrationError()
    diagram = ReliabilityDiagram()
    for metric in (error, diagram):
        metric.update(draws.mean_probabilities, data["labels"])
    save(net, folder / "net")
    loaded = posterior_predict(load(folder / "net"), words, num_samples=3)
    repulsive = convert(BertForSequenceClassification(config), probattn.RepulsiveAttention())
    arguments = TrainingArguments(
        folder / "trained", max_steps=1, report_to="none", disable_tqdm=True, use_cpu=True
    )
    rows = [{"input_ids": row, "labels": label} for row, label in zip(*data.values(), strict=True)]
    trainer = probattn.ProbabilisticTrainer(model=net, args=arguments, train_dataset=rows)
    done = {
        "SVIDriver": fitted.step,
        "SVGDDriver": SVGDDriver(Classifier(repulsive), batch_size=4, cpu=True).fit(data, steps=2).step,
        "ProbabilisticTrainer": trainer.train().global_step,
        "draws": list(draws.logits.shape),
        "moments": list(moments.mean.shape),
        "calibration error": error.compute().item(),
        "loaded draws are equal": torch.equal(draws.logits, loaded.logits),
    }
    bert = BertForSequenceClassification(config)
    points = torch.randn(2, 1, 2, 5, 4)
    return done, {
        "metric.plot": error.plot,
        "diagram.plot": diagram.plot,
        "posterior.plot": draws.plot,
        "report": lambda: __import__("probattn.report"),
        "recipes": lambda: __import__("probattn.recipes"),
        "cli": lambda: __import__("probattn.cli"),
        "graph": lambda: __import__("probattn.models.graph"),
        "alignment": lambda: convert(bert, probattn.AlignmentAttention("ot")),
        "sinkhorn": lambda: sinkhorn(*points),
    }


def hide(absent: list[str]) -> None:
    """Makes packages be found neither by their modules nor by their metadata."""
    found = metadata.distribution

    def distribution(name: str) -> metadata.Distribution:
        if name.lower() in absent:
            raise metadata.PackageNotFoundError(name)
        return found(name)

    metadata.distribution = distribution
    sys.modules.update(dict.fromkeys(absent))


def main(absent: list[str]) -> None:
    """Runs as if the packages ``absent`` were not installed."""
    hide(absent)
    refused = {}
    with tempfile.TemporaryDirectory() as folder:
        done, more = work(Path(folder))
        for name, use in more.items():
            try:
                use()
            except ImportError as error:
                refused[name] = f"{type(error).__name__}: {error}"
    print(json.dumps({"done": done, "refused": refused}))


if __name__ == "__main__":
    main(sys.argv[1:])
