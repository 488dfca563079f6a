"""The inputs for human review as tasks of Label Studio: suggested class, its probability, words for and against it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from probattn.data.rows import PREFIX
from probattn.files.durable import write_atomically
from probattn.inference import Explanation
from probattn.tasks.errors import RunError

REVIEWED = "reviewed"
"""Column, and control of Label Studio, of the classes that people decide."""
SPANS = "spans"
"""Column of words with the characters at which they begin and end."""
COLOURS = {"for": "#4078c0", "against": "#e0822c", "unsure": "#8a63d2"}
"""Kinds of words, and how Label Studio shows them."""
TEXTS = ("text", "pair")
"""Tags of the texts, and keys of a task's data."""
HEADER = '<Header value="$likeliest"/>'
"""Line of a labelling configuration, which shows the likeliest classes."""
ANSWER = (REVIEWED, "words", "why", "likeliest", "decision", "label")
"""Controls, and data of a task beside its texts."""


def spans(explanation: Explanation | None) -> list[dict[str, Any]]:
    """The words for and against an answer, and those that make it unsure, where they stand in its texts."""
    if explanation is None:
        return []
    kinds = (explanation.words_for(), explanation.words_against(), explanation.causes_of_doubt())
    marked: dict[tuple[int, int], dict[str, Any]] = {}
    for kind, words in zip(COLOURS, kinds, strict=True):
        for word in words:
            value = {
                "text": TEXTS[word.text],
                "start": word.start,
                "end": word.end,
                "word": word.word,
                "kind": kind,
            }
            marked.setdefault((word.text, word.start), value)  # the unsure ones are often among the others
    return list(marked.values())


def task_of(
    row: Mapping[str, Any], answer: Mapping[str, Any], texts: Sequence[str], version: str
) -> dict[str, Any]:
    """A task of Label Studio's import format (https://labelstud.io/guide/predictions).

    Args:
        row: of the file of inputs; its columns are data of the task, but those of an earlier answer.
        answer: columns of a policy, with :data:`SPANS`.
        texts: the text, or the two texts of a pair.
        version: what predicted.
    """
    marked = [
        {
            "from_name": "words",
            "to_name": item["text"],
            "type": "labels",
            "value": {name: item[name] for name in ("start", "end")}
            | {"text": item["word"], "labels": [item["kind"]]},
        }
        for item in answer[SPANS]
    ]
    suggested = {
        "from_name": REVIEWED,
        "to_name": TEXTS[0],
        "type": "choices",
        "value": {"choices": [answer["label"]]},
    }
    shown = {name: "; ".join(answer[name]) for name in ("why", "likeliest")}
    others = {name: row[name] for name in row if name.rpartition(PREFIX)[2] not in ANSWER}
    data = {**others, **dict(zip(TEXTS, texts, strict=False)), **shown, "decision": answer["decision"]}
    data["label"] = answer["label"]
    prediction = {"model_version": version, "score": answer["probability"], "result": [suggested, *marked]}
    return {"data": data, "predictions": [prediction]}


def configuration(classes: Iterable[str], *, paired: bool) -> str:
    """Label Studio's labelling configuration (https://labelstud.io/tags) for tasks of :func:`task_of`."""
    names = TEXTS if paired else TEXTS[:1]
    labels = [f'      <Label value="{kind}" background="{colour}"/>' for kind, colour in COLOURS.items()]
    texts = [f'  <Text name="{name}" value="${name}"/>' for name in names]
    choices = [f"    <Choice value={quoteattr(name)}/>" for name in classes]
    lines = [
        "<View>",
        f"  {HEADER}",
        f'  <Labels name="words" toName="{",".join(names)}">',
        *labels,
        "  </Labels>",
        *texts,
        f'  <Choices name="{REVIEWED}" toName="{names[0]}" choice="single" required="true">',
        *choices,
        "  </Choices>",
        "</View>",
    ]
    return "\n".join(lines) + "\n"


def configuration_path(tasks: Path) -> Path:
    """The file of the labelling configuration beside one of tasks; ``RunError`` for a file of something else."""
    path = tasks.with_suffix(".xml")
    if path.exists() and HEADER not in path.read_text(encoding="utf-8", errors="replace"):
        raise RunError(
            f"--label-studio {tasks}: expected no {path}, where the labelling configuration goes, or an earlier one; "
            "give the tasks another name"
        )
    return path


def write_tasks(
    path: Path, tasks: Sequence[Mapping[str, Any]], classes: Iterable[str], *, paired: bool
) -> Path:
    """Writes tasks and, beside them, their labelling configuration, whose path it returns."""
    configured = configuration_path(path)
    write_atomically(path, (json.dumps(tasks, ensure_ascii=False, indent=1) + "\n").encode())
    write_atomically(configured, configuration(classes, paired=paired).encode())
    return configured
