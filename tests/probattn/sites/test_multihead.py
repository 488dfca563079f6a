"""probattn.MultiheadAttention against torch.nn.MultiheadAttention."""

import copy
import itertools
import pickle

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, TraceMeanField_ELBO
from pyro.nn import PyroModule
from torch import nn

import probattn
from probattn import BayesianAttention, MultiheadAttention
from probattn.inference.elbo import AttentionELBO
from probattn.inference.guide import AttentionGuide
from probattn.sites.layout import PAIRS

B, T, S, E, H = 3, 4, 6, 8, 2
SMALL = torch.zeros(2, 2, dtype=torch.bool)


def pair(**options):
    theirs = nn.MultiheadAttention(E, H, **options).eval()
    ours = MultiheadAttention(E, H, **options).eval()
    for name, parameter in theirs.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)  # torch starts biases at zero, which would hide mistakes
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def masks(kind):
    padding = torch.zeros(B, S, dtype=torch.bool)
    padding[0, 4:] = True
    causal = torch.ones(T, S, dtype=torch.bool).triu(3)
    single = torch.rand(B * H, T, S) < 0.3
    single[..., 0] = False
    floating = torch.randn(T, S).masked_fill(causal, -torch.inf)
    return {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "float padding": {"key_padding_mask": torch.randn(B, S)},
        "causal": {"attn_mask": causal},
        "hint": {"attn_mask": causal, "is_causal": True},
        "single": {"attn_mask": single, "key_padding_mask": padding},
        "float": {"attn_mask": floating},
        "both float": {
            "attn_mask": floating,
            "key_padding_mask": torch.zeros(B, S).masked_fill(padding, -torch.inf),
        },
    }[kind]


KINDS = ["none", "padding", "float padding", "causal", "hint", "single", "float", "both float"]
OPTIONS = [
    {},
    {"batch_first": True},
    {"bias": False},
    {"add_bias_kv": True, "batch_first": True},
    {"add_zero_attn": True},
    {"kdim": 5, "vdim": 7, "batch_first": True},
    {"add_bias_kv": True, "add_zero_attn": True},
]


@pytest.mark.parametrize(("options", "kind"), list(itertools.product(OPTIONS, KINDS)))
@pytest.mark.parametrize("average", [True, False])
def test_equals_torch(options, kind, average):
    theirs, ours = pair(**options)
    query = torch.randn(B, T, E)
    key = torch.randn(B, S, options.get("kdim", E))
    value = torch.randn(B, S, options.get("vdim", E))
    if not options.get("batch_first"):
        query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
    arguments = masks(kind)
    want = theirs(query, key, value, average_attn_weights=average, **arguments)
    got = ours(query, key, value, average_attn_weights=average, **arguments)
    torch.testing.assert_close(got[0], want[0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(got[1], want[1], atol=1e-6, rtol=1e-6)
    assert ours(query, key, value, need_weights=False, **arguments)[1] is None


def test_unbatched_equals_torch():
    theirs, ours = pair()
    x = torch.randn(T, E)
    padding = torch.tensor([False, False, False, True])
    for got, want in zip(ours(x, x, x, padding), theirs(x, x, x, padding), strict=True):
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6)


def test_signature_is_torchs():
    import inspect

    for method in ("__init__", "forward"):
        theirs = inspect.signature(getattr(nn.MultiheadAttention, method)).parameters
        ours = inspect.signature(getattr(MultiheadAttention, method)).parameters
        assert list(ours)[: len(theirs)] == list(theirs)
        for name, parameter in theirs.items():
            assert ours[name].default == parameter.default, name


def test_state_dict_round_trip_and_strictness():
    _, ours = pair()
    again = MultiheadAttention(E, H)
    again.load_state_dict(ours.state_dict())
    for name, tensor in ours.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor)
    broken = {name: value for name, value in ours.state_dict().items() if "prior.output" not in name}
    with pytest.raises(RuntimeError, match=r"prior\.output"):
        again.load_state_dict(broken)


def test_fully_masked_query_gives_the_output_bias():
    _, ours = pair(batch_first=True)
    x = torch.randn(B, T, E)
    mask = torch.zeros(T, T, dtype=torch.bool)
    mask[1] = True
    output, weights = ours(x, x, x, attn_mask=mask)
    torch.testing.assert_close(output[:, 1], ours.out_proj.bias.expand(B, E))
    assert (weights[:, 1] == 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attn_mask": SMALL}, r"attn_mask of shape \[4, 6\] or \[6, 4, 6\], got \[2, 2\]"),
        ({"key_padding_mask": SMALL}, r"key_padding_mask of shape \[3, 6\], got \[2, 2\]"),
        ({"is_causal": True}, "expected attn_mask too"),
    ],
)
def test_bad_masks_are_named(arguments, message):
    _, ours = pair(batch_first=True)
    with pytest.raises(ValueError, match=message):
        ours(torch.randn(B, T, E), torch.randn(B, S, E), torch.randn(B, S, E), **arguments)


class Tagger(PyroModule):
    def __init__(self, method=None):
        super().__init__()
        self.attend = MultiheadAttention(
            E, H, batch_first=True, method=method or BayesianAttention(sigma=0.5)
        )
        self.head = nn.Linear(E, 2)

    def forward(self, x, y=None):
        with pyro.plate("data", len(x)):
            output, _ = self.attend(x, x, x)
            pyro.sample("label", dist.Categorical(logits=self.head(output.mean(1))), obs=y)


def test_plain_pyro_svi_moves_every_parameter():
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model = Tagger()
    before = copy.deepcopy(model.state_dict())
    x, y = torch.randn(16, T, E), torch.randint(2, (16,))
    svi = SVI(model, AttentionGuide(model), pyro.optim.Adam({"lr": 0.01}), TraceMeanField_ELBO())
    for _ in range(3):
        svi.step(x, y)
    moved = {name: not torch.equal(before[name], tensor) for name, tensor in model.state_dict().items()}
    assert all(moved.values()), moved
    assert set(poutine.trace(model).get_trace(x, y).nodes) >= {"attend", "label"}
    pyro.clear_param_store()


@pytest.mark.parametrize("linked", [True, False])
def test_layers_without_a_pyro_module_around_them_all_move(linked):
    pyro.clear_param_store()
    bam = BayesianAttention.bam()
    names = ("first", "second")
    layers = [MultiheadAttention(E, H, method=bam, site=None if linked else name) for name in names]
    stack = probattn.link(nn.ModuleDict(dict(zip(names, layers, strict=True)))) if linked else None
    assert stack is None or [layer.site_name for layer in stack.values()] == list(names)
    before = [copy.deepcopy(layer.state_dict()) for layer in layers]

    def model(x):
        with pyro.plate("data", B):
            for layer in layers:
                x = x + layer(x, x, x)[0]
            pyro.sample("y", dist.Normal(x.sum(dim=(0, 2)), 1.0), obs=torch.zeros(B))

    SVI(model, AttentionGuide(model), pyro.optim.Adam({"lr": 0.1}), TraceMeanField_ELBO()).step(
        torch.randn(T, B, E)
    )
    for layer, old in zip(layers, before, strict=True):
        same = [name for name, tensor in layer.state_dict().items() if torch.equal(tensor, old[name])]
        assert not same, (layer.site_name, same)
    pyro.clear_param_store()


def test_two_models_with_the_same_names_do_not_share_parameters():
    x, y = torch.randn(4, T, E), torch.randint(2, (4,))
    losses = []
    for seed in (0, 1):
        pyro.set_rng_seed(seed)
        model = Tagger()
        terms = AttentionELBO()(model, AttentionGuide(model))(x, y)
        terms.loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        losses.append(terms.loss.item())
    assert losses[0] != losses[1]
    assert not list(pyro.get_param_store())


def test_linked_layers_survive_an_interrupted_pass_deepcopy_and_pickle():
    pyro.clear_param_store()
    layers = nn.ModuleList([MultiheadAttention(E, H, batch_first=True) for _ in range(2)])

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers
            self.fail = True

        def forward(self, x):
            x, _ = self.layers[0](x, x, x)
            if self.fail:
                raise ArithmeticError
            return self.layers[1](x, x, x)[0]

    stack = probattn.link(Stack())
    x = torch.randn(B, T, E)
    with pytest.raises(ArithmeticError), AttentionGuide(stack):
        stack(x)
    chain = layers[0].latent.chain
    with pytest.raises(RuntimeError, match="before call 0"):
        chain.call(1, torch.zeros(1), PAIRS).outputs(1)
    stack.fail = False
    copied = copy.deepcopy(stack)
    chains = {id(layer.latent.chain) for layer in copied.layers}
    assert len(chains) == 1 and chains != {id(chain)}
    pyro.set_rng_seed(0)
    with AttentionGuide(stack):
        want = stack(x)
    pyro.set_rng_seed(0)
    with AttentionGuide(copied):
        torch.testing.assert_close(copied(x), want)
    layer = pickle.loads(pickle.dumps(layers[0]))
    assert len(layer.latent.chain) == 2


def test_link_refuses_a_network_without_layers():
    with pytest.raises(ValueError, match="found none"):
        probattn.link(nn.Linear(2, 2))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_whole_numbers_are_no_mask(dtype):
    """Torch refuses them too; added to scores they would mask nothing."""
    attend, x = probattn.MultiheadAttention(4, 2, batch_first=True), torch.randn(2, 3, 4)
    with pytest.raises(TypeError, match=r"expected key_padding_mask of bool, .* give attention_mask == 0"):
        attend(x, x, x, key_padding_mask=torch.ones(2, 3, dtype=dtype))
