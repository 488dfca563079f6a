"""Reading pickles of numbers without running what else a pickle may hold."""

from __future__ import annotations

import _codecs
import io
import pickle
import struct
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import sparse

from probattn.data.errors import DataError


def _known() -> Mapping[tuple[str, str], Any]:
    """What numeric pickles name, under the names of all versions of NumPy and SciPy."""
    reconstruct = np.zeros(1).__reduce__()[0]
    known: dict[tuple[str, str], Any] = {
        ("numpy", "dtype"): np.dtype,
        ("numpy", "ndarray"): np.ndarray,
        ("collections", "defaultdict"): defaultdict,
        ("_codecs", "encode"): _codecs.encode,  # how protocol 2 writes bytes
    }
    from_buffer = np.zeros(1).__reduce_ex__(5)[0]
    for package in ("numpy.core", "numpy._core"):
        known[f"{package}.multiarray", "_reconstruct"] = reconstruct
        known[f"{package}.numeric", "_frombuffer"] = from_buffer
    for module in ("scipy.sparse", "scipy.sparse.csr", "scipy.sparse._csr"):
        known[module, "csr_matrix"] = sparse.csr_matrix
    for module in ("builtins", "__builtin__"):
        known[module, "list"] = list
    return MappingProxyType(known)


KNOWN = _known()
"""What a pickle may name, by module and name; anything else is refused."""


class NumericUnpickler(pickle.Unpickler):
    """Unpickles arrays, sparse matrices, lists and dictionaries; refuses whatever else a pickle names.

    Text of Python 2 is read as Latin-1, as the bytes of its arrays need it.

    Args:
        content: the pickle.

    Example:
        >>> NumericUnpickler(pickle.dumps({0: [1, 2]})).load()
        {0: [1, 2]}
        >>> try:
        ...     NumericUnpickler(pickle.dumps(print)).load()
        ... except pickle.UnpicklingError as error:
        ...     print(error)
        it names builtins.print, which is no array, matrix, list or dictionary
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="latin-1")

    def find_class(self, module: str, name: str) -> Any:
        """The known class or function of that name.

        Raises:
            UnpicklingError: it is not among :data:`KNOWN`.
        """
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
"""What reading a damaged or foreign pickle raises."""


def read_pickle(path: Path) -> Any:
    """Reads a pickle of numbers.

    Raises:
        DataError: the file cannot be read, is no pickle, or names what is not a number's container.
    """
    try:
        return NumericUnpickler(path.read_bytes()).load()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    except _BROKEN as error:
        raise DataError(f"{path}: expected a pickle of numbers: {error}") from None


def as_matrix(path: Path, value: Any) -> sparse.csr_matrix:
    """A sparse matrix as it came out of a pickle, made anew and checked.

    Args:
        path: where it came from.
        value: a ``csr_matrix`` or a two-dimensional array.

    Returns:
        The matrix, float32.

    Raises:
        DataError: something else, or a matrix that contradicts itself.
    """
    try:
        if isinstance(value, np.ndarray):
            matrix = sparse.csr_matrix(np.atleast_2d(value.astype(np.float32)))
        else:
            parts = (np.asarray(value.data, np.float32), value.indices, value.indptr)
            matrix = sparse.csr_matrix(parts, shape=value.shape)
        matrix.check_format(full_check=True)
    except _BROKEN as error:
        raise DataError(f"{path}: expected a sparse matrix, got {type(value).__name__} ({error})") from None
    if not np.isfinite(matrix.data).all():
        raise DataError(f"{path}: expected finite features, got NaN or an infinity")
    return matrix
