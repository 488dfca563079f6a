"""What an evaluation makes of a data set, beside the same texts one by one."""

import csv
import shutil
from dataclasses import replace

import pytest
import torch

from probattn.data import TextDataset
from probattn.inference.predictive import posterior_expectation
from probattn.models import describe, load
from probattn.recipes import load_recipe
from probattn.report import read_results, write_results
from probattn.tasks import Classification, RunError, load_network, run_task


def test_predictions_stand_in_the_order_of_the_data(run, recipe):
    trained, baseline = load_network(run), load_network(run / "baseline")
    texts = ("the film was good and the cast was fine", "bad", "the plot was poor", "great cast", "a film")
    data = TextDataset(texts, None, (), "five texts")
    task = Classification(load_recipe(recipe, ["prediction.batch_size=2"]))
    found = task.predict_data([baseline, trained], "out_of_domain", data).models
    for row in range(len(texts)):
        batch = trained.moved(next(iter(task.batches(trained, data.rows([row])))))
        alone = posterior_expectation(trained.program, batch).softmax(dim=-1)[0].cpu()
        torch.testing.assert_close(found["bayesian_expectation"].probabilities[row], alone)
        plain = baseline.program(batch).softmax(dim=-1)[0].cpu()
        torch.testing.assert_close(found["deterministic"].probabilities[row], plain)
    spread = found["bayesian_mean"].draws.std(dim=0)  # [N, C]
    assert spread.shape == (5, 2) and bool((spread > 0).all())


@pytest.mark.slow
def test_the_closed_form_agrees_with_500_draws(run, recipe):
    """And measures of draws take its points: their mean and mutual information are those of the moments."""
    trained = load_network(run)
    texts = ("the film was good and the cast was fine", "bad", "the plot was poor", "great cast", "a film")
    data = TextDataset(texts, None, (), "five texts")
    task = Classification(load_recipe(recipe, ["prediction.batch_size=2", "prediction.num_samples=500"]))
    found = task.predict_data([trained], "out_of_domain", data).models
    draws, moments = found["bayesian_mean"], found["bayesian_moments"]
    assert moments.source == "moments" and moments.draws.shape == (500, 5, 2)
    torch.testing.assert_close(moments.draws.mean(dim=0), moments.probabilities, atol=2e-3, rtol=0)
    torch.testing.assert_close(moments.probabilities, draws.probabilities, atol=0.02, rtol=0)
    entropies = [torch.special.entr(each.probabilities).sum(dim=-1) for each in (moments, draws)]
    torch.testing.assert_close(*entropies, atol=0.01, rtol=0.03)
    spreads = [each.draws.std(dim=0).mean() for each in (moments, draws)]
    torch.testing.assert_close(*spreads, atol=0, rtol=0.2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
def test_the_network_of_a_run_is_saved_with_its_figures(run, tmp_path):
    """As the page about saving has it; the evaluation itself leaves the network's folder alone."""

    def files():
        return {file: file.read_bytes() for file in (run / "model").iterdir()}

    before = files()
    results = read_results(write_results(run_task(run).evaluate(run), tmp_path / "metrics.json"))
    assert files() == before
    score = results.score(results.compared, results.in_domain.key)
    net = describe(
        load(run / "model"),
        metrics={"accuracy": score.values["accuracy"], "calibration error": score.values["ece"]},
    )
    net.save_pretrained(tmp_path / "net")
    card = (tmp_path / "net" / "README.md").read_text()
    assert (
        f"| accuracy | {score.values['accuracy']:.4g} |\n| calibration error | {score.values['ece']:.4g} |"
        in card
    )
    assert "Training data: reviews.csv.\n" in card and load(tmp_path / "net") is not None
    expected = (run / "model" / "probattn.json").read_text() + card
    assert str(tmp_path.parent) not in expected


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
def test_training_data_of_other_classes_are_refused(run, tmp_path):
    """As of a file in which a class was renamed after training."""
    task = run_task(shutil.copytree(run, tmp_path / "run"))
    texts = task.texts
    names = (*texts.label_names[:-1], "zeta")
    train = replace(texts.train, label_names=names)
    task.__dict__["texts"] = replace(texts, train=train)
    with pytest.raises(RunError, match=r"differ in '.*', 'zeta'; the data have changed since: train again"):
        task.evaluate(tmp_path / "run")


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
def test_an_evaluation_writes_its_predictions(run):
    """Every measured text with its classes; the accuracy of the file is that of the records."""
    task = run_task(run)
    results = task.evaluate(run)
    with (run / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == [text for data in task.measured().values() for text in data.texts]
    assert {row["data"] for row in rows} == {data.key for data in results.data}
    of_test = [row for row in rows if row["data"] == "test"]
    score = results.score(results.compared, "test")
    expected = pytest.approx(score.values["accuracy"])
    assert sum(row["label"] == row["true"] for row in of_test) / len(of_test) == expected
    for row in rows:
        shares = {name[2:]: float(share) for name, share in row.items() if name.startswith("p_")}
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert row["label"] == max(shares, key=shares.__getitem__)
        assert float(row["probability"]) == pytest.approx(max(shares.values()), abs=1e-6)


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("/home/me/ood_text.csv", "ood_text.csv"),
        ("/home/me/tickets (1).csv (test)", "tickets (1).csv (test)"),
        ("rotten_tomatoes (test)", "Rotten tomatoes (test)"),
        ("hub:owner/my_set (test)", "hub:owner/my_set (test)"),
    ],
)
def test_files_keep_their_names_in_titles(source, title):
    assert Classification.title_of(source) == title
