"""What several divergences are held to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor


@pytest.fixture
def slopes() -> Callable[..., Iterator[tuple[str, float]]]:
    """How a value changes along a small step of gradient descent, one party at a time.

    -1 for a party that descends, 1 for one whose gradient is reversed.
    """

    def along(value, parties) -> Iterator[tuple[str, float]]:
        before, step = value(), 1e-5
        before.backward()
        for name, party in parties.items():
            parameters = [party] if isinstance(party, Tensor) else list(party.parameters())
            size = sum(parameter.grad.square().sum() for parameter in parameters)
            assert size > 1e-6, name
            with torch.no_grad():
                for parameter in parameters:
                    parameter.sub_(step * parameter.grad)
                change = (value() - before) / (step * size)
                for parameter in parameters:
                    parameter.add_(step * parameter.grad)
            yield name, change.item()

    return along
