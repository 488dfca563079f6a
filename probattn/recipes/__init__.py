"""Recipes: YAML files, strictly checked, that determine a run completely.

A recipe has sections, each a class of this module; the tables of [every key](../recipes/reference.md) describe the
fields. The tasks in :mod:`probattn.tasks` define the recipes.
"""

from functools import partial

from probattn.tasks.classification.recipe import (
    DataRecipe,
    LimitsRecipe,
    NetworkRecipe,
    PredictionRecipe,
    Recipe,
    ReportRecipe,
    SourceRecipe,
)
from probattn.tasks.errors import RecipeError
from probattn.tasks.experiments.recipe import (
    ConditionRecipe,
    ExperimentNetworkRecipe,
    ExperimentRecipe,
    ExperimentSection,
    ExperimentTrainingRecipe,
    HeadSearchRecipe,
)
from probattn.tasks.fine_tuning import FINE_TUNING
from probattn.tasks.fine_tuning.recipe import HeadRecipe
from probattn.tasks.graph_text.recipe import (
    GraphTextDataRecipe,
    GraphTextNetworkRecipe,
    GraphTextRecipe,
    GraphTextReportRecipe,
    GraphTextTrainingRecipe,
    WritingRecipe,
)
from probattn.tasks.graphs.recipe import (
    GraphDataRecipe,
    GraphNetworkRecipe,
    GraphPredictionRecipe,
    GraphRecipe,
    GraphReportRecipe,
    GraphTrainingRecipe,
)
from probattn.tasks.pretraining.recipe import (
    GeneratorRecipe,
    PretrainingDataRecipe,
    PretrainingNetworkRecipe,
    PretrainingRecipe,
    PretrainingReportRecipe,
    PretrainingTrainingRecipe,
)
from probattn.tasks.registry import load_any_recipe, load_recipe, read_recipe, recipe_names
from probattn.tasks.sections.derived import MethodSection
from probattn.tasks.sections.keys import family_reference, reference
from probattn.tasks.sections.methods import (
    AlignmentRecipe,
    AttentionRecipe,
    DisagreementRecipe,
    MethodRecipe,
    RepulsionRecipe,
)
from probattn.tasks.sections.training import (
    EarlyStoppingRecipe,
    ProbeRecipe,
    TrainingRecipe,
    TranslationProbeRecipe,
)
from probattn.tasks.translation.recipe import (
    SearchRecipe,
    TranslationAttentionRecipe,
    TranslationDataRecipe,
    TranslationNetworkRecipe,
    TranslationRecipe,
    TranslationReportRecipe,
    TranslationTrainingRecipe,
)
from probattn.tasks.visual_questions.recipe import (
    QuestionFilesRecipe,
    VisualQuestionDataRecipe,
    VisualQuestionNetworkRecipe,
    VisualQuestionRecipe,
    VisualQuestionReportRecipe,
    VisualQuestionTrainingRecipe,
)

AnyRecipe = (
    Recipe
    | GraphRecipe
    | TranslationRecipe
    | GraphTextRecipe
    | VisualQuestionRecipe
    | PretrainingRecipe
    | ExperimentRecipe
    | HeadRecipe
)
"""A recipe of any task: text classification, a graph, translation, texts about graphs, visual questions, pre-training,
an experiment, or the fine-tuning of another task head."""

recipe_reference = partial(reference, Recipe)
graph_recipe_reference = partial(reference, GraphRecipe)
translation_recipe_reference = partial(reference, TranslationRecipe)
graph_text_recipe_reference = partial(reference, GraphTextRecipe)
visual_question_recipe_reference = partial(reference, VisualQuestionRecipe)
pretraining_recipe_reference = partial(reference, PretrainingRecipe)
experiment_recipe_reference = partial(reference, ExperimentRecipe)
head_recipe_reference = partial(family_reference, HeadRecipe, [task.recipe_class for task in FINE_TUNING])

# Reading recipes, and what their keys mean
__all__ = ["AnyRecipe", "RecipeError", "load_any_recipe", "load_recipe", "read_recipe", "recipe_names"]
__all__ += ["recipe_reference", "graph_recipe_reference", "translation_recipe_reference"]
__all__ += ["graph_text_recipe_reference", "visual_question_recipe_reference", "pretraining_recipe_reference"]
__all__ += ["experiment_recipe_reference", "head_recipe_reference"]
# Sections of several tasks
__all__ += ["MethodRecipe", "MethodSection", "AttentionRecipe", "AlignmentRecipe"]
__all__ += ["DisagreementRecipe", "RepulsionRecipe", "TrainingRecipe", "EarlyStoppingRecipe", "ProbeRecipe"]
# Texts, and other heads
__all__ += ["Recipe", "DataRecipe", "SourceRecipe", "LimitsRecipe", "NetworkRecipe", "PredictionRecipe"]
__all__ += ["ReportRecipe", "HeadRecipe"]
# Graphs
__all__ += ["GraphRecipe", "GraphDataRecipe", "GraphNetworkRecipe", "GraphTrainingRecipe"]
__all__ += ["GraphPredictionRecipe", "GraphReportRecipe"]
# Translation
__all__ += ["TranslationRecipe", "TranslationDataRecipe", "TranslationNetworkRecipe"]
__all__ += ["TranslationAttentionRecipe", "TranslationTrainingRecipe", "TranslationProbeRecipe"]
__all__ += ["TranslationReportRecipe", "SearchRecipe"]
# Texts about graphs
__all__ += ["GraphTextRecipe", "GraphTextDataRecipe", "GraphTextNetworkRecipe", "GraphTextTrainingRecipe"]
__all__ += ["GraphTextReportRecipe", "WritingRecipe"]
# Visual questions
__all__ += ["VisualQuestionRecipe", "VisualQuestionDataRecipe", "VisualQuestionNetworkRecipe"]
__all__ += ["VisualQuestionTrainingRecipe", "VisualQuestionReportRecipe", "QuestionFilesRecipe"]
# Pre-training
__all__ += ["PretrainingRecipe", "PretrainingDataRecipe", "PretrainingNetworkRecipe"]
__all__ += ["PretrainingTrainingRecipe", "PretrainingReportRecipe", "GeneratorRecipe"]
# Experiments
__all__ += ["ExperimentRecipe", "ExperimentSection", "ExperimentNetworkRecipe", "ExperimentTrainingRecipe"]
__all__ += ["ConditionRecipe", "HeadSearchRecipe"]
