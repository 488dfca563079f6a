"""What a computation may ask of tensors without waiting for an accelerator."""

from torch import Tensor


def on_cpu(tensor: Tensor) -> bool:
    """Whether a tensor is in the CPU's memory: its values can be read at once, and its caches are what limits."""
    return tensor.device.type == "cpu"
