"""``probattn explain`` on a run, on its network, and on files."""

import json


def test_explain_a_run_and_its_network(run, command):
    shown = command("explain", run, "the film was good", "a bad plot")
    assert shown.exit_code == 0, shown.output
    texts = [line.split("%")[0].split()[0] for line in shown.output.splitlines() if line.endswith("%")]
    assert len(texts) == 2 and set(texts) <= {"positive", "negative"}
    assert shown.output == command("explain", run / "model", "the film was good", "a bad plot").output
    items = [
        json.loads(line)
        for line in command("explain", run, "the film was good", "--json").output.splitlines()
    ]
    assert [word["word"] for word in items[0]["words"]] == ["the", "film", "was", "good"]


def test_explain_a_file_on_a_page(run, command, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("id,review\n1,the film was good\n2,a bad plot\n", encoding="utf-8")
    page = tmp_path / "words.html"
    shown = command("explain", run, "--input", rows, "--text-column", "review", "--html", page)
    assert shown.exit_code == 0, shown.output
    assert page.read_text(encoding="utf-8").count("<section>") == 2
    assert command("explain", run, "--input", rows).output.count("--text-column") == 1


def test_explain_refuses_in_one_line(run, command, tmp_path):
    for arguments, words in (
        ((run,), "expected texts, or a file of them with --input, got neither"),
        ((run, "good", "--html", tmp_path / "x.html", "--json"), "expected --html or --json, got both"),
        ((run, "good", "--pair", "bad", "--pair", "film"), "got 1 with 2 second texts"),
        ((run, "  "), "expected a text with words"),
        ((run, "good", "--format", "txt"), "--format: expected --input with it"),
        ((run, "--input", "x.csv", "--pair", "bad"), "--pair: expected no such option beside --input"),
        ((tmp_path, "good"), "expected a folder with a config.json"),
    ):
        result = command("explain", *arguments)
        assert result.exit_code == 2
        assert len(result.output.strip().splitlines()) <= 3
        assert words in " ".join(result.output.split())
