"""Methods that say what each word of a text does to a classifier's answer: one table of functions."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from probattn.inference import attention_effects, posterior_expectation

ROWS = 32
"""Rows of a pass."""
STEPS, SAMPLES = 50, 100
"""Steps of integrated gradients, and passes of the methods that draw."""


class Text(NamedTuple):
    """A text's words, those of a pair one after the other, of which ``first`` belong to the first text."""

    words: tuple[str, ...]
    first: int | None

    def only(self, indices: Sequence[int]) -> Text:
        """The text of some of its words, in their order."""
        first = None if self.first is None else sum(index < self.first for index in indices)
        return Text(tuple(self.words[index] for index in indices), first)

    def without(self, indices: Sequence[int]) -> Text:
        """The text without some words."""
        return self.only([index for index in range(len(self.words)) if index not in indices])

    def texts(self) -> tuple[list[str], ...]:
        """The words of each text."""
        words = list(self.words)
        return (words,) if self.first is None else (words[: self.first], words[self.first :])


@dataclass
class Passes:
    """Number of passes: rows that go forward, and rows that go backward."""

    number: int = 0

    def watch(self, net: nn.Module) -> None:
        """Counts the passes of a network, and of its copies."""

        def forward(module: nn.Module, args: Any, output: Any) -> None:
            self.number += len(output.logits)
            if output.logits.requires_grad:
                output.logits.register_hook(backward)

        def backward(gradient: Tensor) -> None:
            self.number += len(gradient)

        net.register_forward_hook(forward)


@dataclass(frozen=True)
class Subject:
    """A classifier of texts whose answers are explained.

    Attributes:
        program: what predicts where attention is latent; else the maps of attention can be read.
    """

    net: Any
    tokenizer: Any
    max_length: int
    program: Any = None
    passes: Passes = field(default_factory=Passes)

    def __post_init__(self) -> None:
        self.net.eval().requires_grad_(False)
        if self.program is None:
            self.net.set_attn_implementation("eager")
        self.passes.watch(self.net)

    def encoded(self, rows: Sequence[Text]) -> Any:
        """The tokens of texts, padded."""
        return self.tokenizer(
            *(list(column) for column in zip(*(row.texts() for row in rows), strict=True)),
            is_split_into_words=True,
            padding=True,
            truncation=True,
            max_length=self.max_length,
            return_tensors="pt",
        )

    def groups(self, text: Text) -> list[int | None]:
        """The word of each token; None of special tokens."""
        encoding = self.encoded([text])
        words, which = encoding.word_ids(0), encoding.sequence_ids(0)
        return [
            None if word is None else word + (text.first or 0) * number
            for word, number in zip(words, which, strict=True)
        ]

    def shortened(self, text: Text) -> Text:
        """The text without the words that the network does not read whole."""
        encoding = self.encoded([text])
        if encoding["input_ids"].shape[1] < self.max_length:
            return text
        tokens = zip(encoding.sequence_ids(0), encoding.word_ids(0), strict=True)
        last = {number: word for number, word in tokens if word is not None}
        sides = text.texts()
        read = [words[: last.get(number, 0)] for number, words in enumerate(sides)]
        first = None if text.first is None else len(read[0])
        return Text(tuple(word for words in read for word in words), first)

    @torch.no_grad()
    def logits(self, rows: Sequence[Text]) -> Tensor:
        """Of each text, ``[N, C]``."""
        parts = [self.encoded(rows[first : first + ROWS]) for first in range(0, len(rows), ROWS)]
        if self.program is not None:
            return torch.cat([posterior_expectation(self.program, part) for part in parts])
        return torch.cat([self.net(**part).logits for part in parts])

    @property
    def mask(self) -> str:
        """What masks a word: the mask token, of a tokenizer without one the token of unknown words."""
        return self.tokenizer.mask_token or self.tokenizer.unk_token

    @cached_property
    def embeddings(self) -> nn.Module:
        """The table of the tokens' vectors."""
        return self.net.get_input_embeddings()


class Question(NamedTuple):
    """A text, the answer that is explained, and the seed of methods that draw.

    Attributes:
        other: the class over which the margin of the answer is explained; None for its log-odds.
    """

    subject: Subject
    text: Text
    answer: int
    seed: int
    other: int | None = None

    def odds(self, logits: Tensor) -> Tensor:
        """Log-odds of the answer or its margin, of ``[N, C]``."""
        if self.other is not None:
            return logits[:, self.answer] - logits[:, self.other]
        others = logits.clone()
        others[:, self.answer] = -torch.inf
        return logits[:, self.answer] - others.logsumexp(dim=-1)

    def of_rows(self, rows: Sequence[Text]) -> np.ndarray:
        """Log-odds of other texts."""
        return self.odds(self.subject.logits(rows)).numpy()

    def inputs(self) -> dict[str, Tensor]:
        """The tokens, a single row."""
        return dict(self.subject.encoded([self.text]))

    def of_ids(self, rows: Tensor, inputs: Mapping[str, Tensor], name: str = "input_ids") -> Tensor:
        """Log-odds of rows of tokens ``[N, S]``, or of their vectors, with the mask and the types of the text."""
        others = {key: value.expand(len(rows), -1) for key, value in inputs.items() if key != "input_ids"}
        return self.odds(self.subject.net(**{name: rows}, **others).logits)

    def reference(self) -> Tensor:
        """The text's tokens with those of its words replaced by padding, which are attended to."""
        ids = self.inputs()["input_ids"].clone()
        of_words = torch.tensor([group is not None for group in self.subject.groups(self.text)])
        ids[0, of_words] = self.subject.tokenizer.pad_token_id
        return ids

    def by_word(self, tokens: Tensor) -> np.ndarray:
        """Sums over the tokens ``[S]`` of each word."""
        sums = np.zeros(len(self.text.words))
        for value, group in zip(tokens.detach().tolist(), self.subject.groups(self.text), strict=True):
            if group is not None:
                sums[group] += value
        return sums


Method = Callable[[Question], np.ndarray]
Captum = Any


def effects(method: str, target: str, question: Question) -> np.ndarray:
    """Effects through attention."""
    subject, text, of_answer = question.subject, question.text, torch.tensor([question.answer])
    explained = of_answer if question.other is None else (question.answer, question.other)
    result = attention_effects(
        subject.net,
        question.inputs(),
        words=[subject.groups(text)],
        method=method,
        target=explained if target == "answer" else "doubt",
    )
    values = np.zeros(len(text.words))
    values[: result.effect.shape[1]] = result.effect[0].nan_to_num(0.0).numpy()
    return values


def with_maps(question: Question) -> tuple[list[Tensor], list[Tensor]]:
    """The maps of attention of all layers ``[1, H, T, S]`` and the gradients of the log-odds by them."""
    with torch.enable_grad():
        inputs = question.inputs()
        embedded = question.subject.embeddings(inputs.pop("input_ids")).requires_grad_()
        output = question.subject.net(inputs_embeds=embedded, **inputs, output_attentions=True)
        maps = list(output.attentions)
        gradients = torch.autograd.grad(question.odds(output.logits).sum(), maps)
    return [item.detach() for item in maps], list(gradients)


def attention_gradient(question: Question) -> np.ndarray:
    """Attention times gradient, summed over layers, heads and queries."""
    pairs = zip(*with_maps(question), strict=True)
    return question.by_word(torch.stack([(map_ * slope).sum(dim=(0, 1, 2)) for map_, slope in pairs]).sum(0))


def chefer(question: Question) -> np.ndarray:
    """Chefer et al. 2021 (ICCV), self-attention: what the first token's prediction takes from each token."""
    relevance = torch.eye(question.inputs()["input_ids"].shape[1])
    for map_, slope in zip(*with_maps(question), strict=True):
        relevance = relevance + (map_ * slope).clamp_min(0).mean(dim=1)[0] @ relevance
    return question.by_word(relevance[0])


def rollout(question: Question) -> np.ndarray:
    """Attention rollout, Abnar and Zuidema 2020."""
    with torch.no_grad():
        maps = question.subject.net(**question.inputs(), output_attentions=True).attentions
    flow = torch.eye(maps[0].shape[-1])
    for map_ in maps:
        flow = (map_[0].mean(dim=0) + torch.eye(len(flow))) / 2 @ flow
    return question.by_word(flow[0])


def by_layer(kind: str, layer: Callable[[Subject], nn.Module], question: Question) -> np.ndarray:
    """A method of captum that looks at a layer's output, from the reference to the text."""
    captum: Captum = import_module("captum.attr")
    inputs = question.inputs()
    call = partial(question.of_ids, inputs=inputs)
    method = getattr(captum, kind)(call, layer(question.subject))
    more: dict[str, Any] = {}
    if kind == "LayerIntegratedGradients":
        more = {"baselines": question.reference(), "n_steps": STEPS, "internal_batch_size": ROWS}
    with torch.enable_grad(), trainable(question.subject.embeddings):
        result = method.attribute(inputs["input_ids"], **more)
    return question.by_word((result[0] if isinstance(result, tuple) else result)[0].sum(dim=-1))


@contextmanager
def trainable(embeddings: nn.Module) -> Iterator[None]:
    """Lets gradients reach the vectors of the tokens."""
    embeddings.requires_grad_(True)
    try:
        yield
    finally:
        embeddings.requires_grad_(False)


def middle(subject: Subject) -> nn.Module:
    """The layer in the middle of the network."""
    layers = next(module for module in subject.net.modules() if isinstance(module, nn.ModuleList))
    return layers[len(layers) // 2 - 1]


class Odds(nn.Module):
    """Log-odds by the vectors of the tokens."""

    def __init__(self, question: Question) -> None:
        super().__init__()
        self.net, self.question = question.subject.net, question

    def forward(self, embedded: Tensor) -> Tensor:
        """Of rows ``[N, S, D]``."""
        return self.question.of_ids(embedded, self.question.inputs(), "inputs_embeds")


def deeplift(question: Question) -> np.ndarray:
    """DeepLIFT by captum, which has its rule for the activation of the head (tanh) alone, and gradients elsewhere."""
    captum: Captum = import_module("captum.attr")
    vectors = question.subject.embeddings
    text, reference = (
        vectors(ids).detach() for ids in (question.inputs()["input_ids"], question.reference())
    )
    with torch.enable_grad():
        result = captum.DeepLift(Odds(question)).attribute(text.requires_grad_(), reference)
    return question.by_word(result[0].sum(dim=-1))


def by_features(kind: str, question: Question) -> np.ndarray:
    """A method of captum that replaces words by the reference."""
    captum: Captum = import_module("captum.attr")
    inputs, groups = question.inputs(), question.subject.groups(question.text)
    present = sorted({group for group in groups if group is not None})
    # Special tokens stay in any case: those of the reference are the same.
    features = torch.tensor([[present.index(present[0] if group is None else group) for group in groups]])
    more = {"n_samples": max(1, round(SAMPLES / len(present)))} if "Sampling" in kind else {}
    torch.manual_seed(question.seed)
    with torch.no_grad():
        result = getattr(captum, kind)(partial(question.of_ids, inputs=inputs)).attribute(
            inputs["input_ids"],
            baselines=question.reference(),
            feature_mask=features,
            perturbations_per_eval=ROWS,
            **more,
        )
    sums, counts = question.by_word(result[0]), question.by_word(torch.ones(len(groups)))
    return sums / np.maximum(counts, 1)  # every token has the figure of its word


def shap_partition(question: Question) -> np.ndarray:
    """Owen values by shap's partition explainer, words masked."""
    shap = import_module("shap")

    def split(text: str, **_: Any) -> dict[str, list[Any]]:
        words = text.split(" ") if text else []
        ends = np.cumsum([len(word) + 1 for word in words]).tolist()
        spans = [(end - len(word) - 1, end - 1) for word, end in zip(words, ends, strict=True)]
        return {"input_ids": list(range(len(spans))), "offset_mapping": spans}

    def of_strings(strings: Sequence[str]) -> np.ndarray:
        return question.of_rows([Text(tuple(row.split(" ")), question.text.first) for row in strings])

    masker = shap.maskers.Text(split, mask_token=f"{question.subject.mask} ", collapse_mask_token=False)
    explainer = shap.explainers.Partition(of_strings, masker)
    result = explainer([" ".join(question.text.words)], max_evals=SAMPLES, batch_size=ROWS, silent=True)
    return np.asarray(result.values[0], dtype=float).reshape(-1)


def lime(question: Question) -> np.ndarray:
    """LIME, words left out."""
    text = import_module("lime.lime_text")

    def of_strings(strings: Sequence[str]) -> np.ndarray:
        words = [row.split(" ") for row in strings]
        remaining = [[index for index, word in enumerate(row) if word] for row in words]
        return question.of_rows([question.text.only(indices) for indices in remaining])[:, None]

    explainer = text.LimeTextExplainer(
        split_expression=lambda row: row.split(" "), bow=False, mask_string="", random_state=question.seed
    )
    result = explainer.explain_instance(
        " ".join(question.text.words),
        of_strings,
        labels=(0,),
        num_features=len(question.text.words),
        num_samples=SAMPLES,
    )
    values = np.zeros(len(question.text.words))
    for index, weight in result.as_map()[0]:
        values[index] = weight
    return values


@cache
def lxt() -> ModuleType:
    """The rules of AttnLRP; the package's own list of networks is for releases of transformers before 5."""
    stub = ModuleType("lxt.efficient.models")
    vars(stub)["get_default_map"] = None
    with patch.dict(sys.modules, {stub.__name__: stub}):
        return import_module("lxt.efficient.patches")


def attnlrp(question: Question) -> np.ndarray:
    """AttnLRP, Achtibat et al. 2024: vectors of the tokens times their gradient under the rules of lxt."""
    rules, net = lxt(), question.subject.net
    family = sys.modules[type(net).__module__]
    with ExitStack() as changed, torch.enable_grad():
        attention = rules.wrap_attention_forward(family.eager_attention_forward)
        changed.enter_context(patch.object(family, "eager_attention_forward", attention))
        changed.enter_context(patch.object(nn.LayerNorm, "forward", rules.layer_norm_forward))
        for module in net.modules():
            if type(module).__module__.endswith(".activation") or "activations" in type(module).__module__:
                rule = partial(rules.identity_rule_implicit, module.forward)
                changed.enter_context(patch.object(module, "forward", rule))
        vectors = question.subject.embeddings(question.inputs()["input_ids"]).detach().requires_grad_()
        (slope,) = torch.autograd.grad(Odds(question)(vectors).sum(), vectors)
    return question.by_word((slope * vectors)[0].sum(dim=-1))


def at_random(question: Question) -> np.ndarray:
    """Random numbers."""
    return np.random.default_rng(question.seed).standard_normal(len(question.text.words))


METHODS: dict[str, Method] = {
    "slope": partial(effects, "slope", "answer"),
    "screened": partial(effects, "screened", "answer"),
    "knockout": partial(effects, "knockout", "answer"),
    "attention_gradient": attention_gradient,
    "gradient_input": partial(by_layer, "LayerGradientXActivation", lambda subject: subject.embeddings),
    "integrated_gradients": partial(by_layer, "LayerIntegratedGradients", lambda subject: subject.embeddings),
    "layer_integrated_gradients": partial(by_layer, "LayerIntegratedGradients", middle),
    "deeplift": deeplift,
    "shapley_sampling": partial(by_features, "ShapleyValueSampling"),
    "occlusion": partial(by_features, "FeatureAblation"),
    "shap_partition": shap_partition,
    "lime": lime,
    "chefer": chefer,
    "rollout": rollout,
    "attnlrp": attnlrp,
    "random": at_random,
}
"""What each word does to the log-odds of the answer: positive for it, negative against it."""
DOUBT: dict[str, Method] = {
    f"doubt_{method}": partial(effects, method, "doubt") for method in ("slope", "screened", "knockout")
}
"""What each word adds to the entropy."""


def scores_of(name: str, question: Question) -> np.ndarray:
    """The scores of a method, without the warnings of the packages that compute them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ({**METHODS, **DOUBT})[name](question)
