"""How often the screened word that leads a side is that of all knock-outs, by the number of words knocked out a side.

    PROBATTN_DATA=/data python tests/benchmarks/screening.py runs/effects mrpc 0
    PROBATTN_DATA=/data python tests/benchmarks/screening.py runs/effects snli 0

The networks are those of effects_study.py, trained in the folder where they are not there; the margin is explained.
"""

from pathlib import Path

import effects_study
import numpy as np
import study
import typer
from effects_methods import Question, Subject, scores_of

from probattn.tasks import load_network

NUMBERS = (3, 4, 5, 6, 8, 10)


def agrees(slopes: np.ndarray, knocked: np.ndarray, number: int) -> list[bool]:
    """Of each side that has a word, whether the words of leading slopes hold the one that leads the knock-outs."""
    order = np.argsort(-slopes)
    tried = {*order[:number].tolist(), *order[-number:].tolist()}
    return [int((sign * knocked).argmax()) in tried for sign in (1, -1) if (sign * knocked).max() > 0]


def main(folder: Path, name: str, seed: int, texts: int = 120) -> None:
    """Prints the shares of sides."""
    runs = effects_study.EffectsStudy(folder=folder)
    job = runs.job(name, "deterministic", effects_study.RECIPES["deterministic"], seed)
    task, _ = study.fit(job, runs.place(job))
    trained, data = load_network(runs.place(job)), task.texts.test
    subject = Subject(trained.net, trained.codec, task.recipe.data.max_length)
    order = np.random.default_rng(seed).permutation(len(data)).tolist()
    sides: dict[int, list[bool]] = {number: [] for number in NUMBERS}
    for row, item in enumerate(effects_study.labelled(subject, data.rows(order[: 2 * texts]), texts)):
        answer, other = subject.logits([item.text])[0].topk(2).indices.tolist()
        question = Question(subject, item.text, answer, row, other)
        slopes, knocked = (scores_of(method, question) for method in ("slope", "knockout"))
        for number in NUMBERS:
            sides[number] += agrees(slopes, knocked, number)
    for number, of_number in sides.items():
        print(f"{number} a side: {np.mean(of_number):.3f} of {len(of_number)} sides")


if __name__ == "__main__":
    typer.run(main)
