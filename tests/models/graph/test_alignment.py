"""Alignment on graphs: what factor there is, what moves it, and that at weight 0 nothing changes."""

from dataclasses import replace

import pytest
import torch

from probattn import AlignmentAttention, BayesianAttention
from probattn.inference.elbo import AttentionELBO
from probattn.inference.guide import AttentionGuide

pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")

from probattn.models.graph import GATOptions, GraphAttentionNetwork, NodeClassifier

SMALL = GATOptions(heads=2, features=3, dropout=0.0, attention_dropout=0.0)
METHODS = ("gan", "ct", "ot", "mmd")


def build(graph, alignment=None, options=SMALL, **keywords):
    torch.manual_seed(0)
    net = GraphAttentionNetwork(graph.num_features, 2, options, alignment=alignment, **keywords)
    return NodeClassifier(net, graph)


def terms_of(model, graph, role="train"):
    return AttentionELBO()(model, AttentionGuide(model))(graph.rows(role))


@pytest.mark.parametrize("method", METHODS)
def test_the_factor_is_the_divergence_of_queries_and_keys_over_nodes(graph, method):
    alignment = AlignmentAttention(method, weight=0.3, bandwidth=1.0)
    model = build(graph, alignment)
    terms = terms_of(model, graph)
    expected = 0.0
    inputs = [found.inputs for found in model.net.passes(model.features, model.edges)]
    for layer, nodes in zip((model.net.hidden, model.net.output), inputs, strict=True):
        _, query, key = layer.features(nodes)
        for head in range(layer.heads):  # never across heads
            one = [each[None, None, :, head] for each in (query, key)]
            expected += layer.align.divergence(*one).sum()
    torch.testing.assert_close(-terms.factors, 0.3 * expected.detach())
    torch.testing.assert_close(terms.loss, -terms.log_likelihood - terms.factors)


@pytest.mark.parametrize("method", METHODS)
def test_it_trains_the_attention_vectors_and_the_features(graph, method):
    model = build(graph, AlignmentAttention(method, weight=0.3))
    plain = build(graph)
    plain.load_state_dict(model.state_dict(), strict=False)
    for each in (model, plain):
        terms_of(each, graph).loss.backward()
    for name in ("weight", "attend_source", "attend_target"):
        ours, theirs = getattr(model.net.hidden, name).grad, getattr(plain.net.hidden, name).grad
        assert bool(ours.isfinite().all())
        assert not torch.allclose(ours, theirs)


@pytest.mark.parametrize("method", METHODS)
def test_at_weight_0_the_network_trains_as_without(graph, method):
    options = GATOptions(heads=2, features=3)
    model, plain = build(graph, AlignmentAttention(method, weight=0.0), options), build(graph, None, options)
    for each in (model, plain):
        torch.manual_seed(7)  # dropout
        terms_of(each, graph).loss.backward()
    for name, parameter in plain.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)
        assert torch.equal(model.get_parameter(name).grad, parameter.grad)


def test_the_weight_holds_whatever_the_number_of_labels(graph):
    model = build(graph, AlignmentAttention("ct", weight=0.3)).eval()
    few, many = ({name: value[:count] for name, value in graph.rows("test").items()} for count in (1, 5))
    factors = [AttentionELBO()(model, AttentionGuide(model))(batch).factors for batch in (few, many)]
    torch.testing.assert_close(factors[0], factors[1])


def test_equal_vectors_make_queries_and_keys_equal(graph):
    model = build(graph, AlignmentAttention("mmd"))
    with torch.no_grad():
        for layer in (model.net.hidden, model.net.output):
            layer.attend_source.copy_(layer.attend_target)
    assert terms_of(model, graph).factors.item() == pytest.approx(0.0, abs=1e-6)


def test_many_nodes_are_represented_by_some(graph):
    model = build(graph, AlignmentAttention("ct", max_tokens=6))
    first, second = (terms_of(model, graph).factors for _ in range(2))
    assert first != second  # drawn anew in each training step
    state = torch.get_rng_state()
    terms_of(model, graph)
    assert torch.equal(torch.get_rng_state(), state)
    assert build(graph, AlignmentAttention("ct")).net.hidden.align.method.max_tokens == 512


@pytest.mark.parametrize(
    ("layers", "own", "aligned"), [("last", None, {1}), ("all", "first", {0}), ("first", [1], {1})]
)
def test_chosen_layers_are_aligned(graph, layers, own, aligned):
    net = build(graph, AlignmentAttention("mmd", layers=own), layers=layers).net
    assert {
        number for number, layer in enumerate((net.hidden, net.output)) if layer.align is not None
    } == aligned


def test_the_mean_is_over_heads_and_layers(graph):
    net = build(graph, AlignmentAttention("mmd", weight=1.0, reduction="mean")).net
    assert (net.hidden.align.weight, net.output.align.weight) == (1 / 4, 1 / 2)


def test_latent_and_aligned_at_once(graph):
    model = build(graph, AlignmentAttention("ct"), attention=BayesianAttention())
    terms = terms_of(model, graph)
    assert terms.kl > 0 and terms.factors != 0
    terms.loss.backward()
    missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not missing


def test_undriven_training_is_refused_and_answers_are_those_without(graph):
    model, plain = build(graph, AlignmentAttention("gan")), build(graph)
    batch = {"nodes": torch.arange(13)}
    with pytest.raises(RuntimeError, match=r"site 'hidden\.attention\.alignment': training without a driver"):
        model(batch)
    torch.testing.assert_close(model.eval()(batch), plain.eval()(batch))


def test_a_graph_of_one_node_is_aligned_with_itself(graph):
    none = torch.zeros(1, dtype=torch.bool)
    alone = replace(
        graph,
        features=graph.features[:1],
        labels=graph.labels[:1],
        edge_index=torch.zeros(2, 1, dtype=torch.int64),
        train_mask=~none,
        validation_mask=none,
        test_mask=none,
    )
    for method in METHODS:
        assert bool(terms_of(build(alone, AlignmentAttention(method)), alone).loss.isfinite())
