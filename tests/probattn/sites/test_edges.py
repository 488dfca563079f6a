"""Sums and softmax over incoming edges beside torch_geometric's and beside loops."""

import pytest
import torch

from probattn.sites import Edges

geometric = pytest.importorskip("torch_geometric.utils", reason="torch-geometric (the extra 'graph')")


def random_edges(nodes=7, edges=20, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Edges(torch.randint(nodes, (2, edges), generator=generator), nodes)


def test_softmax_is_that_of_torch_geometric():
    edges = random_edges()
    scores = 50 * torch.randn(3, len(edges), dtype=torch.float64)
    expected = geometric.softmax(scores, edges.target, num_nodes=7, dim=-1)
    torch.testing.assert_close(edges.softmax(scores), expected)
    torch.testing.assert_close(edges.log_softmax(scores).exp(), expected)


def test_weights_sum_to_one_where_there_are_edges():
    edges = Edges(torch.tensor([[0, 1, 2, 1], [0, 0, 0, 3]]), 4)
    assert edges.sum(edges.softmax(torch.randn(4))).tolist() == pytest.approx([1, 0, 0, 1])
    assert edges.degree.tolist() == [3, 0, 0, 1]
    assert edges.num_targets == 2


def test_large_scores_neither_overflow_nor_vanish():
    edges = Edges(torch.tensor([[0, 1, 2], [0, 0, 0]]), 3)
    scores = torch.tensor([1e4, 1e4 - 1, -1e4])
    torch.testing.assert_close(edges.log_softmax(scores), torch.log_softmax(scores, 0))


def test_gradients_match_finite_differences():
    edges = random_edges(nodes=4, edges=9)
    scores = torch.randn(2, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(edges.softmax, (scores,))
    assert torch.autograd.gradcheck(edges.log_softmax, (scores,))


def test_no_edges_give_nothing():
    edges = Edges(torch.zeros(2, 0, dtype=torch.int64), 3)
    assert edges.softmax(torch.zeros(2, 0)).shape == (2, 0)
    assert edges.sum(torch.zeros(2, 0)).tolist() == [[0, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (
            torch.tensor([[0, 5], [1, 1]]),
            ValueError,
            r"edge 1 leads from node 5 to node 1, but the nodes are 0\.\.2",
        ),
        (torch.tensor([[0], [-1]]), ValueError, "edge 0 leads from node 0 to node -1"),
        (torch.zeros(3, 2, dtype=torch.int64), ValueError, r"expected \[2, E\]"),
        (torch.zeros(2, 3), TypeError, "expected int64, got torch.float32"),
    ],
)
def test_edges_that_lead_nowhere_are_refused(index, error, message):
    with pytest.raises(error, match=message):
        Edges(index, 3)
