"""The tables of the study of target error rates, from figures that are known."""


def policy(own, other):
    rates = {"held": 0.97, "interval": [0.95, 0.98], "error": 0.08, "certain": 0.8, "oracle": 0.9}
    return rates | {"answered": own, "elsewhere": {"mnli": {"answered": other, "error": None}}}


def files(share):
    told = {"share": share, "interval": [share / 2, min(1.0, 2 * share)]}
    return dict.fromkeys(("30", "100", "300"), told)


def run(seed, shift):
    limits = {"0.01": policy(0.7 + shift, 0.3 + shift), "0.05": policy(0.6 + shift, 0.1 + shift)}
    promise = policy(0.75 + shift, 0.5 + shift) | {"novelty": limits}
    noticed = {"noticed": {"own": files(0.0), "mnli": files(0.2)}}
    by_distance = {"noticed_by_distance": {"own": files(0.0), "mnli": files(0.6)}}
    return {
        "task": "snli",
        "seed": seed,
        "predictions": 4000,
        "error": 0.24,
        "promises": {"0.05": promise, "0.1": promise},
        "auroc": {"mnli": [0.7 + shift, 0.9 + shift]},
        **(noticed | by_distance if seed == 0 else {}),
    }


RUNS = [run(0, 0.0), run(1, 0.02)]


def test_promises_are_those_of_the_first_network(load):
    shown = load("measured_tables.triage").tables(("promises", RUNS)).splitlines()
    assert shown[2] == "| SNLI (4,000, 24.0 wrong) | 5 | 97.0 [95.0, 98.0] | 8.0 | 75.0 | 80.0 | 90.0 |"
    assert len(shown) == 4


def test_other_data_stand_below_those_of_the_task(load):
    shown = load("measured_tables.triage").tables(("others", RUNS)).splitlines()
    assert shown[2].startswith("| SNLI | in-domain inputs | 75.0 | 8.0 | 0 [0, 0] |")
    assert shown[3].startswith("|  | MNLI | 50.0 |  | 20 [10, 40] |")


def test_limits_of_distance_are_means_over_networks(load):
    tables = load("measured_tables.triage").tables
    shown = tables(("limits", RUNS)).splitlines()
    assert shown[2].startswith("| SNLI (2) | 5 | in-domain inputs | 76.0 [63.3, 88.7] | 71.0 [")
    assert shown[3].startswith("|  |  | MNLI | 51.0 [38.3, 63.7] | 31.0 [") and len(shown) == 6
    told = tables(("told", RUNS)).splitlines()
    assert told[2].startswith("| SNLI | in-domain inputs |  |  | 0 [0, 0] |")
    assert told[3].startswith("|  | MNLI | 0.710 [0.583, 0.837] | 0.910 [0.783, 1.037] | 60 [30, 100] |")


def test_the_committed_figures_have_all_tables(load):
    module = load("measured_tables.triage")
    assert all("CLINC150" in module.tables(module.load(part)) for part in module.PARTS)
