"""Synonyms from WordNet's own files."""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path

PARTS = ("noun", "verb", "adj", "adv")
RULES: dict[str, tuple[tuple[str, str], ...]] = {
    "noun": (
        *(("s", ""), ("ses", "s"), ("ves", "f"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh")),
        *(("men", "man"), ("ies", "y")),
    ),
    "verb": (
        *(
            ("s", ""),
            ("ies", "y"),
            ("es", "e"),
            ("es", ""),
            ("ed", "e"),
            ("ed", ""),
            ("ing", "e"),
            ("ing", ""),
        ),
    ),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}
"""Endings and what stands in their place, of WordNet's morphological processing (morphy, section 7 of its manual)."""


class WordNet:
    """WordNet's meanings of words (Fellbaum 1998), from its files ``index.*``, ``data.*`` and ``*.exc``.

    nltk's corpus ``wordnet`` and Debian's package ``wordnet-base`` have them; the second lacks a file that nltk's own
    reader asks for.

    Args:
        folder: where they are.

    Raises:
        FileNotFoundError: one of them is missing.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        files = [f"{kind}.{part}" for kind in ("index", "data") for part in PARTS]
        missing = next((name for name in files if not (self.folder / name).is_file()), None)
        if missing is not None:
            raise FileNotFoundError(f"{self.folder}: expected WordNet's files, {missing} is missing")
        self.synonyms = cache(self._synonyms)

    def _synonyms(self, word: str) -> frozenset[str]:
        """The single words that share a meaning with a word, in any of its forms and as any part of speech."""
        return frozenset(
            name
            for part in PARTS
            for form in self._forms(word.lower(), part)
            for offset in self._index[part][form]
            for name in self._words(part, offset)
            if "_" not in name
        )

    def _forms(self, word: str, part: str) -> list[str]:
        """Forms under which the index has a word: exceptions, or the word itself and what the rules make of it."""
        forms = self._exceptions[part].get(word)
        if forms is None:
            forms = [word[: -len(end)] + new for end, new in RULES[part] if word.endswith(end)]
        return [*dict.fromkeys(form for form in (word, *forms) if form in self._index[part])]

    @cached_property
    def _index(self) -> dict[str, dict[str, tuple[int, ...]]]:
        return {part: self._read_index(part) for part in PARTS}

    def _read_index(self, part: str) -> dict[str, tuple[int, ...]]:
        found = {}
        for line in (self.folder / f"index.{part}").read_text(encoding="latin-1").splitlines():
            if not line.startswith(" "):  # the licence
                fields = line.split()
                found[fields[0]] = tuple(map(int, fields[-int(fields[2]) :]))
        return found

    @cached_property
    def _exceptions(self) -> dict[str, dict[str, list[str]]]:
        found: dict[str, dict[str, list[str]]] = {}
        for part in PARTS:
            file = self.folder / f"{part}.exc"
            lines = file.read_text(encoding="latin-1").splitlines() if file.is_file() else []
            found[part] = {fields[0]: fields[1:] for fields in map(str.split, lines) if fields}
        return found

    @cached_property
    def _data(self) -> dict[str, bytes]:
        return {part: (self.folder / f"data.{part}").read_bytes() for part in PARTS}

    def _words(self, part: str, offset: int) -> list[str]:
        """Words of one meaning, with _ in the place of spaces."""
        data = self._data[part]
        fields = data[offset : data.index(b"\n", offset)].decode("latin-1").split()
        return [word.partition("(")[0] for word in fields[4 : 4 + 2 * int(fields[3], 16) : 2]]
