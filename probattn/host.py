"""What a computation may ask of tensors without waiting for an accelerator."""

import torch
from torch import Tensor


def on_cpu(tensor: Tensor) -> bool:
    """Whether a tensor is in the CPU's memory: its values can be read at once, and its caches are what limits."""
    return tensor.device.type == "cpu"


def at_least_float32(values: Tensor) -> Tensor:
    """The values in float32 if they are of lower precision, else unchanged."""
    return values if values.dtype == torch.float64 else values.float()
