"""What each method, and each way of predicting with its network, gains over the network as it is.

    PROBATTN_DATA=/data python tests/benchmarks/study.py methods runs/methods --data banking77 --seeds 5
    PROBATTN_DATA=/data python tests/benchmarks/study.py methods runs/methods --data banking77 --group objective

MiniLM is fine-tuned on one data set by several recipes, over seeds, as `probattn compare` does it. The group "methods"
has the methods of the papers; "objective" has BABN under other objectives, priors, widths and layers, and BAM of other
concentrations. The comparison is written after each seed, by group and data set, into docs/data/methods.json. One core
trains a network of these sizes in some minutes; `--full` takes the sizes of the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import study
import typer

from probattn.cli.console import show
from probattn.comparison import CompareOptions, ComparisonResults, Interval, compare, comparison_table
from probattn.tasks import load_task

DECLARED = study.declared("methods")
SETTINGS: Mapping[str, list[str]] = DECLARED["settings"]
"""Keys of the recipe by data set."""
GROUPS: Mapping[str, Mapping[str, list[str]]] = DECLARED["groups"]
"""Keys that each recipe changes; the first is what the others are compared with."""
TEXTS = {"trec": 500}
"""Training texts where there are fewer: with 2,000 more than 95% of TREC's test texts are right in one pass."""
REDUCED = ("training.batch_size=8", "training.length_pool=20", "prediction.num_samples=10")
KEPT = ("training.early_stopping={metric: log_likelihood, mode: max, patience: 100}",)
"""Each recipe takes the weights of the pass with the greatest validation likelihood, of all its passes."""
RECIPE = "sentiment_babn"
LATENT = ("draws", "moments")
OBJECTIVE_WAYS = ("point", *LATENT)
UNMEASURED = Interval(mean=0.0, low=None, high=None, seeds=1)
"""No passes at all: a cost that was not measured."""
PARTICLE_WAYS = ("point", "temperature", "draws", "draws_information", "ensemble")
DROPOUT = "dropout"
"""Way of the first recipe that the methods are compared with as well."""


def reduced(data: str) -> tuple[str, ...]:
    """Keys of the sizes for one core."""
    limits = f"train: {TEXTS.get(data, 2000)}, validation: 500, test: 1000, out_of_domain: 500"
    return (f"data.limits={{{limits}}}", f"training.epochs={DECLARED['passes'][data]}", *REDUCED)


def rounded(content: Any) -> Any:
    """Numbers to six digits, so that the file stays small."""
    if isinstance(content, Mapping):
        return {name: rounded(value) for name, value in content.items()}
    if isinstance(content, list):
        return [rounded(value) for value in content]
    return float(f"{content:.6g}") if isinstance(content, float) else content


@dataclass(kw_only=True)
class MethodsStudy:
    """Recipes of one data set, compared over seeds."""

    folder: study.Folder
    data: Annotated[Literal["clinc150", "banking77", "trec", "rotten_tomatoes"], typer.Option()] = "banking77"
    group: Annotated[Literal["methods", "objective", "particles"], typer.Option()] = "methods"
    seeds: study.Seeds = 3
    variants: study.Names = None
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the runs.")] = 1
    full: study.Full = False
    output: study.Output = study.DATA / "methods.json"
    set_: study.Keys = None

    def __post_init__(self) -> None:
        self.names = study.chosen("variants", self.variants, GROUPS[self.group])

    def recipes(self, folder: Path) -> tuple[str, ...]:
        """Writes a recipe a variant; their files."""
        files = []
        sizes = () if self.full else reduced(self.data)
        for name in self.names:
            keys = (*SETTINGS[self.data], *KEPT, *sizes, *GROUPS[self.group][name], *(self.set_ or ()))
            file = folder / "recipes" / f"{name}.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(load_task(RECIPE, keys).recipe.dump(), encoding="utf-8")
            files.append(str(file))
        return tuple(files)

    def main(self) -> ComparisonResults:
        """Compares over one seed, over two, and so on; prints the last comparison."""
        folder = self.folder / self.data
        recipes = self.recipes(folder)
        for seeds in range(1, self.seeds + 1):
            options = CompareOptions(recipes, seeds=seeds, workers=self.workers)
            if self.group == "methods":
                _, results = compare(replace(options, against=DROPOUT), folder, quiet=True)
                self.write(DROPOUT, results)
            _, results = compare(options, folder, quiet=True)
            self.write(self.group, results)
        show(comparison_table(results))
        return results

    def write(self, part: str, results: ComparisonResults) -> None:
        """Puts the comparison into the file of results, where that of the same part and data set was.

        Of recipes that differ in their objective, which costs nothing, only :data:`OBJECTIVE_WAYS` are kept, without
        their costs; of the comparison with dropout only :data:`LATENT` ways.
        """
        rows = results.rows
        if part == "objective":
            rows = tuple(
                row.model_copy(update={"cost": UNMEASURED}) for row in rows if row.variant in OBJECTIVE_WAYS
            )
        elif part == "particles":
            rows = tuple(row for row in rows if row.variant in PARTICLE_WAYS)
        elif part == DROPOUT:
            rows = tuple(
                row for row in rows if row.variant in LATENT or (row.recipe, row.variant) == results.reference
            )
        results = results.model_copy(update={"rows": rows})
        known: dict[str, Any] = study.read_json(self.output) if self.output.exists() else {}
        own = known.get(part, {}) | {self.data: rounded(results.model_dump(mode="json"))}
        parts = known | {part: {name: own[name] for name in SETTINGS if name in own}}
        study.write_json({name: parts[name] for name in (*GROUPS, DROPOUT) if name in parts}, self.output)


STUDY = MethodsStudy
