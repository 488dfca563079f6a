"""The runner of studies."""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib import import_module

import pytest
import study
import typer
from typer.testing import CliRunner


@dataclass(kw_only=True)
class Squares(study.Study):
    """A study of numbers."""

    folder: study.Folder
    seeds: study.Seeds = 3
    output: study.Output = study.DATA / "none.json"
    finished: bool = False
    set_: study.Keys = None

    made = 0

    def setting(self):
        return {"overrides": self.overrides}

    def jobs(self):
        for seed in range(self.seeds):
            for name in ("plain", "other"):
                yield study.Job({"name": name, "seed": seed}, folder=f"{name}/seed-{seed}")

    def measure(self, job):
        if job.head["seed"] == 2:
            raise KeyboardInterrupt
        Squares.made += 1
        return {"value": job.head["seed"] ** 2 + (1.0 if job.head["name"] == "other" else 0.5)}

    def summarise(self, runs):
        plain = study.by_seed(runs, name="plain")
        own = [run for run in runs if run["name"] == "other"]
        return {
            "value": study.paired(own, plain, lambda run, other: run["value"] - other["value"]),
            "ratio": study.paired(own, plain, lambda run, other: run["value"] / other["value"]),
        }

    def said(self, run):
        return f"{run['value']:.1f}"


def test_a_study_that_is_interrupted_keeps_its_runs(tmp_path, capsys):
    options = {"folder": tmp_path, "output": tmp_path / "data" / "squares.json", "set_": ["a=1"]}
    Squares.made = 0
    with pytest.raises(KeyboardInterrupt):
        Squares(**options).main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("plain/seed-0: 0.5; 5 left, about 0:00:0") and len(lines) == 4
    content = study.read_json(options["output"])
    assert [run["value"] for run in content["runs"]] == [0.5, 1.0, 1.5, 2.0] and Squares.made == 4
    assert content["summary"]["value"] == {"mean": 0.5, "low": 0.5, "high": 0.5, "seeds": 2}
    assert content["summary"]["ratio"]["mean"] == pytest.approx((2 + 4 / 3) / 2)
    assert content["setting"]["overrides"] == ["a=1"] and content["setting"]["versions"]
    assert study.read_json(tmp_path / "other" / "seed-1" / "measured.json") == content["runs"][3]
    Squares(**options, finished=True).main()
    Squares(**options | {"seeds": 2}).main()
    assert study.read_json(options["output"]) == content and Squares.made == 4


def test_options_of_the_command_line_are_the_fields(tmp_path):
    app = typer.Typer()
    app.command()(study.command(Squares))
    output = tmp_path / "found.json"
    command = [str(tmp_path), "--seeds", "1", "--output", str(output), "--set", "a=1", "--set", "b=2"]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0, found.output
    assert "other/seed-0: 1.0" in found.output
    assert study.read_json(output)["setting"]["overrides"] == ["a=1", "b=2"]
    assert CliRunner().invoke(app, [str(tmp_path), "--seeds", "0"]).exit_code == 2


@pytest.mark.parametrize("name", study.STUDIES)
def test_every_study_has_a_command(name):
    kind, app = import_module(f"{name.replace('-', '_')}_study").STUDY, typer.Typer()
    app.command()(study.command(kind))
    found = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"})
    assert found.exit_code == 0
    options = {field.name.strip("_").replace("_", "-") for field in fields(kind)} - {"folder"}
    assert all(f"--{option}" in found.output for option in options)


def test_names_are_checked():
    assert study.chosen("methods", None, {"a": 1, "b": 2}) == ["a", "b"]
    assert study.chosen("methods", "b, a", ["a", "b"]) == ["b", "a"]
    assert study.chosen("methods", "", ["a"]) == []
    with pytest.raises(typer.BadParameter, match="methods: expected some of a, b, got 'c'"):
        study.chosen("methods", "a,c", ["a", "b"])
