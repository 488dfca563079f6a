"""What makes two runs the same."""

import pytest
import torch
from torch import nn

from probattn.inference.configuration import (
    kl_reduction_label,
    model_configuration,
    optimizer_configuration,
    options_configuration,
    refuse_unsupported,
    refuse_unwrapped,
)
from probattn.inference.options import KLSchedule
from probattn.inference.svi import SVIDriver
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.site import AttentionSite, SiteSpec


def network(method: BayesianAttention | None = None, width: int = 4) -> nn.Module:
    site = AttentionSite(method or BayesianAttention(), SiteSpec(2, 2))
    return nn.ModuleDict({"linear": nn.Linear(width, 4), "site": site})


def test_weights_do_not_matter_but_shapes_options_types_and_trainability_do() -> None:
    first = model_configuration(network())
    assert model_configuration(network()) == first
    frozen = network()
    frozen["linear"].requires_grad_(False)
    others = [
        network(width=3),
        network(BayesianAttention(kl_reduction="sum")),
        network().to(torch.float64),
        frozen,
    ]
    for other in others:
        assert model_configuration(other) != first


def test_the_optimisers_hyper_parameters_are_found() -> None:
    weight = nn.Parameter(torch.zeros(2, 2))
    found = optimizer_configuration(torch.optim.Adam([{"params": [weight], "name": "all", "lr": 0.1}]))
    assert found["class"] == "torch.optim.adam.Adam"
    assert found["groups"]["all"]["lr"] == 0.1
    assert found["groups"]["all"]["betas"] == (0.9, 0.999)
    assert found["groups"]["all"]["parameters"] == 1
    assert "params" not in found["groups"]["all"]


def test_options_are_compared_by_value_and_functions_by_name() -> None:
    assert options_configuration(KLSchedule("constant"))["kind"] == "constant"
    assert options_configuration(None) is None
    assert options_configuration(network) == f"{__name__}.network"
    assert options_configuration(nn.Linear(1, 1)) == "torch.nn.modules.linear.Linear"


def test_the_reduction_is_labelled() -> None:
    assert kl_reduction_label(network()) == "mean"
    both = nn.ModuleList([network(), network(BayesianAttention(kl_reduction="keys"))])
    assert kl_reduction_label(both) == "keys+mean"
    assert kl_reduction_label(nn.Linear(1, 1)) == "none"


def test_threads_over_devices_are_refused() -> None:
    model = nn.ModuleDict({"net": nn.DataParallel(network())})
    with pytest.raises(ValueError, match=r"net is a torch.nn.DataParallel.*accelerate launch"):
        refuse_unsupported(model)


def test_networks_that_take_the_parts_of_a_batch_are_refused() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 4, "vocab_size": 8}
    net = BertForSequenceClassification(BertConfig(num_hidden_layers=1, **sizes))
    with pytest.raises(TypeError, match=r"got BertForSequenceClassification, .*wrap it first: .*Classifier"):
        SVIDriver(net, cpu=True)
    refuse_unwrapped(nn.ModuleDict({"net": net}))
