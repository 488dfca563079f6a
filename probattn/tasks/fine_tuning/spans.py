"""Answers to questions as spans of a text that may hold none: SQuAD, and slots asked for one by one."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from transformers import AutoModelForQuestionAnswering

from probattn.checks import shortened, shown
from probattn.data import DataError
from probattn.data.files import DATA_VARIABLE, read_text
from probattn.data.identity import Split, split_of
from probattn.data.rows import text_of
from probattn.data.tables import field_of, load_hub
from probattn.inference.posterior import Posterior
from probattn.metrics.functional import area_under_risk_coverage
from probattn.options import Count, Filled, Natural
from probattn.report import MODEL_TITLES, Example, Listing, ModelKey, Sheet, WordsExample
from probattn.report.bootstrap import Columns
from probattn.tasks.answering import DIGITS
from probattn.tasks.classification.explaining import explained
from probattn.tasks.errors import RunError
from probattn.tasks.fine_tuning.answering import Entropies, HeadDeciding
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
from probattn.tasks.fine_tuning.predictor import Predictor, TrainedHead
from probattn.tasks.fine_tuning.recipe import Examples, ExamplesSection, HeadRecipe, Rows
from probattn.tasks.fine_tuning.task import UNCERTAINTY, HeadTask
from probattn.tasks.fine_tuning.tokens import restaurant_utterances
from probattn.tasks.measures import AURC, ECE, bin_columns, calibration_error, number, share
from probattn.tasks.networks import Network
from probattn.tasks.sections.base import key

BEST = 5
"""Spans that an answer lists with their probabilities."""
NAME = 30
"""Characters of an answer where the report names it among others."""
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
    """Questions for the slots of RESTAURANTS-8K (Coope et al. 2020): those of an utterance, and one without answer."""
    for index, (where, text, slots) in enumerate(restaurant_utterances(split)):
        if not text.strip():
            continue
        filled = {slot: [(text[start:end], start)] for slot, start, end in slots}
        absent = [slot for slot in SLOT_QUESTIONS if slot not in filled]
        for slot in [*filled, *([absent[index % len(absent)]] if absent else [])]:
            texts, starts = zip(*filled[slot], strict=True) if slot in filled else ((), ())
            answers = {"text": list(texts), "answer_start": list(starts)}
            yield where, {"question": SLOT_QUESTIONS[slot], "context": text, "answers": answers}


SQUAD_ORIGIN = "https://rajpurkar.github.io/SQuAD-explorer"


def squad(version: str, split: Split) -> Rows:
    """Questions of SQuAD 1.1, with an answer, or 2.0 (Rajpurkar et al. 2016, 2018): files of public data, or the hub.

    The development set is for testing, a tenth of the training contexts for validation; of a part of it a tenth each.
    """
    folder = os.environ.get(DATA_VARIABLE)
    base = Path(folder or "") / "squad"
    files = {"train": base / f"train-v{version}.json", "test": base / f"dev-v{version}.json"}
    development = base / "dev-part-v2.0.json"
    tested = 0.0
    if folder and files["train"].is_file() and files["test"].is_file():
        rows = squad_rows(files["test" if split == "test" else "train"])
    elif folder and development.is_file():
        rows, tested = squad_rows(development), 0.1
    else:
        rows = _squad_of_hub(version, "validation" if split == "test" else "train", files["train"])
    whole = split == "test" and not tested
    for where, fields in rows:
        answered = bool(next(given_answers(fields["answers"], None, where), None))
        if (answered or version != "1.1") and (whole or split_of(fields["context"], 0.1, tested) == split):
            yield where, fields


def _squad_of_hub(version: str, split: str, file: Path) -> Rows:
    name = "rajpurkar/squad" if version == "1.1" else "rajpurkar/squad_v2"
    try:
        table = load_hub(name, split, None, f"hub:{name} ({split})")
    except DataError as error:
        raise DataError(
            f"data set 'squad': expected squad/{file.name} and the development set beside it in the folder that "
            f"{DATA_VARIABLE} names ({SQUAD_ORIGIN} has them), or the hub, but: {error}"
        ) from error
    for index, row in enumerate(table, start=1):
        yield f"hub:{name} ({split}) row {index}", row


def squad_rows(path: Path) -> Rows:
    """Question, context and answers of a file in SQuAD's form; ``DataError`` for another."""
    try:
        articles = json.loads(read_text(path))["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                for item in paragraph["qas"]:
                    where = f"{path} question {item.get('id', shown(item['question']))}"
                    answers = [] if item.get("is_impossible") else item["answers"]
                    yield (
                        where,
                        {"question": item["question"], "context": paragraph["context"], "answers": answers},
                    )
    except json.JSONDecodeError as error:
        raise DataError(f"{path} line {error.lineno}: expected JSON, got {error.msg}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: expected SQuAD's form (data, paragraphs, context, qas, question, answers), got another "
            f"({type(error).__name__}: {error}); for a list of objects, a line each, end the name in .jsonl"
        ) from None


class SpansSection(ExamplesSection):
    """Questions, each about a context that contains the answer or has none.

    Files that end in .json are SQuAD's (version 1.1 or 2.0). Built in are `squad1`, `squad2` and `restaurant8k`, whose
    questions ask for the slots of a booking (Coope et al. 2020). All questions about a context are in the same split.
    """

    named: ClassVar[Any] = {
        "restaurant8k": restaurant8k,
        "squad1": partial(squad, "1.1"),
        "squad2": partial(squad, "2.0"),
    }
    suffixes: ClassVar[tuple[str, ...]] = ("json",)
    input_keys: ClassVar[tuple[str, ...]] = ("context", "question")
    answer_keys: ClassVar[tuple[str, ...]] = ("answers",)

    question: Filled = key("question", "Column of the questions.")
    context: Filled = key("context", "Column of the contexts, the texts with the answers.")
    answers: Filled = key(
        "answers",
        "Column of the answers: an object with lists `text` and `answer_start` (as SQuAD), or a text, empty for no "
        "answer.",
    )
    answer_start: Filled = key(
        "answer_start",
        "Column of the answer's first character in the context, counted from 0, where answers are texts.",
    )
    max_length: int = key(
        384, "Maximum number of tokens of question and context; longer ones become windows.", ge=16
    )
    stride: Natural = key(128, "Tokens that a window shares with the next one, at most half of `max_length`.")
    max_answer_length: Count = key(30, "Maximum number of tokens of a predicted answer.")

    @model_validator(mode="after")
    def _overlap(self) -> Self:
        if 2 * self.stride > self.max_length:
            raise ValueError(
                f"stride: expected at most half of max_length, {self.max_length // 2}, got {self.stride}"
            )
        return self

    def example(self, fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Question, context and the different answers."""
        names = {"question": self.question, "context": self.context}
        example = {role: text_of(fields.get(name), name, where) for role, name in names.items()}
        answers = dict.fromkeys(
            given_answers(field_of(fields, self.answers, where), fields.get(self.answer_start), where)
        )
        for text, start in answers:
            there = example["context"][start : start + len(text)] if start >= 0 else ""
            if there != text:
                raise DataError(
                    f"{where}: expected the answer {shown(text)} at character {start} of the context (counted from 0), "
                    f"got {shown(there)}; correct its start"
                )
        return example | {"answers": tuple(answers)}

    def unlabelled(self, text: str, pair: str | None) -> Mapping[str, Any]:
        """A context and a question about it."""
        for role, words in (("context", text), ("question", pair)):
            if not (words or "").strip():
                raise RunError(f"expected a {role} with words, got {shown(words)}")
        return {"context": text, "question": pair}

    def identity(self, example: Mapping[str, Any]) -> str:
        """The context."""
        return example["context"]

    def read_file(self, path: Path) -> Rows:
        """Questions of a file in SQuAD's form."""
        names = {"question": self.question, "context": self.context, "answers": self.answers}
        for where, fields in squad_rows(path):
            yield where, {names[name]: value for name, value in fields.items()}


class SpansRecipe(HeadRecipe):
    """All that a run on questions depends on."""

    spans: SpansSection = Field(description="The questions, their contexts and answers.")


class SpanAnswer(Entropies):
    """What is stored of the answer to a question."""

    answer: str
    probability: float


class SpansDeciding(HeadDeciding):
    """Decisions about the answer to a question, or that there is none."""

    record = SpanAnswer
    wrong_when = "it is no exact match of a true one, as SQuAD's script compares them"

    def read(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """With 1 less its probability."""
        return {**answer, "uncertainty": 1 - answer["probability"]}

    def wrong(self, answer: Mapping[str, Any], truth: Any) -> bool:
        """Whether it equals none of the true answers."""
        return not best_match(exact_match, answer["answer"], (text for text, _ in truth))

    def truth(self, example: Mapping[str, Any]) -> Any:
        """Its answers."""
        return example["answers"]


class Spans(HeadTask):
    r"""Question answering: an answer is a span of a context, or none, by a network that marks first and last token.

    In each draw the span of tokens i..j has the score :math:`s_i + e_j`, with the network's scores s of first and e of
    last tokens. "No answer" has the score :math:`s_0 + e_0` of the first token, the smallest over all windows (Devlin
    et al. 2019, section 4.3, and their ``run_squad.py``; without a threshold). Spans consist of tokens of the context,
    with i <= j and at most ``max_answer_length`` tokens. A span in several windows is scored in the one where the
    shorter of its two contexts is longest, as in ``run_squad.py``. The probability of an outcome (span or no answer) is
    the mean over draws of the softmax over all outcomes. The answer is the most probable outcome; entropy and mutual
    information, in nats, are those of all outcomes.

    Measures of the tuned answer are those of the best span if :math:`\log p(\text{no answer}) - \max \log
    p(\text{span}) \le \tau`, else of no answer. The threshold :math:`\tau` has the highest F1 on the validation
    questions; SQuAD's script tunes it on the test questions (Rajpurkar et al. 2018).
    """

    section = "spans"
    recipe_class = SpansRecipe
    decides = SpansDeciding
    unit = "questions"
    cluster = ("context", "texts")
    auto = AutoModelForQuestionAnswering
    inputs = ("context", "question")
    calibrates = True
    measures: ClassVar[Any] = {
        "exact": share(
            "Exact match", "Share of answers equal to a true one, as SQuAD's script compares them"
        ),
        "f1": share(
            "F1 of words", "Overlap of words with the best true answer, as SQuAD's script has it", short="F1"
        ),
        "exact_tuned": share(
            "Exact match, threshold tuned",
            "The same, with the threshold of no answer that has the highest F1 on the validation questions",
        ),
        "f1_tuned": share(
            "F1 of words, threshold tuned", "The same of F1", short="F1 with a tuned threshold"
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
    headings: ClassVar[Any] = {
        "question": "Question",
        "context": "Context",
        "truth": "True answer",
        "answer": "Answer",
        **UNCERTAINTY,
    }

    def head_options(self) -> Mapping[str, Any]:
        """Configuration of a network with two outputs per token."""
        return {"num_labels": 2}

    def validation_metrics(self, program: nn.Module, batch: Any) -> Mapping[str, Tensor]:
        """For each window, whether first and last token are right."""
        positions = torch.stack([batch["start_positions"], batch["end_positions"]], dim=1)
        return {"accuracy": (program(batch).argmax(dim=-1) == positions).all(dim=1).float()}

    def encode(self, codec: Any, examples: Examples) -> list[Encoded]:
        """Tokens of windows of question and context; those without the whole first answer are labelled "no answer"."""
        if not codec.is_fast:
            raise RunError(
                f"{type(codec).__name__}: expected a tokenizer that knows the places of its tokens, got a slow one; "
                "use a network with a fast tokenizer"
            )
        tokens = self._tokens(codec, self._questions(codec, examples), examples)
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
        return [Encoded(*item) for item in zip(rows, windows, strict=True)]

    def _questions(self, codec: Any, examples: Examples) -> list[str]:
        """Questions, cut behind half of a window."""
        section = self.section_of_examples
        room = section.max_length - section.stride - codec.num_special_tokens_to_add(pair=True)
        return _cut(codec, [example["question"] for example in examples], max(room // 2, 1))

    def _tokens(self, codec: Any, questions: list[str], examples: Examples) -> Any:
        """The tokenizer's windows."""
        section = self.section_of_examples
        return codec(
            questions,
            [example["context"] for example in examples],
            truncation="only_second",
            max_length=section.max_length,
            stride=section.stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )

    def outcomes(self, posterior: Posterior, batch: Batch) -> Iterator[tuple[Candidates, Posterior]]:
        """Spans of each example, and scores of its 1 + K outcomes, no answer first, in each draw, ``[P, 1, 1 + K]``."""
        logits_of_examples = posterior.logits.split([len(item.rows) for item in batch.encoded], dim=1)
        for encoded, logits in zip(batch.encoded, logits_of_examples, strict=True):
            candidates = Candidates.of(encoded.notes, self.section_of_examples.max_answer_length)
            yield candidates, Posterior(candidates.scores(logits)[:, None])

    def record(self, posterior: Posterior, batch: Batch) -> Columns:
        """Columns of matches, log-likelihood and confidence of each question."""
        names = ("exact", "f1", "given", "answerable", "nll", "margin", "span_exact", "span_f1")
        matches: dict[str, list[float]] = {name: [] for name in names}
        confidence = []
        for example, (candidates, joint) in zip(batch.examples, self.outcomes(posterior, batch), strict=True):
            answers = [text for text, _ in example["answers"]]
            probabilities = joint.mean_probabilities[0]
            probability, outcome = probabilities.max(dim=-1)
            text = candidates.text(example["context"], int(outcome))
            confidence.append(probability)
            matches["exact"].append(best_match(exact_match, text, answers))
            matches["f1"].append(best_match(word_f1, text, answers))
            matches["given"].append(bool(outcome > 0))
            matches["answerable"].append(bool(answers))
            matches["nll"].append(negative_log_likelihood(joint, candidates.true(example["answers"])))
            span, margin = best_span(probabilities)
            text = candidates.text(example["context"], span)
            matches["margin"].append(margin)
            matches["span_exact"].append(best_match(exact_match, text, answers))
            matches["span_f1"].append(best_match(word_f1, text, answers))
        columns = {name: torch.tensor(values, dtype=torch.float64) for name, values in matches.items()}
        size, stacked = len(batch.examples), torch.stack(confidence)
        bins = bin_columns(stacked, columns["exact"] > 0, torch.arange(size), size, self.recipe.report.bins)
        return columns | {"confidence": stacked, "bins": bins}

    def calibrated(self, columns: Columns, held_out: Columns) -> Columns:
        """Columns with matches of the tuned answer, whose threshold is fitted to the validation questions."""
        threshold = best_threshold(held_out["margin"], held_out["span_f1"], held_out["answerable"] == 0)
        answered = columns["margin"] <= threshold
        nothing = (columns["answerable"] == 0).double()
        tuned = {
            f"{name}_tuned": torch.where(answered, columns[f"span_{name}"], nothing)
            for name in ("exact", "f1")
        }
        return {**columns, **tuned, "threshold": torch.full_like(columns["margin"], threshold)}

    def figures(self, columns: Columns) -> dict[str, float | None]:
        """Measures of the questions in ``columns``."""
        exact, answerable = columns["exact"], columns["answerable"] > 0
        return {
            "exact": exact.mean().item(),
            "f1": columns["f1"].mean().item(),
            **{name: columns[name].mean().item() for name in ("exact_tuned", "f1_tuned") if name in columns},
            "answered": _mean(exact[answerable]),
            "refused": _mean(exact[~answerable]),
            "nll": _mean(columns["nll"][~columns["nll"].isnan()]),
            "ece": calibration_error(columns["bins"]),
            "aurc": area_under_risk_coverage(1 - columns["confidence"], 1 - exact.float()).item(),
        }

    def listings(self, columns: Mapping[ModelKey, Columns]) -> Iterable[Listing]:
        """Table of measures of the questions with and without an answer, by model."""
        rows = []
        for model, column in columns.items():
            for kind, answerable in (("answerable", 1), ("unanswerable", 0)):
                of_kind = column["answerable"] == answerable
                shares = [_mean(column[name][of_kind]) for name in ("exact", "f1", "given", "confidence")]
                cells = ["" if value is None else f"{value:.1%}" for value in shares]
                rows.append((MODEL_TITLES[model], kind, f"{int(of_kind.sum()):,}", *cells))
        columns_of_first = next(iter(columns.values()))
        long = int(columns_of_first["nll"].isnan().sum())
        yield Listing(
            title="With and without an answer",
            headings=("Attention", "Questions", "Number", "Exact match", "F1", "Answered", "Confidence"),
            rows=tuple(rows),
            words=2,
            about="Answered: the share that gets an answer, right or wrong. Answers longer than "
            f"{self.section_of_examples.max_answer_length} tokens, which cannot be given: {long:,}.",
        )
        if all("threshold" in column for column in columns.values()):
            names = ("exact", "f1", "exact_tuned", "f1_tuned")
            tuned = []
            for model, column in columns.items():
                cells = [f"{column[name].mean().item():.1%}" for name in names]
                tuned.append((MODEL_TITLES[model], _threshold(column["threshold"][0].item()), *cells))
            yield Listing(
                title="Threshold of no answer",
                headings=("Attention", "Threshold", "Exact match", "F1", "Exact match, tuned", "F1, tuned"),
                rows=tuple(tuned),
                about="There is an answer where the logarithm of the probability of no answer exceeds that of the best "
                "span by no more than the threshold; 0 is the more probable of the two. Tuned: the highest F1 on the "
                "validation questions.",
            )

    def answer(self, posterior: Posterior, batch: Batch) -> list[Answer]:
        """The most probable outcome of each question, and the next ones; the text is empty if there is no answer."""
        answers = []
        for example, (candidates, joint) in zip(batch.examples, self.outcomes(posterior, batch), strict=True):
            probabilities = joint.mean_probabilities[0]
            best = []
            for outcome in probabilities.topk(min(BEST, len(probabilities))).indices.tolist():
                start, end = candidates.characters(outcome)
                text = candidates.text(example["context"], outcome)
                text_and_ends = {"answer": text, "start": start, "end": end}
                best.append(text_and_ends | {"probability": round(probabilities[outcome].item(), DIGITS)})
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

    def explained(self, network: TrainedHead, example: Mapping[str, Any]) -> WordsExample | None:
        """Words behind the most probable outcomes, no answer included, in the window of the most probable span."""
        predictor = Predictor(self, network)
        (batch,) = predictor.batches([example])
        posterior = predictor.drawn(batch, 0)
        ((candidates, joint),) = self.outcomes(posterior, batch)
        probabilities = joint.mean_probabilities[0]
        span, _ = best_span(probabilities)
        if span == 0:
            return None
        window = int(candidates.window[span - 1])
        inside = torch.cat([torch.zeros(1, dtype=torch.bool), candidates.window == window])
        leading = probabilities.where(inside, -1.0).topk(min(BEST, int(inside.sum()))).indices.tolist()
        outcomes = sorted([0, *leading], key=lambda outcome: -probabilities[outcome])
        texts = [candidates.text(example["context"], outcome) or NOTHING for outcome in outcomes]
        names = distinct([shortened(text, NAME) for text in texts])
        positions = torch.cat([torch.zeros(1, 2, dtype=torch.long), candidates.positions])[outcomes]
        best = probabilities[outcomes[0]].item()
        shown = Example(
            data="test",
            text=example["question"],
            pair=example["context"],
            label=self.truth(example),
            predicted=names[0],
            probability=best,
            spread=joint.logits[:, 0].softmax(dim=-1)[:, outcomes[0]].std(correction=0).item(),
            entropy=joint.entropy.item(),
        )
        inputs = network.program.inputs(batch.tensors)
        row = {name: value[window : window + 1].to(network.device) for name, value in inputs.items()}
        questions = self._questions(network.codec, [example])
        explanation = explained(
            Network(OutcomeScores(network.program, positions), network.folder, network.key, network.codec),
            row,
            [*questions, example["context"]],
            names,
            names[0],
            self._tokens(network.codec, questions, [example]),
            window,
        )
        if explanation is None:
            return None
        return WordsExample(example=shown, reason="uncertain", explanation=explanation)

    def truth(self, example: Mapping[str, Any]) -> str:
        """The true answers."""
        return " / ".join(dict.fromkeys(text for text, _ in example["answers"])) or NOTHING

    @classmethod
    def table(cls, answers: Sequence[Answer]) -> Sheet:
        """Table of answers, with a mark where there is none."""
        return super().table([answer | {"answer": answer["answer"] or NOTHING} for answer in answers])


def _cut(codec: Any, questions: list[str], limit: int) -> list[str]:
    """Questions, cut behind so many tokens."""
    offsets_of_questions = codec(
        questions, add_special_tokens=False, truncation=True, max_length=limit, return_offsets_mapping=True
    )["offset_mapping"]
    return [
        question[: offsets[-1][1]] if len(offsets) == limit else question
        for question, offsets in zip(questions, offsets_of_questions, strict=True)
    ]


class OutcomeScores(nn.Module):
    """Scores ``[B, K]`` of K outcomes, by first and last position in a window, from the scores of its tokens."""

    def __init__(self, program: nn.Module, positions: Tensor) -> None:
        super().__init__()
        self.program = program
        self.net = program.net
        self.positions = positions

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Scores of rows of the window."""
        logits: Tensor = self.program(inputs)  # [B, 2, T]
        first, last = self.positions.to(logits.device).unbind(dim=1)
        return logits[:, 0, first] + logits[:, 1, last]


def distinct(names: Sequence[str]) -> list[str]:
    """Names with a number behind those that came before.

    Example:
        >>> distinct(["Rome", "no answer", "Rome"])
        ['Rome', 'no answer', 'Rome (2)']
    """
    counts: Counter[str] = Counter()
    unique = []
    for name in names:
        counts[name] += 1
        unique.append(f"{name} ({counts[name]})" if counts[name] > 1 else name)
    return unique


def best_span(probabilities: Tensor) -> tuple[int, float]:
    """The most probable span of ``[1 + K]`` probabilities, 0 for none, and log p(no answer) less that of it."""
    if len(probabilities) == 1:
        return 0, math.inf
    span = int(probabilities[1:].argmax()) + 1
    logs = probabilities[[0, span]].double().clamp_min(torch.finfo(torch.float32).tiny).log()
    return span, float(logs[0] - logs[1])


def best_threshold(margin: Tensor, scores: Tensor, unanswerable: Tensor) -> float:
    """The smallest threshold with the highest mean score if questions of a margin ``[N]`` up to it are answered.

    Scores ``[N]`` are of the best span, 1 for no answer where bool ``unanswerable`` ``[N]``; -inf answers nothing.
    """
    order = margin.argsort(stable=True)
    gains = scores[order].double() - unanswerable[order].double()
    totals = torch.cat([gains.new_zeros(1), gains.cumsum(dim=0)])
    ends = torch.cat([margin[order], margin.new_full((1,), math.inf)])
    last = torch.cat(
        [torch.ones(1, dtype=torch.bool), ends[:-1] < ends[1:]]
    )  # equal margins are answered together
    best = int(totals.masked_fill(~last, -math.inf).argmax())
    return float(margin[order[best - 1]]) if best else -math.inf


def _threshold(value: float) -> str:
    return f"{value:+.3f}" if math.isfinite(value) else "none answered"


def _mean(values: Tensor) -> float | None:
    return values.mean().item() if len(values) else None
