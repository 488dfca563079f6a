"""The study of questions about images on a tiny network."""

import json
import sys
from pathlib import Path

import mcan_study
import pytest
import runs

from probattn.recipes import load_any_recipe
from probattn.sites import AlignmentAttention, BayesianAttention
from probattn.sites.repulsive import RepulsiveAttention

sys.path.append(str(Path(__file__).parents[2] / "docs" / "_extensions"))


def test_every_variant_is_measured_and_shown_beside_the_papers(tmp_path, capsys):
    from measured_tables import visual_questions

    runs.write_visual_questions(tmp_path)
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(
        f"visual_questions: {{folder: {tmp_path}/pictures, image_size: 16}}\n"
        "network: {width: 8, layers: 1, heads: 2, embedding_size: 4, channels: [8, 8, 8], dropout: 0.0}\n"
        "training: {steps: 2, batch_size: 8, device: cpu, schedule: linear}\nprediction: {num_samples: 2}\n",
        encoding="utf-8",
    )
    options = {"recipe": str(recipe), "output": tmp_path / "found.json", "variants": "soft,babn"}
    mcan_study.STUDY(folder=tmp_path / "runs", seeds=2, **options).main()
    content = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert [run["variant"] for run in content["runs"]] == ["soft", "babn"] * 2
    gap = content["summary"]["babn"]["difference"]["nll_noisy"]
    own, soft = (
        [run["nll_noisy"] for run in content["runs"] if run["variant"] == name] for name in ("babn", "soft")
    )
    assert gap["mean"] == pytest.approx(sum(own) / 2 - sum(soft) / 2)
    assert mcan_study.table(content["summary"]).row_count == 2
    # Without dropout nothing is drawn of deterministic attention, and it has no PAvPU.
    assert "pavpu" in content["summary"]["babn"] and "pavpu" not in content["summary"]["soft"]
    assert "pavpu" not in content["summary"]["babn"]["difference"]
    assert "soft/seed-0: accuracy " in (said := capsys.readouterr().out) and "babn/seed-0: accuracy " in said
    content["summary"]["no_rho"] = content["summary"]["babn"]  # as if it had been run
    content["runs"] = [{**content["runs"][1], "variant": "no_rho"}] * 2 + content["runs"]
    page = visual_questions.tables(content)
    assert "2 seeds; 44 questions to train on" in page and "66.92, 64.40, 72.21, 70.43" in page
    assert page.count("44.62, 32.16, 50.93, 53.22") == 1 and "| CT, weight 0.1 |" not in page
    part = visual_questions.tables({**content, "runs": content["runs"][:-1]})  # BABN's second seed is missing
    assert "| soft |" in part and "| BABN |" not in part


@pytest.mark.parametrize("recipe", ["easy_vqa", "vqa_v2_paper"])
def test_the_variants_are_recipes_of_the_methods_that_they_name(recipe):
    kinds = {
        "soft": (),
        "gan": (AlignmentAttention,),
        "ct": (AlignmentAttention,),
        "repulsive": (RepulsiveAttention,),
    }
    for name, keys in mcan_study.VARIANTS.items():
        methods = load_any_recipe(recipe, keys).methods()
        kind = (AlignmentAttention,) if name.startswith("weight") else kinds.get(name, (BayesianAttention,))
        assert tuple(type(method) for method in methods) == kind
    assert load_any_recipe(recipe, mcan_study.VARIANTS["ct"]).methods()[0].weight == 0.01
