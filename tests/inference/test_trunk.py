"""What comes before the first latent variable runs once for all draws, and draws are what they were."""

import copy
import threading
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyro
import pyro.distributions as dist
import pytest
import torch
import transformers as hf
from torch import nn

import probattn
from probattn.inference import posterior_predict
from probattn.models import Classifier, convert

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 64,
    "initializer_range": 0.3,
}
LAST = {"layers": "last"}


class Whole(nn.Module):
    """A network of any head as a program."""

    def __init__(self, net, families):
        super().__init__()
        self.net = net
        self.families = families

    def forward(self, batch):
        return self.families.logits(self.net(**batch)).flatten(1)


class Rows:
    """Counts calls and rows of some modules."""

    def __init__(self, **modules):
        self.calls, self.rows = Counter(), Counter()
        for name, module in modules.items():
            own = module.forward
            module.forward = lambda first=None, *args, name=name, own=own, **options: self.seen(
                name, own, first, *args, **options
            )

    def seen(self, name, own, first, *args, **options):
        self.calls[name] += 1
        self.rows[name] += 0 if first is None else len(first)
        return own(*(() if first is None else (first,)), *args, **options)


def bert(method=None, **selection):
    torch.manual_seed(0)
    net = hf.BertForSequenceClassification(hf.BertConfig(**SIZES)).eval()
    return convert(net, method or probattn.BayesianAttention(), **(selection or LAST)).eval()


def batch(rows=3, length=7):
    ids = torch.randint(3, 64, (rows, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, length - 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def whole_passes(model, inputs, *args, **options):
    """Draws of passes that run as a whole: of a function nothing is known."""
    return posterior_predict(partial(model), inputs, *args, **options)


@pytest.mark.parametrize(("rows", "chunk"), [(1, 8), (6, 3)])
def test_draws_of_every_family_are_those_of_whole_passes(families, family, rows, chunk):
    method = probattn.BayesianAttention() if rows > 1 else probattn.BayesianAttention.bam(3.0)
    net = convert(family.network(), method, **LAST).eval()
    if family.name == "clip":
        pytest.skip("its rows are scored against each other, so draws cannot be folded")
    model, inputs = Whole(net, families).eval(), family.inputs(rows)
    if family.padded:
        inputs = family.pad(inputs, "right")
    drawn = posterior_predict(model, inputs, 4, chunk_size=chunk, attention="all")
    expected = whole_passes(model, inputs, 4, chunk_size=chunk, attention="all")
    torch.testing.assert_close(drawn.logits, expected.logits, atol=3e-6, rtol=1e-5)
    assert drawn.logits.var(dim=0).sum() > 0
    for name, weights in expected.attention.items():
        torch.testing.assert_close(drawn.attention[name], weights, atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize(("rows", "first"), [(3, 3), (1, 3), (7, 9)])  # no size of inputs or parameters
def test_lower_layers_run_once_and_the_last_in_every_pass(rows, first):
    net = bert()
    layer = net.bert.encoder.layer
    counted = Rows(
        words=net.bert.embeddings.word_embeddings, low=layer[1], query=layer[2].attention.self.query
    )
    top = Rows(dense=layer[2].output.dense)
    posterior_predict(net, batch(rows), 9, chunk_size=4)
    assert dict(counted.calls) == {"words": 1, "low": 1, "query": 1}
    assert dict(counted.rows) == dict.fromkeys(("words", "low", "query"), first)
    assert (top.calls["dense"], top.rows["dense"]) == (3, 9 * rows)


def test_nothing_is_left_behind():
    net = bert()
    net.bert.encoder.layer[0].forward = net.bert.encoder.layer[0].forward  # a place that is taken already
    before = {name: dict(vars(module)) for name, module in net.named_modules()}
    state = torch.get_rng_state()
    posterior_predict(net, batch(), 3)
    assert {name: dict(vars(module)) for name, module in net.named_modules()} == before
    assert torch.equal(state, torch.get_rng_state())
    copy.deepcopy(net)


def test_latent_below_everything_skips_only_what_is_below():
    net = bert(layers="all")
    low = Rows(
        key=net.bert.encoder.layer[0].attention.self.key, next=net.bert.encoder.layer[1].attention.self.key
    )
    drawn = posterior_predict(net, batch(), 6, chunk_size=2)
    assert low.rows == {"key": 3, "next": 18}
    torch.testing.assert_close(drawn.logits, whole_passes(Classifier(net), batch(), 6, chunk_size=2).logits)


def test_what_is_random_in_every_pass_stays_so():
    class Noisy(nn.Module):
        def forward(self, values):
            return values + torch.randn_like(values)

    net = bert()
    net.bert.embeddings.LayerNorm = nn.Sequential(net.bert.embeddings.LayerNorm, Noisy())
    with probattn.sampling(net):
        pass
    net_last = posterior_predict(net, batch(), 40)
    still = posterior_predict(bert(), batch(), 40)
    assert (net_last.logits.var(dim=0) > 3 * still.logits.var(dim=0)).all()


def test_the_trunk_ends_before_the_first_random_number():
    """So it moves no generator, and what another thread draws meanwhile is drawn once."""

    class Noisy(nn.Module):
        def forward(self, values):
            with ThreadPoolExecutor(1) as beside:
                drawn.append(beside.submit(torch.rand, 3).result())
            return nn.functional.dropout(values, 0.5, training=True)

    drawn, net = [], bert()
    embeddings = net.bert.embeddings
    embeddings.LayerNorm = nn.Sequential(embeddings.LayerNorm, Noisy())
    counted = Rows(words=embeddings.word_embeddings, layer=net.bert.encoder.layer[0])
    torch.manual_seed(0)
    posterior_predict(net, batch(), 6, chunk_size=2)
    assert counted.calls == {"words": 1, "layer": 3}
    assert (
        len(torch.stack(drawn).unique(dim=0)) == len(drawn) == 4
    )  # of the first pass, and of the three others
    torch.manual_seed(0)
    assert torch.equal(torch.rand(6), torch.cat(drawn[:2]))  # the network drew nothing between


def test_attention_and_recurrence_without_dropout_draw_nothing():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(16, 16, num_layers=2, dropout=0.5, batch_first=True)

        def forward(self, values):
            return nn.functional.scaled_dot_product_attention(*[self.rnn(values)[0]] * 3)

    net = bert()
    net.bert.embeddings.dropout = Recurrent()
    counted = Rows(recurrent=net.bert.embeddings.dropout, layer=net.bert.encoder.layer[0])
    posterior_predict(net, batch(), 6, chunk_size=2)
    assert counted.calls == {"recurrent": 1, "layer": 1}


def test_a_latent_variable_below_the_attention_ends_the_trunk():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.below, self.above = bert(), nn.Identity(), nn.Identity()

        def forward(self, inputs):
            below = self.below(inputs["input_ids"])
            with pyro.plate("rows", len(below)):
                scale = pyro.sample(
                    "scale", dist.Delta(torch.full((len(below),), 2.0)), infer={"prediction": True}
                )
            self.above(below)
            return self.net(**inputs).logits * scale[:, None]

    model = Scaled().eval()
    seen = Rows(below=model.below, above=model.above, low=model.net.bert.encoder.layer[0])
    drawn = posterior_predict(model, batch(), 4, chunk_size=2)
    assert seen.calls == {"below": 1, "above": 2, "low": 2}
    torch.testing.assert_close(drawn.logits, 2 * posterior_predict(bert(), batch(), 4, chunk_size=2).logits)


def test_modules_that_speak_to_pyro_or_are_looked_at_run_in_every_pass():
    class Speaking(nn.Module):
        def forward(self, values):
            pyro.factor("spoken", values.new_zeros(()))
            return values

    net, looked = bert(), []
    net.bert.embeddings.dropout = Speaking()
    layer = net.bert.encoder.layer[0]
    layer.attention.output.register_forward_hook(lambda *_: looked.append(1))
    counted = Rows(embeddings=net.bert.embeddings, words=net.bert.embeddings.word_embeddings, layer=layer)
    inner = Rows(query=layer.attention.self.query, higher=net.bert.encoder.layer[1])
    posterior_predict(net, batch(), 8, chunk_size=2)
    assert counted.calls == {"embeddings": 5, "words": 1, "layer": 5} and len(looked) == 5
    assert inner.calls == {"query": 1, "higher": 1}


def test_a_module_that_runs_twice_keeps_both():
    class Twice(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net, self.shared = net, nn.Linear(16, 16)

        def forward(self, inputs):
            words = self.shared(self.shared(self.net.get_input_embeddings()(inputs["input_ids"])))
            return self.net(inputs_embeds=words, attention_mask=inputs["attention_mask"]).logits

    model = Twice(bert()).eval()
    counted = Rows(shared=model.shared)
    drawn = posterior_predict(model, batch(), 6, chunk_size=3)
    assert counted.calls["shared"] == 2
    torch.testing.assert_close(drawn.logits, whole_passes(model, batch(), 6, chunk_size=3).logits)


def test_a_pass_that_goes_another_way_runs_as_a_whole():
    class Fickle(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net, self.calls, self.first = net, 0, nn.Linear(16, 16)

        def forward(self, inputs):
            words = self.net.get_input_embeddings()(inputs["input_ids"])
            self.calls += 1
            words = self.first(words if self.calls == 1 else torch.cat([words, words], dim=1))
            return self.net(inputs_embeds=words[:, : inputs["input_ids"].shape[1]]).logits

    model = Fickle(bert()).eval()
    drawn = posterior_predict(model, batch(), 6, chunk_size=3)
    torch.testing.assert_close(drawn.logits, whole_passes(model, batch(), 6, chunk_size=3).logits)


@pytest.mark.parametrize("number", [1, 2], ids=["first pass", "later pass"])
def test_other_threads_see_the_network_as_it_is(number):
    net, inside, done = bert(), threading.Event(), threading.Event()
    plain = net(**batch()).logits.detach()
    own, calls = threading.get_ident(), Counter()

    def wait(*_):
        calls.update([threading.get_ident()])
        if threading.get_ident() == own and calls[own] == number:
            inside.set()
            assert done.wait(60)

    def visit():
        assert inside.wait(60)
        try:
            return net(**batch()).logits
        finally:
            done.set()

    handle = net.bert.encoder.layer[2].register_forward_pre_hook(wait)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(visit)
        drawn = posterior_predict(net, batch(), 3, chunk_size=1).logits
        torch.testing.assert_close(other.result(), plain)
    handle.remove()
    torch.testing.assert_close(posterior_predict(net, batch(), 3).logits, drawn)


@pytest.mark.slow_but("spread")
@pytest.mark.parametrize(
    "wrap", [partial(torch.compile, backend="eager"), nn.DataParallel], ids=["compiled", "spread"]
)
def test_compiled_networks_and_those_spread_over_devices_are_left_alone(wrap):
    class Wrapped(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = wrap(net)

        def forward(self, inputs):
            return self.net(**inputs).logits

    net = bert()
    counted = Rows(low=net.bert.encoder.layer[0])
    drawn = posterior_predict(Wrapped(net).eval(), batch(), 4, chunk_size=2).logits
    assert counted.calls["low"] == 2
    torch.testing.assert_close(drawn, posterior_predict(bert(), batch(), 4).logits)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_errors_leave_the_network_as_it_was(error):
    net = bert()

    def fail(*_):
        raise error("no")

    handle = net.bert.encoder.layer[1].register_forward_pre_hook(fail)
    with pytest.raises(error, match="no"):
        posterior_predict(net, batch(), 3)
    handle.remove()
    assert not any("forward" in vars(module) for module in net.modules())
    assert not pyro.poutine.runtime._PYRO_STACK
    posterior_predict(net, batch(), 3)


class Own(nn.Module):
    """Words, something in between, attention, and three classes; ``between`` gives tokens to vectors, and back."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 16)
        self.recurrent = nn.GRU(16, 16, batch_first=True)
        self.attend = probattn.MultiheadAttention(16, 2, batch_first=True)
        self.answer = nn.Linear(16, 3)
        self.between = between
        probattn.link(self)

    def forward(self, tokens):
        vectors, back, more = self.between(self, tokens)
        vectors = vectors + self.attend(vectors, vectors, vectors)[0]
        return self.answer(vectors.mean(1) + more)[back]


def in_order(model, order, tokens):
    return model.embed(tokens[order]), order.argsort(), 0.0


BETWEEN = {
    "sorted by length": lambda model, tokens: in_order(
        model, (tokens > 0).sum(1).argsort(descending=True, stable=True), tokens
    ),
    "in reverse": lambda model, tokens: in_order(model, torch.arange(len(tokens)).flip(0), tokens),
    "the state of a recurrent layer": lambda model, tokens: (
        (run := model.recurrent(model.embed(tokens)))[0],
        slice(None),
        run[1][0],
    ),
    "rows that see each other": lambda model, tokens: (
        model.embed(tokens),
        slice(None),
        model.embed(tokens).mean(1) - model.embed(tokens[:4]).mean(),
    ),
}


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
@pytest.mark.parametrize("chunk", [None, 3])
def test_rows_that_move_between_modules_are_those_of_whole_passes(between, chunk):
    model = Own(between).eval()
    tokens = torch.randint(1, 50, (4, 6), generator=torch.Generator().manual_seed(1))
    tokens[0, 2:] = tokens[2, 4:] = 0
    options = {"seed": 1, "chunk_size": chunk, "attention": "all"}
    found = posterior_predict(model, {"tokens": tokens}, 7, **options)
    whole = posterior_predict(model.forward, {"tokens": tokens}, 7, **options)
    torch.testing.assert_close(found.logits, whole.logits)
    for name, weights in whole.attention.items():
        torch.testing.assert_close(found.attention[name], weights)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # draws in place of the expansion
        moments = probattn.posterior_moments(model, {"tokens": tokens}, num_samples=100)
    draws = posterior_predict(model, {"tokens": tokens}, 400, seed=2)
    torch.testing.assert_close(moments.mean_probabilities, draws.mean_probabilities, atol=5e-3, rtol=0)
    torch.testing.assert_close(moments.std, draws.std, atol=0, rtol=0.3)


@pytest.mark.parametrize("between", [BETWEEN["sorted by length"], BETWEEN["in reverse"]])
def test_rows_that_move_have_the_expansion_of_rows_alone_and_no_effects(between):
    model = Own(between).eval()
    tokens = torch.randint(1, 50, (4, 6), generator=torch.Generator().manual_seed(1))
    tokens[0, 2:] = tokens[2, 4:] = 0
    moments = probattn.posterior_moments(model, {"tokens": tokens}, method="expansion")
    rows = [
        probattn.posterior_moments(model, {"tokens": tokens[row : row + 1]}, method="expansion")
        for row in range(4)
    ]
    torch.testing.assert_close(moments.std, torch.cat([row.std for row in rows]))
    with pytest.raises(
        ValueError, match="attend: expected sites whose rows are those of the batch, in order"
    ):
        probattn.attention_effects(model, {"tokens": tokens})
    probattn.attention_effects(model, {"tokens": tokens[:1]})
