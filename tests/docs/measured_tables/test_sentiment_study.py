"""Tables of film reviews."""

from typing import Any


def measure(number: float, **difference: float) -> dict[str, Any]:
    value = {"value": {"mean": number, "low": None, "high": None, "seeds": 5}}
    return {**value, "difference": {**difference, "seeds": 5}} if difference else value


CONTENT = {
    "variants": {
        "deterministic": {"measures": {"test.accuracy": measure(0.8)}, "health": {}},
        "babn": {
            "measures": {"test.accuracy": measure(0.79, mean=-0.01, low=-0.02, high=0.0)},
            "health": {
                "layer.0": {"spread": 0.5, "concentration": 2.0, "kl_nats": 12345.6, "kl_reduced": 1.5}
            },
        },
    }
}


def test_rows(load):
    lines = load("measured_tables.sentiment_study").tables(CONTENT).splitlines()
    assert "| deterministic | 5 |  | 0.800 |  |  |  |  |  |" in lines
    assert "| babn | 5 |  | -0.010 [-0.020, +0.000] |  |  |  |  |  |" in lines
    assert "| babn | `layer.0` | 0.50 | 2.00 | 12,346 | 1.50 |" in lines
