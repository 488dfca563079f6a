"""A recipe of a synthetic experiment: conditions that are trained from many seeds and compared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from probattn.options import Count
from probattn.tasks.sections.base import RunRecipe, Section, Seed, key

SEARCH = "search"
"""Name of the stage that tries heads, which no condition may have."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class ConditionRecipe(Section):
    """A task and what differs in the model, trained from every seed.

    Example:
        >>> ConditionRecipe(types=60).vocabulary
        60
    """

    title: str | None = key(None, "Its name for people; null for its key.", min_length=1, max_length=60)
    types: int = key(40, "Words of a vocabulary.", ge=2)
    length: Count = key(40, "Words of a sentence.")
    sets: Count = key(1, "Disjoint vocabularies, of which each sentence is drawn from one (`copy`).")
    order: Literal["copy", "permuted"] = key(
        "copy",
        "Whether the output is the input or has its words in another order, one for each seed (`copy`).",
    )
    attention: Literal["learned", "uniform", "frozen_probe"] = key(
        "learned",
        "`uniform` attends to all positions alike; with `frozen_probe` nothing but attention learns (`copy`).",
    )
    heads: Count = key(1, "Heads, whose contexts are summed (`copy`).")
    starts: Literal["random", "bad", "one_good"] = key(
        "random",
        "Initial values of the heads: drawn independently, all of them bad, or one good and the others bad, out of "
        "those that `search` tried (`copy`).",
    )
    bidirectional: bool = key(False, "Whether a second LSTM reads from the end (`keyword`).")

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

    models: Count = key(4, "Initial values of everything but heads.")
    candidates: int = key(20, "Heads that are tried in each.", ge=2)
    steps: Count = key(300, "Updates by which a model with a good head has reached the threshold.")


class ExperimentSection(Section):
    """The conditions to compare. A recipe with this section is one of an experiment."""

    task: Literal["copy", "keyword"] = key(
        "copy",
        "`copy`: put out the words that were read, by an encoder-decoder; `keyword`: say whether a word occurs, by a "
        "classifier under uniform attention.",
    )
    conditions: dict[str, ConditionRecipe] = Field(
        min_length=1, description="By name; the others are compared with the first."
    )
    threshold: float = key(0.99, "Accuracy at which a run counts as having learned.", gt=0, le=1)
    by_step: Count | None = key(None, "Update by which those runs are counted; null for the last.")
    search: HeadSearchRecipe | None = key(
        None, "Search for good and bad heads before everything else; null for none."
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

    width: Count = key(256, "Of embeddings, states of a direction, and the hidden layer before the output.")


class ExperimentTrainingRecipe(Section):
    """Training of every run, by Adam. All runs of a condition are one batched program."""

    runs: int = key(20, "Runs of a condition, each from its own seed.", ge=2)
    seed: Seed = key(0, "Seed of the first; the others count on from it.")
    steps: Count = key(300, "Updates.")
    batch_size: Count = key(128, "Sentences of an update and run.")
    learning_rate: float = key(1e-3, "Of Adam.", gt=0, lt=10)
    evaluate_every: Count = key(
        10, "Updates between evaluations; the initial values and the end are evaluated too."
    )
    test_sentences: Count = key(
        64, "New sentences that accuracy is measured on, for each run and evaluation."
    )
    probe_sentences: Count = key(
        8, "Sentences, the same at every step, that attention and probe are measured on."
    )
    checkpoint_every: Count = key(50, "Updates between checkpoints.")
    device: Literal["auto", "cpu"] = key("auto", "`auto` takes an accelerator where there is one.")

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
    network: ExperimentNetworkRecipe = key(ExperimentNetworkRecipe(), "The network.")
    training: ExperimentTrainingRecipe = key(ExperimentTrainingRecipe(), "How to train.")

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
