"""What is fuzzed beside a finished run: its policy with all that belongs to it, and files of texts to predict."""

from __future__ import annotations

import csv
import json
import random
import shutil
from functools import cache
from pathlib import Path

from areas import Area, LostError, check_result
from mutations import mutated_bytes, mutated_json, mutated_text
from runs import WORDS, invoke, recipes, succeeds

PROMISE = ("--error", "0.7", "--confidence", "0.6", "--novelty", "0.4", "--sets", "lac", "--quiet")
BEFORE = "written before\n"
"""Content of an output file that is there already."""
STARTS = ("=", "+", "-", "@", "\t", "'", "'=", '"', "\r", "", " ")
"""What a cell may begin with that a spreadsheet, or a reader, takes for something else."""


@cache
def _texts_run(scratch: Path) -> Path:
    """A finished run of texts."""
    file, run = scratch / "texts.yaml", scratch / "run"
    file.write_text(recipes(scratch)["texts"], encoding="utf-8")
    succeeds("train", file, "--output", run, "--quiet")
    return run


class Policies(Area):
    """Damaged policies, features and predictions of held-out data: none may change a decision in silence."""

    name = "policies"

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self.run = _texts_run(scratch)
        succeeds("triage", self.run, *PROMISE)
        self.policy = (self.run / "policy.json").read_text(encoding="utf-8")
        self.texts = scratch / "new.csv"
        self.texts.write_text("text\nthe film was good\nbad plot\n\nawful cast\n", encoding="utf-8")

    def attempt(self, draw: random.Random, folder: Path) -> bool:
        run = folder / "run"
        shutil.copytree(self.run, run)
        kinds = ["policy.json"] * 4 + ["triage.features.safetensors"] + ["held_out"] * 3
        kind = draw.choice(kinds)
        file = draw.choice(sorted((run / kind).iterdir())) if kind == "held_out" else run / kind
        self._damage(draw, file)
        if kind == "held_out":
            used = check_result(invoke("triage", run, *PROMISE), file.name)
            if (run / "policy.json").read_text(encoding="utf-8") != self.policy:
                raise LostError("other predictions gave another policy", file.name)
            return used
        output = folder / "decided.csv"
        result = invoke("predict", run, "--policy", run, "--input", self.texts, "--output", output, "--quiet")
        used = check_result(result, kind)
        if used != output.exists():
            raise LostError("an output of what was refused, or none", kind)
        if used:
            self._check(run, output, kind)
        return used

    def _damage(self, draw: random.Random, file: Path) -> None:
        data = file.read_bytes()
        if file.suffix == ".safetensors" or draw.random() < 0.25:
            file.write_bytes(mutated_bytes(draw, data))
            return
        lines = data.decode().split("\n") if file.suffix == ".jsonl" else [data.decode()]
        at = draw.randrange(len(lines))
        change = mutated_json if draw.random() < 0.8 else mutated_text
        lines[at] = change(draw, lines[at])
        file.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")

    def _check(self, run: Path, output: Path, kind: str) -> None:
        """The features are those of the policy; each row is decided, and a blank one is left to a person."""
        if kind.endswith(".safetensors") and (run / kind).read_bytes() != (self.run / kind).read_bytes():
            raise LostError("other features were used", kind)
        with output.open(newline="", encoding="utf-8") as opened:
            rows = list(csv.DictReader(opened))
        decisions = [row["decision"] for row in rows]
        if len(rows) != 3 + decisions.count("") or not set(decisions) <= {"answer", "person"}:
            raise LostError("a row without a decision", f"{kind}: {decisions}")


class FilesOfTexts(Area):
    """Damaged files of texts: predicted as they are, or refused with the output as it was."""

    name = "files"

    def __init__(self, scratch: Path) -> None:
        super().__init__(scratch)
        self.run = _texts_run(scratch)

    def attempt(self, draw: random.Random, folder: Path) -> bool:
        ending, written = draw.choice(("csv", "tsv", "jsonl", "txt")), draw.choice(("csv", "tsv", "jsonl"))
        rows = [self._row(draw, number) for number in range(draw.randint(1, 8))]
        file, output = folder / f"in.{ending}", folder / f"out.{written}"
        text = _content(rows, ending)
        whole = draw.random() < 0.3
        if not whole:
            change = mutated_json if ending == "jsonl" and len(rows) == 1 else mutated_text
            text = change(draw, text)
        data = text.encode("utf-8", "surrogatepass")
        file.write_bytes(mutated_bytes(draw, data) if not whole and draw.random() < 0.3 else data)
        there = draw.random() < 0.5
        if there:
            output.write_text(BEFORE, encoding="utf-8")
        about = f"{ending} to {written}, {len(rows)} rows"
        used = check_result(
            invoke("predict", self.run, "--input", file, "--output", output, "--quiet"), about
        )
        if sorted(file.name for file in folder.iterdir()) != sorted(
            {file.name, *([output.name] if used or there else [])}
        ):
            raise LostError("files are left, or the output is missing", about)
        if not used:
            if there and output.read_text(encoding="utf-8") != BEFORE:
                raise LostError("the output of a refused file was replaced", about)
            return False
        answers = _read(output)
        if any("predicted_label" not in row and "label" not in row for row in answers):
            raise LostError("a row without an answer", about)
        if whole:
            self._check_again(folder, output, answers, rows if ending != "txt" else [], about)
        return True

    def _check_again(
        self,
        folder: Path,
        output: Path,
        answers: list[dict[str, str]],
        rows: list[dict[str, str]],
        about: str,
    ) -> None:
        """What was written is read as it came in, and its texts are predicted alike."""
        again = folder / "again.jsonl"
        succeeds("predict", self.run, "--input", output, "--output", again, "--quiet")
        repeated = _read(again)
        for number, row in enumerate(rows):
            if any(repeated[number][name] != value for name, value in row.items()):
                raise LostError("a row came back changed", f"{about}\n{row!r}\n{repeated[number]!r}")
        if [row["label"] for row in answers] != [row["predicted_label"] for row in repeated]:
            raise LostError("a text that was written is predicted otherwise", about)

    def _row(self, draw: random.Random, number: int) -> dict[str, str]:
        words = " ".join(draw.choices(WORDS, k=draw.randint(1, 9)))
        return {"text": f"{draw.choice(STARTS)}{words}", "note": f"{draw.choice(STARTS)}{number}"}


def _content(rows: list[dict[str, str]], ending: str) -> str:
    if ending == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    if ending == "txt":
        return "".join(" ".join(row["text"].split()) + "\n" for row in rows)
    mark = "," if ending == "csv" else "\t"
    quoted = [[f'"{value.replace(chr(34), chr(34) * 2)}"' for value in row.values()] for row in rows]
    return "".join(mark.join(cells) + "\n" for cells in [["text", "note"], *quoted])


def _read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as opened:
        if file.suffix == ".jsonl":
            return [json.loads(line) for line in opened]
        return list(csv.DictReader(opened, delimiter="," if file.suffix == ".csv" else "\t"))
