"""A recipe of a synthetic experiment: conditions that are trained from many seeds and compared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from probattn.options import Count
from probattn.tasks.sections.base import RunRecipe, Section, Seed

SEARCH = "search"
"""Name of the stage that tries heads, which no condition may have."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class ConditionRecipe(Section):
    """A task and what differs in the model, trained from every seed.

    Example:
        >>> ConditionRecipe(types=60).vocabulary
        60
    """

    title: str | None = Field(
        default=None, min_length=1, max_length=60, description="Its name for people; null for its key."
    )
    types: int = Field(default=40, ge=2, description="Words of a vocabulary.")
    length: Count = Field(default=40, description="Words of a sentence.")
    sets: Count = Field(
        default=1, description="Disjoint vocabularies, of which each sentence is drawn from one (`copy`)."
    )
    order: Literal["copy", "permuted"] = Field(
        default="copy",
        description="Whether the output is the input or has its words in another order, one for each seed (`copy`).",
    )
    attention: Literal["learned", "uniform", "frozen_probe"] = Field(
        default="learned",
        description="`uniform` attends to all positions alike; with `frozen_probe` nothing but attention learns "
        "(`copy`).",
    )
    heads: Count = Field(default=1, description="Heads, whose contexts are summed (`copy`).")
    starts: Literal["random", "bad", "one_good"] = Field(
        default="random",
        description="Initial values of the heads: drawn independently, all of them bad, or one good and the others "
        "bad, out of those that `search` tried (`copy`).",
    )
    bidirectional: bool = Field(
        default=False, description="Whether a second LSTM reads from the end (`keyword`)."
    )

    @property
    def vocabulary(self) -> int:
        """Words of all sets."""
        return self.types * self.sets

    @model_validator(mode="after")
    def _enough_words(self) -> ConditionRecipe:
        if self.starts != "random" and self.attention != "learned":
            raise ValueError(
                f"starts: expected 'random' where attention is {self.attention!r}, got {self.starts!r}"
            )
        return self


class HeadSearchRecipe(Section):
    """Trains models of one head to find out which initial values of a head are good: the model then learns in time.

    Whether a head is good depends on the model around it and on the sentences, so candidates are tried in several
    models, each with its own initial values of everything else and its own sentences; the runs of conditions take one
    of these models, its sentences, and heads that were tried in it.
    """

    models: Count = Field(default=4, description="Initial values of everything but heads.")
    candidates: int = Field(default=20, ge=2, description="Heads that are tried in each.")
    steps: Count = Field(
        default=300, description="Updates by which a model with a good head has reached the threshold."
    )


class ExperimentSection(Section):
    """The conditions to compare. A recipe with this section is one of an experiment."""

    task: Literal["copy", "keyword"] = Field(
        default="copy",
        description="`copy`: put out the words that were read, by an encoder-decoder; `keyword`: say whether a word "
        "occurs, by a classifier under uniform attention.",
    )
    conditions: dict[str, ConditionRecipe] = Field(
        min_length=1, description="By name; the others are compared with the first."
    )
    threshold: float = Field(
        default=0.99, gt=0, le=1, description="Accuracy at which a run counts as having learned."
    )
    by_step: Count | None = Field(
        default=None, description="Update by which those runs are counted; null for the last."
    )
    search: HeadSearchRecipe | None = Field(
        default=None, description="Search for good and bad heads before everything else; null for none."
    )

    @model_validator(mode="after")
    def _suits_the_task(self) -> ExperimentSection:
        for name, condition in self.conditions.items():
            if not _NAME.fullmatch(name) or name == SEARCH:
                raise ValueError(
                    f"conditions: expected names of small letters, digits and '_' other than {SEARCH!r}, got {name!r}"
                )
            self._check(f"conditions.{name}", condition)
        if self.search is not None and not any(
            condition.starts != "random" for condition in self.conditions.values()
        ):
            raise ValueError("search: expected null, since no condition has starts 'bad' or 'one_good'")
        return self

    def _check(self, where: str, condition: ConditionRecipe) -> None:
        if self.task == "keyword":
            usual = ConditionRecipe()
            for key in ("sets", "order", "attention", "heads", "starts"):
                if getattr(condition, key) != getattr(usual, key):
                    raise ValueError(f"{where}.{key}: expected none, the task 'keyword' has no such option")
        elif condition.types < condition.length:
            raise ValueError(
                f"{where}.types: expected at least length ({condition.length}), since words are drawn without "
                f"replacement, got {condition.types}"
            )
        elif condition.bidirectional:
            raise ValueError(f"{where}.bidirectional: expected false, the task 'copy' has one direction")
        if condition.starts != "random" and self.search is None:
            raise ValueError(
                f"{where}.starts: expected 'random', since search is null, got {condition.starts!r}"
            )


class ExperimentNetworkRecipe(Section):
    """The LSTM models of Snell et al. 2021, in one layer."""

    width: Count = Field(
        default=256,
        description="Of embeddings, states of a direction, and the hidden layer before the output.",
    )


class ExperimentTrainingRecipe(Section):
    """Training of every run, by Adam. All runs of a condition are one batched program."""

    runs: int = Field(default=20, ge=2, description="Runs of a condition, each from its own seed.")
    seed: Seed = Field(default=0, description="Seed of the first; the others count on from it.")
    steps: Count = Field(default=300, description="Updates.")
    batch_size: Count = Field(default=128, description="Sentences of an update and run.")
    learning_rate: float = Field(default=1e-3, gt=0, lt=10, description="Of Adam.")
    evaluate_every: Count = Field(
        default=10,
        description="Updates between evaluations; the initial values and the end are evaluated too.",
    )
    test_sentences: Count = Field(
        default=64, description="New sentences that accuracy is measured on, for each run and evaluation."
    )
    probe_sentences: Count = Field(
        default=8, description="Sentences, the same at every step, that attention and probe are measured on."
    )
    checkpoint_every: Count = Field(default=50, description="Updates between checkpoints.")
    device: Literal["auto", "cpu"] = Field(
        default="auto", description="`auto` takes an accelerator where there is one."
    )

    def evaluated(self, steps: int | None = None) -> tuple[int, ...]:
        """The steps at which a run of so many updates, by default ``steps``, is evaluated.

        Example:
            >>> ExperimentTrainingRecipe(steps=25).evaluated()
            (0, 10, 20, 25)
        """
        last = self.steps if steps is None else steps
        return (*range(0, last, self.evaluate_every), last)


class ExperimentRecipe(RunRecipe):
    """All that a synthetic experiment depends on. What makes a recipe one is its section `experiment`.

    Example:
        >>> recipe = ExperimentRecipe(experiment={"conditions": {"all": {}, "more": {"types": 60}}})
        >>> recipe.by_step, recipe.titles()
        (300, {'all': 'all', 'more': 'more'})
    """

    introduction = """# Recipes of experiments

A recipe with a section `experiment` trains small models on synthetic tasks, each condition from many seeds; see
[Copying](../concepts/copying.md). Only `experiment.conditions` must be given. As in
[recipes of texts](reference.md), unknown keys are errors, and `--set` replaces single keys
(`--set experiment.conditions.NAME.types=50`).
"""

    experiment: ExperimentSection = Field(description="What is compared.")
    network: ExperimentNetworkRecipe = Field(default=ExperimentNetworkRecipe(), description="The network.")
    training: ExperimentTrainingRecipe = Field(
        default=ExperimentTrainingRecipe(), description="How to train."
    )

    @property
    def by_step(self) -> int:
        """The update by which runs that have learned are counted."""
        return self.experiment.by_step or self.training.steps

    @model_validator(mode="after")
    def _counted_in_time(self) -> ExperimentRecipe:
        if self.by_step > self.training.steps:
            raise ValueError(
                f"experiment.by_step: expected at most training.steps ({self.training.steps}), got {self.by_step}"
            )
        return self

    def titles(self) -> Mapping[str, str]:
        """Names of the conditions for people, by key."""
        return {
            name: condition.title or name.replace("_", " ")
            for name, condition in self.experiment.conditions.items()
        }
