"""Recipes: all that a run depends on, written in YAML and checked strictly."""

from probattn.recipes.data import DataRecipe, LimitsRecipe, SourceRecipe
from probattn.recipes.derived import MethodSection
from probattn.recipes.errors import RecipeError
from probattn.recipes.experiment import (
    ConditionRecipe,
    ExperimentNetworkRecipe,
    ExperimentRecipe,
    ExperimentSection,
    ExperimentTrainingRecipe,
    HeadSearchRecipe,
)
from probattn.recipes.graph import (
    GraphDataRecipe,
    GraphNetworkRecipe,
    GraphPredictionRecipe,
    GraphRecipe,
    GraphReportRecipe,
)
from probattn.recipes.graph_training import GraphTrainingRecipe
from probattn.recipes.loading import AnyRecipe, load_any_recipe, load_recipe, read_recipe, recipe_names
from probattn.recipes.methods import (
    AlignmentRecipe,
    AttentionKeys,
    AttentionRecipe,
    DisagreementRecipe,
    MethodRecipe,
    RepulsionRecipe,
    TranslationAttentionRecipe,
)
from probattn.recipes.network import NetworkRecipe
from probattn.recipes.prediction import PredictionRecipe, ReportRecipe
from probattn.recipes.probe import ProbeRecipe, TranslationProbeRecipe
from probattn.recipes.recipe import Recipe
from probattn.recipes.reference import (
    experiment_recipe_reference,
    graph_recipe_reference,
    recipe_reference,
    translation_recipe_reference,
)
from probattn.recipes.training import EarlyStoppingRecipe, TrainingRecipe
from probattn.recipes.translation import (
    SearchRecipe,
    TranslationDataRecipe,
    TranslationRecipe,
    TranslationReportRecipe,
)
from probattn.recipes.translation_network import TranslationNetworkRecipe
from probattn.recipes.translation_training import TranslationTrainingRecipe

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
    "GraphDataRecipe",
    "GraphNetworkRecipe",
    "GraphPredictionRecipe",
    "GraphRecipe",
    "GraphReportRecipe",
    "GraphTrainingRecipe",
    "HeadSearchRecipe",
    "LimitsRecipe",
    "MethodRecipe",
    "MethodSection",
    "NetworkRecipe",
    "PredictionRecipe",
    "ProbeRecipe",
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
    "experiment_recipe_reference",
    "graph_recipe_reference",
    "load_any_recipe",
    "load_recipe",
    "read_recipe",
    "recipe_names",
    "recipe_reference",
    "translation_recipe_reference",
]
