"""Classification of texts and of pairs of texts: recipe to network to report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from probattn.data import PadCollate, TextDataset, TokenizedTexts
from probattn.data import Task as TextTask
from probattn.data.task import role_of
from probattn.files.durable import digest
from probattn.inference.last_layer import Features, last_features, last_layer
from probattn.models import AttentionCalls, Classifier, load
from probattn.models.hosts.convert import conversion
from probattn.models.hosts.pretrained import open_pretrained
from probattn.report import (
    DataSet,
    Example,
    HeadRows,
    ModelKey,
    PredictedData,
    Predictions,
    Reason,
    Results,
    RunDescription,
    confident_mistakes,
    describe,
    evaluate,
    mistakes_by_bin,
    most_uncertain,
)
from probattn.tasks.answering import Drawing, write_predictions
from probattn.tasks.classification.answering import TextAnswering, answers_of
from probattn.tasks.classification.answers import Answer, answers_from, object_of, prediction_rows
from probattn.tasks.classification.attribution import attribution_of
from probattn.tasks.classification.deciding import REPORT_ROLES, TextDeciding, title_of
from probattn.tasks.classification.looks import GIVEN, attention_of, calls_with_maps, head_rows, shown_texts
from probattn.tasks.classification.networks import (
    TrainedClassifier,
    Words,
    class_names,
    load_classifier,
    load_config,
    load_tokenizer,
    make_words,
)
from probattn.tasks.classification.recipe import Recipe
from probattn.tasks.errors import RunError, one_line
from probattn.tasks.networks import (
    Network,
    check_finished,
    check_frozen_probe,
    model_key,
    on_device,
    predictions,
    put_methods,
    quiet_loading,
)
from probattn.tasks.programs import Data, ProgramTask
from probattn.tasks.progress import note
from probattn.tasks.topics import TopicData
from probattn.tasks.watching import Watched

OUT_OF_DOMAIN_LIMIT = 2000
"""Most texts of a built-in out-of-domain set that are measured where the recipe has no limit."""


@dataclass(frozen=True)
class TextData(Data):
    """Tokenized texts.

    Attributes:
        tokenizer: the network's.
        words: those of a network that is built from nothing.
    """

    tokenizer: Any = None
    words: Words | None = None


class Classification(ProgramTask[Recipe, Results, TextData, Classifier]):
    """Classes of texts, or of pairs of texts, by a Hugging Face network or one that is built from nothing."""

    recipe_class = Recipe
    unit = "texts"
    no_probe = None

    @property
    def is_uniform(self) -> bool:
        """Whether the network attends to all words alike."""
        return self.recipe.network.config.get("uniform_attention") is True

    @cached_property
    def texts(self) -> TextTask:
        """The data sets of the recipe, read once."""
        return self.recipe.data.load()

    def measured(self) -> dict[str, TextDataset]:
        """The data sets that are measured, by role.

        Of a built-in out-of-domain set without a limit of the recipe at most :data:`OUT_OF_DOMAIN_LIMIT` texts are
        taken, a fixed choice.
        """
        data = {role: item for role, item in self.texts.roles().items() if role_of(role) in REPORT_ROLES}
        if self.is_capped and "out_of_domain" in data:
            data["out_of_domain"] = data["out_of_domain"].take(OUT_OF_DOMAIN_LIMIT)
        return data

    @property
    def answering(self) -> TextAnswering:
        """Labels of texts, with their probability and its spread over the posterior."""
        return TextAnswering(self)

    @property
    def deciding(self) -> TextDeciding:
        """Decisions by the validation texts and those that are measured."""
        return TextDeciding(self)

    @property
    def is_capped(self) -> bool:
        """Whether the out-of-domain set is a built-in one that the recipe does not limit."""
        data = self.recipe.data
        source = data.out_of_domain
        return source is not None and data.limits.out_of_domain is None and source.build().kind == "built-in"

    @property
    def cap_note(self) -> str | None:
        """Says that the out-of-domain set is not measured as a whole; None where it is."""
        ood_texts = self.texts.roles().get("out_of_domain")
        if not self.is_capped or ood_texts is None or len(ood_texts) <= OUT_OF_DOMAIN_LIMIT:
            return None
        measured = f"{OUT_OF_DOMAIN_LIMIT:,} of {len(ood_texts):,} texts are measured, a fixed choice"
        return f"{ood_texts.source}: {measured}; data.limits.out_of_domain sets another number"

    def sizes(self) -> Mapping[str, int]:
        """Number of texts of each part."""
        names = {"train": "training"}
        data = self.texts.roles()
        return {
            names.get(role, role): len(data[role]) for role in ("train", "validation", "test") if role in data
        }

    def classes(self) -> Mapping[str, int]:
        """Training texts of each class."""
        return self.texts.train.counts()

    def load_data(self) -> TextData:
        """Tokenizes all texts, so that none is refused after training."""
        recipe, texts = self.recipe, self.texts
        self._check_projection()
        words = (
            make_words(recipe.network, texts.train, seed=recipe.training.seed)
            if recipe.network.is_new
            else None
        )
        tokenizer = load_tokenizer(recipe.network) if words is None else words.tokenizer
        tokenized = partial(
            TokenizedTexts,
            tokenizer=tokenizer,
            max_length=recipe.data.max_length,
            config=load_config(recipe.network, words),
            on_long=recipe.data.on_long,
        )
        roles = {role: tokenized(data) for role, data in texts.roles().items()}
        return TextData(
            roles["train"],
            roles["validation"],
            PadCollate(tokenizer),
            {"data": data_digest(texts), "network": recipe.network.name},
            None if recipe.probe is None else self._watched(tokenized, tokenizer),
            tokenizer,
            words,
        )

    def _watched(self, tokenized: Any, tokenizer: Any) -> Watched:
        assert self.recipe.probe is not None
        texts: TextDataset = getattr(self.texts, self.recipe.probe.part).take(self.recipe.probe.examples)
        rows = tokenized(texts)
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

    def notes(self) -> Iterable[str]:
        """Size of the vocabulary of a new network, and classes that cannot be learned."""
        if self.data.words is not None:
            yield str(self.data.words)
        if missing := [name for name, count in self.classes().items() if not count]:
            yield f"no training text has the class {', '.join(missing[:12])}, which cannot be learned"

    def program(self, *, baseline: bool = False) -> Classifier:
        """The recipe's network as a Pyro program; see the base class."""
        recipe, data = self.recipe, self.data
        net = load_classifier(
            recipe.network, self.texts.label_names, seed=recipe.training.seed, words=data.words
        )
        check_frozen_probe(net, recipe.training, recipe.network.name)
        put_methods(net, () if baseline else self.methods, recipe, recipe.network.name)
        if not isinstance(recipe.report.map_layers, str):
            try:
                calls_with_maps(net, recipe.report.map_layers)
            except ValueError as error:
                raise RunError(f"report.map_layers: {one_line(error)}") from error
        return Classifier(net, num_data=len(data.train), label_smoothing=recipe.training.label_smoothing)

    def save_beside(self, program: Any, folder: Path) -> None:
        """Saves the tokenizer."""
        self.data.tokenizer.save_pretrained(folder)

    def network(self, folder: Path) -> TrainedClassifier:
        """Loads a trained network and its tokenizer."""
        path = check_finished(folder)
        with quiet_loading():
            net = load(path)
            tokenizer = open_pretrained(AutoTokenizer, path)
        return Network(on_device(Classifier(net)), folder, model_key(net), tokenizer)

    def batches(self, network: TrainedClassifier, data: TextDataset) -> DataLoader[Any]:
        """Batches of a data set, in order."""
        rows = TokenizedTexts(
            data, network.codec, max_length=self.recipe.data.max_length, config=network.net.config
        )
        size = self.recipe.prediction.batch_size
        return DataLoader(rows, batch_size=size, collate_fn=PadCollate(network.codec))

    def by_length(
        self, network: TrainedClassifier, data: TextDataset, doing: str = "predictions"
    ) -> tuple[Iterable[Any], Tensor]:
        """Batches from the shortest text to the longest, since one is as long as its longest text.

        ``doing`` says what is made of them.

        Returns:
            The batches, whose progress is shown, and the places of the texts of ``data`` among them, int64 ``[N]``.
        """
        order = data.shortest_first()
        batches = self.batches(network, data.rows(order))
        return network.tracked(batches, f"{doing} of {title_of(data.source)}"), torch.tensor(order).argsort()

    def words(self) -> Mapping[str, Any]:
        """Network and data, in words."""
        network = self.recipe.network
        uniform = ", uniform attention" if network.config.get("uniform_attention") else ""
        return {
            "network": f"{network.name}{uniform}",
            "data": self.recipe.data.train.source,
            "train_size": len(self.texts.train),
        }

    def measure(self, run: RunDescription, networks: Sequence[TrainedClassifier]) -> Results:
        """Predicts every data set with every network, keeps the predictions in the run, and measures them."""
        last, report = networks[-1], self.recipe.report
        if self.cap_note is not None:
            note(self.cap_note)
        data = self.measured()
        for network in networks:
            self.check_classes(network)
        predicted = [self.predict_data(networks, key, item) for key, item in data.items()]
        answers = {
            key: list(answers_from(item, last.key, texts, class_names(last)))
            for item, (key, texts) in zip(predicted, data.items(), strict=True)
        }
        sets = ((key, answers[key], texts) for key, texts in data.items())
        write_predictions(last.folder, prediction_rows(sets, class_names(last)), ("text", "pair"))
        if last.key == "bayesian_mean" and "--limit" not in self.restricted:
            self._keep(last.folder, answers)
        measured = evaluate(
            predicted,
            resamples=report.resamples,
            level=report.level,
            seed=self.recipe.prediction.seed,
            num_bins=report.bins,
            thresholds=report.thresholds,
            asked=report.measures,
        )
        inputs = {} if conversion(last.net) is None else self._inputs(networks, predicted[0], data["test"])
        return self.results(
            run,
            networks,
            measured,
            classes=class_names(last),
            data=tuple(item.data for item in predicted),
            **inputs,
        )

    def _keep(self, run: Path, answers: Mapping[str, Sequence[Answer]]) -> None:
        """Keeps the answers for held-out data where :mod:`probattn.triage` finds them."""
        drawing, held_out = Drawing.of(self.recipe.prediction), self.deciding.held_out()
        for key, answers_of_role in answers.items():
            held_out[key].store(run, key, drawing, list(map(object_of, answers_of_role)))

    def check_classes(self, network: TrainedClassifier) -> None:
        """Raises ``RunError`` where the classes of the training data are no longer those of the network."""
        learned, got = class_names(network), tuple(self.texts.label_names)
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
        """Predictions of every text of a data set, in its order, by model.

        Args:
            networks: the deterministic baseline, if there is one, and the run's own last.
            key: role of the data in the recipe.
            data: the texts.
        """
        models: dict[ModelKey, Predictions] = {}
        for network in networks:
            batches, back = self.by_length(network, data)
            predicted = predictions(
                network,
                batches,
                Drawing.of(self.recipe.prediction),
                moments=True,
            )
            models |= {key: value.rows(back) for key, value in predicted.items()}
        labels = None if data.labels is None else torch.tensor(data.labels)
        described = DataSet(
            key=key,
            title=title_of(data.source),
            role=REPORT_ROLES[role_of(key)],
            size=len(data),
            labelled=labels is not None,
            source=data.source,
            unit="texts",
        )
        return PredictedData(described, labels, models)

    def _inputs(
        self, networks: Sequence[TrainedClassifier], predicted: PredictedData, data: TextDataset
    ) -> dict[str, Any]:
        """Single inputs: the most uncertain ones, the most confident mistakes, attention maps."""
        report, network = self.recipe.report, networks[-1]
        inputs = (data.texts, class_names(network), data.pairs)
        uncertain = describe(predicted, most_uncertain(predicted, report.uncertain), *inputs)
        mistakes = describe(predicted, confident_mistakes(predicted, report.mistakes), *inputs)
        binned = describe(predicted, mistakes_by_bin(predicted, report.bin_mistakes, report.bins), *inputs)
        seconds = report.second_texts() or repeat(None)
        answers = answers_of(
            self, network, zip(report.texts, seconds, strict=False), Drawing.of(self.recipe.prediction)
        )
        looked_into: list[tuple[Example, Reason, str]] = [
            *((answer.example, "chosen", GIVEN) for answer in answers),
            *((item, "uncertain", data.source) for item in uncertain),
        ]
        maps, attributed = [], []
        for example, reason, source in looked_into:
            batch = network.moved(self.single(network, example, source))
            maps.append(attention_of(networks, batch, example, options=self.recipe, reason=reason))
            if network.key == "bayesian_mean":
                seed = self.recipe.prediction.seed
                attributed.append(
                    attribution_of(network, batch, example, class_names(network), seed=seed, reason=reason)
                )
        return {
            "uncertain": tuple(uncertain),
            "mistakes": tuple(mistakes),
            "binned": tuple(binned),
            "attention": tuple(maps),
            "attribution": tuple(item for item in attributed if item is not None),
        }

    def single(self, network: TrainedClassifier, example: Example, source: str) -> dict[str, Tensor]:
        """One input as a batch."""
        pairs = None if example.pair is None else (example.pair,)
        single = TextDataset((example.text,), None, (), source, pairs=pairs)
        return next(iter(self.batches(network, single)))

    def topic_data(self, networks: Sequence[TrainedClassifier]) -> TopicData:
        """Texts as the topics of the report read them."""
        report, data = self.recipe.report, self.measured()["test"]

        def rows(calls: AttentionCalls) -> Iterator[HeadRows]:
            shown = shown_texts(data, report.texts, report.second_texts())
            for single in (shown.rows([row]) for row in range(len(shown))):
                for network in networks:
                    inputs = next(iter(self.batches(network, single)))
                    yield from head_rows(network, inputs, single.texts[0], calls)

        def accuracy(network: TrainedClassifier, texts: TextDataset) -> Callable[[], float]:
            return partial(_accuracy, network, self._moved(network, texts))

        return TopicData(
            take=data.take,
            batches=self.batches,
            start=lambda: self.start(networks[-1]),
            report=self.recipe.report,
            prediction=self.recipe.prediction,
            accuracy=None if data.labels is None else accuracy,
            rows=rows,
        )

    def _moved(self, network: TrainedClassifier, data: TextDataset) -> list[dict[str, Tensor]]:
        batches = self.batches(network, data.rows(data.shortest_first()))
        return [{name: t.to(network.device) for name, t in batch.items()} for batch in batches]

    def start(self, trained: TrainedClassifier) -> Classifier | None:
        """The network before training: the pretrained one, or new weights of the same seed.

        Returns:
            Its program; None where it cannot be loaded any more.
        """
        recipe, seed = self.recipe, self.recipe.training.seed
        try:
            words = make_words(recipe.network, self.texts.train, seed=seed) if recipe.network.is_new else None
            net = load_classifier(recipe.network, class_names(trained), seed=seed, words=words)
        except ValueError:  # RunError, DataError or RecipeError
            return None
        return Classifier(net)

    @property
    def is_paired(self) -> bool:
        """Whether the data are pairs of texts."""
        return self.recipe.data.train.build().paired

    def features(self, network: TrainedClassifier, data: TextDataset) -> Features:
        """What the last layer of a network reads and says, of texts in their order."""
        batches, back = self.by_length(network, data, "features")
        moved = ({name: value.to(network.device) for name, value in batch.items()} for batch in batches)
        try:
            in_batches = last_features(
                network.program, moved, last_layer(network.net, len(class_names(network)))
            )
        except ValueError as error:
            raise RunError(f"{network.folder}: features of its network: {one_line(error)}") from error
        labels = None if in_batches.labels is None else in_batches.labels[back]
        return Features(in_batches.inputs[back], in_batches.logits[back], labels)


def data_digest(task: TextTask) -> str:
    """A fingerprint of the data, so that a run is not resumed on others."""
    return digest(_digested(task))


def _digested(task: TextTask) -> Iterator[str]:
    for role, data in task.roles().items():
        yield role
        yield from (f"{text}\0" for text in data.texts)
        yield from (f"{second}\1" for second in data.pairs or ())
        yield repr(data.labels)


def _accuracy(network: TrainedClassifier, batches: list[dict[str, Tensor]]) -> float:
    right = total = 0
    for batch in batches:
        logits = network.program({name: tensor for name, tensor in batch.items() if name != "labels"})
        right += int((logits.argmax(dim=-1) == batch["labels"]).sum())
        total += len(batch["labels"])
    return right / total


def classification_of(task: Any, run: Path | str) -> Classification:
    """A task, if it classifies texts; ``RunError`` names the run or recipe where not."""
    if not isinstance(task, Classification):
        raise RunError(
            f"{run}: expected a run that classifies texts, got one of {task.section or 'another kind'}"
        )
    return task
