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
    """Maximum numbers of passages, a fixed subset; null for all."""

    validation: Count | None = key(1000, "Maximum number of validation passages; null for all.")
    test: Count | None = key(1000, "Maximum number of test passages; null for all.")


class PretrainingDataRecipe(Section):
    """Texts to learn from, and how they become passages of tokens.

    Whether a text is for training, validation or testing depends on its letters and digits alone, so equal texts are in
    the same split. Files are read again in every epoch; built-in data sets are kept in memory.

    Example:
        >>> PretrainingDataRecipe(texts=["imdb", "my.txt"]).stream().sources
        ('imdb', 'my.txt')
    """

    texts: list[str] = Field(
        min_length=1,
        description="Sources of texts: files with one text per line (`.txt`, `.txt.gz`), folders of such files, or "
        f"built-in data sets (those of `data.train`, and `{MULTI30K}`), of which the training split is read.",
    )
    validation_fraction: float = key(0.01, "Share of the texts for validation.", gt=0, lt=0.5)
    test_fraction: float = key(0.01, "Share of the texts for testing.", gt=0, lt=0.5)
    limits: PassageLimits = key(PassageLimits(), "Maximum numbers of validation and test passages.")
    tokenizer: Filled | None = key(
        None,
        "Folder of a tokenizer with a mask token, or its name on the hub; null to learn a WordPiece vocabulary from "
        "the training texts.",
    )
    vocabulary: int = key(30_522, "Maximum size of a learned vocabulary.", ge=6)
    lowercase: bool = key(True, "Whether a learned vocabulary ignores case and accents.")
    max_length: int = key(
        128, "Maximum number of tokens of a passage, counting [CLS] and [SEP]; longer texts are split.", ge=3
    )
    join: bool = key(True, "Whether passages continue with the next text; false for one text each.")
    shuffle_buffer: Count = key(
        10_000, "Texts from which the next one is drawn at random; 1 keeps their order."
    )
    mask_probability: float = key(
        0.15, "Share of a passage's tokens that is masked, except special ones.", gt=0, lt=1
    )

    def stream(self) -> TextStream:
        """The stream of texts; it reads them when it is iterated."""
        return TextStream(tuple(self.texts), self.validation_fraction, self.test_fraction)

    def resolved(self) -> Self:
        """The same section with absolute paths of files and folders."""
        texts = [text if text in NAMED else absolute(text) for text in self.texts]
        tokenizer = self.tokenizer
        if tokenizer is not None and Path(tokenizer).expanduser().is_dir():
            tokenizer = absolute(tokenizer)
        return self.model_copy(update={"texts": texts, "tokenizer": tokenizer})


class GeneratorRecipe(Section):
    """Sizes of the generator; by default widths and heads are a quarter of the discriminator's, as in ELECTRA-small."""

    width: Count | None = key(None, "Size of the generator's states; null: the discriminator's / 4.")
    layers: Count | None = key(None, "Layers of the generator; null: the discriminator's number.")
    heads: Count | None = key(None, "Heads of each generator layer; null: the discriminator's / 4.")
    feed_forward: Count | None = key(
        None, "Width of the generator's feed-forward layers; null: the discriminator's / 4."
    )


class PretrainingNetworkRecipe(Section):
    """ELECTRA; the defaults are those of ELECTRA-small (Clark et al. 2020, appendix A).

    Example:
        >>> PretrainingNetworkRecipe().generator_sizes()
        {'hidden_size': 64, 'num_hidden_layers': 12, 'num_attention_heads': 1, 'intermediate_size': 256}
    """

    width: Count = key(256, "Size of the discriminator's states, a multiple of `heads`.")
    embedding: Count = key(128, "Size of the embeddings of tokens and positions.")
    layers: Count = key(12, "Layers of the discriminator.")
    heads: Count = key(4, "Attention heads of each layer of the discriminator.")
    feed_forward: Count = key(1024, "Hidden width of the discriminator's feed-forward layers.")
    positions: int = key(512, "Positions, the maximum number of tokens that the networks read.", ge=3)
    dropout: Rate = key(0.1, "Dropout of embeddings and of the outputs of sublayers.")
    attention_dropout: Rate = key(0.1, "Dropout of attention weights; not for latent weights.")
    initializer: float = key(
        0.02,
        "Standard deviation of the initial weights; narrow networks learn sooner from about 1 / sqrt(`width`).",
        gt=0,
        lt=1,
    )
    generator: GeneratorRecipe = key(GeneratorRecipe(), "The generator.")
    tied: bool = key(True, "Whether generator and discriminator share their embeddings, as in the paper.")
    discriminator_weight: float = key(50.0, "Weight of the discriminator's loss in the objective.", gt=0)

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
        """Sizes of the discriminator by their names in Hugging Face configurations."""
        return {
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.feed_forward,
        }

    def generator_sizes(self) -> dict[str, Any]:
        """Sizes of the generator by their names in Hugging Face configurations."""
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
            "Epochs; the number of updates follows from an estimate of the number of passages."
        ),
        "steps": length_key(f"Number of updates, instead of `epochs`; {STEPS:,} if both are null."),
        **training_keys(
            batch_size={"default": 128},
            length_pool={"description": "Must be null: passages come from a stream, whose order is fixed."},
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
    """Recipe of pre-training, identified by its section `pretraining`.

    Attention methods apply to the discriminator, the network that is saved for use; the generator has deterministic
    attention.

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
