"""Tables of particles."""

INDEPENDENT = ("1,0", "10,0", "100,0", "1000,0")
CORRELATED = ("2,0.9", "10,0.9", "50,0.5")
FEW = ("50,0.9", "100,0.5")


def run(method: str, case: str, seed: int, variance: float, collapse: str | None = None) -> dict[str, object]:
    correlation = None if case == "1,0" else 0.85 + 0.02 * seed
    return {
        "method": method,
        "case": case,
        "seed": seed,
        "variance": variance,
        "correlation": correlation,
        "collapse": collapse,
    }


CONTENT = {
    "versions": {},
    "inverse_temperatures": {"spos": 1.0},
    "runs": [
        *(
            run("median", case, seed, 0.25, "particles have collapsed")
            for case in INDEPENDENT
            for seed in (0, 1)
        ),
        *(run("median", case, seed, 0.8 + 0.1 * seed) for case in CORRELATED for seed in (0, 1)),
        run("median", "50,0.5", 2, 0.123, "particles have collapsed"),
        *(run("spos", case, 0, 0.98) for case in INDEPENDENT),
        *(run("sliced", case, seed, 1.9 + 0.1 * seed) for case in FEW for seed in (0, 1)),
    ],
}


def test_rows(load):
    lines = load("measured_tables.particles").tables(CONTENT).splitlines()
    assert "| `MedianRBF` | 0.250 † | 0.250 † | 0.250 † | 0.250 † | 2 |" in lines
    assert "| SPOS, `MedianRBF`, b = 1 | 0.98 | 0.98 | 0.98 | 0.98 | 1 |" in lines
    assert "| `MedianRBF` | 0.85, 0.86 | 0.85, 0.86 | 0.61, 0.87 | 2 |" in lines
    assert "| Variance, correlation; 12 particles | 50 dimensions, 0.9 | 100, 0.5 | runs |" in lines
    assert "| `SlicedRBF` | 1.95, 0.86 | 1.95, 0.86 | 2 |" in lines


def test_a_cell_is_marked_where_most_runs_have_collapsed(load):
    runs = [run("median", "50,0.5", seed, 0.2, "collapsed" if seed else None) for seed in range(3)]
    content = {"inverse_temperatures": {}, "runs": runs}
    assert (
        "| `MedianRBF` |  |  | 0.20, 0.87 † | 0 |"
        in load("measured_tables.particles").tables(content).splitlines()
    )
