"""Records and page of a run of translation: scores, intervals, curves, what the page says."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from pydantic import ValidationError

from probattn.metrics.functional import bleu, bleu_counts
from probattn.report import (
    DataSet,
    ResultsFileError,
    RunDescription,
    read_results,
    write_results,
)
from probattn.tasks import Translation, write_page
from probattn.tasks.translation import (
    TranslationResults,
    TranslationSample,
    bleu_difference,
    render,
    step_seconds,
    translation_curves,
    translation_scores,
)

sacrebleu = pytest.importorskip("sacrebleu", reason="needs sacrebleu (the extra 'translation')")

SIZE = 240
TOKENS = {"nll": 60.0, "tokens": 30.0, "correct": 12.0}
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


def results(**changes: object) -> TranslationResults:
    texts = {"deterministic": sentences(0.4, 1), "repulsive": sentences(0.05, 2)}
    references = texts["repulsive"][1]
    counts = {name: bleu_counts(found, references) for name, (found, _) in texts.items()}
    run = RunDescription(
        name="words",
        method="repulsive heads",
        network="Transformer",
        data="words",
        train_size=100,
        steps=25,
        seconds=14.0,
        num_samples=1,
        device="cpu",
        seed=0,
        created="2026-01-01T00:00:00+00:00",
        recipe="training:\n  per: token\n",
    )
    content = {
        "run": run,
        "languages": ("en", "de"),
        "search": "beam search, 5 beams",
        "signature": bleu(*texts["repulsive"]).signature,
        "test": DataSet(
            key="test", title="Test", role="in_domain", size=SIZE, labelled=True, unit="sentences"
        ),
        "scores": tuple(translation_scores(name, counts[name], TOKENS, RECORDS) for name in texts),
        "differences": (
            bleu_difference("repulsive", counts["repulsive"], counts["deterministic"], resamples=200),
        ),
        "samples": (
            TranslationSample(
                source="<b>one</b>",
                reference="eins & zwei",
                translations={"repulsive": "<script>", "deterministic": "x"},
            ),
        ),
        "curves": tuple(curve for name in texts for curve in translation_curves(RECORDS, name)),
    }
    return TranslationResults(**(content | changes))


def test_scores_are_bleu_and_ratios_of_sums() -> None:
    found, references = sentences(0.2, 3)
    score = translation_scores("aligned", bleu_counts(found, references), TOKENS, RECORDS)
    theirs = sacrebleu.corpus_bleu(found, [references])
    assert (score.bleu, score.brevity_penalty) == (theirs.score, theirs.bp)
    assert score.perplexity == pytest.approx(math.exp(2)) and score.token_accuracy == 0.4
    assert score.subwords == 30
    assert (
        translation_scores("aligned", bleu_counts(found, references), TOKENS | {"nll": 1e6}).perplexity
        is None
    )


def test_the_interval_is_that_of_a_paired_bootstrap() -> None:
    (one, references), (other, _) = sentences(0.15, 4), sentences(0.2, 5)
    counts, base = bleu_counts(one, references), bleu_counts(other, references)
    found = bleu_difference("repulsive", counts, base, resamples=400, level=0.9, seed=3)
    assert (
        found.value
        == sacrebleu.corpus_bleu(one, [references]).score - sacrebleu.corpus_bleu(other, [references]).score
    )
    draw, gaps = np.random.default_rng(0), []
    for _ in range(400):
        rows = draw.integers(0, SIZE, SIZE)
        pair = [
            sacrebleu.corpus_bleu([side[row] for row in rows], [[references[row] for row in rows]])
            for side in (one, other)
        ]
        gaps.append(pair[0].score - pair[1].score)
    low, high = np.quantile(gaps, [0.05, 0.95])
    width = high - low
    assert abs(found.low - low) < 0.2 * width and abs(found.high - high) < 0.2 * width
    assert bleu_difference("repulsive", counts, base, resamples=400, level=0.9, seed=3) == found
    same = bleu_difference("repulsive", counts, counts, resamples=50)
    assert (same.value, same.low, same.high) == (0, 0, 0)


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
    assert ("cross_entropy", "validation") not in {
        (c.name, c.kind) for c in translation_curves(broken, "aligned")
    }


def test_records_keep_every_bit_and_know_their_kind(tmp_path) -> None:
    path = write_results(results(), tmp_path / "metrics.json")
    assert read_results(path, TranslationResults) == results()
    with pytest.raises(ResultsFileError, match=r"metrics\.json: at "):
        read_results(path)


def test_records_name_models_that_were_measured() -> None:
    with pytest.raises(ValidationError, match="one of the models"):
        results(scores=results().scores[1:])


def test_the_page_says_what_was_found(tmp_path) -> None:
    found = results()
    page = write_page(Translation, found, tmp_path / "report.html").read_text(encoding="utf-8")
    assert page == render(found)
    title = "In this run, repulsive attention translates better than deterministic attention (1 seed, 240 sentences)"
    assert f"<h1>{title}</h1>" in page
    assert "One seed, one comparison: evidence about this run." in page
    assert found.signature in page and "nats per token" in page
    assert "&lt;b&gt;one&lt;/b&gt;" in page and "&lt;script&gt;" in page and "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    gap = found.differences[0]
    turned = gap.model_copy(update={"value": -gap.value, "low": -gap.high, "high": -gap.low})
    assert "translates worse" in render(results(differences=(turned,)))


@pytest.mark.parametrize(
    "changes",
    [{"corrected": 0.05}, {"value": 0.4}, {"value": -0.4}, {"value": 0.0, "corrected": 0.0}],
    ids=["chance", "small gain", "small loss", "none"],
)
def test_bleu_that_does_not_count_is_no_difference(changes: dict[str, float]) -> None:
    gap = results().differences[0].model_copy(update=changes)
    title = "<h1>No reliable difference between repulsive and deterministic attention (1 seed, 240 sentences)</h1>"
    assert title in render(results(differences=(gap,)))


def test_few_sentences_show_no_difference() -> None:
    few = results().test.model_copy(update={"size": 199})
    assert "<h1>No reliable difference" in render(results(test=few))


def test_the_p_value_of_bleu_is_that_of_its_resamples() -> None:
    """Clearly better in every resample: twice one in R + 1."""
    assert results().differences[0].p == results().differences[0].corrected == 2 / 201


def test_the_page_of_one_model() -> None:
    full = results()
    alone = results(
        scores=full.scores[:1],
        differences=(),
        samples=(),
        curves=tuple(translation_curves([], "deterministic")),
    )
    page = render(alone)
    assert f"<h1>Deterministic attention reaches BLEU {full.scores[0].bleu:.1f}</h1>" in page
    assert 'id="samples"' not in page and 'id="training"' not in page and "Difference</th>" not in page
    assert "25 steps</dd>" in page and "25 steps each</dd>" in render(full)
