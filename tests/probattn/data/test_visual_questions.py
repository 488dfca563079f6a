"""Reading questions, answers and images, and what is refused of them."""

import contextlib
import json
import random
import struct
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from probattn import data
from probattn.data.visual_questions import frequent_answers, unanswerable
from probattn.metrics.functional import annotator_accuracy, normal_answer


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    for number, colour in enumerate(((255, 0, 0), (0, 255, 0), (0, 0, 255))):
        Image.new("RGB", (8, 8), colour).save(tmp_path / "images" / f"{number}.png")
    rows = [
        ["what color?", "red", 0],
        ["is it red?", "no", 1],
        ["how many?", "3", 2],
        ["is it blue?", "yes", 2],
    ]
    (tmp_path / "easy.json").write_text(json.dumps(rows))
    return tmp_path


@pytest.fixture
def vqa(tmp_path):
    """Two questions in VQA-v2's form, with features of 3 and 2 regions."""
    (tmp_path / "features").mkdir()
    for image, regions in ((7, 3), (12, 2)):
        values = np.arange(regions * 4, dtype=np.float32).reshape(regions, 4) + image
        boxes = np.array([[0, 0, 50, 100], [50, 0, 100, 100], [0, 0, 100, 100]])[:regions]
        np.savez(tmp_path / "features" / f"{image:06d}.npz", x=values.T, bbox=boxes, image_w=100, image_h=200)
    questions = [
        {"image_id": 7, "question": "How many dogs?", "question_id": 70},
        {"image_id": 12, "question": "Is it raining?", "question_id": 120},
    ]
    answers = [["2"] * 6 + ["two"] * 2 + ["3"] * 2, ["yes"] * 3 + ["No"] * 7]
    annotations = [
        {
            "question_id": question["question_id"],
            "answer_type": kind,
            "question_type": "x",
            "answers": [{"answer": answer, "answer_id": 1} for answer in given],
        }
        for question, given, kind in zip(questions, answers, ("number", "yes/no"), strict=True)
    ]
    (tmp_path / "questions.json").write_text(json.dumps({"questions": questions, "info": {}}))
    (tmp_path / "annotations.json").write_text(json.dumps({"annotations": annotations}))
    return tmp_path


def read_vqa(folder):
    files = data.ImageFiles(folder / "features", "{id:06d}.npz", region_size=4)
    return data.read_visual_questions(folder / "questions.json", files, folder / "annotations.json")


def official(answer, answers):
    """The loop of the official evaluation (Antol et al. 2015)."""
    scores = []
    for left_out in range(len(answers)):
        others = answers[:left_out] + answers[left_out + 1 :]
        scores.append(min(1.0, sum(other == answer for other in others) / 3))
    return sum(scores) / len(scores)


def test_accuracy_is_that_of_the_official_loop():
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        answers = [str(int(n)) for n in torch.randint(4, (10,), generator=generator)]
        for answer in "0123":
            row = data.VisualQuestion("q", "1", tuple(answers))
            assert row.score(answer) == pytest.approx(official(answer, answers))
    assert [annotator_accuracy(matches, 2) for matches in (0, 1, 2)] == [0.0, 0.5, 1.0]
    assert annotator_accuracy(0, 0) == annotator_accuracy(0, 1) == 0.0


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The Dog", "dog"),
        ("none", "0"),
        ("10,000", "10000"),
        ("a/c", "c"),
        ("red, blue", "red blue"),
        ("t-shirt, a - b", "tshirt b"),  # a sign beside a space goes wherever it stands
        ("yes/no", "yes no"),
        ("1,000-2,000", "10002000"),  # and so do all beside a comma between digits
        ("2.5", "2.5"),
        (".5", ".5"),
        ("no.", "no"),
        ("a.m.", "am"),
        ("two  to\tten", "2 to 10"),
        ("the", "the"),
        ("a", "a"),
    ],
)
def test_answers_are_normalised(answer, normal):
    assert normal_answer(answer) == normal


def test_both_forms_are_read(folder, vqa):
    easy = data.read_visual_questions(folder / "easy.json", data.ImageFiles(folder / "images", image_size=8))
    assert [row.kind for row in easy.rows] == ["other", "yes/no", "number", "yes/no"]
    assert easy.rows[0] == data.VisualQuestion("what color?", "0", ("red",))
    assert easy.rows[0].scores() == {"red": 1.0}
    found = read_vqa(vqa)
    assert [row.answer for row in found.rows] == ["2", "no"] and found.rows[0].kind == "number"
    assert found.rows[0].scores() == {"2": 1.0, "3": pytest.approx(0.6)}
    assert found.rows[1].score("yes") == pytest.approx(0.9)


def test_images_and_features_become_batches(folder, vqa):
    easy = data.read_visual_questions(folder / "easy.json", data.ImageFiles(folder / "images", image_size=4))
    tokenizer = data.word_tokenizer((row.words for row in easy.rows), split="spaces")
    answers = frequent_answers(easy)
    assert answers == ("3", "no", "red", "yes")
    rows = data.TokenizedVisualQuestions(easy, tokenizer, answers)
    batch = data.VisualQuestionCollate(4)([rows[0], rows[1]])
    assert batch["pixel_values"].shape == (2, 3, 4, 4)
    assert batch["pixel_values"][0, :, 0, 0].tolist() == [1.0, -1.0, -1.0]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]  # the mark is no word
    assert batch["labels"].tolist() == [[0, 0, 1, 0], [0, 1, 0, 0]]
    found = read_vqa(vqa)
    message = "2 of 2 questions are longer than 2 words .the longest has 3.: they are"
    with pytest.warns(data.DataWarning, match=message):
        rows = data.TokenizedVisualQuestions(found, tokenizer, ("2", "yes", "no"), max_length=2)
    batch = data.VisualQuestionCollate(3)([rows[0], rows[1]])
    assert batch["region_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["region_features"][0].tolist() == [[7, 8, 9, 10], [11, 12, 13, 14], [15, 16, 17, 18]]
    assert batch["labels"].tolist() == [[1, 0, 0], [0, pytest.approx(0.9), 1]]
    assert batch["input_ids"].shape == (2, 2)


def test_noise_belongs_to_an_image_and_has_its_variance(vqa):
    found = read_vqa(vqa)
    rows = data.TokenizedVisualQuestions(found, data.word_tokenizer(["how many dogs is it"]), ("2", "no"))
    first = data.VisualQuestionCollate(2, variance=4.0, seed=1)
    both, alone = first([rows[0], rows[1], rows[0]])["feature_noise"], first([rows[1]])["feature_noise"]
    assert torch.equal(both[0], both[2]) and not torch.equal(both[0], both[1])
    assert torch.equal(both[1, :2], alone[0]) and (both[1, 2] == 0).all()
    other = data.VisualQuestionCollate(2, variance=4.0, seed=2)([rows[0]])["feature_noise"]
    assert not torch.equal(both[0], other[0])
    grid = data.VisualQuestionCollate(2, variance=4.0, grid=(64, 100))
    image = {"input_ids": [1], "image": torch.zeros(3, 2, 2, dtype=torch.uint8)}
    noise = grid([image | {"name": str(number)} for number in range(5)])["feature_noise"]
    assert noise.shape == (5, 64, 100) and noise.var().item() == pytest.approx(4.0, rel=0.05)


def test_boxes_are_shares_of_the_image(vqa):
    files = read_vqa(vqa).images
    assert files.boxes(files.path("7"))[1].tolist() == [0.5, 0.0, 1.0, 0.5]
    for whole, expected in (({"image_w": 400, "image_h": 50}, [0.25, 1.0]), ({}, [1.0, 1.0])):
        np.savez(vqa / "whole.npz", x=np.ones((1, 4)), boxes=[[0, 0, 100, 50]], **whole)
        assert files.boxes(vqa / "whole.npz")[0, 2:].tolist() == expected
    boxes = [[0.0, 0.0, 100.0, 50.0]]
    one_of_one = {"boxes": boxes, "image_w": [200.0], "image_h": np.array([[100]])}
    np.savez(vqa / "whole.npz", x=np.ones((1, 4)), **one_of_one)
    assert files.boxes(vqa / "whole.npz")[0].tolist() == [0, 0, 0.5, 0.5]
    none = [
        {"x": np.ones((3, 4)), "boxes": boxes},  # of other regions
        {"boxes": np.full((1, 4), np.nan)},
        {"boxes": np.array(boxes, dtype=object)},
        {"boxes": [["left", "top", "right", "bottom"]]},
        {"boxes": [[-1.0, 0.0, 1.0, 1.0]]},
        {"boxes": boxes, "image_w": -3},
        {"boxes": np.zeros((1, 4))},
    ]
    for content in none:
        np.savez(vqa / "whole.npz", **({"x": np.ones((1, 4))} | content))
        assert files.boxes(vqa / "whole.npz") is None and len(files.read(vqa / "whole.npz"))


def test_a_pattern_names_every_image():
    with pytest.raises(data.DataError, match=r"expected a pattern of file names with \{id\}, got '0.png'"):
        data.ImageFiles(Path("images"), "0.png").path("7")


def test_pixels_keep_their_places(tmp_path):
    pixels = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 3)
    Image.fromarray(pixels).save(tmp_path / "007.png")
    found = data.ImageFiles(tmp_path, image_size=4).read(tmp_path / "007.png")
    assert found.shape == (3, 4, 4)
    for row, column in ((0, 3), (3, 0), (1, 2)):
        assert found[:, row, column].tolist() == pixels[row, column].tolist()


def test_images_are_read_as_viewers_show_them(tmp_path):
    """Of 16 bits by their upper 8, upright, on white where they are transparent."""

    def read(image, name="image.png", **options):
        image.save(tmp_path / name, **options)
        return data.ImageFiles(tmp_path, image_size=4).read(tmp_path / name)

    deep = np.arange(16, dtype=np.uint16).reshape(4, 4) * 4096 + 255
    assert read(Image.fromarray(deep)).tolist() == [(deep // 256).tolist()] * 3
    shallow = Image.fromarray(np.arange(16, dtype=np.float32).reshape(4, 4))
    assert read(shallow, "image.tiff")[0].flatten().tolist() == list(range(16))
    upright = Image.fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4) * 16)
    turned, orientation = upright.transpose(Image.Transpose.ROTATE_180), Image.Exif()
    orientation[0x0112] = 3
    assert torch.equal(read(turned, exif=orientation), read(upright))
    half = read(Image.new("RGBA", (4, 4), (255, 0, 0, 102)))[:, 0, 0]
    assert half.tolist() == [255, 153, 153]
    colours = Image.new("P", (4, 4))
    colours.putpalette([0, 200, 0, 0, 0, 0])
    assert read(colours)[:, 0, 0].tolist() == [0, 200, 0]
    assert read(colours, transparency=0)[:, 0, 0].tolist() == [255, 255, 255]
    with pytest.raises(data.DataError, match="its numbers are not those of 8 or 16 bits"):
        read(Image.fromarray(deep.astype(np.float32)), "image.tiff")


def test_names_of_images_stay_as_they_are_unless_the_pattern_wants_a_number(tmp_path):
    assert data.ImageFiles(tmp_path).path("007").name == "007.png"
    assert data.ImageFiles(tmp_path, "{id:04d}.npz").path("007").name == "0007.npz"
    for pattern in ("{number}.png", "{id.x}", "{id[a]}", "{id:d}", "{", "{}"):
        refused("expected a pattern of file names", data.ImageFiles(tmp_path, pattern).path, "a")


def test_only_the_first_regions_and_the_named_arrays_are_read(vqa):
    files = replace(read_vqa(vqa).images, max_regions=2)
    whole = read_vqa(vqa).images.read(files.path("7"))
    assert len(whole) == 3 and torch.equal(files.read(files.path("7")), whole[:2])
    assert len(files.boxes(files.path("7"))) == 2
    np.savez(vqa / "more.npz", x=np.ones((2, 4)), other=np.array([None]))  # which numpy does not read
    assert files.read(vqa / "more.npz").shape == (2, 4)


def test_images_are_read_once_as_long_as_there_is_room(folder, monkeypatch):
    easy = data.read_visual_questions(folder / "easy.json", data.ImageFiles(folder / "images", image_size=4))
    opened = []
    read = data.ImageFiles.read
    monkeypatch.setattr(
        data.ImageFiles, "read", lambda files, file: opened.append(file.name) or read(files, file)
    )
    for room, expected in (
        (2**20, ["0.png", "1.png", "2.png"]),
        (0, ["0.png", "1.png", "2.png", "2.png"] * 2),
    ):
        monkeypatch.setattr("probattn.data.visual_questions.KEPT_BYTES", room)
        rows = data.TokenizedVisualQuestions(easy, data.word_tokenizer(["what"]), ("yes", "no"))
        opened.clear()
        [rows[place] for place in (*range(4), *range(4))]
        assert opened == expected


def test_a_choice_is_fixed_and_held_out_images_are_not_trained_on(folder):
    questions = data.read_visual_questions(folder / "easy.json", data.ImageFiles(folder / "images"))
    assert {row.question for row in questions.take(2).rows} < {row.question for row in questions.take(3).rows}
    assert questions.take(2) == questions.take(2) and questions.take(9) is questions
    train, held_out = questions.split(0.34)
    assert not {row.image for row in train.rows} & {row.image for row in held_out.rows}
    assert len(train) + len(held_out) == 4
    with pytest.raises(data.DataError, match="expected questions to train on and to hold out, got 4 and 0"):
        questions.split(0.01)
    alike = [
        data.VisualQuestion("q", name) for name in ("a-1", "a1", "a.1", "a_1")
    ]  # one to the order of texts
    sides = [
        data.VisualQuestions(tuple(rows), questions.images, "q").split(0.5) for rows in (alike, alike[::-1])
    ]
    assert [{row.image for row in held.rows} for _, held in sides] == [{"a-1", "a.1"}] * 2


def refused(words, call, *arguments, **options):
    with pytest.raises(data.DataError, match=words) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)


def test_files_that_do_not_fit_are_refused_in_one_line(folder, vqa):
    images = data.ImageFiles(folder / "images")

    def read(content, name="bad.json"):
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
        return data.read_visual_questions(folder / name, images)

    refused("no such file", data.read_visual_questions, folder / "none.json", images)
    refused(r"bad\.json: .*expected JSON", read, "[[")
    refused(r"bad\.json: at 0\.1: .*string", read, [["what?", 3, 0]])
    refused("question 1: expected a question with words, got ' \\?'", read, [[" ?", "red", 0]])
    refused(r"expected image 9 in .*9\.png, got no such file", read, [["what?", "red", 9]])
    refused("expected questions, got none", read, [])
    refused("question 1: expected an answer, got ' '", read, [["what?", " ", 0]])
    asked = json.loads((vqa / "questions.json").read_text())
    (vqa / "asked.json").write_text(json.dumps({"questions": asked["questions"][:1] * 2}))
    features = data.ImageFiles(vqa / "features", "{id:06d}.npz", region_size=4)
    refused(
        r"asked\.json: expected each question once, got 70 twice",
        data.read_visual_questions,
        vqa / "asked.json",
        features,
        vqa / "annotations.json",
    )
    twice = json.loads((vqa / "annotations.json").read_text())
    twice["annotations"] *= 2
    (vqa / "twice.json").write_text(json.dumps(twice))
    refused(
        "expected each question once, got 70 twice",
        data.read_visual_questions,
        vqa / "questions.json",
        features,
        vqa / "twice.json",
    )
    (vqa / "few.json").write_text('{"annotations": []}')
    refused(
        "expected answers to question 70",
        data.read_visual_questions,
        vqa / "questions.json",
        features,
        vqa / "few.json",
    )


def test_damaged_images_and_features_are_refused_in_one_line(folder, vqa, monkeypatch):
    images, features = data.ImageFiles(folder / "images"), data.ImageFiles(vqa / "features", region_size=4)
    (folder / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    refused("expected an image, got what cannot be read as one", images.read, folder / "bad.png")
    with monkeypatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 8)
        refused("cannot be read as one .*decompression bomb", images.read, folder / "images" / "0.png")
    whole = (vqa / "features" / "000007.npz").read_bytes()
    (vqa / "half.npz").write_bytes(whole[: len(whole) // 2])
    (vqa / "text.npy").write_text("no array")
    for name in ("half.npz", "text.npy"):
        refused(
            f"{name}: expected features of regions .*damaged or of another format", features.read, vqa / name
        )
    np.savez_compressed(vqa / "packed.npz", x=np.random.default_rng(0).normal(size=(20, 4)))
    packed, draw = (vqa / "packed.npz").read_bytes(), random.Random(0)
    said = []
    for _ in range(200):
        place = draw.randrange(len(packed))
        (vqa / "changed.npz").write_bytes(packed[:place] + bytes([draw.randrange(256)]) + packed[place + 1 :])
        with contextlib.suppress(data.DataError):
            features.read(vqa / "changed.npz")
            continue
        said.append(place)
    assert 50 < len(said) < 200
    np.save(vqa / "wide.npy", np.zeros((3, 5)))
    refused(r"expected numbers \[regions, 4\], got float64 \[3, 5\]", features.read, vqa / "wide.npy")
    np.save(vqa / "nan.npy", np.full((3, 4), np.nan))
    refused("expected finite numbers", features.read, vqa / "nan.npy")
    np.savez(vqa / "named.npz", other=np.zeros((3, 4)))
    refused(
        "expected an array x or features or feat of region features, got none of these names",
        features.read,
        vqa / "named.npz",
    )
    np.save(vqa / "plain.npy", np.ones((3, 4)))
    assert features.read(vqa / "plain.npy").shape == (3, 4)


def test_files_of_enormous_images_and_arrays_are_refused_by_what_they_declare(tmp_path, monkeypatch):
    """The image's content is missing and the array's is damaged: neither is read."""
    png = b"\x89PNG\r\n\x1a\n"
    for chunk in (b"IHDR" + struct.pack(">IIBBBBB", 10_000, 10_000, 8, 2, 0, 0, 0), b"IDATx"):
        png += struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    (tmp_path / "big.png").write_bytes(png)
    pixels = data.ImageFiles(tmp_path)
    with (
        pytest.warns(Warning, match="decompression bomb"),
        pytest.raises(data.DataError, match=r"big.png: expected at most .*, got 10,000 x 10,000"),
    ):
        pixels.read(tmp_path / "big.png")
    shape = {"descr": "<f4", "fortran_order": False, "shape": (100_000, 1024)}
    for name, write in (
        ("1.npz", np.lib.format.write_array_header_1_0),
        ("2.npz", np.lib.format.write_array_header_2_0),
    ):
        with zipfile.ZipFile(tmp_path / name, "w") as file, file.open("features.npy", "w") as member:
            write(member, shape)
        features = data.ImageFiles(tmp_path, "{id}.npz", region_size=1024)
        message = "expected arrays of at most 67,108,864 bytes, got one of 409,600,000"
        with pytest.raises(data.DataError, match=message):
            features.read(tmp_path / name)
    monkeypatch.setattr(data.region_files, "MOST_BYTES", 4 * 4 * 3)
    np.savez(tmp_path / "x.npz", x=np.ones((3, 4), dtype=np.float32))
    features = data.ImageFiles(tmp_path, "{id}.npz", region_size=4)
    assert features.read(tmp_path / "x.npz").shape == (3, 4)


def test_answers_outside_the_vocabulary_are_counted(folder):
    questions = data.read_visual_questions(folder / "easy.json", data.ImageFiles(folder / "images"))
    assert unanswerable(questions, ("yes", "no")) == 2
    assert unanswerable(questions, ("purple", "pink")) == len(questions)


def test_annotators_without_an_answer_count_and_make_no_class(vqa):
    given = json.loads((vqa / "annotations.json").read_text())
    for answer in given["annotations"][0]["answers"][:6]:
        answer["answer"] = " "
    (vqa / "annotations.json").write_text(json.dumps(given))
    questions = read_vqa(vqa)
    row = questions.rows[0]
    assert row.answers == ("",) * 6 + ("2",) * 2 + ("3",) * 2 and row.answer == "2"
    assert row.scores() == {"2": annotator_accuracy(2, 10), "3": annotator_accuracy(2, 10)}
    assert frequent_answers(questions) == ("2", "no")
    silent = replace(row, answers=("",) * 10)
    assert silent.answer == "" and silent.scores() == {}
    assert frequent_answers(replace(questions, rows=(*questions.rows, silent))) == ("2", "no")
    refused("expected two answers or more that 3 questions have, got 0", frequent_answers, questions, 3)
