"""The tables of the study of translation, from runs whose means are known."""

import translation_study

from probattn.metrics.functional import mean_interval


def run(method, seed, bleu, comparison="heads"):
    fixed = {
        "perplexity": 8.0,
        "token_accuracy": 0.5,
        "distance": 2.0,
        "relative_distance": 1.0,
        "overlap": 0.5,
    }
    own = {"comparison": comparison, "method": method, "seed": seed, "parameters": 1_230_000}
    return own | {"bleu": bleu} | fixed


def timed(**seconds):
    """Times of two rounds, in which a machine slowed down."""
    first = seconds["plain"]
    rows = {name: {"step_seconds": mean_interval([own, 3 * own])._asdict()} for name, own in seconds.items()}
    for name, own in seconds.items():
        if name != "plain":
            rows[name]["step_ratio"] = mean_interval([own / first, 3 * own / (3 * first)])._asdict()
    return {"methods": rows}


def test_means_differences_and_ratios(load):
    runs = [
        run("plain", 0, 20.0),
        run("plain", 1, 22.0),
        run("svgd", 0, 21.0),
        run("svgd", 1, 24.0),
    ]
    tables = load("measured_tables.translation")
    shown = tables.tables({"summary": translation_study.summarise(runs, timed(plain=0.1, svgd=0.11))})
    assert "| as it is | **21.00** [8.29, 33.71] |  | 8.00 | 1.23 M | 200 ms |  | 2 |" in shown
    assert "| repulsive, all layers | **22.50** [3.44, 41.56] | +1.50 [-4.85, +7.85] |" in shown
    assert "| 220 ms | 1.10 [1.10, 1.10] | 2 |" in shown
    assert (
        "| repulsive, all layers | 2.00 | 1.000 [1.000, 1.000] | +0.000 [+0.000, +0.000] | 0.500 |" in shown
    )


def test_one_seed_has_no_interval_and_every_name_has_words(load):
    tables = load("measured_tables.translation")
    shown = tables.tables({"summary": translation_study.summarise([run("plain", 0, 20.0)])})
    assert "| as it is | **20.00** |  | 8.00 | 1.23 M |  |  | 1 |" in shown
    of_heads = set(translation_study.METHODS["heads"]), set(translation_study.METHODS["parts"])
    assert set(tables.METHODS) == of_heads[0] | of_heads[1]


def test_what_is_repelled_has_the_same_tables(load):
    runs = [run("plain", 0, 20.0, "parts"), run("value", 0, 21.0, "parts")]
    shown = load("measured_tables.translation_parts").tables({"summary": translation_study.summarise(runs)})
    assert "| values alone | **21.00** | +1.00 | 8.00 | 1.23 M |  |  | 1 |" in shown
    assert "| values alone | 2.00 | 1.000 | +0.000 | 0.500 | +0.000 |" in shown


def test_latent_attention_has_a_table_of_its_own(load):
    tables = load("measured_tables.translation_latent")
    runs = [run("plain", 0, 20.0, "latent"), run("babn", 0, 21.0, "latent")]
    summary = translation_study.summarise(runs, timed(plain=0.1, babn=0.2))
    shown = tables.tables({"runs": runs, "summary": summary})
    assert "| soft attention | **20.00** |  | 8.00 | 1.23 M | 200 ms |  | 1 |" in shown
    assert (
        "| BABN (Zhang et al. 2021) | **21.00** | +1.00 | 8.00 | 1.23 M | 400 ms | 2.00 [2.00, 2.00] | 1 |"
        in shown
    )
    assert "Dist" not in shown
    assert "|  | BLEU, seed 0 | paper: BLEU | parameters | over the first |" in shown
    assert "| soft attention | 20.0 | 32.8 | 42 M |  |" in shown
    assert "| BABN (Zhang et al. 2021) | 21.0 | 34.2 (+1.5) | 42 M | 1.38 |" in shown
    assert set(tables.PAPER) < set(tables.METHODS) == set(translation_study.METHODS["latent"])
