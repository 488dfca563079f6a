"""The tables of the study of guarantees for heads, from figures that are known."""


def rates(held, **more):
    found = {"held": held, "interval": [0.9, 1.0], "error": 0.04, "answered": 0.6}
    return found | {"certain": 0.65, "oracle": 0.7, "elsewhere": {}} | more


RUNS = [
    {
        "task": "spans",
        "seed": 0,
        "predictions": 7000,
        "error": 0.1,
        "promises": {"0.05": rates(0.97, together=rates(0.93))},
    },
    {
        "task": "relatedness",
        "seed": 0,
        "predictions": 5000,
        "error": 0.2,
        "promises": {
            "0.1": rates(0.96, intervals={"coverage": {"mean": 0.9, "low": 0.89, "high": 0.91}, "width": 1.5})
        },
    },
]


def test_guarantees_stand_beside_those_of_whole_texts(load):
    shown = load("measured_tables.triage_heads").tables(("guarantees", RUNS)).splitlines()
    assert shown[2:] == [
        "| spans, RESTAURANTS-8K (7,000, 10.0 wrong) | 5 | 97.0 [90.0, 100.0] | 4.0 | 60.0 | 65.0 | 70.0 |",
        "| spans, RESTAURANTS-8K (7,000, 10.0 wrong), whole texts drawn | 5 | 93.0 [90.0, 100.0] | 4.0 | 60.0 |  |  |",
        "| numbers within 0.5, SICK (5,000, 20.0 wrong) | 10 | 96.0 [90.0, 100.0] | 4.0 | 60.0 | 65.0 | 70.0 |",
    ]


def test_intervals_are_of_numbers_alone(load):
    shown = load("measured_tables.triage_heads").tables(("intervals", RUNS)).splitlines()
    assert shown[2:] == ["| 10 | 90.00 [89.00, 91.00] | 1.50 |"]


def test_the_committed_figures_have_all_tables(load):
    module = load("measured_tables.triage_heads")
    assert all("SICK" in module.tables(module.load(part)) for part in module.PARTS[:1])
    assert len(module.tables(module.load("intervals")).splitlines()) == 5
