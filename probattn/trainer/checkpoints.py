"""A trainer's checkpoints: published whole by one rename, with the sums of all their files, and read whole."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn
from transformers import Trainer
from transformers import trainer_utils as utils
from transformers.trainer import TRAINER_STATE_NAME

from probattn.files.durable import full_disk_explained, publish_folder
from probattn.files.json_files import JSON_OBJECT, JSONError, read_json
from probattn.files.manifest import MANIFEST, DamagedFolderError, extend_manifest, verify_folder
from probattn.inference.checkpoint import CorruptCheckpointError
from probattn.models.hosts.description import (
    CARD,
    FILE,
    WEIGHTS,
    evaluations_in,
    fill_sites,
    is_site,
    note_evaluations,
    read_description,
)
from probattn.models.hosts.hosting import host_of
from probattn.models.hosts.pretrained import open_pretrained

LOGGER = logging.getLogger(__name__)
DRAFT = "_probattn_draft"
"""Folder in which a checkpoint is written; uploads by ``Trainer`` leave names with this first character out."""
NAME = re.compile(rf"{utils.PREFIX_CHECKPOINT_DIR}-(\d+)")


def last_checkpoint(folder: Path | str) -> Path | None:
    """The last whole checkpoint of a run; a later one that an interruption left incomplete is named in the log."""
    steps = {entry: NAME.fullmatch(entry.name) for entry in Path(folder).glob("*") if entry.is_dir()}
    numbered = [(int(match[1]), entry) for entry, match in steps.items() if match]
    for _, checkpoint in sorted(numbered, reverse=True):
        problem = _problem(checkpoint, sizes_only=True)
        if problem is None:
            return checkpoint
        LOGGER.warning("checkpoint %s is incomplete and left out: %s", checkpoint, problem)
    return None


def verify_checkpoint(folder: Path) -> None:
    """Raises :class:`CorruptCheckpointError` for a checkpoint that is incomplete or does not fit its sums."""
    problem = _problem(folder, sizes_only=False)
    if problem is not None:
        raise CorruptCheckpointError(
            f"checkpoint {folder}: {problem}; resume from another (resume_from_checkpoint=True leaves incomplete "
            f"ones out; if a change is meant, delete {MANIFEST})"
        )


def _problem(folder: Path, *, sizes_only: bool) -> str | None:
    """What a checkpoint lacks, in words; the state of the trainer is what ``Trainer`` writes last."""
    try:
        read_json(folder / TRAINER_STATE_NAME, JSON_OBJECT)
        verify_folder(folder, sizes_only=sizes_only)
    except FileNotFoundError:
        return f"{TRAINER_STATE_NAME} is missing"
    except (DamagedFolderError, JSONError, OSError) as error:
        return str(error).removeprefix(f"{folder}/")
    return None


class Checkpoints(Trainer):
    """``transformers.Trainer`` whose checkpoints appear whole, with sums that a resumed run compares."""

    # The weights of sites have a file of their own. Weights that were read under other names than the network's are
    # saved under these again by ``save_pretrained``, and only ``from_pretrained`` knows both.

    _unread: Any = None

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> utils.TrainOutput:
        """That of ``Trainer``; with ``resume_from_checkpoint=True`` incomplete checkpoints are left out."""
        run = Path(str(self.args.output_dir))
        if self.args.should_save:
            shutil.rmtree(run / DRAFT, ignore_errors=True)
        if resume_from_checkpoint is True:
            last = last_checkpoint(run)
            if last is None:
                raise ValueError(
                    f"{run}: expected a whole checkpoint, found none; train without resume_from_checkpoint"
                )
            resume_from_checkpoint = str(last)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """Those of ``Trainer``, and none after the last step: resumed from there it would make one step too many."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return [], None
        return super().get_batch_samples(*args, **kwargs)

    def _save_checkpoint(self, model: nn.Module, trial: Any, **options: Any) -> None:
        run = Path(self._get_output_dir(trial))
        target, draft = run / f"{utils.PREFIX_CHECKPOINT_DIR}-{self.state.global_step}", run / DRAFT
        pushed: list[str] = []
        with self._empty(draft), full_disk_explained(run, f"writing the checkpoint {target}"):
            with self._redirected(draft, pushed.append):
                super()._save_checkpoint(model, trial, **options)
            self.accelerator.wait_for_everyone()  # the generators of every process have a file
            if best := self.state.best_global_step:
                self._name_best(run / f"{utils.PREFIX_CHECKPOINT_DIR}-{best}", target, draft / target.name)
            if self.args.should_save:
                extend_manifest(draft / target.name, without=(CARD,))
                publish_folder(draft / target.name, target)
        self.accelerator.wait_for_everyone()
        for _ in pushed:
            self._push_from_checkpoint(str(target))
        if self.args.should_save:
            self._rotate(run)

    @contextmanager
    def _redirected(self, draft: Path, push: Callable[[str], None]) -> Iterator[None]:
        """Has ``Trainer`` write a checkpoint below another folder, and upload it later."""
        methods = {"_get_output_dir": lambda *_, **__: str(draft), "_push_from_checkpoint": push}
        vars(self).update(methods)
        try:
            yield
        finally:
            for name in methods:
                del vars(self)[name]

    @contextmanager
    def _empty(self, draft: Path) -> Iterator[None]:
        """A folder that is empty at first, also where a killed process left one, and gone afterwards."""
        if self.args.should_save:
            shutil.rmtree(draft, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            yield
        finally:
            if self.args.should_save:
                shutil.rmtree(draft, ignore_errors=True)

    def _name_best(self, best: Path, target: Path, written: Path) -> None:
        """Names the best checkpoint as it will be found, not as it was while it was written."""
        before = self.state.best_model_checkpoint
        if best == target or best.exists():
            self.state.best_model_checkpoint = str(best)
        if self.args.should_save and self.state.best_model_checkpoint != before:
            self.state.save_to_json(str(written / TRAINER_STATE_NAME))

    def _rotate(self, run: Path) -> None:
        """Deletes checkpoints beyond ``save_total_limit`` as ``Trainer`` does, which looked into the draft alone."""
        earlier: Any = getattr(self, "_rotate_checkpoints", None)
        if earlier is not None:  # releases in which it is a method
            earlier(use_mtime=True, output_dir=str(run))
            return
        best, limit = self.state.best_model_checkpoint, self.args.save_total_limit
        utils.rotate_checkpoints(str(run), limit, best_model_checkpoint=best, use_mtime=True)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        verify_checkpoint(Path(resume_from_checkpoint))
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
            missing = [name for name in result.missing_keys if not is_site(name)]
            unexpected = result.unexpected_keys
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
