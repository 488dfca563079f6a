"""Attacks on the test texts of a run, recorded in its folder, and the run's network as the attacked classifier."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.runtime import Message
from torch import Tensor

from probattn.attacks.building import build_attack
from probattn.attacks.options import AttackOptions, Prediction, Randomness
from probattn.attacks.records import ATTACKS, AttackedText, AttackFile, AttackResult, Text, Victim, summarise
from probattn.data import BUILT_IN, DataWarning, Source, TextDataset
from probattn.files.durable import digest, write_atomically
from probattn.inference import posterior_expectation, posterior_moments, posterior_predict
from probattn.inference.predictive import predict_label, rows_per_pass
from probattn.inference.session import evaluating, preserved_random_state, seed_generators
from probattn.sites.noise import PlacedNoise, hashed
from probattn.sites.posterior import SitePosterior
from probattn.sites.site import INFER_KEY
from probattn.sites.upward import SharedUpward
from probattn.tasks import Classification, RunError, run_task
from probattn.tasks.classification.task import classification_of
from probattn.tasks.held_out import network_digest
from probattn.tasks.networks import Network
from probattn.tasks.progress import tracked
from probattn.tasks.registry import run_of
from probattn.tasks.run import package_versions

UNTRAINED: Any = {
    **dict.fromkeys(("name", "output", "prediction", "probe", "report"), True),
    "training": {"seed"},
}
"""Keys of a recipe on which a network does not depend, and the seed."""
Attack = Callable[[Text, int], AttackedText]
"""Attacks a text with the index of its true class."""


def attack_run(
    run: Path, options: AttackOptions | None = None, *, output: Path | None = None, again: bool = False
) -> tuple[Path, AttackResult]:
    """Attacks texts with the network of a finished run of classification, and records each in a file.

    An interrupted attack is continued if options, texts and network are the same. Each text has a separate random
    stream, so an interruption does not change the result.

    Args:
        run: folder of the run, or its subfolder "baseline".
        options: options of the attack; None for TextFooler on the point prediction.
        output: folder of the records; None for "attacks" in the run's folder.
        again: whether to start again, overwriting existing records.

    Returns:
        Path of the result (JSON), beside which the records are (JSON Lines), and the result.

    Raises:
        RunError: there is no finished run of texts, the file holds another attack, or TextAttack or a resource is
            missing.
        DataError: the texts cannot be read.
    """
    options = options or AttackOptions()
    task = classification_of(run_task(run_of(run)), run)
    network = task.network(run)
    victim = NetworkVictim(
        task, network, options.prediction, options.num_samples, options.seed, options.noise
    )
    data = _texts(task, victim, options)
    labelled = enumerate(zip(data.texts, data.labels or (), strict=True))
    texts = digest(f"{text}\0{data.pair(row)}\0{label}\0" for row, (text, label) in labelled)
    settings = options.settings() | {"texts": texts, "network": network_digest(run)}
    attack = build_attack(victim, options)
    file = (output or run / ATTACKS) / f"{options.name}.jsonl"
    path = file.with_suffix(".json")
    versions = package_versions()
    trained = task.recipe if run_of(run) == run else task.recipe.baseline()
    with suppress(PackageNotFoundError):
        versions["textattack"] = version("textattack")
    with AttackFile(file, settings, again=again) as records:
        if len(records.done) < len(data):
            path.unlink(missing_ok=True)  # of an attack that was begun anew
        attack_texts(attack, victim, data, records, options.seed)
        result = AttackResult(
            run=str(run),
            name=task.recipe.name,
            method="baseline" if run_of(run) != run else task.method_words(),
            trained_on=task.recipe.data.train.source,
            training_seed=task.recipe.training.seed,
            trained_by=digest([trained.model_dump_json(exclude=UNTRAINED)]),
            settings=settings,
            versions=versions,
            summary=summarise(records.done),
        )
    write_atomically(path, (result.model_dump_json(indent=1) + "\n").encode())
    return path, result


def attack_texts(attack: Attack, victim: Victim, data: TextDataset, records: AttackFile, seed: int) -> None:
    """Attacks the texts that have no record yet, in order, and adds their records.

    Args:
        attack: function that attacks one text.
        victim: attacked classifier, which is notified of the number of each text.
        data: texts with labels.
        records: file of this attack.
        seed: seed of random changes; the generators of each text are seeded with it and with the number of the text.
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


@dataclass
class NetworkVictim:
    """A trained network as the attacked classifier.

    Args:
        task: task of the run.
        network: the network.
        prediction: attacked probabilities, "point", "draws" or "moments".
        num_samples: P, number of draws for "draws".
        seed: seed of the draws.
        noise: "fixed": draw p of a site has the same random numbers for every text, by position (head, query, key); the
            prediction of a text is then always the same. "fresh": each query has new random numbers.

    Raises:
        RunError: the prediction is "draws" or "moments", but the network has no latent attention.
    """

    task: Classification
    network: Network[Any]
    prediction: Prediction = "point"
    num_samples: int = 20
    seed: int = 0
    noise: Randomness = "fixed"

    def __post_init__(self) -> None:
        if self.prediction != "point" and self.network.key != "bayesian_mean":
            raise RunError(
                f"--prediction {self.prediction}: expected a run with latent attention, {self.network.folder} has "
                "none; use --prediction point"
            )
        self._words: tuple[int, ...] = (self.seed, 0)
        self._queries = 0

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes."""
        return self.network.names

    def begin(self, number: int) -> None:
        """Starts the attack on text ``number``; fresh draws depend on it and on the number of queries since."""
        self._words, self._queries = (self.seed, number), 0

    def __call__(self, texts: Sequence[Text]) -> Tensor:
        """Probabilities of the classes, float64 ``[N, C]``, each row's sum 1."""
        batches = [self._probabilities(batch) for batch in self._batches(texts)]
        probabilities = torch.cat(batches).cpu().double()
        return probabilities / probabilities.sum(dim=-1, keepdim=True)

    def _batches(self, texts: Sequence[Text]) -> Any:
        firsts = tuple(text if isinstance(text, str) else text[0] for text in texts)
        seconds = tuple(text[1] for text in texts if not isinstance(text, str)) or None
        with warnings.catch_warnings():  # of texts that are cut, which the training has warned of
            warnings.simplefilter("ignore", DataWarning)
            return map(
                self.network.moved,
                self.task.batches(self.network, TextDataset(firsts, None, (), "attacked", pairs=seconds)),
            )

    def _probabilities(self, batch: dict[str, Tensor]) -> Tensor:
        program = self.network.program
        if self.prediction == "point":
            return posterior_expectation(program, batch).float().softmax(dim=-1)
        if self.prediction == "moments":
            return posterior_moments(program, batch, method="expansion").mean_probabilities
        if self.noise == "fixed":
            return fixed_draws(program, batch, self.num_samples, self.seed)
        self._queries += 1
        drawn = posterior_predict(program, batch, self.num_samples, seed=(*self._words, self._queries))
        return drawn.probabilities.mean(dim=0)


def fixed_draws(program: Any, batch: dict[str, Tensor], num_samples: int, seed: int) -> Tensor:
    """Mean probabilities, float64 ``[B, C]``, over draws whose noise depends only on site, draw and position.

    The prediction of a text is thus a function of the text: the other texts of its batch, padding and earlier queries
    do not change it.

    Args:
        program: Pyro program that maps a batch to logits.
        batch: inputs of the program, B rows.
        num_samples: P, number of draws.
        seed: seed of the draws.
    """
    rows = len(next(iter(batch.values())))
    at_once = max(1, rows_per_pass(next(iter(batch.values())).device) // rows)
    total = torch.zeros((), dtype=torch.float64)
    for first in range(0, num_samples, at_once):
        draws = range(first, min(first + at_once, num_samples))
        folded = {name: value.repeat(len(draws), *[1] * (value.dim() - 1)) for name, value in batch.items()}
        with evaluating(program), _FixedNoise(seed, draws):
            logits = program(folded)
        total = total + logits.double().softmax(dim=-1).unflatten(0, (len(draws), rows)).sum(dim=0)
    return total / num_samples


class _FixedNoise(Messenger):
    """Gives attention sites draws whose noise is the same for all rows of a draw."""

    def __init__(self, seed: int, draws: range) -> None:
        super().__init__()
        self._seed, self._draws = seed, draws
        self._shared = SharedUpward()

    def _pyro_sample(self, msg: Message) -> None:
        posterior = (msg["infer"] or {}).get(INFER_KEY)
        if isinstance(posterior, SitePosterior) and msg["value"] is None:
            keys = torch.tensor([hashed(self._seed, str(msg["name"]), draw) for draw in self._draws])
            rows = len(posterior.inputs.raw) // len(keys)
            noise = PlacedNoise(keys.repeat_interleave(rows), draws=len(keys))
            msg["value"] = posterior.predict(noise, self._shared)
        else:
            predict_label(msg)
