"""Batched runs against separate torch modules."""

import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from probattn.models.copying import (
    CopyingOptions,
    CopyingRuns,
    CopyTask,
    KeywordRuns,
    KeywordTask,
    copying_probe,
)
from probattn.probes import frozen_probe

RUNS, WIDTH = 3, 8
TASK = CopyTask(types=7, length=5)


class Separate(nn.Module):
    """One run, of torch's own modules, head by head."""

    def __init__(self, runs: CopyingRuns, run: int) -> None:
        super().__init__()
        words = runs.options.words
        self.uniform, self.release = runs.options.attention == "uniform", runs.options.form == "release"
        self.output_embedding = nn.Embedding(words + 1, WIDTH)
        self.embedding = nn.Embedding(words, WIDTH)
        layer = nn.GRU if self.release else nn.LSTM
        self.encoder, self.decoder = (layer(WIDTH, WIDTH, batch_first=True) for _ in range(2))
        self.heads = nn.ParameterList(nn.Parameter(weight.clone()) for weight in runs.attention[run].detach())
        activation = nn.Tanh() if self.release else nn.ReLU()
        self.head = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), activation, nn.Linear(WIDTH, words))
        self.maps = nn.ModuleList()  # of release: queries, then values, of each head
        for number in range(runs.options.heads if self.release else 0):
            values = ((runs.attention.mT, runs.attention_bias), (runs.value, runs.value_bias))
            for weight, bias in values:
                self.maps.append(nn.Linear(WIDTH, WIDTH))
                self.maps[-1].weight.data = weight[run][number].detach().clone()
                self.maps[-1].bias.data = bias[run][number].detach().clone()
        self.double()
        for name, own in self._pairs(runs):
            own.data.copy_(operator.attrgetter(name)(runs).detach()[run])

    def _pairs(self, runs):
        yield "encoder.embedding", self.embedding.weight
        yield "decoder.embedding", self.output_embedding.weight
        for name in ("encoder", "decoder"):
            lstm = getattr(self, name)
            for ours, theirs in (
                ("weight_input", "weight_ih_l0"),
                ("weight_hidden", "weight_hh_l0"),
                ("bias_input", "bias_ih_l0"),
                ("bias_hidden", "bias_hh_l0"),
            ):
                yield f"{name}.{ours}", getattr(lstm, theirs)
        for name, layer in (("hidden", self.head[0]), ("output", self.head[2])):
            yield f"{name}.weight", layer.weight
            yield f"{name}.bias", layer.bias

    def forward(self, source, target):
        states, last = self.encoder(self.embedding(source))
        start = torch.full_like(target[:, :1], self.output_embedding.num_embeddings - 1)
        queries, _ = self.decoder(self.output_embedding(torch.cat((start, target[:, :-1]), 1)), last)
        context = 0
        for attend, value in zip(self.maps[::2], self.maps[1::2], strict=True):
            scores = attend(queries) @ states.mT
            context = context + value(scores.softmax(-1) @ states) / (len(self.maps) / 2)
        for weight in () if self.release else self.heads:
            scores = torch.einsum("btd,de,ble->btl", queries, weight, states)
            alpha = torch.full_like(scores, 1 / scores.shape[-1]) if self.uniform else scores.softmax(-1)
            context = context + alpha @ states
        return self.head(torch.cat((context, queries), -1))

    def agrees_with(self, runs, run) -> bool:
        pairs = [(operator.attrgetter(name)(runs)[run], own) for name, own in self._pairs(runs)]
        for number, own in enumerate(() if self.release else self.heads):
            pairs.append((runs.attention[run][number], own))
        for number, (attend, value) in enumerate(zip(self.maps[::2], self.maps[1::2], strict=True)):
            pairs.append((runs.attention[run][number].mT, attend.weight))
            pairs.append((runs.attention_bias[run][number], attend.bias))
            pairs += [(runs.value[run][number], value.weight), (runs.value_bias[run][number], value.bias)]
        return all(torch.allclose(ours, own, rtol=1e-9, atol=1e-11) for ours, own in pairs)


def made(attention="learned", heads=1, form="paper") -> CopyingRuns:
    options = CopyingOptions(TASK.vocabulary, WIDTH, heads, attention, form)
    return CopyingRuns(options, range(RUNS)).double()


@pytest.mark.parametrize(
    ("attention", "heads", "form"),
    [
        ("learned", 1, "paper"),
        ("learned", 3, "paper"),
        ("uniform", 1, "paper"),
        ("uniform", 2, "paper"),
        ("learned", 1, "release"),
        ("learned", 3, "release"),
    ],
)
def test_updates_are_those_of_separate_models(attention, heads, form):
    runs = made(attention, heads, form)
    separate = [Separate(runs, run) for run in range(RUNS)]
    before = runs.attention.detach().clone()
    optimizer = torch.optim.Adam(runs.parameters(), lr=1e-2)
    own = [torch.optim.Adam(each.parameters(), lr=1e-2) for each in separate]
    for step in range(4):
        batch = TASK.draw(range(RUNS), step, 6)
        losses = runs.losses(batch)
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
        for run, (each, its) in enumerate(zip(separate, own, strict=True)):
            source, target = batch.source[run], batch.target[run]
            loss = F.cross_entropy(each(source, target).flatten(0, 1), target.flatten())
            torch.testing.assert_close(loss, losses[run], rtol=1e-9, atol=1e-11)
            its.zero_grad()
            loss.backward()
            its.step()
    assert all(each.agrees_with(runs, run) for run, each in enumerate(separate))
    assert torch.equal(runs.attention, before) == (attention == "uniform")


def test_frozen_probe_lets_heads_alone_learn():
    runs = made()
    before = {name: value.detach().clone() for name, value in runs.named_parameters()}
    with frozen_probe(runs, [runs.attention]) as learning:
        optimizer = torch.optim.Adam(learning, lr=1e-2)
        runs.losses(TASK.draw(range(RUNS), 0, 6)).sum().backward()
        optimizer.step()
    changed = {name for name, value in runs.named_parameters() if not torch.equal(value, before[name])}
    assert changed == {"attention"}


def test_runs_depend_on_their_seeds_alone():
    options = CopyingOptions(7, WIDTH, heads=2)
    several, one = CopyingRuns(options, [5, 9]), CopyingRuns(options, [9])
    for name, value in one.named_parameters():
        assert torch.equal(several.get_parameter(name)[1:], value), name
    again = CopyingRuns(options, [9], [[3, 4]])
    assert torch.equal(again.encoder.embedding, one.encoder.embedding)
    assert not torch.equal(again.attention, one.attention)
    swapped = CopyingRuns(options, [9], [[4, 3]])
    assert torch.equal(swapped.attention, again.attention.flip(1))


def test_initial_values_have_torchs_spread():
    runs = CopyingRuns(CopyingOptions(40, 64), range(4)).requires_grad_(False)
    assert runs.encoder.embedding.std().item() == pytest.approx(1, abs=0.03)
    for value, bound in ((runs.encoder.weight_hidden, 1 / 8), (runs.hidden.weight, 1 / 128**0.5)):
        assert bound * 0.99 < value.abs().max() <= bound
        assert value.std().item() == pytest.approx(bound / 3**0.5, rel=0.03)


@pytest.mark.parametrize(("heads", "form"), [(1, "paper"), (2, "paper"), (2, "release")])
def test_probe_is_the_answer_to_one_position(heads, form):
    runs = made(heads=heads, form=form)
    batch = TASK.draw(range(RUNS), 0, 2)
    output = runs(batch.source, batch.target)
    probe = copying_probe(runs, output, batch.target)
    for run in range(RUNS):
        model = Separate(runs, run)
        for row, t, place in ((0, 0, 0), (1, 3, 4), (1, 4, 2)):
            state, query = output.states[run, row, place], output.queries[run, row, t]
            values = [value(state) for value in model.maps[1::2]]
            context = torch.stack(values).mean(dim=0) if values else heads * state
            expected = model.head(torch.cat((context, query))).log_softmax(-1)[batch.target[run, row, t]]
            torch.testing.assert_close(probe[run, row, t, place], expected)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_keyword_classifier_is_torchs(bidirectional):
    task = KeywordTask(types=6, length=5)
    runs = KeywordRuns(6, WIDTH, range(RUNS), bidirectional=bidirectional).double()
    batch = task.draw(range(RUNS), 0, 7)
    output = runs(batch.words)
    for run in range(RUNS):
        lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=bidirectional).double()
        parts = [(runs.forwards, "")] + ([(runs.backwards, "_reverse")] if bidirectional else [])
        for part, suffix in parts:
            for ours, theirs in (
                ("weight_input", "weight_ih_l0"),
                ("weight_hidden", "weight_hh_l0"),
                ("bias_input", "bias_ih_l0"),
                ("bias_hidden", "bias_hh_l0"),
            ):
                getattr(lstm, theirs + suffix).data.copy_(getattr(part, ours)[run])
        states, _ = lstm(runs.forwards.embedding[run][batch.words[run]])
        torch.testing.assert_close(output.log_odds[run], states @ runs.head[run])
        torch.testing.assert_close(output.logits[run], states.mean(1) @ runs.head[run])
    labels = batch.labels.double()
    chance = output.logits.sigmoid()
    expected = -(labels * chance.log() + (1 - labels) * (1 - chance).log()).mean(-1)
    torch.testing.assert_close(runs.losses(batch), expected)
    assert sum(name.endswith("embedding") for name, _ in runs.named_parameters()) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CopyingRuns(CopyingOptions(4), []), "seeds: expected a seed for each run"),
        (lambda: KeywordRuns(4, 4, []), "seeds: expected a seed for each run"),
        (
            lambda: CopyingRuns(CopyingOptions(4, 4, heads=2), [0], [[1]]),
            r"head_seeds: expected 2 .* got \[1\]",
        ),
        (lambda: CopyingOptions(0), "words: expected an integer >= 1"),
        (lambda: CopyingOptions(4, attention="hard"), "attention: expected one of 'learned', 'uniform'"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("source", "target", "last"), [(4, 0, 3), (-1, 0, 3), (0, 5, 4), (0, -1, 4)])
def test_a_word_of_no_table_is_not_one_of_another_run(source, target, last):
    runs = CopyingRuns(CopyingOptions(4, width=3), [0, 1])
    words = torch.zeros(2, 2, 1, 3, dtype=torch.long)
    words[0, 0, 0, 0], words[1, 0, 0, 0] = source, target
    with pytest.raises(IndexError, match=rf"expected words in 0 \.\. {last}, got"):
        runs(*words)
