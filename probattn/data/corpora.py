"""Data sets that are rows of fields: GLUE's, those of natural language inference, SICK; from files or from the hub."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probattn.checks import shown
from probattn.data.errors import DataError, DataWarning
from probattn.data.files import DATA_VARIABLE, lacking, read_text
from probattn.data.identity import SPLITS, Examples, LabelledText, Split, class_index, disjoint, split_of
from probattn.data.readers import COLA_COLUMNS
from probattn.data.tables import load_hub, open_table

Fields = Mapping[str, Any]
"""Fields of a row by their names."""
RowsBySplit = dict[Split, list[tuple[str, Fields]]]
"""Place, for messages, and fields of the rows of each part."""

ROLES = ("text", "text_pair", "label")
UNLABELLED = ("", "-", "-1")
"""What stands for a label that annotators did not agree on, or that is not published."""
PLACES = 3
"""Places of skipped lines that a warning names."""


@dataclass(frozen=True)
class Corpus:
    """Where the rows of a data set stand (``files``, or ``hub``: name, configuration, test part), and its columns.

    Rows with the same first text are in one part where it is cut; ``header`` has the columns of files without them.
    """

    name: str
    columns: Mapping[str, tuple[str, ...]]
    files: Mapping[Split, tuple[str, ...]]
    origin: str
    hub: tuple[str, str | None, str] | None = None
    header: tuple[str, ...] = ()

    def by_split(self, *, raw: bool = False) -> RowsBySplit:
        """Labelled rows with fields by role, or ``raw``; ``DataError`` without any, ``DataWarning`` for test files."""
        folder = os.environ.get(DATA_VARIABLE)
        paths = self._paths(Path(folder)) if folder else {}
        if not paths and self.hub is None:
            raise self._missing()
        rows = {split: self._file(path) for split, path in paths.items()} or self._from_hub()
        by_split: RowsBySplit = {
            split: list(row if raw else self._labelled(row)) for split, row in rows.items()
        }
        if "train" not in by_split and len(by_split) == 1 and self.files.keys() - {"test"}:
            message = (
                f"{self.name}: only {paths['test']} is there: it is cut into training, validation and test"
            )
            warnings.warn(message, DataWarning, stacklevel=2)
            return self._cut(by_split["test"], raw, validation=0.1, test=0.1)
        if "validation" not in by_split:
            by_split = self._cut(by_split.get("train", ()), raw, validation=0.1, test=0.0) | {
                "test": by_split["test"]
            }
        return {split: by_split.get(split, []) for split in SPLITS}

    def _cut(
        self, rows: Iterable[tuple[str, Fields]], raw: bool, *, validation: float, test: float
    ) -> RowsBySplit:
        column = self.columns["text"][0] if raw else "text"
        cut: RowsBySplit = {split: [] for split in SPLITS}
        for where, fields in rows:
            cut[split_of(fields[column], validation, test)].append((where, fields))
        return cut

    def labelled(self, classes: Sequence[str]) -> Examples:
        """The rows as texts with classes, none in two parts; labels are names of classes, in any case, or numbers."""
        examples: Examples = {}
        for split, rows in self.by_split().items():
            examples[split] = [
                LabelledText(
                    fields["text"], class_index(fields["label"], classes, where), fields.get("text_pair")
                )
                for where, fields in rows
            ]
        return disjoint(examples)

    def _paths(self, folder: Path) -> dict[Split, Path]:
        """The files that are there; a training file without a test file is refused as missing it."""
        paths: dict[Split, Path] = {}
        for split, names in self.files.items():
            path = next((folder / name for name in names if (folder / name).is_file()), None)
            if path is not None:
                paths[split] = path
        return paths if "test" in paths else {}

    def _missing(self) -> DataError:
        files = ", ".join(names[0] for names in self.files.values())
        return lacking(self.name, files, f"{self.origin} has the files")

    def _from_hub(self) -> dict[Split, Iterable[tuple[str, Fields]]]:
        assert self.hub is not None
        name, configuration, tested = self.hub
        rows: dict[Split, Iterable[tuple[str, Fields]]] = {}
        splits: dict[Split, str] = {"test": tested, **({"train": "train"} if "train" in self.files else {})}
        for split, hub_split in splits.items():
            source = f"hub:{name} ({hub_split})"
            try:
                table = load_hub(name, hub_split, configuration, source)
            except DataError as error:
                raise DataError(f"{self._missing()}, and so has the hub, but: {error}") from error
            rows[split] = [(f"{source} row {number}", row) for number, row in enumerate(table, start=1)]
        return rows

    def _labelled(self, rows: Iterable[tuple[str, Fields]]) -> Iterator[tuple[str, Fields]]:
        """The rows with a label, their fields by role."""
        columns: dict[str, str] | None = None
        for where, fields in rows:
            if columns is None:
                columns = {
                    role: self._column(role, fields, where) for role in ROLES if self.columns.get(role)
                }
            row = {role: str(fields[name]).strip() for role, name in columns.items()}
            empty = next((role for role in columns if role != "label" and not row[role]), None)
            if empty is not None:
                raise DataError(f"{where}: expected text in {columns[empty]!r}, got none; remove the row")
            if row["label"] not in UNLABELLED:
                yield where, row

    def _column(self, role: str, fields: Fields, where: str) -> str:
        names = self.columns[role]
        column = next((name for name in names if name in fields), None)
        if column is None:
            raise DataError(
                f"{where}: expected a column {' or '.join(map(repr, names))}, got {', '.join(map(shown, fields))}"
            )
        return column

    def _file(self, path: Path) -> Iterator[tuple[str, Fields]]:
        """Rows of a file: an object a line (.jsonl), commas (.csv) or tabs, where quotes are plain characters."""
        if path.suffix in (".jsonl", ".csv"):
            yield from ((where, fields) for where, fields in open_table(path, ()).rows if fields is not None)
            return
        lines = read_text(path).split("\n")
        names = self.header or tuple(lines[0].rstrip("\r").split("\t"))
        broken = []
        for line, content in enumerate(lines[0 if self.header else 1 :], start=1 if self.header else 2):
            values = content.rstrip("\r").split("\t")
            if len(values) == len(names):
                yield f"{path} line {line}", dict(zip(names, values, strict=True))
            elif content.strip():
                broken.append(line)
        if broken:
            listed = ", ".join(map(str, broken[:PLACES])) + (", ..." if len(broken) > PLACES else "")
            warnings.warn(
                f"{path}: {len(broken):,} lines without {len(names)} fields are skipped ({listed})",
                DataWarning,
                stacklevel=2,
            )


GLUE_ORIGIN = "https://gluebenchmark.com/tasks"
GLUE_HUB = "nyu-mll/glue"


def _glue(
    name: str,
    folder: str,
    columns: Mapping[str, tuple[str, ...]],
    *,
    hub: str = "",
    test_split: str = "validation",
    header: tuple[str, ...] = (),
    further: tuple[str, ...] = (),
) -> Corpus:
    """A data set of GLUE (Wang et al. 2019), tested on its development part, ``test_split`` of the hub."""
    folders = (name, f"glue/{folder}", folder)
    tested = test_split.replace("validation", "dev")
    files: dict[Split, tuple[str, ...]] = {"test": (*(f"{path}/{tested}.tsv" for path in folders), *further)}
    if test_split != "validation_mismatched":
        files = {"train": tuple(f"{path}/train.tsv" for path in folders), **files}
    return Corpus(name, columns, files, GLUE_ORIGIN, (GLUE_HUB, hub or name, test_split), header)


def _columns(text: str, pair: str = "", label: str = "label") -> dict[str, tuple[str, ...]]:
    """Columns by role, other names of the same after a comma."""
    names = {"text": text, "text_pair": pair, "label": label}
    return {role: tuple(name.split(",")) for role, name in names.items() if name}


_MNLI = _columns("sentence1,premise", "sentence2,hypothesis", "gold_label,label")
CORPORA: Mapping[str, Corpus] = {
    item.name: item
    for item in (
        _glue("glue_cola", "CoLA", _columns("sentence"), hub="cola", header=COLA_COLUMNS),
        _glue("glue_sst2", "SST-2", _columns("sentence"), hub="sst2"),
        _glue(
            "glue_mrpc",
            "MRPC",
            _columns("#1 String,sentence1", "#2 String,sentence2", "Quality,label"),
            hub="mrpc",
        ),
        _glue("qqp", "QQP", _columns("question1", "question2", "is_duplicate,label")),
        _glue("stsb", "STS-B", _columns("sentence1", "sentence2", "score,label")),
        _glue("qnli", "QNLI", _columns("question", "sentence")),
        _glue("rte", "RTE", _columns("sentence1", "sentence2")),
        _glue("mnli", "MNLI", _MNLI, test_split="validation_matched", further=("nli/mnli_dev.jsonl",)),
        _glue("mnli_mismatched", "MNLI", _MNLI, hub="mnli", test_split="validation_mismatched"),
        Corpus(
            "mrpc",
            _columns("#1 String", "#2 String", "Quality"),
            {
                "train": ("mrpc/msr-para-train.tsv",),
                "validation": ("mrpc/msr-para-val.tsv",),
                "test": ("mrpc/msr-para-test.tsv",),
            },
            "https://github.com/brmson/dataset-sts (data/para/msr)",
        ),
        Corpus(
            "snli",
            _columns("premise,sentence1", "hypothesis,sentence2", "label,gold_label"),
            {
                "train": ("snli/snli_1.0_train.jsonl", "snli_1.0/snli_1.0_train.jsonl"),
                "validation": ("snli/snli_1.0_dev.jsonl", "snli_1.0/snli_1.0_dev.jsonl"),
                "test": ("snli/snli_1.0_test.jsonl", "snli_1.0/snli_1.0_test.jsonl", "nli/snli_dev.jsonl"),
            },
            "https://nlp.stanford.edu/projects/snli",
            ("stanfordnlp/snli", None, "test"),
        ),
        Corpus(
            "scitail",
            _columns("premise", "hypothesis"),
            {"test": ("nli/scitail_test.jsonl",)},
            "https://allenai.org/data/scitail",
        ),
        Corpus(
            "sick",
            _columns("sentence_A", "sentence_B", "entailment_judgment"),
            {
                "train": ("sick/SICK_train.txt",),
                "validation": ("sick/SICK_trial.txt",),
                "test": ("sick/SICK_test_annotated.txt",),
            },
            "https://zenodo.org/records/2787612",
        ),
    )
}
"""Data sets of rows by their names."""
