"""Tables of what it costs to see how attention learns."""

CONTENT = {
    "machine": {"cores": 2, "torch": "2.13.0", "load_before": 0.1},
    "rounds": 5,
    "ibm_model1": {"pairs": 29000, "steps": 5, "seconds": 3.07, "bar": 60.0, "passed": True},
    "many_runs": {
        "runs": 20,
        "width": 64,
        "variants": {
            "batched": {"seconds": 0.4321, "ratio": {"median": 0.301, "quartiles": [0.29, 0.32]}},
            "cores": {"seconds": 1.5, "ratio": {"median": 1.0, "quartiles": [1.0, 1.0]}},
        },
    },
    "padded_texts": {
        "texts": 32,
        "words": 200,
        "units": 64,
        "variants": {
            "padded": {"seconds": 0.0456, "ratio": {"median": 0.081, "quartiles": [0.07, 0.09]}},
            "packed": {"seconds": 0.567, "ratio": {"median": 1.0, "quartiles": [1.0, 1.0]}},
        },
    },
}


def test_rows(load):
    lines = load("measured_tables.learning").tables(CONTENT).splitlines()
    assert lines[0].startswith("20 models of width 64; 32 texts of")
    assert "100 to 200 words, two directions of 64 units; 5 rounds on 2 cores" in lines[0]
    assert "| padding read too | 0.0456 | **0.08** | 0.07 to 0.09 |" in lines
    assert "| one batched program on all cores | 0.432 | **0.30** | 0.29 to 0.32 |" in lines
    assert lines[-1] == "| 29,000 | 5 | **3.1** | 60: met |"


def test_without_the_data_there_is_no_row_for_ibm_model1(load):
    found = load("measured_tables.learning").tables(CONTENT | {"ibm_model1": None})
    assert "IBM" not in found and "| a part on each core, at best |" in found
