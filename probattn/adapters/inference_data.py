"""Draws of predictions as ArviZ's ``InferenceData``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import arviz
import torch
from torch import Tensor

from probattn.checks import check_integer
from probattn.inference import Posterior


def to_inference_data(
    posterior: Posterior,
    labels: Tensor | None = None,
    *,
    chains: int = 1,
    class_names: Sequence[str] | None = None,
    rows: Sequence[Any] | None = None,
    seed: int = 0,
) -> arviz.InferenceData:
    r"""Converts draws to ArviZ's ``InferenceData``, for ``arviz.summary``, ``arviz.loo``, ``arviz.waic`` and plots.

    The groups and their variables are:

    - ``posterior``: ``probability`` (``prediction`` in regression) ``[chain, draw, row, class]``, and the attention
      weights of each site ``[chain, draw, row, head, query, key]``
    - ``posterior_predictive``: ``y``, one label per row and draw, sampled from its probabilities
    - ``observed_data`` (if there are labels): ``y``, the labels
    - ``log_likelihood`` (if there are labels): ``y``, :math:`\log p(y_i \mid x_i, S_p)`, nats, ``[chain, draw, row]``

    In regression there is neither ``posterior_predictive`` nor ``log_likelihood``. Draws are independent, and chains
    are equal parts of them; R-hat is therefore about 1 and does not measure convergence of the training.

    Args:
        posterior: predictions ``[P, B, C]``; attention weights, if drawn without ``streaming``, are converted too.
        labels: observed labels: class numbers ``[B]``, 0 or 1 for each of several labels ``[B, C]``, or in regression
            numbers ``[B, C]`` or ``[B]``.
        chains: number of equal parts into which the draws are divided, >= 1.
        class_names: names of the C classes or numbers; 0, 1, ... by default.
        rows: names of the B rows; 0, 1, ... by default.
        seed: seed of the sampled labels, >= 0.

    Returns:
        The ``arviz.InferenceData``.

    Raises:
        ValueError: several predictions per row (tokens or spans); a number of draws that ``chains`` does not
            divide; names or labels of another number; or class numbers out of range.

    Example:
        >>> draws = Posterior(torch.randn(10, 3, 2))
        >>> data = to_inference_data(draws, torch.tensor([0, 1, 1]), chains=2)
        >>> sorted(data.groups())
        ['log_likelihood', 'observed_data', 'posterior', 'posterior_predictive']
        >>> dict(data.posterior["probability"].sizes)
        {'chain': 2, 'draw': 5, 'row': 3, 'class': 2}
    """
    check_integer("to_inference_data", "chains", chains, minimum=1)
    if posterior.logits.dim() != 3:
        raise ValueError(
            f"to_inference_data: expected predictions [P, B, C], got {list(posterior.logits.shape)}; only heads with "
            "one label a row have this form"
        )
    draws, size, classes = posterior.logits.shape
    if draws % chains:
        raise ValueError(f"to_inference_data: expected a number of draws that {chains} divides, got {draws}")
    coords = {"row": _names("rows", rows, size), "class": _names("class_names", class_names, classes)}
    several = ["row"] if posterior.link == "softmax" else ["row", "class"]
    value = "prediction" if posterior.link == "identity" else "probability"
    dims = {value: ["row", "class"]}
    groups: dict[str, dict[str, Tensor]] = {"posterior": {value: posterior.values}}
    for name, weights in (posterior.attention or {}).items():
        groups["posterior"][name] = weights
        dims[name] = ["row", *(f"{name}.{axis}" for axis in ("head", "query", "key"))]
    if posterior.link != "identity":
        groups["posterior_predictive"] = {"y": _labels(posterior, seed)}
    likelihood = None
    if labels is not None:
        labels = _checked(labels.detach().cpu(), posterior)
        if posterior.link != "identity":
            likelihood = _log_likelihood(posterior, labels)
    if likelihood is not None:
        groups["log_likelihood"] = {"y": likelihood}
    arrays: dict[str, Any] = {
        group: {
            name: variable.detach().cpu().unflatten(0, (chains, -1)).numpy()
            for name, variable in variables.items()
        }
        for group, variables in groups.items()
    }
    data = arviz.from_dict(
        **{group: arrays[group] for group in arrays if group != "log_likelihood"},
        observed_data=None if labels is None else {"y": labels.numpy()},
        coords=coords,
        dims=dims | {"y": several},
    )
    if likelihood is not None:  # of several labels its dimensions are fewer than those of y
        extra = arviz.from_dict(
            log_likelihood=arrays["log_likelihood"], coords={"row": coords["row"]}, dims={"y": ["row"]}
        )
        data.extend(extra)
    return data


def _names(what: str, names: Sequence[Any] | None, size: int) -> list[Any]:
    if names is not None and len(names) != size:
        raise ValueError(f"to_inference_data: expected {size} {what}, got {len(names)}")
    return list(range(size)) if names is None else list(names)


def _checked(labels: Tensor, posterior: Posterior) -> Tensor:
    """Labels of the predictions' shape; ``ValueError`` where they do not fit."""
    _, rows, classes = posterior.logits.shape
    if posterior.link == "identity" and labels.dim() == 1:
        labels = labels[:, None]
    shape = [rows] if posterior.link == "softmax" else [rows, classes]
    if list(labels.shape) != shape:
        raise ValueError(f"to_inference_data: expected labels {shape}, got {list(labels.shape)}")
    last = {"softmax": classes - 1, "sigmoid": 1}.get(posterior.link)
    if last is not None and bool(((labels < 0) | (labels > last) | (labels != labels.round())).any()):
        raise ValueError(
            f"to_inference_data: expected labels in 0..{last}, got {labels.min():g}..{labels.max():g}"
        )
    return labels


def _labels(posterior: Posterior, seed: int) -> Tensor:
    """A label of each draw and row: ``[P, B]``, of several labels ``[P, B, C]``."""
    generator = torch.Generator().manual_seed(seed)
    probabilities = posterior.probabilities.detach().cpu()
    if posterior.link == "sigmoid":
        return torch.bernoulli(probabilities, generator=generator).long()
    return torch.multinomial(probabilities.flatten(0, 1), 1, generator=generator).view(
        probabilities.shape[:2]
    )


def _log_likelihood(posterior: Posterior, labels: Tensor) -> Tensor:
    """Of each draw and row, ``[P, B]``."""
    logits = posterior.logits.detach().cpu().double()
    if posterior.link == "sigmoid":
        signs = 2 * labels.double() - 1
        return torch.nn.functional.logsigmoid(signs * logits).sum(dim=-1)
    numbers = labels.long().expand(logits.shape[:2])
    return logits.log_softmax(dim=-1).gather(-1, numbers[..., None])[..., 0]
