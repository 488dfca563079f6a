"""Decomposable attention, ESIM and gated pairs against the papers' equations, text by text and word by word."""

import copy

import pytest
import torch
from torch import Tensor, nn

from probattn import AlignmentAttention, BayesianAttention
from probattn.inference import AttentionELBO, AttentionGuide, posterior_expectation, posterior_predict
from probattn.models import (
    Classifier,
    DecomposableConfig,
    DecomposableForSequenceClassification,
    EsimConfig,
    EsimForSequenceClassification,
    SelfAttentiveConfig,
    SelfAttentiveForSequenceClassification,
    capture,
    convert,
    inspect,
    load,
    save,
)

CLASSES, WORDS = 3, 20
PAIRS = [([3, 4, 5], [6, 7]), ([8, 9], [10, 11, 12, 13]), ([14], [3])]
KINDS = ["decomposable", "esim", "self_attentive"]


def network(kind: str, dtype: torch.dtype = torch.float64):
    torch.manual_seed(1)
    sizes = {"vocab_size": WORDS, "embedding_size": 6, "hidden_size": 5, "num_labels": CLASSES}
    made = {
        "decomposable": lambda: DecomposableForSequenceClassification(DecomposableConfig(**sizes)),
        "esim": lambda: EsimForSequenceClassification(EsimConfig(**sizes)),
        "self_attentive": lambda: SelfAttentiveForSequenceClassification(
            SelfAttentiveConfig(
                **sizes, attention_size=4, num_attention_heads=3, gate_size=7, classifier_size=8
            )
        ),
    }[kind]()
    return made.eval().to(dtype)


def batch(pairs=PAIRS, side="right") -> dict[str, Tensor]:
    """Rows of both texts, padded behind or in front."""
    width = max(len(a) + len(b) for a, b in pairs)
    rows: dict[str, list[list[int]]] = {"input_ids": [], "attention_mask": [], "token_type_ids": []}
    for a, b in pairs:
        blank = [0] * (width - len(a) - len(b))
        parts = {
            "input_ids": [*a, *b],
            "attention_mask": [1] * (len(a) + len(b)),
            "token_type_ids": [0] * len(a) + [1] * len(b),
        }
        for name, values in parts.items():
            rows[name].append([*values, *blank] if side == "right" else [*blank, *values])
    return {name: torch.tensor(values) for name, values in rows.items()}


def relu_net(parts: nn.Sequential, x: Tensor) -> Tensor:
    for part in parts:
        if isinstance(part, nn.Linear):
            x = torch.relu(x @ part.weight.T + part.bias)
    return x


def soft_align(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    found = []
    for query in queries:
        scores = torch.stack([query @ key for key in keys])
        weights = scores.exp() / scores.exp().sum()
        found.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
    return torch.stack(found)


def decomposable(net: DecomposableForSequenceClassification, a: list[int], b: list[int]) -> Tensor:
    """Parikh et al. 2016, Eq. 1 to 5."""
    first, second = (net.embed_tokens.weight[torch.tensor(words)] @ net.project.weight.T for words in (a, b))
    f, g = relu_net(net.transform, first), relu_net(net.transform, second)
    beta, alpha = soft_align(f, g, second), soft_align(g, f, first)
    sums = [
        relu_net(net.compare, torch.cat([own, found], dim=-1)).sum(dim=0)
        for own, found in ((first, beta), (second, alpha))
    ]
    hidden = relu_net(net.aggregate, torch.cat(sums))
    return hidden @ net.classifier.weight.T + net.classifier.bias


def esim(net: EsimForSequenceClassification, a: list[int], b: list[int]) -> Tensor:
    """Chen et al. 2017, Eq. 1 and 2, 11 to 20, each text by itself."""
    first, second = (net.encode(net.embed_tokens.weight[torch.tensor([words])])[0][0] for words in (a, b))
    pooled = []
    for own, found in (
        (first, soft_align(first, second, second)),
        (second, soft_align(second, first, first)),
    ):
        enhanced = torch.cat([own, found, own - found, own * found], dim=-1)
        projected = torch.relu(enhanced @ net.project.weight.T + net.project.bias)
        states = net.compose(projected[None])[0][0]
        pooled += [states.mean(dim=0), states.max(dim=0).values]
    hidden = torch.tanh(torch.cat(pooled) @ net.dense.weight.T + net.dense.bias)
    return hidden @ net.classifier.weight.T + net.classifier.bias


def gated(net: SelfAttentiveForSequenceClassification, a: list[int], b: list[int]) -> Tensor:
    """Lin et al. 2017, Eq. 5 to 7 and appendix B, each text by itself."""
    sentence, factors = net.sentence, []
    for words, gate in zip((a, b), sentence.gates, strict=True):
        states = sentence.lstm(sentence.embed_tokens.weight[torch.tensor([words])])[0][0]
        scores = torch.tanh(states @ sentence.attention.key.weight.T) @ sentence.attention.query.weight.T
        matrix = scores.softmax(dim=0).T @ states  # [r, 2u]
        factors.append(torch.stack([row @ weight for row, weight in zip(matrix, gate.weight, strict=True)]))
    hidden = torch.relu((factors[0] * factors[1]).flatten() @ net.dense.weight.T + net.dense.bias)
    return hidden @ net.classifier.weight.T + net.classifier.bias


FORMULAS = {"decomposable": decomposable, "esim": esim, "self_attentive": gated}


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 2e-5)])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_equations(kind: str, side: str, dtype: torch.dtype, close: float) -> None:
    net = network(kind, dtype)
    with torch.no_grad():
        found = net(**batch(side=side)).logits
        expected = torch.stack([FORMULAS[kind](net, a, b) for a, b in PAIRS])
    torch.testing.assert_close(found, expected, rtol=close, atol=close)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_alone_is_compared_with_itself(kind: str) -> None:
    net = network(kind)
    with torch.no_grad():
        found = net(torch.tensor([[3, 4, 5]])).logits[0]
        torch.testing.assert_close(found, FORMULAS[kind](net, [3, 4, 5], [3, 4, 5]))


@pytest.mark.parametrize("kind", ["decomposable", "esim"])
def test_maps_are_from_each_text_to_the_other_alone(kind: str) -> None:
    inputs = batch()
    maps = network(kind)(**inputs, output_attentions=True).attentions
    real = inputs["attention_mask"].bool()
    first, second = (real & (inputs["token_type_ids"] == number) for number in (0, 1))
    for weights, own, other in zip(maps, (first, second), (second, first), strict=True):
        allowed = own[:, None, :, None] & other[:, None, None, :]
        assert not weights[~allowed].any()
        torch.testing.assert_close(weights.sum(dim=-1)[:, 0], own.double())


@pytest.mark.parametrize("kind", ["decomposable", "esim"])
def test_queries_and_keys_of_a_call_are_those_of_the_two_texts(kind: str) -> None:
    net = network(kind, torch.float32)
    calls = inspect(net)
    assert [call.name for call in calls] == ["attention.first.attention", "attention.second.attention"]
    inputs = batch()
    real = inputs["attention_mask"].bool()
    sides = [real & (inputs["token_type_ids"] == number) for number in (0, 1)]
    for call, own, other in zip(capture(net, inputs).values(), sides, sides[::-1], strict=True):
        assert torch.equal(call.query_valid, own) and torch.equal(call.key_valid, other)


@pytest.mark.parametrize(
    "method", [BayesianAttention(), BayesianAttention.bam(1e7), AlignmentAttention(method="ct")]
)
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_takes_them(kind: str, method, tmp_path) -> None:
    """They train, predict and are loaded as they were; with little noise latent attention is the network's own."""
    net = network(kind, torch.float32)
    plain = copy.deepcopy(net)
    program = Classifier(convert(net, method))
    inputs = batch()
    terms = AttentionELBO()(program.train(), AttentionGuide(program))(
        inputs | {"labels": torch.tensor([0, 1, 2])}
    )
    terms.loss.backward()
    learned = [name for name, each in net.named_parameters() if each.requires_grad and each.grad is None]
    assert not [name for name in learned if not name.startswith(("classifier", "attention"))]
    program.eval()
    with torch.no_grad():
        if isinstance(method, BayesianAttention) and method.concentration == 1e7:
            drawn = posterior_predict(program, inputs, 3, seed=0)
            torch.testing.assert_close(
                drawn.logits, plain(**inputs).logits.expand(3, -1, -1), rtol=1e-3, atol=1e-4
            )
        expected = posterior_expectation(program, inputs)
    save(net, tmp_path / "net")
    again = Classifier(load(tmp_path / "net")).eval()
    torch.testing.assert_close(posterior_expectation(again, inputs), expected, rtol=0, atol=0)


def test_words_can_keep_their_vectors() -> None:
    net = DecomposableForSequenceClassification(DecomposableConfig(vocab_size=9, freeze_embeddings=True))
    assert not net.embed_tokens.weight.requires_grad and net.project.weight.requires_grad


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "expected input_ids or inputs_embeds"),
        (
            {"input_ids": torch.ones(2, 3, dtype=torch.long), "attention_mask": torch.ones(2, 4)},
            "attention_mask",
        ),
        (
            {"input_ids": torch.ones(2, 3, dtype=torch.long), "token_type_ids": torch.ones(1, 3)},
            "token_type_ids",
        ),
    ],
)
def test_wrong_inputs_are_refused(given, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        network("esim")(**given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 0}, "hidden_size: expected an integer >= 1"),
        ({"dropout": 1.0}, r"dropout: .*\[0, 1\)"),
    ],
)
def test_wrong_sizes_are_refused(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EsimConfig(**options)
