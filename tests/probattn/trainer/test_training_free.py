"""Latent attention for a trained network: the largest spread that validation data allow."""

import copy

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import probattn
from probattn.models.hosts.hosting import conversion
from probattn.trainer.training_free import BOUNDS, HALVINGS


@pytest.fixture
def net():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=20, num_labels=3, initializer_range=0.5, **sizes)
    return BertForSequenceClassification(config).eval()


@pytest.fixture
def batches(net):
    """Inputs whose labels the network gives almost surely: spread costs likelihood."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(1, 20, (96, 9), generator=generator)
    with torch.no_grad():
        net.classifier.weight.mul_(8)
        labels = net(rows).logits.argmax(dim=-1)
    return [
        {"input_ids": part, "labels": target}
        for part, target in zip(rows.split(32), labels.split(32), strict=True)
    ]


def loss_of(net, batches, concentration):
    """The mean negative log-likelihood by draws of a copy with this concentration."""
    other = probattn.convert(copy.deepcopy(net), probattn.BayesianAttention.bam(concentration))
    terms = []
    for number, batch in enumerate(batches):
        drawn = probattn.posterior_predict(other, {"input_ids": batch["input_ids"]}, 10, seed=(0, number))
        terms.append(-drawn.mean_probabilities.log().gather(1, batch["labels"][:, None])[:, 0])
    return torch.cat(terms).mean().item()


def test_it_takes_the_least_concentration_within_the_tolerance(net, batches):
    plain = copy.deepcopy(net)
    choice = probattn.training_free(net, batches, tolerance=0.02)
    assert choice.within_tolerance and conversion(net).method.concentration == choice.concentration
    assert BOUNDS[0] < choice.concentration < BOUNDS[1]
    trials = dict(choice.trials)
    assert trials[choice.concentration] <= choice.loss + 0.02
    smaller = [loss for k, loss in choice.trials if k < choice.concentration]
    assert smaller and min(smaller) > choice.loss + 0.02 and len(trials) == 2 + HALVINGS
    for k in (choice.concentration, BOUNDS[0]):
        assert trials[k] == pytest.approx(loss_of(plain, batches, k), rel=1e-4)
    logits = [plain(batch["input_ids"]).logits for batch in batches]
    labels = torch.cat([batch["labels"] for batch in batches])
    expected = torch.nn.functional.cross_entropy(torch.cat(logits), labels).item()
    assert choice.loss == pytest.approx(expected, rel=1e-5)
    assert str(choice).startswith(f"concentration {choice.concentration:.3g}: validation loss")
    assert probattn.posterior_moments(net, {"input_ids": batches[0]["input_ids"]}).std.max() > 0


def test_all_or_nothing(net, batches):
    assert probattn.training_free(copy.deepcopy(net), batches, tolerance=100.0).concentration == BOUNDS[0]
    none = probattn.training_free(net, batches, tolerance=1e-9)
    assert (
        not none.within_tolerance and none.concentration == pytest.approx(BOUNDS[1]) and len(none.trials) == 1
    )


def test_what_it_refuses(net, batches):
    with pytest.raises(ValueError, match="expected batches that can be gone through again"):
        probattn.training_free(net, iter(batches))
    with pytest.raises(ValueError, match="expected batches with labels, got input_ids"):
        probattn.training_free(net, [{"input_ids": batches[0]["input_ids"]}])
    with pytest.raises(ValueError, match="expected labels in the validation batches, got none"):
        probattn.training_free(net, [])
    with pytest.raises(
        TypeError, match="training_free: expected a batch, a mapping of tensors by name, got Tensor"
    ):
        probattn.training_free(net, [batches[0]["input_ids"]])
    wrong = {**batches[0], "labels": batches[0]["labels"] + 7}
    with pytest.raises(
        ValueError, match=r"expected labels in 0\.\.\d, or -100 where there is none, got 7\.\."
    ):
        probattn.training_free(net.train(), [wrong])
    assert net.training and conversion(net) is None
    fails = iter([True, False])

    class Once(list):
        def __iter__(self):
            return super().__iter__() if next(fails) else iter([wrong])

    with pytest.raises(ValueError, match="expected labels in"):
        probattn.training_free(net, Once(batches))
    assert net.training and conversion(net) is None
    with pytest.raises(ValueError, match="tolerance"):
        probattn.training_free(net, batches, tolerance=-1.0)
    net.config.problem_type = "multi_label_classification"
    with pytest.raises(
        ValueError, match="expected a classifier of one class a row, got MultiLabelClassifier"
    ):
        probattn.training_free(net, batches)
    net.config.problem_type = None
    with pytest.raises(ValueError, match=r"got a converted one; revert\(net\) first"):
        probattn.training_free(probattn.convert(net, probattn.BayesianAttention.bam()), batches)
