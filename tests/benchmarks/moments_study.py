"""The closed form of a prediction's uncertainty against draws, on networks trained on three data sets.

    PROBATTN_DATA=/data python tests/benchmarks/study.py moments runs/moments

MiniLM with latent attention in all layers (BABN, BAM with k = 10, log-normal) is fine-tuned on film reviews, questions
(TREC) and paraphrases (MRPC). On `rows` test texts the standard deviation of the difference of the two leading logits
is compared with that of `draws` draws, and 1% of the weights are held at their means; on `test` texts, measures of
uncertainty by moments are compared with those by 100 draws.
`--full` takes 10,000 draws, 24 texts and all test texts. It writes docs/data/moments.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Literal

import study
import torch
import typer
from deletion import variance_removed
from torch import Tensor

from probattn.inference import Moments, Posterior, posterior_moments, posterior_predict
from probattn.metrics.functional import area_under_risk_coverage, ood_auroc, pavpu
from probattn.tasks import load_network

RECIPE = "mrpc_soft"
ALWAYS = (
    "report.baseline=false",
    "report.measures=[]",
    "training.batch_size=32",
    "training.learning_rate=5e-5",
    "training.site_learning_rate=1e-3",
)
DATA = {
    "trec": ("data.train=trec", "data.max_length=48", "training.epochs=2"),
    "rt": (
        "data.train=rotten_tomatoes",
        "data.limits.train=4000",
        "data.max_length=64",
        "training.epochs=2",
    ),
    "mrpc": ("data.train=mrpc", "data.max_length=96", "training.epochs=3"),
}
METHODS = {
    "babn": ("attention.method=babn",),
    "bam": ("attention.method=bam",),
    "lognormal": ("attention.method=bam", "attention.posterior=lognormal"),
}
MEASURED_DRAWS = 100
RANKINGS: tuple[Literal["share", "spread", "random"], ...] = ("share", "spread", "random")
SCORES = ("entropy", "mutual_information")
FIGURES = ("error", "error_90", "bias", "relative_variance", "largest_gap")


@dataclass(kw_only=True)
class MomentsStudy(study.Study):
    """Data sets by methods by seeds."""

    folder: study.Folder
    seeds: study.Seeds = 1
    output: study.Output = study.DATA / "moments.json"
    rows: Annotated[int, typer.Option(min=1, help="Test texts whose standard deviation is compared.")] = 12
    draws: Annotated[int, typer.Option(min=10, help="Draws they are compared with.")] = 2000
    test: Annotated[int, typer.Option(min=2, help="Test texts that are measured.")] = 300
    full: study.Full = False
    set_: study.Keys = None

    words = "{0}"

    def __post_init__(self) -> None:
        if self.full:
            self.rows, self.draws, self.test = 24, 10_000, 10**9

    def jobs(self) -> Iterator[study.Job]:
        for seed, data, method in product(range(self.seeds), DATA, METHODS):
            keys = (*ALWAYS, *DATA[data], *METHODS[method], *self.overrides, f"training.seed={seed}")
            head = {"data": data, "method": method, "seed": seed}
            yield study.Job(head, RECIPE, keys, f"{data}_{method}_{seed}")

    def setting(self) -> study.Content:
        """What the runs have in common."""
        sizes = {"rows": self.rows, "draws": self.draws, "test": self.test}
        return {"recipe": RECIPE, "full": self.full, "set": self.overrides} | sizes

    def measure(self, job: study.Job) -> study.Run:
        """Trains a network and measures its uncertainty both ways."""
        task, _ = study.fit(job, self.place(job))
        trained = load_network(self.place(job))
        test = task.measured()["test"].take(self.test)
        test = test.rows(test.shortest_first())
        program = trained.program
        found, points, drawn = [], [], []
        for batch in map(trained.moved, task.batches(trained, test)):
            moments = posterior_moments(program, batch, method="expansion")
            found.append(moments)
            points.append(moments.draws(MEASURED_DRAWS).logits)
            drawn.append(posterior_predict(program, batch, MEASURED_DRAWS, seed=1).logits)
        both = {"moments": Posterior(torch.cat(points, dim=1)), "draws": Posterior(torch.cat(drawn, dim=1))}
        whole = Moments.together(found)
        labels = torch.tensor(test.labels)
        scores = {name: scores_of(posterior, labels) for name, posterior in both.items()}
        gaps = {name: scores["moments"][name] - scores["draws"][name] for name in scores["draws"]}
        rows = test.take(self.rows)
        return {
            **compared(map(trained.moved, task.batches(trained, rows)), program, self.draws),
            "deletion": deleted(map(trained.moved, task.batches(trained, rows)), program),
            "relative_variance": float(whole.relative_variance.median()),
            "texts": len(test),
            "accuracy": float((both["draws"].mean_probabilities.argmax(dim=-1) == labels).float().mean()),
            "scores": scores,
            "gaps": gaps,
            "largest_gap": max(map(abs, gaps.values())),
        }

    def said(self, run: study.Run) -> str:
        return f"error {run['error']:.3f}, largest gap of a measure {run['largest_gap']:.4f}"

    def summarise(self, runs: Sequence[study.Run]) -> Any:
        """Mean and interval over seeds, by data set and method."""
        found = {}
        for data, method in product(DATA, METHODS):
            own = [run for run in runs if (run["data"], run["method"]) == (data, method)]
            if own:
                found[f"{data} {method}"] = study.means(own, FIGURES)
        return found


def compared(batches: Iterable[Mapping[str, Tensor]], program: Any, number: int) -> dict[str, float]:
    """Errors of the closed form's standard deviation, and its distance to the mean of draws, over rows."""
    errors, bias = [], []
    for batch in batches:
        moments = posterior_moments(program, batch, classes=2, method="expansion")
        logits = posterior_predict(program, batch, number, seed=0).logits
        leading = logits.gather(-1, moments.classes.expand(number, *moments.classes.shape))
        drawn, own = leading[..., 0] - leading[..., 1], moments.logits.gather(-1, moments.classes)
        errors.append((moments.difference_std() / drawn.std(dim=0) - 1).abs())
        bias.append(((drawn.mean(dim=0) - own[..., 0] + own[..., 1]) / drawn.std(dim=0)).abs())
    all_errors = torch.cat(errors)
    return {
        "error": float(all_errors.median()),
        "error_90": float(all_errors.quantile(0.9)),
        "bias": float(torch.cat(bias).median()),
        "rows": len(all_errors),
        "draws": number,
    }


def deleted(batches: Iterable[Mapping[str, Tensor]], program: Any) -> dict[str, float]:
    """Part of the variance that goes with 1% of the weights, by what they are chosen by; medians over rows."""
    found: dict[str, list[Tensor]] = {by: [] for by in RANKINGS}
    for batch in batches:
        for by, parts in found.items():
            parts.append(variance_removed(program, batch, by=by, num_samples=MEASURED_DRAWS))
    return {by: float(torch.cat(parts).median()) for by, parts in found.items()}


def scores_of(posterior: Posterior, labels: Tensor) -> dict[str, float]:
    """AUROC of errors and AURC by two scores, and PAvPU by Welch's test."""
    labels = labels.to(posterior.logits.device)
    wrong = posterior.mean_probabilities.argmax(dim=-1) != labels
    found = {}
    for name in SCORES:
        score = getattr(posterior, name)
        found[f"auroc_{name}"] = float(ood_auroc(score[~wrong], score[wrong]))
        found[f"aurc_{name}"] = float(area_under_risk_coverage(score, wrong.float()))
    return found | {"pavpu": float(pavpu(posterior.logits, labels, inputs="logits").squeeze())}


STUDY = MomentsStudy
