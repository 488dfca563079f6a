"""All the data of a task: what is trained on, what is measured on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from probattn.data.dataset import TextDataset
from probattn.data.errors import DataError, DataWarning
from probattn.data.identity import SPLITS, Split, split_of
from probattn.data.sources import ROLES, Role, Source

CERTAIN = 10
"""Texts that a part is expected to have from which on its having none is no chance (a probability of 5e-5)."""


@dataclass(frozen=True)
class Task:
    """The data sets of a classification task, by role; all labels index ``label_names``.

    Args:
        train: training texts.
        validation: validation texts, used during training.
        test: in-domain test texts.
        shifted: any number of test sets of the same task on other material.
        out_of_domain: texts that do not belong to the task, without labels.
    """

    train: TextDataset
    validation: TextDataset
    test: TextDataset
    shifted: tuple[TextDataset, ...] = ()
    out_of_domain: TextDataset | None = None

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the network's outputs."""
        return self.train.label_names

    def roles(self) -> dict[str, TextDataset]:
        """The existing data sets, by role; several shifted ones are "shifted", "shifted_2" and so on."""
        sets: dict[str, TextDataset | None] = {
            "train": self.train,
            "validation": self.validation,
            "test": self.test,
            **{f"shifted_{n}" if n > 1 else "shifted": data for n, data in enumerate(self.shifted, 1)},
            "out_of_domain": self.out_of_domain,
        }
        return {role: data for role, data in sets.items() if data is not None}

    def shared_with_training(self) -> dict[str, int]:
        """Number of texts of each other data set that are also in the training data; sets without any are omitted."""
        keys = self.train.keys()
        shared = {role: data.shared_with(keys) for role, data in self.roles().items() if role != "train"}
        return {role: count for role, count in shared.items() if count}


def role_of(key: str) -> str:
    """The role of a data set by its key in :meth:`Task.roles`: that of "shifted_2" is "shifted"."""
    return key.rstrip("0123456789").removesuffix("_")


def load_task(
    sources: Mapping[Role, Source | Sequence[Source]],
    *,
    limits: Mapping[Role, int] | None = None,
    validation_fraction: float = 0.1,
    test_fraction: float = 0.1,
) -> Task:
    """Reads the data of a task.

    Without a source for "validation" or "test", the split of this name is read if the training source is a built-in
    data set with ``split`` None or "train"; else the share ``validation_fraction`` or ``test_fraction`` of the training
    data is set aside by the hash of the text, so repeated texts stay together and the choice is always the same.

    Args:
        sources: sources by role; "train" is required, "shifted" may be a list.
        limits: maximum number of texts by role; the texts are a pseudo-random choice that is always the same.
        validation_fraction: share in (0, 1).
        test_fraction: share in (0, 1).

    Returns:
        The data.

    Raises:
        DataError: the data are invalid; the message is one line.

    Warns:
        DataWarning: a data set has texts of the training data (one warning per data set).
    """
    limits = limits or {}
    if "train" not in sources:
        raise DataError(f"expected a source to train on, got {', '.join(sources) or 'none'}")
    shifted = sources.get("shifted", ())
    several = (shifted,) if isinstance(shifted, Source) else tuple(shifted)
    single_sources = {role: value for role, value in sources.items() if isinstance(value, Source)}
    single = _with_own_splits({role: value for role, value in single_sources.items() if role != "shifted"})
    train = single["train"].load("train")

    def load(source: Source, role: Role) -> TextDataset:
        data = source.load(role, train.label_names)
        _require_alike(train, data, role)
        return data

    loaded: dict[Role, TextDataset] = {"train": train}
    loaded |= {role: load(single[role], role) for role in ROLES[1:] if role in single and role != "shifted"}
    loaded |= _held_out_splits(train, loaded, validation_fraction, test_fraction)
    limited = {role: data.take(limits.get(role)) for role, data in loaded.items()}
    task = Task(
        train=limited["train"].require_classes(),
        validation=limited["validation"],
        test=limited["test"],
        shifted=tuple(load(source, "shifted").take(limits.get("shifted")) for source in several),
        out_of_domain=limited.get("out_of_domain"),
    )
    for role, count in task.shared_with_training().items():
        data = task.roles()[role]
        warnings.warn(
            f"{data.source}: {count:,} of its {len(data):,} texts ({role.replace('_', ' ')}) are in the training data "
            "too, so that measurements on it flatter",
            DataWarning,
            stacklevel=2,
        )
    return task


def _with_own_splits(sources: Mapping[Role, Source]) -> dict[Role, Source]:
    """Adds a built-in training set's own validation and test split where none is given."""
    train = sources["train"]
    completed = dict(sources)
    if train.kind == "built-in" and train.split in (None, "train"):
        for role in SPLITS[1:]:
            completed.setdefault(role, Source(train.source, role, label_map=train.label_map))
    return completed


def _require_alike(train: TextDataset, data: TextDataset, role: Role) -> None:
    """Refuses pairs where training has single texts, or the other way; out-of-distribution texts may be either."""
    if role == "out_of_domain" or (train.pairs is None) == (data.pairs is None):
        return
    words = {True: "single texts", False: "pairs of texts"}
    raise DataError(
        f"{data.source}: expected {words[train.pairs is None]}, as in the training data ({train.source}), got "
        f"{words[data.pairs is None]}; name the column of the second texts with 'text_pair', or leave it out"
    )


def _held_out_splits(
    train: TextDataset, loaded: Mapping[Role, TextDataset], validation: float, test: float
) -> dict[Role, TextDataset]:
    """Cuts what is missing out of the training data; nothing where nothing is."""
    shares = {
        "validation": 0.0 if "validation" in loaded else validation,
        "test": 0.0 if "test" in loaded else test,
    }
    if not any(shares.values()):
        return {}
    rows: dict[Split, list[int]] = {split: [] for split in SPLITS}
    for row, text in enumerate(train.texts):
        split = split_of(text, shares["validation"], shares["test"], pair=train.pair(row))
        rows[split].append(row)
    datasets: dict[Role, TextDataset] = {}
    for role in SPLITS:
        if role != "train" and not shares[role]:
            continue
        if not rows[role]:
            different = len(train.keys())
            if different * shares.get(role, 0.0) >= CERTAIN:
                raise DataError(
                    f"{train.source}: none of {different:,} different texts falls into the {role} part, so they were "
                    f"split by this rule before (as the training part of a data set that has a name is); give a "
                    f"source for {role}"
                )
            copies = f" ({different} different one{'s' * (different > 1)})" if different < len(train) else ""
            raise DataError(
                f"{train.source}: {len(train)} texts{copies} are too few to set some aside for {role}; "
                f"give a source for {role}, or more texts"
            )
        datasets[role] = replace(train.rows(rows[role]), source=f"{train.source} ({role})")
    return datasets
