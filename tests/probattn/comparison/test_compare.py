"""Comparisons of tiny recipes: every way, pairs over seeds, what is kept, and what is refused."""

import json
import os
import re
import signal
import statistics
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file, save_file
from scipy.stats import ttest_rel
from sklearn.metrics import log_loss, roc_auc_score

from probattn.comparison import ComparisonResults, Variants, figures, running
from probattn.comparison import page as comparison_page
from probattn.comparison import variants as comparison_variants
from probattn.comparison import workers as comparison_workers
from probattn.comparison.page import headline
from probattn.comparison.running import CompareOptions, _gaps, _read
from probattn.comparison.variants import Interval
from probattn.comparison.workers import other_gpu, workers
from probattn.data import TextDataset
from probattn.report import Comparison, Predictions
from probattn.tasks.errors import RunError
from probattn.tasks.progress import note, shown
from probattn.triage import TriageOptions, calibrate, judged_probabilities

PARTS = ("validation", "test", "out_of_domain")

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


@pytest.fixture(scope="module")
def compared(recipe, reviews, command, tmp_path_factory):
    """Two recipes over two seeds, and what the command said."""
    folder = tmp_path_factory.mktemp("compare")
    base = recipe.read_text(encoding="utf-8").replace(
        "attention: {method: babn}", "attention: {method: deterministic}"
    )
    for name, text in (("plain", base), ("latent", recipe.read_text(encoding="utf-8"))):
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
    options = ["--seeds", "2", "--error", "0.4", "--output", folder / "out", "--quiet"]
    given = [folder / "plain.yaml", folder / "latent.yaml", *options]
    done = command("compare", *given)
    assert done.exit_code == 0, done.output
    return folder, given, done


def recorded(compared):
    """The results of the comparison."""
    return ComparisonResults.model_validate_json((compared[0] / "out" / "comparison.json").read_bytes())


def test_dropout_is_a_way_only_where_something_drops_out(monkeypatch):
    """The two passes differ by rounding, as those of two batches may."""
    point = torch.tensor([[0.3, 0.7], [0.6, 0.4]], dtype=torch.float64)
    network = SimpleNamespace(key="deterministic", has_draws=False)
    for draws, expected in (
        (None, ["point"]),
        (point.expand(4, 2, 2), ["point", "dropout", "dropout_temperature"]),
    ):
        own = Predictions(point + 1e-9, draws, None if draws is None else "dropout")
        monkeypatch.setattr(comparison_variants, "predicted", lambda *_, own=own: own)
        labels = {part: torch.tensor([1, 0]) for part in ("validation", "test")}
        found = Variants(labels)
        found.add("point", dict.fromkeys(labels, point))
        comparison_variants._drawn(None, network, dict.fromkeys(labels), found)
        assert list(found.probabilities) == expected


def test_costs_are_measured_in_turn_with_the_reference(monkeypatch):
    """On a machine that slows down steadily: a pass of the reference takes 2 units of work, 20 draws take 40."""
    now, work = [0.0], [0.0]
    monkeypatch.setattr(comparison_variants.time, "perf_counter", lambda: now[0])

    def action(amount):
        def act():
            now[0] += amount * (1 + 0.01 * (work[0] + amount / 2))  # the mean speed while it runs
            work[0] += amount

        return act

    found = comparison_variants._ratios(
        action(2), {"point": action(3), "draws": action(43), "moments": action(5)}
    )
    assert found == pytest.approx({"point": 1.5, "draws": 20, "moments": 2.5}, rel=1e-9)
    found = comparison_variants._ratios(action(2), {"dropout": action(42)})  # of the reference itself
    assert found == pytest.approx({"point": 1, "dropout": 20}, rel=1e-9)


def test_costs_are_kept(compared, command):
    folder, given, _ = compared
    file = folder / "out" / "costs.json"
    kept = file.read_bytes()
    assert command("compare", *given).exit_code == 0 and file.read_bytes() == kept
    ways = {"plain": {"point", "dropout"}, "latent": {"point", "draws", "moments"}}
    assert {name: {*measured} for name, measured in json.loads(kept)[1].items()} == ways
    passes = {"energy": "point", "draws_information": "draws", "moments_temperature": "moments"}
    assert {variant: comparison_variants.passes_of(variant) for variant in passes} == passes


def test_every_way_is_measured(compared):
    folder, _, done = compared
    results = recorded(compared)
    ways = {name: [row.variant for row in results.rows if row.recipe == name] for name in ("plain", "latent")}
    detecting = ("maximum", "energy", "distance", "dropout_information", "draws_information")
    shared = ["point", "temperature", "laplace", "laplace_temperature", *detecting[:3]]
    last = ["ensemble", "ensemble_temperature"]
    assert ways["plain"] == [*shared, "dropout", "dropout_temperature", "dropout_information", *last]
    drawn = ["draws", "draws_temperature", "draws_information", "moments", "moments_temperature"]
    assert ways["latent"] == [*shared, *drawn, *last]
    assert results.reference == ("plain", "point") and results.seeds == (0, 1)
    for row in results.rows:
        all_measures = {"accuracy", "nll", "ece", "aurc", "coverage", "answered", "auroc"}
        assert set(row.values) == ({"auroc"} if row.variant in detecting else all_measures)
        assert row.cost.mean > 0
        assert (not row.gaps) == (row.variant in last or row.recipe + row.variant == "plainpoint")
        assert (row.closed_form is not None) == row.variant.startswith("moments")
    gaps = [(name, gap) for row in results.rows for name, gap in row.gaps.items()]
    assert {results.verdict(*each) for each in gaps} == {"unclear"}  # of two seeds
    cost = {row.variant: row.cost.mean for row in results.rows if row.recipe == "plain"}
    assert cost["point"] == cost["energy"] == 1 and cost["ensemble"] == 2
    assert cost["dropout"] == cost["dropout_information"]
    assert "posterior draws" in done.stdout and "report: " in done.stdout
    page = (folder / "out" / "comparison.html").read_text(encoding="utf-8")
    drawn = sum(len({"coverage", "auroc"} & set(row.values)) for row in results.rows)
    assert "Quality against cost" in page and "Undefined" not in page and page.count("<circle") >= drawn


@pytest.mark.slow
def test_what_is_finished_is_not_done_again(compared, command):
    folder, given, _ = compared
    files = {file: file.stat().st_mtime_ns for file in (folder / "out").rglob("compared.*")}
    assert len(files) == 8
    assert command("compare", *given, "--json").exit_code == 0
    assert command("compare", *given, "--device", "cpu").exit_code == 0  # as workers on a CPU are called
    assert {file: file.stat().st_mtime_ns for file in files} == files
    damaged = folder / "out" / "latent" / "seed-1" / "compared.json"
    kept = damaged.read_bytes()
    damaged.write_text("{")
    done = command("compare", *given)
    assert done.exit_code == 2 and "remove it, and the same command makes it anew" in done.output
    damaged.unlink()
    done = command("compare", *given, "--workers", "2")
    assert done.exit_code == 0, done.output
    assert (folder / "out" / "worker-1.log").exists() and "ended with status" not in done.output
    assert json.loads(damaged.read_bytes()) == json.loads(kept)


def test_a_finished_run_keeps_its_network_alone_and_is_measured_again_from_it(compared, command, monkeypatch):
    folder, given, _ = compared
    place = folder / "out" / "latent" / "seed-1"
    assert (place / "model").is_dir() and not (place / "checkpoints").exists()
    figures, points = place / "compared.json", place / "compared.safetensors"
    kept, tensors = figures.read_bytes(), load_file(points)
    figures.unlink()
    monkeypatch.setattr(running, "train", None)  # refuses to be called
    other = command("compare", *given, "--set", "training.weight_decay=0.3")
    assert other.exit_code == 2 and "its recipe differs: expected" in other.output
    assert command("compare", *given).exit_code == 0
    assert figures.read_bytes() == kept
    assert all(torch.equal(each, tensors[name]) for name, each in load_file(points).items())


def test_the_ensemble_is_the_mean_of_the_networks(compared):
    folder, _, _ = compared
    read = [
        load_file(folder / "out" / "plain" / f"seed-{seed}" / "compared.safetensors") for seed in range(2)
    ]
    mean = {
        part: (read[0][f"point.{part}"].double() + read[1][f"point.{part}"].double()) / 2 for part in PARTS
    }
    labels = {part: read[0][f"labels.{part}"] for part in PARTS[:2]}
    expected = figures(mean, labels, 0.4)
    results = recorded(compared)
    (row,) = [row for row in results.rows if (row.recipe, row.variant) == ("plain", "ensemble")]
    assert {name: each.mean for name, each in row.values.items()} == pytest.approx(expected)
    variants = Variants(dict(labels))
    variants.add("ensemble", mean)
    variants.scaled("ensemble", "scaled")
    (row,) = [row for row in results.rows if (row.recipe, row.variant) == ("plain", "ensemble_temperature")]
    assert row.values["nll"].mean == pytest.approx(variants.measured(0.4)["scaled"]["nll"])


def test_answers_are_those_of_a_policy_and_bins_are_ten():
    """The validation data say where its tests begin: after the most confident inputs, which are wrong here."""
    generator = torch.Generator().manual_seed(3)
    probabilities = {
        part: (4 * torch.randn(size, 3, generator=generator)).double().softmax(dim=-1)
        for part, size in (("validation", 60), ("test", 2000))
    }
    labels = {
        part: torch.multinomial(values, 1, generator=generator)[:, 0]
        for part, values in probabilities.items()
    }
    surest = probabilities["test"].amax(dim=1).topk(5).indices
    labels["test"][surest] = (probabilities["test"].argmax(dim=1)[surest] + 1) % 3
    result = figures(probabilities, labels, 0.1)
    pilot, test = (
        judged_probabilities(values, labels[part], "abc") for part, values in probabilities.items()
    )
    (limit,) = calibrate(test, pilot, TriageOptions(error=0.1)).limits
    (other,) = calibrate(test, None, TriageOptions(error=0.1)).limits
    assert result["answered"] == limit.answered / 2000 != other.answered / 2000
    confidence, predicted = (item.numpy() for item in probabilities["test"].max(dim=-1))
    right, bins = predicted == labels["test"].numpy(), np.minimum((10 * confidence).astype(int), 9)
    gaps = [abs((right - confidence)[bins == number].sum()) / 2000 for number in range(10)]
    assert result["ece"] == pytest.approx(sum(gaps)) and "auroc" not in result
    assert figures(probabilities, labels, 1e-9)["coverage"] == 0


def test_figures_are_those_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    probabilities = {
        part: (2 * torch.randn(400, 3, generator=generator)).double().softmax(dim=-1)
        for part in ("validation", "test", "out_of_domain")
    }
    labels = {
        part: torch.multinomial(probabilities[part], 1, generator=generator)[:, 0]
        for part in ("validation", "test")
    }
    found = figures(probabilities, labels, 0.1)
    own, target = probabilities["test"].numpy(), labels["test"].numpy()
    assert found["accuracy"] == pytest.approx((own.argmax(axis=1) == target).mean())
    assert found["nll"] == pytest.approx(log_loss(target, own))
    entropies = [
        -(each.numpy() * np.log(each.numpy())).sum(axis=1)
        for each in (probabilities["test"], probabilities["out_of_domain"])
    ]
    assert found["auroc"] == pytest.approx(roc_auc_score(np.repeat([0, 1], 400), np.concatenate(entropies)))
    order = np.argsort(-own.max(axis=1))
    wrong = (own.argmax(axis=1) != target)[order].cumsum() / np.arange(1, 401)
    assert found["coverage"] == pytest.approx((np.flatnonzero(wrong <= 0.1).max() + 1) / 400)
    assert 0 < found["answered"] <= found["coverage"] + 0.05


def test_scores_of_their_own_detect_inputs_out_of_the_distribution():
    generator = torch.Generator().manual_seed(1)
    probabilities = {part: torch.rand(60, 3, generator=generator).softmax(dim=-1) for part in PARTS}
    labels = {part: torch.arange(60) % 3 for part in PARTS[:2]}
    scores = {part: torch.randn(60, generator=generator) for part in ("test", "out_of_domain")}
    found = figures(probabilities, labels, 0.5, scores)
    expected = roc_auc_score(np.repeat([0, 1], 60), torch.cat(list(scores.values())).numpy())
    assert found["auroc"] == pytest.approx(expected)
    assert found["auroc"] != figures(probabilities, labels, 0.5)["auroc"]


def test_the_temperature_is_that_of_the_validation_data():
    """Labels drawn from the true probabilities, predicted by logits that are twice as large."""
    generator = torch.Generator().manual_seed(2)
    logits = {part: torch.randn(4000, 3, generator=generator).double() for part in PARTS}
    labels = {
        part: torch.multinomial(logits[part].softmax(dim=-1), 1, generator=generator)[:, 0]
        for part in PARTS[:2]
    }
    variants = Variants(labels)
    variants.add("point", {part: (2 * each).softmax(dim=-1) for part, each in logits.items()})
    variants.scaled("point", "temperature")
    torch.testing.assert_close(
        variants.probabilities["temperature"]["test"], logits["test"].softmax(dim=-1), rtol=0, atol=0.03
    )
    found = variants.measured(0.2)
    assert found["temperature"]["nll"] < found["point"]["nll"]
    assert found["temperature"]["accuracy"] == found["point"]["accuracy"]


def test_differences_are_those_of_a_paired_test():
    generator = np.random.default_rng(0)
    values = {
        key: {seed: {"accuracy": float(generator.normal(place, 1))} for seed in range(5)}
        for place, key in enumerate([("a", "point"), ("b", "point"), ("b", "draws")])
    }
    found = _gaps(values, ("a", "point"))
    samples = {key: [each["accuracy"] for each in runs.values()] for key, runs in values.items()}
    p_values = {key: ttest_rel(samples[key], samples["a", "point"]).pvalue for key in found}
    for key, gaps in found.items():
        gap = gaps["accuracy"]
        assert gap.p == pytest.approx(p_values[key])
        expected = pytest.approx(statistics.fmean(samples[key]) - statistics.fmean(samples["a", "point"]))
        assert gap.value == expected
        assert gap.corrected >= gap.p
    smallest = min(p_values.values())
    assert min(gaps["accuracy"].corrected for gaps in found.values()) == pytest.approx(2 * smallest)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["sst2_babn", "sst2_babn"], "compare: expected recipes of different names, got 'sst2_babn' twice"),
        (["sst2_babn", "--error", "0"], "compare: --error: expected a number in (0, 1), got 0.0"),
        (["copying_heads"], "copying_heads: expected a run that classifies texts, got one of experiment"),
        (["no_such_recipe"], "no_such_recipe"),
    ],
)
def test_bad_input_in_one_line(command, tmp_path, options, words):
    done = command("compare", *options, "--output", tmp_path / "out")
    assert done.exit_code == 2 and words in done.output and "Traceback" not in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [{"seeds": 0}, {"workers": 0}])
def test_no_seed_or_no_worker_alone_is_refused(options):
    with pytest.raises(ValueError, match="expected an integer >= 1, got 0"):
        CompareOptions(("sst2_babn",), **options)


def test_an_unknown_reference_names_those_there_are(compared, command):
    done = command("compare", *compared[1], "--against", "moments")
    assert done.exit_code == 2 and "expected a way of plain (point, temperature" in done.output
    assert "moments" not in done.output.partition("of plain (")[2], "a way of the other recipe"


def test_runs_of_another_recipe_or_of_other_ways_are_refused(compared, command, tmp_path):
    folder, given, _ = compared
    done = command("compare", *given, "--set", "training.weight_decay=0.3")
    assert done.exit_code == 2
    assert "plain/seed-0: expected a run of this recipe, got one of another" in done.output
    file = folder / "out" / "latent" / "seed-1" / "compared.json"
    kept = file.read_bytes()
    content = json.loads(kept)
    file.write_text(json.dumps({name: each for name, each in content.items() if name != "recipe"}))
    done = command("compare", *given)
    assert done.exit_code == 2 and "expected figures of this version of probattn" in done.output
    content["figures"].pop("moments")
    file.write_text(json.dumps(content))
    done = command("compare", *given)
    file.write_bytes(kept)
    assert done.exit_code == 2 and "latent: expected 'moments' in the figures of every seed" in done.output
    points = folder / "out" / "latent" / "seed-1" / "compared.safetensors"
    kept = points.read_bytes()
    tensors = load_file(points)
    save_file(tensors | {"labels.test": 1 - tensors["labels.test"]}, points)
    done = command("compare", *given)
    points.write_bytes(kept)
    assert done.exit_code == 2 and "seed-1: expected the test data of" in done.output


def test_runs_of_changed_data_are_refused(compared, command):
    folder, given, _ = compared
    file = folder / "out" / "latent" / "seed-1" / "compared.json"
    kept = file.read_bytes()
    file.write_text(json.dumps(json.loads(kept) | {"data": {"data": "others"}}))
    done = command("compare", *given)
    file.write_bytes(kept)
    assert done.exit_code == 2 and "seed-1: expected a run on the data of" in done.output, done.output
    done = command("compare", *given, "--output", folder / "out" / "latent" / "seed-1")
    assert done.exit_code == 2 and "expected a folder for several runs, got that of one" in done.output


def test_a_gap_of_detection_needs_as_many_inputs_outside(compared):
    results = recorded(compared)
    gap = Comparison(
        model="draws", value=0.2, low=0.1, high=0.3, p=1e-4, corrected=1e-3, seeds=(0.2, 0.2, 0.2)
    )
    for outside, expected in ((40, "unclear"), (500, "better")):
        sized = results.model_copy(update={"sizes": {"test": 1000, "out_of_domain": outside}})
        assert (sized.verdict("auroc", gap), sized.verdict("coverage", gap)) == (expected, "better")
    rows = tuple(
        row.model_copy(
            update={"values": {name: each for name, each in row.values.items() if name != "auroc"}}
        )
        if row.recipe == "plain"
        else row
        for row in results.rows
    )
    page = comparison_page.page(results.model_copy(update={"rows": rows}))
    assert "inf" not in page.replace("information", "").replace("info", "")


def test_the_axis_of_costs_begins_with_one_pass(compared):
    results = recorded(compared)
    threefold = [
        row.model_copy(update={"cost": Interval(mean=cost, low=None, high=None, seeds=1)})
        for row, cost in zip(results.rows, (1.0, *[3.0] * len(results.rows)), strict=False)
    ]
    page = comparison_page.page(results.model_copy(update={"rows": tuple(threefold)}))
    chart = page[
        page.index("cost of a prediction, passes") - 4000 : page.index("cost of a prediction, passes")
    ]
    assert re.findall(r">(1|2|5|10)</text>", chart)[:3] == ["1", "2"]


@pytest.mark.parametrize(
    ("given", "index", "expected"),
    [
        (None, None, ["1", "2", "0"]),
        ("2, 3,7", 0, ["3", "7", "2"]),
        (None, 1, ["2", "0", "1"]),
        ("GPU-a,GPU-b,GPU-c", None, ["GPU-b", "GPU-c", "GPU-a"]),
    ],
)
def test_workers_take_the_other_gpus(monkeypatch, given, index, expected):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    device = SimpleNamespace(type="cuda", index=index)
    assert [other_gpu(device, number)["CUDA_VISIBLE_DEVICES"] for number in (1, 2, 3)] == expected
    assert other_gpu(torch.device("cpu"), 1) == {}


def test_the_headline_names_what_is_reliably_better(compared):
    results = recorded(compared)
    expected = "No prediction method has significantly more coverage at 40% error than the reference"
    assert headline(results) == expected
    gap = Comparison(
        model="draws", value=0.2, low=0.1, high=0.3, p=1e-4, corrected=1e-3, seeds=(0.2, 0.2, 0.2)
    )
    rows = tuple(
        row.model_copy(update={"gaps": {"coverage": gap}}) if row.variant == "draws" else row
        for row in results.rows
    )
    sizes = {**results.sizes, "test": 500}
    better = results.model_copy(update={"rows": rows, "sizes": sizes, "seeds": (0, 1, 2)})
    assert headline(better).startswith(
        "latent, posterior draws, has significantly more coverage at 40% error: "
    )


@pytest.mark.fork
@pytest.mark.parametrize("ignores", [False, True])
def test_a_signal_ends_the_workers(tmp_path, monkeypatch, ignores):
    """A worker that waits for ever ends with the process that began it, and is killed where it ignores signals."""
    monkeypatch.setattr(comparison_workers, "SECONDS", 0.1 if ignores else 60)
    script = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    if ignores:
        script = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {script}"

    def interrupted():
        with workers([sys.executable, "-c", script], 1, torch.device("cpu"), tmp_path):
            while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)

    with pytest.raises(KeyboardInterrupt) as ended:
        interrupted()
    assert ended.value.number == signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_figures_of_another_error_are_refused(compared):
    (file, *_) = sorted(compared[0].joinpath("out").rglob(running.FIGURES))
    job = SimpleNamespace(folder=file.parent)
    with pytest.raises(RunError, match=r"expected figures at an error of 0\.3, got 0\.4; remove it"):
        _read(job, 0.3)


def test_multiples_of_intervals():
    expected = Interval(mean=3.0, low=1.5, high=6.0, seeds=3)
    assert Interval(mean=2.0, low=1.0, high=4.0, seeds=3).times(1.5) == expected
    single = Interval(mean=2.0, low=None, high=None, seeds=1)
    assert single.times(0.5) == Interval(mean=1.0, low=None, high=None, seeds=1)


@pytest.mark.slow
@pytest.mark.fork
def test_workers_end_with_a_killed_parent(tmp_path):
    """A SIGKILL leaves the parent no time to end them."""
    work = (
        "import os, time; from probattn.comparison.workers import end_with_parent; end_with_parent();"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    parent = os.fork()
    if parent == 0:
        with workers([sys.executable, "-c", work], 1, torch.device("cpu"), tmp_path):
            time.sleep(600)
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text()):
        assert os.waitpid(parent, os.WNOHANG) == (0, 0)
        time.sleep(0.01)
    worker = int((tmp_path / "pid").read_text())
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    for _ in range(3000):
        if not _runs(worker):
            return
        time.sleep(0.01)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker runs on after its parent was killed")


def _runs(number):
    """Whether a process runs; one that ended and that nobody waits for still has a number."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("quiet", [True, False])
def test_runs_are_trained_as_quietly_as_asked_and_counted_from_one(monkeypatch, tmp_path, capsys, quiet):
    trained = []
    monkeypatch.setattr(running, "train", lambda *_, **options: trained.append(options["quiet"]))
    monkeypatch.setattr(running, "_measure", lambda *_: None)
    with shown(quiet=False), pytest.raises(RunError, match="compares when that is done"):
        running.compare(CompareOptions(("sst2_babn",), seeds=2), tmp_path, quiet=quiet)
    told = capsys.readouterr().err
    assert trained == [quiet, quiet]
    assert "run 1 of 2: sst2_babn, seed 0" in told and "run 2 of 2: sst2_babn, seed 1" in told


def test_costs_are_means_of_five_rounds_on_64_texts_after_one_that_warms_up(monkeypatch, tmp_path, capsys):
    """Passes of the first recipe take a second, of the other two; the first round is a hundred times as uneven."""
    now, done = [0.0], []
    monkeypatch.setattr(comparison_variants.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(comparison_variants, "load_network", lambda folder: folder.name)

    def act(_, network, texts, variant="point"):
        note("a bar of the predictions")
        took = {"point": 1, "dropout": 11, "draws": 21, "moments": 2.5}[variant] * (1 + (network == "latent"))
        now[0] += took if (network, variant) in {item[:2] for item in done} else took * len(variant) ** 2
        done.append((network, variant, len(texts)))

    monkeypatch.setattr(comparison_variants, "predicted", act)
    monkeypatch.setattr(comparison_variants, "pass_once", act)
    task = SimpleNamespace(texts=SimpleNamespace(test=TextDataset(("a",) * 70, None, (), "given")))
    networks = {name: (task, Path(name)) for name in ("plain", "latent")}
    ways = {
        "plain": ["point", "laplace", "dropout", "dropout_information"],
        "latent": ["point", "draws", "moments"],
    }
    with shown():
        result = comparison_variants.measured_costs(tmp_path, networks, ways, ["one", "other"])
    assert {name: {kind: item.mean for kind, item in kinds.items()} for name, kinds in result.items()} == {
        "plain": {"point": 1, "dropout": 10},
        "latent": {"point": 2, "draws": 40, "moments": 5},
    }
    expected = {Interval(mean=mean, low=mean, high=mean, seeds=5) for mean in (1, 2, 5, 10, 40)}
    assert {item for kinds in result.values() for item in kinds.values()} == expected
    assert {size for _, _, size in done} == {64} and done.count(("latent", "draws", 64)) == 6
    told = capsys.readouterr().err
    assert "plain: cost of a prediction" in told and "a bar of the predictions" not in told
    number = len(done)
    assert (
        comparison_variants.measured_costs(tmp_path, networks, ways, ["one", "other"]) == result
        and len(done) == number
    )
    comparison_variants.measured_costs(tmp_path, networks, ways, ["other", "one"])
    assert len(done) == 2 * number
    file = tmp_path / "costs.json"
    digests, table = json.loads(file.read_bytes())
    fewer = {
        name: {"point": measured["point"]} for name, measured in table.items()
    }  # of a version with fewer ways
    for times, content in enumerate(("{", json.dumps([digests, fewer])), 3):
        file.write_text(content)
        again = comparison_variants.measured_costs(tmp_path, networks, ways, ["other", "one"])
        assert again.keys() == result.keys() and len(done) == times * number


@pytest.mark.parametrize("status", [0, 3])
def test_workers_have_an_environment_and_a_log_each(tmp_path, monkeypatch, capsys, status):
    """Of what a failed one wrote the last five lines are shown."""
    monkeypatch.setattr(comparison_workers, "other_gpu", lambda _, number: {"GPU": str(number)})
    script = (
        "import os, sys; print(*map(os.environ.get, ('OMP_NUM_THREADS', 'PROBATTN_WORKER', 'GPU')));"
        "print(os.getpid() == os.getsid(0), *map('line {}'.format, range(6)), sep='\\n'); sys.stdout.flush();"
        f"print('line 6', file=sys.stderr); sys.exit({status})"
    )
    folder = tmp_path / "a" / "folder"
    with shown(), workers([sys.executable, "-c", script], 2, torch.device("cpu"), folder):
        pass
    logs = [(folder / f"worker-{number}.log").read_text().splitlines() for number in (1, 2)]
    assert [log[:2] for log in logs] == [["1 1 1", "True"], ["1 1 2", "True"]]
    assert len(list(folder.iterdir())) == 2 and logs[0][-1] == "line 6"
    told = capsys.readouterr().err
    if status:
        assert told.count("line 2") == told.count("line 6") == 2 and "line 1" not in told
        assert told.index("worker-1.log has") < told.index("line 6") < told.index("worker-2.log has")
    assert ("ended with status 3" in told) == ("line 6" in told) == bool(status)


def test_a_worker_that_leaves_the_last_runs_to_others_is_not_told(tmp_path, capsys):
    script = "import sys; print(sys.argv[1], 'more', sep='\\n' * int(sys.argv[2])); sys.exit(2)"
    for line, gap, tells in ((comparison_workers.BUSY, "0", False), (comparison_workers.BUSY, "1", True)):
        command = [sys.executable, "-c", script, line, gap]
        with shown(), workers(command, 1, torch.device("cpu"), tmp_path):
            pass
        assert ("ended with status 2" in capsys.readouterr().err) is tells


def test_runs_are_shared_among_processes_of_one_thread(monkeypatch, tmp_path):
    """The command of the others has the options of this one."""
    began, finished = [], []

    @contextmanager
    def others(*arguments):
        began.append(arguments)
        yield

    def finish(job, error, prefix, *, quiet):
        finished.append((job.name, job.seed, error, prefix, quiet, torch.get_num_threads()))

    monkeypatch.setattr(running, "workers", others)
    monkeypatch.setattr(running, "_finish", finish)
    options = CompareOptions(
        ("one.yaml", "two"), seeds=2, set=("data.train=trec",), error=0.2, against="draws", workers=3
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        running._spread(options, tmp_path)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    command = [
        sys.executable,
        "-m",
        "probattn",
        "compare",
        "one.yaml",
        "two",
        "--output",
        str(tmp_path),
        "--quiet",
    ]
    command += ["--seeds=2", "--error=0.2", "--against=draws", "--set=data.train=trec", "--device=cpu"]
    assert began == [(command, 2, torch.device("cpu"), tmp_path)]
    assert finished == [(name, seed, 0.2, "", True, 1) for seed in (0, 1) for name in ("one", "two")]
    (job, *_) = running._jobs(options, tmp_path)
    expected = (tmp_path / "one" / "seed-0", ("data.train=trec", "report.baseline=false", "training.seed=0"))
    assert (job.folder, job.keys) == expected


def test_a_run_that_another_process_is_at_is_left_to_it(monkeypatch, tmp_path):
    monkeypatch.setattr(running, "train", None)  # refuses to be called
    options = CompareOptions(("sst2_babn",), seeds=1)
    (job,) = running._jobs(options, tmp_path / "out")
    job.folder.parent.mkdir(parents=True)
    with (
        FileLock(job.folder.with_name(".seed-0.lock")),
        pytest.raises(
            RunError, match=r"seed-0: another process is at it; the same command compares when that is"
        ),
    ):
        running.compare(options, tmp_path / "out")


def test_locks_have_a_folder_also_where_filelock_makes_none(monkeypatch, tmp_path):
    """As releases before 3.13."""

    class Lock(FileLock):
        def acquire(self, *args, **options):
            assert Path(self.lock_file).parent.is_dir()
            return super().acquire(*args, **options)

    trained = []
    monkeypatch.setattr(running, "FileLock", Lock)
    monkeypatch.setattr(running, "train", lambda _, folder, **options: trained.append((folder.name, options)))
    monkeypatch.setattr(running, "_measure", lambda *_: None)
    options = CompareOptions(("sst2_babn",), seeds=2)
    with pytest.raises(RunError, match="seed-0: another process is at it"):
        running.compare(options, tmp_path / "out")
    again = tmp_path / "out" / "sst2_babn" / "seed-1"
    again.mkdir()
    (again / "recipe.yaml").write_text("{}")  # of a training that was interrupted
    with pytest.raises(RunError, match="seed-0: another process is at it"):
        running.compare(options, tmp_path / "out")
    fresh = {"resume": False, "quiet": False}
    expected = [("seed-0", fresh), ("seed-1", fresh), ("seed-0", fresh), ("seed-1", fresh | {"resume": True})]
    assert trained == expected


def test_defaults_of_a_comparison():
    named = {"seeds": 3, "set": (), "error": 0.05, "against": "point", "workers": 1}
    assert CompareOptions(("sst2_babn",)) == CompareOptions(("sst2_babn",), **named)


def test_one_seed_has_no_ensemble_and_no_gaps(compared):
    """Of the runs of two seeds; the records say what was compared, and its parts are counted."""
    folder, given, _ = compared
    records = folder / "out" / "comparison.json"
    before = records.read_bytes()
    both = ComparisonResults.model_validate_json(before)
    assert before.startswith(b'{\n "kind": "comparison",\n') and before.endswith(b"}\n")
    labels = load_file(folder / "out" / "plain" / "seed-0" / "compared.safetensors")
    parts = {part: len(labels[f"labels.{part}"]) for part in PARTS[:2]}
    train = 120 - sum(parts.values())  # of as many reviews
    assert both.sizes == {"train": train, **parts, "out_of_domain": 120} and both.set == ()
    assert {"torch", "probattn"} <= both.versions.keys() and [*both.methods] == ["plain", "latent"]
    file, one = running.compare(
        CompareOptions(tuple(map(str, given[:2])), seeds=1, error=0.4), folder / "out"
    )
    assert file == folder / "out" / "comparison.html"
    assert ComparisonResults.model_validate_json(records.read_bytes()) == one
    records.write_bytes(before)
    expected = [row.variant for row in both.rows if not row.variant.startswith("ensemble")]
    assert [row.variant for row in one.rows] == expected
    assert not any(row.gaps for row in one.rows) and one.seeds == (0,)
    assert all(item.low is None and item.seeds == 1 for row in one.rows for item in row.values.values())
