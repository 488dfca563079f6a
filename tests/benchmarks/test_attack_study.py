"""The study of attacks, with a tiny network and without TextAttack."""

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import attack_study
import domain_study
import pytest

from probattn.attacks.records import Share
from probattn.recipes import load_recipe


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
def test_every_network_is_attacked_once_for_each_prediction(recipe, tmp_path, monkeypatch):
    asked = []

    def attacked(place, options):
        asked.append((place.relative_to(tmp_path).parts[2], options.attack, options.prediction))
        assert (place / "model").is_dir()
        share = Share.counted(len(asked), 20)
        summary = SimpleNamespace(
            failed=share,
            exhausted=0,
            accuracy=share,
            accuracy_attacked=share,
            queries=12.5,
            texts=options.number,
        )
        return place, SimpleNamespace(summary=summary)

    monkeypatch.setattr(attack_study, "attack_run", attacked)
    source = load_recipe(str(recipe)).data.train.source
    monkeypatch.setattr(domain_study, "TASKS", {"tiny": [f"data.shifted={source}"]})
    options = {
        "task": "tiny",
        "recipe": str(recipe),
        "variants": "soft,bam",
        "attacks": "textfooler",
        "number": 20,
        "output": tmp_path / "attacks.json",
        "set_": ["training.epochs=null", "training.steps=2", "data.limits={train: 60, shifted: 30}"],
    }
    for _ in range(2):  # the second time all is there
        attack_study.STUDY(folder=tmp_path / "runs", seeds=2, **options).main()
    variants = [("soft", "point"), ("bam", "point"), ("bam", "draws"), ("bam", "moments")]
    assert asked == [(name, "textfooler", prediction) for name, prediction in variants] * 2
    content = json.loads((tmp_path / "attacks.json").read_text(encoding="utf-8"))
    found = content["summary"]["textfooler"]
    assert set(found["bam"]) == {"point", "draws", "moments"} and set(found["soft"]) == {"point"}
    assert found["soft"]["point"]["values"]["failed"]["mean"] == pytest.approx((1 + 5) / 2 / 20)
    assert found["bam"]["draws"]["differences"]["failed"]["seeds"] == 2
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2] / "docs" / "_extensions")
    shown = import_module("measured_tables.attacks").tables(content)
    assert "| textfooler | bam | moments |" in shown
