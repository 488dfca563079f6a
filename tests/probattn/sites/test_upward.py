"""The upward path's maps beside loops written out."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import probattn
from probattn.inference import AttentionELBO, AttentionGuide
from probattn.sites.bayesian import BayesianAttention
from probattn.sites.mixes import HeadMix, PositionMix
from probattn.sites.site import AttentionSite, SiteSpec


def test_windows_beside_the_heads_are_mixed_one_by_one():
    torch.manual_seed(0)
    mix, state = HeadMix(2), torch.randn(3, 8, 4, 4)  # four windows of two heads
    expected = torch.einsum("gh,bwhts->bwgts", mix.weight, state.view(3, 4, 2, 4, 4)) + mix.bias.view(2, 1, 1)
    torch.testing.assert_close(mix(state), expected.reshape(3, 8, 4, 4))


def test_positions_are_counted_over_real_queries():
    torch.manual_seed(0)
    mix, state = PositionMix(6), torch.randn(2, 3, 5, 4)
    real = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 1, 0, 0]])
    mixed = mix(state, real[:, None, :, None].float())
    for row in range(2):
        places = real[row].nonzero().flatten()
        count = len(places)
        for number, query in enumerate(places):
            kept = state[row][:, places]  # [H, T', S]
            expected = torch.einsum("t,hts->hs", mix.weight[number, :count], kept) + mix.bias[number]
            torch.testing.assert_close(mixed[row, :, query], expected)


def test_all_queries_real_is_no_mask():
    mix, state = PositionMix(6), torch.randn(2, 3, 5, 4)
    torch.testing.assert_close(mix(state, torch.ones(2, 1, 5, 1)), mix(state))


@pytest.mark.parametrize(("windowed", "heads"), [(False, 4), (True, 3), (False, 1)])
def test_a_wrong_number_of_heads_is_refused(windowed, heads):
    site = AttentionSite(BayesianAttention(), SiteSpec(2, 4, windowed=windowed)).eval()
    with pytest.raises(ValueError, match=f"site 's': expected 2 query heads, got {heads}"):
        site("s", *[torch.randn(1, heads, 3, 4)] * 3)


def test_windows_need_no_window():
    site = AttentionSite(BayesianAttention(sigma=0.5), SiteSpec(2, 4, windowed=True)).eval()
    tensors = [torch.randn(3, 8, 3, 4) for _ in range(3)]
    apart = [tensor.view(12, 2, 3, 4) for tensor in tensors]
    torch.testing.assert_close(site("s", *tensors)[0].view(12, 2, 3, 4), site("s", *apart)[0])


def test_an_objective_with_a_learned_scale_can_be_differentiated_twice():
    torch.manual_seed(0)
    attend = probattn.MultiheadAttention(4, 2, batch_first=True, method=BayesianAttention(sigma=0.3))
    x = torch.randn(2, 3, 4)

    def model():
        with pyro.plate("data", 2):
            pyro.sample("y", dist.Normal(attend(x, x, x)[0], 1.0).to_event(2), obs=x)

    weights = list(attend.parameters())
    loss = AttentionELBO()(model, AttentionGuide(model))().loss
    first = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
    sum(each.square().sum() for each in first if each is not None).backward()
    upward = [each for name, each in attend.named_parameters() if name.endswith("upward.hidden.weight")]
    assert upward and all(each.grad.abs().sum() > 0 for each in upward)
