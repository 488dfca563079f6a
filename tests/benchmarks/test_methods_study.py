"""The study of methods on a tiny network, and its tables."""

from __future__ import annotations

import json
from pathlib import Path

import methods_study
import pytest
import runs

from probattn.tasks import load_task

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.slow
def test_it_compares_seed_by_seed_and_keeps_other_data_sets(tmp_path, monkeypatch, capsys):
    runs.tokenizer().save_pretrained(tmp_path / "network")
    runs.bert().save_pretrained(tmp_path / "network")
    runs.write_reviews(tmp_path / "reviews.csv", 60)
    file = tmp_path / "tiny.yaml"
    file.write_text(
        f"network: {{name: {tmp_path}/network, config: {{hidden_dropout_prob: 0.3}}}}\n"
        f"data: {{train: {tmp_path}/reviews.csv, max_length: 16}}\n"
        f"attention: {{method: babn}}\ntraining: {{{runs.TRAINING}}}\n"
    )
    monkeypatch.setattr(methods_study, "RECIPE", str(file))
    monkeypatch.setattr(methods_study, "SETTINGS", {"trec": (), "banking77": ()})
    monkeypatch.setattr(methods_study, "KEPT", ())
    monkeypatch.setattr(methods_study, "reduced", lambda _: ("prediction.num_samples=2",))
    output = tmp_path / "methods.json"
    output.write_text(json.dumps({"objective": {"trec": {"kept": 1}}}))
    study = methods_study.STUDY(
        folder=tmp_path / "runs", data="trec", seeds=2, variants="deterministic,bam", output=output
    )
    results = study.main()
    content = json.loads(output.read_text(encoding="utf-8"))
    assert content["objective"] == {"trec": {"kept": 1}}
    assert list(content) == ["methods", "objective", "dropout"]
    found = content["methods"]["trec"]
    assert found["seeds"] == [0, 1] and list(found["methods"]) == ["deterministic", "bam"]
    variants = {row["variant"] for row in found["rows"] if row["recipe"] == "bam"}
    assert {"point", "draws", "moments", "ensemble"} <= variants and results.seeds == (0, 1)
    assert "Coverage" in capsys.readouterr().out
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    from measured_tables import methods

    shown = methods.tables(content["methods"])
    assert (
        shown.startswith("**TREC**") and shown.count("\n| ") == 2 + len(found["rows"]) and "nan" not in shown
    )
    assert found["reference"] == ["deterministic", "point"]
    against = content["dropout"]["trec"]
    assert against["reference"] == ["deterministic", "dropout"]
    passes = 10.0
    for row in against["rows"]:  # no measured times in a test
        row["cost"]["mean"] = {"dropout": passes, "moments": 3.0, "draws": 11.0}.get(row["variant"], 1.0)
    cheap = [row for row in against["rows"] if row["variant"] in {"draws", "moments"}]
    gains = methods.tables(content["dropout"])
    assert cheap and gains.count("\n| ") == 1 + len(cheap) and "of" in gains and "nan" not in gains


def test_objectives_are_compared_without_costs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "_extensions")
    from measured_tables import methods

    committed = json.loads((DOCS / "data" / "methods.json").read_text(encoding="utf-8"))
    content = committed["methods"]["trec"]
    results = methods_study.ComparisonResults.model_validate_json(json.dumps(content))
    study = methods_study.STUDY(
        folder=tmp_path, data="trec", group="objective", output=tmp_path / "methods.json"
    )
    study.write("objective", results)
    study.write("methods", results)
    found = json.loads((tmp_path / "methods.json").read_text(encoding="utf-8"))
    assert found["methods"]["trec"] == content
    kept = [row for row in content["rows"] if row["variant"] in methods_study.OBJECTIVE_WAYS]
    assert [row["values"] for row in found["objective"]["trec"]["rows"]] == [row["values"] for row in kept]
    shown, whole = methods.tables(found["objective"]), methods.tables(found["methods"])
    assert "cost" not in shown and "cost, passes" in whole and "temperature" not in shown


@pytest.mark.parametrize("group", methods_study.GROUPS)
@pytest.mark.parametrize("data", methods_study.SETTINGS)
def test_every_variant_is_a_recipe_of_its_own(group, data):
    shared = (*methods_study.SETTINGS[data], *methods_study.KEPT, *methods_study.reduced(data))
    recipes = [
        load_task(methods_study.RECIPE, (*shared, *keys)).recipe
        for keys in methods_study.GROUPS[group].values()
    ]
    assert len({recipe.dump() for recipe in recipes}) == len(recipes)
    plain = {"deterministic", "undropped", "smoothed"}
    for name, recipe in zip(methods_study.GROUPS[group], recipes, strict=True):
        assert bool(recipe.methods()) == (name not in plain)
    assert all(recipe.data == recipes[0].data for recipe in recipes)
