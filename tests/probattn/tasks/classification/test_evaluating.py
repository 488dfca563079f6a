"""What an evaluation makes of a data set, beside the same texts one by one."""

import torch

from probattn.data import TextDataset
from probattn.inference.predictive import posterior_expectation
from probattn.recipes import load_recipe
from probattn.tasks import Classification, load_network


def test_predictions_stand_in_the_order_of_the_data(run, recipe):
    trained, baseline = load_network(run), load_network(run / "baseline")
    texts = ("the film was good and the cast was fine", "bad", "the plot was poor", "great cast", "a film")
    data = TextDataset(texts, None, (), "five texts")
    task = Classification(load_recipe(recipe, ["prediction.batch_size=2"]))
    found = task.predict_data([baseline, trained], "out_of_domain", data).models
    for row in range(len(texts)):
        batch = next(iter(task.batches(trained, data.rows([row]))))
        alone = posterior_expectation(trained.program, batch).softmax(dim=-1)[0]
        torch.testing.assert_close(found["bayesian_expectation"].probabilities[row], alone)
        plain = baseline.program(batch).softmax(dim=-1)[0]
        torch.testing.assert_close(found["deterministic"].probabilities[row], plain)
    spread = found["bayesian_mean"].draws.std(dim=0)  # [N, C]
    assert spread.shape == (5, 2) and bool((spread > 0).all())
