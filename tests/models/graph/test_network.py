"""The network and the program on it: what is announced, what is refused, what an undriven call answers."""

import copy
import pickle

import pyro
import pytest
import torch
from pyro.infer import SVI, TraceMeanField_ELBO
from torch.nn import functional as F

from probattn import BayesianAttention
from probattn.inference.elbo import AttentionELBO
from probattn.inference.guide import AttentionGuide
from probattn.inference.predictive import posterior_predict

pytest.importorskip("torch_geometric", reason="needs torch-geometric (the extra 'graph')")

from probattn.models.graph import GATOptions, GraphAttentionNetwork, NodeClassifier
from probattn.models.graph.network import pick_layers

SMALL = GATOptions(heads=2, features=3, dropout=0.0, attention_dropout=0.0)


def build(graph, method=None, options=SMALL, **keywords):
    torch.manual_seed(0)
    net = GraphAttentionNetwork(graph.num_features, graph.num_classes, options, attention=method, **keywords)
    return NodeClassifier(net, graph)


def test_layers_follow_one_another_with_elu(graph):
    model = build(graph).eval()
    net, edges = model.net, model.edges
    hidden, _ = net.hidden("h", graph.features, edges)
    expected, _ = net.output("o", F.elu(hidden), edges)
    torch.testing.assert_close(net(graph.features, edges), expected)
    torch.testing.assert_close(model({"nodes": torch.tensor([3, 12])}), expected[[3, 12]])


def test_the_loss_is_the_mean_cross_entropy_of_the_labelled_nodes(graph):
    model = build(graph)
    batch = graph.rows("train")
    terms = AttentionELBO()(model, AttentionGuide(model))(batch)
    expected = F.cross_entropy(model(batch), batch["labels"])
    torch.testing.assert_close(terms.loss, expected)
    assert terms.kl == 0


def test_half_the_labels_at_a_time_are_the_whole_on_average(graph):
    model = build(graph, BayesianAttention(kl_reduction="sum"))
    batch = graph.rows("train")
    count = len(batch["nodes"])
    model.num_data = count
    module = AttentionELBO()(model, AttentionGuide(model))

    def terms(rows):
        torch.manual_seed(0)  # the same draw of the weights
        return module({name: value[rows] for name, value in batch.items()})

    whole, halves = terms(slice(None)), [terms(slice(0, count // 2)), terms(slice(count // 2, None))]
    torch.testing.assert_close(whole.loss, (halves[0].loss + halves[1].loss) / 2)
    torch.testing.assert_close(whole.kl, whole.kl_nats)


def test_more_labels_than_there_are_to_learn_from_are_a_mean_too(graph):
    model = build(graph)
    model.num_data = 2
    batch = graph.rows("validation")
    terms = AttentionELBO()(model.eval(), AttentionGuide(model))(batch)
    torch.testing.assert_close(-terms.log_likelihood, F.cross_entropy(model(batch), batch["labels"]))


def test_sites_are_one_datum_outside_the_plate(graph):
    model = build(graph, BayesianAttention())
    guide = AttentionGuide(model)
    guide(graph.rows("train"))
    nodes = guide.get_traces()[0].nodes
    for name, heads in (("hidden.attention", 2), ("output.attention", 1)):
        assert nodes[name]["value"].shape == (1, heads, 1, graph.num_edges)
        assert not nodes[name]["cond_indep_stack"]
    assert [frame.size for frame in nodes["label"]["cond_indep_stack"]] == [int(graph.train_mask.sum())]


@pytest.mark.parametrize(
    ("layers", "sites"),
    [
        ("all", {"hidden", "output"}),
        ("first", {"hidden"}),
        ("last", {"output"}),
        ([-1], {"output"}),
        ([0, 1], {"hidden", "output"}),
    ],
)
def test_chosen_layers_are_latent(graph, layers, sites):
    model = build(graph, BayesianAttention(), layers=layers)
    guide = AttentionGuide(model)
    assert {name.split(".")[0] for name in guide(graph.rows("train")) if "attention" in name} == sites


def test_heads_of_one_number_share_an_upward_chain(graph):
    same = build(graph, BayesianAttention(), GATOptions(heads=2, features=3, output_heads=2))
    assert same.net.hidden.latent.chain is same.net.output.latent.chain
    assert len(same.net.chain) == 2
    other = build(graph, BayesianAttention())
    assert other.net.hidden.latent.chain is not other.net.output.latent.chain
    for model in (same, other):
        terms = AttentionELBO()(model, AttentionGuide(model))(graph.rows("train"))
        assert bool(terms.loss.isfinite())


def test_latent_and_deterministic_networks_begin_alike(graph):
    latent, plain = build(graph, BayesianAttention()), build(graph)
    assert all(torch.equal(latent.get_parameter(name), value) for name, value in plain.named_parameters())


def test_undriven_the_expectation_answers_and_training_is_refused(graph):
    latent, plain = build(graph, BayesianAttention()), build(graph)
    batch = {"nodes": torch.arange(13)}
    torch.testing.assert_close(latent.eval()(batch), plain.eval()(batch))  # sigma 0: E[S] = exp(scores)
    with pytest.raises(RuntimeError, match=r"site 'hidden\.attention': training without a driver"):
        latent.train()(batch)


def test_attention_weights_are_those_of_an_evaluation(graph):
    model = build(graph, options=GATOptions(heads=2, features=3))
    weights = model.net.attention(model.features, model.edges)
    assert {name: value.shape[1] for name, value in weights.items()} == {
        "hidden.attention": 2,
        "output.attention": 1,
    }
    for value in weights.values():
        torch.testing.assert_close(model.edges.sum(value.t()), torch.ones(value.shape[1], 13))
    assert model.training


def test_draws_predict_and_show_their_weights(graph):
    model = build(graph, BayesianAttention())
    batch = {"nodes": torch.tensor([1, 12])}
    drawn = posterior_predict(model, batch, 4, chunk_size=1, attention="all")
    assert drawn.logits.shape == (4, 2, 2)
    weights = drawn.attention["hidden.attention"]
    assert weights.shape == (4, 1, 2, 1, graph.num_edges)
    torch.testing.assert_close(model.edges.sum(weights), torch.ones(4, 1, 2, 1, 13))
    again = posterior_predict(model, batch, 2, chunk_size=1)
    torch.testing.assert_close(again.logits, drawn.logits[:2])


def test_pyro_s_own_svi_trains_every_parameter(graph):
    model = build(graph, BayesianAttention(sigma=0.1))
    before = {name: value.clone() for name, value in model.named_parameters()}
    pyro.clear_param_store()
    svi = SVI(model, AttentionGuide(model), pyro.optim.Adam({"lr": 0.1}), TraceMeanField_ELBO())
    svi.step(graph.rows("train"))
    still = [name for name, value in model.named_parameters() if torch.equal(value, before[name])]
    assert not still


@pytest.mark.parametrize("method", [None, BayesianAttention()], ids=["deterministic", "latent"])
def test_copies_and_pickles_answer_alike(graph, method):
    model = build(graph, method).eval()
    batch = {"nodes": torch.arange(13)}
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(batch), model(batch))


def test_the_graph_is_no_part_of_the_weights(graph):
    assert set(build(graph).state_dict()) == {f"net.{name}" for name in build(graph).net.state_dict()}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"labels": torch.tensor([0])}, r"node numbers \[B\] under 'nodes', got keys \['labels'\]"),
        ({"nodes": torch.tensor([], dtype=torch.int64)}, r"got torch.int64 \[0\]"),
        ({"nodes": torch.tensor([1.0])}, r"got torch.float32 \[1\]"),
        ({"nodes": torch.tensor([13])}, r"expected nodes 0..12, got 13..13"),
    ],
)
def test_batches_that_name_no_node_are_refused(graph, batch, message):
    with pytest.raises(ValueError, match=message):
        build(graph).eval()(batch)


def test_labels_that_are_no_class_are_refused(graph):
    model = build(graph)
    with pytest.raises(ValueError, match=r"expected labels in 0..1, got 2..2"):
        AttentionGuide(model)({"nodes": torch.tensor([0]), "labels": torch.tensor([2])})


def test_features_of_the_wrong_width_are_refused(graph):
    with pytest.raises(ValueError, match="takes features of width 7, those of 'two cliques' have 4"):
        NodeClassifier(GraphAttentionNetwork(7, 2), graph)


@pytest.mark.parametrize("layers", ["middle", [2], [True], [0, -3]])
def test_layers_that_do_not_exist_are_refused(layers):
    with pytest.raises(ValueError, match="layers: expected"):
        pick_layers(layers)


@pytest.mark.parametrize(
    ("option", "value"), [("heads", 0), ("features", 0), ("dropout", 1.0), ("attention_dropout", -1)]
)
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(ValueError, match=f"GATOptions.{option}"):
        GATOptions(**{option: value})
