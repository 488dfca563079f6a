"""Which of a network's parameters a recipe has learn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from transformers import PreTrainedModel

from probattn.cli.errors import CommandError
from probattn.models.sentence.network import SelfAttentiveAttention
from probattn.models.translation.recurrent.attention import DotAttention
from probattn.probes import frozen_probe
from probattn.recipes import TrainingRecipe


def score_modules(net: nn.Module) -> list[nn.Module]:
    """The modules whose parameters make attention scores and nothing else; empty where a network has none.

    What an attention method brings along (an inference network's prior, a discriminator) lies in them too.

    Args:
        net: a network of a recipe.
    """
    return [each for each in net.modules() if isinstance(each, (SelfAttentiveAttention, DotAttention))]


def check_frozen_probe(net: PreTrainedModel, training: TrainingRecipe, name: str) -> None:
    """Makes sure that a network's attention can learn alone, where the recipe wants that.

    Args:
        net: of the recipe.
        training: of the recipe.
        name: the network's in the recipe.

    Raises:
        CommandError: its probe cannot be frozen, or nothing would learn.
    """
    if not training.frozen_probe:
        return
    if not score_modules(net):
        raise CommandError(
            "training.frozen_probe: expected network.name 'self_attentive' (texts) or 'lstm' (translation), whose "
            f"attention scores have parameters of their own, got {name!r}"
        )
    if net.config.uniform_attention:
        raise CommandError(
            "training.frozen_probe: with uniform_attention nothing would learn; set one of the two to false"
        )


@contextmanager
def learning(net: nn.Module, training: TrainingRecipe) -> Iterator[None]:
    """Has those parameters require gradients inside the block that the recipe wants to learn.

    Args:
        net: as :func:`check_frozen_probe` lets it pass.
        training: of the recipe.
    """
    if not training.frozen_probe:
        yield
        return
    with frozen_probe(net, score_modules(net)):
        yield
