"""The tables of the study of agreement, from runs whose means are known."""

import agreement_study
from agreement_measures import PAIRS, name


def run(subject, seed, value, reached=True):
    pairs = {name(pair): value for pair in PAIRS}
    xi = {pair: {"performance": value / 2, "step": 50, "reached": reached} for pair in pairs}
    return {
        "subject": subject,
        "seed": seed,
        "agreement": pairs,
        "tau": pairs,
        "chance": 0.07,
        "accuracy": 0.8,
        "uniform_accuracy": 0.7,
        "course": {"uniform": {"0": 0.1, "50": value}},
        "xi": xi | {"end": {"performance": 0.9, "step": 100, "reached": True}},
    }


def shown(load, runs):
    tables = load("measured_tables.agreement")
    return tables.tables({"summary": agreement_study.summarise(runs)})


def test_means_stand_above_the_papers(load):
    found = shown(load, [run("sst2", 0, 0.2), run("sst2", 1, 0.4, reached=False)])
    assert "| SST-2 | **30.0** [-97.1, 157.1] |" in found and "| 7.0 | 2 |" in found
    assert "| in the paper | 19.9 | 33.6 | 22.4 | 25.3 | 8.4 | 1 |" in found
    assert "| SST-2 | 15.0* | 15.0* | 15.0* | 15.0* | 90.0 |" in found
    assert "| in the paper | 78.16 | 83.53* | 78.16 | 82.38 | 83.53 |" in found
    assert "BLEU" not in found and "frozen" not in found and "best attention" not in found


def test_parts_that_were_measured_are_shown(load):
    frozen = {"accuracy": 0.5, "agreement": 0.1, "with_learned_last": 0.2}
    text = run("bbc", 0, 0.3) | {"frozen": frozen}
    film = run("sst2", 0, 0.3) | {"frozen": frozen | {"with_learned": 0.25, "best_step": 50, "course": {}}}
    words = run("multi30k", 0, 0.3)
    words["xi_bleu"] = {pair: {**each, "performance": 12.0} for pair, each in words["xi"].items()}
    linear = {"subject": "multi30k_linear", "seed": 0}
    linear["optimal"] = {
        "optimal_probe": 0.5,
        "attention_probe": 0.4,
        "loss": 3.0,
        "least_loss": 2.5,
        "outputs": 900,
    }
    found = shown(load, [text, film, words, linear])
    assert "| BBC news | **50.0** | 80.0 | 10.0 | 20.0 | not measured | 30.0 |" in found
    assert "| SST-2 | **50.0** | 80.0 | 10.0 | 20.0 | 25.0 | 30.0 |" in found
    assert "| in the paper |  |  |  |  | 14 | 19.9 |" in found
    assert "| Multi30k En-De | 12.0 | 12.0 | 12.0 | 12.0 | 12.0 |" in found
    assert "| Multi30k En-De, linear output | **50.0** | 40.0 | 2.50 | 3.00 |" in found


def test_every_name_has_words(load):
    tables = load("measured_tables.agreement")
    assert set(tables.SUBJECTS) == set(agreement_study.SUBJECTS)
    assert list(tables.PAIRS) == [name(pair) for pair in PAIRS]
