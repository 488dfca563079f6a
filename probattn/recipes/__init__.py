"""Recipes: all that a run depends on, written in YAML and checked strictly.

They belong to the tasks in :mod:`probattn.tasks`; their names are gathered here.
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
    AttentionKeys,
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
"""A recipe of texts, a graph, translation, texts about graphs, visual questions, pre-training, an experiment or another
head."""

recipe_reference = partial(reference, Recipe)
graph_recipe_reference = partial(reference, GraphRecipe)
translation_recipe_reference = partial(reference, TranslationRecipe)
graph_text_recipe_reference = partial(reference, GraphTextRecipe)
visual_question_recipe_reference = partial(reference, VisualQuestionRecipe)
pretraining_recipe_reference = partial(reference, PretrainingRecipe)
experiment_recipe_reference = partial(reference, ExperimentRecipe)
head_recipe_reference = partial(family_reference, HeadRecipe, [task.recipe_class for task in FINE_TUNING])

__all__ = [
    "AlignmentRecipe",
    "AnyRecipe",
    "AttentionKeys",
    "AttentionRecipe",
    "ConditionRecipe",
    "DataRecipe",
    "DisagreementRecipe",
    "EarlyStoppingRecipe",
    "ExperimentNetworkRecipe",
    "ExperimentRecipe",
    "ExperimentSection",
    "ExperimentTrainingRecipe",
    "GeneratorRecipe",
    "GraphDataRecipe",
    "GraphNetworkRecipe",
    "GraphPredictionRecipe",
    "GraphRecipe",
    "GraphReportRecipe",
    "GraphTextDataRecipe",
    "GraphTextNetworkRecipe",
    "GraphTextRecipe",
    "GraphTextReportRecipe",
    "GraphTextTrainingRecipe",
    "GraphTrainingRecipe",
    "HeadRecipe",
    "HeadSearchRecipe",
    "LimitsRecipe",
    "MethodRecipe",
    "MethodSection",
    "NetworkRecipe",
    "PredictionRecipe",
    "PretrainingDataRecipe",
    "PretrainingNetworkRecipe",
    "PretrainingRecipe",
    "PretrainingReportRecipe",
    "PretrainingTrainingRecipe",
    "ProbeRecipe",
    "QuestionFilesRecipe",
    "Recipe",
    "RecipeError",
    "ReportRecipe",
    "RepulsionRecipe",
    "SearchRecipe",
    "SourceRecipe",
    "TrainingRecipe",
    "TranslationAttentionRecipe",
    "TranslationDataRecipe",
    "TranslationNetworkRecipe",
    "TranslationProbeRecipe",
    "TranslationRecipe",
    "TranslationReportRecipe",
    "TranslationTrainingRecipe",
    "VisualQuestionDataRecipe",
    "VisualQuestionNetworkRecipe",
    "VisualQuestionRecipe",
    "VisualQuestionReportRecipe",
    "VisualQuestionTrainingRecipe",
    "WritingRecipe",
    "experiment_recipe_reference",
    "graph_recipe_reference",
    "graph_text_recipe_reference",
    "head_recipe_reference",
    "load_any_recipe",
    "load_recipe",
    "pretraining_recipe_reference",
    "read_recipe",
    "recipe_names",
    "recipe_reference",
    "translation_recipe_reference",
    "visual_question_recipe_reference",
]
