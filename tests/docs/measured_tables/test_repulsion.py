"""The tables of the study of repulsion, from runs whose means are known."""

import repulsion_study


def run(method, seed, accuracy, relative):
    fixed = {"distance": 0.5, "overlap": 0.9 - relative, "cosine": 0.25, "norm": 2.0}
    return {"subject": "trec", "method": method, "seed": seed, "accuracy": accuracy} | {
        "relative_distance": relative,
        **fixed,
    }


def test_means_differences_and_ratios(load):
    runs = [
        run("plain", 0, 0.8, 0.1),
        run("plain", 1, 0.9, 0.2),
        run("svgd", 0, 0.81, 0.3),
        run("svgd", 1, 0.89, 0.6),
    ]
    tables = load("measured_tables.repulsion")
    shown = tables.tables({"summary": repulsion_study.summarise(runs)})
    assert shown.startswith("Self-attentive classifier, TREC.\n\n| ")
    assert "| as it is | 85.00 |  | 2 |" in shown
    assert "| SVGD | 85.00 | +0.00 [-12.71, +12.71] | 2 |" in shown
    assert (
        "| SVGD | 0.500 | 0.450 | **3.00** [3.00, 3.00] | 0.450 | -0.300 [-1.571, +0.971] | 0.250 | 2.00 |"
        in shown
    )


def test_calibration_is_shown_of_what_was_measured_for_it(load):
    tables = load("measured_tables.repulsion")
    extra = {"overconfidence": 0.02, "ood_entropy": 0.25}
    runs = [
        run("plain", 0, 0.8, 0.1) | {"ece": 0.0625, "ood_auroc": 0.75} | extra,
        run("svgd", 0, 0.8, 0.1) | {"ece": 0.05, "ood_auroc": 0.8125} | extra,
        run("spos", 0, 0.8, 0.1),
    ]
    shown = tables.tables({"summary": repulsion_study.summarise(runs)})
    assert "| as it is | 6.25 |  | 2.00 | 0.250 | 0.750 |  |" in shown
    assert "| SVGD | 5.00 | -1.25 | 2.00 | 0.250 | 0.812 | +0.062 |" in shown
    assert shown.count("| SPOS as printed, noise of one text |") == 2  # accuracy and heads


def test_a_chosen_temperature_stands_in_the_name_and_beside_the_others(load):
    tables = load("measured_tables.repulsion")
    tried = [(1.0, 0.52351, 0.8), (1e-6, 0.5, 0.825)]
    candidates = [
        {"value": value, "validation_loss": loss, "validation_accuracy": right, "seeds": [100, 101]}
        for value, loss, right in tried
    ]
    summary = repulsion_study.summarise([run("plain", 0, 0.8, 0.1), run("sgld", 0, 0.7, 0.1)])
    choices = {"trec": {"sgld": {"value": 1e-6, "candidates": candidates}}}
    shown = tables.tables({"summary": summary, "choices": choices})
    assert "| SGLD, T = 1e-6 | 70.00 | -10.00 | 1 |" in shown
    assert "| SGLD | 1 | 0.5235 | 80.00 | 100, 101 |" in shown
    assert "| SGLD | 1e-6 | **0.5000** | 82.50 | 100, 101 |" in shown
    assert "choice of T" not in tables.tables({"summary": summary})


def test_one_seed_has_no_interval_and_every_name_has_words(load):
    tables = load("measured_tables.repulsion")
    shown = tables.tables(
        {"summary": repulsion_study.summarise([run("plain", 0, 0.8, 0.1), run("spos", 0, 0.7, 0.1)])}
    )
    assert "| SPOS as printed, noise of one text | 70.00 | -10.00 | 1 |" in shown
    assert set(tables.METHODS) == set(repulsion_study.METHODS) and set(tables.SUBJECTS) == set(
        repulsion_study.SUBJECTS
    )
