"""Language modelling: a network that fills in masked tokens, or one that goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, DataCollatorForLanguageModeling

from probattn.checks import shown
from probattn.data import DataError
from probattn.data.files import read_text
from probattn.data.identity import Split
from probattn.data.readers import cola, sst2
from probattn.data.rows import text_of
from probattn.files.durable import digest
from probattn.inference.effect_results import words_of
from probattn.inference.explaining import word_spans
from probattn.inference.posterior import Posterior
from probattn.models import CausalLanguageModel
from probattn.models.program import IGNORED, HeadProgram
from probattn.options import Filled
from probattn.report import Group, Sheet
from probattn.report.bootstrap import Columns
from probattn.tasks.answering import DIGITS
from probattn.tasks.classification.recipe import PredictionRecipe
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.encoding import Answer, Batch, Encoded
from probattn.tasks.fine_tuning.predicted_tokens import TOKEN_MEASURES, stacked, token_columns, token_figures
from probattn.tasks.fine_tuning.predictor import TrainedHead
from probattn.tasks.fine_tuning.recipe import Examples, ExamplesSection, HeadRecipe, Rows
from probattn.tasks.fine_tuning.task import ENTROPIES, HeadTask
from probattn.tasks.sections.base import key

Word = tuple[str, list[int]]
"""A word and the positions of its tokens."""

CANDIDATES = 5
"""Candidates for a masked token in an answer."""


def _texts_of(name: str, read: Callable[[], Mapping[Split, Sequence[Any]]]) -> Callable[[Split], Rows]:
    """The texts of a data set of classes."""

    def rows(split: Split) -> Rows:
        for row, example in enumerate(read()[split], start=1):
            yield f"{name} ({split}) text {row}", {"text": example.text}

    return rows


class LanguageSection(ExamplesSection):
    """Texts without labels: files with one paragraph per line (.txt), or a column of a table.

    Built in are `cola_texts` and `sst2_texts`. `limits` counts texts, also where they are joined. The default of
    `prediction.batch_size` is 4: a batch holds one number per draw, predicted token and word of the vocabulary.
    """

    named: ClassVar[Any] = {
        "cola_texts": _texts_of("cola_texts", cola),
        "sst2_texts": _texts_of("sst2_texts", sst2),
    }
    suffixes: ClassVar[tuple[str, ...]] = ("txt",)

    objective: Literal["masked", "causal"] = key(
        "masked",
        "What is predicted: `masked` tokens (as in BERT), or each token from those before it (`causal`, as in GPT-2).",
    )
    text: Filled = key("text", "Column of the texts.")
    join: bool = key(
        True,
        "Whether texts are joined and split into passages of equal length; false for one text per passage.",
    )
    block_length: int = key(128, "Maximum number of tokens of a passage.", ge=3)
    mask_probability: float = key(
        0.15, "Probability that a token is masked (Devlin et al. 2019); no effect on `causal`.", gt=0, lt=1
    )

    def example(self, fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """The text."""
        return {"text": text_of(fields.get(self.text), self.text, where)}

    def read_file(self, path: Path) -> Rows:
        """The lines of a file that are not blank."""
        for line, content in enumerate(read_text(path).split("\n"), start=1):
            if content.strip():
                yield f"{path} line {line}", {self.text: content.strip()}


class LanguageRecipe(HeadRecipe):
    """All that a run of language modelling depends on."""

    language: LanguageSection = Field(description="The texts.")
    prediction: PredictionRecipe = key(
        PredictionRecipe(batch_size=4),
        "How to predict; a batch has a number for each draw, predicted token and word of the vocabulary.",
    )


class Language(HeadTask):
    """Language modelling: prediction of masked tokens, or of the next token."""

    section = "language"
    recipe_class = LanguageRecipe
    unit = "passages"
    measures: ClassVar[Any] = TOKEN_MEASURES
    headings: ClassVar[Any] = {
        "text": "Text",
        "truth": "True tokens",
        "prediction": "Predicted",
        "surprise": "Surprise",
        **ENTROPIES,
    }

    @property
    def masked(self) -> bool:
        """Whether masked tokens are predicted, instead of the next token."""
        return bool(self.section_of_examples.objective == "masked")

    @property
    def auto(self) -> Any:
        """The Hugging Face Auto class of networks for the objective."""
        return AutoModelForMaskedLM if self.masked else AutoModelForCausalLM

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer of the recipe, or after :meth:`network` that of the loaded network."""
        return self.codec()

    def network(self, folder: Path) -> TrainedHead:
        """Loads a trained network and its tokenizer."""
        network = super().network(folder)
        self.tokenizer = network.codec
        return network

    @cached_property
    def examples(self) -> dict[Any, list[Mapping[str, Any]]]:
        """Passages by split; those for evaluation have fixed masks, the same for every network."""
        splits: dict[Any, list[Mapping[str, Any]]] = {}
        for split, texts in self.section_of_examples.load().items():
            passages = self._passages([example["text"] for example in texts])
            if self.masked and split != "train":
                passages = [self._with_masks(passage) for passage in passages]
            predicted = any(self._predicted_in(passage) for passage in passages)
            if not predicted:
                raise DataError(
                    f"{self._source(split)}: expected tokens to predict, got none; give longer texts"
                )
            splits[split] = passages
        return splits

    def _source(self, split: Split) -> str:
        section = self.section_of_examples
        return f"{getattr(section, split) or section.train} ({split})"

    def _passages(self, texts: Sequence[str]) -> list[Mapping[str, Any]]:
        """Token numbers of each passage, and which of them are special."""
        section = self.section_of_examples
        length = min(section.block_length, self.tokenizer.model_max_length)
        truncation: dict[str, Any] = {} if section.join else {"truncation": True, "max_length": length}
        tokens = self.tokenizer(texts, return_special_tokens_mask=True, verbose=False, **truncation)
        pairs = zip(tokens["input_ids"], tokens["special_tokens_mask"], strict=True)
        if not section.join:
            return [{"ids": ids, "special": special} for ids, special in pairs if ids]
        ids, special = (
            list(chain.from_iterable(tokens[name])) for name in ("input_ids", "special_tokens_mask")
        )
        cuts = range(0, len(ids), length)
        return [{"ids": ids[cut : cut + length], "special": special[cut : cut + length]} for cut in cuts]

    def _with_masks(self, passage: Mapping[str, Any]) -> Mapping[str, Any]:
        """A passage whose masks are a function of its tokens."""
        collator = self._collator(self.tokenizer)
        collator.generator = torch.Generator().manual_seed(int(digest([repr(passage["ids"])]), 16))
        ids, special = (torch.tensor([passage[name]]) for name in ("ids", "special"))
        hidden, labels = collator.torch_mask_tokens(ids, special_tokens_mask=special)
        return {**passage, "ids": hidden[0].tolist(), "labels": labels[0].tolist()}

    def _collator(self, codec: Any) -> Any:
        if codec.mask_token is None:
            raise RunError(
                f"network {self.recipe.network.name!r}: expected a tokenizer with a mask token for `objective: "
                "masked`, got one without; take another network, or `causal`"
            )
        return DataCollatorForLanguageModeling(
            codec, mlm_probability=self.section_of_examples.mask_probability
        )

    def _predicted_in(self, passage: Mapping[str, Any]) -> int:
        """Number of tokens that are predicted in a passage, or that can be."""
        if not self.masked:
            return len(passage["ids"]) - 1
        if "labels" in passage:
            return sum(label != IGNORED for label in passage["labels"])
        return len(passage["ids"]) - sum(passage["special"])

    def program_options(self) -> Mapping[str, Any]:
        """The mean number of predicted tokens, so the objective is in nats per token."""
        passages = self.examples["train"]
        mean = sum(map(self._predicted_in, passages)) / len(passages)
        return {"mean_length": mean * self.section_of_examples.mask_probability if self.masked else mean}

    def encode(self, codec: Any, examples: Examples) -> list[Encoded]:
        """Tokens of passages; training passages are masked when a batch is made."""
        return [self._encoded(codec, example) for example in examples]

    def _encoded(self, codec: Any, example: Mapping[str, Any]) -> Encoded:
        if "text" in example:  # given to predict
            return self._encoded_text(codec, example["text"])
        ids = example["ids"]
        inputs = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        if not self.masked:
            return Encoded([{**inputs, "labels": ids}])
        if "labels" in example:
            return Encoded([{**inputs, "labels": example["labels"]}])
        return Encoded([{**inputs, "special_tokens_mask": example["special"]}])

    def _encoded_text(self, codec: Any, text: str) -> Encoded:
        """A text whose masked tokens, or all of them, are predicted, with the word that each token belongs to."""
        length = min(self.section_of_examples.block_length, codec.model_max_length)
        tokens = codec(text, truncation=True, max_length=length)
        ids, labels = tokens["input_ids"], tokens["input_ids"]
        if self.masked:
            # What was masked is not known; any label marks the place.
            labels = [number if number == codec.mask_token_id else IGNORED for number in ids]
            if set(labels) == {IGNORED}:
                raise RunError(
                    f"expected {codec.mask_token} in a text, in place of a word, got none among its first {length} "
                    f"tokens: {shown(text)}"
                )
        words = list(_words(tokens, text))
        return Encoded([{"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels}], words)

    def collate(self, codec: Any) -> Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Tensor]]:
        """Function that makes a padded batch; it masks training passages, with torch's random generator."""
        return partial(_collated, codec.pad_token_id or 0, self._collator(codec) if self.masked else None)

    def reading(
        self, program: HeadProgram, tensors: Mapping[str, Tensor]
    ) -> Callable[[Mapping[str, Tensor]], Tensor]:
        """Logits at the predicted tokens only, because those of all tokens and draws would need too much memory."""
        return PickedLogits(program, self._positions(tensors["labels"]))

    def _positions(self, labels: Tensor) -> Tensor:
        """Places of the logits of each row's predicted tokens ``[B, K]``, in order; others where a row has fewer."""
        predicted = self._labels(labels) != IGNORED
        width = int(predicted.sum(dim=1).max())
        return predicted.int().argsort(dim=1, descending=True, stable=True)[:, :width]

    def _labels(self, labels: Tensor) -> Tensor:
        """The label that each place's logits predict."""
        return labels if self.masked else labels[:, CausalLanguageModel.shift :]

    def record(self, posterior: Posterior, batch: Batch) -> Columns:
        """Columns of sums over the predicted tokens."""
        labels = batch.tensors["labels"]
        truth = self._labels(labels).gather(1, self._positions(labels))
        return token_columns(posterior, truth, self.recipe.report.bins)

    def figures(self, columns: Columns) -> dict[str, float | None]:
        """Measures of the passages in ``columns``."""
        return token_figures(columns)

    def answer(self, posterior: Posterior, batch: Batch) -> list[Answer]:
        """Candidates for each masked token, or each word's negative log-probability, and mean entropies of tokens."""
        labels = batch.tensors["labels"]
        truth = self._labels(labels).gather(1, self._positions(labels))
        entropy, information = posterior.entropy, posterior.mutual_information
        answers = []
        for row, (example, encoded) in enumerate(zip(batch.examples, batch.encoded, strict=True)):
            predicted = truth[row] != IGNORED
            draws = posterior.logits[:, row, predicted].float().log_softmax(dim=-1)
            text = example.get("text") or self.tokenizer.decode(encoded.rows[0]["input_ids"])
            answered = (
                self._candidates(draws)
                if self.masked
                else _surprises(draws, truth[row, predicted], encoded.notes)
            )
            answers.append(
                {
                    "text": text,
                    **answered,
                    "entropy": _mean(entropy[row, predicted]),
                    "mutual_information": _mean(information[row, predicted]),
                }
            )
        return answers

    def _candidates(self, draws: Tensor) -> dict[str, Any]:
        """The most probable tokens at each place, with their probability and its standard deviation over draws."""
        probabilities = draws.exp()
        mean = probabilities.mean(dim=0)
        best = mean.topk(min(CANDIDATES, mean.shape[-1]), dim=-1).indices
        candidates = probabilities.gather(2, best.expand(len(draws), *best.shape))
        spread = (
            candidates.std(dim=0)
            if len(candidates) > 1 and candidates.numel()
            else torch.zeros_like(candidates[0])
        )
        masks = [
            [
                {"token": token, "probability": round(p, DIGITS), "std": round(std, DIGITS)}
                for token, p, std in zip(map(self._token, tokens), *values, strict=True)
            ]
            for tokens, *values in zip(
                best.tolist(), candidates.mean(dim=0).tolist(), spread.tolist(), strict=True
            )
        ]
        return {"prediction": "; ".join(mask[0]["token"] for mask in masks), "masks": masks}

    def _token(self, number: int) -> str:
        return str(self.tokenizer.decode([number])).strip()

    def truth(self, example: Mapping[str, Any]) -> str | None:
        """The tokens that were masked."""
        if not self.masked:
            return None
        return "; ".join(self._token(label) for label in example["labels"] if label != IGNORED)

    @classmethod
    def answer_sheet(cls, answers: Sequence[Answer]) -> Sheet:
        """Table of the candidates, or of the words with their negative log-probabilities, of each text."""
        masked = bool(answers) and "masks" in answers[0]
        groups = tuple(
            Group(answer["text"], tuple(_candidate_rows(answer) if masked else _surprise_rows(answer)))
            for answer in answers
        )
        headings = ("Mask", "Candidate", "Probability", "Std of draws") if masked else ("Word", "Surprise")
        notes = () if masked else ("Surprise: negative log-probability, nats.",)
        return Sheet(headings, groups, words=2 if masked else 1, notes=notes)


class PickedLogits(nn.Module):
    """Logits ``[B, K, C]`` at K ``positions`` ``[B, K]`` of each row, the same for all draws."""

    def __init__(self, program: HeadProgram, positions: Tensor) -> None:
        super().__init__()
        self.program, self.positions = program, positions

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Logits of rows, or of rows of all draws."""
        logits: Tensor = self.program(inputs)
        rows, positions = torch.arange(len(logits), device=logits.device), self.positions.to(logits.device)
        return logits[rows[:, None], positions.repeat(len(rows) // len(positions), 1)]


def _collated(pad: int, collator: Any, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    batch = stacked(pad, rows)
    special = batch.pop("special_tokens_mask", None)
    if special is not None:
        batch["input_ids"], batch["labels"] = collator.torch_mask_tokens(
            batch["input_ids"], special_tokens_mask=special
        )
    return batch


def _words(tokens: Any, text: str) -> Iterator[Word]:
    """The words of a text and its special tokens, in order."""
    numbers = words_of(tokens, 0, (text,))
    spans = {span.number: text[span.start : span.end] for span in word_spans(tokens, (text,))}
    for number, positions in groupby(range(len(numbers)), key=lambda position: numbers[position]):
        if number is not None:
            yield spans.get(number, ""), list(positions)
        else:
            yield from ((tokens.tokens()[position], [position]) for position in positions)


def _surprises(draws: Tensor, truth: Tensor, words: Sequence[Word] | None) -> dict[str, Any]:
    """Negative log-probability of a text's tokens but the first, and of its words."""
    density = draws.gather(2, truth.expand(len(draws), -1)[..., None])[..., 0].double()
    surprises = (math.log(len(draws)) - density.logsumexp(dim=0)).tolist()
    answer: dict[str, Any] = {"surprise": math.fsum(surprises)}
    if words is not None:
        answer["words"] = [
            {
                "word": word,
                "surprise": round(sum(surprises[position - 1] for position in positions if position), DIGITS),
            }
            for word, positions in words
            if positions != [0]
        ]
    return answer


def _candidate_rows(answer: Answer) -> Iterator[tuple[str, ...]]:
    for index, candidates in enumerate(answer["masks"], start=1):
        for candidate in candidates:
            yield str(index), candidate["token"], f"{candidate['probability']:.3f}", f"{candidate['std']:.3f}"


def _surprise_rows(answer: Answer) -> Iterator[tuple[str, ...]]:
    for item in answer["words"]:
        yield item["word"], f"{item['surprise']:.3f}"
    yield "whole text", f"{answer['surprise']:.3f}"
    yield "mean entropy of a token", f"{answer['entropy']:.3f}"
    yield "mean mutual information", f"{answer['mutual_information']:.3f}"


def _mean(values: Tensor) -> float:
    return values.mean().item() if len(values) else 0.0
