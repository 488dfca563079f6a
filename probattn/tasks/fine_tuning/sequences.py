"""Texts from texts by pretrained encoder-decoders: translation, summaries, questions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

from probattn.data.identity import Split
from probattn.data.rows import text_of
from probattn.data.sentence_pairs import Language, load_multi30k
from probattn.inference.posterior import Posterior
from probattn.inference.sampling import until_the_end
from probattn.inference.session import evaluating
from probattn.metrics.functional import bleu_counts, bleu_from_counts
from probattn.models.program import IGNORED
from probattn.options import Count, Filled
from probattn.report.bootstrap import Columns
from probattn.tasks.classification.recipe import PredictionRecipe
from probattn.tasks.errors import as_run_error
from probattn.tasks.fine_tuning.encoding import Answer, Batch, Encoded
from probattn.tasks.fine_tuning.predicted_tokens import TOKEN_MEASURES, stacked, token_columns, token_figures
from probattn.tasks.fine_tuning.predictor import TrainedHead
from probattn.tasks.fine_tuning.recipe import Examples, ExamplesSection, HeadRecipe, Rows
from probattn.tasks.fine_tuning.task import ENTROPIES, HeadTask
from probattn.tasks.measures import share
from probattn.tasks.programs import Data
from probattn.tasks.sections.base import key


def _multi30k(source: Language, target: Language, split: Split) -> Rows:
    """Captions of Multi30k (Elliott et al. 2016) in two languages."""
    pairs = load_multi30k(source=source, target=target).roles()[split]
    for line, texts in enumerate(zip(pairs.sources, pairs.targets, strict=True), start=1):
        yield f"{pairs.source} line {line}", dict(zip(("source", "target"), texts, strict=True))


class SequencesSection(ExamplesSection):
    """Input texts, each with a target text.

    Built in are `multi30k_en_de` and `multi30k_de_en`: captions in English and German (Elliott et al. 2016). The
    default of `prediction.batch_size` is 8: a batch holds one number per draw, target token and word of the vocabulary.
    """

    named: ClassVar[Any] = {
        "multi30k_de_en": partial(_multi30k, "de", "en"),
        "multi30k_en_de": partial(_multi30k, "en", "de"),
    }
    input_keys: ClassVar[tuple[str, ...]] = ("source",)
    answer_keys: ClassVar[tuple[str, ...]] = ("target",)

    source: Filled = key("source", "Column of the input texts.")
    target: Filled = key("target", "Column of the target texts.")
    prefix: str = key("", "Prefix of every input text, such as `translate English to German: ` for T5.")
    source_length: int = key(128, "Maximum number of tokens of an input text.", ge=3)
    target_length: int = key(128, "Maximum number of tokens of a target text, also in generation.", ge=3)
    num_beams: Count = key(1, "Beams in generation; 1 is greedy search.")

    def example(self, fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Both texts."""
        names = {"text": self.source, "target": self.target}
        return {role: text_of(fields.get(name), name, where) for role, name in names.items()}


class SequencesRecipe(HeadRecipe):
    """All that a run on texts from texts depends on."""

    sequences: SequencesSection = Field(description="The texts, and what is to be made of them.")
    prediction: PredictionRecipe = key(
        PredictionRecipe(batch_size=8),
        "How to predict; a batch has a number for each draw, target token and word of the vocabulary.",
    )


class Sequences(HeadTask):
    """Generation of texts from texts by a pretrained encoder-decoder.

    Measures of tokens are of the true text, each token predicted from the true ones before it. BLEU is that of the text
    that the network generates; latent attention generates at its posterior expectation, so ``bayesian_mean`` and
    ``bayesian_expectation`` have the same BLEU.
    """

    section = "sequences"
    recipe_class = SequencesRecipe
    unit = "texts"
    guided = True
    auto = AutoModelForSeq2SeqLM
    measures: ClassVar[Any] = {"bleu": share("BLEU", "Of generated texts, by sacrebleu"), **TOKEN_MEASURES}
    headings: ClassVar[Any] = {
        "text": "Text",
        "truth": "Reference",
        "prediction": "Generated",
        "score": "Log-probability",
        **ENTROPIES,
    }

    def load_data(self) -> Data:
        """Encodes all texts, and checks before training that the package for BLEU is installed."""
        with as_run_error(ImportError):
            bleu_counts(["a"], ["a"])
        return super().load_data()

    def program_options(self) -> Mapping[str, Any]:
        """The mean number of target tokens, so the objective is in nats per token."""
        lengths = [len(row["labels"]) for row in self.data.train]
        return {"mean_length": sum(lengths) / len(lengths)}

    def encode(self, codec: Any, examples: Examples) -> list[Encoded]:
        """Tokens of the input texts, with those of the target texts as labels."""
        section = self.section_of_examples
        sources = [section.prefix + example["text"] for example in examples]
        tokens = codec(sources, truncation=True, max_length=section.source_length)
        rows = [
            {name: tokens[name][row] for name in ("input_ids", "attention_mask")}
            for row in range(len(sources))
        ]
        if "target" in examples[0]:
            targets = [example["target"] for example in examples]
            labels = codec(text_target=targets, truncation=True, max_length=section.target_length)
            for row, ids in zip(rows, labels["input_ids"], strict=True):
                row["labels"] = ids
        return [Encoded([row]) for row in rows]

    def collate(self, codec: Any) -> Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Tensor]]:
        """Function that makes a padded batch; the network derives the decoder's inputs from the labels."""
        return partial(stacked, codec.pad_token_id or 0)

    def completed(self, network: TrainedHead, batch: Batch) -> Batch:
        """A batch with generated texts; if it has no labels, the generated tokens become its labels."""
        section, net = self.section_of_examples, network.net
        inputs = {name: batch.tensors[name].to(network.device) for name in ("input_ids", "attention_mask")}
        generate: Any = net.generate
        with evaluating(net):
            sequences: Tensor = generate(
                **inputs, max_new_tokens=section.target_length, num_beams=section.num_beams, do_sample=False
            )
        tokens = sequences[:, 1:].cpu()
        texts = network.codec.batch_decode(tokens, skip_special_tokens=True)
        encoded = [item._replace(notes=text.strip()) for item, text in zip(batch.encoded, texts, strict=True)]
        tensors = {"labels": tokens.where(until_the_end(net, tokens, {}), IGNORED), **batch.tensors}
        return batch._replace(encoded=encoded, tensors=tensors)

    def record(self, posterior: Posterior, batch: Batch) -> Columns:
        """Columns of sums over the tokens of the true text, and of counts of the generated one."""
        references = [example["target"] for example in batch.examples]
        return {
            **token_columns(posterior, batch.tensors["labels"], self.recipe.report.bins),
            "bleu": bleu_counts([item.notes for item in batch.encoded], references),
        }

    def figures(self, columns: Columns) -> dict[str, float | None]:
        """Measures of the texts in ``columns``."""
        return {"bleu": bleu_from_counts(columns["bleu"]).score / 100, **token_figures(columns)}

    def answer(self, posterior: Posterior, batch: Batch) -> list[Answer]:
        """The generated text, its log-probability, and mean entropies of tokens, those of the true text if it is known.

        With P draws, the log-probability is that of the mean prediction of the draws (Malinin and Gales 2021, section
        3).
        """
        labels = batch.tensors["labels"]
        entropy, information = posterior.entropy, posterior.mutual_information
        answers = []
        for row, (example, encoded) in enumerate(zip(batch.examples, batch.encoded, strict=True)):
            predicted = labels[row] != IGNORED
            answer: Answer = {"text": example["text"], "prediction": encoded.notes}
            if "target" not in example:
                log_p = posterior.logits[:, row, predicted].float().log_softmax(dim=-1)
                truth = labels[row, predicted].expand(len(log_p), -1)
                sums = log_p.gather(2, truth[..., None]).cpu().double().sum(dim=(1, 2))
                answer["score"] = (sums.logsumexp(dim=0) - math.log(len(sums))).item()
            answer["entropy"] = entropy[row, predicted].mean().item()
            answer["mutual_information"] = information[row, predicted].mean().item()
            answers.append(answer)
        return answers

    def truth(self, example: Mapping[str, Any]) -> str:
        """The true text."""
        return str(example["target"])
