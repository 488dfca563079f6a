"""Agreement of attention with probes, from folders of runs that were recorded (Snell et al. 2021, Tables 2 to 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from probattn.inference import EarlyStopping, OptimizerOptions, SVIDriver
from probattn.models import ProxyProgram, RatedWords, word_saliency
from probattn.options import ReleasePreset
from probattn.probes import BagOfWordsProxy, SaliencyKind, contextualized_agreement, kendall_tau
from probattn.report import Agreement, Contextualized, Group, PairAgreement, Rating, Sheet
from probattn.tasks.errors import RunError
from probattn.tasks.programs import ProgramTask
from probattn.tasks.registry import run_task
from probattn.tasks.run import check_same_recipe, latent_by_recipe
from probattn.tasks.watching import Watched, read_ratings, recorded_bleu

AnyProgramTask = ProgramTask[Any, Any, Any, Any]
AGREEMENT = "agreement.json"
SYMBOLS: dict[Rating, str] = {
    "attention": "α",
    "probe": "β",
    "uniform": "β^uf",
    "proxy": "β^px",
    "saliency": "Δ",
    "frozen": "α^fr",
}
WORDS: dict[Rating, str] = {
    "attention": "attention",
    "probe": "lexical probe",
    "uniform": "probe under uniform attention",
    "proxy": "probe of a bag of words",
    "saliency": "gradient saliency",
    "frozen": "attention over a frozen probe",
}

FREE = (
    "name",
    "output",
    "probe",
    "prediction",
    "report",
    *(f"training.{key}" for key in ("seed", "device", "log_every", "eval_every", "checkpoint_every", "keep")),
)
"""Keys in which two runs may differ that are the same but for the seed."""
FREE_UNIFORM = (
    "attention",
    "network.uniform_attention",
    "network.config.uniform_attention",
    "training.steps",
    "training.epochs",
)
"""Those in which one under uniform attention may differ too: it may be longer."""


@dataclass(frozen=True)
class Recorded:
    """A run with the ratings that were recorded in its training, by step and in order."""

    folder: Path
    task: AnyProgramTask
    rated: Mapping[int, RatedWords]

    @classmethod
    def read(cls, folder: Path) -> Recorded:
        """Reads them; ``RunError`` for no run, no recorded ratings, or a network without a lexical probe."""
        task = run_task(folder)
        rated = read_ratings(folder)
        if task.no_probe is not None:
            raise RunError(f"{folder}: {task.no_probe}")
        if not rated:
            raise RunError(f"{folder}: expected a run with recorded ratings; train it with --probe")
        return cls(folder, cast(AnyProgramTask, task), rated)

    @property
    def last(self) -> RatedWords:
        """Ratings after the last update."""
        return self.rated[max(self.rated)]

    def check_alike(self, other: Recorded, *free: str) -> None:
        """Raises ``RunError`` unless both rated the same examples and are the same run but for the free keys."""
        if not self.last.is_of_the_examples_of(other.last):
            raise RunError(
                f"{other.folder}: expected ratings of the examples of {self.folder}, got others; give both runs the "
                "same data and the same section probe"
            )
        check_same_recipe((self.folder, self.task.recipe), (other.folder, other.task.recipe), free)


def measure_agreement(
    run: Path,
    uniform: Path | None = None,
    second: Path | None = None,
    frozen: Path | None = None,
    *,
    preset: ReleasePreset = "default",
    quiet: bool = True,
) -> Agreement:
    """Agreement of attention with probe, saliency, uniform attention, a second run and attention over a frozen probe.

    The preset "release" takes saliency and proxy as the authors' code does (github.com/Sea-Snell/AttentionDynamics).
    ``RunError`` for a folder without a recorded run, other examples, or a run that differs in more than it should.
    """
    learned = Recorded.read(run)
    if learned.task.recipe.training.early_stopping is not None:
        raise RunError(
            f"{run}: its network is that of its best step, the recorded ratings those of its last; train it without "
            "early stopping"
        )
    if learned.task.is_uniform:
        raise RunError(f"{run}: expected a run with learned attention, its attention is uniform")
    comparison = None if uniform is None else _uniform(learned, uniform)
    other = None if second is None else _second(learned, second)
    alone = None if frozen is None else _frozen(learned, frozen)
    task, net = learned.task, learned.task.network(run).net.cpu()
    kind: SaliencyKind = "erase" if preset == "release" else "norm"
    ratings: dict[Rating, Tensor] = {
        "attention": learned.last.attention,
        "probe": learned.last.probe,
        "saliency": RatedWords.flat(
            watched(task).batches(), lambda batch: word_saliency(net, batch, kind=kind)
        ),
    }
    pairs: list[tuple[Rating, Rating]] = [("attention", "probe"), ("saliency", "probe")]
    measures: dict[str, Any] = {}
    if comparison is not None:
        course = {step: learned.last.agreement(v=value.probe) for step, value in comparison.rated.items()}
        best = max(course, key=course.__getitem__)  # section A.7
        program = _fit_proxy(task, net, preset, quiet)
        ratings["uniform"] = comparison.rated[best].probe
        ratings["proxy"] = RatedWords.flat(watched(task).batches(), program.rate)
        pairs = [("attention", "uniform"), ("uniform", "proxy"), ("saliency", "uniform"), *pairs]
        measures |= {"course": course, "uniform_step": best}
    if alone is not None:
        course = {step: learned.last.agreement(v=value.attention) for step, value in alone.rated.items()}
        ratings["frozen"] = alone.rated[max(course, key=course.__getitem__)].attention
        pairs = [*pairs, ("attention", "frozen")]
        measures |= {"frozen_course": course, "frozen_accuracy": alone.last.accuracy}
        measures |= {"frozen_agreement": alone.last.agreement()}
    runs = None if other is None else SecondRun.of(learned, other)
    if runs is not None:
        measures |= {"second_accuracy": runs.end("accuracy"), "second_bleu": runs.end("bleu")}
        measures["second_course"] = {step: value for step, _, value in runs.courses["accuracy", "agreement"]}
    return Agreement(
        run=str(run),
        preset=preset,
        outputs=len(learned.last.lengths),
        chance=learned.last.chance(),
        accuracy=learned.last.accuracy,
        pairs=tuple(_pair(learned.last, pair, ratings, runs) for pair in pairs),
        **measures,
    )


Course = list[tuple[int, float, float]]
"""(step, performance, how far attention agrees with the first run's)."""


@dataclass(frozen=True)
class SecondRun:
    """Courses of a second run, by performance (accuracy, BLEU where recorded) and by measure of agreement (A, tau)."""

    courses: Mapping[tuple[str, str], Course]

    @classmethod
    def of(cls, learned: Recorded, other: Recorded) -> SecondRun:
        """Measures it."""
        last, rated = learned.last, other.rated
        agreed: dict[str, dict[int, float | None]] = {
            "agreement": {step: last.agreement(v=value.attention) for step, value in rated.items()},
            "tau": {step: _tau(last, last.attention, value.attention) for step, value in rated.items()},
        }
        performed = {"accuracy": {step: value.accuracy for step, value in rated.items()}}
        if bleu := recorded_bleu(other.folder):
            performed["bleu"] = dict(bleu)
        return cls(
            {
                (performance, measure): [
                    (step, score, value)
                    for step, score in scores.items()
                    if (value := values[step]) is not None
                ]
                for performance, scores in performed.items()
                for measure, values in agreed.items()
            }
        )

    def end(self, performance: str) -> float | None:
        """Performance after the last update; None where it was not recorded."""
        course = self.courses.get((performance, "agreement"))
        return course[-1][1] if course else None

    def xi(self, value: float | None, performance: str, measure: str) -> Contextualized | None:
        """Performance when the second run first agreed with the first by more than a value (Eq. 11)."""
        course = self.courses.get((performance, measure))
        if value is None or not course:
            return None
        result = contextualized_agreement(value, course)
        return Contextualized(performance=result.performance, step=result.step, reached=result.reached)


def _tau(rated: RatedWords, u: Tensor, v: Tensor) -> float | None:
    """Mean of Kendall's rank correlation; None where no output has one."""
    (left, mask), (right, _) = rated.padded(u), rated.padded(v)
    tau = kendall_tau(left, right, mask).nanmean().item()
    return None if math.isnan(tau) else tau


def _pair(
    rated: RatedWords, pair: tuple[Rating, Rating], ratings: Mapping[Rating, Tensor], runs: SecondRun | None
) -> PairAgreement:
    u, v = (ratings[name] for name in pair)
    agreement, tau = rated.agreement(u, v), _tau(rated, u, v)
    contextualized = (
        {}
        if runs is None
        else {
            f"xi{of}{by}": runs.xi(value, performance, measure)
            for of, value, measure in (("", agreement, "agreement"), ("_tau", tau, "tau"))
            for by, performance in (("", "accuracy"), ("_bleu", "bleu"))
        }
    )
    return PairAgreement(first=pair[0], second=pair[1], agreement=agreement, tau=tau, **contextualized)


def _uniform(learned: Recorded, folder: Path) -> Recorded:
    recorded = Recorded.read(folder)
    if not recorded.task.is_uniform:
        raise RunError(
            f"{folder}: expected a run under uniform attention; train it with network.config.uniform_attention (texts) "
            "or network.uniform_attention (translation) set to true"
        )
    learned.check_alike(recorded, *FREE, *FREE_UNIFORM)
    return recorded


def _second(learned: Recorded, folder: Path) -> Recorded:
    recorded, seed = Recorded.read(folder), learned.task.recipe.training.seed
    if recorded.task.is_uniform or recorded.task.recipe.training.seed == seed:
        raise RunError(
            f"{folder}: expected the same run from another seed than {seed}, with learned attention; got seed "
            f"{recorded.task.recipe.training.seed}{', uniform attention' if recorded.task.is_uniform else ''}"
        )
    learned.check_alike(recorded, *FREE)
    return recorded


def _frozen(learned: Recorded, folder: Path) -> Recorded:
    recorded = Recorded.read(folder)
    if not recorded.task.recipe.training.frozen_probe:
        raise RunError(
            f"{folder}: expected a run of a frozen probe; train it with training.frozen_probe=true"
        )
    learned.check_alike(recorded, *FREE, "training.frozen_probe")
    return recorded


def watched(task: AnyProgramTask) -> Watched:
    """The examples that were looked at in the training of a run."""
    examples = task.data.watched
    assert examples is not None
    return cast(Watched, examples)


@latent_by_recipe()
def _fit_proxy(
    task: AnyProgramTask, net: PreTrainedModel, preset: ReleasePreset, quiet: bool
) -> ProxyProgram:
    """The bag-of-words proxy of the run's data, trained as the run, or as in the authors' code."""
    training, data = task.recipe.training, task.data
    width, rate = net.config.hidden_size, training.learning_rate
    length: dict[str, Any] = {"steps": training.steps, "epochs": training.epochs}
    options: dict[str, Any] = {"batch_size": training.batch_size, "accumulation": training.accumulation}
    if preset == "release":
        width, rate = 256, 1e-3 if net.config.is_encoder_decoder else 2e-4
        length = {"epochs": 30, "validation_data": data.validation}
        options = {"batch_size": 64, "max_grad_norm": None, "early_stopping": EarlyStopping(patience=30)}
    generator = torch.Generator().manual_seed(training.seed)
    words = int(net.config.vocab_size)
    proxy = BagOfWordsProxy(words, task.num_outputs(net), width, generator=generator)
    program = ProxyProgram(proxy, len(data.train))
    SVIDriver(
        program,
        optimizer=OptimizerOptions("Adam", rate, rate, weight_decay=0.0),
        scheduler=None,
        collate=data.collate,
        seed=training.seed,
        cpu=True,
        progress=not quiet,
        **options,
    ).fit(data.train, **length)
    return program


def agreement_table(record: Agreement) -> Sheet:
    """The record as a table for the terminal, without columns that hold nothing, and what its letters mean."""
    heads = (
        "A(u, v)",
        "agreement",
        "by chance",
        "Kendall's tau",
        "xi",
        "xi, BLEU",
        "xi of tau",
        "of tau, BLEU",
    )
    rows = [
        (
            f"A({SYMBOLS[item.first]}, {SYMBOLS[item.second]})",
            f"{100 * item.agreement:.1f}%",
            f"{100 * record.chance:.1f}%",
            "" if item.tau is None else f"{100 * item.tau:.1f}",
            _starred(item.xi, 100),
            _starred(item.xi_bleu, 1),
            _starred(item.xi_tau, 100),
            _starred(item.xi_tau_bleu, 1),
        )
        for item in record.pairs
    ]
    shown = [index for index in range(len(heads)) if any(row[index] for row in rows)]
    cells = tuple(tuple(row[column] for column in shown) for row in rows)
    return Sheet(tuple(heads[column] for column in shown), (Group("", cells),), notes=(_legend(record),))


def _legend(record: Agreement) -> str:
    """Words for the letters in use."""
    used = {rating for item in record.pairs for rating in (item.first, item.second)}
    return ", ".join(f"{symbol} {WORDS[rating]}" for rating, symbol in SYMBOLS.items() if rating in used)


def _starred(value: Contextualized | None, scale: float) -> str:
    if value is None:
        return ""
    return f"{scale * value.performance:.1f}{'' if value.reached else '*'}"
