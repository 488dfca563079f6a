"""Evaluation for a while: modes, gradients and Pyro's parameters are as they were afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyro
import torch
from torch import nn

from probattn.sites.threads import SHARED_STATE


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Evaluation mode without gradients; every submodule gets its own mode back, Pyro's store its own contents.

    One thread at a time: others wait.
    """
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    with SHARED_STATE:
        training = [module for module in modules if module.training]
        for module in training:
            module.training = False
        try:
            store = pyro.get_param_store()
            with torch.no_grad(), store.scope(store.get_state()):
                yield
        finally:
            for module in training:
                module.training = True
