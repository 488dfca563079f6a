"""What is fuzzed: recipes, saved networks, run folders, records of a report."""

from __future__ import annotations

import random
import shutil
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from click.testing import Result
from mutations import SCALARS, damage_folder, mutated_bytes, mutated_json, mutated_text
from runs import invoke, make_runs, networks, recipes
from safetensors.torch import load_file

from probattn.models import StoredNetworkError, load, save
from probattn.models.hosts.convert import conversion
from probattn.recipes import ExperimentRecipe, RecipeError, load_any_recipe
from probattn.tasks.registry import built_in_recipes

LONGEST = 500
"""Characters that a message has at most."""


class LostError(Exception):
    """An input that was neither used as it should be nor refused in one line: its kind, and what happened."""

    def __init__(self, kind: str, details: str) -> None:
        super().__init__(kind)
        self.kind, self.details = kind, details


class Area(ABC):
    """Something that is fuzzed, with a folder for what is made once."""

    name: str

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch

    @abstractmethod
    def attempt(self, draw: random.Random, place: Path) -> bool:
        """Makes an input in ``place`` and tries it: whether it was used; it was refused otherwise, or is lost."""


def refused(action: Callable[[], Any], *kinds: type[Exception], about: str) -> Any:
    """The action's result, or the error that refused it in one line; other errors are lost."""
    try:
        return action()
    except kinds as error:
        check_message(str(error), about)
        return error
    except BaseException as error:
        if type(error).__name__ in {"Hang", "KeyboardInterrupt", "SystemExit"}:
            raise
        raise LostError(kind_of(error), f"{about}\n{traceback.format_exc()}") from None


def check_message(message: str, about: str) -> None:
    """Raises :class:`LostError` for a message that is no line."""
    if len(message) > LONGEST or "\n" in message.strip():
        raise LostError("a message of several lines, or too long", f"{about}\n{message}")


def kind_of(error: BaseException) -> str:
    """The error's type, and the place of ours that raised it or passed it on."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if any(f"/{part}/" in frame.filename for part in ("probattn", "models", "inference"))
    ]
    own = [frame for frame in own if "site-packages" not in frame.filename] or list(frames)
    return f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].lineno}"


class Recipes(Area):
    """Mutated YAML of recipes of every kind, and overrides; what is loaded can be written and read again."""

    name = "recipes"

    @cached_property
    def texts(self) -> list[str]:
        built_in = [each.read_text(encoding="utf-8") for each in built_in_recipes().values()]
        return [*built_in, *recipes(self.scratch).values()]

    @cached_property
    def keys(self) -> list[str]:
        found = set()
        for number, text in enumerate(self.texts):
            file = self.scratch / f"whole-{number}.yaml"
            file.write_text(text, encoding="utf-8")
            found |= set(_dotted(load_any_recipe(file).model_dump()))
        return sorted(found)

    def attempt(self, draw: random.Random, place: Path) -> bool:
        text = draw.choice(self.texts)
        overrides = []
        if draw.random() < 0.7:
            text = mutated_text(draw, text)
        while draw.random() < 0.4:
            overrides.append(f"{draw.choice(self.keys)}{draw.choice('====.')}{draw.choice(SCALARS)}")
        file = place / "input.yaml"
        data = text.encode("utf-8", "surrogatepass")
        file.write_bytes(mutated_bytes(draw, data) if draw.random() < 0.1 else data)
        (place / "overrides.txt").write_text("\n".join(overrides), encoding="utf-8")
        about = f"{len(data)} bytes, overrides {overrides!r}"[:300]
        loaded = refused(lambda: load_any_recipe(file, overrides), RecipeError, about=about)
        if isinstance(loaded, RecipeError):
            return False
        again = place / "again.yaml"
        refused(lambda: again.write_bytes(loaded.dump().encode()), about=about)
        if refused(lambda: load_any_recipe(again), about=about) != loaded:
            raise LostError("another recipe came back", about)
        if not isinstance(loaded, ExperimentRecipe):
            refused(loaded.method_words, about=about)
        return True


def _dotted(content: dict[str, Any], before: str = "") -> list[str]:
    found = []
    for key, value in content.items():
        found.append(f"{before}{key}")
        if isinstance(value, dict):
            found += _dotted(value, f"{before}{key}.")
    return found


class Networks(Area):
    """Damaged folders of saved networks: what is loaded has the right weights."""

    name = "networks"

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self.saved = {name: save(net, scratch / name) for name, net in networks().items()}
        self.whole = {name: load(folder) for name, folder in self.saved.items()}

    def attempt(self, draw: random.Random, place: Path) -> bool:
        name = draw.choice(sorted(self.saved))
        folder = place / name
        shutil.copytree(self.saved[name], folder)
        earlier = (
            draw.random() < 0.3
        )  # as a version without sums wrote it: no change of weights can be noticed
        if earlier:
            (folder / "manifest.json").unlink()
        done = [damage_folder(draw, folder) for _ in range(draw.choice((1, 1, 2)))]
        about = f"{name}{', without sums' if earlier else ''}: {'; '.join(done)}"
        found = refused(lambda: load(folder), StoredNetworkError, about=about)
        if isinstance(found, StoredNetworkError):
            return False
        checked = (folder / "manifest.json").is_file()
        if checked and not _same(found, self.whole[name]):
            raise LostError("other weights were loaded", about)
        return True


def _same(first: Any, second: Any) -> bool:
    one, two = first.state_dict(), second.state_dict()
    return (
        one.keys() == two.keys()
        and all(torch.equal(value, two[key]) for key, value in one.items())
        and _described(first) == _described(second)
    )


def _described(net: Any) -> tuple[Any, ...]:
    done = conversion(net)
    converted = None if done is None else (done.plan, done.layers, done.attention)
    options = {key: value for key, value in net.config.to_dict().items() if key != "_name_or_path"}
    return type(net), options, converted


class Runs(Area):
    """Damaged folders of runs of every kind: evaluated, reported, predicted with, resumed."""

    name = "runs"

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self.runs = make_runs(scratch)
        self.weights = {name: _weights(run) for name, run in self.runs.items() if "," not in name}

    def attempt(self, draw: random.Random, place: Path) -> bool:
        name = draw.choice(sorted(self.runs))
        kind = name.partition(",")[0]
        run = place / "run"
        shutil.copytree(self.runs[name], run)
        earlier = draw.random() < 0.15
        if earlier:
            for manifest in run.rglob("model/manifest.json"):
                manifest.unlink()
        done = [
            damage_folder(draw, run, keep=("report.html", ".lock")) for _ in range(draw.choice((1, 1, 2)))
        ]
        command = self._command(draw, name, run)
        about = (
            f"{name}{', without sums' if earlier else ''}: {'; '.join(done)}: {' '.join(map(str, command))}"
        )
        result = invoke(*command)
        used = check_result(result, about)
        resumed = used and command[0] == "train" and not any("recipe.yaml" in each for each in done)
        if resumed and not any("model/" in each for each in done if kind not in self.weights):
            self._compare(kind, run, about)
        return used

    def _compare(self, kind: str, run: Path, about: str) -> None:
        found = _weights(run)
        for name, tensor in self.weights[kind].items():
            if name not in found or not torch.equal(found[name], tensor):
                raise LostError("a resumed run ends with other weights", f"{about}\n{name}")

    def _command(self, draw: random.Random, name: str, run: Path) -> tuple[object, ...]:
        resume = ("train", run / "recipe.yaml", "--output", run, "--resume", "--quiet")
        choices: list[tuple[object, ...]] = [
            ("evaluate", run),
            ("report", run),
            ("report", run, "--again"),
            resume,
        ]
        if "interrupted" in name:
            choices += [resume, resume, resume]
        if name.startswith(("texts", "aligned", "probed", "translation", "lstm")):
            choices += [("predict", run, "the film was good"), ("predict", run, "a dog runs", "--json")]
        if name.startswith("probed"):
            choices += [("agreement", run, "--quiet")] * 3
        return draw.choice(choices)


def _weights(run: Path) -> dict[str, torch.Tensor]:
    """The tensors of all networks of a run, by file and name; of an experiment those of its checkpoints."""
    found = {}
    for file in sorted(run.rglob("model/*.safetensors")):
        found |= {f"{file.relative_to(run)} {name}": tensor for name, tensor in load_file(file).items()}
    if not found:
        for folder in sorted(run.glob("*/checkpoints")):
            last = max(folder.glob("step-*"))
            part = torch.load(last / "model.pt", weights_only=True)
            found |= {f"{last.relative_to(run)} {name}": tensor for name, tensor in part.items()}
    return found


def check_result(result: Result, about: str) -> bool:
    """Whether a command ended well; it was refused otherwise, or is lost."""
    error = result.exception
    if result.exit_code == 0:
        return True
    if result.exit_code != 2 or not isinstance(error, SystemExit):
        assert error is not None
        raise LostError(kind_of(error), f"{about}\n{''.join(traceback.format_exception(error))}")
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    if len(lines) != 1 or not result.stderr.endswith(f"{lines[0]}\n"):
        raise LostError("refused without one line of an error at the end", f"{about}\n{result.stderr}")
    check_message(lines[0], about)
    return False


class Results(Area):
    """Mutated ``metrics.json`` of every kind of task, reported."""

    name = "results"

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        found = {name: run / "metrics.json" for name, run in make_runs(scratch).items() if "," not in name}
        self.texts = {name: file.read_text(encoding="utf-8") for name, file in found.items()}
        self.recipes = {name: file.with_name("recipe.yaml").read_bytes() for name, file in found.items()}

    def attempt(self, draw: random.Random, place: Path) -> bool:
        name = draw.choice(sorted(self.texts))
        text = mutated_json(draw, self.texts[name])
        data = text.encode("utf-8", "surrogatepass")
        if draw.random() < 0.15:
            data = mutated_bytes(draw, data)
        (place / "metrics.json").write_bytes(data)
        (place / "recipe.yaml").write_bytes(self.recipes[name])
        return check_result(invoke("report", place), name)
