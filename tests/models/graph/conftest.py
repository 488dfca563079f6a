"""Small graphs and networks on them."""

import pytest
import torch

from probattn.data import NodeGraph


@pytest.fixture
def graph() -> NodeGraph:
    """Two cliques of six nodes joined by an edge, and a node alone; features tell the cliques apart, noisily."""
    generator = torch.Generator().manual_seed(0)
    sides = torch.arange(12) // 6
    same = sides[:, None] == sides[None, :]
    pairs = (same & ~torch.eye(12, dtype=torch.bool)).nonzero().t()
    bridge = torch.tensor([[0, 11], [11, 0]])
    labels = torch.cat([sides, torch.tensor([0])])
    features = torch.randn(13, 4, generator=generator) + labels[:, None]
    order = torch.arange(13)
    return NodeGraph(
        features=features,
        labels=labels,
        edge_index=torch.cat([pairs, bridge], dim=1),
        train_mask=(order % 6 < 2) & (order < 12),
        validation_mask=(order % 6 >= 2) & (order % 6 < 4) & (order < 12),
        test_mask=(order % 6 >= 4) | (order == 12),
        label_names=("left", "right"),
        source="two cliques",
    ).with_self_loops()
