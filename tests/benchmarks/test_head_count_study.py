"""The study of accuracy against the number of heads, on a tiny network and reviews instead of its data."""

import json
import statistics

import head_count_study
import pytest
import typer

TINY = "network.config={hidden_size: 4, attention_size: 4, classifier_size: 4}"

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


def test_every_number_of_heads_is_trained_with_every_method_and_seed(reviews, tmp_path):
    keys = [TINY, f"data.train={reviews}", "training.epochs=null", "training.steps=2", "training.device=cpu"]
    keys += ["network.embeddings=null", "data.out_of_domain=null"]
    output = tmp_path / "head_counts.json"
    options = {"heads": "2,3", "seeds": 2, "subject": "trec", "methods": "plain,svgd"}
    head_count_study.STUDY(folder=tmp_path, **options, output=output, set_=keys).main()
    content = json.loads(output.read_text(encoding="utf-8"))
    assert len(content["runs"]) == 2 * 2 * 2
    for method in ("plain", "svgd"):
        for heads in (2, 3):
            folders = [tmp_path / f"heads-{heads}" / "trec" / method / f"seed-{seed}" for seed in (0, 1)]
            for folder in folders:
                config = json.loads((folder / "model" / "config.json").read_text(encoding="utf-8"))
                assert config["num_attention_heads"] == heads
            found = [json.loads((folder / "measured.json").read_text())["accuracy"] for folder in folders]
            assert content["summary"][method][str(heads)]["mean"] == pytest.approx(statistics.fmean(found))


@pytest.mark.parametrize(
    ("options", "message"),
    [({"heads": "1,2"}, "expected numbers >= 2, got 1"), ({"subject": "imdb"}, "expected one of trec, sst2")],
)
def test_what_cannot_be_compared_is_refused(tmp_path, options, message):
    with pytest.raises(typer.BadParameter, match=message):
        head_count_study.STUDY(folder=tmp_path, **options)
