"""The citation graphs of Planetoid (Yang et al. 2016): Cora, Citeseer, Pubmed, from a local folder."""

from __future__ import annotations

import _codecs
import io
import pickle
import struct
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from probattn.data.errors import DataError, suggestion
from probattn.data.files import data_folder, read_text, unreadable
from probattn.data.node_graph import UNKNOWN, NodeGraph

ORIGIN = "https://github.com/kimiyoung/planetoid (data/)"
LICENCE = "none stated by its authors; cite Sen et al. 2008 (Collective classification) and Yang et al. 2016"
VALIDATION_NODES = 500
"""Nodes after the training nodes that are for validation (Kipf and Welling 2017)."""
MOST_NODES = 10_000_000
"""Larger numbers of nodes are taken for damage."""
PLANETOID: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cora": (
            "theory",
            "reinforcement learning",
            "genetic algorithms",
            "neural networks",
            "probabilistic methods",
            "case based",
            "rule learning",
        ),
        "citeseer": (
            "artificial intelligence",
            "machine learning",
            "retrieval",
            "databases",
            "agents",
            "interaction",
        ),
        "pubmed": ("class 0", "class 1", "class 2"),
    }
)
"""Names of the classes of "cora", "citeseer" and "pubmed", for the first two inferred from the sizes of the classes."""


@dataclass(frozen=True)
class _Arrays:
    """The eight files of a graph, read."""

    x: sparse.csr_matrix
    tx: sparse.csr_matrix
    allx: sparse.csr_matrix
    y: Tensor
    ty: Tensor
    ally: Tensor
    neighbours: dict[Any, Any]
    test: Tensor
    classes: int


def load_planetoid(name: str, folder: Path | str | None = None) -> NodeGraph:
    """Reads a citation graph with its standard split.

    Nodes are papers, features their words, edges citations (in both directions, each once, without self-citations). 20
    nodes of each class are for training, the next 500 for validation, 1,000 for testing. Nodes that are missing in the
    files (15 of Citeseer) have no words and no label.

    The files ``ind.<name>.{x,y,tx,ty,allx,ally,graph,test.index}`` are pickles, from which only arrays, sparse
    matrices, lists and dictionaries are read.

    Args:
        name: "cora", "citeseer", "pubmed", or the name of another graph with such files, whose classes are then
            numbered.
        folder: folder of the files; by default ``<name>`` in the folder that ``PROBATTN_DATA`` names.

    Returns:
        The graph, with features as in the files (for Cora 0 or 1) and without self loops.

    Raises:
        DataError: a file is missing or damaged, matrices do not match, or an edge refers to a node that does not exist.
    """
    path = data_folder(f"graph {name!r}", name, ORIGIN) if folder is None else Path(folder).expanduser()
    arrays = _read(name, path)
    _check(name, path, arrays)
    return _assemble(name, path, arrays)


def _read(name: str, folder: Path) -> _Arrays:
    endings = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    files = {ending: folder / f"ind.{name}.{ending}" for ending in endings}
    missing = [path.name for path in files.values() if not path.is_file()]
    if missing:
        hint = suggestion(name, PLANETOID) if name not in PLANETOID else ""
        raise DataError(f"graph {name!r}: {folder} lacks {', '.join(missing)}; {ORIGIN} has the files{hint}")
    neighbours = read_pickle(files["graph"])
    if not isinstance(neighbours, dict):
        raise DataError(
            f"{files['graph']}: expected a dictionary of neighbours, got {type(neighbours).__name__}"
        )
    matrices = {
        ending: as_matrix(files[ending], read_pickle(files[ending])) for ending in ("x", "tx", "allx")
    }
    labels = {}
    classes = len(PLANETOID.get(name, ())) or None
    for ending in ("y", "ty", "ally"):
        labels[ending], classes = _labels(files[ending], classes)
    assert classes is not None
    return _Arrays(
        **matrices, **labels, classes=classes, neighbours=neighbours, test=_test_nodes(files["test.index"])
    )


def _labels(path: Path, classes: int | None) -> tuple[Tensor, int]:
    """Classes from indicator rows, and their number, which may be known; a row of zeros has none."""
    rows = read_pickle(path)
    if (
        not isinstance(rows, np.ndarray)
        or rows.ndim != 2
        or rows.shape[1] != (classes or rows.shape[1])
        or rows.dtype.kind not in "iufb"
    ):
        got = f"{rows.dtype} {list(rows.shape)}" if isinstance(rows, np.ndarray) else type(rows).__name__
        raise DataError(
            f"{path}: expected indicators of {classes or 'C'} classes, numbers [N, {classes or 'C'}], got {got}"
        )
    labels = np.where(rows.any(axis=1), rows.argmax(axis=1), UNKNOWN)
    return torch.from_numpy(labels.astype(np.int64)), rows.shape[1]


def _test_nodes(path: Path) -> Tensor:
    words = read_text(path).split()
    wrong = next((word for word in words if not word.isascii() or not word.isdigit()), None)
    if wrong is not None or not words:
        raise DataError(f"{path}: expected node numbers, got {'none' if wrong is None else repr(wrong)}")
    largest = max(map(int, words))
    if largest >= MOST_NODES:
        raise DataError(f"{path}: expected node numbers below {MOST_NODES:,}, got {largest}")
    return torch.tensor([int(word) for word in words])


def _check(name: str, folder: Path, arrays: _Arrays) -> None:
    where = f"graph {name!r} in {folder}"
    width = arrays.allx.shape[1]
    for ending, matrix in (("x", arrays.x), ("tx", arrays.tx)):
        if matrix.shape[1] != width:
            raise DataError(
                f"{where}: expected features of width {width} as in allx, got {matrix.shape[1]} in {ending}"
            )
    pairs = (("x", "y"), ("tx", "ty"), ("allx", "ally"))
    for matrix_name, label_name in pairs:
        rows, labels = getattr(arrays, matrix_name).shape[0], len(getattr(arrays, label_name))
        if rows != labels:
            raise DataError(
                f"{where}: expected as many rows in {matrix_name} as in {label_name}, got {rows} and {labels}"
            )
    tests, different = arrays.tx.shape[0], len(arrays.test.unique())
    if not len(arrays.test) == different == tests:
        raise DataError(f"{where}: expected {tests} different nodes in test.index, as in tx, got {different}")
    first = arrays.allx.shape[0]
    if int(arrays.test.min()) < first:
        raise DataError(
            f"{where}: expected test nodes from {first} on, after allx, got {int(arrays.test.min())}"
        )
    if not len(arrays.y) < first:
        raise DataError(f"{where}: expected more nodes in allx than the {len(arrays.y)} of x, got {first}")


def _assemble(name: str, folder: Path, arrays: _Arrays) -> NodeGraph:
    trained, width = arrays.allx.shape
    nodes = max(int(arrays.test.max()) + 1, trained)
    features = torch.zeros(nodes, width)
    labels = torch.full((nodes,), UNKNOWN)
    features[:trained], labels[:trained] = torch.from_numpy(arrays.allx.toarray()), arrays.ally
    features[arrays.test], labels[arrays.test] = torch.from_numpy(arrays.tx.toarray()), arrays.ty
    train, validation, test = (torch.zeros(nodes, dtype=torch.bool) for _ in range(3))
    train[: len(arrays.y)] = True
    validation[len(arrays.y) : min(len(arrays.y) + VALIDATION_NODES, trained)] = True
    test[arrays.test] = True
    return NodeGraph(
        features=features,
        labels=labels,
        edge_index=_edges(f"graph {name!r} in {folder}", arrays.neighbours),
        train_mask=train,
        validation_mask=validation,
        test_mask=test,
        label_names=PLANETOID.get(name, tuple(f"class {number}" for number in range(arrays.classes))),
        source=name,
        licence=LICENCE,
    )


def _edges(where: str, neighbours: dict[Any, Any]) -> Tensor:
    """Both directions of every edge, each once, sorted, without self loops: int64 ``[2, E]``."""
    try:
        pairs = [(int(node), int(other)) for node, others in neighbours.items() for other in others]
    except (TypeError, ValueError):
        raise DataError(f"{where}: expected lists of node numbers as neighbours in its graph file") from None
    try:
        index = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).t()
    except (RuntimeError, OverflowError, ValueError):
        raise DataError(f"{where}: a node number in its graph file is too large") from None
    index = index[:, index[0] != index[1]]
    return torch.cat([index, index.flip(0)], dim=1).unique(dim=1)


def _allowed_names() -> Mapping[tuple[str, str], Any]:
    """Classes and functions of numeric pickles, under the names of all versions of NumPy and SciPy."""
    reconstruct = np.zeros(1).__reduce__()[0]
    allowed: dict[tuple[str, str], Any] = {
        ("numpy", "dtype"): np.dtype,
        ("numpy", "ndarray"): np.ndarray,
        ("collections", "defaultdict"): defaultdict,
        ("_codecs", "encode"): _codecs.encode,  # how protocol 2 writes bytes
    }
    from_buffer = np.zeros(1).__reduce_ex__(5)[0]
    for package in ("numpy.core", "numpy._core"):
        allowed[f"{package}.multiarray", "_reconstruct"] = reconstruct
        allowed[f"{package}.numeric", "_frombuffer"] = from_buffer
    for module in ("scipy.sparse", "scipy.sparse.csr", "scipy.sparse._csr"):
        allowed[module, "csr_matrix"] = sparse.csr_matrix
    for module in ("builtins", "__builtin__"):
        allowed[module, "list"] = list
    return MappingProxyType(allowed)


KNOWN = _allowed_names()
"""Classes and functions that a pickle may name, by module and name."""


class NumericUnpickler(pickle.Unpickler):
    """Unpickles arrays, sparse matrices, lists and dictionaries, texts of Python 2 as Latin-1; refuses all else."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="latin-1")

    def find_class(self, module: str, name: str) -> Any:
        """The class or function of that name in :data:`KNOWN`; ``UnpicklingError`` for any other."""
        try:
            return KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which is no array, matrix, list or dictionary"
            ) from None


_BROKEN = (
    pickle.UnpicklingError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OverflowError,
    TypeError,
    ValueError,
    struct.error,
)
"""Errors of reading a damaged pickle, or one of something else."""


def read_pickle(path: Path) -> Any:
    """Reads a pickle of numbers; ``DataError`` where it cannot be read or names anything else."""
    try:
        return NumericUnpickler(path.read_bytes()).load()
    except OSError as error:
        raise unreadable(path, error) from None
    except _BROKEN as error:
        raise DataError(f"{path}: expected a pickle of numbers: {error}") from None


def as_matrix(path: Path, value: Any) -> sparse.csr_matrix:
    """A float32 copy of a pickled matrix, checked; ``DataError`` for something else or a contradiction."""
    try:
        if isinstance(value, np.ndarray):
            matrix = sparse.csr_matrix(np.atleast_2d(value.astype(np.float32)))
        else:
            arrays = (np.asarray(value.data, np.float32), value.indices, value.indptr)
            matrix = sparse.csr_matrix(arrays, shape=value.shape)
        matrix.check_format(full_check=True)
    except _BROKEN as error:
        raise DataError(f"{path}: expected a sparse matrix, got {type(value).__name__} ({error})") from None
    if not np.isfinite(matrix.data).all():
        raise DataError(f"{path}: expected finite features, got NaN or an infinity")
    return matrix
