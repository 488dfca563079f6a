"""Whether guarantees hold where an answer is right or wrong as a whole: spans, tokens, several labels, numbers.

    PROBATTN_DATA=/data python tests/benchmarks/study.py triage-heads runs/triage-heads

MiniLM is fine-tuned with each of four heads, by a recipe of triage_heads.yaml. Its predictions of the validation and
test inputs that it was not trained on stand for all inputs that there are; from them held-out inputs are drawn as in
triage_study.py. Where several questions are about one text, texts are drawn too, with all of their questions. Intervals
of numbers are measured on the same draws. It writes docs/data/triage_heads.json.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import study
import torch
import triage_study
import typer
from scipy.stats import spearmanr
from torch import Tensor

from probattn.metrics.functional import area_under_risk_coverage, conformal_quantile
from probattn.tasks import Drawing
from probattn.triage.running import judge

SETTINGS: dict[str, dict[str, Any]] = study.declared("triage_heads")
"""Recipe, keys and tolerance by task."""


@dataclass(frozen=True)
class Recorded:
    """Answers that stand for all inputs, the texts that several are about, and by what numbers miss the true ones.

    The last is in units of their scale. ``products`` are other scores, 1 less the product of all decisions of an input.
    """

    answers: triage_study.Population
    groups: list[str]
    misses: Tensor
    scales: Tensor
    products: Tensor


def product(answer: Mapping[str, Any]) -> list[float]:
    """The product of the probabilities of several decisions, taken from 1; nothing of a single one."""
    several = answer.get("probability")
    if isinstance(several, Mapping):
        several = [max(p, 1 - p) for p in several.values()]
    return [1 - math.prod(several)] if isinstance(several, list) else []


def recorded(job: study.Job, place: Path) -> Recorded:
    """Predictions of the inputs that were not trained on, which the run's folder keeps."""
    task, _ = study.fit(job, place)
    deciding = task.deciding.within(SETTINGS[job.head["task"]].get("tolerance"))
    identity = task.section_of_examples.identity
    trained = set(map(identity, task.examples["train"]))
    scores, wrong, groups, answers = [], [], [], []
    for role, inputs in deciding.held_out().items():
        judged = judge(deciding, place, role, inputs, Drawing.of(task.recipe.prediction))
        new = [row for row, example in enumerate(inputs.examples or ()) if identity(example) not in trained]
        judged = judged.rows(new)
        scores.append(judged.scores("least_confidence"))
        wrong.append(judged.wrong)
        groups += [inputs.texts[row] for row in new if inputs.about is not None]
        answers += list(zip(judged.answers, judged.labels or (), strict=True))
    same = triage_study.Population(
        torch.cat(scores), [0] * len(answers), torch.cat(wrong), torch.zeros(len(answers)).double()
    )
    numbers = [(answer, truth) for answer, truth in answers if "scale" in answer]
    misses = [abs(answer["prediction"] - truth) / answer["scale"] for answer, truth in numbers]
    scales = [answer["scale"] for answer, _ in numbers]
    products = [score for answer, _ in answers for score in product(answer)]
    columns = (torch.tensor(values, dtype=torch.float64) for values in (misses, scales, products))
    return Recorded(same, groups, *columns)


def together(groups: Sequence[str], seed: int) -> Tensor:
    """Rows of texts that are drawn with replacement, with all their inputs, as many as a split has."""
    places: dict[str, list[int]] = {}
    for row, text in enumerate(groups):
        places.setdefault(text, []).append(row)
    members = list(places.values())
    size, drawn = triage_study.PILOT + triage_study.HELD, []
    for number in torch.randint(
        len(members), (size,), generator=torch.Generator().manual_seed(seed)
    ).tolist():
        drawn += members[number]
    return torch.tensor(drawn[:size])


def intervals(found: Recorded, error: float, splits: int) -> study.Content:
    """Shares of the numbers in their intervals and widths, means over splits."""
    coverages, widths = [], []
    for seed in range(splits):
        rows = triage_study.drawn(len(found.misses), seed)[triage_study.PILOT :]
        quantile = conformal_quantile(found.misses[rows], error=error)
        coverages.append(float((found.misses <= quantile).double().mean()))
        widths.append(2 * quantile * float(found.scales.mean()))
    return {"coverage": study.interval(coverages), "width": sum(widths) / splits}


@dataclass(kw_only=True)
class TriageHeadsStudy(triage_study.TriageStudy):
    """Recorded predictions of four heads."""

    recipe: Annotated[str, typer.Option(help="Recipe of all tasks, in place of their own.")] = ""
    output: study.Output = study.DATA / "triage_heads.json"

    def __post_init__(self) -> None:
        self.names = study.chosen("tasks", self.tasks, SETTINGS)

    def setting(self) -> study.Content:
        """What all runs have in common."""
        return {name: value for name, value in super().setting().items() if name not in ("recipe", "files")}

    def jobs(self) -> Iterator[study.Job]:
        """The tasks, seed by seed."""
        for seed in range(self.seeds):
            for name in self.names:
                keys = (*SETTINGS[name]["keys"], *self.overrides, f"training.seed={seed}")
                head = {"task": name, "seed": seed}
                yield study.Job(head, self.recipe or SETTINGS[name]["recipe"], keys, f"{name}/seed-{seed}")

    def measure(self, job: study.Job) -> study.Run:
        """Trains a network, records its predictions of all inputs that it was not trained on, and draws from them."""
        run = SETTINGS[job.head["task"]].get("run", job.head["task"])
        found = recorded(job, self.folder / run / f"seed-{job.head['seed']}")
        same = found.answers
        promises = {}
        for error in triage_study.PROMISES:
            row = triage_study.over_splits(same, {}, error, self.splits)
            row |= {"certain": same.certain(error), "oracle": same.oracle(error)}
            if found.groups:
                draws = (together(found.groups, seed) for seed in range(self.splits))
                row["together"] = triage_study.over_splits(same, {}, error, self.splits, rows=draws)
            if len(found.misses):
                row["intervals"] = intervals(found, error, self.splits)
            promises[str(error)] = row
        wrong, further = same.wrong.double(), {}
        if len(found.products):
            areas = {"least": same.scores, "product": found.products}
            further = {
                "aurc": {key: float(area_under_risk_coverage(scores, wrong)) for key, scores in areas.items()}
            }
        if len(found.misses):
            further = {"correlation": float(spearmanr(found.scales, found.misses * found.scales).statistic)}
        return {
            "predictions": len(same.scores),
            "texts": len(set(found.groups)) or None,
            "tolerance": SETTINGS[job.head["task"]].get("tolerance"),
            "error": float(wrong.mean()),
            **further,
            "promises": promises,
        }

    def summarise(self, runs: Sequence[study.Run]) -> study.Content:
        """The lowest rate at which a guarantee holds on independent inputs."""
        return {"worst": min(row["held"] for run in runs for row in run["promises"].values())}


STUDY = TriageHeadsStudy
