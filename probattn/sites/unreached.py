"""The error of a pass in which attention modules ran and their sites did not."""

from __future__ import annotations

from collections.abc import Sequence


def refuse_unreached(network: str, names: Sequence[str], number: int) -> None:
    """Refuses a pass of a network in which the sites of the modules ``names``, of ``number`` that ran, did not."""
    if names:
        raise RuntimeError(
            f"{network}: the attention site of {names[0]} was not reached ({len(names)} of {number}), so that its "
            "attention was deterministic: after conversion something replaced the module's forward, its submodule "
            "'probattn' or transformers' attention function of that name; undo that, or call "
            "probattn.models.revert(net) and convert the network again"
        )


def refuse_none(network: str, name: str) -> None:
    """Refuses a pass of a network in which none of its attention modules ran; ``name`` is one of them."""
    raise RuntimeError(
        f"{network}: the attention site of {name} was not reached, nor any other, so that the pass was deterministic: "
        "after conversion something replaced the forward of a module that calls them; undo that, or call "
        "probattn.models.revert(net) and convert the network again"
    )


def refuse_replaced(network: str, name: str, outer: str) -> None:
    """Refuses a pass in which a module whose forward was replaced did not run the attention module ``name``."""
    raise RuntimeError(
        f"{network}: the attention site of {name} was not reached, so that its attention was deterministic: after "
        f"conversion something replaced the forward of {outer}, which calls it; undo that, or call "
        "probattn.models.revert(net) and convert the network again"
    )
