"""Every supported family under the guide: gradients, draws, seeds, and one forward pass a step."""

import math

import pyro
import pytest
import torch
import transformers as hf
from pyro.infer import TraceMeanField_ELBO

from probattn import BayesianAttention
from probattn.inference import AttentionELBO, AttentionGuide, posterior_predict
from probattn.inference.predictive import posterior_expectation
from probattn.models import Classifier, convert, inspect


def converted(families, family, method=None):
    torch.manual_seed(0)
    return convert(family.network(), method or families.FULL)


def test_every_new_parameter_gets_a_gradient_from_one_forward_pass(families, family):
    net = converted(families, family).train()
    model = families.program(net, num_data=10)
    with families.counted(net) as calls:
        terms = AttentionELBO()(model, AttentionGuide(model))(family.inputs())
        terms.loss.backward()
    assert len(calls) == 1
    assert math.isfinite(terms.loss.item()) and terms.kl.item() > 0 and terms.kl_nats.item() > 0
    added = {name: p for name, p in net.named_parameters() if ".probattn." in name}
    assert (
        len(added) == len({call.module for call in inspect(net)}) * 9
    )  # f1 2, f2 1, f_h 2, f_k 2, f_lambda 2
    for name, parameter in added.items():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_sigma_0_adds_no_parameter_without_gradient(families, family):
    net = converted(families, family, BayesianAttention()).train()
    model = families.program(net)
    AttentionELBO()(model, AttentionGuide(model))(family.inputs()).loss.backward()
    added = {name: p for name, p in net.named_parameters() if ".probattn." in name}
    assert added and all(parameter.grad is not None for parameter in added.values())


def test_draws_differ_and_the_seed_repeats_them(families, family):
    model = families.program(converted(families, family))
    guide, inputs = AttentionGuide(model), family.inputs()

    def draw(seed):
        pyro.set_rng_seed(seed)
        with torch.no_grad(), guide:
            return model(inputs), {name: guide.trace.nodes[name]["value"] for name in sites}

    sites = [call.name for call in inspect(model.__closure__[0].cell_contents)]
    (first, drawn), (again, repeated), (other, differing) = draw(1), draw(1), draw(2)
    assert torch.equal(first, again) and not torch.equal(first, other)
    for name in sites:
        assert torch.equal(drawn[name], repeated[name]) and not torch.equal(drawn[name], differing[name])
        assert drawn[name].shape[0] == 2  # the data's batch, windows or not
        assert (drawn[name][0] != drawn[name][1]).any()


@pytest.mark.parametrize("full", [True, False])
def test_predictions_do_not_depend_on_chunks_or_on_the_number_of_draws(families, family, full):
    net = converted(families, family, None if full else BayesianAttention())

    def model(batch):
        with pyro.plate("data", len(next(iter(batch.values())))):
            out = families.logits(net(**batch))
            return out.flatten(1) if family.name != "clip" else out.diagonal()[:, None]

    model.link = "identity"  # of one number a row
    inputs = family.inputs()
    whole = posterior_predict(model, inputs, 4, seed=3, chunk_size=4, attention="all")
    single = posterior_predict(model, inputs, 3, seed=3, chunk_size=1, attention="all")
    torch.testing.assert_close(whole.logits[:3], single.logits, atol=1e-4, rtol=1e-4)
    assert (whole.logits[0] - whole.logits[1]).abs().max() > 1e-3
    streamed = posterior_predict(model, inputs, 4, seed=3, chunk_size=3, attention="all", streaming=True)
    assert list(whole.attention) == [call.name for call in inspect(net)]
    for name, draws in whole.attention.items():
        torch.testing.assert_close(draws[:3], single.attention[name], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(streamed.attention_mean[name], draws.mean(0), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(streamed.attention_std[name], draws.std(0), atol=1e-5, rtol=1e-4)
        total = draws.sum(-1)
        rows = (
            (total > 0).float() if family.two_texts else torch.ones_like(total)
        )  # words of the other text: 0
        torch.testing.assert_close(total, rows)


@pytest.mark.only("classifier")
def test_a_classifier_predicts(families, family):
    torch.manual_seed(0)
    net = family.classification()
    names = {"input_ids", "attention_mask", "pixel_values"}
    batch = {name: value for name, value in family.inputs(3).items() if name in names}
    eager = families.forward(net, batch)
    model = Classifier(convert(net, BayesianAttention()))
    assert (posterior_expectation(model, batch) - eager).abs().max() < 1e-5
    assert (families.forward(net, batch) - eager).abs().max() < 1e-5
    draws = posterior_predict(model, batch, 3, attention=[inspect(net)[-1].name])
    assert draws.logits.shape == (3, 3, 2)
    assert next(iter(draws.attention.values())).shape[:2] == (3, 3)


def test_terms_agree_with_plain_pyro(families, family):
    model = families.program(converted(families, family), num_data=6)
    inputs = family.inputs()
    pyro.set_rng_seed(0)
    ours = AttentionELBO()(model, AttentionGuide(model, kl_weight=0.3))(inputs).loss.item()
    pyro.set_rng_seed(0)
    theirs = TraceMeanField_ELBO().loss(model, AttentionGuide(model, kl_weight=0.3), inputs) / 6
    assert ours == pytest.approx(theirs, rel=1e-4)


def test_images_of_another_size_than_the_networks_own(families, by_name):
    """A stage that had one window per image when the network was converted has several of a larger one."""
    by_name["swin"].require()
    options = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4]}
    net = convert(hf.SwinModel(hf.SwinConfig(**options, window_size=4)), families.FULL).eval()
    assert [call.shape[0] for call in inspect(net)] == [4, 4, 1, 1]
    with torch.no_grad(), pyro.plate("data", 3), AttentionGuide(net) as guide:
        net(torch.randn(3, 3, 32, 32))
    shapes = [tuple(guide.trace.nodes[call.name]["value"].shape) for call in inspect(net)]
    assert shapes == [(3, 16 * 2, 16, 16)] * 2 + [(3, 4 * 4, 16, 16)] * 2
