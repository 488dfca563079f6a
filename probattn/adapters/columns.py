"""Predictions as columns of a data set of the package ``datasets``."""

from __future__ import annotations

from collections.abc import Sequence

from datasets import Dataset

from probattn.inference import Posterior


def add_predictions(
    dataset: Dataset,
    posterior: Posterior,
    *,
    class_names: Sequence[str] | None = None,
    prefix: str = "predicted_",
) -> Dataset:
    """Adds columns with predictions to a data set.

    For classes the columns are ``label`` (number or name of the most probable class; with several labels per row the
    list of those above 1/2), ``probabilities`` (means over draws), ``entropy`` and ``mutual_information`` in nats; in
    regression ``mean`` and ``std`` over draws. Heads that predict for each token or choice give lists.

    Args:
        dataset: the data set of the rows that were predicted, in the same order.
        posterior: the predictions.
        class_names: names of the C classes, for the column ``label``; None for numbers.
        prefix: text before the name of each new column.

    Returns:
        A new data set; ``dataset`` is not changed.

    Raises:
        ValueError: another number of rows or names, or a column that the data set already has.

    Example:
        >>> import torch
        >>> rows = Dataset.from_dict({"text": ["good", "bad"]})
        >>> draws = Posterior(torch.tensor([[[0.0, 3.0], [3.0, 0.0]]]))
        >>> add_predictions(rows, draws, class_names=["no", "yes"])["predicted_label"][:]
        ['yes', 'no']
    """
    rows, classes = posterior.logits.shape[1], posterior.logits.shape[-1]
    if len(dataset) != rows:
        raise ValueError(f"add_predictions: expected predictions of {len(dataset)} rows, got {rows}")
    if class_names is not None and len(class_names) != classes:
        raise ValueError(f"add_predictions: expected {classes} class_names, got {len(class_names)}")
    columns = {prefix + name: values for name, values in _columns(posterior, class_names).items()}
    taken = [name for name in columns if name in dataset.column_names]
    if taken:
        raise ValueError(
            f"add_predictions: the data set has a column {taken[0]!r} already; give another prefix"
        )
    for name, values in columns.items():
        dataset = dataset.add_column(name, values)
    return dataset


def _columns(posterior: Posterior, names: Sequence[str] | None) -> dict[str, list[object]]:
    if posterior.link == "identity":
        return {"mean": posterior.mean.tolist(), "std": posterior.std.tolist()}
    probabilities = posterior.mean_probabilities
    labels = (
        [[index for index, value in enumerate(row) if value > 0.5] for row in probabilities.tolist()]
        if posterior.link == "sigmoid"
        else probabilities.argmax(dim=-1).tolist()
    )
    return {
        "label": labels if names is None else _named(labels, names),
        "probabilities": probabilities.tolist(),
        "entropy": posterior.entropy.tolist(),
        "mutual_information": posterior.mutual_information.tolist(),
    }


def _named(labels: list[object], names: Sequence[str]) -> list[object]:
    return [_named(label, names) if isinstance(label, list) else names[int(str(label))] for label in labels]
