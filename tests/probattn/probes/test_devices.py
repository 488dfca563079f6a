"""Every measure of tensors gives the same on a GPU, and stays there."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from probattn import probes

CORPUS = probes.ParallelCorpus.from_words([["a", "b"], ["c"]], [["x", "y"], ["x"]])


class Inputs(NamedTuple):
    u: Tensor  # [3, 4, 5]
    v: Tensor
    mask: Tensor
    words: Tensor  # [3, 4]

    @classmethod
    def on(cls, device):
        generator = torch.Generator().manual_seed(0)
        u, v = torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64)
        mask = torch.rand(3, 4, 5, generator=generator) < 0.8
        mask[:, :, :2] = True
        words = torch.randint(100, (3, 4), generator=generator)
        return cls(*(each.to(device) for each in (u, v, mask, words)))


def proxy_like(tensor):
    return probes.BagOfWordsProxy(3, 2, 4, generator=torch.Generator().manual_seed(0)).to(tensor)


MEASURES = {
    "agreement": lambda i: probes.agreement(i.u, i.v, mask=i.mask),
    "mean_agreement": lambda i: probes.mean_agreement(i.u, i.v, mask=i.mask),
    "random_agreement": lambda i: probes.random_agreement(i.mask.sum(-1)),
    "kendall_tau": lambda i: probes.kendall_tau(i.u, i.v, i.mask),
    "learned": lambda i: probes.attention_weights(i.u, i.mask),
    "uniform": lambda i: probes.attention_weights(i.u, i.mask, "uniform"),
    "lexical_probe": lambda i: probes.lexical_probe(
        lambda c, s: c * s, i.u, i.v, i.words % 5, i.mask[:, :, 3]
    ),
    "classifier_probe": lambda i: probes.classifier_probe(
        lambda h: h, i.u, i.words[:, 0] % 5, i.mask[:, :, 3]
    ),
    "gradient_saliency": lambda i: probes.gradient_saliency(lambda e: (e * i.v).square().sum(-1), i.u),
    "optimal_attention": lambda i: (
        probes.optimal_attention(i.u, i.words[:, 0] % 5, mask=i.mask[:, :, 3]).loss
    ),
    "ibm_model1": lambda i: probes.IBMModel1.fit(CORPUS, null=True).attention(i.words % 3, i.words % 2),
    "proxy": lambda i: proxy_like(i.u).probe(i.words % 3, i.words % 2),
    "gradient_flow": lambda i: probes.gradient_flow(proxy_like(i.u), CORPUS).probabilities,
}


@pytest.mark.cuda
@pytest.mark.parametrize("name", MEASURES)
def test_it_is_the_same_on_a_gpu(name):
    expected = MEASURES[name](Inputs.on("cpu"))
    found = MEASURES[name](Inputs.on("cuda"))
    assert found.device.type == "cuda"
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-6, equal_nan=True)
    assert not expected.isnan().all()
