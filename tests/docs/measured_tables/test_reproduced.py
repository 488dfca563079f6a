"""Tables of the papers' records, and the differences between their rows."""

import statistics

import pytest

from probattn.reproduce import CellRecord, TableRecord, find_table, measured


@pytest.fixture
def reproduced(load, monkeypatch):
    """The module, with a record of two seeds."""
    module = load("measured_tables.reproduced")
    figures = {
        "ma": {"BLEU": (20.0, 22.0), "perplexity": (8.0, 8.5), "time": (1.0,)},
        "rma": {"BLEU": (21.0, 24.0), "perplexity": (8.1, 8.3), "time": (1.2,)},
    }
    cells = {
        row: {
            column: CellRecord(values={str(seed): value for seed, value in enumerate(values)}, recipe="r")
            for column, values in columns.items()
        }
        for row, columns in figures.items()
    }
    record = TableRecord(table="rma/table-2a", size="small", cells=cells)
    monkeypatch.setattr(module, "measured", lambda key: record if key == "rma/table-2a" else measured(key))
    return module


def test_means_have_intervals_and_the_papers_figures(reproduced):
    shown = reproduced.tables("rma/table-2a")
    assert "| Transformer-small-MA | 21.00 [8.3, 33.7] (34.4) | 1.000 (1) | 8.250 [5.07, 11.43] |" in shown
    assert "| Transformer-small-RMA | 22.50 [3.4, 41.6] (35.2) | 1.200 (1.13) |" in shown
    assert shown.endswith(
        "*Each number: mean over up to 2 seeds; in square brackets its 95% interval (Student's t); a single "
        "measurement has no interval; in parentheses the paper's number. Recipe: `r`.*"
    )
    above, _, _ = shown.partition("\n\n| ")
    assert above.endswith(
        "*Not measured: “Transformer-small-MA + R”, “Transformer-small-RMA, first layers”, “Seconds per update”, "
        "“Dist of heads”, “Dist, divided by the norm of an output”, “Overlap of attention”.*"
    )


def test_captions_name_changed_keys_and_reasons_for_missing_rows(load):
    shown = load("measured_tables.reproduced").tables
    assert "Recipe: `bbc_additive` with `data.train=sms_spam`, `probe." in shown("ktiw/section-a.9")
    lines = shown("aa/table-4").splitlines()
    assert not any("Not measured" in line for line in lines)
    assert lines[-1].endswith(
        "Recipes: `cora_deterministic`, `citeseer_deterministic`, `pubmed_deterministic`; “AA, GAN” with "
        "`alignment.method=gan`; “AA, CT” with `alignment.method=ct`.*"
    )
    lines = shown("rma/figure-3b").splitlines()
    assert (
        lines[-8] == '??? info "Changed keys"'
        and lines[-7] == "    - `multi30k_reduced`: `training.steps=1500`"
    )
    assert lines[-3] == "    - “12 heads (16 at the paper's size)”: `network.heads=12`"
    assert shown("ktiw/table-10").count("“Yelp” (this project has no copy of the data set).*") == 1
    assert "Cells with only a number in parentheses were not measured in this project" in shown(
        "babn/table-5"
    )
    assert "Empty cells" not in shown("babn/table-5")
    assert "Empty cells were not measured" in shown("babn/table-4")
    assert "Empty cells" not in shown("babn/table-8") and "Cells with" not in shown("babn/table-8")


def test_differences_are_of_the_same_seeds_and_need_two(reproduced):
    head, _, row = reproduced.tables("rma/table-2a/gains").splitlines()
    assert head == "| difference | BLEU | Perplexity |"
    assert row == "| Transformer-small-RMA | +1.50 [-4.9, +7.9] | -0.050 [-1.96, +1.86] |"


def test_differences_of_a_record(load):
    shown = load("measured_tables.reproduced").tables("more/pretraining-questions/gains")
    cells = measured("more/pretraining-questions").cells
    before, after = (cells[row]["1500"].values for row in ("nothing", "electra"))
    gain = statistics.fmean(after[seed] - before[seed] for seed in before)
    assert f"| Pre-trained | {gain:+.2f} [+0.3, +16.3] |" in shown
    assert find_table("more/pretraining-questions").columns["accuracy"].title not in shown


def test_a_table_without_figures_of_a_paper_does_not_speak_of_them(load):
    shown = load("measured_tables.reproduced").tables("more/translation")
    assert "parentheses" not in shown
    assert "(Student's t). Recipe: `multi30k_lstm_reduced`, with changed keys.*" in shown


def test_figures_of_other_sources_are_named(load):
    shown = load("measured_tables.reproduced").tables
    last = {key: shown(key).splitlines()[-1] for key in ("more/repulsion-trec", "rma/table-8", "more/texts")}
    words = "*Computed differently than by `probattn reproduce`: "
    assert last["more/repulsion-trec"].startswith(
        f"{words}“{find_table('more/repulsion-trec').rows['plain'].title}” ("
    )
    assert last["rma/table-8"].startswith(f"{words}“Seconds per update” (mean")
    assert "; “Dist of heads”, “" in last["rma/table-8"] and "0.065" not in last["rma/table-8"]
    assert last["more/texts"].startswith(f"{words}all numbers (")


def test_a_page_of_a_paper_names_its_tables_and_gives_reasons(load):
    shown = load("measured_tables.reproduced").tables("aa")
    assert "### Section B.1.2 (MMD): " in shown and "### Table 4: " in shown
    reasons = {line.split(" (")[0]: line for line in shown.splitlines() if line.startswith("- **")}
    assert reasons["- **Figure 2**"].endswith("The figure is a drawing; there is nothing to run.")
    assert (
        "). Not measured so far; some cells cannot be measured: the library's " in reasons["- **Table 2c**"]
    )
    assert (
        "). `python tests/benchmarks/attention.py` makes a table of this kind. " in reasons["- **Table 6**"]
    )
    assert load("measured_tables.reproduced").tables("more").startswith("### Texts: ")
