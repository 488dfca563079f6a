"""How well methods say which words speak for an answer, on trained networks, and what they cost.

    PROBATTN_DATA=/data python tests/benchmarks/study.py effects runs/effects
    PROBATTN_DATA=/data python tests/benchmarks/study.py effects runs/other --sets trec,my.csv --output other.json

MiniLM is fine-tuned on each data set, a name or a file, with the recipe's settings where the study has none of its own.
On test texts the scores that each method gives to the words are compared with what the words do. It needs captum,
shap, lime and lxt, or the names of other methods (`--methods`). It writes docs/data/effects.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import study
import torch
import typer
from effects_measures import LONG, LONG_TEXTS, SHORT, Labelled, measured
from effects_methods import DOUBT, METHODS, SAMPLES, STEPS, Subject, Text
from effects_posterior import DRAWS, distrust, reviewed
from effects_summary import summarised

from probattn.data import TextDataset
from probattn.tasks import load_network

SETTINGS: dict[str, list[str]] = study.declared("effects")["settings"]
"""Keys of the recipe by data set; others take the recipe's."""
RECIPES = {"deterministic": "sentiment_deterministic", "babn": "sentiment_babn"}
MARGIN = "margin"
"""Kind of the runs that explain the margins of deterministic networks."""
LATENT_METHODS = ("slope", "screened", "knockout", "random", *DOUBT)
"""Methods that read networks with latent attention."""
Texts = Annotated[int, typer.Option(min=1)]


@dataclass(kw_only=True)
class EffectsStudy(study.Study):
    """Data sets over seeds, and for some of them a network with latent attention."""

    folder: study.Folder
    seeds: study.Seeds = 3
    sets: Annotated[str, typer.Option(help="Data sets, names or files.")] = ",".join(SETTINGS)
    latent: Annotated[str, typer.Option(help="Data sets with latent attention, one seed.")] = (
        "rotten_tomatoes,sst2,snli,banking77"
    )
    reviewed: Annotated[str, typer.Option(help="Data sets whose causes of doubt are counted, one seed.")] = (
        "rotten_tomatoes"
    )
    margin: Annotated[str, typer.Option(help="Data sets of which the margin is explained too.")] = (
        "snli,banking77,clinc150"
    )
    methods: study.Names = None
    texts: Annotated[int, typer.Option(help="Texts of a network.", min=1)] = SHORT.texts
    long_texts: Annotated[int, typer.Option(help=f"The same above {LONG_TEXTS} tokens.", min=1)] = LONG.texts
    reviews: Annotated[int, typer.Option(help="Texts of which causes of doubt are counted.", min=1)] = 200
    output: study.Output = study.DATA / "effects.json"
    finished: study.Finished = False
    set_: study.Keys = None

    words = "{set}, {network}, seed {seed}"

    def __post_init__(self) -> None:
        self.names = [*study.chosen("methods", self.methods, METHODS), *DOUBT]

    def setting(self) -> study.Content:
        """What the runs have in common."""
        sizes = {"texts": self.texts, "long_texts": self.long_texts, "steps": STEPS, "samples": SAMPLES}
        return {"recipes": RECIPES, "draws": DRAWS, "set": self.overrides, "methods": self.names, **sizes}

    def jobs(self) -> Iterator[study.Job]:
        """Seed by seed; margins, and latent attention after the first."""
        latent, margin = self.latent.split(","), self.margin.split(",")
        for seed in range(self.seeds):
            for network, recipe in RECIPES.items():
                for name in self.sets.split(","):
                    if network == "deterministic" or (seed == 0 and name in latent):
                        yield self.job(name, network, recipe, seed)
            for name in self.sets.split(","):
                if name in margin:
                    yield self.job(name, MARGIN, RECIPES["deterministic"], seed)

    def job(self, name: str, network: str, recipe: str, seed: int) -> study.Job:
        """A network."""
        keys = (
            "data.out_of_domain=null",
            "data.shifted=null",
            f"data.train={name}",
            *SETTINGS.get(name, ()),
            "report.baseline=false",
            *self.overrides,
            f"training.seed={seed}",
        )
        folder = f"{re.sub(r'[^a-zA-Z0-9]+', '_', name)}/{network}-{seed}"
        return study.Job({"set": name, "network": network, "seed": seed}, recipe, keys, folder)

    def measure(self, job: study.Job) -> study.Run:
        """Trains a network and measures what methods say of its answers."""
        name, seed, kind = job.head["set"], job.head["seed"], job.head["network"]
        place = self.place(job)
        place = place.with_name(place.name.replace(MARGIN, "deterministic"))
        task, _ = study.fit(job, place)
        trained, data, size = load_network(place), task.texts.test, task.recipe.data.max_length
        accuracy = study.accuracy(trained, task, data)
        latent, margin = kind not in ("deterministic", MARGIN), kind == MARGIN
        subject = Subject(trained.net, trained.codec, size, trained.program if latent else None)
        sizes = LONG if size > LONG_TEXTS else SHORT
        sizes = replace(sizes, texts=self.long_texts if size > LONG_TEXTS else self.texts, margin=margin)
        if margin:
            sizes = replace(sizes, planted=0, varied=0, control=0)
        order = np.random.default_rng(seed).permutation(len(data)).tolist()
        texts = labelled(
            subject, data.rows(order[: 2 * (sizes.texts + sizes.pool)]), sizes.texts + sizes.pool
        )
        figures: study.Content = {"accuracy": accuracy, "long": size > LONG_TEXTS}
        if latent:
            names = [method for method in self.names if method in LATENT_METHODS]
            figures |= measured(subject, None, texts, names, sizes, seed)
            figures["distrust"] = distrust(subject, texts, sizes)
        else:
            figures |= measured(subject, self.control(subject, seed), texts, self.names, sizes, seed)
        if seed == 0 and name in self.reviewed.split(",") and not margin:
            some = data.rows(order[: self.reviews])
            figures["reviewed"] = reviewed(subject, some.texts, some.pairs, shares=latent)
        return figures

    @staticmethod
    def control(subject: Subject, seed: int) -> Subject:
        """A network of the same kind with random weights."""
        torch.manual_seed(seed)
        return Subject(type(subject.net)(deepcopy(subject.net.config)), subject.tokenizer, subject.max_length)

    def said(self, run: study.Run) -> str:
        return f"accuracy {run['accuracy']:.3f}"

    def summarise(self, runs: Sequence[study.Run]) -> study.Content:
        """Means over texts and seeds with intervals."""
        return summarised(runs)

    def write(self, content: study.Content, run: study.Run) -> study.Content:
        """Writes the summary; what was measured of each text stays in the runs' folders."""
        runs = [*content["runs"], run]
        study.write_json({"setting": content["setting"], "summary": self.summarise(runs)}, self.output)
        return {**content, "runs": runs}


def labelled(subject: Subject, data: TextDataset, number: int) -> list[Labelled]:
    """Texts of two words or more, without the words that the network does not read."""
    rows = []
    for row, words in enumerate(data.texts):
        pair, first = data.pair(row), words.split()
        text = Text((*first, *(pair or "").split()), None if pair is None else len(first))
        text = subject.shortened(text)
        if min(map(len, text.texts())) > (0 if text.first is not None else 1):
            rows.append(Labelled(text, data.labels[row]))
    return rows[:number]


STUDY = EffectsStudy
