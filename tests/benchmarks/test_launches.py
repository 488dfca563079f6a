"""Kernels and waits of a GPU stay below their ceilings."""

import pytest
import torch

pytest.importorskip(
    "triton", reason="counts kernels of Triton, which its interpreter runs: pip install triton (Linux)"
)
launches = pytest.importorskip("launches")
pytestmark = pytest.mark.interpreter

MINUTES = {"aligned, OT", "aligned, MMD"}
SECONDS = {("draws", "BAM"), ("train", "BAM, log-normal")}
"""Slow, and with kernels that other counts have too."""
COUNTED = [
    pytest.param(kind, variant, marks=pytest.mark.slow if (kind, variant) in SECONDS else ())
    for kind, declared in launches.KINDS.items()
    for variant in declared["ceilings"]
    if kind != "compiled" and variant not in MINUTES
]


@pytest.mark.parametrize(("kind", "variant"), COUNTED)
def test_a_step_launches_no_more_than_it_may(kind, variant):
    ((row, count),) = launches.measured(kind, [variant])
    assert row["passed"], (
        f"{row['ratio']} {row['unit']} and {row['waits']} waits: {count.kernels.most_common()} {count.waits}"
    )


def test_kernels_and_waits_are_what_torch_launches():
    with launches.Count() as count:
        a = torch.ones(3)  # 1
        b = a.view(1, 3).expand(2, 3).t()  # views
        (b @ a[:2] * 2).sum().item()  # 3 and one wait; `a[:2]` is a view
        a[a > 0]  # 2, the second of which waits for its size
        a[:0].clone()  # nothing to copy
        torch.empty(5)
        a.tolist()  # a wait, without a kernel
    assert count.kernels.total() == 6 and count.waits.total() == 3
