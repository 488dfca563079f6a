"""The tables of the study of translation, from runs whose means are known."""

import translation_study


def run(method, seed, bleu, seconds, comparison="heads"):
    fixed = {
        "perplexity": 8.0,
        "token_accuracy": 0.5,
        "distance": 2.0,
        "relative_distance": 1.0,
        "overlap": 0.5,
    }
    own = {"comparison": comparison, "method": method, "seed": seed, "parameters": 1_230_000}
    return own | {"bleu": bleu, "step_seconds": seconds} | fixed


def test_means_differences_and_ratios(load):
    runs = [
        run("plain", 0, 20.0, 0.1),
        run("plain", 1, 22.0, 0.2),
        run("svgd", 0, 21.0, 0.11),
        run("svgd", 1, 24.0, 0.22),
    ]
    tables = load("measured_tables.translation")
    shown = tables.tables({"summary": translation_study.summarise(runs)})
    assert "| as it is | **21.00** [8.29, 33.71] |  | 8.00 | 1.23 M | 150 ms |  | 2 |" in shown
    assert "| repulsive, all layers | **22.50** [3.44, 41.56] | +1.50 [-4.85, +7.85] |" in shown
    assert "| 165 ms | 1.10 [1.10, 1.10] | 2 |" in shown
    assert "| repulsive, all layers | 2 | 1.000 [1.000, 1.000] | +0.000 [+0.000, +0.000] | 0.500 |" in shown


def test_one_seed_has_no_interval_and_every_name_has_words(load):
    tables = load("measured_tables.translation")
    shown = tables.tables({"summary": translation_study.summarise([run("plain", 0, 20.0, 0.1)])})
    assert "| as it is | **20.00** |  |" in shown
    assert set(tables.METHODS) == set(translation_study.METHODS["heads"])


def test_latent_attention_has_a_table_of_its_own(load):
    tables = load("measured_tables.translation_latent")
    runs = [run("plain", 0, 20.0, 0.1, "latent"), run("babn", 0, 21.0, 0.2, "latent")]
    shown = tables.tables({"summary": translation_study.summarise(runs)})
    assert "| soft attention | **20.00** |  | 8.00 | 1.23 M | 100 ms |  | 1 |" in shown
    assert "| BABN (Zhang et al. 2021) | **21.00** | +1.00 | 8.00 | 1.23 M | 200 ms | 2.00 | 1 |" in shown
    assert "Dist" not in shown
    assert set(tables.METHODS) == set(translation_study.METHODS["latent"])
