"""Records and page of a run of translation: measures, intervals, curves, what the page says, and runs over seeds."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from runs import described

from probattn.metrics.functional import bleu, bleu_counts
from probattn.report import (
    DataSet,
    ResultsFileError,
    Scores,
    compare,
    read_results,
    write_results,
)
from probattn.tasks import Translation, write_page
from probattn.tasks.translation import TranslationResults, TranslationSample
from probattn.tasks.translation.results import bleu_listing, figures, step_seconds, translation_curves

sacrebleu = pytest.importorskip("sacrebleu", reason="needs sacrebleu (the extra 'translation')")

SIZE = 240
RECORDS = [
    {"kind": "train", "step": 10, "loss": 4.0, "seconds": 3.0},
    {"kind": "train", "step": 20, "loss": 3.0, "seconds": 9.0},
    {"kind": "validation", "step": 20, "loss": 3.5, "nll": 30.0, "tokens": 10.0, "correct": 4.0},
    {"kind": "train", "step": 25, "loss": 2.0, "seconds": 2.0},
]


def sentences(noise: float, seed: int) -> tuple[list[str], list[str]]:
    draw = random.Random(0)
    references = [
        " ".join(draw.choices(["a", "b", "c", "d", "e", "f", "g"], k=draw.randint(4, 9))) for _ in range(SIZE)
    ]
    other = random.Random(seed)
    return [" ".join(w for w in text.split() if other.random() > noise) for text in references], references


def columns(noise: float, seed: int, nll: float = 2.0) -> dict[str, torch.Tensor]:
    tokens = torch.full((SIZE,), 5.0)
    return {
        "counts": bleu_counts(*sentences(noise, seed)),
        "nll": nll * tokens,
        "tokens": tokens,
        "correct": tokens - 3,
    }


def results(name: str = "words", seed: int = 0, **changes: object) -> TranslationResults:
    table = {("test", "deterministic"): columns(0.4, seed), ("test", "repulsive"): columns(0.05, seed + 1)}
    words = {
        "method": "repulsive heads",
        "recipe": "training:\n  per: token\n",
        "search": "beam search, 5 beams",
    }
    run = described(name=name, network="Transformer", steps=25, seed=seed, **words)
    scores = [Scores(model=model, data=data, values=figures(item)) for (data, model), item in table.items()]
    signature = bleu(*sentences(0.05, 2)).signature
    content = {
        "kind": "translation",
        "measures": Translation.measures,
        "run": run,
        "languages": ("en", "de"),
        "signature": signature,
        "data": (
            DataSet(key="test", title="Test", role="in_domain", size=SIZE, labelled=True, unit="sentences"),
        ),
        "scores": tuple(scores),
        "differences": compare(
            table, lambda item: {key: figures(item)[key] for key in Translation.measures}, resamples=400
        ),
        "samples": (
            TranslationSample(
                source="<b>one</b>",
                reference="eins & zwei",
                translations={"repulsive": "<script>", "deterministic": "x"},
            ),
        ),
        "listings": (bleu_listing(scores, {"deterministic": 0.4, "repulsive": 0.6}, signature),),
        "curves": tuple(curve for score in scores for curve in translation_curves(RECORDS, score.model)),
    }
    return TranslationResults(**(content | changes))


def test_measures_are_bleu_and_ratios_of_sums() -> None:
    translations, references = sentences(0.2, 3)
    measured = figures(columns(0.2, 3))
    theirs = sacrebleu.corpus_bleu(translations, [references])
    assert measured["bleu"] == theirs.score / 100 and measured["brevity_penalty"] == theirs.bp
    expected = [value / 100 for value in theirs.precisions]
    assert [measured[f"precision{order}"] for order in range(1, 5)] == expected
    assert (measured["hypothesis_length"], measured["reference_length"]) == (theirs.sys_len, theirs.ref_len)
    assert measured["perplexity"] == pytest.approx(math.exp(2)) and measured["token_accuracy"] == 0.4
    assert measured["subwords"] == 5 * SIZE
    assert figures(columns(0.2, 3, nll=1e6))["perplexity"] is None


def test_the_interval_of_bleu_is_that_of_a_paired_bootstrap_with_sacrebleu() -> None:
    (one, references), (other, _) = sentences(0.15, 4), sentences(0.2, 5)
    table = {("test", "repulsive"): columns(0.15, 4), ("test", "deterministic"): columns(0.2, 5)}
    (gap,) = compare(table, lambda item: {"bleu": figures(item)["bleu"]}, resamples=400, level=0.9, seed=3)
    theirs = [sacrebleu.corpus_bleu(side, [references]).score for side in (one, other)]
    assert 100 * gap.value == pytest.approx(theirs[0] - theirs[1], abs=1e-9)
    counted = []
    for side in (one, other):
        scores = [
            sacrebleu.sentence_bleu(*pair) for pair in zip(side, ([text] for text in references), strict=True)
        ]
        counted.append(np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in scores]))
    draw, gaps = np.random.default_rng(0), []
    for _ in range(600):
        rows = draw.integers(0, SIZE, SIZE)
        sums = [counts[rows].sum(axis=0).tolist() for counts in counted]
        pair = [sacrebleu.BLEU.compute_bleu(s[:4], s[4:8], *s[8:], smooth_method="exp").score for s in sums]
        gaps.append(pair[0] - pair[1])
    low, high = np.quantile(gaps, [0.05, 0.95])
    assert abs(100 * gap.low - low) < 0.2 * (high - low) and abs(100 * gap.high - high) < 0.2 * (high - low)


def test_the_time_of_an_update_is_the_median_over_records() -> None:
    assert step_seconds(RECORDS) == pytest.approx(0.4)  # of 0.3, 0.9 and 0.4
    assert step_seconds([]) is None


def test_curves_have_cross_entropy_and_accuracy_per_token() -> None:
    curves = {(curve.name, curve.kind): curve for curve in translation_curves(RECORDS, "aligned")}
    assert set(curves) == {
        ("loss", "train"),
        ("loss", "validation"),
        ("cross_entropy", "validation"),
        ("token_accuracy", "validation"),
    }
    assert curves["cross_entropy", "validation"].values == (3.0,)
    assert curves["token_accuracy", "validation"].values == (0.4,)
    broken = [{**RECORDS[2], "nll": None}]
    expected = {(c.name, c.kind) for c in translation_curves(broken, "aligned")}
    assert ("cross_entropy", "validation") not in expected


def test_records_keep_every_bit_and_know_their_kind(tmp_path) -> None:
    path = write_results(results(), tmp_path / "metrics.json")
    assert read_results(path, TranslationResults) == results()
    with pytest.raises(ResultsFileError, match=r"metrics\.json: at "):
        read_results(path)


def test_the_page_says_what_was_measured(tmp_path) -> None:
    measured = results()
    page = write_page(Translation, measured, tmp_path / "report.html").read_text(encoding="utf-8")
    assert page == Translation.view.page(measured)
    assert (
        "<h1>In this run, repulsive against deterministic attention: higher BLEU (1 seed, 240 sentences)</h1>"
        in page
    )
    assert measured.signature in page
    assert "nats per token" in page
    assert "0.6 (1.50\N{MULTIPLICATION SIGN})" in page
    assert "&lt;b&gt;one&lt;/b&gt;" in page and "&lt;script&gt;" in page and "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    bleu_gap = measured.difference("bleu", "repulsive", "test")
    assert bleu_gap.p == 2 / 401  # clearly better in every resample: twice one in R + 1
    turned = bleu_gap.model_copy(
        update={"value": -bleu_gap.value, "low": -bleu_gap.high, "high": -bleu_gap.low}
    )
    assert "lower BLEU" in Translation.view.page(results(differences=(turned,)))


@pytest.mark.parametrize("changes", [{"corrected": 0.05}, {"value": 0.004}, {"value": 0.0}])
def test_bleu_that_does_not_count_is_no_difference(changes: dict[str, float]) -> None:
    gap = results().differences[0].model_copy(update=changes)
    title = "<h1>No significant difference between repulsive and deterministic attention (1 seed, 240 sentences)</h1>"
    assert title in Translation.view.page(results(differences=(gap,)))


def test_few_sentences_show_no_difference() -> None:
    few = results().data[0].model_copy(update={"size": 199})
    assert "<h1>No significant difference" in Translation.view.page(results(data=(few,)))


def test_the_page_of_one_model() -> None:
    full = results()
    alone = results(scores=full.scores[:1], differences=(), samples=(), listings=(), curves=())
    page = Translation.view.page(alone)
    assert f"<h1>Deterministic attention: BLEU {100 * full.scores[0].values['bleu']:.1f}%" in page
    assert 'id="samples"' not in page and 'id="training"' not in page and "Difference</th>" not in page
    assert "25 steps</dd>" in page and "25 steps each</dd>" in Translation.view.page(full)


def test_latent_attention_at_its_expectation_is_the_runs_model() -> None:
    full = results()
    base, score = full.scores
    own = score.model_copy(update={"model": "bayesian_expectation"})
    alone = results(scores=(base, own), differences=(), listings=(), samples=(), curves=())
    assert alone.compared == "bayesian_expectation"
    page = Translation.view.page(alone)
    assert page.count("posterior-mean weights</th>") == 1


def test_several_runs_are_compared_over_their_seeds() -> None:
    runs = {f"run{seed}": results(f"run{seed}", seed=seed) for seed in (0, 10, 20)}
    together = Translation.view.combine(runs)
    gap = together.difference("bleu", "repulsive", "test")
    each = [item.difference("bleu", "repulsive", "test").value for item in runs.values()]
    assert gap.seeds == tuple(each) and gap.value == pytest.approx(sum(each) / 3)
    assert "higher BLEU (3 seeds, 240 sentences)" in Translation.view.page(together)
