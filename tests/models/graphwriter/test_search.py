"""Beam search against all texts there are, and copies of entities that no vocabulary holds."""

import itertools

import pytest
import torch
from transformers import GenerationMixin

from probattn.models import (
    GraphTextProgram,
    GraphWriterConfig,
    GraphWriterForGeneration,
    WritingOptions,
    write_texts,
)

V, END, LONGEST = 7, 3, 3
SIZES = {
    "vocab_size": V,
    "num_relations": 1,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def model(seed):
    torch.manual_seed(seed)
    net = GraphWriterForGeneration(GraphWriterConfig(**SIZES)).eval()
    with torch.no_grad():
        for weight in net.output.parameters():
            weight.mul_(4)  # so that texts differ in probability
    return GraphTextProgram(net)


def graph():
    rows = {
        "input_ids": [[5, 6], [6, 0]],
        "attention_mask": [[1, 1], [1, 0]],
        "entity_ids": [[[5, 0], [6, 5]], [[6, 0], [0, 0]]],
        "entity_types": [[4, 4], [4, 0]],
        "relations": [[[0, 0, 1]], [[-1, -1, -1]]],
    }
    return {name: torch.tensor(values) for name, values in rows.items()}


def best_of_all(net, row, penalty):
    """The text with the highest log-probability over length^penalty, ended or as long as it may be."""
    tokens = [END, 5, 6, V, *([V + 1] if row == 0 else [])]
    found = {}
    for length in range(1, LONGEST + 1):
        for text in itertools.product(tokens, repeat=length):
            if END in text[:-1] or (text[-1] != END and length < LONGEST):
                continue
            labels = torch.tensor([text])
            with torch.no_grad():
                inputs = {name: value[row : row + 1] for name, value in graph().items()}
                logits = net(**inputs, labels=labels).logits
            score = logits[0].gather(1, labels[0][:, None]).sum().item()
            found[text] = score / length**penalty
    best = max(found, key=found.get)
    return [token for token in best if token != END]


@pytest.mark.slow_but("0-0.0", "1-1.0")
@pytest.mark.parametrize(("seed", "penalty"), [(0, 0.0), (1, 1.0), (2, 0.0), (3, 1.0)])
def test_a_wide_beam_finds_the_best_of_all_texts(seed, penalty):
    program = model(seed)
    options = WritingOptions(num_beams=40, max_length=LONGEST, length_penalty=penalty)
    (found,) = write_texts(program, [graph()], options, suppress=[4])
    assert found == [best_of_all(program.net, row, penalty) for row in range(2)]


def test_the_search_is_told_of_words_and_entities(monkeypatch):
    """Before transformers 5.18 it took their number from the configuration, which stays as it was."""
    program, told, generate = model(0), [], GenerationMixin.generate

    def listening(net, **options):
        told.append(net.config.vocab_size)
        return generate(net, **options)

    monkeypatch.setattr(GenerationMixin, "generate", listening)
    next(write_texts(program, [graph()], WritingOptions(max_length=3)))
    assert told == [V + 2] and program.net.config.vocab_size == V


def test_one_beam_takes_the_first_choice_each_time():
    program = model(0)
    (found,) = write_texts(program, [graph()], WritingOptions(num_beams=1, max_length=6), suppress=[4])
    text = []
    inputs = {name: value[:1] for name, value in graph().items()}
    while len(text) < 6:
        tokens = torch.tensor([[2, *text]])
        with torch.no_grad():
            last = program.net(**inputs, decoder_input_ids=tokens).logits[0, -1]
        last[[0, 1, 2, 4]] = -torch.inf
        if int(last.argmax()) == END:
            break
        text.append(int(last.argmax()))
    assert found[0] == text


def test_entities_of_unknown_words_are_copied():
    program = model(1)
    with torch.no_grad():
        program.net.output.gate.weight.zero_()
        program.net.output.gate.bias.fill_(30.0)  # always copies
    unknown = graph() | {"entity_ids": torch.ones(2, 2, 1).long(), "entity_types": torch.full((2, 2), 4)}
    (found,) = write_texts(program, [unknown], WritingOptions(num_beams=3, max_length=5))
    assert all(len(text) == 5 and set(text) <= {V, V + 1} for text in found)


def test_an_entity_that_a_row_lacks_is_never_copied_and_modes_stay():
    program = model(2).train()
    program.net.model.encoder.eval()
    with torch.no_grad():
        program.net.output.gate.bias.fill_(30.0)
    (found,) = write_texts(program, [graph()], WritingOptions(num_beams=2, max_length=5))
    assert set(found[1]) <= {V}
    assert program.training and program.net.output.training and not program.net.model.encoder.training


@pytest.mark.parametrize(("name", "value"), [("num_beams", 0), ("max_length", 0), ("batch_size", -1)])
def test_options_out_of_range_are_refused(name, value):
    with pytest.raises(ValueError, match=rf"WritingOptions\.{name}: expected"):
        WritingOptions(**{name: value})
