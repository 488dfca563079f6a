"""Parallel text files: the same lines of two files translate each other."""

from __future__ import annotations

import gzip
import re
import sys
import unicodedata
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

from probattn.checks import check_integer
from probattn.data import DataError

JOINERS = "\u200c\u200d"
"""Signs without width that stand inside words of some scripts."""


def split_words(text: str) -> list[str]:
    """Lower-cased words and punctuation marks of a text, each a word of its own.

    A combining mark (an accent, a vowel sign) belongs to the letter before it, and letters are composed with theirs
    where Unicode has them so (NFC): the same word has one form.

    Args:
        text: any text.

    Returns:
        The words in order.

    Example:
        >>> split_words("Ein Haus, zwei Häuser.")
        ['ein', 'haus', ',', 'zwei', 'häuser', '.']
    """
    return _word().findall(unicodedata.normalize("NFC", text.lower()))


@cache
def _word() -> re.Pattern[str]:
    """Of words with the marks in them, which to ``re`` are no letters, and of single signs."""
    marks = (
        chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)).startswith("M")
    )
    inside = "".join(marks) + JOINERS
    return re.compile(rf"\w[\w{inside}]*|[^\w\s]")


def read_parallel(
    source: str | Path,
    target: str | Path,
    *,
    split: Callable[[str], list[str]] = split_words,
    max_length: int | None = None,
) -> tuple[list[list[str]], list[list[str]]]:
    r"""Reads two files with one sentence a line, of which the same lines translate each other.

    Args:
        source: UTF-8 text, or the same compressed as ``*.gz``.
        target: likewise.
        split: what makes words of a line.
        max_length: words a sentence may have at most; None for any number.

    Returns:
        Sentences of the source and of the target, as words.

    Raises:
        DataError: a file is missing, empty or unreadable, the numbers of lines differ, a line holds no word, or a
            sentence is longer than the limit. The message is one line and names the file and the line.
        ValueError: ``max_length`` is no integer >= 1.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> for name, text in (("en", "the house\na man\n"), ("de", "das Haus\nein Mann\n")):
        ...     _ = (folder / name).write_text(text)
        >>> read_parallel(folder / "en", folder / "de")
        ([['the', 'house'], ['a', 'man']], [['das', 'haus'], ['ein', 'mann']])
    """
    if max_length is not None:
        check_integer("read_parallel", "max_length", max_length, least=1)
    lines = [_lines(Path(path)) for path in (source, target)]
    if len(lines[0]) != len(lines[1]):
        raise DataError(
            f"{source} and {target}: expected as many lines in both, got {len(lines[0]):,} and {len(lines[1]):,}; "
            "line n of one must translate line n of the other"
        )
    first, second = (
        _sentences(Path(path), texts, split, max_length)
        for path, texts in zip((source, target), lines, strict=True)
    )
    return first, second


def _lines(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected text with one sentence a line") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path}: expected a gzip file, as its name says, got something else ({error})"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    if not data.strip():
        raise DataError(f"{path}: expected one sentence a line, got an empty file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path} line {line}: expected UTF-8 text, got the byte 0x{data[error.start]:02x}"
        ) from None
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def _sentences(
    path: Path, lines: list[str], split: Callable[[str], list[str]], max_length: int | None
) -> list[list[str]]:
    sentences = [split(line) for line in lines]
    for number, words in enumerate(sentences, start=1):
        if not words:
            raise DataError(
                f"{path} line {number}: expected a sentence, got none; remove the line from both files"
            )
        if max_length is not None and len(words) > max_length:
            raise DataError(
                f"{path} line {number}: expected at most {max_length} words, got {len(words)}; "
                "shorten the sentence, remove the line from both files, or raise max_length"
            )
    return sentences
