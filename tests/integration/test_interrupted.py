"""Ctrl-C in the middle of a pass, wherever it began: the next draws, trainings and plain passes are as before.

torch runs forward hooks after an ``Exception`` alone, so that nothing may depend on what a hook does at the end.
"""

import copy
import pickle

import pyro
import pytest
import torch
import transformers as hf
from torch import nn
from transformers import TrainingArguments, pipeline

import probattn
from probattn import BayesianAttention, MultiheadAttention
from probattn.inference import AttentionGuide, SVIDriver, posterior_predict
from probattn.models import convert, inspect, program_for
from probattn.recipes import NetworkRecipe

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
WORDS = torch.arange(12).view(2, 6) + 1
DATA = {"input_ids": WORDS, "labels": torch.tensor([0, 1])}
ERRORS = [KeyboardInterrupt, SystemExit]


def plain():
    torch.manual_seed(0)
    config = hf.BertConfig(vocab_size=40, initializer_range=0.4, **SIZES)
    return hf.BertForSequenceClassification(config).eval()


def plain_lm():
    torch.manual_seed(0)
    config = hf.GPT2Config(
        vocab_size=40, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2, initializer_range=0.4
    )
    return hf.GPT2LMHeadModel(config).eval()


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(MultiheadAttention(8, 2, batch_first=True) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, x, x)[0]
        return x


def trainer(net, folder):
    rows = [{"input_ids": WORDS[i % 2], "labels": i % 2} for i in range(4)]
    arguments = TrainingArguments(str(folder), max_steps=1, report_to=[], use_cpu=True, disable_tqdm=True)
    return probattn.ProbabilisticTrainer(model=net, args=arguments, train_dataset=rows, eval_dataset=rows)


def fit(net):
    driver = SVIDriver(program_for(net), batch_size=2, progress=False, cpu=True)
    return driver.fit(DATA, steps=1).train["kl_nats"]


def sampled(net, seed=0):
    with torch.no_grad(), probattn.sampling(net, seed=seed):
        return net(WORDS).logits


def piped(net, _):
    words = hf.AutoTokenizer.from_pretrained(NetworkRecipe().locate())
    ids = len(words)
    net.resize_token_embeddings(ids)
    return pipeline("text-classification", model=net, tokenizer=words, device="cpu")("fine")


CALLS = {
    "a plain pass": lambda net, _: net(WORDS),
    "a pass of a part": lambda net, _: net.base_model(WORDS),
    "generate": lambda net, _: net.generate(WORDS, max_new_tokens=2),
    "a pipeline": piped,
    "sampling": lambda net, _: sampled(net),
    "posterior_predict": lambda net, _: posterior_predict(net, {"input_ids": WORDS}, 2),
    "SVIDriver.fit": lambda net, _: fit(net),
    "Trainer.evaluate": lambda net, folder: trainer(net, folder).evaluate(),
    "Trainer.predict": lambda net, folder: trainer(net, folder).predict([{"input_ids": WORDS[0]}]),
}


def interrupted(net, call, error, folder, module=None):
    """Stops the call before its last attention, or before a module."""
    module = net.get_submodule(inspect(net)[-1].module) if module is None else module

    def stop(*_):
        raise error

    handle = module.register_forward_pre_hook(stop)
    with pytest.raises(error):
        call(net, folder)
    handle.remove()
    net.eval()  # a training leaves it in training mode


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("where", CALLS)
def test_what_follows_an_interrupt_is_as_before_it(where, error, tmp_path):
    make = plain_lm if where == "generate" else plain
    unconverted = make()
    net = convert(copy.deepcopy(unconverted), BayesianAttention())
    before = sampled(net), sampled(net, 1)
    assert not torch.equal(*before)
    interrupted(net, CALLS[where], error, tmp_path)
    assert not pyro.poutine.runtime._PYRO_STACK
    with torch.no_grad():  # of a part first: the whole network would begin anew in any case
        assert torch.equal(net.base_model(WORDS)[0], unconverted.base_model(WORDS)[0])
    assert torch.equal(sampled(net), before[0]) and torch.equal(sampled(net, 1), before[1])
    with torch.no_grad():
        assert torch.equal(net(WORDS).logits, unconverted(WORDS).logits)
    if make is plain:
        assert posterior_predict(net, {"input_ids": WORDS}, 4).std.max() > 1e-3
        assert fit(net) > 1
        with pytest.raises(RuntimeError, match="training without a driver"):
            net.train()(WORDS)


@pytest.mark.parametrize("error", ERRORS)
def test_an_interrupt_inside_a_sampled_block_leaves_the_block_as_it_was(error, tmp_path):
    net = convert(plain(), BayesianAttention())
    with torch.no_grad(), probattn.sampling(net, seed=0):
        net(WORDS)
        second = net(WORDS).logits
    with torch.no_grad(), probattn.sampling(net, seed=0):
        interrupted(net, lambda *_: net(WORDS), error, tmp_path, net.classifier)
        assert not pyro.poutine.runtime._PYRO_STACK
        assert torch.equal(net(WORDS).logits, second)  # the interrupted pass was the first


@pytest.mark.parametrize("error", ERRORS)
def test_an_interrupted_network_can_be_copied_and_pickled(error, tmp_path):
    net = convert(plain(), BayesianAttention(sigma=0.1))
    expected = sampled(net)
    interrupted(net, CALLS["sampling"], error, tmp_path)
    for again in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(sampled(again), expected)


def test_a_layer_of_an_interrupted_network_runs_by_itself(tmp_path):
    net = convert(plain(), BayesianAttention())
    interrupted(net, CALLS["sampling"], KeyboardInterrupt, tmp_path)
    hidden = torch.randn(2, 6, 16)
    for _ in range(2):  # a count of calls that goes on would refuse the second
        with pyro.poutine.trace() as traced, pyro.plate("data", 2), torch.no_grad():
            net.bert.encoder.layer[0](hidden, None)
        assert "bert.encoder.layer.0.attention.self" in traced.trace.nodes
    assert net.bert.encoder.layer[0].attention.self.probattn.state.rows is None


def test_a_later_layer_of_linked_ones_does_not_go_on_with_an_interrupted_pass():
    def stop(*_):
        raise KeyboardInterrupt

    stack, x = probattn.link(Stack()), torch.randn(2, 3, 8)

    def one_layer(x):
        with pyro.plate("data", 2):
            return stack.layers[1](x, x, x)[0]

    handle = stack.layers[1].register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt), torch.no_grad(), pyro.plate("data", 2):
        stack(x)
    handle.remove()
    with pytest.raises(RuntimeError, match="ran before call 0"):
        AttentionGuide(one_layer)(x)
    copy.deepcopy(stack)
