"""The study of graphs over seeds, on a small graph."""

import json

import graph_study
import pytest
import typer


def test_the_study_runs_each_variant_once(graph_recipe, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")
    monkeypatch.setitem(graph_study.RECIPES, "cora", str(graph_recipe))
    options = {"variants": "mmd,bam", "seeds": 1, "output": tmp_path / "graphs.json"}
    graph_study.STUDY(**options).main()
    assert "cora mmd 0: " in capsys.readouterr().out
    content = json.loads((tmp_path / "graphs.json").read_text(encoding="utf-8"))
    assert [run["variant"] for run in content["runs"]] == ["bam", "mmd"] and content["set"] == []
    for run in content["runs"]:
        assert 0 <= run["draws_accuracy"] <= 1 and run["steps"] == 12 and len(run["layers"]) == 2
    graph_study.STUDY(**options).main()
    assert capsys.readouterr().out == ""
    with pytest.raises(typer.BadParameter, match=r"holds runs with --set \[\]; use another --output"):
        graph_study.STUDY(**options, set_=["training.epochs=1"]).main()
