"""Attacks on the test texts of a run, recorded in its folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge

from probattn.attacks.building import AttackName, Resources, Tagger, build_attack
from probattn.attacks.records import ATTACKS, AttackedText, AttackFile, AttackResult, summarise
from probattn.attacks.vectors import vectors_file
from probattn.attacks.victims import NetworkVictim, Prediction, Randomness, Text, Victim
from probattn.data import BUILT_IN, DataWarning, Source, TextDataset
from probattn.files.durable import digest, file_sha256, write_atomically
from probattn.inference.session import preserved_random_state, seed_generators
from probattn.options import Count, Natural, Options, Share
from probattn.tasks import Classification, RunError, run_task
from probattn.tasks.classification.task import classification_of
from probattn.tasks.held_out import network_digest
from probattn.tasks.progress import tracked
from probattn.tasks.run import package_versions
from probattn.tasks.task import BASELINE, RECIPE

WORD_ATTACKS = ("textfooler", "textbugger")
"""Those that need counter-fitted vectors."""
MEANING_ATTACKS = (*WORD_ATTACKS, "bae")
"""Those that compare meanings."""
TAGGED_ATTACKS = ("textfooler", "bae")
"""Those that look at parts of speech."""

Attack = Callable[[Text, int], AttackedText]
"""Attacks a text of a class, an index."""


@dataclass(frozen=True)
class AttackOptions(Options):
    """An attack on the texts of a run.

    Args:
        attack: "textfooler", "textbugger", "bae", "deepwordbug" or "pruthi".
        prediction: what is attacked: "point", the prediction at the posterior expectation, or of a network without
            latent attention; "draws", the mean over draws; "moments", its closed form.
        number: texts that are attacked at most, a fixed choice that looks random.
        queries: most queries of the network for a text, >= 2.
        seed: of random changes and of draws.
        num_samples: draws of a prediction.
        noise: "fixed": every query meets the same draws; "fresh": draws of its own. An attack that looks at fresh noise
            once a text takes luck for success and for failure; see the documentation.
        data: a data set that has a name, such as "textfooler_imdb"; None for the run's test texts.
        vectors: file of counter-fitted vectors; None for the usual one.
        similarity: least cosine similarity of a word and its replacement (TextFooler), in [0, 1]; 0.9 suits the
            vectors of :func:`make_vectors`, 0.5 is what TextFooler's program asks of 300-dimensional ones.
        tagger: of parts of speech: "textblob", "nltk", or "none" for no such constraint.
        encoder: network of sentences whose meaning is to stay: "minilm", a folder or a name on the hub; "none" for no
            such constraint.
        masked_lm: folder or hub name of a masked language model, for "bae".

    Raises:
        ValueError: a value out of its range.
    """

    attack: AttackName = "textfooler"
    prediction: Prediction = "point"
    number: Count = 200
    queries: Annotated[int, Ge(2)] = 500
    seed: Natural = 0
    num_samples: Count = 20
    noise: Randomness = "fixed"
    data: str | None = None
    vectors: str | None = None
    similarity: Share = 0.9
    tagger: Tagger = "textblob"
    encoder: str = "minilm"
    masked_lm: str | None = None

    @property
    def name(self) -> str:
        """Stem of the files of its records."""
        fresh = self.noise == "fresh" and self.prediction == "draws"
        words = [self.attack, self.prediction, self.data, "fresh" if fresh else None]
        return "_".join([*(word for word in words if word), str(self.seed)])

    @property
    def resources(self) -> Resources:
        """What the attack uses beside the network."""
        return Resources(
            vectors=None if self.vectors is None else Path(self.vectors),
            similarity=self.similarity,
            tagger=self.tagger,
            encoder=None if self.encoder == "none" else self.encoder,
            masked_lm=self.masked_lm,
        )

    def settings(self) -> dict[str, Any]:
        """All that this attack depends on, of the options; what it does not use is left out."""
        used = {"attack", "prediction", "number", "queries", "seed", "data"}
        used |= {"num_samples", "noise"} if self.prediction == "draws" else set()
        used |= {"similarity"} if self.attack == "textfooler" else set()
        used |= {"tagger"} if self.attack in TAGGED_ATTACKS else set()
        used |= {"encoder"} if self.attack in MEANING_ATTACKS else set()
        used |= {"masked_lm"} if self.attack == "bae" else set()
        values = {name: value for name, value in vars(self).items() if name in used}
        file = Path(self.vectors) if self.vectors else vectors_file()
        if self.attack in WORD_ATTACKS and file.is_file():
            values["vectors"] = file_sha256(file)[:16]
        for name in ("encoder", "masked_lm"):
            folder = Path(str(values.get(name)))
            if folder.is_dir():  # which another training may have filled anew
                weights = digest(map(file_sha256, sorted(folder.glob("*.safetensors"))))
                values[name] = f"{values[name]} {weights}"
        return values


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
