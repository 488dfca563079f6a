"""What an evaluation makes of a data set, beside the same texts one by one."""

import torch

from probattn.cli.evaluating import predict_data
from probattn.cli.trained import EvaluationOptions, load_model
from probattn.data import TextDataset
from probattn.inference.predictive import posterior_expectation


def test_predictions_stand_in_the_order_of_the_data(run):
    trained, baseline = load_model(run), load_model(run / "baseline")
    texts = ("the film was good and the cast was fine", "bad", "the plot was poor", "great cast", "a film")
    data = TextDataset(texts, None, (), "five texts")
    options = EvaluationOptions(num_samples=3, batch_size=2)
    found = predict_data(trained, baseline, "out_of_domain", data, options).models
    for row in range(len(texts)):
        batch = next(iter(trained.batches(data.rows([row]), options)))
        alone = posterior_expectation(trained.model, batch).softmax(dim=-1)[0]
        torch.testing.assert_close(found["bayesian_expectation"].probabilities[row], alone)
        plain = baseline.model(batch).softmax(dim=-1)[0]
        torch.testing.assert_close(found["deterministic"].probabilities[row], plain)
    spread = found["bayesian_mean"].draws.std(dim=0)  # [N, C]
    assert spread.shape == (5, 2) and bool((spread > 0).all())
