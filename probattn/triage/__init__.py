"""Selective prediction: which inputs a network answers at a target error rate, and which need human review.

``probattn triage RUN --error 0.05`` and :func:`triage_run` find on held-out data the largest uncertainty threshold at
which the error rate among answered inputs is at most the target, with the stated confidence, and save it as a
:class:`Policy` for ``probattn predict --policy``. :func:`calibrate` does the same for predictions of any program.
:func:`dataset_shift` tests new inputs for a distribution shift.
"""

from typing import TYPE_CHECKING

from probattn.checks import imported_when_used

if TYPE_CHECKING:
    from probattn.triage.calibration import Judged, calibrate, judged_probabilities, judged_scores
    from probattn.triage.options import Score, TriageOptions
    from probattn.triage.page import decisions_table, triage_table
    from probattn.triage.policy import (
        ClassRow,
        Decision,
        Limit,
        NoveltyRule,
        Outcome,
        Policy,
        SetRule,
        TriageResults,
        Wrong,
        read_policy,
        write_policy,
    )
    from probattn.triage.running import AppliedPolicy, apply_policy, triage_run
    from probattn.triage.serving import SelectivePipeline, save_policy, selective_pipeline
    from probattn.triage.shift import Seen, Shift, dataset_shift

# A policy and its file
__all__ = ["Policy", "Limit", "SetRule", "NoveltyRule", "Decision", "read_policy", "write_policy"]
# Making and applying one
__all__ += ["TriageOptions", "Score", "Judged", "judged_probabilities", "judged_scores"]
__all__ += ["calibrate", "triage_run"]
__all__ += ["AppliedPolicy", "apply_policy", "save_policy", "selective_pipeline", "SelectivePipeline"]
# Records of what it does, as tables, and distribution shift
__all__ += ["TriageResults", "Outcome", "ClassRow", "Wrong", "triage_table", "decisions_table", "Seen"]
__all__ += ["Shift", "dataset_shift"]

__getattr__ = imported_when_used(
    __name__,
    __all__,
    ("policy", "shift", "calibration", "page", "running", "serving"),
    options=("Score", "TriageOptions"),
)
