"""What is wrong with labelled texts before anybody trains on them: a function finds each damage."""

from __future__ import annotations

import contextlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from html.entities import html5
from math import ceil
from typing import NamedTuple

from probattn.checks import grouped, is_blank, shown
from probattn.data.identity import first_of_each, text_key

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
MAX_TOKENS = 128
"""Tokens of a text that a new recipe takes."""
EXAMPLES, LINES = 3, 5
"""Examples, and lines, that a message names."""
RARE = 10
"""Rows of a class below which a tenth of them, for a test, is less than one."""
SHINGLE, SIMILAR, PROBES, HEAD, FEW = 4, 0.8, 12, 300, 20
"""Near copies: letters of a shingle, similarity, shingles looked up, letters compared, letters that mask numbers."""
LEAK, LEAK_ROWS = 0.9, 20
"""Share of the texts, of at least so many, that hold the names of their classes where labels leak."""
BROKEN = re.compile("[\ufffd\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
MARKUP = re.compile(
    r"</?(?:a|b|br|div|em|font|h[1-6]|hr|i|img|li|ol|p|pre|span|strong|table|t[dhr]|u|ul)(?:\s[^<>]*)?/?>"
    r"|&(?:#\d+|#x[0-9a-f]+|[a-z][a-z\d]+);",
    re.IGNORECASE,
)


class Rows(NamedTuple):
    """Rows as text: their fields by role (text, text_pair, label), and their lines as messages name them."""

    fields: Sequence[Mapping[str, str]]
    lines: Sequence[str]

    def texts(self) -> list[str]:
        """The text of each row, of a pair both."""
        return ["\n".join(text for role, text in row.items() if role != "label") for row in self.fields]

    def identities(self) -> list[str]:
        """Identities of the texts."""
        return [text_key(row["text"], row.get("text_pair")) for row in self.fields]

    def at(self, rows: Sequence[int]) -> Rows:
        """The rows of these numbers."""
        return Rows([self.fields[row] for row in rows], [self.lines[row] for row in rows])


class Damage(NamedTuple):
    """Numbers of the rows that a damage concerns, none where there is no such damage; what to do; examples."""

    kind: str
    rows: Sequence[int]
    advice: str
    examples: str = ""
    removable: bool = False
    """Whether training loses nothing without the rows."""

    def summary(self, lines: Sequence[str]) -> str:
        """Kind, number and examples."""
        return f"{self.kind}: {len(self.rows):,} ({self.examples or self.first(lines)})"

    def message(self, lines: Sequence[str]) -> str:
        """The damage in one line."""
        return f"{self.summary(lines)}; {self.advice}"

    def first(self, lines: Sequence[str]) -> str:
        """The first lines."""
        return first((lines[row] for row in self.rows), LINES, ", ")


def first(items: Iterable[str], limit: int = EXAMPLES, separator: str = "; ") -> str:
    """The first items, and whether there are more."""
    listed = list(items)
    return separator.join([*listed[:limit], *["..."] * (len(listed) > limit)])


def empty_fields(rows: Rows, columns: Mapping[str, str]) -> tuple[list[Damage], list[int]]:
    """Rows whose text is empty, else those whose label is, and the numbers of the others; ``columns`` by role."""
    missing = [next((role for role in columns if is_blank(row[role])), None) for row in rows.fields]
    damages = [
        Damage(
            f"rows without {'a label' if role == 'label' else 'text'} in {column!r}",
            [row for row, name in enumerate(missing) if name == role],
            "they are skipped: fill these in, or remove the rows",
            removable=True,
        )
        for role, column in columns.items()
    ]
    full = [row for row, name in enumerate(missing) if name is None]
    return [damage for damage in damages if damage.rows], full


def row_damages(rows: Rows, names: Sequence[str]) -> list[Damage]:
    """What training tells of rows without empty fields; ``names`` are their classes, none where these do not count."""
    usual = usual_spellings(Counter(names))
    classes = [usual.get(name, name) for name in names]
    labels = (_padded(rows), _variants(names, usual), _contradictions(rows, classes)) if names else ()
    return [damage for damage in (*labels, _copies(rows, classes)) if damage.rows]


def _padded(rows: Rows) -> Damage:
    padded = {
        row: field["label"]
        for row, field in enumerate(rows.fields)
        if field["label"] != field["label"].strip()
    }
    distinct = {label: rows.lines[row] for row, label in reversed(padded.items())}
    examples = (f"{shown(label)} in {line}" for label, line in reversed(distinct.items()))
    advice = "they are read without the blanks: remove these, which other programs take for classes"
    return Damage("labels with blanks around them", list(padded), advice, first(examples))


def spelling_key(name: str) -> str:
    """What spellings of a class share: one case, a blank for blanks, ``_`` and ``-`` inside, one form in Unicode."""
    signs = unicodedata.normalize("NFKC", name).casefold()
    visible = "".join(sign for sign in signs if unicodedata.category(sign) != "Cf").strip()
    return re.sub(r"(?<=[^\W_])[\s_-]+(?=[^\W_])", " ", visible)


def usual_spellings(counts: Mapping[str, int]) -> dict[str, str]:
    """The most frequent spelling of the classes that have another one, see :func:`spelling_key`."""
    groups = grouped((spelling_key(name), name) for name in sorted(counts))
    usual = ((max(group, key=counts.__getitem__), group) for group in groups.values())
    return {name: form for form, group in usual for name in group if name != form}


def _variants(names: Sequence[str], usual: Mapping[str, str]) -> Damage:
    counts = Counter(names)
    groups = grouped((form, name) for name, form in usual.items())
    examples = (
        " and ".join(f"{shown(name)} ({counts[name]:,})" for name in sorted([form, *group]))
        for form, group in groups.items()
    )
    pairs = ", ".join(f"{shown(name)}: {shown(form)}" for name, form in list(usual.items())[:EXAMPLES])
    more = ", ..." * (len(usual) > EXAMPLES)
    advice = (
        f"make them one in the file, or with `label_map: {{{pairs}{more}}}`, which `probattn init` writes"
    )
    rows = [row for row, name in enumerate(names) if name in usual]
    return Damage("classes that differ in case, blanks, _ or - alone", rows, advice, first(examples))


def _contradictions(rows: Rows, names: Sequence[str]) -> Damage:
    """Rows whose text, see :func:`text_key`, has another label in another row."""
    keys, classes = rows.identities(), defaultdict[str, dict[str, str]](dict)
    for key, name, line in zip(keys, names, rows.lines, strict=True):
        classes[key].setdefault(name, line)
    several = (seen for seen in classes.values() if len(seen) > 1)
    examples = (" and ".join(f"{shown(name)} in {line}" for name, line in seen.items()) for seen in several)
    advice = "not all of these labels can be learned: correct the labels, or keep one row of each text"
    repeated = [row for row, key in enumerate(keys) if len(classes[key]) > 1]
    return Damage("texts with different labels in different rows", repeated, advice, first(examples))


def _copies(rows: Rows, classes: Sequence[str]) -> Damage:
    """Rows whose text, pair and class, or label, have come before."""
    labels = classes or [row.get("label", "") for row in rows.fields]
    fields = ({**row, "label": name} for row, name in zip(rows.fields, labels, strict=True))
    distinct = set(first_of_each(repr(sorted(row.items())) for row in fields))
    advice = "each copy counts again: remove the copies, unless it matters how often a text occurs"
    repeated = [row for row in range(len(rows.fields)) if row not in distinct]
    return Damage("copies of the text and label of an earlier row", repeated, advice, removable=True)


def _near_copies(rows: Rows, names: Sequence[str], without: Collection[int]) -> Damage:
    """Rows whose text is nearly that of an earlier row, but for those of ``without``.

    Compares the sets of all four successive letters and digits, numbers masked, in the first 300; two are near from a
    Jaccard similarity of 0.8, of pairs both. Such sets share one of the rarest fifth of their members (prefix
    filtering, Chaudhuri et al. 2006); the twelve rarest that come twice find the sets to compare. A row that is near
    an earlier one is compared with no later one.
    """
    keys = rows.identities()
    sets = [[_shingles(piece) for piece in key.split("\n")] for key in keys]
    counts = Counter(item for pieces in sets for item in pieces[-1])
    index, leaders, near = defaultdict[str, list[int]](list), dict[str, int](), dict[int, int]()
    for row, pieces in enumerate(sets):
        ordered = sorted(pieces[-1], key=lambda item: (counts[item], item))
        rarest = ordered[: len(ordered) - ceil(SIMILAR * len(ordered)) + 1]
        prefix = [item for item in rarest if counts[item] > 1][:PROBES]
        candidates = dict.fromkeys(other for item in prefix for other in index[item])
        like = next((other for other in candidates if all(map(_similar, pieces, sets[other]))), row)
        leader = leaders.setdefault(keys[row], like)
        if leader != row:
            near[row] = leader
            continue
        for item in prefix:
            index[item].append(row)
    flagged = [row for row in near if row not in without]
    examples = (
        f"{rows.lines[near[row]]} and {rows.lines[row]}"
        + (f": {shown(names[near[row]])} and {shown(names[row])}" if names[row] != names[near[row]] else "")
        for row in sorted(flagged, key=lambda row: names[row] == names[near[row]])
    )
    advice = (
        "one may go to the training data and the other to the test data, which makes the test accuracy too high: "
        "remove these rows"
    )
    return Damage("nearly the text of an earlier row", flagged, advice, first(examples))


def _shingles(key: str) -> frozenset[str]:
    masked = re.sub(r"\d+", "0", key[:HEAD])
    if masked != key[:HEAD] and len(masked) < FEW:  # the numbers make the difference
        return frozenset((key,))
    return frozenset(masked[at : at + SHINGLE] for at in range(max(1, len(masked) - SHINGLE + 1)))


def _similar(one: frozenset[str], other: frozenset[str]) -> bool:
    if not SIMILAR <= len(one) / len(other) <= 1 / SIMILAR:
        return False
    common = len(one & other)
    return common >= SIMILAR * (len(one) + len(other) - common)


def _signs(rows: Rows, kind: str, find: Callable[[str], str | None], advice: str) -> Damage:
    """Texts with signs that do not belong there."""
    signs = {row: sign for row, text in enumerate(rows.texts()) if (sign := find(text))}
    return Damage(
        kind, list(signs), advice, first(f"{sign} in {rows.lines[row]}" for row, sign in signs.items())
    )


def _garbled(text: str) -> str | None:
    """What was UTF-8 and was read as Windows-1252, or lost; None without."""
    for piece in () if text.isascii() else re.findall(r"[^\x00-\x7f]{2,}", text):
        data = b"".join(sign.encode("cp1252", "ignore") or sign.encode("latin-1", "ignore") for sign in piece)
        with contextlib.suppress(UnicodeDecodeError):
            if len(data) == len(piece):
                return f"{shown(piece)} for {shown(data.decode())}"
    broken = BROKEN.search(text)
    return f"U+{ord(broken[0]):04X}" if broken else None


def _markup(text: str) -> str | None:
    marks = (match[0] for match in MARKUP.finditer(text))
    return next(
        (shown(mark) for mark in marks if mark[0] == "<" or mark[1] == "#" or mark[1:] in html5), None
    )


def _class_damages(rows: Rows, names: Sequence[str]) -> Iterator[Damage]:
    """Classes of few rows, labels that may be ratings, and texts that hold their labels."""
    counts = Counter(names)
    for kind, low, high, why in (
        ("classes of one row", 1, 2, "the row can be used for training or for the test, not for both"),
        (f"classes of 2 to {RARE - 1} rows", 2, RARE, "too few to set some aside for a test"),
    ):
        few = {name: count for name, count in counts.items() if low <= count < high}
        sizes = (shown(name) + (f" ({count})" if count > 1 else "") for name, count in few.items())
        some = f"{len(few):,} of {len(counts):,} classes, {first(sizes, LINES, ', ')}"
        numbers = [row for row, name in enumerate(names) if name in few]
        yield Damage(kind, numbers, f"{why}: add rows, or join classes with label_map", some)
    if 2 < len(counts) < len(names) / 2 and all(NUMBER.fullmatch(name) for name in counts):
        span = f"{min(counts, key=float)} to {max(counts, key=float)}"
        advice = "learned as classes without an order: ratings are for a recipe with a section `regression`"
        yield Damage("labels that are numbers", range(len(names)), advice, span)
    words = {name: re.sub(r"[\W_]+", " ", name.casefold()).strip() for name in counts}
    texts = (re.sub(r"[\W_]+", " ", text.casefold()).strip() for text in rows.texts())
    leaking = [
        row
        for row, (name, text) in enumerate(zip(names, texts, strict=True))
        if len(words[name]) > 2 and f" {words[name]} " in f" {text} "
    ]
    if len(names) >= LEAK_ROWS and len(counts) > 1 and len(leaking) >= LEAK * len(names):
        advice = "a network reads the label off: remove it from the texts, if new texts come without"
        yield Damage("texts that hold the name of their class", leaking, advice)


def long_texts(rows: Rows, lengths: Sequence[int], limit: int, unit: str) -> Iterator[Damage]:
    """Texts of more tokens than a recipe takes."""
    longest = max(range(len(lengths)), key=lengths.__getitem__)
    if lengths[longest] > limit:
        yield Damage(
            f"texts of more than {limit} {unit}",
            [row for row, length in enumerate(lengths) if length > limit],
            "their ends are cut off: raise data.max_length, which costs time",
            f"the longest, {rows.lines[longest]}: {lengths[longest]:,}",
        )


def check_rows(rows: Rows, columns: Mapping[str, str]) -> list[Damage]:
    """Everything that is wrong with rows of a file, but for their lengths; ``columns`` are named by role."""
    damages, numbers = empty_fields(rows, columns)
    full = rows.at(numbers)
    names = [row["label"].strip() for row in full.fields]
    usual = usual_spellings(Counter(names))
    classes = [usual.get(name, name) for name in names]
    repeated = {*_contradictions(full, classes).rows, *_copies(full, classes).rows}
    encoding = "read the source in its own encoding, and save it as UTF-8"
    others = (
        *row_damages(full, names),
        _near_copies(full, classes, repeated),
        *_class_damages(full, classes),
        _signs(full, "characters of a wrong encoding", _garbled, encoding),
        _signs(full, "tags or entities of HTML", _markup, "remove them, and replace entities such as &amp;"),
    )
    return damages + [item._replace(rows=[numbers[row] for row in item.rows]) for item in others if item.rows]
