"""Ratings of a set of examples, end to end: against loops over the batches they came from, and their file."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from probattn.models import RatedWords, WordRatings
from probattn.probes import agreement, random_agreement


def batch(seed: int, rows: int, outputs: int, length: int) -> WordRatings:
    """Random ratings with padding on both sides of the pair."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, length + 1, (rows,), generator=generator)
    mask = torch.arange(length) < lengths[:, None]
    counts = torch.randint(1, outputs + 1, (rows,), generator=generator)
    query_mask = torch.arange(outputs) < counts[:, None]
    attention = torch.rand(rows, outputs, length, generator=generator) * mask[:, None]
    probe = (
        torch.rand(rows, outputs, length, generator=generator).log().masked_fill(~mask[:, None], -torch.inf)
    )
    correct = torch.rand(rows, outputs, generator=generator) < 0.5
    return WordRatings(attention, probe, mask, query_mask, correct)


def test_means_are_those_of_a_loop_over_outputs() -> None:
    batches = [batch(0, 4, 3, 40), batch(1, 3, 5, 25)]
    rated = RatedWords.gather(batches)
    agreed, chance, right, example = [], [], [], []
    for number, each in enumerate(batches):
        for row in range(len(each.mask)):
            length = int(each.mask[row].sum())
            for t in range(int(each.query_mask[row].sum())):
                u, v = each.attention[row, t, :length], each.probe[row, t, :length]
                agreed.append(agreement(u, v).item())
                chance.append(random_agreement(torch.tensor(length)).item())
                right.append(float(each.correct[row, t]))
                example.append(row + 4 * number)
    assert rated.example.tolist() == example
    assert rated.agreement() == pytest.approx(sum(agreed) / len(agreed))
    assert rated.chance() == pytest.approx(sum(chance) / len(chance))
    assert rated.accuracy == pytest.approx(sum(right) / len(right))
    assert rated.agreement(v=rated.attention) == 1


def test_rows_are_padded_anew() -> None:
    each = batch(2, 5, 4, 12)
    rated = RatedWords.gather([each])
    values, mask = rated.padded(rated.attention)
    position = 0
    for row in range(5):
        for t in range(int(each.query_mask[row].sum())):
            length = int(each.mask[row].sum())
            assert torch.equal(values[position, :length], each.attention[row, t, :length])
            assert (values[position, length:] == 0).all()
            assert mask[position].sum() == length
            position += 1
    assert position == len(values)


def test_file_holds_everything(tmp_path: Path) -> None:
    rated = RatedWords.gather([batch(3, 4, 3, 9)])
    rated.save(tmp_path / "deep" / "step.safetensors")
    found = RatedWords.load(tmp_path / "deep" / "step.safetensors")
    for name in ("attention", "probe", "lengths", "example", "correct"):
        assert torch.equal(getattr(found, name), getattr(rated, name))
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["step.safetensors"]


def test_other_files_and_other_examples_are_refused(tmp_path: Path) -> None:
    rated, other = RatedWords.gather([batch(4, 4, 3, 9)]), RatedWords.gather([batch(5, 2, 2, 3)])
    with pytest.raises(ValueError, match=r"one for each pair .* were other examples rated\?"):
        rated.agreement(v=other.probe)
    with pytest.raises(ValueError, match="at least one batch, got none"):
        RatedWords.gather([])
    (tmp_path / "broken").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"broken: expected ratings of words, got a damaged file"):
        RatedWords.load(tmp_path / "broken")


@pytest.mark.parametrize(
    "change",
    [
        {"attention": torch.zeros(2)},
        {"probe": torch.zeros(2)},
        {"example": torch.zeros(1, dtype=torch.int64)},
        {"correct": torch.zeros(1, dtype=torch.bool)},
        {"lengths": torch.zeros(4)},
        {"lengths": torch.tensor(4)},
        {"lengths": torch.tensor([3, -1, 2])},
        {"attention": torch.full((4,), torch.nan)},
    ],
)
def test_ratings_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, torch.Tensor]) -> None:
    fitting = RatedWords(
        torch.rand(4),
        torch.rand(4),
        torch.tensor([2, 1, 1]),
        torch.arange(3),
        torch.ones(3, dtype=torch.bool),
    )
    fitting.save(tmp_path / "step")
    RatedWords.load(tmp_path / "step")
    replace(fitting, **change).save(tmp_path / "step")
    with pytest.raises(
        ValueError, match=r"step: expected ratings of words that fit each other, got attention"
    ):
        RatedWords.load(tmp_path / "step")
