"""What every registered method promises; a new one is tested as soon as it is registered."""

import copy
import pickle
from dataclasses import fields, replace

import pytest
import torch
from pyro import poutine

from probattn.models import convert, inspect, load, revert, save
from probattn.models.hosts.convert import conversion
from probattn.options import descriptions, hints
from probattn.recipes import read_recipe
from probattn.sites import METHODS
from probattn.tasks.sections.derived import method_section

KINDS = pytest.mark.parametrize("kind", list(METHODS), ids=lambda kind: kind.kind)
RECIPE = "data: {train: imdb}\nattention: {method: deterministic}\n"


def options(kind, family, **changes):
    """The defaults, over the projections that a family has, and layers."""
    if "projections" in hints(kind):
        changes["projections"] = family.projections
    if kind().layers is not None:
        changes.setdefault("layers", "last")
    return kind(**changes)


def state(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def density(families, net, inputs):
    """Logits, log density and the names of the sites, from the same random state."""
    torch.manual_seed(1)
    with torch.no_grad():
        trace = poutine.trace(families.program(net)).get_trace(inputs)
        return trace.nodes["_RETURN"]["value"], trace.log_prob_sum(), list(trace.nodes)


@KINDS
def test_it_is_put_on_every_family_stored_copied_and_taken_off(families, family, kind, tmp_path):
    if kind.kind in ("repulsive", "disagreement") and not family.projections:
        pytest.skip(f"{family.name} has one head, without projections of its own")
    if kind.kind == "particles" and family.name == "clip":
        pytest.skip("clip compares the rows of a batch with one another, which particles of layers refuse")
    torch.manual_seed(0)
    net, inputs, method = family.network(), family.inputs(), options(kind, family)
    logits, before, keys = families.forward(net, inputs), state(net), net.config._attn_implementation
    hooks = [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in net.modules()]
    convert(net, method)
    record = conversion(net)
    assert (record.of(kind), record.methods) == (method, (method,))
    assert [call.name for call in record.plan.calls_of(kind)] == [call.name for call in inspect(net)]
    exactly = (
        {} if record.calls else {"atol": 0, "rtol": 0}
    )  # latent weights are computed by another function
    if kind.kind != "particles":  # whose answer is the mean over heads that are new
        torch.testing.assert_close(
            families.forward(net, inputs), logits, **(exactly or {"atol": 1e-5, "rtol": 1e-5})
        )
    expected, weights = density(families, net, inputs), state(net)
    again = load(save(net, tmp_path / "net"), attn_implementation="eager")
    assert conversion(again).methods == (method,) and same(state(again), weights)
    copies = [copy.deepcopy(net)]
    if family.name not in {
        "bart",
        "marian",
    }:  # their hooks, which the test's own networks carry, are not saved
        copies += [again, pickle.loads(pickle.dumps(net))]
    for other in copies:
        found = density(families, other, inputs)
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
        assert found[2] == expected[2]
    assert revert(net) is net and conversion(net) is None
    assert same(state(net), before) and net.config._attn_implementation == keys
    assert torch.equal(families.forward(net, inputs), logits)
    assert hooks == [len(each._forward_hooks) + len(each._forward_pre_hooks) for each in net.modules()]
    assert not any("probattn" in name for module in net.modules() for name in vars(module))


@KINDS
def test_two_of_a_kind_and_empty_choices_are_refused_without_a_trace(bert, kind):
    net = bert.network()
    before = list(net.state_dict())
    with pytest.raises(TypeError, match=f"^convert: expected one {kind.__name__}, got 2$"):
        convert(net, kind(), kind())
    with pytest.raises(
        TypeError, match=rf"^convert: expected one of .*{kind.__name__}.*, got type; give an object"
    ):
        convert(net, kind)
    apart = kind().layers is not None  # of its own, which come before those of convert
    for layers, words in (("cross", "no attention call with layers='cross'"), ([7], r"numbers from -2 to 1")):
        method, elsewhere = (kind(layers=layers), {}) if apart else (kind(), {"layers": layers})
        with pytest.raises(ValueError, match=words):
            convert(net, method, **elsewhere)
    assert list(net.state_dict()) == before and conversion(net) is None


UNDRIVEN = {
    "alignment": "alignment",
    "repulsive": "repulsion",
    "disagreement": "disagreement",
    "particles": "repulsion",
}
"""By kind: what training without a driver would leave out."""


@KINDS
def test_training_undriven_is_refused(bert, kind):
    method = (
        kind("svgd") if kind.kind == "particles" else kind()
    )  # particles that repel nothing need no driver
    net = convert(bert.network(), method).train()
    words = UNDRIVEN.get(kind.kind)
    with pytest.raises(RuntimeError, match=f"would leave the {words} out" if words else "without a driver"):
        net(**bert.inputs())
    with torch.no_grad():
        net(**bert.inputs())


@KINDS
def test_a_method_that_names_its_layers_is_asked_first(bert, kind):
    if "layers" not in hints(kind):
        assert kind().layers is kind().attention is None
        return
    attention = {"attention": "self"} if "attention" in hints(kind) else {}
    net = convert(bert.network(), kind(layers=[-1], **attention), layers="first", attention="all")
    assert [call.layer for call in conversion(net).plan.calls_of(kind)] == [1]


@pytest.mark.parametrize(
    "kind", [kind for kind in METHODS if "weight" in hints(kind)], ids=lambda kind: kind.kind
)
def test_at_weight_0_the_network_learns_as_without_it(families, bert, kind):
    inputs = bert.inputs()

    def gradients(net):
        torch.manual_seed(1)
        loss = -poutine.trace(families.program(net.train())).get_trace(inputs).log_prob_sum()
        loss.backward()
        return {name: p.grad for name, p in net.named_parameters() if "probattn" not in name}

    expected = gradients(bert.network())
    found = gradients(convert(bert.network(), options(kind, bert, weight=0.0)))
    for name, gradient in expected.items():
        assert found[name] is gradient is None or torch.equal(found[name], gradient), name


@KINDS
def test_words_name_what_differs_from_the_defaults(kind):
    plain = kind()
    assert kind().words().startswith(plain.summary()) and plain.words().count("\n") == 0
    if not kind.summarised:
        assert plain.words().endswith(", default options")
    if "layers" in hints(kind) and "layers" not in kind.summarised:
        assert kind(layers="all", attention="all").words() == plain.words()
        assert kind(layers=[0, -1]).words() == f"{plain.words()}, layers 0 and -1"
    if "seed" in hints(kind):
        assert kind(seed=7).words() == plain.words()


@KINDS
def test_every_option_is_described_and_has_a_default(kind):
    assert set(hints(kind)) <= set(descriptions(kind))
    made = kind()
    assert made == replace(made) and hash(made) == hash(kind())
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
    for option in fields(made):
        with pytest.raises(ValueError, match=rf"^{kind.__name__}\.{option.name}: expected .*, got .*<object"):
            kind(**{option.name: object()})


@KINDS
def test_its_section_of_a_recipe_says_the_same(kind):
    section = method_section(kind)
    names = {option.name: section.names[option.name] for option in fields(kind()) if option.name != "seed"}
    written, made = section().model_dump(), section().build()
    for option, key in names.items():
        value = getattr(made, option)
        assert written[key] == (list(value) if isinstance(value, tuple) else value), key
        assert value == getattr(kind(), option) or (option in {"layers", "attention"} and value == "all")
    assert all(field.description for field in section.model_fields.values())
    assert section(**written) == section()


@KINDS
def test_a_recipe_asks_for_it_and_its_baseline_does_not(kind):
    asked = f"{RECIPE}{kind.section}: {{}}\n" if kind.section != "attention" else "data: {train: imdb}\n"
    recipe = read_recipe(asked + "training: {seed: 5}\n")
    assert recipe.of(kind) is not None and recipe.methods() == (recipe.of(kind),)
    assert recipe.of(kind).words() in recipe.method_words()
    if "seed" in hints(kind):
        assert recipe.of(kind).seed == 5
    assert recipe.baseline().methods() == ()
    assert read_recipe(recipe.dump()) == recipe
    assert METHODS.key(recipe.methods()) == kind.key


def test_methods_have_names_of_their_own_and_an_order():
    for name in ("kind", "section", "key"):
        assert len({getattr(kind, name) for kind in METHODS}) == len(list(METHODS))
    made = [kind() for kind in METHODS]
    assert METHODS.key(reversed(made)) == made[0].key and METHODS.key([]) is None
    with pytest.raises(KeyError, match="no attention method of kind 'magic' is registered, only 'bayesian'"):
        METHODS["magic"]
