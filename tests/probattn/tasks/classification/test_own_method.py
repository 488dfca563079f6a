"""A method that a user writes, here and nowhere else: converted, trained by a recipe, saved, loaded, put into words."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyro
import pytest
import torch
from pyro import poutine
from runs import succeeds, trained
from torch import Tensor, nn
from transformers import BertForSequenceClassification

from probattn import BayesianAttention, DisagreementAttention, tasks
from probattn.cli.checking import check_file
from probattn.cli.columns import recognise
from probattn.cli.starting import write_recipe
from probattn.inference.records import read_records
from probattn.models import convert, load, revert, save
from probattn.models.hosts import AttendedCall, CallFactor, Host, Placement, by_module, place
from probattn.models.hosts.calls import AttentionCalls
from probattn.models.hosts.convert import conversion
from probattn.options import NonNegative
from probattn.recipes import Recipe, RecipeError, load_any_recipe, read_recipe
from probattn.sites import METHODS, Method, RecipeKeys, announce
from probattn.sites.method import Calls, Layers

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")


@dataclass(frozen=True)
class EntropyAttention(Method):
    """Attention whose weights have, head by head, an entropy that is learned.

    Args:
        weight: weight of the squared difference from it, >= 0.
        layers: layers of each stack; None leaves it to ``convert``.
        attention: kind of attention calls; None leaves it to ``convert``.
    """

    kind: ClassVar[str] = "entropy"
    section: ClassVar[str] = "entropy"
    key: ClassVar[str] = "entropy"
    recipe: ClassVar[RecipeKeys] = RecipeKeys("A learned entropy of attention; null for none.")

    weight: NonNegative = 0.1
    layers: Layers | None = None
    attention: Calls | None = None


class EntropyFactor(CallFactor):
    def __init__(self, method: EntropyAttention, calls: tuple[int, ...], heads: int) -> None:
        super().__init__(calls)
        self.method = method
        self.target = nn.Parameter(torch.ones(heads))

    def announce(self, found: AttendedCall) -> None:
        rows = torch.Size([len(found.host.query) // found.windows])
        announce(
            f"{found.call.name}.entropy",
            lambda: self._log_factor(found),
            rows,
            training=self.training,
            what="entropy",
        )

    def _log_factor(self, found: AttendedCall) -> Tensor:
        _, weights = found.undisturbed()
        assert weights is not None
        entropy = torch.special.entr(found.tokens(weights).clamp_min(1e-9)).sum(-1).mean(-1)  # [B, H]
        return -self.method.weight * (entropy - self.target).square().sum(-1)


@place.register
def _(method: EntropyAttention, calls: AttentionCalls, _: Host) -> Placement:
    return Placement(
        penalties={
            module: EntropyFactor(method, tuple(call.index for call in own), own[0].num_heads)
            for module, own in by_module(calls).items()
        }
    )


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    METHODS.register(EntropyAttention)
    yield
    METHODS.remove(EntropyAttention)


def density(net, inputs):
    def model():
        with pyro.plate("data", len(inputs)):
            logits = net(inputs).logits
            pyro.sample("y", pyro.distributions.Categorical(logits=logits), obs=torch.zeros(len(inputs)))

    return poutine.trace(model).get_trace()


@pytest.fixture
def net(network):
    loaded = load_network(network)
    return convert(loaded, EntropyAttention(weight=0.5, layers="first"))


def load_network(folder):
    return BertForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()


INPUTS = torch.tensor([[2, 4, 7, 3], [2, 9, 6, 3]])


def test_its_loss_is_in_the_density_and_its_parameters_learn(net, network):
    trace = density(net, INPUTS)
    with_it = trace.log_prob_sum()
    trace.compute_log_prob()
    (site,) = (site for name, site in trace.nodes.items() if name.endswith(".entropy"))
    plain = load_network(network)
    weights = plain(INPUTS, output_attentions=True).attentions[0]
    expected = -0.5 * (torch.special.entr(weights).sum(-1).mean(-1) - 1.0).square().sum(-1)
    torch.testing.assert_close(site["log_prob"], expected)
    torch.testing.assert_close(with_it, density(plain, INPUTS).log_prob_sum() + expected.sum())
    with_it.backward()
    (target,) = (p for name, p in net.named_parameters() if name.endswith("target"))
    assert bool(target.grad.abs().min() > 0)


def test_it_comes_back_bit_for_bit_and_can_be_undone(net, network, tmp_path):
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("target"):
                parameter.normal_()
    again = load(save(net, tmp_path / "net"))
    assert conversion(again).of(EntropyAttention) == EntropyAttention(weight=0.5, layers="first")
    for other in (again, copy.deepcopy(net)):
        assert other.state_dict().keys() == net.state_dict().keys()
        assert all(torch.equal(value, net.state_dict()[name]) for name, value in other.state_dict().items())
        assert torch.equal(density(other, INPUTS).log_prob_sum(), density(net, INPUTS).log_prob_sum())
    plain = load_network(network)
    assert revert(net).state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(net(INPUTS).logits, plain(INPUTS).logits)


def test_it_stands_beside_a_penalty_and_latent_attention(network):
    methods = EntropyAttention(), DisagreementAttention(), BayesianAttention()
    net = convert(load_network(network), *methods)
    names = list(density(net, INPUTS).nodes)
    for layer in (0, 1):
        call = f"bert.encoder.layer.{layer}.attention.self"
        assert {call, f"{call}.entropy", f"{call}.disagreement"} <= set(names)
    assert conversion(net).methods == (methods[2], methods[1], methods[0])


def test_it_is_trained_by_a_recipe_with_a_section_of_its_own_and_reported_beside_its_baseline(
    recipe, command, tmp_path
):
    keys = ("attention.method=deterministic", "entropy={weight: 0.5, layers: [0]}")
    run = trained(recipe, tmp_path / "run", *keys)
    method = EntropyAttention(0.5, layers=(0,), attention="all")
    net = tasks.load_network(run).net
    assert conversion(net).methods == (method,) and METHODS.key(conversion(net).methods) == "entropy"
    (target,) = (p for name, p in net.named_parameters() if name.endswith("target"))
    assert not torch.equal(target, torch.ones_like(target))
    records = [record for record in read_records(run / "metrics.jsonl") if "factors" in record]
    assert records and all(record["factors"] < 0 for record in records)
    written, words = load_any_recipe(run / "recipe.yaml"), "EntropyAttention, weight 0.5, layers 0"
    assert isinstance(written, Recipe) and written.methods() == (method,)
    assert written.method_words() == f"deterministic attention; {words}"
    assert read_recipe(written.dump()) == written and written.baseline().methods() == ()
    succeeds("report", run)
    results = tasks.load_results(run)
    assert {score.model for score in results.scores} == {"deterministic", "entropy"}
    assert {difference.model for difference in results.differences} == {"entropy"}
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Entropy" in page and words in page
    table = command("evaluate", run)
    assert table.exit_code == 0 and "entropy" in table.stdout.splitlines()[0]


def test_its_section_is_checked_like_the_others_while_it_is_registered():
    text = "data: {train: imdb}\nentropy: {wieght: 1}\n"
    message = r"unknown key 'wieght' in entropy \(line 2\); did you mean 'weight'"
    with pytest.raises(RecipeError, match=message):
        read_recipe(text)
    with pytest.raises(RecipeError, match=r"entropy\.weight \(line 2\): expected a number >= 0, got -1"):
        read_recipe("data: {train: imdb}\nentropy: {weight: -1}\n")
    METHODS.remove(EntropyAttention)
    words = r"unknown key 'entropy' \(line 2\).*known once its module is imported"
    with pytest.raises(RecipeError, match=words):
        read_recipe(text)
    METHODS.register(EntropyAttention)


def test_a_recipe_for_a_file_has_its_section(tmp_path):
    file = tmp_path / "texts.csv"
    file.write_text("text,label\n" + "".join(f"film {n},{n % 2}\n" for n in range(8)), encoding="utf-8")
    place = tmp_path / "mine.yaml"
    write_recipe(str(file), place, check_file(str(file), recognise(str(file), None, None, None)), full=True)
    assert "#   entropy:\n#     weight: 0.1\n" in place.read_text(encoding="utf-8")


def test_what_another_method_is_called_is_refused():
    with pytest.raises(ValueError, match=r"EntropyAttention\.kind: expected one that no method has"):
        METHODS.register(EntropyAttention)
