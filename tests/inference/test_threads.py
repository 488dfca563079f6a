"""What one thread runs leaves the others alone; events, not luck, put one thread in the middle of the other's work."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyro
import pytest
import torch
from pyro import poutine
from transformers import BertConfig, BertForSequenceClassification

from probattn import BayesianAttention
from probattn.inference import AttentionGuide, SVIDriver, posterior_expectation, posterior_predict
from probattn.models import Classifier, convert
from probattn.models.hosts import undriven

BATCH = {"input_ids": torch.randint(1, 37, (4, 9), generator=torch.Generator().manual_seed(0))}
METHODS = {"default": BayesianAttention(), "learned scale": BayesianAttention(sigma=0.5)}
SECONDS = 60


def classifier(seed: int, method: BayesianAttention = METHODS["default"]) -> Classifier:
    torch.manual_seed(seed)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=37, initializer_range=0.3, **size)
    return Classifier(convert(BertForSequenceClassification(config), method)).eval()


@pytest.fixture
def beside() -> Iterator[Callable[[Callable[[], Any]], Future[Any]]]:
    """Runs a function in another thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit


def in_the_middle(net: torch.nn.Module, work: Callable[[], Any]) -> Callable[[], None]:
    """Lets ``work`` run once, in the thread that calls it, while another thread's pass stands before its last layer."""
    reached, done, visitor = threading.Event(), threading.Event(), threading.get_ident()

    def wait(*_: object) -> None:
        if threading.get_ident() != visitor and not done.is_set():
            reached.set()
            assert done.wait(SECONDS)

    net.bert.encoder.layer[-1].register_forward_pre_hook(wait)

    def visit() -> None:
        assert reached.wait(SECONDS)
        try:
            work()
        finally:
            done.set()

    return visit


@pytest.mark.parametrize("same", [True, False], ids=["the same network", "another network"])
@pytest.mark.parametrize("method", list(METHODS))
def test_a_plain_pass_in_the_middle_of_a_prediction(beside, same, method):
    predicting, plain = classifier(0, METHODS[method]), classifier(1, METHODS[method])
    net = predicting.net if same else plain.net
    with torch.no_grad():
        expected = net(**BATCH).logits
    draws = posterior_predict(predicting, BATCH, 3, chunk_size=3).logits
    answers: list[torch.Tensor] = []

    def work() -> None:
        with torch.no_grad():
            answers.append(net(**BATCH).logits)

    visit = in_the_middle(predicting.net, work)
    found = beside(lambda: posterior_predict(predicting, BATCH, 3, chunk_size=3).logits)
    visit()
    assert torch.equal(answers[0], expected)
    assert torch.equal(found.result(SECONDS), draws)


def test_handlers_of_two_threads_are_entered_and_left_in_any_order(beside):
    ours, theirs = classifier(0), classifier(1)
    guide = AttentionGuide(ours)
    guide.__enter__()
    plate = pyro.plate("data", 4)
    plate.__enter__()
    trace = poutine.trace(theirs)
    found = beside(lambda: (poutine.runtime.am_i_wrapped(), trace.get_trace(BATCH))).result(SECONDS)
    assert not found[0]
    assert "label" in found[1].nodes
    assert not guide.trace.nodes or "label" not in guide.trace.nodes
    plate.__exit__(None, None, None)
    guide.__exit__(None, None, None)
    assert not poutine.runtime.am_i_wrapped()


def test_predictions_of_many_threads_are_those_of_one():
    models = [classifier(0), classifier(1)]
    tasks = [(model, seed) for seed in range(6) for model in models]

    def predict(task: tuple[Classifier, int]) -> torch.Tensor:
        return posterior_predict(task[0], BATCH, 4, seed=task[1]).logits

    expected = [predict(task) for task in tasks]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(predict, tasks))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def test_a_prediction_in_the_middle_of_a_training_step_waits_and_changes_nothing(beside):
    """Both have the same parameter names, which Pyro's store goes by."""
    data = BATCH | {"labels": torch.tensor([0, 1, 0, 1])}

    def trained(model: Classifier) -> dict[str, torch.Tensor]:
        SVIDriver(model, batch_size=2, progress=False, cpu=True).fit(data, steps=3)
        return model.state_dict()

    expected, other = trained(classifier(0)), classifier(1)
    draws = posterior_predict(other, BATCH, 4).logits
    model = classifier(0)
    stopped, finished = threading.Event(), threading.Event()

    def pause(*_: object) -> None:
        if model.training and not stopped.is_set():
            stopped.set()
            finished.wait(0.5)  # the prediction cannot finish before this step has

    model.net.bert.encoder.layer[-1].register_forward_pre_hook(pause)
    found = beside(lambda: trained(model))
    assert stopped.wait(SECONDS)
    assert torch.equal(posterior_predict(other, BATCH, 4).logits, draws)
    finished.set()
    for name, value in found.result(SECONDS).items():
        assert torch.equal(value, expected[name]), name


def test_a_second_training_run_is_refused(beside):
    data = BATCH | {"labels": torch.tensor([0, 1, 0, 1])}
    first, second = classifier(0), classifier(1)
    refusals: list[BaseException | None] = []

    def fit(model: Classifier) -> None:
        SVIDriver(model, batch_size=4, progress=False, cpu=True).fit(data, steps=1)

    def hook(*_: object) -> None:
        if first.training:
            refusals.append(beside(lambda: fit(second)).exception(SECONDS))

    first.net.register_forward_pre_hook(hook)
    fit(first)
    assert isinstance(refusals[0], RuntimeError)
    assert "one training run at a time" in str(refusals[0])
    fit(second)


@pytest.mark.parametrize("predict", [posterior_predict, posterior_expectation])
def test_predictions_leave_generators_and_store_alone(predict):
    model = classifier(0)
    pyro.clear_param_store()
    state = torch.get_rng_state()
    predict(model, BATCH)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(pyro.get_param_store()) == 0


def test_a_plain_call_leaves_nothing_in_the_store():
    model = classifier(0)
    pyro.clear_param_store()
    with torch.no_grad():
        expected = model.net(**BATCH).logits
        assert torch.equal(model(BATCH), expected)
    assert len(pyro.get_param_store()) == 0


@pytest.mark.fork
def test_a_child_forked_in_the_middle_of_a_prediction_predicts_and_trains(beside):
    """The other thread is lost with what it changed: the child finds networks and store as they were, and no lock."""
    model, other = classifier(0), classifier(1).train()
    pyro.clear_param_store()
    stored = pyro.param("stored", torch.tensor(3.0))
    expected = posterior_predict(model, BATCH, 4).logits
    exits: list[int] = []

    def predict_alone() -> bool:
        same = torch.equal(posterior_predict(model, BATCH, 4).logits, expected)
        data = BATCH | {"labels": torch.tensor([0, 1, 0, 1])}
        SVIDriver(model, batch_size=4, progress=False, cpu=True).fit(data, steps=1)
        return same and other.training and torch.equal(pyro.param("stored"), stored)

    def fork() -> None:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)  # ends a child that hangs
            os._exit(0 if predict_alone() else 1)
        exits.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    visit = in_the_middle(other.net, fork)
    prediction = beside(lambda: posterior_predict(other, BATCH, 4))
    visit()
    prediction.result(SECONDS)
    assert exits == [0]


@pytest.mark.fork
def test_a_child_forked_in_the_middle_of_a_training_trains(beside):
    data = BATCH | {"labels": torch.tensor([0, 1, 0, 1])}
    model, other = classifier(0), classifier(1)
    exits: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS)
            SVIDriver(model, batch_size=4, progress=False, cpu=True).fit(data, steps=1)
            os._exit(0)
        exits.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    visit = in_the_middle(other.net, fork)
    training = beside(lambda: SVIDriver(other, batch_size=4, progress=False, cpu=True).fit(data, steps=1))
    visit()
    training.result(SECONDS)
    assert exits == [0]


@pytest.mark.fork
def test_passes_of_a_lost_thread_are_forgotten_in_a_child(beside):
    """A new thread may have the number of a lost one."""
    model, exits = classifier(0), []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(len(undriven._PASSES))
        exits.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    visit = in_the_middle(model.net, fork)
    prediction = beside(lambda: model.net(**BATCH))
    visit()
    prediction.result(SECONDS)
    assert exits == [0]
