"""Files of images: pixels, or features of regions that an object detector found."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from probattn.checks import shown
from probattn.data.errors import DataError

FEATURES = ("x", "features", "feat")
"""Names of the features in an ``npz`` file, the first that is there."""
BOXES = ("bbox", "boxes")
"""Names of the boxes there: left, top, right and bottom of each region."""


MOST_PIXELS, MOST_BYTES = 2**26, 2**26
"""Most pixels of an image, and bytes of an array, as their files declare them: small files can be of enormous ones."""

DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    LookupError,
    SyntaxError,
    RuntimeError,
    TypeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
)
"""What numpy raises for files that are damaged."""


@dataclass(frozen=True)
class ImageFiles:
    """Location and format of the files of images.

    Attributes:
        folder: folder of the files.
        pattern: name of an image's file, in which ``{id}`` stands for the name of the image, and ``{id:012d}`` for its
            number with leading zeros.
        region_size: F, dimension of the features of regions, for files of regions; None for files of pixels.
        image_size: height and width to which pixels are resized.
        max_regions: maximum number of regions of an image.

    Example:
        >>> ImageFiles(Path("train"), "COCO_train2014_{id:012d}.jpg.npz").path("9").name
        'COCO_train2014_000000000009.jpg.npz'
    """

    folder: Path
    pattern: str = "{id}.png"
    region_size: int | None = None
    image_size: int = 64
    max_regions: int = 100

    def path(self, image: str) -> Path:
        """The file of an image; ``DataError`` if the pattern does not fit its name."""
        try:
            if "{id" not in self.pattern:
                raise LookupError("it has none")
            try:
                name = self.pattern.format(id=image)
            except ValueError:  # a format of numbers
                name = self.pattern.format(id=int(image))
            return self.folder / name
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise DataError(
                f"{self.folder}: expected a pattern of file names with {{id}}, got {self.pattern!r} for image "
                f"{shown(image)} ({error})"
            ) from None

    def check(self, images: Iterable[str], where: str) -> None:
        """Checks that all files exist; ``DataError`` names the first that does not."""
        for image in images:
            file = self.path(image)
            if not file.is_file():
                raise DataError(f"{where}: expected image {image} in {file}, got no such file")

    def read(self, file: Path) -> Tensor:
        """Pixels, uint8 ``[3, S, S]``, or features of R regions, float32 ``[R, F]``.

        Raises:
            DataError: the file is damaged or has another format.
        """
        return self._pixels(file) if self.region_size is None else self._features(file)

    def boxes(self, file: Path) -> Tensor | None:
        """Boxes ``[R, 4]`` of an image's regions (left, top, right, bottom), relative to its size; None without boxes.

        They are only used for drawings, so invalid boxes raise no error.
        """
        if self.region_size is None or file.suffix != ".npz":
            return None
        try:
            content = _arrays(file, (*BOXES, "image_w", "image_h"))
        except DataError:
            return None
        boxes = next((_numbers(content[name]) for name in BOXES if name in content), None)
        if boxes is None or boxes.ndim != 2 or boxes.shape[1] != 4 or not len(boxes):
            return None
        boxes = boxes[: self.max_regions]
        sizes = [_numbers(content[name]) if name in content else None for name in ("image_w", "image_h")]
        whole = [
            boxes[:, side::2].max() if size is None or size.numel() != 1 else size.flatten()[0]
            for side, size in enumerate(sizes)
        ]
        if boxes.min() < 0 or min(whole) <= 0 or len(boxes) != len(self.read(file)):
            return None
        return boxes / torch.stack(whole * 2)

    def _pixels(self, file: Path) -> Tensor:
        size = (self.image_size, self.image_size)
        image = opened_image(file)
        resized = image if image.size == size else image.resize(size)
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1).contiguous()

    def _features(self, file: Path) -> Tensor:
        content = _arrays(file, FEATURES)
        features = next((content[name] for name in FEATURES if name in content), None)
        if features is None:
            raise DataError(
                f"{file}: expected an array {' or '.join(FEATURES)} of region features, got none of these names"
            )
        size = self.region_size
        if features.ndim == 2 and features.shape[1] != size and features.shape[0] == size:
            features = features.T  # as the files of bottom-up attention that MCAN's authors share
        if (
            features.ndim != 2
            or features.shape[1] != size
            or not len(features)
            or features.dtype.kind not in "fiu"
        ):
            raise DataError(
                f"{file}: expected numbers [regions, {size}], got {features.dtype} {list(features.shape)}"
            )
        values = torch.from_numpy(np.ascontiguousarray(features[: self.max_regions], dtype=np.float32))
        if not bool(values.isfinite().all()):
            raise DataError(f"{file}: expected finite numbers, got some that are not; make the file anew")
        return values


def _numbers(values: Any) -> Tensor | None:
    """An array as float32, where it holds finite numbers."""
    if values.dtype.kind not in "fiu":
        return None
    numbers = torch.from_numpy(np.asarray(values, dtype=np.float32))
    return numbers if bool(numbers.isfinite().all()) else None


def opened_image(file: Path) -> Any:
    """An image of pillow in RGB, upright, on white where it is transparent; ``DataError`` for another file."""
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise DataError(f"{file}: images need the package pillow; install it: pip install pillow") from error
    try:
        with Image.open(file) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                raise DataError(
                    f"{file}: expected at most {MOST_PIXELS:,} pixels, got {opened.width:,} x {opened.height:,}; make "
                    "the image smaller"
                )
            image: Any = ImageOps.exif_transpose(opened)
            if image.mode.startswith("I;16"):
                image = Image.fromarray((np.asarray(image) // 256).astype(np.uint8))
            elif image.mode in ("I", "F") and not 0 <= np.min(image) <= np.max(image) <= 255:
                raise ValueError("its numbers are not those of 8 or 16 bits")
            if image.has_transparency_data:
                image = image.convert("RGBA")
                image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file}: expected an image, got what cannot be read as one ({error})") from error


def _arrays(file: Path, names: Collection[str]) -> dict[str, Any]:
    """Arrays of an ``npz`` file that are named so, or that of an ``npy`` file; a ``DataError`` where it is damaged."""
    try:
        with file.open("rb") as stream:  # numpy leaves a damaged file open that it opened itself
            if not zipfile.is_zipfile(stream):
                stream.seek(0)
                return {FEATURES[0]: _array(file, stream)}
            with zipfile.ZipFile(stream) as content:
                members = {name: f"{name}.npy" for name in names if f"{name}.npy" in content.namelist()}
                arrays = {}
                for name, member in members.items():
                    with content.open(member) as opened:
                        arrays[name] = _array(file, opened)
                return arrays
    except DAMAGE as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{file}: expected features of regions (.npy or .npz), got a file that is damaged or of another format "
            f"({type(error).__name__})"
        ) from None


def _array(file: Path, stream: IO[bytes]) -> Any:
    """An array of a file, whose header says that it is small enough."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, kind = read(stream)
    size = math.prod(shape) * kind.itemsize
    if size > MOST_BYTES:
        raise DataError(
            f"{file}: expected arrays of at most {MOST_BYTES:,} bytes, got one of {size:,}; keep fewer regions"
        )
    stream.seek(0)
    return np.lib.format.read_array(stream, allow_pickle=False)
