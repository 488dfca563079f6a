"""Sections of recipes that ask for attention methods, and recipes that have some."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import create_model, model_validator

from probattn.sites import METHODS, AlignmentAttention, BayesianAttention, DisagreementAttention, Method
from probattn.sites.particle_layers import ParticleLayers
from probattn.sites.repulsive import RepulsiveAttention
from probattn.tasks.sections.base import RunRecipe, key
from probattn.tasks.sections.derived import MethodSection, method_section

Asked = TypeVar("Asked", bound=Method)
Taking = TypeVar("Taking", bound="MethodRecipe")


class MethodRecipe(RunRecipe):
    """Base class of recipes whose network can have attention methods, each selected by a section.

    Attributes:
        takes_registered: whether the recipe also has sections for methods that are registered later.
        without: sections of methods that the networks do not accept.
    """

    takes_registered: ClassVar[bool] = True
    without: ClassVar[tuple[str, ...]] = ()

    def sections(self) -> dict[str, MethodSection]:
        """The sections that select methods, by name, in the order of the recipe."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: value for name, value in values.items() if isinstance(value, MethodSection)}

    def methods(self) -> tuple[Method, ...]:
        """The attention methods of the recipe; empty if its attention is deterministic and unchanged."""
        recipe: Any = self
        built = [section.build(recipe.training.seed) for section in self.sections().values()]
        return tuple(method for method in built if method is not None)

    def of(self, kind: type[Asked]) -> Asked | None:
        """The options of the method of class ``kind``; None without this method."""
        return next((method for method in self.methods() if isinstance(method, kind)), None)

    def method_words(self) -> str:
        r"""Description of the methods.

        Example:
            >>> from probattn.recipes import read_recipe
            >>> read_recipe("data: {train: imdb}\nalignment: {method: gan, weight: 0.1}").method_words()
            'BABN, default options; GAN alignment, weight 0.1'
        """
        recipe: Any = self
        words = [method.words() for method in self.methods()]
        if self.of(BayesianAttention) is None:
            words.insert(0, self.attention_words())
        if getattr(recipe.training, "frozen_probe", False):
            words.append("nothing but attention learns")
        return "; ".join(words)

    def attention_words(self) -> str:
        """Description of attention that is not latent."""
        return "deterministic attention"


def optional_method(section: Any) -> Any:
    """The field of a method that is asked for beside latent attention, or not at all."""
    return key(None, section.method_class.recipe.about)


def with_registered(kind: type[Taking]) -> type[Taking]:
    """A kind of recipe with sections for the methods that are registered and that it does not name itself."""
    sections = (*kind.model_fields, *kind.without)
    new = tuple(method for method in METHODS if method.section not in sections)
    return _extended(kind, new) if new and kind.takes_registered else kind


@cache
def _extended(kind: Any, methods: tuple[type[Method], ...]) -> Any:
    sections: dict[str, Any] = {}
    for method in methods:
        section = method_section(method)
        sections[method.section] = (section | None, optional_method(section))
    return create_model(kind.__name__, __base__=kind, __doc__=kind.__doc__, **sections)


_Attention: Any = method_section(BayesianAttention)


class AttentionRecipe(_Attention):
    r"""The attention method, the attention calls that it replaces, and its options.

    Keys that are left out take their values from `preset` and `method`. With `method: deterministic` the other keys
    have no effect: changing this one key gives a recipe's baseline.

    Example:
        >>> AttentionRecipe(method="bam").build().concentration
        10.0
        >>> AttentionRecipe(preset="paper").sigma
        1e-06
        >>> AttentionRecipe(method="deterministic").build() is None
        True
    """

    @model_validator(mode="before")
    @classmethod
    def _fixed(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("method") == "bam":
            return {"concentration": BayesianAttention.bam().concentration} | value
        return value

    @model_validator(mode="after")
    def _one_concentration(self) -> AttentionRecipe:
        if self.method == "babn" and self.concentration != "learned" and self.posterior == "weibull":
            raise ValueError(
                f"concentration: expected 'learned' with method 'babn', got {self.concentration}; "
                "a fixed one is method 'bam'"
            )
        if self.method == "bam" and self.concentration == "learned" and self.posterior == "weibull":
            raise ValueError("concentration: expected a number > 0 with method 'bam', got 'learned'")
        return self

    def build(self, seed: int = 0) -> BayesianAttention | None:
        """The options of latent attention weights; None for another method."""
        return super().build(seed) if self.method in {"babn", "bam"} else None

    def deterministic(self) -> AttentionRecipe:
        """The same section with deterministic attention."""
        return self.model_copy(update={"method": "deterministic"})


_Alignment: Any = method_section(AlignmentAttention)


class AlignmentRecipe(_Alignment):
    r"""The divergence that pulls the queries and keys of each attention head together in training, and its options.

    It combines with any `attention` method. Keys that are left out take their values from `preset`.

    Example:
        >>> AlignmentRecipe(method="ot", preset="paper").build().debias
        False
        >>> AlignmentRecipe(weight=0.1).build(seed=3)
        AlignmentAttention(method='ct', weight=0.1, ...)
    """


_Repulsion: Any = method_section(RepulsiveAttention)


class RepulsionRecipe(_Repulsion):
    r"""Treats the attention heads of each projection as particles of one posterior, which repel each other in training.

    It combines with `attention` and `alignment`, and changes only gradients in training. The page "Repulsive attention"
    measures `weight` and has the [steps from a penalty](../concepts/repulsive_attention.md#an-alternative-penalties).

    Example:
        >>> RepulsionRecipe(sampler="sgld").build().couples
        False
        >>> RepulsionRecipe(weight=0.1).build().repulsion
        0.1
    """


_Disagreement: Any = method_section(DisagreementAttention)


class DisagreementRecipe(_Disagreement):
    r"""Penalty on similar attention heads, a comparison for repulsive attention.

    It combines with the other sections and changes only the training objective, not how the network predicts.

    Example:
        >>> DisagreementRecipe(method="frobenius").build().looks_at
        'weights'
    """


_Particles: Any = method_section(ParticleLayers)


class ParticlesRecipe(_Particles):
    r"""Replaces the last layers and the task head by several copies (particles) over shared lower layers.

    The network predicts with the mean of the particles; each posterior draw is one particle.

    Example:
        >>> ParticlesRecipe(num_particles=3).build().layers
        (-2, -1)
    """


Alignment = Annotated[AlignmentRecipe | None, optional_method(AlignmentRecipe)]
Repulsion = Annotated[RepulsionRecipe | None, optional_method(RepulsionRecipe)]
Disagreement = Annotated[DisagreementRecipe | None, optional_method(DisagreementRecipe)]
Particles = Annotated[ParticlesRecipe | None, optional_method(ParticlesRecipe)]
"""Sections of methods that stand beside latent attention, or null."""
