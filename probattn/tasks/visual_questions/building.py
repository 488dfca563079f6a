"""What training starts from: tokenized questions, the answers to choose between, and a new network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from probattn.data import (
    DataError,
    TokenizedVisualQuestions,
    VisualQuestionCollate,
    VisualQuestions,
    word_tokenizer,
    word_vectors,
)
from probattn.data.files import read_text
from probattn.data.visual_questions import frequent_answers, unanswerable
from probattn.files.durable import digest
from probattn.metrics.functional.texts import normal_answer
from probattn.models import McanConfig, McanForQuestionAnswering
from probattn.models.program import seeded
from probattn.tasks.scratch import CodecData
from probattn.tasks.visual_questions.recipe import VisualQuestionDataRecipe, VisualQuestionRecipe


@dataclass(frozen=True)
class VisualQuestionData(CodecData):
    """Tokenized questions; ``unknown`` is the number of those of each role without an answer of the vocabulary."""

    answers: tuple[str, ...] = ()
    vectors: Tensor | None = None
    unknown: Mapping[str, int] = field(default_factory=dict)


def prepared(recipe: VisualQuestionRecipe, questions: Mapping[str, VisualQuestions]) -> VisualQuestionData:
    """Tokenizes the questions of each role, of which "test" is read later, and chooses the answers."""
    section = recipe.visual_questions
    words = (row.words for row in questions["train"].rows)
    tokenizer = word_tokenizer(words, min_frequency=section.min_frequency, split="spaces")
    answers = _answers(section) or frequent_answers(questions["train"], section.min_answers)
    embeddings, seed = recipe.network.embeddings, recipe.training.seed
    vectors = (
        None if embeddings is None else word_vectors(tokenizer.get_vocab(), embeddings, seed=seed).weight
    )
    train, validation = (
        TokenizedVisualQuestions(questions[role], tokenizer, answers, max_length=section.max_length)
        for role in ("train", "validation")
    )
    return VisualQuestionData(
        train,
        validation,
        VisualQuestionCollate(len(answers)),
        {"data": digest(_digested(questions, answers, vectors))},
        None,
        tokenizer,
        answers,
        vectors,
        {role: unanswerable(rows, answers) for role, rows in questions.items()},
    )


def check_roles(data: VisualQuestionData, questions: Mapping[str, VisualQuestions]) -> None:
    """Raises ``DataError`` for a part without known answers, or whose first image cannot be read."""
    for role, subset in questions.items():
        subset.images.read(subset.images.path(subset.rows[0].image))
        if data.unknown[role] == len(subset):
            raise DataError(
                f"{subset.source}: expected answers of the vocabulary ({', '.join(data.answers[:3])}, ...), got others "
                f"alone, such as {subset.rows[0].answer!r}"
            )


def _answers(section: VisualQuestionDataRecipe) -> tuple[str, ...]:
    """The answers of the file that the recipe names; none where it names none."""
    if section.answers is None:
        return ()
    lines = (line.strip() for line in read_text(section.file(section.answers)).splitlines())
    answers = tuple(dict.fromkeys(normal_answer(line) for line in lines if line))
    if len(answers) < 2:
        raise DataError(f"visual_questions.answers: expected two answers or more, got {len(answers)}")
    return answers


def _digested(
    questions: Mapping[str, VisualQuestions], answers: Sequence[str], vectors: Tensor | None
) -> Iterator[str | bytes]:
    """What a fingerprint of the data is made of; of an image its file's size and time stand for its content."""
    yield f"{tuple(answers)}\1"
    for role, dataset in questions.items():
        yield f"{role}\0{replace(dataset.images, folder=Path())}\1"
        yield from (f"{row}\1" for row in dataset.rows)
        for image in dict.fromkeys(row.image for row in dataset.rows):
            file = dataset.images.path(image).stat()
            yield f"{file.st_size} {file.st_mtime_ns}\1"
    if vectors is not None:
        yield vectors.numpy().tobytes()


def new_network(
    recipe: VisualQuestionRecipe, words: int, answers: Sequence[str], vectors: Tensor | None = None
) -> McanForQuestionAnswering:
    """The recipe's network with random weights, a function of the seed, and word vectors ``[V, E]``."""
    network, data = recipe.network, recipe.visual_questions
    names = dict(enumerate(answers))
    config = McanConfig(
        vocab_size=words,
        embedding_size=network.embedding_size if vectors is None else vectors.shape[1],
        hidden_size=network.width,
        num_hidden_layers=network.layers,
        num_attention_heads=network.heads,
        intermediate_size=network.feed_forward or 4 * network.width,
        fused_size=network.fused or 2 * network.width,
        region_size=data.regions or network.channels[-1],
        dropout=network.dropout,
        grid_channels=network.channels if data.regions is None else None,
        image_size=data.image_size,
        glimpses=network.glimpses,
        latent_reduction=network.latent_reduction,
        id2label=names,
        label2id={name: number for number, name in names.items()},
    )
    if config.grid_size is not None:  # the number of regions in a file is known when it is read
        config.max_position_embeddings = max(data.max_length, config.grid_size**2)
    with seeded(recipe.training.seed):
        net = McanForQuestionAnswering(config).train()
    if vectors is not None:
        with torch.no_grad():
            net.embed_tokens.weight.copy_(vectors)
    return net
