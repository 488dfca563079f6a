"""Classification of texts and of pairs of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel

from probattn.data import BUILT_IN, PadCollate, TextDataset, TokenizedTexts
from probattn.data import Task as TextTask
from probattn.data.task import role_of
from probattn.inference.laplace import Features
from probattn.models import AttentionCalls, Classifier
from probattn.models.hosts.convert import conversion
from probattn.report import (
    CLASS_MEASURES,
    DataSet,
    Example,
    HeadRows,
    ModelKey,
    PredictedData,
    Predictions,
    Reason,
    Results,
    RunDescription,
    WordsExample,
    confident_mistakes,
    describe,
    mistakes_by_bin,
    most_uncertain,
)
from probattn.report.columns import class_columns
from probattn.report.measures import capital
from probattn.tasks.answering import Drawing
from probattn.tasks.classification.answering import (
    TextAnswering,
    TextDeciding,
    answers_from,
    dataset_of,
    examples_of,
)
from probattn.tasks.classification.explaining import explained
from probattn.tasks.classification.looks import GIVEN, attention_of, calls_with_maps, head_rows, shown_texts
from probattn.tasks.classification.networks import (
    TrainedClassifier,
    Words,
    load_classifier,
    load_config,
    load_tokenizer,
    make_words,
)
from probattn.tasks.classification.recipe import MINILM, DataRecipe, Recipe
from probattn.tasks.errors import RunError, as_run_error
from probattn.tasks.fine_tuning.classes import class_answers, class_evaluation, class_figures, class_record
from probattn.tasks.fine_tuning.encoding import Encoded
from probattn.tasks.fine_tuning.predictor import Predictor
from probattn.tasks.fine_tuning.recipe import Examples
from probattn.tasks.fine_tuning.task import ROLES, HeadTask
from probattn.tasks.measured import predictions
from probattn.tasks.programs import Data, ProgramTask
from probattn.tasks.progress import note
from probattn.tasks.topics import TopicData
from probattn.tasks.watching import Watched

LARGE_RATE = 1e-4
"""Learning rate above which encoders of BERT's size do not train."""
OUT_OF_DOMAIN_LIMIT = 2000
"""Most texts of a built-in out-of-domain set that are measured where the recipe has no limit."""


class Classification(HeadTask):
    """Classification of texts or of pairs of texts, by a Hugging Face network or a network with random weights."""

    recipe: Recipe
    recipe_class = Recipe
    unit = "texts"
    no_probe = None
    auto = AutoModelForSequenceClassification
    inputs = ("text", "pair")
    measures = CLASS_MEASURES
    decides = TextDeciding
    headings: ClassVar[Mapping[str, str]] = {
        "text": "text",
        "pair": "second text",
        "label": "label",
        "probability": "probability",
        "spread": "spread",
    }
    validation_metrics = ProgramTask.validation_metrics
    evaluation = class_evaluation
    figures = class_figures

    @property
    def is_uniform(self) -> bool:
        """Whether the network has uniform attention over all words."""
        return self.recipe.network.config.get("uniform_attention") is True

    @property
    def answering(self) -> TextAnswering:
        """Prediction of texts: classes with probabilities and their standard deviations over the posterior."""
        return TextAnswering(self)

    # Data

    @cached_property
    def texts(self) -> TextTask:
        """The data sets of the recipe, read once."""
        return self.recipe.data.load()

    def measured(self) -> dict[str, TextDataset]:
        """The evaluated data sets, by role.

        A built-in out-of-domain set without a limit in the recipe is restricted to :data:`OUT_OF_DOMAIN_LIMIT` texts,
        always the same ones.
        """
        data = {role: item for role, item in self.texts.roles().items() if role_of(role) in ROLES}
        if self.is_capped and "out_of_domain" in data:
            data["out_of_domain"] = data["out_of_domain"].take(OUT_OF_DOMAIN_LIMIT)
        return data

    @property
    def is_capped(self) -> bool:
        """Whether the out-of-domain set is a built-in one that the recipe does not limit."""
        source, limits = self.recipe.data.out_of_domain, self.recipe.data.limits
        return source is not None and limits.out_of_domain is None and source.build().kind == "built-in"

    @property
    def cap_note(self) -> str | None:
        """Sentence about an out-of-domain set of which only a part is evaluated; None if all of it is."""
        whole = self.texts.out_of_domain
        if whole is None or len(self.measured()["out_of_domain"]) == len(whole):
            return None
        measured = f"{OUT_OF_DOMAIN_LIMIT:,} of {len(whole):,} texts are measured, a fixed choice"
        return f"{whole.source}: {measured}; data.limits.out_of_domain sets another number"

    @property
    def section_of_examples(self) -> DataRecipe:
        """The section of the recipe that describes the texts."""
        return self.recipe.data

    @cached_property
    def examples(self) -> dict[Any, list[Mapping[str, Any]]]:
        """Texts of the training, validation and evaluated splits."""
        return {role: examples_of(data) for role, data in (self.texts.roles() | self.measured()).items()}

    def fingerprints(self) -> Iterator[str]:
        """Texts and classes by role, for the digest of the data."""
        for role, data in self.texts.roles().items():
            yield role
            yield from (f"{text}\0" for text in data.texts)
            yield from (f"{second}\1" for second in data.pairs or ())
            yield repr(data.labels)

    def label_names(self) -> Sequence[str]:
        """Names of the classes."""
        return self.texts.label_names

    def truth(self, example: Mapping[str, Any]) -> str | None:
        """The class of a text; None if it is unknown."""
        return self.texts.label_names[example["target"]] if "target" in example else None

    def sizes(self) -> Mapping[str, int]:
        """Number of training, validation and test texts."""
        return {
            name: size for name, size in super().sizes().items() if name in ("training", "validation", "test")
        }

    def classes(self) -> Mapping[str, int]:
        """Number of training texts of each class."""
        return self.texts.train.counts()

    @property
    def is_paired(self) -> bool:
        """Whether the data are pairs of texts."""
        return self.recipe.data.columns_read[1] is not None

    @staticmethod
    def title_of(source: str) -> str:
        """Title of a data set: "Rotten tomatoes (test)" for ``rotten_tomatoes (test)``; for a file its name."""
        if source.partition(" (")[0] not in BUILT_IN:
            return source if source.startswith("hub:") else Path(source).name
        return capital(source.replace("_", " "))

    def described(self, key: str, data: TextDataset | None = None) -> DataSet:
        """Description of a data set for the report; by default of the evaluated one."""
        data = data or self.measured()[key]
        return DataSet(
            key=key,
            title=self.title_of(data.source),
            role=ROLES[role_of(key)],
            size=len(data),
            labelled=data.labels is not None,
            source=data.source,
            unit=self.unit,
        )

    def notes(self) -> Iterable[str]:
        """Notes on the vocabulary of a new network, a learning rate that is too large, and classes without examples."""
        network, rate = self.recipe.network, self.recipe.training.learning_rate
        if rate > LARGE_RATE and network.name != MINILM and not network.is_new:
            words = "is one for encoders as small as minilm; those of BERT's size take 2e-5 to 5e-5"
            yield f"warning: training.learning_rate {rate:g} {words}"
        if self.vocabulary is not None:
            yield str(self.vocabulary)
        if missing := [name for name, count in self.classes().items() if not count]:
            yield f"no training text has the class {', '.join(missing[:12])}, which cannot be learned"

    # What a network reads

    @cached_property
    def vocabulary(self) -> Words | None:
        """Vocabulary of a network with random weights; None for a pretrained one."""
        network = self.recipe.network
        return (
            make_words(network, self.texts.train, seed=self.recipe.training.seed) if network.is_new else None
        )

    def codec(self) -> Any:
        """The tokenizer of the network."""
        return load_tokenizer(self.recipe.network) if self.vocabulary is None else self.vocabulary.tokenizer

    def tokenized(
        self, codec: Any, data: TextDataset, config: Any, on_long: Any = "truncate"
    ) -> TokenizedTexts:
        """Tokens of texts for a network with the configuration ``config``."""
        return TokenizedTexts(
            data, codec, max_length=self.recipe.data.max_length, config=config, on_long=on_long
        )

    def encode(self, codec: Any, examples: Examples) -> list[Encoded]:
        """Tokens and classes of texts for the network of the recipe, which may refuse texts that are too long."""
        return self._rows(codec, examples, self._config, self.recipe.data.on_long)

    @cached_property
    def _config(self) -> PreTrainedConfig:
        return load_config(self.recipe.network, self.vocabulary)

    def encoded(self, network: TrainedClassifier, examples: Examples) -> list[Encoded]:
        """Tokens and classes of texts for a trained network, which truncates texts that are too long."""
        return self._rows(network.codec, examples, network.net.config)

    def _rows(self, codec: Any, examples: Examples, *options: Any) -> list[Encoded]:
        tokens = self.tokenized(codec, self._dataset(examples), *options)
        return [Encoded([tokens[row]]) for row in range(len(tokens))]

    def shortest_first(self, examples: Examples, encoded: Sequence[Encoded]) -> list[int]:
        """Indices of the texts in order of their length in characters."""
        return self._dataset(examples).shortest_first()

    def _dataset(self, examples: Examples) -> TextDataset:
        """The data set of examples; texts without classes do not need the data that were trained on."""
        return dataset_of(examples, self.label_names() if "target" in examples[0] else ())

    def collate(self, codec: Any) -> Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Tensor]]:
        """Function that makes a padded batch of rows."""
        return PadCollate(codec)

    def load_data(self) -> Data:
        """Tokenizes all texts, so texts that a network refuses raise before training."""
        self._check_projection()
        data = super().load_data()
        return data if self.recipe.probe is None else replace(data, watched=self._watched(data.codec))

    def _watched(self, tokenizer: Any) -> Watched:
        assert self.recipe.probe is not None
        texts: TextDataset = getattr(self.texts, self.recipe.probe.part).take(self.recipe.probe.examples)
        rows = [item.rows[0] for item in self.encode(tokenizer, examples_of(texts))]
        return Watched(
            self.recipe.probe,
            rows,
            PadCollate(tokenizer),
            text=lambda row: texts.texts[row],
            keys=lambda row: tokenizer.convert_ids_to_tokens(rows[row]["input_ids"]),
            queries=lambda row: [self.texts.label_names[rows[row]["labels"]]],
        )

    def _check_projection(self) -> None:
        """Refuses a figure that cannot be drawn before anything is trained for it."""
        report = self.recipe.report
        drawn = (
            self.recipe.alignment is not None and report.alignment_examples and report.projection == "tsne"
        )
        if drawn and find_spec("sklearn") is None:
            raise RunError(
                "report.projection: 'tsne' needs the package scikit-learn, which is not installed; install it: "
                "pip install 'probattn[figures]', or set it to 'pca'"
            )

    # The network

    def untrained(self) -> PreTrainedModel:
        """The recipe's network with a classification head."""
        recipe = self.recipe
        return load_classifier(
            recipe.network, self.label_names(), seed=recipe.training.seed, words=self.vocabulary
        )

    def prepare(self, net: PreTrainedModel) -> None:
        """Raises ``RunError`` if the network lacks the attention layers that ``report.map_layers`` names."""
        if not isinstance(self.recipe.report.map_layers, str):
            with as_run_error(ValueError, where="report.map_layers"):
                calls_with_maps(net, self.recipe.report.map_layers)

    def program_options(self) -> Mapping[str, Any]:
        """Label smoothing and class weights."""
        training = self.recipe.training
        return {
            "label_smoothing": training.label_smoothing,
            "class_weights": self._class_weights(training.class_weights),
        }

    def _class_weights(self, weights: Any) -> list[float] | None:
        """Weights in the order of the classes."""
        names, labels = list(self.label_names()), self.texts.train.labels
        if weights is None or labels is None:
            return None
        if weights == "balanced":
            counts = [labels.count(number) for number in range(len(names))]
            return [len(labels) / (len(names) * count) if count else 1.0 for count in counts]
        if unknown := [name for name in weights if name not in names]:
            raise RunError(
                f"training.class_weights: expected names of classes ({', '.join(names)}), got {unknown[0]!r}"
            )
        return [weights.get(name, 1.0) for name in names]

    def program_of(self, net: nn.Module, **options: Any) -> Classifier:
        """The program of a classification network."""
        return Classifier(net, **options)

    def words(self) -> Mapping[str, Any]:
        """Descriptions of network and data for the report."""
        uniform = ", uniform attention" if self.recipe.network.config.get("uniform_attention") else ""
        network = f"{self.network_name}{uniform}"
        return {**super().words(), "network": network, "data": self.recipe.data.train.source}

    # Predictions and their measures

    record = staticmethod(class_record)
    answer = staticmethod(class_answers)

    def measure(self, run: RunDescription, networks: Sequence[TrainedClassifier]) -> Results:
        """Predicts every data set with every network, saves the predictions in the run's folder, and measures them."""
        last, data = networks[-1], self.measured()
        if self.cap_note is not None:
            note(self.cap_note)
        for network in networks:
            self.check_classes(network)
        predicted = {key: self.predict_data(networks, key, item) for key, item in data.items()}
        answers = {
            key: [answer for _, answer in answers_from(item, last.key, data[key], last.names)]
            for key, item in predicted.items()
        }
        self.write_predictions(last.folder, answers)
        if last.key == "bayesian_mean" and "--limit" not in self.restricted:
            drawing, held_out = Drawing.of(self.recipe.prediction), TextDeciding(self).held_out()
            for key, answers_of_role in answers.items():  # where probattn.triage finds them
                held_out[key].store(last.folder, key, drawing, answers_of_role)
        table = {
            (key, model): class_columns(value.probabilities, value.draws, item.labels)
            for key, item in predicted.items()
            for model, value in item.models.items()
        }
        described = tuple(item.data for item in predicted.values())
        inputs = {} if conversion(last.net) is None else self._inputs(networks, predicted["test"])
        evaluation = self.evaluation(table, described)
        return self.results(run, networks, evaluation, classes=last.names, data=described, **inputs)

    def check_classes(self, network: TrainedClassifier) -> None:
        """Raises ``RunError`` if the classes of the training data differ from those of the network."""
        learned, got = network.names, tuple(self.texts.label_names)
        if learned != got:
            missing = [name for name in (*learned, *got) if (name in learned) != (name in got)]
            raise RunError(
                f"{network.folder}: expected training data of the {len(learned)} classes that its network learned, got "
                f"{len(got)}, which differ in {', '.join(map(repr, missing[:6])) or 'their order'}; the data have "
                "changed since: train again"
            )

    def predict_data(
        self, networks: Sequence[TrainedClassifier], key: str, data: TextDataset
    ) -> PredictedData:
        """Predictions of a data set's texts, in order, by model; deterministic networks also have dropout draws.

        ``networks`` are as in :meth:`measure`, ``key`` is the role of the ``data`` in the recipe.
        """
        models: dict[ModelKey, Predictions] = {}
        for network in networks:
            batches, back = self.by_length(network, data)
            predicted = predictions(network, batches, Drawing.of(self.recipe.prediction), moments=True)
            models |= {model: value.rows(back) for model, value in predicted.items()}
        labels = None if data.labels is None else torch.tensor(data.labels)
        return PredictedData(self.described(key, data), labels, models)

    def _inputs(self, networks: Sequence[TrainedClassifier], predicted: PredictedData) -> dict[str, Any]:
        """Single inputs: the most uncertain ones, the most confident mistakes, attention maps."""
        report, network, data = self.recipe.report, networks[-1], self.texts.test
        inputs = (data.texts, network.names, data.pairs)
        uncertain = describe(predicted, most_uncertain(predicted, report.uncertain), *inputs)
        mistakes = describe(predicted, confident_mistakes(predicted, report.mistakes), *inputs)
        binned = describe(predicted, mistakes_by_bin(predicted, report.bin_mistakes, report.bins), *inputs)
        seconds = report.second_texts() or repeat(None)
        texts = map(self.recipe.data.unlabelled, report.texts, seconds)
        answers = self.answering.described(network, texts, Drawing.of(self.recipe.prediction))
        looked_into: list[tuple[Example, Reason, str]] = [
            *((example, "chosen", GIVEN) for example, _ in answers),
            *((item, "uncertain", data.source) for item in uncertain),
        ]
        maps, words = [], []
        for example, reason, source in looked_into:
            both = [example.text] if example.pair is None else [example.text, example.pair]
            batch = self.single(network, both, source)
            maps.append(attention_of(networks, batch, example, options=self.recipe, reason=reason))
            explanation = explained(network, batch, both, network.names, example.predicted)
            if explanation is not None:
                words.append(WordsExample(example=example, reason=reason, explanation=explanation))
        return {
            "uncertain": tuple(uncertain),
            "mistakes": tuple(mistakes),
            "binned": tuple(binned),
            "attention": tuple(maps),
            "words": tuple(words),
        }

    def single(self, network: TrainedClassifier, texts: Sequence[str], source: str) -> dict[str, Tensor]:
        """One text, or a pair of texts, as a batch on the network's device."""
        first, *second = texts
        single = TextDataset((first,), None, (), source, pairs=tuple(second) or None)
        return network.moved(next(iter(self.batches(network, single))))

    def topic_data(self, networks: Sequence[TrainedClassifier]) -> TopicData:
        """Test texts for the topics of the report."""
        report, data = self.recipe.report, self.measured()["test"]

        def rows(calls: AttentionCalls) -> Iterator[HeadRows]:
            shown = shown_texts(data, report.texts, report.second_texts())
            for single in (shown.rows([row]) for row in range(len(shown))):
                for network in networks:
                    (inputs,) = self.batches(network, single)
                    yield from head_rows(network, inputs, single.texts[0], calls)

        return replace(
            super().topic_data(networks), take=lambda number: examples_of(data.take(number)), rows=rows
        )

    def batches(self, network: TrainedClassifier, data: TextDataset) -> DataLoader[Any]:
        """Batches of a data set, in order."""
        rows = self.tokenized(network.codec, data, network.net.config)
        size = self.recipe.prediction.batch_size
        return DataLoader(rows, batch_size=size, collate_fn=PadCollate(network.codec))

    def by_length(
        self, network: TrainedClassifier, data: TextDataset
    ) -> tuple[Iterable[Mapping[str, Tensor]], Tensor]:
        """Batches in order of text length, and the position of each text among their rows, int64 ``[N]``."""
        order = data.shortest_first()
        batches = self.batches(network, data.rows(order))
        title = f"predictions of {self.title_of(data.source)}"
        return network.tracked(batches, title), torch.tensor(order).argsort()

    def features(self, network: TrainedClassifier, data: TextDataset) -> Features:
        """Inputs and outputs of a network's last layer for texts, in their order."""
        return Predictor(self, network).features(examples_of(data), self.title_of(data.source))


def classification_of(task: Any, run: Path | str) -> Classification:
    """A task, if it classifies texts; ``RunError`` names the run or recipe where not."""
    if not isinstance(task, Classification):
        raise RunError(
            f"{run}: expected a run that classifies texts, got one of {task.section or 'another kind'}"
        )
    return task
