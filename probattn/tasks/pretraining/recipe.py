"""Recipes of pre-training: texts, networks, training, report, and all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, field_validator, model_validator

from probattn.options import Count, Filled
from probattn.tasks.classification.recipe import PredictionRecipe
from probattn.tasks.pretraining.stream import MULTI30K, NAMED, TextStream
from probattn.tasks.sections.base import Rate, Section, TopicsReportSection, absolute, key
from probattn.tasks.sections.derived import drawn_section
from probattn.tasks.sections.methods import Alignment, AttentionRecipe, Disagreement, MethodRecipe, Repulsion
from probattn.tasks.sections.training import TrainingRecipe, length_key, training_keys

STEPS = 1_000_000
"""Updates where none are given."""


class PassageLimits(Section):
    """Most passages to use, a fixed choice; null for all."""

    validation: Count | None = key(1000, "To choose by.")
    test: Count | None = key(1000, "To measure on.")


class PretrainingDataRecipe(Section):
    """Texts to learn from, and how they become passages of tokens.

    Which part a text belongs to depends on its letters and digits alone, so that equal texts are in one part. Texts are
    read as they are needed, from files again in every pass; data sets that have a name are kept in memory.

    Example:
        >>> PretrainingDataRecipe(texts=["imdb", "my.txt"]).stream().sources
        ('imdb', 'my.txt')
    """

    texts: list[str] = Field(
        min_length=1,
        description="Where the texts are: files with a text a line (`.txt`, `.txt.gz`), folders of such files, or data "
        f"sets that have a name, of which the training part is read: those of `data.train`, and `{MULTI30K}`.",
    )
    validation_fraction: float = key(0.01, "Share of the texts to choose by.", gt=0, lt=0.5)
    test_fraction: float = key(0.01, "Share of the texts to measure on.", gt=0, lt=0.5)
    limits: PassageLimits = key(PassageLimits(), "Most passages to choose by and to measure on.")
    tokenizer: Filled | None = key(
        None,
        "Folder of a tokenizer with a mask token, or its name on the hub; null to learn a WordPiece vocabulary from "
        "the training texts.",
    )
    vocabulary: int = key(30_522, "Most tokens of a vocabulary that is learned.", ge=6)
    lowercase: bool = key(True, "Whether a vocabulary that is learned leaves case and accents out.")
    max_length: int = key(
        128, "Most tokens of a passage, [CLS] and [SEP] included; longer texts are cut.", ge=3
    )
    join: bool = key(
        True, "Whether a passage goes on with the next text; false for passages of one text each."
    )
    shuffle_buffer: Count = key(10_000, "Texts among which the next one is drawn; 1 for their own order.")
    mask_probability: float = key(
        0.15, "Share of the tokens of a passage, special ones aside, that are masked.", gt=0, lt=1
    )

    def stream(self) -> TextStream:
        """The texts, which are not read yet."""
        return TextStream(tuple(self.texts), self.validation_fraction, self.test_fraction)

    def resolved(self) -> Self:
        """The same, with the paths of files and folders made absolute."""
        texts = [text if text in NAMED else absolute(text) for text in self.texts]
        tokenizer = self.tokenizer
        if tokenizer is not None and Path(tokenizer).expanduser().is_dir():
            tokenizer = absolute(tokenizer)
        return self.model_copy(update={"texts": texts, "tokenizer": tokenizer})


class GeneratorRecipe(Section):
    """Sizes of the generator; null for a quarter of the discriminator's, as in ELECTRA-small."""

    width: Count | None = key(None, "Of its states, a multiple of its heads.")
    layers: Count | None = key(None, "Null for as many as the discriminator has.")
    heads: Count | None = key(None, "Of every layer.")
    feed_forward: Count | None = key(None, "Hidden width of a layer.")


class PretrainingNetworkRecipe(Section):
    """ELECTRA; the defaults are those of ELECTRA-small (Clark et al. 2020, appendix A).

    Example:
        >>> PretrainingNetworkRecipe().generator_sizes()
        {'hidden_size': 64, 'num_hidden_layers': 12, 'num_attention_heads': 1, 'intermediate_size': 256}
    """

    width: Count = key(256, "Of the discriminator's states, a multiple of `heads`.")
    embedding: Count = key(128, "Of the embeddings of tokens and positions.")
    layers: Count = key(12, "Of the discriminator.")
    heads: Count = key(4, "Of every layer.")
    feed_forward: Count = key(1024, "Hidden width of a layer.")
    positions: int = key(512, "Most tokens that the networks can read.", ge=3)
    dropout: Rate = key(0.1, "Of embeddings and in the layers.")
    attention_dropout: Rate = key(0.1, "Of attention weights; latent ones have none.")
    initializer: float = key(
        0.02,
        "Standard deviation of the initial weights; narrow networks learn sooner from about one over the root of "
        "their width.",
        gt=0,
        lt=1,
    )
    generator: GeneratorRecipe = key(GeneratorRecipe(), "The generator.")
    tied: bool = key(True, "Whether both networks read with the same embeddings, as in the paper.")
    discriminator_weight: float = key(50.0, "Weight of the discriminator's part of the objective.", gt=0)

    @model_validator(mode="after")
    def _whole_heads(self) -> PretrainingNetworkRecipe:
        sizes = self.generator_sizes()
        for words, width, heads in (
            ("width", self.width, self.heads),
            ("generator.width", sizes["hidden_size"], sizes["num_attention_heads"]),
        ):
            if width % heads:
                raise ValueError(f"{words}: expected a multiple of the heads ({heads}), got {width}")
        return self

    def sizes(self) -> dict[str, Any]:
        """Sizes of the discriminator by their names in transformers."""
        return {
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.feed_forward,
        }

    def generator_sizes(self) -> dict[str, Any]:
        """Sizes of the generator by their names in transformers."""
        generator = self.generator
        return {
            "hidden_size": generator.width or max(1, self.width // 4),
            "num_hidden_layers": generator.layers or self.layers,
            "num_attention_heads": generator.heads or max(1, self.heads // 4),
            "intermediate_size": generator.feed_forward or max(1, self.feed_forward // 4),
        }


_Training: Any = drawn_section(
    {
        "epochs": length_key(
            "Passes over the texts, in updates by an estimate of the number of passages from a sample."
        ),
        "steps": length_key(f"Updates, instead of `epochs`; {STEPS:,} where neither is given."),
        **training_keys(
            batch_size={"default": 128},
            length_pool={"description": "Null: passages come from a stream, whose order is its own."},
            learning_rate={"default": 5e-4},
            gradient_clip={"default": 1.0},
        ),
    },
    TrainingRecipe,
)


class PretrainingTrainingRecipe(_Training):
    """Training from random weights; the objective is in nats per token, the discriminator's times its weight.

    Example:
        >>> PretrainingTrainingRecipe().steps
        1000000
    """

    default_length: ClassVar[Mapping[str, int]] = {"steps": STEPS}

    @field_validator("length_pool")
    @classmethod
    def _streamed(cls, value: int | None) -> int | None:
        if value is not None:
            raise ValueError("expected null: passages come from a stream, whose order is its own")
        return value


class PretrainingReportRecipe(TopicsReportSection):
    """Contents of the report."""

    samples: int = key(4, "Test passages whose tokens are shown with their predictions.", ge=0, le=100)
    bins: int = key(10, "Bins of the calibration error.", ge=2, le=100)


class PretrainingRecipe(MethodRecipe):
    """All that a run of pre-training depends on. What makes a recipe one of them is its section `pretraining`.

    Attention methods are those of the discriminator, the network that is kept; the generator's attention is
    deterministic.

    Example:
        >>> recipe = PretrainingRecipe(pretraining={"texts": ["imdb"]}, attention={"method": "deterministic"})
        >>> recipe.methods(), recipe.training.steps
        ((), 1000000)
    """

    introduction = """# Recipes of pre-training

A recipe with a section `pretraining` trains ELECTRA's generator and discriminator on texts without labels; see
[Pre-training](../concepts/pretraining.md). As in [recipes of texts](reference.md), unknown keys are errors, and `--set`
replaces single keys.
"""

    pretraining: PretrainingDataRecipe = Field(description="The texts.")
    network: PretrainingNetworkRecipe = key(PretrainingNetworkRecipe(), "The networks.")
    attention: AttentionRecipe = key(AttentionRecipe(), "The attention method of the discriminator.")
    alignment: Alignment
    repulsion: Repulsion
    disagreement: Disagreement
    training: PretrainingTrainingRecipe = key(PretrainingTrainingRecipe(), "How to train.")
    prediction: PredictionRecipe = key(PredictionRecipe(), "How to predict.")
    report: PretrainingReportRecipe = key(PretrainingReportRecipe(), "What to report.")

    @model_validator(mode="after")
    def _long_enough(self) -> PretrainingRecipe:
        length, positions = self.pretraining.max_length, self.network.positions
        if length > positions:
            raise ValueError(
                f"pretraining.max_length: expected at most {positions}, the positions of the network "
                f"(network.positions), got {length}"
            )
        return self
