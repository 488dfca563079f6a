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
    """One condition: sizes of the task and options of the model, trained with every seed.

    Example:
        >>> ConditionRecipe(types=60).vocabulary
        60
    """

    title: str | None = key(
        None, "Title in reports; null for the condition's key.", min_length=1, max_length=60
    )
    types: int = key(40, "Words of a vocabulary.", ge=2)
    length: Count = key(40, "Words of a sentence.")
    sets: Count = key(1, "Disjoint vocabularies; each sentence is drawn from one of them (task `copy`).")
    order: Literal["copy", "permuted"] = key(
        "copy",
        "Whether the output is the input or its words in another order, fixed by the seed (task `copy`).",
    )
    attention: Literal["learned", "uniform", "frozen_probe"] = key(
        "learned",
        "`uniform` attends to all positions equally; with `frozen_probe` only attention is trained (task `copy`).",
    )
    heads: Count = key(1, "Attention heads, whose contexts are summed (task `copy`).")
    starts: Literal["random", "bad", "one_good"] = key(
        "random",
        "Initial values of the attention heads: drawn independently, all bad, or one good and the others bad, from "
        "those that `search` tried (task `copy`).",
    )
    bidirectional: bool = key(False, "Whether a second LSTM reads from the end (task `keyword`).")

    @property
    def vocabulary(self) -> int:
        """Number of words of all sets."""
        return self.types * self.sets

    @model_validator(mode="after")
    def _enough_words(self) -> ConditionRecipe:
        if self.starts != "random" and self.attention != "learned":
            raise ValueError(
                f"starts: expected 'random' where attention is {self.attention!r}, got {self.starts!r}"
            )
        return self


class HeadSearchRecipe(Section):
    """Trains models of one attention head to find initial values of a head from which the model learns in time.

    Whether initial values are good depends on the model around the head and on the sentences. Candidates are therefore
    tried in several models that differ in sentences and all other initial values; the runs of conditions use one of
    these models, its sentences, and heads that were tried in it.
    """

    models: Count = key(4, "Models, with different sentences and initial values of all but the head.")
    candidates: int = key(20, "Initial heads that are tried in each model.", ge=2)
    trials: Count = key(
        1, "Runs of a candidate on different sentences; it is good (or bad) if it is good (or bad) in each."
    )
    steps: Count = key(300, "Updates by which a model with a good initial head reaches `threshold`.")
    bad_below: float | None = key(
        None,
        "Accuracy after `steps` updates below which a head is bad; heads that are neither good nor bad are not used. "
        "null: all heads that are not good are bad.",
        gt=0,
        le=1,
    )


class ExperimentSection(Section):
    """The conditions to compare."""

    task: Literal["copy", "keyword"] = key(
        "copy",
        "`copy`: an encoder-decoder outputs the words of its input; `keyword`: a classifier with uniform attention "
        "says whether a word occurs.",
    )
    conditions: dict[str, ConditionRecipe] = Field(
        min_length=1, description="Conditions by name; all others are compared with the first."
    )
    threshold: float = key(0.99, "Accuracy at which a run has learned the task.", gt=0, le=1)
    by_step: Count | None = key(None, "Update by which a run must have learned the task; null for the last.")
    search: HeadSearchRecipe | None = key(None, "Search for good and bad initial heads; null for none.")

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
    """The recurrent models of Snell et al. 2021, in one layer."""

    form: Literal["paper", "release"] = key(
        "paper",
        "`paper`: LSTMs, heads are score matrices, contexts are summed; `release`: GRUs, heads also have a "
        "linear projection of their context, contexts are averaged, tanh instead of ReLU, as in the authors' code "
        "(task `copy`).",
    )
    width: Count = key(256, "Size of embeddings, states in each direction and the last hidden layer.")


class ExperimentTrainingRecipe(Section):
    """Training of every run, by Adam. All runs of a condition are one batched program."""

    runs: int = key(20, "Runs of each condition, each with a different seed.", ge=2)
    seed: Seed = key(0, "Seed of the first run; each further run adds 1.")
    steps: Count = key(300, "Updates of a run.")
    batch_size: Count = key(128, "Sentences per update of each run.")
    learning_rate: float = key(1e-3, "Learning rate of Adam.", gt=0, lt=10)
    evaluate_every: Count = key(10, "Updates between evaluations; start and end are always evaluated.")
    test_sentences: Count = key(64, "New sentences for the accuracy of each run in each evaluation.")
    probe_sentences: Count = key(8, "Sentences for attention and probe, the same in each evaluation.")
    checkpoint_every: Count = key(50, "Updates between checkpoints.")
    device: Literal["auto", "cpu"] = key("auto", "`auto` uses an accelerator if there is one.")

    def evaluated(self, steps: int | None = None) -> tuple[int, ...]:
        """The steps at which a run of ``steps`` updates (by default those of the section) is evaluated.

        Example:
            >>> ExperimentTrainingRecipe(steps=25).evaluated()
            (0, 10, 20, 25)
        """
        last = self.steps if steps is None else steps
        return (*range(0, last, self.evaluate_every), last)


class ExperimentRecipe(RunRecipe):
    """Recipe of a synthetic experiment, identified by its section `experiment`.

    Example:
        >>> recipe = ExperimentRecipe(experiment={"conditions": {"all": {}, "more": {"types": 60}}})
        >>> recipe.by_step, recipe.titles()
        (300, {'all': 'all', 'more': 'more'})
    """

    introduction = """# Recipes of experiments

A recipe with a section `experiment` trains small models on synthetic tasks, each condition with many seeds; see
[Copying](../concepts/copying.md). Only `experiment.conditions` must be given. As in
[recipes of texts](reference.md), unknown keys are errors, and `--set` replaces single keys
(`--set experiment.conditions.NAME.types=50`).
"""

    experiment: ExperimentSection = Field(description="What is compared.")
    network: ExperimentNetworkRecipe = key(ExperimentNetworkRecipe(), "The network.")
    training: ExperimentTrainingRecipe = key(ExperimentTrainingRecipe(), "How to train.")

    @property
    def by_step(self) -> int:
        """The number of updates by which a run must have learned to be counted."""
        return self.experiment.by_step or self.training.steps

    @model_validator(mode="after")
    def _counted_in_time(self) -> ExperimentRecipe:
        if self.by_step > self.training.steps:
            raise ValueError(
                f"experiment.by_step: expected at most training.steps ({self.training.steps}), got {self.by_step}"
            )
        if self.experiment.task == "keyword" and self.network.form != "paper":
            raise ValueError(
                f"network.form: expected 'paper' for the task 'keyword', got {self.network.form!r}"
            )
        return self

    def titles(self) -> Mapping[str, str]:
        """Displayed names of the conditions, by key."""
        return {
            name: condition.title or name.replace("_", " ")
            for name, condition in self.experiment.conditions.items()
        }
