"""Tables of graphs."""

ACCURACY = {"deterministic": [0.83, 0.82, 0.84], "ct": [0.831, 0.83, 0.835], "babn": [0.81, 0.80, 0.82]}


def run(variant: str, seed: int) -> dict[str, object]:
    layer = {"from_uniform": 0.012, "query_norm": 0.5, "key_norm": 0.25, "value_norm": 1.5}
    found = {
        "graph": "cora",
        "variant": variant,
        "seed": seed,
        "steps": 600 + seed,
        "test_accuracy": ACCURACY[variant][seed],
        "test_nll": 0.7,
        "layers": [layer, layer | {"from_uniform": 0.2}],
    }
    if variant == "babn":
        found |= {"draws_accuracy": ACCURACY[variant][seed], "test_accuracy": 0.5, "draws_nll": 0.9}
    return found


CONTENT = {
    "set": [],
    "versions": {},
    "runs": [run(variant, seed) for variant in ACCURACY for seed in range(3)],
}


def test_rows(load):
    lines = load("measured_tables.graphs").tables(CONTENT).splitlines()
    assert "| deterministic | **83.00** | 1.00 |  | 0.700 | 601 | 3 |" in lines
    assert "| BABN | **81.00** | 1.00 | -2.00 [-2.00, -2.00] | 0.900 | 601 | 3 |" in lines
    assert "| aligned, CT | 1.2%, 20.0% | 0.50, 0.50 | 0.25, 0.25 | 1.50, 1.50 |" in lines
