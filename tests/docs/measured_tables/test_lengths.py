"""Tables of costs against length."""


def run(length, dtype, variants):
    rows = [
        {"kind": "train", "variant": name, "ratio": {"median": ratio}, "peak_mib": peak}
        for name, ratio, peak in variants
    ]
    return {"shape": {"batch": 2048 // length, "length": length, "dtype": dtype}, "results": rows}


def test_a_column_for_each_length_and_type(load):
    content = {
        "machine": {"cores": 2, "device": "cpu", "torch": "2.13.0"},
        "rounds": 3,
        "runs": [
            run(128, "float32", [("eager", 1.0, 561.0), ("BABN", 1.27, 680.2)]),
            run(2048, "bfloat16", [("BABN", 1.5, 4321.0)]),
        ],
    }
    setting, *lines = load("measured_tables.lengths").tables(content).splitlines()
    assert "3 rounds" in setting
    assert lines[1:] == [
        "| Training step | 16 x 128, float32 | 1 x 2048, bfloat16 |",
        "| --- | --- | --- |",
        "| eager | **1.00** (561) |  |",
        "| BABN | **1.27** (680) | **1.50** (4,321) |",
    ]
