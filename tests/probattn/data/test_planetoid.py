"""Planetoid folders: small ones written here, with every kind of damage, and the real ones where they are."""

import os
import pickle
import re
from collections import defaultdict

import numpy as np
import pytest
import torch
from scipy import sparse

from probattn.data import DataError, NodeGraph, load_planetoid
from probattn.data.planetoid import PLANETOID, read_pickle

CLASSES = len(PLANETOID["citeseer"])
KNOWN, TRAIN, WIDTH = 9, 4, 5
TEST = (12, 9, 10)  # 11 is missing, as some of Citeseer's are


def indicators(labels):
    return np.eye(CLASSES, dtype=np.int32)[list(labels)]


def write(folder, **changes):
    """A tiny graph in Citeseer's form; ``changes`` replace what a file holds."""
    generator = np.random.default_rng(0)
    allx = sparse.csr_matrix((generator.random((KNOWN, WIDTH)) < 0.5).astype(np.float32))
    tx = sparse.csr_matrix(np.arange(len(TEST) * WIDTH, dtype=np.float32).reshape(len(TEST), WIDTH))
    labels = [node % CLASSES for node in range(KNOWN)]
    neighbours = defaultdict(list, {0: [1, 1, 12], 1: [0, 1], 9: [10], 12: [0], 8: [2]})
    content = {
        "x": allx[:TRAIN],
        "y": indicators(labels[:TRAIN]),
        "allx": allx,
        "ally": indicators(labels),
        "tx": tx,
        "ty": indicators((5, 4, 3)),
        "graph": neighbours,
        "test.index": "".join(f"{node}\n" for node in TEST),
    } | {name.replace("_", "."): value for name, value in changes.items()}
    folder.mkdir(exist_ok=True)
    for ending, value in content.items():
        path = folder / f"ind.citeseer.{ending}"
        if isinstance(value, str):
            path.write_text(value)
        elif value is not None:
            path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol=2))
    return folder


def test_nodes_stand_where_the_index_puts_them(tmp_path):
    graph = load_planetoid("citeseer", write(tmp_path / "graph"))
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (13, WIDTH, CLASSES)
    for row, node in enumerate(TEST):
        assert graph.features[node].tolist() == [row * WIDTH + column for column in range(WIDTH)]
    assert graph.labels[list(TEST)].tolist() == [5, 4, 3]
    assert graph.labels[:KNOWN].tolist() == [node % CLASSES for node in range(KNOWN)]
    assert graph.train_mask.nonzero().flatten().tolist() == [0, 1, 2, 3]
    assert graph.validation_mask.nonzero().flatten().tolist() == [4, 5, 6, 7, 8]
    assert graph.test_mask.nonzero().flatten().tolist() == sorted(TEST)


def test_a_node_that_the_files_leave_out_has_neither_words_nor_label(tmp_path):
    graph = load_planetoid("citeseer", write(tmp_path / "graph"))
    assert graph.features[11].abs().sum() == 0
    assert graph.labels[11] == -1
    assert 11 not in graph.edge_index
    assert 11 in graph.with_self_loops().edge_index


def test_every_edge_stands_once_in_both_directions(tmp_path):
    graph = load_planetoid("citeseer", write(tmp_path / "graph"))
    expected = {(0, 1), (1, 0), (0, 12), (12, 0), (9, 10), (10, 9), (8, 2), (2, 8)}
    assert set(map(tuple, graph.edge_index.t().tolist())) == expected
    assert graph.num_edges == len(expected)


def test_rows_are_divided_by_their_sums(tmp_path):
    graph = load_planetoid("citeseer", write(tmp_path / "graph")).with_normalised_rows()
    sums = graph.features.sum(dim=1)
    assert set(sums.round(decimals=5).tolist()) <= {0.0, 1.0}
    assert sums[11] == 0 and sums[12] == 1


def test_self_loops_stand_once(tmp_path):
    graph = load_planetoid("citeseer", write(tmp_path / "graph"))
    looped = graph.with_self_loops()
    assert looped.num_edges == graph.num_edges + graph.num_nodes
    assert looped.with_self_loops().num_edges == looped.num_edges


@pytest.mark.parametrize("ending", ["x", "graph", "test.index"])
def test_a_missing_file_is_named(tmp_path, ending):
    folder = write(tmp_path / "graph")
    (folder / f"ind.citeseer.{ending}").unlink()
    with pytest.raises(DataError, match=rf"graph 'citeseer': .* lacks ind\.citeseer\.{re.escape(ending)}; "):
        load_planetoid("citeseer", folder)


def test_without_a_folder_the_variable_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PROBATTN_DATA", str(tmp_path))
    write(tmp_path / "citeseer")
    assert load_planetoid("citeseer").num_nodes == 13
    monkeypatch.delenv("PROBATTN_DATA")
    with pytest.raises(DataError, match="the environment variable PROBATTN_DATA to name one"):
        load_planetoid("citeseer")


def test_an_unknown_graph_is_refused():
    with pytest.raises(DataError, match=r"graph 'corra': .* lacks ind.corra.x, .*; did you mean 'cora'\?"):
        load_planetoid("corra", "nowhere")


def test_a_graph_of_another_name_is_read(tmp_path):
    """Files of Citeseer's form under another name: the same graph, whose classes have numbers."""
    known = load_planetoid("citeseer", write(tmp_path / "known"))
    for path in (tmp_path / "known").iterdir():
        path.rename(path.with_name(path.name.replace("citeseer", "mine")))
    other = load_planetoid("mine", tmp_path / "known")
    assert torch.equal(other.edge_index, known.edge_index) and torch.equal(other.labels, known.labels)
    assert other.label_names == tuple(f"class {number}" for number in range(CLASSES))


WIDE = sparse.csr_matrix(np.ones((len(TEST), WIDTH + 1), dtype=np.float32))
DAMAGE = {
    "an edge to a missing node: 0 to 14, but the nodes are 0..12": {"graph": {0: [14]}},
    "expected features of width 5 as in allx, got 6 in tx": {"tx": WIDE},
    "expected as many rows in tx as in ty, got 3 and 2": {"ty": indicators((1, 2))},
    "expected 3 different nodes in test.index": {"test_index": "12\n9\n9\n"},
    "expected test nodes from 9 on": {"test_index": "12\n9\n8\n"},
    "expected node numbers, got '-3'": {"test_index": "12\n9\n-3\n"},
    "expected indicators of 6 classes": {"ty": np.zeros((3, 2), dtype=np.int32)},
    "expected a dictionary of neighbours, got list": {"graph": [1, 2]},
    "expected lists of node numbers": {"graph": {0: 3}},
    "ind.citeseer.x: expected a sparse matrix, got list": {"x": [1.0]},
    "ind.citeseer.x: expected a pickle of numbers": {"x": b"nonsense"},
    "ind.citeseer.ally: expected a pickle of numbers": {"ally": b""},
    "expected finite features": {"tx": sparse.csr_matrix(np.full((3, WIDTH), np.nan, dtype=np.float32))},
    "node 2 is to be learned from or measured on, but has no label": {
        "ally": indicators([0, 1, 2, 3, 4, 5, 0, 1, 2]) * (np.arange(KNOWN) != 2)[:, None]
    },
}


@pytest.mark.parametrize(("message", "change"), DAMAGE.items(), ids=range(len(DAMAGE)))
def test_damage_is_said_in_one_line(tmp_path, message, change):
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        load_planetoid("citeseer", write(tmp_path / "graph", **change))
    assert "\n" not in str(caught.value)


class Harm:
    """A pickle that calls what it likes."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


def test_a_pickle_that_calls_is_refused(tmp_path):
    target = tmp_path / "harmed"
    with pytest.raises(DataError, match=r"it names (posix|nt)\.system"):
        load_planetoid("citeseer", write(tmp_path / "graph", graph={0: [Harm(target)]}))
    assert not target.exists()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_numbers_are_read_whatever_the_protocol(tmp_path, protocol):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = tmp_path / "numbers"
    for value in (array, sparse.csr_matrix(array)):
        path.write_bytes(pickle.dumps(value, protocol=protocol))
        found = read_pickle(path)
        np.testing.assert_array_equal(found if value is array else found.toarray(), array)


@pytest.mark.parametrize(
    ("name", "shape", "edges", "train", "sizes"),
    [
        ("cora", (2708, 1433), 10556, 140, [351, 217, 418, 818, 426, 298, 180]),
        ("citeseer", (3327, 3703), 9104, 120, [249, 590, 668, 701, 596, 508]),
        ("pubmed", (19717, 500), 88648, 60, [4103, 7739, 7875]),
    ],
)
def test_the_real_graphs_have_their_known_sizes(name, shape, edges, train, sizes, public_data):
    graph = load_planetoid(name, public_data(name) / name)
    assert tuple(graph.features.shape) == shape
    assert graph.num_edges == edges
    assert graph.labels[graph.labels >= 0].bincount().tolist() == sizes
    counts = [int(mask.sum()) for mask in (graph.train_mask, graph.validation_mask, graph.test_mask)]
    assert counts == [train, 500, 1000]
    assert graph.labels[graph.train_mask].bincount().tolist() == [20] * graph.num_classes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": torch.zeros(3, 2, dtype=torch.int64)}, r"expected features floating \[N, F\]"),
        (
            {"labels": torch.zeros(2, dtype=torch.int64)},
            r"expected labels int64 \[3\], got torch.int64 \[2\]",
        ),
        ({"labels": torch.tensor([0, 1, 2])}, r"expected labels 0..1 \(-1 for none\), got 0..2"),
        ({"train_mask": torch.ones(3)}, r"expected train_mask bool \[3\]"),
        ({"test_mask": torch.tensor([True, False, False])}, "node 0 is in two of the training, validation"),
        ({"edge_index": torch.zeros(3, 2, dtype=torch.int64)}, r"expected edge_index int64 \[2, E\]"),
        (
            {"edge_index": torch.tensor([[0], [3]])},
            r"an edge to a missing node: 0 to 3, but the nodes are 0..2",
        ),
    ],
)
def test_a_graph_that_contradicts_itself_is_refused(change, message):
    fields = {
        "features": torch.zeros(3, 2),
        "labels": torch.tensor([0, 1, -1]),
        "edge_index": torch.zeros(2, 0, dtype=torch.int64),
        "train_mask": torch.tensor([True, False, False]),
        "validation_mask": torch.tensor([False, True, False]),
        "test_mask": torch.zeros(3, dtype=torch.bool),
        "label_names": ("a", "b"),
        "source": "three nodes",
    }
    assert NodeGraph(**fields).num_classes == 2
    with pytest.raises(DataError, match=message):
        NodeGraph(**(fields | change))
