"""Runs on tiny pictures: what is measured, shown, predicted and refused."""

import base64
import copy
import io
import json
import re
import shutil
from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
import runs
import torch
from PIL import Image
from torch.nn import functional as F

from probattn.data import DataWarning, read_visual_questions
from probattn.data.visual_questions import VisualQuestion
from probattn.inference import posterior_expectation, posterior_predict
from probattn.metrics.functional import calibration_error, negative_log_likelihood, pavpu
from probattn.models import revert
from probattn.recipes import RecipeError, load_any_recipe, read_recipe
from probattn.report import Predictions
from probattn.tasks import load_network, load_results, load_task, run_task
from probattn.tasks.networks import Network
from probattn.tasks.visual_questions.page import boxes_of, overlay, shown
from probattn.tasks.visual_questions.questions import (
    VisualAnswering,
    attention_maps,
    effects,
    questions_of,
)
from probattn.tasks.visual_questions.recipe import EpochSchedule, VisualQuestionDataRecipe
from probattn.tasks.visual_questions.results import VisualQuestionSample, answer_columns, figures


@pytest.fixture(scope="module")
def recipe(recipe_of):
    return recipe_of("visual_questions")


@pytest.fixture(scope="module")
def run(reported):
    return reported("visual_questions")


@pytest.mark.slow
def test_intervals_draw_images_with_all_their_questions(run, tmp_path, monkeypatch):
    given = {}
    monkeypatch.setattr(
        "probattn.report.evaluation.paired_bootstrap", lambda *_, clusters, **__: given.update(clusters) or ()
    )
    task = run_task(copy := shutil.copytree(run, tmp_path / "run"))
    task.evaluate(copy)
    images = [row.image for row in task.datasets["test"].rows]
    assert given == {"test": images, "noisy": images} and len(set(images)) < len(images)


def test_measures_with_one_right_answer_are_the_usual_ones():
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(5, 40, 3, generator=generator).softmax(-1) + 0.01 * torch.rand(
        40, 3, generator=generator
    )
    draws = draws / draws.sum(-1, keepdim=True)
    labels = torch.randint(3, (40,), generator=generator)
    mean, scores = draws.mean(0), torch.nn.functional.one_hot(labels, 3).double()
    found = figures(answer_columns(Predictions(mean, draws, "posterior"), scores, 10))
    assert found["accuracy"] == pytest.approx((mean.argmax(-1) == labels).double().mean().item())
    assert found["pavpu"] == pytest.approx(pavpu(draws, labels).item())
    assert found["ece"] == pytest.approx(calibration_error(mean.double(), labels, n_bins=10).item(), abs=1e-6)
    others = sum(
        negative_log_likelihood(torch.stack([1 - mean[:, c], mean[:, c]], -1).double(), (labels == c).long())
        for c in range(3)
    )
    assert found["nll"] == pytest.approx(others.mean().item(), rel=1e-5)


def test_measures_with_annotators_who_differ_are_means_over_them():
    row = VisualQuestion("q", "1", ("a",) * 2 + ("b",) * 8)
    scores = torch.tensor([[row.score("a"), row.score("b"), 0.0]])
    sure = torch.tensor([[0.9, 0.3, 0.1]]) + torch.tensor([[0.001], [0.0], [-0.001]])[:, None]
    found = figures(answer_columns(Predictions.from_draws(sure), scores, 10))
    assert found["accuracy"] == found["pavpu"] == pytest.approx(0.6)  # certain
    assert found["ece"] == pytest.approx(0.3, abs=1e-6)
    unsure = torch.tensor([[[0.9, 0.3, 0.1]], [[0.3, 0.8, 0.1]]])
    assert figures(answer_columns(Predictions.from_draws(unsure), scores, 10))["pavpu"] == pytest.approx(0.4)
    assert figures(answer_columns(Predictions(unsure.mean(0)), scores, 10))["pavpu"] is None


def test_the_report_has_both_data_sets_kinds_and_maps(run):
    results = load_results(run)
    expected = [("test", "in_domain", 12), ("noisy", "shifted", 12)]
    assert [(dataset.key, dataset.role, dataset.size) for dataset in results.data] == expected
    images = len({row.image for row in load_task(run / "recipe.yaml").datasets["test"].rows})
    assert images < 12
    assert all((dataset.cluster, dataset.clusters) == ("images", images) for dataset in results.data)
    assert "bootstrap over images" in (run / "report.html").read_text(encoding="utf-8")
    models = {"deterministic", "bayesian_mean", "bayesian_expectation"}
    values = {(data, model) for data in ("test", "noisy") for model in models}
    assert {(score.data, score.model) for score in results.scores} == values
    assert results.score("deterministic", "test").values["pavpu"] is not None  # draws with dropout
    noisy = results.score("bayesian_mean", "noisy").values
    assert noisy["nll"] != results.score("bayesian_mean", "test").values["nll"]
    (listing,) = results.listings
    assert [row[:2] for row in listing.rows] == [("other", "6"), ("yes/no", "6")]
    assert len(results.samples) == 2
    for sample in results.samples:
        words = len(sample.words)
        assert (len(sample.region_map.mean), len(sample.region_map.spread)) == (4, 4)
        for weights in (sample.word_map, sample.region_map, sample.word_weights, sample.region_weights):
            rows = torch.tensor(weights.mean)
            torch.testing.assert_close(rows.sum(-1), torch.ones(len(rows)), atol=1e-3, rtol=0)
        assert max(map(max, sample.word_map.spread)) > 0 and "?" not in sample.words and words >= 4
        assert (len(sample.word_effects), len(sample.region_effects)) == (words, 4)
        assert boxes_of(sample)[1] == (0.5, 0.0, 1.0, 0.5)
        assert sample.image_url.startswith("data:image/png;base64,")
        assert all(answer.spread == 0 for answer in sample.answers["deterministic"])
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Attention over the image" in page
    assert "its part in the answer" in page
    assert "Kinds of questions" in page


@pytest.mark.parametrize("plain", [False, True])
def test_effects_are_those_of_questions_and_images_without_the_part(run, plain):
    network, task = load_network(run), run_task(run)
    if plain:
        network = replace(network, program=task.program_of(revert(copy.deepcopy(network.net))).eval())
    single = replace(task.datasets["test"], rows=task.datasets["test"].rows[:1])
    inputs = network.moved(next(task.batches(network, task.rows(network, single))))
    net, names = network.net, network.names
    made = {name: effects(network, inputs, name) for name in names[:2]}
    assert made[names[0]] != made[names[1]]
    with torch.no_grad():
        regions = torch.cat([net.grid(inputs["pixel_values"])] * 2)
    ids = inputs["input_ids"]
    (words,), count = ids.shape[1:], regions.shape[1]

    def probability(without_word=None, without_region=None):
        """Of the first answer, by a network that is handed the other words, or the other regions, alone."""
        keep = [word for word in range(words) if word != without_word]
        some = [region for region in range(count) if region != without_region]
        rows = {"input_ids": ids[:, keep], "pixel_values": inputs["pixel_values"]}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(net.grid, "forward", lambda pixels: regions[: len(pixels), some])
            return posterior_expectation(network.program, rows)[0].sigmoid()

    whole, (answer, *_) = probability(), names
    best = int(whole.argmax())
    parts = [probability(without_word=word) for word in range(words)]
    parts += [probability(without_region=region) for region in range(count)]
    listed = [*made[answer]["word_effects"], *made[answer]["region_effects"]]
    assert len(listed) == len(parts) > count > 1
    for effect, other in zip(listed, parts, strict=True):
        assert effect.change == pytest.approx(float(whole[0] - other[0]), abs=2e-5)
        assert effect.answer == (None if int(other.argmax()) == best else names[int(other.argmax())])
    assert max(abs(effect.change) for effect in listed) > 1e-3
    one = {**inputs, "input_ids": ids[:, :1], "attention_mask": ids[:, :1].new_ones(1, 1)}
    assert effects(network, one, answer)["word_effects"] == ()


def test_test_questions_about_training_images_are_counted(tmp_path):
    runs.write_visual_questions(tmp_path)
    files = {"questions": "test/questions.json", "images": "train/images"}
    data = VisualQuestionDataRecipe(folder=str(tmp_path / "pictures"), test=files)
    with pytest.warns(DataWarning, match="test: the images of 12 of its 12 questions are among the training"):
        data.load()


def test_the_models_are_the_mean_of_draws_and_the_posterior_expectation(run):
    network, task, results = load_network(run), run_task(run), load_results(run)
    (batch,) = task.batches(network, task.rows(network, task.datasets["test"]))
    inputs, scores = network.moved(batch), batch["labels"].double()
    drawn = posterior_predict(network.program, inputs, 3, seed=(0, 0)).mean_probabilities
    expected = posterior_expectation(network.program, inputs).sigmoid()
    for model, p in (("bayesian_mean", drawn), ("bayesian_expectation", expected)):
        nll = F.binary_cross_entropy(p.double(), scores, reduction="sum") / len(scores)
        assert results.score(model, "test").values["nll"] == pytest.approx(nll.item(), rel=1e-5)
    found = task.validation_metrics(network.program, batch)["accuracy"]
    assert torch.equal(found, scores[torch.arange(12), expected.argmax(-1)].float())
    assert 0 < found.sum() < 12


def test_noise_has_the_recipes_variance(run):
    network = load_network(run)
    parts = []
    for noise in (1.0, 9.0):
        task = load_task(run / "recipe.yaml", [f"visual_questions.noise={noise}"])
        rows = task.rows(network, task.datasets["test"])
        parts.append(next(task.batches(network, rows, noisy=True))["feature_noise"])
        assert "feature_noise" not in next(task.batches(network, rows))
    torch.testing.assert_close(parts[1], 3 * parts[0])


def test_maps_are_those_of_the_last_layer(recipe):
    keys = ["network.layers=2", "attention={method: deterministic}"]
    task = load_task(str(recipe), keys)
    program = task.program().eval()
    with torch.no_grad():
        for parameter in program.parameters():
            parameter.mul_(3.0)  # from nearly uniform attention
    network = Network(program, recipe.parent, "deterministic", task.data.codec)
    inputs = network.moved(next(task.batches(network, task.rows(network, task.datasets["test"].at([0])))))
    output = program.net(**inputs, output_attentions=True)
    found = attention_maps(network, inputs, task.recipe.prediction)
    for name, maps in (("word_map", output.encoder_attentions), ("region_map", output.cross_attentions)):
        first, last = (each[0].mean(0) for each in maps)
        torch.testing.assert_close(torch.tensor(found[name].mean), last, atol=1e-5, rtol=0)
        assert (first - last).abs().max() > 1e-3 and not found[name].spread
    torch.testing.assert_close(
        torch.tensor(found["region_weights"].mean), output.region_weights[0], atol=1e-5, rtol=0
    )


def test_drawings_darken_what_has_no_weight_and_keep_the_order_of_rows(run):
    sample = load_results(run).samples[0]
    root = ET.fromstring(str(overlay(sample, [0.0, 0.5, 1.0, 0.25], "weights")))
    shades = [each for each in root.iter() if each.get("class") == "shade"]
    assert [float(each.get("fill-opacity")) for each in shades] == [0.88, 0.44, 0.0, 0.66]
    assert [each[0].text for each in shades][1] == "region 1: 0.5000"
    page = shown(sample)
    assert "shade" not in page["whole"][0].svg
    second = [row[1] for row in sample.region_map.mean]
    for number, value in enumerate(second):
        assert f"region {number}: {value:.4f}" in page["words"][1]["overlays"][0]
    pixels = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(re.search(r"base64,([^\"]+)", part)[1]))))
        for part in (page["maps"][0].svg, sample.image_url)
    ]
    mean = np.array(sample.word_map.mean)
    assert np.array_equal(pixels[0], np.round(255 * mean / mean.max()).astype(int))
    received = mean.sum(axis=0)
    assert [float(item[1]) for item in page["strip"]] == pytest.approx(received / received.max(), abs=6e-4)
    assert f"summed attention {received[0]:.2f}" in page["strip"][0][2]
    file = run_task(run).datasets["test"].images.path(sample.image)
    assert np.array_equal(pixels[1], np.asarray(Image.open(file)))


def test_regions_for_and_against_differ_in_color_sign_and_size(run):
    sample = load_results(run).samples[0]
    root = ET.fromstring(str(overlay(sample, [0.1, -0.2, 0.0, 0.004], "effects", signed=True)))
    cells = [item for item in root.iter() if item.get("class") in ("for", "against")]
    assert [(item.get("class"), item.get("fill-opacity")) for item in cells] == [
        ("for", "0.440"),
        ("against", "0.880"),
        ("against", "0.000"),
        ("for", "0.000"),
    ]
    assert [item.text for item in root.iter() if item.get("class") == "points"] == ["+10", "-20"]
    effects = (
        {"change": 0.2},
        {"change": -0.02, "answer": "red"},
        *[{"change": 0.004}] * (len(sample.words) - 2),
    )
    made = VisualQuestionSample.model_validate(sample.model_dump() | {"word_effects": effects})
    assert [row["side"] for row in shown(made)["words"]][:3] == ["for", "against", ""]
    alone = VisualQuestionSample.model_validate(sample.model_dump() | {"word_effects": ()})
    assert [row["effect"] for row in shown(alone)["words"]] == [None] * len(sample.words)


def test_samples_whose_parts_do_not_fit_are_refused(run):
    sample = load_results(run).samples[0].model_dump()
    for name, value in (
        ("word_weights", {"mean": ((0.5,),)}),
        ("region_map", {"mean": sample["region_map"]["mean"], "spread": ((0.1,),)}),
        ("boxes", ((0.0, 0.0, 1.0, 1.0),)),
        ("word_effects", ({"change": 0.1},)),
        ("region_effects", ({"change": 0.1},)),
    ):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            VisualQuestionSample.model_validate(sample | {name: value})


def test_answers_to_new_questions_are_those_of_the_network(run, recipe):
    image = recipe.parent / "pictures" / "test" / "images" / "1.png"
    lines = ("0\twhat color is the shape?", f"{image}\tis the shape red", "1\tis the shape red?")
    answers = [json.loads(line) for line in runs.succeeds("predict", run, *lines, "--json").splitlines()]
    network, task = load_network(run), run_task(run)
    questions = questions_of(lines, task.recipe.visual_questions.images("test"))
    batch = next(task.batches(network, task.rows(network, questions)))
    assert torch.equal(
        batch["pixel_values"][1], batch["pixel_values"][2]
    )  # the path and the number of one image
    assert torch.equal(batch["input_ids"][1], batch["input_ids"][2])
    drawn = posterior_predict(network.program, batch, task.recipe.prediction.num_samples, seed=(0, 0))
    for row, answer in enumerate(answers):
        place = int(drawn.mean[row].argmax())
        assert answer["answer"] == network.net.config.id2label[place]
        assert answer["probability"] == pytest.approx(drawn.mean[row, place].item(), abs=1e-6)
        assert answer["spread"] == pytest.approx(drawn.std[row, place].item(), abs=1e-6)
        assert answer["spread"] > 0
    closed = json.loads(runs.succeeds("predict", run, lines[0], "--json", "--uncertainty", "moments"))
    assert closed["probability"] == pytest.approx(answers[0]["probability"], abs=0.05)
    assert "what color is the shape?" in runs.succeeds("predict", run, *lines)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0 what?", "expected the path or the number of an image, a tab and a question, got '0 what\\?'"),
        ("0\t ?", "got a question without words"),
        ("77\twhat?", r"got '77', and there is no such file and no file .*77\.png"),
        ("no.png\twhat?", "got 'no.png', and there is no such file"),
        (
            "~nobody-of-this-name/no.png\twhat?",
            "got '~nobody-of-this-name/no.png', and there is no such file",
        ),
    ],
)
def test_lines_that_are_no_questions_are_refused_in_one_line(run, line, words):
    assert re.search(words, runs.refused("predict", run, line))


def test_a_missing_image_of_a_file_is_named_before_anything_is_predicted(run, tmp_path, monkeypatch):
    place = tmp_path / "questions.txt"
    place.write_text("0\twhat color is the shape?\n77\twhat?\n", encoding="utf-8")
    monkeypatch.setattr(VisualAnswering, "predict", None)  # refuses to be called
    said = runs.refused("predict", run, "--input", str(place))
    assert f"{place} line 2: " in said and "there is no such file" in said


def test_a_damaged_image_is_refused_in_one_line(run, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    said = runs.refused("predict", run, f"{tmp_path}/bad.png\twhat?")
    assert "bad.png: expected an image, got what cannot be read as one" in said


def test_word_vectors_are_what_training_starts_from(recipe, tmp_path):
    (tmp_path / "vectors.txt").write_text("red 1 2 3 4 5\nshape 5 4 3 2 1\n")
    task = load_task(str(recipe), [f"network.embeddings={tmp_path}/vectors.txt"])
    weight = task.program().net.embed_tokens.weight
    place = task.data.codec.convert_tokens_to_ids("red")
    assert torch.equal(weight, task.data.vectors) and weight.shape[1] == 5
    torch.testing.assert_close(weight[place], torch.arange(1.0, 6.0))


def test_a_resumed_run_must_find_the_same_images_and_vectors(copied, recipe, tmp_path):
    folder, _ = copied

    def fingerprint(*keys):
        return load_task(str(recipe), [f"visual_questions.folder={folder}", *keys]).data.fingerprint

    before = fingerprint()
    assert fingerprint() == before
    Image.new("RGB", (16, 16), (1, 2, 3)).save(folder / "test" / "images" / "1.png")
    assert fingerprint() != before
    vectors = tmp_path / "vectors.txt"
    found = []
    for first in (1, 2):
        vectors.write_text(f"red {first} 2\n")
        found.append(fingerprint(f"network.embeddings={vectors}"))
    assert found[0] != found[1]


def test_relative_files_lie_in_the_folder_with_and_without_one(tmp_path):
    data = VisualQuestionDataRecipe(answers="answers.txt")
    assert data.resolved() == data
    given = VisualQuestionDataRecipe(folder=str(tmp_path), answers="answers.txt")
    assert given.resolved().file("answers.txt") == given.file("answers.txt") == tmp_path / "answers.txt"


@pytest.fixture
def copied(recipe, tmp_path):
    """The recipe's pictures to change, and a command that trains on them."""
    shutil.copytree(recipe.parent / "pictures", tmp_path / "pictures")
    keys = ("--set", f"visual_questions.folder={tmp_path}/pictures", "--quiet", "-o", tmp_path / "run")
    return tmp_path / "pictures", ("train", recipe, *keys)


def test_data_that_do_not_fit_are_refused_before_training(copied, tmp_path):
    folder, command = copied
    (folder / "train" / "images" / "3.png").unlink()
    assert "visual_questions.train: " in (said := runs.refused(*command)) and "expected image 3 in" in said
    (folder / "answers.txt").write_text("purple\npink\n")
    shutil.copy(folder / "train" / "images" / "0.png", folder / "train" / "images" / "3.png")
    said = runs.refused(*command, "--set", "visual_questions.answers=answers.txt")
    assert "expected answers of the vocabulary (purple, pink, ...), got others alone" in said
    (folder / "answers.txt").write_text("purple\n")
    expected = runs.refused(*command, "--set", "visual_questions.answers=answers.txt")
    assert "expected two answers or more, got 1" in expected
    file = folder / "test" / "questions.json"
    rows = json.loads(file.read_text())
    (folder / "test" / "images" / f"{rows[0][2]}.png").write_bytes(b"no image")
    assert "expected an image, got what cannot be read as one" in runs.refused(*command)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("answers", ["yes\nno\n", "red\nblue\ngreen\n"])
def test_one_question_that_the_vocabulary_does_not_answer_is_measured(copied, tmp_path, answers):
    """The one that is chosen has an answer in one of the vocabularies."""
    folder, command = copied
    (folder / "answers.txt").write_text(answers)
    keys = ("visual_questions.answers=answers.txt", "training.steps=1")
    runs.succeeds(*command, *runs.overrides(*keys))
    runs.succeeds("evaluate", tmp_path / "run", "--limit", 1)
    assert load_results(tmp_path / "run").data[0].size == 1


def test_single_keys_of_files_can_be_given(copied, tmp_path):
    folder, _ = copied
    shutil.move(folder / "train" / "questions.json", folder / "own.json")
    data = VisualQuestionDataRecipe.model_validate(
        {"folder": str(folder), "train": {"questions": "own.json"}}
    )
    whole = VisualQuestionDataRecipe()
    assert data.train.images == whole.train.images == "train/images" and data.test == whole.test
    assert len(data.load()["train"])


def test_answers_that_the_vocabulary_lacks_count_as_wrong(copied):
    folder, command = copied
    (folder / "answers.txt").write_text("The Yes.\nno\nNo\n")
    said = runs.succeeds(
        *command, "--set", "visual_questions.answers=answers.txt", "--set", "training.steps=1"
    )
    assert "test: 6 questions have no answer of the vocabulary and count as wrong" in said


def test_regions_of_a_detector_are_read_by_path(recipe, tmp_path):
    """VQA-v2's form: annotators' answers, and files of features whose numbers and sizes differ."""
    generator = np.random.default_rng(0)
    for part in ("train", "test"):
        images = tmp_path / part
        images.mkdir()
        easy = json.loads((recipe.parent / "pictures" / part / "questions.json").read_text())
        for image in {row[2] for row in easy}:
            x = generator.standard_normal((image % 3 + 2, 6), dtype=np.float32)
            np.savez(images / f"{image:04d}.npz", x=x, bbox=np.tile([0, 0, 5, 5], (len(x), 1)))
        questions = [
            {"question": question, "image_id": image, "question_id": number}
            for number, (question, _, image) in enumerate(easy)
        ]
        annotations = [
            {
                "question_id": number,
                "answer_type": "other",
                "answers": [{"answer": answer}] * 7 + [{"answer": "no"}] * 3,
            }
            for number, (_, answer, _) in enumerate(easy)
        ]
        (tmp_path / f"{part}.json").write_text(json.dumps({"questions": questions}))
        (tmp_path / f"{part}_answers.json").write_text(json.dumps({"annotations": annotations}))
    files = {
        part: f"{{questions: {part}.json, annotations: {part}_answers.json, images: {part}, pattern: '{{id:04d}}.npz'}}"
        for part in ("train", "test")
    }
    text = (
        f"visual_questions: {{folder: {tmp_path}, regions: 6, train: {files['train']}, test: {files['test']}, "
        "noise: 5.0}\n"
        "network: {width: 8, layers: 1, heads: 2, embedding_size: 4}\nrepulsion: {weight: 0.1}\n"
        "attention: {method: deterministic}\ntraining: {epochs: 2, batch_size: 16, device: cpu, warmup_epochs: 2, "
        "decay_epochs: [1]}\nprediction: {num_samples: 2}\n"
        "report: {samples: 1, resamples: 100, head_examples: 4, masked_examples: 4, baseline: false}\n"
    )
    (tmp_path / "regions.yaml").write_text(text)
    place = tmp_path / "run"
    runs.succeeds("train", tmp_path / "regions.yaml", "-o", place, "--quiet")
    runs.succeeds("report", place)
    results = load_results(place)
    test = read_visual_questions(
        tmp_path / "test.json",
        load_task(place / "recipe.yaml").recipe.visual_questions.images("test"),
        tmp_path / "test_answers.json",
    )
    (sample,) = results.samples
    regions = int(sample.image) % 3 + 2
    assert len(sample.boxes) == len(sample.region_map.mean) == regions and sample.image_url == ""
    assert sample.boxes[0] == (0.0, 0.0, 1.0, 1.0)
    assert not sample.region_weights.spread
    assert len(sample.region_effects) == regions
    (row,) = (row for row in test.rows if (row.question, row.image) == (sample.question, sample.image))
    assert sample.truth == tuple(dict.fromkeys((row.answer, "no")))
    assert len(results.heads.sites) > 0 and test.rows[0].score("no") >= 0.9
    rates = [
        record["learning_rates"]["pretrained"]
        for record in map(json.loads, (place / "metrics.jsonl").read_text().splitlines())
        if record["kind"] == "train"
    ]
    assert set(np.round(np.array(rates) / 1e-4, 6)) <= {0.5, 0.2}


def test_the_schedule_is_the_papers():
    recipe = load_any_recipe("vqa_v2_paper")
    schedule = recipe.training.epoch_schedule()
    assert schedule == EpochSchedule(13, 4, (10, 12), 0.2)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([parameter], lr=recipe.training.learning_rate)
    scheduler = schedule(optimizer, 26)
    rates = []
    for _ in range(26):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    expected = [min(2.5e-5 * t, 1e-4) * 0.2 ** ((t > 10) + (t > 12)) for t in range(1, 14)]
    assert rates[::2] == pytest.approx(expected) and rates[1::2] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("training: {steps: 5}", "schedule: expected another than 'epochs' with steps"),
        ("network: {width: 9}", r"width: expected a multiple of heads \(8\), got 9"),
        (
            "visual_questions: {image_size: 12}",
            r"expected a multiple of 8 for 3 halvings \(network.channels\), got 12",
        ),
        ("visual_questions: {noise: 0}", "noise"),
    ],
)
def test_recipes_that_do_not_fit_are_refused(text, words):
    with pytest.raises(RecipeError, match=words):
        read_recipe(text if "visual_questions" in text else f"visual_questions: {{}}\n{text}")


def test_the_recipes_that_come_with_the_library_are_of_the_papers_size_and_of_a_small_one():
    paper, small = (load_any_recipe(name) for name in ("vqa_v2_paper", "easy_vqa"))
    network = paper.network
    expected = (512, 4, 8, 2048, 1024)
    assert (network.width, network.layers, network.heads, network.feed_forward, network.fused) == expected
    assert paper.training.optimizer_arguments == {"betas": [0.9, 0.98], "eps": 1e-9}
    assert paper.visual_questions.regions == 2048 and paper.visual_questions.noise == 5.0
    assert small.visual_questions.regions is None and small.network.width == 64
