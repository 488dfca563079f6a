"""What is taken from torch-geometric, imported in one place."""

from __future__ import annotations

import warnings

try:
    with warnings.catch_warnings():
        # It compiles some of its modules with torch.jit as it is imported, which torch says is going away.
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        from torch_geometric.nn import MessagePassing
except ModuleNotFoundError as error:
    raise ImportError(
        f"probattn.models.graph needs torch-geometric: pip install 'probattn[graph]' ({error})"
    ) from error

__all__ = ["MessagePassing"]
