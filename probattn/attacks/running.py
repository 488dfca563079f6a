"""Attacks on the test texts of a run, recorded in its folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from probattn.attacks.building import build_attack
from probattn.attacks.options import AttackOptions
from probattn.attacks.records import ATTACKS, AttackedText, AttackFile, AttackResult, summarise
from probattn.attacks.victims import NetworkVictim, Text, Victim
from probattn.data import BUILT_IN, DataWarning, Source, TextDataset
from probattn.files.durable import digest, write_atomically
from probattn.inference.session import preserved_random_state, seed_generators
from probattn.tasks import Classification, RunError, run_task
from probattn.tasks.classification.task import classification_of
from probattn.tasks.held_out import network_digest
from probattn.tasks.progress import tracked
from probattn.tasks.run import package_versions
from probattn.tasks.task import BASELINE, RECIPE

Attack = Callable[[Text, int], AttackedText]
"""Attacks a text of a class, an index."""


def attack_run(
    run: Path, options: AttackOptions | None = None, *, output: Path | None = None, again: bool = False
) -> tuple[Path, AttackResult]:
    """Attacks texts with the network of a finished run of classification, and records each in a file.

    An attack that was interrupted goes on where it was: the file is continued if it is of the same options, texts and
    network. Each text has a random stream of its own, so that an interruption changes nothing.

    Args:
        run: its folder, or the folder "baseline" in one.
        options: the attack; None for TextFooler on the point prediction.
        output: folder of the records; None for "attacks" in the run's.
        again: begin anew, whatever is there.

    Returns:
        The file of the result (JSON), beside which the records lie (JSON Lines), and the result.

    Raises:
        RunError: no finished run of texts, another attack in the file, or TextAttack or a resource is missing.
        DataError: the texts cannot be read.
    """
    options = options or AttackOptions()
    task = _task(run)
    network = task.network(run)
    victim = NetworkVictim(
        task, network, options.prediction, options.num_samples, options.seed, options.noise
    )
    data = _texts(task, victim, options)
    settings = options.settings() | {
        "texts": digest(
            f"{text}\0{data.pair(row)}\0{label}\0"
            for row, (text, label) in enumerate(zip(data.texts, data.labels or (), strict=True))
        ),
        "network": network_digest(run),
    }
    attack = build_attack(options.attack, victim, options.queries, options.resources)
    file = (output or run / ATTACKS) / f"{options.name}.jsonl"
    path = file.with_suffix(".json")
    versions = package_versions()
    with suppress(PackageNotFoundError):
        versions["textattack"] = version("textattack")
    with AttackFile(file, settings, again=again) as records:
        if len(records.done) < len(data):
            path.unlink(missing_ok=True)  # of an attack that was begun anew
        attack_texts(attack, victim, data, records, options.seed)
        result = AttackResult(
            run=str(run),
            name=task.recipe.name,
            method="baseline" if _is_baseline(run) else task.method_words(),
            trained_on=task.recipe.data.train.source,
            training_seed=task.recipe.training.seed,
            settings=settings,
            versions=versions,
            summary=summarise(records.done),
        )
    write_atomically(path, (result.model_dump_json(indent=1) + "\n").encode())
    return path, result


def attack_texts(attack: Attack, victim: Victim, data: TextDataset, records: AttackFile, seed: int) -> None:
    """Attacks the texts that the records lack, in order, and adds them.

    Args:
        attack: of one text.
        victim: is told the number of each text.
        data: texts with labels.
        records: of this attack.
        seed: of random changes; each text's generators are seeded with it and with the text's number.
    """
    assert data.labels is not None
    left = range(len(records.done), len(data))
    for row in tracked(left, f"attack on {data.source}") if left else ():
        pair = data.pair(row)
        with preserved_random_state(torch.device("cpu")):
            seed_generators(seed, row)
            victim.begin(row)
            text = data.texts[row] if pair is None else (data.texts[row], pair)
            records.append(attack(text, data.labels[row]))


def _is_baseline(run: Path) -> bool:
    """Whether a folder is the baseline of a run, not a run of that name."""
    return run.name == BASELINE and not (run / RECIPE).exists()


def _task(run: Path) -> Classification:
    return classification_of(run_task(run.parent if _is_baseline(run) else run), run)


def _texts(task: Classification, victim: NetworkVictim, options: AttackOptions) -> TextDataset:
    classes = tuple(victim.classes)
    if options.data is None:
        data = task.texts.test
    else:
        if options.data not in BUILT_IN:
            raise RunError(
                f"--data: expected a data set that has a name, such as textfooler_imdb, got {options.data!r}"
            )
        data = Source(options.data).load("shifted", classes)
        _warn_of_training_texts(data, task.texts.train)
    if (data.pairs is not None) != task.is_paired:
        kinds = ("single texts", "pairs of texts")
        raise RunError(
            f"--data {options.data}: expected {kinds[task.is_paired]}, on which the run was trained, got "
            f"{kinds[not task.is_paired]}"
        )
    if data.labels is None:
        raise RunError(f"{data.source}: expected texts with classes to attack, got none of a class")
    return data.take(options.number)


def _warn_of_training_texts(data: TextDataset, train: TextDataset) -> None:
    if count := data.shared_with(train):
        warnings.warn(
            f"{data.source}: {count:,} of its {len(data):,} texts are in the training data of the run too, so that "
            "attacks on it say less of new texts",
            DataWarning,
            stacklevel=3,
        )
