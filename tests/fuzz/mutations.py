"""Damage to texts, JSON and folders, drawn from a seed."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

SCALARS = (
    "!!float abc", "!!bool maybe", "!!float ''", "!!int 1.5", "!!null x", '!!bool "true\\n"', "!!str 3", "!!seq x",
    "!!map [1]", "!!python/object/apply:os.system [exit]", "!!binary aGk=", "!!timestamp 2020-01-01", "1e400", ".nan",
    "-.inf", "-1", "0", "1", "2.5", "1e-320", "99999999999999999999", "9" * 5000, "null", "~", "true", "no", "[]", "{}",
    "[1, [2, {a: b}]]", "{a: 1}", "[" * 60 + "]" * 60, "[" * 2000, "&a b", "*a", '"a\\0b"', '"\\ud800"', '"\\x1b[2J"',
    '"../../etc/passwd"', "/dev/zero", "/", "''", "' '", "x" * 3000, '"\\u202Eabc"', "0x10", "1_000", "2020-01-01",
    "<<: {a: 1}", "? a", "|", ">-", "#", "'", '"', "@", "%", "imdb", "minilm", "babn", "all", "first", "mean",
    "no such thing", "é" * 40, "\u2028", "{train: x.csv, train: y.csv}",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 0.5, -0.0, 1e308, -1e308, 1e-320, 10**30, 2**63, float("nan"), float("inf"), "",
    "x", "abc" * 1000, "\ud800", "\x00", "<script>alert(1)</script>", "[bold]", [], [[]], [None], ["a", 1], {},
    {"a": []}, {"": None}, "torch.float32", "float99", "../../../etc/passwd", "kernels-community/x",
)  # fmt: skip
NAMES = (
    "notes.txt", "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "generation_config.json", "adapter_config.json", "model.safetensors.index.json",
    "pytorch_model.bin", "evil.py",
    "chat_template.jinja", "vocab.txt", "merges.txt", "spiece.model", "manifest.json", "probattn.json", ".hidden",
    "step-000009", "report.html", "processor_config.json", "preprocessor_config.json",
)  # fmt: skip
CHARACTERS = ":-#{}[],&*!|>'\"%@`?~\n\t \\/.0aZé\x00\x07\u2028\U0001f600"


def mutated_text(draw: random.Random, text: str) -> str:
    """The text with one to four changes of characters, lines or values."""
    for _ in range(draw.randint(1, 4)):
        change = draw.choice((_characters, _lines, _value, _value, _value, _indent))
        text = change(draw, text)
    return text


def _characters(draw: random.Random, text: str) -> str:
    at = draw.randint(0, len(text))
    kind = draw.randrange(4)
    if kind == 0:
        return text[:at] + draw.choice(CHARACTERS) + text[at:]
    if kind == 1:
        return text[:at] + text[at + draw.randint(1, 5) :]
    if kind == 2:
        return text[:at]
    return text[:at] + draw.choice(CHARACTERS) + text[at + 1 :]


def _lines(draw: random.Random, text: str) -> str:
    lines = text.split("\n")
    at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    kind = draw.randrange(3)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(other, lines[at])
    else:
        lines[at], lines[other] = lines[other], lines[at]
    return "\n".join(lines)


def _value(draw: random.Random, text: str) -> str:
    places = [index for index, letter in enumerate(text) if letter == ":"]
    if not places:
        return text
    start = draw.choice(places) + 1
    ends = [at for at in (text.find(mark, start) for mark in "\n,}]") if at >= 0]
    end = min(ends, default=len(text))
    return f"{text[:start]} {draw.choice(SCALARS)}{text[end:]}"


def _indent(draw: random.Random, text: str) -> str:
    lines = text.split("\n")
    at = draw.randrange(len(lines))
    lines[at] = draw.choice(("  ", "\t", "    ", "- ")) + lines[at]
    return "\n".join(lines)


def mutated_json(draw: random.Random, text: str) -> str:
    """JSON with one to three of its values, keys or lists changed; now and then damaged as text."""
    kind = draw.random()
    if kind < 0.06:
        return "[" * draw.choice((100, 5000, 200_000)) + text
    if kind < 0.12:
        return text.replace(": 1", ": " + "1" * 5000, 1)
    try:
        content = json.loads(text)
    except (RecursionError, ValueError):
        return mutated_text(draw, text)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        content = _changed(draw, content)
    return json.dumps(content)


def _changed(draw: random.Random, content: Any) -> Any:
    """The same with one of its values, keys or lists changed."""
    content = copy.deepcopy(content)
    places = _places(content)
    new = copy.deepcopy(draw.choice(VALUES))
    if not places or draw.random() < 0.03:
        return new
    owner, key = draw.choice(places)
    kind, value = draw.randrange(9), owner[key]
    if kind == 0:
        del owner[key]
    elif kind == 1 and isinstance(owner, dict):
        owner[draw.choice((f"{key}x", "extra", "kind", "step", "", "auto_map"))] = owner.pop(key)
    elif kind == 2 and isinstance(value, (list, str)) and value:
        owner[key] = draw.choice((value[:-1], value * 2, value[:1], value + value[:1], value[::-1]))
    elif kind in {3, 4} and isinstance(value, (int, float)):
        owner[key] = draw.choice((value + 1, -value, value * 2, value / 3, value * 1e100, str(value)))
    elif kind in {5, 6} and isinstance(value, (int, float)):
        owner[key] = draw.choice((0, 1, -1, 0.0, 1e-300, 1e300, -1e300, 10**15, 0.5, None))
    elif kind == 7:
        other, name = draw.choice(places)
        owner[key] = copy.deepcopy(other[name])
    else:
        owner[key] = new
    return content


def _places(content: Any) -> list[tuple[Any, Any]]:
    """Containers and keys of all values."""
    found, rest = [], [content]
    while rest:
        each = rest.pop()
        keys = list(each) if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else ()
        found += [(each, key) for key in keys]
        rest += [each[key] for key in keys]
    return found


def mutated_bytes(draw: random.Random, data: bytes) -> bytes:
    """Bytes flipped, cut, added or replaced."""
    kind = draw.randrange(6)
    if kind == 0:
        return data[: draw.randint(0, max(len(data) - 1, 0))]
    if kind == 1:
        return data + draw.randbytes(draw.randint(1, 64))
    if kind == 2:
        return b"" if draw.random() < 0.3 else draw.randbytes(draw.randint(1, 200))
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 8)) if data else 0):
        near = min(len(data), 2000) if draw.random() < 0.4 else len(data)  # headers stand at the beginning
        changed[draw.randrange(near)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def damage_folder(draw: random.Random, folder: Path, *, keep: tuple[str, ...] = ()) -> str:
    """Changes a folder in one place, without the files of the names ``keep``; what was done, for people."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name not in keep)
    file = draw.choice(files)
    place = file.relative_to(folder).as_posix()
    kind = draw.random()
    if kind < 0.06:
        file.unlink()
        return f"{place} removed"
    if kind < 0.12:
        name = draw.choice(NAMES)
        new = file.parent / name
        if new.exists():
            return f"nothing: {name} is there"
        new.write_bytes(draw.choice((b"", b"{}", b"[]", b"x = 1", draw.randbytes(50), file.read_bytes())))
        return f"{name} added beside {place}"
    if kind < 0.15:
        other = draw.choice(files)
        file.write_bytes(other.read_bytes())
        return f"{place} replaced by {other.name}"
    if kind < 0.17:
        file.unlink()
        file.mkdir()
        return f"{place} is a folder"
    if kind < 0.18:
        file.unlink()
        file.symlink_to(draw.choice(("nowhere", "/dev/null", ".")))
        return f"{place} is a link"
    if kind < 0.65 and file.suffix in {".json", ".jsonl", ".yaml"}:
        text = file.read_text(encoding="utf-8", errors="replace")
        file.write_text(_record_or_text(draw, file, text), encoding="utf-8", errors="surrogatepass")
        return f"{place} changed"
    file.write_bytes(mutated_bytes(draw, file.read_bytes()))
    return f"{place}: bytes changed"


def _record_or_text(draw: random.Random, file: Path, text: str) -> str:
    if file.suffix == ".yaml":
        return mutated_text(draw, text)
    if file.suffix == ".json":
        return mutated_json(draw, text)
    lines = text.splitlines() or ["{}"]
    at = draw.randrange(len(lines))
    lines[at] = draw.choice((mutated_json, mutated_text))(draw, lines[at])
    return "\n".join(lines) + "\n"
