"""Labels that may be wrong, by cleanlab (extra ``labels``)."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from probattn.checks import is_blank, optional
from probattn.data.checking import Rows
from probattn.data.errors import DataError

FOLDS = 5


class Suspect(NamedTuple):
    """A row whose label may be wrong, with the likeliest label, and the probabilities of both."""

    row: int
    label: str
    probability: float
    suggestion: str
    suggestion_probability: float


def suspects(rows: Rows) -> tuple[list[Suspect], float, int]:
    """Rows whose label may be wrong, the likeliest first; accuracy of the predictions; rows that were compared.

    cleanlab (Northcutt et al. 2021) judges out-of-fold probabilities of a logistic regression on words and pairs of
    words: a label is suspect below the mean confidence of its class. Classes of fewer than five rows are left out.
    """
    filters = optional("check --suspects", "cleanlab.filter", "labels")
    import numpy as np
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline

    labels = ["" if is_blank(row["text"]) else row["label"].strip() for row in rows.fields]
    usable = {name for name, count in Counter(labels).items() if name and count >= FOLDS}
    if len(usable) < 2 or "text_pair" in rows.fields[0]:
        got = "pairs of texts" if "text_pair" in rows.fields[0] else f"{len(usable)} such"
        raise DataError(
            f"--suspects: expected single texts in two or more classes of {FOLDS} rows, got {got}"
        )
    numbers = [row for row, label in enumerate(labels) if label in usable]
    names, targets = np.unique([labels[row] for row in numbers], return_inverse=True)
    words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2, token_pattern=r"\w+|[^\w\s]")
    model = make_pipeline(words, LogisticRegression(C=10, max_iter=200, tol=1e-3))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    texts = [rows.fields[row]["text"] for row in numbers]
    probabilities = cross_val_predict(model, texts, targets, cv=folds, method="predict_proba")
    ranked = filters.find_label_issues(
        targets,
        probabilities,
        filter_by="low_self_confidence",
        return_indices_ranked_by="self_confidence",
        n_jobs=1,
    )
    likeliest = probabilities.argmax(1)
    suspicious = []
    for row in ranked[likeliest[ranked] != targets[ranked]]:
        both = ((str(names[at]), float(probabilities[row, at])) for at in (targets[row], likeliest[row]))
        suspicious.append(Suspect(numbers[row], *next(both), *next(both)))
    return suspicious, float((likeliest == targets).mean()), len(numbers)
