"""The tables of the study of repulsion, from runs whose means are known."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
STUDY = runpy.run_path(str(ROOT / "tests" / "benchmarks" / "repulsion_study.py"))


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
    shown = tables.tables({"summary": STUDY["summarise"](runs)})
    assert shown.startswith("Self-attentive classifier, TREC.\n\n| ")
    assert "| as it is | 85.00 |  | 2 |" in shown
    assert "| SVGD | 85.00 | +0.00 [-12.71, +12.71] | 2 |" in shown
    assert (
        "| SVGD | 0.500 | 0.450 | **3.00** [3.00, 3.00] | 0.450 | -0.300 [-1.571, +0.971] | 0.250 | 2.00 |"
        in shown
    )


def test_one_seed_has_no_interval_and_every_name_has_words(load):
    tables = load("measured_tables.repulsion")
    shown = tables.tables(
        {"summary": STUDY["summarise"]([run("plain", 0, 0.8, 0.1), run("spos", 0, 0.7, 0.1)])}
    )
    assert "| SPOS | 70.00 | -10.00 | 1 |" in shown
    assert set(tables.METHODS) == set(STUDY["METHODS"]) and set(tables.SUBJECTS) == set(STUDY["SUBJECTS"])
