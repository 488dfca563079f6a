"""Our LSTM against torch's over packed sequences and over each sequence alone; what networks of our own share."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import DataCollatorForSeq2Seq

from probattn.models import (
    GraphWriterConfig,
    GraphWriterForGeneration,
    McanConfig,
    McanForQuestionAnswering,
    RecurrentForTranslation,
    RecurrentTranslationConfig,
)
from probattn.models.layers import read_padded

LENGTHS = (7, 1, 4, 6)
WIDTH = max(LENGTHS)
FORMS = {
    "one direction": {},
    "two directions": {"bidirectional": True},
    "layers": {"num_layers": 3, "bidirectional": True},
    "projection": {"num_layers": 2, "proj_size": 2},
    "no bias": {"bias": False, "bidirectional": True},
}


def network(form, dtype=torch.float64):
    torch.manual_seed(0)
    return nn.LSTM(3, 4, batch_first=True, dtype=dtype, **FORMS[form])


def beginning(lstm, dtype):
    count = lstm.num_layers * (1 + lstm.bidirectional), len(LENGTHS)
    sizes = lstm.proj_size or lstm.hidden_size, lstm.hidden_size
    return tuple(torch.randn(*count, size, dtype=dtype, requires_grad=True) for size in sizes)


def packed(lstm, words, start):
    sequences = pack_padded_sequence(words, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    states, last = lstm(sequences, start)
    return pad_packed_sequence(states, batch_first=True)[0], last


def check_against_packed(lstm, started, dtype, **tolerances):
    words = torch.randn(len(LENGTHS), WIDTH, 3, dtype=dtype, requires_grad=True)
    start = beginning(lstm, dtype) if started else None
    mask = torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]
    inputs = [words, *lstm.parameters(), *(start or ())]
    found = []
    for states, last in (read_padded(lstm, words, mask, start), packed(lstm, words, start)):
        results = [states, *last]
        torch.manual_seed(1)
        loss = sum((result * torch.randn_like(result)).sum() for result in results)
        found.append([*results, *torch.autograd.grad(loss, inputs)])
    for own, truth in zip(*found, strict=True):
        torch.testing.assert_close(own, truth, **tolerances)


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_states_and_gradients_are_those_of_packed_sequences(form, started):
    check_against_packed(network(form), started, torch.float64, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("training", [False, True])
def test_so_are_they_in_single_precision(training):
    # torch has another implementation there, oneDNN's, which does otherwise with gradients in evaluation
    lstm = network("layers", torch.float32).train(training)
    check_against_packed(lstm, True, torch.float32, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["one direction", "two directions", "layers"])
def test_padding_may_stand_anywhere_and_hold_anything(form, dtype):
    lstm = network(form, dtype)
    words = torch.randn(5, 6, 3, dtype=dtype)
    masks = [
        [0, 0, 1, 1, 1, 0],
        [1, 0, 1, 0, 1, 0],
        [1, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 0, 1],
        [0, 0, 0, 0, 0, 0],
    ]
    mask = torch.tensor(masks)
    words[mask == 0] = float("nan")
    words[4, 0] = 1.0  # a sequence without words is read as one of its first place
    states, (hidden, cell) = read_padded(lstm, words, mask)
    assert (states[mask == 0] == 0).all()
    for row, own in enumerate(mask.bool()):
        alone = words[row, own] if own.any() else words[row, :1]
        truth, last = lstm(alone[None])
        if own.any():
            torch.testing.assert_close(states[row, own], truth[0])
        torch.testing.assert_close(hidden[:, row], last[0][:, 0])
        torch.testing.assert_close(cell[:, row], last[1][:, 0])


def test_layers_have_dropout_between_them_in_training_alone():
    lstm = nn.LSTM(3, 4, num_layers=2, dropout=0.5, batch_first=True)
    words, mask = torch.randn(2, 5, 3), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    drawn = [read_padded(lstm, words, mask)[0] for _ in range(2)]
    assert not torch.equal(*drawn)
    lstm.eval()
    torch.testing.assert_close(read_padded(lstm, words, mask)[0][0], lstm(words)[0][0])
    lstm.train()
    lstm.dropout = 1.0  # nothing of the first layer reaches the second, and the second's own states are whole
    dropped = read_padded(lstm, words, mask)[0][0]
    empty = lstm(torch.zeros(1, 5, 3))[0][0]
    assert dropped.abs().min() > 0
    torch.testing.assert_close(dropped, empty)


def test_half_precision_is_read_too():
    lstm = nn.LSTM(3, 4, bidirectional=True, batch_first=True)
    words, mask = torch.randn(2, 5, 3), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    full = read_padded(lstm, words, mask)[0]
    half = read_padded(lstm.bfloat16(), words.bfloat16(), mask)[0]
    torch.testing.assert_close(half.float(), full, atol=0.03, rtol=0.05)


def test_what_a_call_of_the_module_does_besides_is_done():
    lstm = prune.l1_unstructured(nn.LSTM(3, 4, batch_first=True), "weight_ih_l0", 0.5)
    words, mask = torch.randn(2, 5, 3), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    optimizer = torch.optim.SGD(lstm.parameters(), lr=1.0)
    for _ in range(2):
        optimizer.zero_grad()
        read_padded(lstm, words, mask)[0].sum().backward()
        optimizer.step()
    torch.testing.assert_close(read_padded(lstm, words, mask)[0][0], lstm(words)[0][0])


SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
OWN = {
    "graphwriter": lambda: GraphWriterForGeneration(GraphWriterConfig(vocab_size=20, **SIZES)),
    "mcan": lambda: McanForQuestionAnswering(
        McanConfig(vocab_size=20, num_labels=3, embedding_size=8, **SIZES)
    ),
    "recurrent": lambda: RecurrentForTranslation(
        RecurrentTranslationConfig(vocab_size=20, hidden_size=4, decoder_hidden_size=8)
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_vectors_of_tokens_can_be_replaced(name):
    net = OWN[name]().eval()
    inputs = getattr(
        net, "dry_inputs", lambda: {"input_ids": torch.tensor([[4, 5]]), "labels": torch.ones(1, 2).long()}
    )()
    before, old = net(**inputs).logits, net.get_input_embeddings()
    vectors = nn.Embedding(20, old.embedding_dim, padding_idx=0)
    net.set_input_embeddings(vectors)
    assert net.get_input_embeddings() is net.base_model.get_input_embeddings() is vectors
    assert not any(part is old for part in net.modules())
    assert not torch.equal(net(**inputs).logits, before)


@pytest.mark.parametrize("name", ["graphwriter", "recurrent"])
def test_the_collator_of_transformers_shifts_labels(name):
    class Padder:
        """As much of a tokenizer as the collator asks for."""

        padding_side = "right"

        def pad(self, rows, **_):
            return {"input_ids": torch.tensor([row["input_ids"] for row in rows])}

    net = OWN[name]()
    rows = [{"input_ids": [4, 5], "labels": [7, 8, 3]}, {"input_ids": [4, 6], "labels": [9, 3]}]
    found = DataCollatorForSeq2Seq(Padder(), net)(rows)
    start, pad = net.config.decoder_start_token_id, net.config.pad_token_id
    assert found["labels"].tolist() == [[7, 8, 3], [9, 3, -100]]
    assert found["decoder_input_ids"].tolist() == [[start, 7, 8], [start, 9, 3]]
    assert net.prepare_decoder_input_ids_from_labels(torch.tensor([[9, -100, -100]])).tolist() == [
        [start, 9, pad]
    ]
