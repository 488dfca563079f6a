"""Tables of costs."""

CONTENT = {
    "machine": {"cores": 2, "threads": 2, "device": "cpu", "torch": "2.13.0", "load_before": 0.1},
    "shape": {"layers": 6, "hidden": 384, "heads": 12, "batch": 16, "length": 128},
    "rounds": 12,
    "results": [
        {
            "kind": "train",
            "variant": "BABN",
            "seconds": 1.25,
            "ratio": {"median": 1.5, "quartiles": [1.4, 1.6], "range": [1.3, 1.8]},
            "peak_mib": 900.4,
            "memory": 1.35,
            "memory_bar": 1.3,
            "memory_passed": False,
            "parameters": 0.00031,
            "bar": 1.6,
            "passed": True,
        }
    ],
}
ROW = "| BABN | 1.25 | **1.50** | 1.40 to 1.60 | 1.30 to 1.80 | 900 (1.35) | 0.03% | 1.6: met; memory 1.3: missed |"


def test_rows(load):
    setting, *lines = load("measured_tables.benchmark").tables(CONTENT).splitlines()
    assert ROW in lines and "12 rounds on 2 cores" in setting
