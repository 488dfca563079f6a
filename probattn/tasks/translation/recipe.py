"""Recipes of translation: data, network, training, search, report, and all of them together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from probattn.data import DataError, SentencePairs, load_multi30k, read_pairs
from probattn.models.translation.network import SearchOptions
from probattn.options import Count, Filled, Natural
from probattn.tasks.sections.base import LimitsSection, Rate, Section, Seed, TopicsReportSection, key
from probattn.tasks.sections.derived import drawn_section, options_section
from probattn.tasks.sections.methods import Alignment, AttentionRecipe, Disagreement, MethodRecipe, Repulsion
from probattn.tasks.sections.training import TrainingRecipe, TranslationProbeRecipe, length_key, training_keys

OF_ONE: dict[str, tuple[str, ...]] = {
    "transformer": ("feed_forward", "attention_dropout", "activation_dropout"),
    "lstm": ("decoder_width", "bidirectional", "recurrent_dropout", "output_width", "uniform_attention"),
}
"""Keys that only one of the networks has."""

LSTM_SIZE: dict[str, Any] = {"width": 256, "layers": 2, "heads": 1, "dropout": 0.0}
"""What an LSTM has of the keys that both have, where they are left out."""


class TranslationNetworkRecipe(Section):
    """An encoder-decoder with one embedding for both languages: a Transformer (Vaswani et al. 2017) or an LSTM.

    The default size is that of IWSLT experiments with 4 heads, which An et al. 2020 call small. An LSTM has by default
    that of Snell et al. 2021: `width: 256`, `layers: 2`, `heads: 1`, `dropout: 0.0`.

    Example:
        >>> TranslationNetworkRecipe(name="lstm").width, TranslationNetworkRecipe().width
        (256, 512)
    """

    name: Literal["transformer", "lstm"] = key(
        "transformer",
        "`transformer`, or `lstm`: a bidirectional LSTM encoder and an LSTM decoder with dot attention between them "
        "(Luong et al. 2015, Snell et al. 2021).",
    )
    width: Count = key(512, "Size of embeddings and hidden states (of each direction in an `lstm` encoder).")
    decoder_width: Count | None = key(None, "Size of an `lstm` decoder's hidden states; null for `width`.")
    layers: Count = key(6, "Layers of the encoder, and of the decoder.")
    heads: Count = key(
        4,
        "Attention heads of every call. They divide the width of a `transformer`; in an `lstm` each has the size of "
        "the encoder's states, and contexts are summed.",
    )
    dropout: Rate = key(
        0.3,
        "Dropout of embeddings and sublayers' outputs; in an `lstm`, of embeddings and in its output network.",
    )
    feed_forward: Count = key(1024, "Hidden width of the feed-forward layers of a `transformer`.")
    attention_dropout: Rate = key(0.0, "Dropout of a `transformer`'s attention, unless it is latent.")
    activation_dropout: Rate = key(0.0, "Dropout inside the feed-forward layers of a `transformer`.")
    bidirectional: bool = key(True, "Whether the encoder of an `lstm` is bidirectional.")
    recurrent_dropout: Rate = key(0.5, "Dropout between the layers of an `lstm`.")
    output_width: Natural | None = key(
        None, "Hidden units of an `lstm`'s output network; 0 for a single linear map, null for `width`."
    )
    uniform_attention: bool = key(False, "Whether an `lstm` attends to all tokens equally.")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        return LSTM_SIZE | value if isinstance(value, dict) and value.get("name") == "lstm" else value

    @model_validator(mode="after")
    def _whole_heads(self) -> TranslationNetworkRecipe:
        fields = type(self).model_fields
        for name, keys in OF_ONE.items():
            for option in keys if name != self.name else ():
                if getattr(self, option) != fields[option].default:
                    raise ValueError(f"{option}: this key is for {name!r}, and the network is {self.name!r}")
        if self.name == "transformer" and (self.width % self.heads or self.width % 2):
            raise ValueError(f"width: expected an even multiple of heads ({self.heads}), got {self.width}")
        return self


STEPS = 20_000
"""Updates where neither steps nor epochs are given."""


_Training: Any = drawn_section(
    {
        "epochs": length_key(
            f"Number of epochs, instead of `steps`; if both are null, training has {STEPS:,} updates."
        ),
        **training_keys(
            batch_size={"default": 256},
            length_pool={"default": 20},
            optimizer_arguments={"default": {"betas": [0.9, 0.98]}},
            learning_rate={"default": 5e-4},
            weight_decay={"default": 1e-4},
            schedule={"default": "inverse_sqrt"},
            warmup_steps={"default": 4000},
        ),
    },
    TrainingRecipe,
)


class TranslationTrainingRecipe(_Training):
    """Training of a translation network from random weights.

    The defaults are those of IWSLT experiments with a small Transformer.

    Example:
        >>> TranslationTrainingRecipe().optimizer_arguments
        {'betas': [0.9, 0.98]}
        >>> TranslationTrainingRecipe(epochs=2).steps is None
        True
    """

    optimizer: Literal["adamw", "adam", "sgd"] = key("adam", "Optimiser of `torch.optim`.")
    label_smoothing: Rate = key(0.1, "Share of a target token's probability that is spread over all tokens.")
    per: Literal["token", "pair"] = key(
        "token",
        "Unit of the objective: nats per target `token` or per sentence `pair`. It scales all terms alike.",
    )

    default_length: ClassVar[Mapping[str, int]] = {"steps": STEPS}


class TranslationAttentionRecipe(AttentionRecipe):
    """The attention method, the attention calls that it replaces, and its options.

    Keys that are left out take their values from `preset` and `method`. With `method: deterministic` the other keys
    have no effect: changing `method` alone gives the baseline. `variational` uses only `estimator` and `prediction`.

    Example:
        >>> TranslationAttentionRecipe(method="variational").estimator
        'enumerate'
        >>> TranslationAttentionRecipe(method="bam").build().concentration
        10.0
    """

    method: Literal["deterministic", "babn", "bam", "variational"] = key(
        "babn",
        "`deterministic` (the network's own attention), `babn` (Bayesian attention belief networks), `bam` (Bayesian "
        "attention modules: one fixed concentration) or `variational` (Deng et al. 2018: one latent source token for "
        "each target token; for an `lstm` with one head; its KL has weight 1 from the start unless `training` sets "
        "another).",
    )
    estimator: Literal["enumerate", "sample"] = key(
        "enumerate",
        "How `variational` sums over source tokens in training: `enumerate` all of them, exactly, or `sample` one, "
        "with a score-function gradient and a baseline.",
    )
    prediction: Literal["mixture", "soft"] = key(
        "mixture",
        "How `variational` predicts: by the exact `mixture` over source tokens, or by `soft` attention, the mean of "
        "their states.",
    )


PARTS = ("train", "validation", "test")


class TranslationDataRecipe(Section):
    """Parallel texts, and the subwords into which they are split.

    Example:
        >>> TranslationDataRecipe(train="my/train", validation="my/dev", test="my/test", source="fr").file("test", "fr")
        'my/test.fr'
    """

    corpus: Literal["multi30k"] | None = key(
        "multi30k",
        "`multi30k` (29,000 captions of photographs, English and German), or null for your own files; null by default "
        "where `train` is set.",
    )
    folder: Filled | None = key(None, "Folder of `multi30k`; null: `multi30k` in `PROBATTN_DATA`.")
    source: str = key("en", "Language to translate from.", pattern=r"^\w[\w-]*$")
    target: str = key("de", "Language to translate to.", pattern=r"^\w[\w-]*$")
    train: Filled | None = key(
        None,
        "Your own training files, without the language: `my/train` for `my/train.en` and `my/train.de`, or packed "
        "`.en.gz`; one sentence per line.",
    )
    validation: Filled | None = key(None, "Your own validation files, without the language.")
    test: Filled | None = key(
        None,
        "Your own test files, without the language; for `multi30k`, another of its test sets, such as "
        "`test_2017_flickr`.",
    )
    limits: LimitsSection = key(LimitsSection(), "Maximum numbers of sentence pairs.")
    subwords: int = key(8000, "Size of the subword vocabulary, which both languages share.", ge=8)
    subword_model: Literal["bpe", "unigram"] = key(
        "bpe", "How the subwords are learned: byte-pair encoding or unigram language model."
    )
    max_length: int = key(
        256, "Maximum number of tokens with the end token; also a `transformer`'s number of positions.", ge=16
    )
    on_long: Literal["truncate", "refuse"] = key(
        "truncate", "Whether to `truncate` longer sentences or `refuse` them."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("train") is not None and "corpus" not in value:
            return value | {"corpus": None}
        return value

    @model_validator(mode="after")
    def _one_corpus(self) -> TranslationDataRecipe:
        if self.source == self.target:
            raise ValueError(f"target: expected another language than source, got {self.target!r} twice")
        checked = PARTS if self.corpus is None else PARTS[:2]
        defined = [role for role in checked if getattr(self, role) is not None]
        if self.corpus is not None and defined:
            raise ValueError(f"{defined[0]}: expected null beside corpus {self.corpus!r}; set corpus to null")
        if self.corpus is None and len(defined) < len(PARTS):
            missing = next(role for role in PARTS if role not in defined)
            raise ValueError(f"{missing}: expected a path without ending, since corpus is null, got null")
        if self.corpus is None and self.folder is not None:
            raise ValueError(
                "folder: expected null, since corpus is null; write it into train, validation and test"
            )
        if self.corpus is not None and {self.source, self.target} != {"en", "de"}:
            raise ValueError(
                f"source: {self.corpus} has 'en' and 'de', got {self.source!r} and {self.target!r}"
            )
        return self

    def file(self, part: str, language: str) -> str:
        """Path of a file of the user; that of its compressed form if only this exists."""
        plain = f"{getattr(self, part)}.{language}"
        packed = f"{plain}.gz"
        return packed if Path(packed).exists() and not Path(plain).exists() else plain

    def load(self) -> Mapping[str, SentencePairs]:
        """Reads the pairs of "train", "validation" and "test".

        Raises:
            DataError: the data are invalid; the message is one line.
        """
        if self.corpus is not None:
            reverse = self.source == "de"
            tests = {} if self.test is None else {"test": self.test}
            corpus = load_multi30k(
                self.folder, source="de" if reverse else "en", target="en" if reverse else "de", **tests
            )
            splits = corpus.roles()
        else:
            splits = {role: self._read(role) for role in PARTS}
        return {role: pairs.take(getattr(self.limits, role)) for role, pairs in splits.items()}

    def _read(self, role: str) -> Any:
        languages = (self.source, self.target)
        files = [self.file(role, language) for language in languages]
        try:
            return read_pairs(files[0], files[1], languages)
        except DataError as error:
            raise DataError(f"translation.{role}: {error}") from None

    def path_keys(self) -> Iterable[str]:
        """Keys with paths: the folder, and files of the user."""
        return ("folder", *(PARTS if self.corpus is None else ()))


_Search: Any = options_section(SearchOptions)


class SearchRecipe(_Search):
    """Beam search for translations."""


class TranslationReportRecipe(TopicsReportSection):
    """Contents of the report."""

    samples: int = key(12, "Test sentences whose translations the report shows.", ge=0, le=200)
    seed: Seed = key(0, "Seed of the bootstrap resamples.")


class TranslationRecipe(MethodRecipe):
    """Recipe of translation, identified by its section `translation`.

    Example:
        >>> recipe = TranslationRecipe(translation={"subwords": 4000}, attention={"method": "deterministic"})
        >>> recipe.methods(), recipe.network.heads, recipe.training.label_smoothing
        ((), 4, 0.1)
    """

    without: ClassVar[tuple[str, ...]] = ("particles",)  # which keep no cache of keys and values

    introduction = """# Recipes of translation

A recipe with a section `translation` trains an encoder-decoder, a Transformer or an LSTM, on parallel text; see
[Translation](../concepts/translation.md). A section without keys, `translation: {}`, uses Multi30k. As in
[recipes of texts](reference.md), unknown keys are errors, and `--set` replaces single keys.
"""

    translation: TranslationDataRecipe = key(TranslationDataRecipe(), "What to train on and to measure on.")
    network: TranslationNetworkRecipe = key(TranslationNetworkRecipe(), "The network.")
    attention: TranslationAttentionRecipe = key(
        TranslationAttentionRecipe(),
        "The attention method; its keys are those of recipes for texts, and `estimator` and `prediction` for "
        "`variational`. `upward: positions` is refused, because a decoder is causal.",
    )
    alignment: Alignment
    repulsion: Repulsion
    disagreement: Disagreement
    training: TranslationTrainingRecipe = key(TranslationTrainingRecipe(), "How to train.")
    search: SearchRecipe = key(SearchRecipe(), "How to translate.")
    probe: TranslationProbeRecipe | None = key(
        None,
        "Records of how attention is learned during training; null for none, `probattn train --probe` for the "
        "defaults.",
    )
    report: TranslationReportRecipe = key(TranslationReportRecipe(), "What to report.")

    @model_validator(mode="before")
    @classmethod
    def _full_bound(cls, value: Any) -> Any:
        """A latent alignment is trained by the bound itself where a recipe says nothing else."""
        if not isinstance(value, dict):
            return value
        attention, training = value.get("attention"), value.get("training", {})
        variational = isinstance(attention, dict) and attention.get("method") == "variational"
        if not (variational and isinstance(training, dict)):
            return value
        return value | {"training": {"kl_weight": 1.0, "kl_schedule": "constant"} | training}

    @model_validator(mode="after")
    def _variational(self) -> TranslationRecipe:
        if not self.is_variational:
            return self
        network = self.network
        if network.name != "lstm" or network.heads != 1 or network.uniform_attention:
            raise ValueError(
                "attention.method: 'variational' is for network.name 'lstm' with one head of learned attention, got "
                f"{network.name!r} with {network.heads}{', uniform' if network.uniform_attention else ''}"
            )
        for name in self.sections():
            if name != "attention":
                raise ValueError(f"{name}: expected null with attention.method 'variational'")
        return self

    @model_validator(mode="after")
    def _probed(self) -> TranslationRecipe:
        if self.probe is not None and self.network.name != "lstm":
            raise ValueError(
                "probe: the lexical probe is for network.name 'lstm', whose output reads one context, got "
                f"{self.network.name!r}"
            )
        return self

    @property
    def is_variational(self) -> bool:
        """Whether each target token has a latent source token."""
        return self.attention.method == "variational"

    def attention_words(self) -> str:
        """Description of attention that is not latent."""
        if not self.is_variational:
            return super().attention_words()
        sums = {"enumerate": "enumerated", "sample": "sampled"}[self.attention.estimator]
        return f"variational alignment, {sums}, {self.attention.prediction} prediction"
