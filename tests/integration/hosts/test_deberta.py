"""DeBERTa-v3 learns a toy problem under the driver, and predicts with draws."""

import pytest
import torch

from probattn import AlignmentAttention, BayesianAttention
from probattn.inference import OptimizerOptions, SVIDriver, posterior_predict
from probattn.models import Classifier, convert


def data(rows=64):
    words = torch.randint(8, 60, (rows, 8), generator=torch.Generator().manual_seed(3))
    lengths = torch.randint(3, 9, (rows, 1), generator=torch.Generator().manual_seed(4))
    mask = (torch.arange(8) < lengths).long()
    return {"input_ids": words, "attention_mask": mask, "labels": (words[:, 0] > 30).long()}


@pytest.mark.slow
def test_the_loss_falls_and_draws_differ(by_name):
    torch.manual_seed(0)
    methods = BayesianAttention(), AlignmentAttention("gan")
    model, records = Classifier(convert(by_name["deberta_v2"].classification(), *methods)), []
    SVIDriver(
        model,
        optimizer=OptimizerOptions(learning_rate=3e-3),
        batch_size=16,
        log_every=1,
        progress=False,
        cpu=True,
        callbacks=[lambda record, _: records.append(record)],
    ).fit(data(), steps=60)
    losses = [record["log_likelihood"] for record in records if "log_likelihood" in record]
    assert sum(losses[-8:]) > 0.7 * sum(losses[:8])  # negative: closer to 0
    posterior = posterior_predict(model, data(8), num_samples=3, attention="all")
    assert posterior.logits.isfinite().all()
    assert not torch.equal(posterior.logits[0], posterior.logits[1])
    real = data(8)["attention_mask"].bool()
    for weights in posterior.attention.values():
        assert not weights[..., real.logical_not()[:, None, None].expand(weights.shape[1:])].any()
