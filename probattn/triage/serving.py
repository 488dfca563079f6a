"""A policy beside a saved network, and a pipeline of transformers that abstains by it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TextClassificationPipeline
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER
from transformers.utils.generic import ModelOutput

from probattn.checks import is_blank
from probattn.files.durable import digest
from probattn.files.manifest import DamagedFolderError, manifest_content, verify_folder
from probattn.inference import posterior_moments, posterior_predict
from probattn.inference.configuration import attention_sites
from probattn.inference.laplace import last_features, last_layer
from probattn.metrics.functional import entropy
from probattn.models.hosts.description import CARD, FILE
from probattn.models.hosts.store import load
from probattn.sites.particle_layers import particle_count
from probattn.tasks import run_task
from probattn.tasks.errors import RunError
from probattn.tasks.held_out import network_digest
from probattn.triage.policy import FEATURES, POLICY, Decision, Policy, read_policy, sibling, write_policy
from probattn.triage.trainers import WEIGHTS, weights_digest

FEATURES_FILE = sibling(Path(POLICY), FEATURES).name


def save_policy(policy: Policy, folder: Path | str, *, max_length: int | None = None) -> Path:
    """Writes a policy into the folder of a saved network, with its fingerprint, for :func:`selective_pipeline`.

    If it has ``novelty``, the features of the training data are written too.

    Args:
        policy: policy of ``ProbabilisticTrainer.triage`` or :func:`probattn.triage.calibrate`.
        folder: folder that ``save_pretrained`` or ``trainer.save_model`` wrote, with the tokenizer. If it has no
            ``manifest.json`` (a network that is not converted), do not add files later: they change the fingerprint.
        max_length: number of tokens to which the held-out texts were truncated; the pipeline truncates to it.

    Returns:
        The path of the policy, ``policy.json``.

    Raises:
        RunError: the folder has no saved network, or one with other weights or without the latent attention with which
            the policy was calibrated.
    """
    folder, adapters = Path(folder), (Path(folder) / "adapter_config.json").exists()
    if not adapters and not (folder / "config.json").exists():
        raise RunError(f"{folder}: expected the folder of a saved network, got none with config.json")
    fingerprint = _fingerprint(folder)
    in_memory = (policy.network or "").startswith(WEIGHTS)
    if in_memory and policy.num_samples and not (folder / FILE).exists():
        raise RunError(
            f"{folder}: expected a network with latent attention, since the policy is of {policy.num_samples} samples, "
            f"got none with {FILE}; convert the whole network, not a part of it, before it is calibrated and saved"
        )
    # A folder of adapters has not all the weights that the network has in memory.
    expected = (
        saved_weights(folder) if in_memory and not adapters else policy.network if in_memory else fingerprint
    )
    if policy.network not in (None, expected):
        raise RunError(
            f"{folder}: expected the weights with which the policy was calibrated, got others; save the network that "
            "was calibrated, or calibrate this one"
        )
    changed = {"network": fingerprint, "max_length": max_length or policy.max_length}
    return write_policy(policy.model_copy(update=changed), folder / POLICY)


def saved_weights(folder: Path) -> str:
    """What :func:`probattn.triage.trainers.weights_digest` gives for the weights in a folder."""
    files = (file for file in folder.glob("*.safetensors") if file.name != FEATURES_FILE)
    return weights_digest(tensor for file in files for tensor in load_file(file).values())


def _fingerprint(folder: Path) -> str:
    return digest([manifest_content(folder, without=(CARD, POLICY, FEATURES_FILE))])


class SelectivePipeline(TextClassificationPipeline):
    """A ``text-classification`` pipeline of transformers that also decides which inputs need human review.

    Each output has the keys "label", "score" (its probability), "decision" ("answer" or "person"), "why" (the reasons
    for human review); if the policy has them, also "set" (conformal set of classes) and "novelty" (distance from the
    training data, from 1 on out-of-distribution; beside samples or moments it costs a further forward pass).
    Probabilities are computed as for the calibration.

    Args:
        policy: the policy.
        **options: options of transformers' pipeline: ``model``, ``tokenizer``, ``device``, ``batch_size``,
            ``max_length``. Texts are truncated, by default to the ``max_length`` of the policy, else to the largest
            number of tokens of the tokenizer and the network.

    Raises:
        RunError: the policy has no classes, lacks the features of the training data for its ``novelty``, or has
            another ``max_length``.
    """

    def __init__(self, *, policy: Policy, **options: Any) -> None:
        if not policy.classes:
            raise RunError("SelectivePipeline: expected a policy of classes, got one of other answers")
        self.policy, rule = policy, policy.novelty
        self._distance = None if rule is None else rule.distance(POLICY)
        length = options.setdefault("max_length", policy.max_length or _longest(options))
        if policy.max_length not in (None, length):
            raise RunError(
                f"SelectivePipeline: expected max_length={policy.max_length}, with which the policy was calibrated, "
                f"got {length}; leave it out, or calibrate with {length}"
            )
        super().__init__(**{"truncation": length is not None, **options})
        latent = bool(attention_sites(self.model)) or particle_count(self.model) is not None
        self._samples = policy.num_samples if latent else 0

    # override: transformers names the options of this method one by one, and passes them on by name.
    def preprocess(self, inputs: Any, **options: Any) -> Any:  # type: ignore[override]
        """Tokenizes the input, and notes whether a text is empty; see transformers' pipelines."""
        texts = list(inputs.values()) if isinstance(inputs, dict) else [inputs]
        blank = any(isinstance(text, str) and is_blank(text) for text in texts)
        encoded = super().preprocess(inputs, **options)
        encoded["blank"] = torch.tensor([[blank]])
        return encoded

    # override: transformers names this argument otherwise in the base class and in the class below it.
    def _forward(self, input_tensors: Any, **_: Any) -> ModelOutput:  # type: ignore[override]
        """Mean probabilities and their mutual information, nats, as the policy's held-out predictions were made."""
        rest, logits = {"blank": input_tensors.pop("blank")}, None
        if self._distance is not None:
            layer = last_layer(self.model, len(self.policy.classes))
            read = last_features(self.model, [dict(input_tensors)], layer)
            rest["distance"], logits = self._distance(read.inputs), read.logits
        if not self._samples:
            logits = self.model(**input_tensors).logits if logits is None else logits
            return ModelOutput(
                logits=logits.double().softmax(dim=-1), information=logits.new_zeros(len(logits)), **rest
            )
        predict: Any = posterior_moments if self.policy.uncertainty == "moments" else posterior_predict
        posterior = predict(self.model, dict(input_tensors), num_samples=self._samples, seed=self.policy.seed)
        return ModelOutput(
            logits=posterior.mean_probabilities.double(),
            information=posterior.mutual_information,
            **rest,
        )

    # override: the options of the base class choose how logits become scores, which the policy has fixed.
    def postprocess(self, model_outputs: Any, **_: Any) -> dict[str, Any]:  # type: ignore[override]
        """Makes the output of an input: class, probability and decision; see transformers' pipelines."""
        names: Any = self.model.config.id2label
        row = model_outputs["logits"][0]
        answer = {
            "label": names[int(row.argmax())],
            "probabilities": {names[number]: value for number, value in enumerate(row.tolist())},
            "entropy": float(entropy(row)),
            "mutual_information": float(model_outputs["information"][0]),
            **({"distance": float(model_outputs["distance"][0])} if "distance" in model_outputs else {}),
        }
        decision = self.policy.decide(answer)
        if bool(model_outputs["blank"]):  # as for a row of a file without a text
            decision = Decision(answered=False, classes=decision.classes, reasons=("no text",))
        output = {"label": answer["label"], "score": float(row.max()), "decision": decision.words}
        output["why"] = list(decision.reasons)
        if decision.classes is not None:
            output["set"] = list(decision.classes)
        return output if decision.novelty is None else {**output, "novelty": decision.novelty}


def _longest(options: Mapping[str, Any]) -> int | None:
    """The largest number of tokens that the pipeline's tokenizer and network take; None if neither says."""
    config: Any = getattr(options.get("model"), "config", None)
    sizes = (
        getattr(options.get("tokenizer"), "model_max_length", None),
        getattr(config, "max_position_embeddings", None),
    )
    return min((size for size in sizes if size is not None and 0 < size < VERY_LARGE_INTEGER), default=None)


def selective_pipeline(
    folder: Path | str, policy: Policy | Path | str | None = None, **options: Any
) -> SelectivePipeline:
    """Loads a pipeline that answers or abstains, from a saved network with its policy or from a run.

    Args:
        folder: folder of a network to which :func:`save_policy` added a policy, with the tokenizer; or the folder of a
            run after ``probattn triage`` (texts are truncated as in its recipe).
        policy: a policy for the same network, or its file; by default the one in the folder.
        **options: options of :class:`SelectivePipeline`, such as ``device`` and ``batch_size``.

    Raises:
        RunError: there is no policy, or it was made for another network.
        StoredNetworkError: there is no network, or it is damaged.

    Example:
        ``selective_pipeline("runs/tickets")(["Where is my card?"])`` gives ``[{"label": "card_arrival", "score": 0.93,
        "decision": "answer", "why": []}]``.
    """
    folder = Path(folder)
    decides = policy if isinstance(policy, Policy) else read_policy(policy or folder)
    if (folder / "recipe.yaml").exists():
        recipe: Any = run_task(folder).recipe
        expected, network = network_digest(folder, recipe), folder / "model"
        options = {"truncation": True, "max_length": recipe.data.max_length, **options}
    else:
        expected, network = _fingerprint(folder), folder
        try:
            verify_folder(folder)
        except DamagedFolderError as error:
            raise RunError(
                f"{folder}: expected the network as it was saved, got {error}; save it again"
            ) from error
    if decides.network != expected:
        raise RunError(
            f"{folder}: expected a policy for this network, got one for another; calibrate it again, and keep it with "
            "`save_policy` or `probattn triage`"
        )
    plain = AutoModelForSequenceClassification.from_pretrained
    net = (load if (network / FILE).exists() else plain)(network)
    loaded = {"model": net, "tokenizer": AutoTokenizer.from_pretrained(network), **options}
    return SelectivePipeline(policy=decides, task="text-classification", **loaded)
