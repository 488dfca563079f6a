"""Questions about images, by MCAN trained from random weights."""

from probattn.tasks.visual_questions.results import VisualQuestionResults, VisualQuestionSample
from probattn.tasks.visual_questions.task import VisualQuestionTask

__all__ = ["VisualQuestionResults", "VisualQuestionSample", "VisualQuestionTask"]
