"""Multi30k (Elliott et al. 2016): captions of photographs in English and German."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from probattn.data.errors import DataError
from probattn.data.folder import DATA_VARIABLE
from probattn.data.sentence_pairs import ParallelSplits, SentencePairs, read_pairs

ORIGIN = "https://github.com/multi30k/dataset (data/task1/raw)"
LICENCE = (
    "CC BY-NC-SA 4.0; cite Elliott et al. 2016 (Multi30K: Multilingual English-German Image Descriptions)"
)
FILES = {"train": "train", "validation": "val", "test": "test_2016_flickr"}

Language = Literal["en", "de"]


def load_multi30k(
    folder: Path | str | None = None, *, source: Language = "en", target: Language = "de"
) -> ParallelSplits:
    """Reads Multi30k: 29,000 pairs to train on, 1,014 to choose by, 1,000 (``test_2016_flickr``) to measure on.

    Args:
        folder: holds ``{train,val,test_2016_flickr}.{en,de}.gz``; by default ``multi30k`` in the folder that
            ``PROBATTN_DATA`` names.
        source: language to translate from.
        target: language to translate to.

    Returns:
        The three splits.

    Raises:
        DataError: an unknown language, or twice the same; a missing or damaged file.
    """
    known = get_args(Language)
    if source not in known or target not in known or source == target:
        raise DataError(f"multi30k: expected two of {', '.join(known)}, got {source!r} and {target!r}")
    place = _folder() if folder is None else Path(folder).expanduser()
    files = [f"{name}.{language}.gz" for name in FILES.values() for language in known]
    missing = [name for name in files if not (place / name).is_file()]
    if missing:
        raise DataError(f"multi30k: {place} lacks {', '.join(missing)}; {ORIGIN} has the files")
    return ParallelSplits(**{role: _split(place, role, source, target) for role in FILES})


def _split(place: Path, role: str, source: Language, target: Language) -> SentencePairs:
    files = [place / f"{FILES[role]}.{language}.gz" for language in (source, target)]
    pairs = read_pairs(files[0], files[1], (source, target))
    return replace(pairs, source=f"multi30k {source}-{target} ({FILES[role]})", licence=LICENCE)


def _folder() -> Path:
    named = os.environ.get(DATA_VARIABLE)
    if not named:
        raise DataError(
            f"multi30k: expected a folder, or the environment variable {DATA_VARIABLE} to name one that has a folder "
            f"multi30k, got neither; {ORIGIN} has the files"
        )
    return Path(named) / "multi30k"
