"""Weights of classes in a recipe."""

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from probattn.tasks import RunError, load_task

LABELS = ["rare", "often", "often", "often", "some", "some"]


@pytest.fixture
def data(tmp_path):
    file = tmp_path / "train.csv"
    rows = [f"text {number},{label}" for number, label in enumerate(LABELS * 4)]
    file.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    return f"data={{train: {file}, validation: {file}, test: {file}}}"


def weights(data, value):
    return load_task("sentiment_babn", [data, f"training.class_weights={value}"]).program_options()[
        "class_weights"
    ]


@pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
def test_they_are_scikit_learns_or_those_by_name(data):
    names = np.unique(LABELS)
    expected = compute_class_weight("balanced", classes=names, y=LABELS)
    assert weights(data, "balanced") == pytest.approx(expected.tolist())
    assert weights(data, "{rare: 3}") == [1, 3, 1] and weights(data, "null") is None
    with pytest.raises(RunError, match=r"expected names of classes \(often, rare, some\), got 'x'"):
        weights(data, "{x: 3}")
