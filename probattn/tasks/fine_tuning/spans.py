"""Answers to questions as spans of a text that may hold none: SQuAD, and slots asked for one by one."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from transformers import AutoModelForQuestionAnswering

from probattn.checks import shown
from probattn.data import DataError
from probattn.data.files import read_text
from probattn.data.identity import Split
from probattn.inference.posterior import Posterior
from probattn.inference.report import MODEL_TITLES, ModelKey, Sheet
from probattn.metrics.functional import area_under_risk_coverage
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.answers import (
    Candidates,
    best_match,
    ends_of,
    exact_match,
    given_answers,
    negative_log_likelihood,
    visible,
    word_f1,
)
from probattn.tasks.fine_tuning.encoding import Answer, Batch, Encoded
from probattn.tasks.fine_tuning.measures import AURC, ECE, bin_columns, calibration_error, number, share
from probattn.tasks.fine_tuning.recipe import Examples, ExamplesSection, HeadRecipe, Rows
from probattn.tasks.fine_tuning.results import Columns, Listing
from probattn.tasks.fine_tuning.task import DIGITS, HeadTask
from probattn.tasks.fine_tuning.texts import text_of
from probattn.tasks.fine_tuning.tokens import restaurant_utterances

BEST = 5
"""Spans that an answer lists with their probabilities."""
NOTHING = "no answer"
"""What tables show for an empty answer."""
SLOT_QUESTIONS = {
    "date": "Which date?",
    "first_name": "What is the first name?",
    "last_name": "What is the last name?",
    "people": "How many people?",
    "time": "What time?",
}
"""Questions by slot of RESTAURANTS-8K."""


def restaurant8k(split: Split) -> Rows:
    """Questions for the slots of RESTAURANTS-8K (Coope et al. 2020), about half of them without an answer.

    Each utterance is asked for every slot that it fills, and for one that it does not, which goes round with the number
    of the utterance.
    """
    for place, (where, text, slots) in enumerate(restaurant_utterances(split)):
        if not text.strip():
            continue
        filled = {slot: [(text[start:end], start)] for slot, start, end in slots}
        absent = [slot for slot in SLOT_QUESTIONS if slot not in filled]
        for slot in [*filled, *([absent[place % len(absent)]] if absent else [])]:
            texts, starts = zip(*filled[slot], strict=True) if slot in filled else ((), ())
            answers = {"text": list(texts), "answer_start": list(starts)}
            yield where, {"question": SLOT_QUESTIONS[slot], "context": text, "answers": answers}


class SpansSection(ExamplesSection):
    """Questions about a context each, with the answers that stand in it, or none.

    Files that end in .json are SQuAD's (version 1.1 or 2.0). Contexts are assigned to parts as a whole, with all their
    questions.
    """

    named: ClassVar[Any] = {"restaurant8k": restaurant8k}
    suffixes: ClassVar[tuple[str, ...]] = ("json",)

    question: str = Field(default="question", min_length=1, description="Column of the questions.")
    context: str = Field(
        default="context", min_length=1, description="Column of the texts that are asked about."
    )
    answers: str = Field(
        default="answers",
        min_length=1,
        description="Column of the answers: an object with lists `text` and `answer_start`, as SQuAD has it on the "
        "hub, or a text, empty for no answer.",
    )
    answer_start: str = Field(
        default="answer_start",
        min_length=1,
        description="Column of the answer's first character in the context, counted from 0, where answers are texts.",
    )
    max_length: int = Field(
        default=384,
        ge=16,
        description="Most tokens of question and context; longer ones make several windows.",
    )
    stride: int = Field(
        default=128,
        ge=0,
        description="Tokens of the context that a window shares with the next, at most half of all.",
    )
    max_answer_length: int = Field(default=30, ge=1, description="Most tokens of a predicted answer.")

    @model_validator(mode="after")
    def _overlap(self) -> Self:
        if 2 * self.stride > self.max_length:
            raise ValueError(
                f"stride: expected at most half of max_length, {self.max_length // 2}, got {self.stride}"
            )
        return self

    def columns(self) -> Collection[str]:
        """Questions, contexts and answers."""
        return self.question, self.context, self.answers

    def example(self, fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Question, context and the different answers."""
        names = {"question": self.question, "context": self.context}
        example = {role: text_of(fields.get(name), name, where) for role, name in names.items()}
        found = dict.fromkeys(given_answers(fields.get(self.answers), fields.get(self.answer_start), where))
        for text, start in found:
            there = example["context"][start : start + len(text)] if start >= 0 else ""
            if there != text:
                raise DataError(
                    f"{where}: expected the answer {shown(text)} at character {start} of the context (counted from 0), "
                    f"got {shown(there)}; correct its start"
                )
        return example | {"answers": tuple(found)}

    def identity(self, example: Mapping[str, Any]) -> str:
        """The context."""
        text: str = example["context"]
        return text

    def read_file(self, path: Path) -> Rows:
        """Questions of a file in SQuAD's form."""
        try:
            articles = json.loads(read_text(path))["data"]
            for article in articles:
                for paragraph in article["paragraphs"]:
                    for asked in paragraph["qas"]:
                        where = f"{path} question {asked.get('id', shown(asked['question']))}"
                        answers = [] if asked.get("is_impossible") else asked["answers"]
                        yield (
                            where,
                            {
                                self.question: asked["question"],
                                self.context: paragraph["context"],
                                self.answers: answers,
                            },
                        )
        except json.JSONDecodeError as error:
            raise DataError(f"{path} line {error.lineno}: expected JSON, got {error.msg}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path}: expected SQuAD's form (data, paragraphs, context, qas, question, answers), got another "
                f"({type(error).__name__}: {error}); for a list of objects, a line each, end the name in .jsonl"
            ) from None


class SpansRecipe(HeadRecipe):
    """All that a run on questions depends on."""

    spans: SpansSection = Field(description="The questions, their contexts and answers.")


class Spans(HeadTask):
    r"""Answers as spans of a context, or none, by a network that marks first and last token.

    A draw gives a span of tokens i..j the score :math:`s_i + e_j`, and no answer :math:`s_0 + e_0`, the first token's,
    the smallest of all windows (Devlin et al. 2019, section 4.3, and their ``run_squad.py``; no threshold). Spans are
    those of the context's tokens with i <= j and at most ``max_answer_length`` tokens. Each is read in one window, the
    one with the most context on its scarcer side, as ``run_squad.py`` chooses it for a token. The probability of an
    outcome, span or no answer, is the mean over draws of the softmax over all outcomes; the answer is the most probable
    one, entropy and mutual information are those of all outcomes, nats.
    """

    section = "spans"
    recipe_class = SpansRecipe
    unit = "questions"
    auto = AutoModelForQuestionAnswering
    inputs = ("context", "question")
    measures: ClassVar[Any] = {
        "exact": share(
            "Exact match", "Share of answers equal to a true one, as SQuAD's script compares them"
        ),
        "f1": share(
            "F1 of words",
            "Overlap of words with the best true answer, as SQuAD's script has it",
            short="F1",
        ),
        "answered": share("Exact match, answerable", "Share of exact matches among questions with an answer"),
        "refused": share("Accuracy, unanswerable", "Share of questions without an answer that get none"),
        "nll": number(
            "Negative log-likelihood",
            "Of the true answers together, nats per question, where one is short enough to be given",
            short="NLL",
        ),
        "ece": ECE,
        "aurc": AURC,
    }
    headings: ClassVar[Mapping[str, str]] = {
        "question": "Question",
        "context": "Context",
        "truth": "True answer",
        "answer": "Answer",
        "probability": "Probability",
        "entropy": "Entropy",
        "mutual_information": "Mutual information",
    }

    def head_options(self) -> Mapping[str, Any]:
        """Two outputs a token."""
        return {"num_labels": 2}

    def input_columns(self) -> tuple[str, str | None]:
        """Contexts, and questions as second texts."""
        section = self.section_of_examples
        return section.context, section.question

    def validation_metrics(self, program: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """Share of windows with both ends right."""
        names = ("start_positions", "end_positions")
        inputs = {name: value for name, value in batch.items() if name not in names}
        positions = torch.stack([batch[name] for name in names], dim=1)
        return {"accuracy": (program(inputs).argmax(dim=-1) == positions).all(dim=1).float()}

    def encode(self, codec: Any, examples: Examples) -> list[Encoded]:
        """Windows of question and context; one without the whole first answer is labelled with the first token."""
        if not codec.is_fast:
            raise RunError(
                f"{type(codec).__name__}: expected a tokenizer that knows the places of its tokens, got a slow one; "
                "use a network with a fast tokenizer"
            )
        section = self.section_of_examples
        room = section.max_length - section.stride - codec.num_special_tokens_to_add(pair=True)
        tokens = codec(
            _cut(codec, [example["question"] for example in examples], max(room // 2, 1)),
            [example["context"] for example in examples],
            truncation="only_second",
            max_length=section.max_length,
            stride=section.stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        rows: list[list[Mapping[str, Any]]] = [[] for _ in examples]
        windows: list[list[Tensor]] = [[] for _ in examples]
        for row, owner in enumerate(tokens["overflow_to_sample_mapping"]):
            example = examples[owner]
            window = visible(example["context"], tokens["offset_mapping"][row], tokens.sequence_ids(row))
            inputs = {name: tokens[name][row] for name in codec.model_input_names if name in tokens}
            if "answers" in example:
                ends = ends_of(window[:, 1:], *example["answers"][0]) if example["answers"] else None
                first, last = (0, 0) if ends is None else window[list(ends), 0].tolist()
                inputs |= {"start_positions": first, "end_positions": last}
            rows[owner].append(inputs)
            windows[owner].append(window)
        return [Encoded(*each) for each in zip(rows, windows, strict=True)]

    def outcomes(self, posterior: Posterior, batch: Batch) -> Iterator[tuple[Candidates, Posterior]]:
        """Of each example its spans, and draws of the scores of all outcomes, no answer first, ``[P, 1, 1 + K]``."""
        parts = posterior.logits.split([len(each.rows) for each in batch.encoded], dim=1)
        for encoded, logits in zip(batch.encoded, parts, strict=True):
            candidates = Candidates.of(encoded.notes, self.section_of_examples.max_answer_length)
            yield candidates, Posterior(candidates.scores(logits)[:, None])

    def record(self, posterior: Posterior, batch: Batch) -> Columns:
        """Matches, log-likelihood and confidence of each question."""
        found: dict[str, list[float]] = {name: [] for name in ("exact", "f1", "given", "answerable", "nll")}
        confidence = []
        for example, (candidates, joint) in zip(batch.examples, self.outcomes(posterior, batch), strict=True):
            answers = [text for text, _ in example["answers"]]
            probability, outcome = joint.mean_probabilities[0].max(dim=-1)
            text = candidates.text(example["context"], int(outcome))
            confidence.append(probability)
            found["exact"].append(best_match(exact_match, text, answers))
            found["f1"].append(best_match(word_f1, text, answers))
            found["given"].append(bool(outcome > 0))
            found["answerable"].append(bool(answers))
            found["nll"].append(negative_log_likelihood(joint, candidates.true(example["answers"])))
        columns = {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}
        size, stacked = len(batch.examples), torch.stack(confidence)
        bins = bin_columns(stacked, columns["exact"] > 0, torch.arange(size), size, self.recipe.report.bins)
        return columns | {"confidence": stacked, "bins": bins}

    def figures(self, columns: Columns) -> dict[str, float | None]:
        """The measures of some questions."""
        exact, answerable = columns["exact"], columns["answerable"] > 0
        return {
            "exact": exact.mean().item(),
            "f1": columns["f1"].mean().item(),
            "answered": _mean(exact[answerable]),
            "refused": _mean(exact[~answerable]),
            "nll": _mean(columns["nll"][~columns["nll"].isnan()]),
            "ece": calibration_error(columns["bins"]),
            "aurc": area_under_risk_coverage(1 - columns["confidence"], 1 - exact.float()).item(),
        }

    def listings(self, columns: Mapping[ModelKey, Columns]) -> Iterable[Listing]:
        """Questions with and without an answer, by model."""
        rows = []
        for key, each in columns.items():
            for kind, wanted in (("answerable", 1), ("unanswerable", 0)):
                chosen = each["answerable"] == wanted
                shares = [_mean(each[name][chosen]) for name in ("exact", "f1", "given", "confidence")]
                cells = ["" if value is None else f"{value:.1%}" for value in shares]
                rows.append((MODEL_TITLES[key], kind, f"{int(chosen.sum()):,}", *cells))
        own = next(iter(columns.values()))
        long = int(own["nll"].isnan().sum())
        yield Listing(
            title="With and without an answer",
            headings=("Attention", "Questions", "Number", "Exact match", "F1", "Answered", "Confidence"),
            rows=tuple(rows),
            words=2,
            about="Answered: the share that gets an answer, right or wrong. Answers longer than "
            f"{self.section_of_examples.max_answer_length} tokens, which cannot be given: {long:,}.",
        )

    def answer(self, posterior: Posterior, batch: Batch) -> list[Answer]:
        """The most probable outcome of each question, and those that follow; without text where there is no answer."""
        answers = []
        for example, (candidates, joint) in zip(batch.examples, self.outcomes(posterior, batch), strict=True):
            probabilities = joint.mean_probabilities[0]
            best = []
            for outcome in probabilities.topk(min(BEST, len(probabilities))).indices.tolist():
                start, end = candidates.characters(outcome)
                text = candidates.text(example["context"], outcome)
                given = {"answer": text, "start": start, "end": end}
                best.append(given | {"probability": round(probabilities[outcome].item(), DIGITS)})
            answers.append(
                {
                    **best[0],
                    "no_answer": round(probabilities[0].item(), DIGITS),
                    "entropy": joint.entropy.item(),
                    "mutual_information": joint.mutual_information.item(),
                    "best": best,
                    "context": example["context"],
                    "question": example["question"],
                }
            )
        return answers

    def truth(self, example: Mapping[str, Any]) -> str:
        """The true answers."""
        return " / ".join(dict.fromkeys(text for text, _ in example["answers"])) or NOTHING

    @classmethod
    def sheet(cls, answers: Sequence[Answer]) -> Sheet:
        """Answers as a table, which says where there is none."""
        return super().sheet([each | {"answer": each["answer"] or NOTHING} for each in answers])

    def given(self, text: str, pair: str | None) -> Mapping[str, Any]:
        """A context and a question about it."""
        for role, words in (("context", text), ("question", pair)):
            if not (words or "").strip():
                raise RunError(f"expected a {role} with words, got {shown(words)}")
        return {"context": text, "question": pair}


def _cut(codec: Any, questions: list[str], most: int) -> list[str]:
    """Questions, cut behind so many tokens."""
    places = codec(
        questions, add_special_tokens=False, truncation=True, max_length=most, return_offsets_mapping=True
    )["offset_mapping"]
    return [
        question[: offsets[-1][1]] if len(offsets) == most else question
        for question, offsets in zip(questions, places, strict=True)
    ]


def _mean(values: Tensor) -> float | None:
    return values.mean().item() if len(values) else None
