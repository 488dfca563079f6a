"""The tables of the study of domains, from runs whose means are known."""

import domain_study


def run(variant, seed, **accuracies):
    other = dict.fromkeys(domain_study.MEASURES, 0.125)
    data = {name: other | {"accuracy": accuracy} for name, accuracy in accuracies.items()}
    return {"task": "sentiment", "variant": variant, "seed": seed, "data": {"validation": {}} | data}


def test_differences_in_the_mean_and_accuracies_by_domain(load):
    runs = [
        run("soft", 0, home=0.9, near=0.8, far=0.6),
        run("soft", 1, home=0.9, near=0.7, far=0.5),
        run("babn", 0, home=0.9, near=0.9, far=0.7),
        run("babn", 1, home=0.9, near=0.8, far=0.8),
    ]
    shown = load("measured_tables.domains").tables({"summary": domain_study.summarise(runs)})
    assert "| home | soft | 90.0 [90.0, 90.0] | 12.5 [12.5, 12.5] | 12.5 [12.5, 12.5] | 2 |" in shown
    assert "|  | babn | +15.0 [-48.5, +78.5] | +0.0 [+0.0, +0.0] | +0.0 [+0.0, +0.0] | 2 |" in shown
    assert (
        "|  | soft | babn |\n| --- | --- | --- |\n| `near` | 75.0 | 85.0 |\n| `far` | 55.0 | 75.0 |" in shown
    )


def test_one_other_domain_stands_by_itself(load):
    runs = [run("soft", 0, home=0.9, near=0.8)]
    shown = load("measured_tables.domains").tables({"summary": domain_study.summarise(runs)})
    assert "| home | soft | 90.0 |" in shown and "other domains" not in shown.partition("\n\n")[2]
    assert shown.endswith("| `near` | 80.0 |")
