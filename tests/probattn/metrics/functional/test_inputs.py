import math

import pytest
import torch

from probattn.metrics import functional
from probattn.metrics.functional.inputs import (
    draw_probabilities,
    example_mask,
    label_mask,
    log_mean_probability_of,
    mean_probabilities,
    prediction_shape,
    require_draws,
)

HALF = torch.tensor([[0.5, 0.5]])


@pytest.mark.parametrize("shape", [(4, 3), (5, 4, 3)])
def test_shapes(shape: tuple[int, ...]) -> None:
    logits = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    draws = draw_probabilities(logits, inputs="logits")
    assert draws.shape == (shape[0] if len(shape) == 3 else 1, 4, 3)
    assert prediction_shape(logits) == (4, 3)
    torch.testing.assert_close(mean_probabilities(logits, inputs="logits"), draws.mean(0))


def test_probabilities_are_averaged_not_logits() -> None:
    logits = torch.tensor([[[0.0, 8.0]], [[0.0, -2.0]]])
    expected = (1 / (1 + math.exp(8.0)) + 1 / (1 + math.exp(-2.0))) / 2
    assert mean_probabilities(logits, inputs="logits")[0, 0].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("given", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_computing_type(given: torch.dtype) -> None:
    expected = torch.float64 if given == torch.float64 else torch.float32
    assert draw_probabilities(HALF.to(given)).dtype == expected
    assert draw_probabilities(HALF.to(given), inputs="logits").dtype == expected


@pytest.mark.parametrize(
    ("preds", "inputs", "message"),
    [
        ([[2.0, -1.0]], "probabilities", 'inputs="logits"'),
        ([[0.2, 0.3]], "probabilities", 'sum to 1.*inputs="logits"'),
        ([[math.nan, 0.5]], "probabilities", r"\[0, 1\], got nan"),
        ([[math.nan, 0.5]], "logits", "NaN"),
        ([[math.inf, 0.5]], "logits", r"\+inf"),
        ([[-math.inf, -math.inf]], "logits", "-inf everywhere"),
        ([0.2, 0.8], "probabilities", r"expected \[N, C\].*got shape \[2\]"),
        ([[[[0.2, 0.8]]]], "probabilities", "flatten"),
        ([[0.7], [0.3]], "probabilities", "torch.stack"),
        ([[0.2, 0.8]], "scores", "inputs: expected one of.*'scores'"),
    ],
)
def test_wrong_values_are_refused(preds: list[object], inputs: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw_probabilities(torch.tensor(preds), inputs=inputs)


def test_no_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one draw"):
        draw_probabilities(torch.ones(0, 2, 2))


def test_integers_are_refused() -> None:
    with pytest.raises(TypeError, match=r"floating-point.*int64"):
        draw_probabilities(torch.tensor([[0, 1]]))


def test_logits_of_minus_infinity_are_a_probability_of_zero() -> None:
    assert draw_probabilities(torch.tensor([[-math.inf, 0.0]]), inputs="logits").tolist() == [[[0.0, 1.0]]]


def test_unvalidated_values_pass() -> None:
    assert draw_probabilities(torch.tensor([[2.0, -1.0]]), validate_args=False).shape == (1, 1, 2)


def test_unvalidated_on_the_meta_device() -> None:
    preds = torch.empty(3, 4, 2, device="meta")
    assert mean_probabilities(preds, inputs="logits", validate_args=False).shape == (4, 2)


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        (torch.tensor([0.0]), TypeError, "integer class labels, got torch.float32"),
        (torch.tensor([True]), TypeError, "torch.bool"),
        (torch.tensor([0, 1]), ValueError, r"expected shape \[1\].*got \[2\]"),
        (torch.tensor([2]), ValueError, r"0 .. 1, got 2.*ignore_index"),
        (torch.tensor([-1]), ValueError, r"0 .. 1, got -1"),
    ],
)
def test_wrong_labels_are_refused(target: torch.Tensor, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        label_mask(target, 1, 2)


def test_ignored_labels() -> None:
    assert label_mask(torch.tensor([-1, 0, 1]), 3, 2, ignore_index=-1).tolist() == [False, True, True]
    assert label_mask(torch.tensor([0, 1]), 2, 2, ignore_index=1).tolist() == [True, False]


def test_masks() -> None:
    mask = torch.tensor([True, False])
    assert example_mask(mask, 2, mask.device) is mask
    with pytest.raises(TypeError, match=r"mask: expected bool, got torch.int64"):
        example_mask(mask.long(), 2, mask.device)
    with pytest.raises(ValueError, match=r"out_of_domain: expected shape \[3\]"):
        example_mask(mask, 3, mask.device, name="out_of_domain")


def test_missing_draws_are_explained() -> None:
    message = r"some_measure: expected draws \[P, N, C\], got shape \[1, 2\].*preds\[None\]"
    with pytest.raises(ValueError, match=message):
        require_draws(HALF, "some_measure")


def test_log_mean_of_logits_does_not_underflow() -> None:
    logits = torch.tensor([[[0.0, 400.0]], [[0.0, 300.0]]])
    got = log_mean_probability_of(logits, torch.tensor([0]), inputs="logits")
    assert got.item() == pytest.approx(-300 - math.log(2), rel=1e-6)


def test_arrays_are_refused_in_words() -> None:
    preds, target = torch.tensor([[0.2, 0.8]]), torch.tensor([1])
    for first, second, name in ((preds.numpy(), target, "preds"), (preds, target.numpy(), "target")):
        with pytest.raises(
            TypeError, match=rf"{name}: expected a tensor, got ndarray: give torch\.as_tensor\({name}\)"
        ):
            functional.negative_log_likelihood(first, second)
    with pytest.raises(TypeError, match="in_domain: expected a tensor, got ndarray"):
        functional.ood_auroc(preds[0].numpy(), preds[0])
