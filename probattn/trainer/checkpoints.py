"""Reading a trainer's checkpoints whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from transformers import Trainer

from probattn.models.hosts.card import evaluations_in, note_evaluations
from probattn.models.hosts.description import FILE, read_description
from probattn.models.hosts.pretrained import open_pretrained
from probattn.models.hosts.record import host_of
from probattn.models.hosts.weights import WEIGHTS, fill_sites, is_site


class CheckpointReader(Trainer):
    """``transformers.Trainer`` whose checkpoints may have weights apart, or under the names of older releases.

    The weights of sites have a file of their own. Those of a network that was read under other names than the
    network's own are saved under these again by ``save_pretrained``, and only ``from_pretrained`` knows both:
    ``Trainer`` itself leaves such weights as they are, with a warning.
    """

    _unread: Any = None

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._complete(Path(resume_from_checkpoint))

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self._complete(Path(str(self.state.best_model_checkpoint)))

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Leaves what is missing to :meth:`_complete`, which knows the folder."""
        self._unread = load_result

    def _complete(self, folder: Path) -> None:
        """Reads what the weights of the network's own file left out, and the evaluations that the card shows."""
        result, self._unread = self._unread, None
        host: Any = host_of(self.model)
        if (folder / WEIGHTS).exists():
            fill_sites(host, folder)
        if result is not None:
            missing, unexpected = (
                [name for name in result.missing_keys if not is_site(name)],
                result.unexpected_keys,
            )
            if missing and unexpected:
                missing = _fill_renamed(host, missing, folder)
                unexpected = unexpected if missing else []
            super()._issue_warnings_after_load(type(result)(missing, unexpected))
            sites = [name for name in result.missing_keys if is_site(name)]
            if sites and not (folder / WEIGHTS).exists():
                raise ValueError(
                    f"{folder}: a checkpoint without weights of attention sites, {sites[0]} first of {len(sites)}; "
                    "convert the network as it was when the checkpoint was written"
                )
        stored = read_description(folder).card if (folder / FILE).exists() else {}
        note_evaluations(host, evaluations_in(stored))


def _fill_renamed(host: Any, names: list[str], folder: Path) -> list[str]:
    """Reads weights that the folder has under other names; returns the names of those that it has not."""
    read, report = open_pretrained(type(host), folder, output_loading_info=True)
    absent = {*names} & {*report["missing_keys"]}
    weights = read.state_dict()
    host.load_state_dict({name: weights[name] for name in names if name not in absent}, strict=False)
    return sorted(absent)
