"""The order of the data: every row once an epoch, a pure function of seed and epoch, cut alike for any ranks."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, StackDataset

from probattn.inference.batches import DataOrder, as_rows, load_batches, row_lengths


@st.composite
def any_order(draw: st.DrawFn) -> DataOrder:
    rows, shuffle = draw(st.integers(1, 40)), draw(st.booleans())
    return DataOrder(
        num_rows=rows,
        batch_size=draw(st.integers(1, 5)),
        accumulation=draw(st.integers(1, 4)),
        num_processes=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 3)),
        shuffle=shuffle,
        length_pool=draw(st.none() | st.integers(1, 3)) if shuffle else None,
        lengths=draw(st.lists(st.integers(1, 9), min_size=rows, max_size=rows)),
    )


orders = any_order()


def rows_of(order: DataOrder, step: int) -> list[int]:
    shares = [share for rank in range(order.num_processes) for share in order.shares(step, rank)]
    return [row for share in shares if share.weight for row in share.rows]


@given(orders)
def test_an_epoch_holds_every_row_once(order: DataOrder) -> None:
    for epoch in (0, 1):
        first = epoch * order.steps_per_epoch
        seen = Counter(
            row for step in range(first, first + order.steps_per_epoch) for row in rows_of(order, step)
        )
        assert seen == Counter(range(order.num_rows))


@given(orders)
def test_weights_are_the_rows_shares_of_their_step(order: DataOrder) -> None:
    for step in range(order.steps_per_epoch):
        ranks = [order.shares(step, rank) for rank in range(order.num_processes)]
        assert len({len(shares) for shares in ranks}) == 1  # ranks stay in step
        total = len(rows_of(order, step))
        for share in (share for shares in ranks for share in shares):
            assert 1 <= len(share.rows) <= order.batch_size
            assert share.weight in (0, pytest.approx(len(share.rows) / total))
        assert sum(share.weight for shares in ranks for share in shares) == pytest.approx(1)


@given(orders, st.integers(0, 100))
def test_the_rest_of_an_epoch_is_what_the_whole_one_ends_with(order: DataOrder, skipped: int) -> None:
    skipped %= order.steps_per_epoch
    first = 2 * order.steps_per_epoch
    for rank in range(order.num_processes):
        whole = list(order.epoch_shares(first, rank))
        assert list(order.epoch_shares(first + skipped, rank)) == whole[skipped:]
        assert whole == [order.shares(first + step, rank) for step in range(order.steps_per_epoch)]


@pytest.mark.parametrize("cut", [(8, 1, 1), (4, 2, 1), (4, 1, 2), (2, 2, 2), (1, 4, 2)])
def test_a_step_sees_the_same_rows_however_it_is_cut(cut: tuple[int, int, int]) -> None:
    size, accumulation, ranks = cut
    whole = DataOrder(21, 8, seed=3)
    order = DataOrder(21, size, accumulation, ranks, seed=3)
    assert order.steps_per_epoch == whole.steps_per_epoch == 3
    for step in range(9):
        assert sorted(rows_of(order, step)) == sorted(rows_of(whole, step))


def test_orders_differ_by_seed_and_epoch_and_only_by_them() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return DataOrder(50, 4, seed=seed).permutation(epoch).tolist()

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4
    assert DataOrder(5, 2, shuffle=False).permutation(3).tolist() == [0, 1, 2, 3, 4]


def test_drop_last_leaves_out_the_incomplete_step() -> None:
    order = DataOrder(11, 4, drop_last=True)
    assert order.steps_per_epoch == 2
    assert [len(rows_of(order, step)) for step in range(4)] == [4, 4, 4, 4]
    with pytest.raises(ValueError, match=r"drop_last leaves no step: 3 rows.*takes 4"):
        DataOrder(3, 4, drop_last=True)


@pytest.mark.parametrize("name", ["num_rows", "batch_size", "accumulation", "num_processes"])
def test_sizes_below_one_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"DataOrder.{name}.*>= 1.*0"):
        DataOrder(**({"num_rows": 2, "batch_size": 2} | {name: 0}))


def test_tensors_are_read_by_row() -> None:
    rows = as_rows({"x": torch.arange(6).view(3, 2), "y": torch.arange(3)}, "data")
    assert len(rows) == 3
    assert rows[1]["x"].tolist() == [2, 3]
    assert as_rows(["a", "b"], "data") == ["a", "b"]


def test_data_that_cannot_be_read_by_row_is_refused() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(TypeError, match=r"train_data.*DataLoader.*batch_size and collate"):
        as_rows(DataLoader(StackDataset(x=torch.zeros(2))), "train_data")
    for data in (Stream(), iter([1]), 3):
        with pytest.raises(
            TypeError, match=r"train_data: expected a mapping of tensors or a data set with len\(\)"
        ):
            as_rows(data, "train_data")


def test_empty_and_uneven_data_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        as_rows([], "train_data")
    with pytest.raises(ValueError, match="at least one row"):
        as_rows({"x": torch.zeros(0, 2)}, "train_data")
    with pytest.raises(ValueError, match=r"same number of rows, got \{'x': 2, 'y': 3\}"):
        as_rows({"x": torch.zeros(2), "y": torch.zeros(3)}, "train_data")
    with pytest.raises(ValueError, match="same number of rows"):
        as_rows({}, "train_data")


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_leaves_torchs_generator_alone(workers: int) -> None:
    before = torch.get_rng_state()
    loader = load_batches(
        StackDataset(x=torch.arange(5)), [[4, 0], [2]], collate=None, num_workers=workers, seed=(0, 1)
    )
    assert [batch["x"].tolist() for batch in loader] == [[4, 0], [2]]
    assert torch.equal(torch.get_rng_state(), before)


def test_collate_gets_the_rows_in_order() -> None:
    loader = load_batches(["a", "b", "c"], [[2, 0]], collate="".join, num_workers=0, seed=(0,))
    assert list(loader) == ["ca"]


def test_rows_of_a_step_are_of_similar_length_and_steps_in_random_order() -> None:
    lengths = torch.randint(1, 60, (1000,), generator=torch.Generator().manual_seed(0)).tolist()
    plain = DataOrder(num_rows=1000, batch_size=10)
    pooled = DataOrder(num_rows=1000, batch_size=10, length_pool=10, lengths=lengths)

    def padding(order: DataOrder) -> float:
        longest = [max(lengths[row] for row in rows_of(order, step)) for step in range(order.steps_per_epoch)]
        return 10 * sum(longest) / sum(lengths) - 1

    assert padding(plain) > 0.7 and padding(pooled) < 0.15
    whole = DataOrder(num_rows=1000, batch_size=10, length_pool=100, lengths=lengths)
    means = [sum(lengths[row] for row in rows_of(whole, step)) for step in range(100)]
    assert abs(torch.corrcoef(torch.tensor([means, list(range(100))], dtype=torch.float64))[0, 1]) < 0.3
    assert [rows_of(pooled, step) for step in range(100)] != [
        rows_of(pooled, 100 + step) for step in range(100)
    ]


def test_rows_left_over_in_an_epoch_are_not_its_longest() -> None:
    order = DataOrder(num_rows=1003, batch_size=10, length_pool=1000, lengths=list(range(1003)))
    left = [row for epoch in range(50) for row in rows_of(order, epoch * order.steps_per_epoch + 100)]
    assert len(left) == 150 and 400 < sum(left) / 150 < 600


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"length_pool": 2}, "expected the lengths of 4 rows, got 0"),
        ({"length_pool": 2, "lengths": [1, 2, 3]}, "expected the lengths of 4 rows, got 3"),
        ({"length_pool": 0, "lengths": [1, 2, 3, 4]}, "expected an integer >= 1, got 0"),
        ({"length_pool": 2, "lengths": [1, 2, 3, 4], "shuffle": False}, "expected shuffle=True"),
    ],
)
def test_a_pool_needs_lengths_and_a_random_order(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DataOrder(num_rows=4, batch_size=2, **options)


def test_lengths_are_no_part_of_a_configuration() -> None:
    order = DataOrder(num_rows=2, batch_size=1, length_pool=1, lengths=[1, 2])
    assert "lengths" not in order.configuration() and order.configuration()["length_pool"] == 1
    assert "length_pool" not in DataOrder(num_rows=2, batch_size=1).configuration()


def test_lengths_of_rows_are_their_own_or_those_of_their_tokens() -> None:
    assert row_lengths([{"input_ids": [5, 6, 7]}, {"input_ids": torch.tensor([5])}]) == [3, 1]
    assert row_lengths([{"input_ids": [[5], [6, 7]]}, {"input_ids": [[5], [6]]}]) == [2, 1]
    padded = StackDataset(
        input_ids=torch.ones(2, 4), attention_mask=torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]])
    )
    assert row_lengths(padded) == [3, 1]
    for rows in ([1, 2], [{"pixel_values": [0.0]}]):
        with pytest.raises(TypeError, match=r"a method lengths\(\), or rows with input_ids, got list; leave"):
            row_lengths(rows)
