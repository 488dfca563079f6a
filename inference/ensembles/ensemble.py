"""Copies of one model as particles: their parameters stacked, everything else held once."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from probattn.checks import check_integer, check_number
from probattn.files.durable import replace_atomically
from probattn.host import at_least_float32
from probattn.inference.checkpoint import plain_values
from probattn.inference.ensembles.stacks import (
    OWNER,
    Choice,
    Execution,
    ExecutionName,
    check_model,
    copied,
    perturbed,
    repeated,
    rows_of,
    selected_buffers,
    selected_parameters,
)
from probattn.sites.calling import output_of

Initial = Literal["perturb"] | Callable[[int], nn.Module]
FORMAT = 1


class ParticleEnsemble(nn.Module):
    r"""P copies of a model as particles of one posterior over its parameters.

    The parameters of the particles are stacked, ``[P, ...]``, and replace the model's parameters of the same names; the
    particles share all other parameters and buffers. :class:`probattn.inference.SVGDDriver` trains the ensemble, and
    :func:`probattn.inference.posterior_predict` predicts with it. The stacks and the optimiser's state need P times
    the memory of one model, and each update needs three more arrays of the stacks' size.

    Running statistics of batch norms and of alignment attention are stacked too. If a forward pass in training mode
    changes another buffer, an error says so; name the buffer in ``buffers``.

    To make only the last layers of a network particles, which saves time, use :class:`probattn.ParticleLayers`.

    Args:
        model: a Pyro model as in :class:`probattn.inference.SVIDriver`; it is copied and not changed.
        num_particles: P, number of particles, >= 1.
        initial: "perturb" adds normal noise to the model's parameters, with standard deviation ``spread`` times the
            root mean square of a parameter (times 1 for a parameter of zeros); or a function from the number of a
            particle to a model with its initial values (``models.__getitem__`` for a list of models).
        parameters: trainable parameters that differ between particles: names with wildcards ("net.classifier.*"), or a
            function of name and parameter that returns a bool. Default: all trainable parameters.
        buffers: further buffers that differ between particles, in the same form.
        spread: relative standard deviation of the noise, >= 0. With 0 all particles start equal, and only dropout or
            Langevin noise separates them.
        seed: seed of the noise, >= 0.
        execution: "vectorized" runs all particles in one forward pass (``torch.func.vmap``), "loop" one after another.
            "auto" tries both on the first batch and uses "vectorized" if the results agree; see :attr:`executions`.
            Latent attention always needs "loop". Dropout masks differ between particles and between both executions.
        chunk_size: number of particles in one forward pass, >= 1; bounds the memory of activations. None for all.

    Raises:
        TypeError: the model, or a result of ``initial``, is not an ``nn.Module``.
        ValueError: an option out of its range, no trainable parameter is selected, the model has repulsive heads, or a
            model of ``initial`` has other parameters.

    Example:
        >>> ensemble = ParticleEnsemble(nn.Linear(3, 2), 5)
        >>> {name: list(value.shape) for name, value in ensemble.named_particles().items()}
        {'weight': [5, 2, 3], 'bias': [5, 2]}
        >>> ensemble.outputs(torch.ones(4, 3)).shape
        torch.Size([5, 4, 2])
        >>> torch.equal(ensemble.particle(1).weight, ensemble.model.weight[1])
        True
    """

    def __init__(
        self,
        model: nn.Module,
        num_particles: int,
        *,
        initial: Initial = "perturb",
        parameters: Choice | None = None,
        buffers: Choice | None = None,
        spread: float = 0.1,
        seed: int = 0,
        execution: ExecutionName = "auto",
        chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        check_integer(OWNER, "num_particles", num_particles, minimum=1)
        check_integer(OWNER, "seed", seed, minimum=0)
        check_number(OWNER, "spread", spread, positive=False)
        check_model(model)
        selected = selected_parameters(model, parameters)
        buffer_stacks = selected_buffers(model, buffers)
        self.num_particles = num_particles
        self.parameter_names = tuple(selected)
        self.buffer_names = tuple(buffer_stacks)
        self.execution = Execution(execution, chunk_size)
        if initial == "perturb":
            generator = torch.Generator().manual_seed(seed)
            rows = {name: perturbed(p, num_particles, spread, generator) for name, p in selected.items()}
            rows |= {name: repeated(b, num_particles) for name, b in buffer_stacks.items()}
        else:
            rows = rows_of(initial, num_particles, selected | buffer_stacks)
        stacks = rows | {name: nn.Parameter(rows[name]) for name in selected}
        self.model = copied(model, selected | buffer_stacks, stacks)

    @property
    def executions(self) -> dict[str, str]:
        """Execution, "vectorized" or "loop" (with the reason), of training ("objective") and prediction ("outputs")."""
        return dict(self.execution.taken)

    def stacks(self) -> dict[str, Tensor]:
        """Stacked parameters and buffers ``[P, ...]`` by their names in the model."""
        stacked = dict(self.stacked_parameters())
        return stacked | {name: self.model.get_buffer(name) for name in self.buffer_names}

    def stacked_parameters(self) -> dict[str, nn.Parameter]:
        """Stacked parameters ``[P, ...]`` by their names in the model."""
        return {name: self.model.get_parameter(name) for name in self.parameter_names}

    def named_particles(self) -> dict[str, Tensor]:
        """Stacked parameters ``[P, ...]`` by name, detached, as ``pyro.infer.SVGD`` returns its particles."""
        return {name: parameter.detach() for name, parameter in self.stacked_parameters().items()}

    def particle(self, index: int) -> nn.Module:
        """A copy of the model with the parameters of one particle; ``IndexError`` if there is no such particle."""
        if not -self.num_particles <= index < self.num_particles:
            raise IndexError(f"{OWNER}: expected a particle below {self.num_particles}, got {index}")
        stacks = self.stacks()
        rows = {name: stack[index].detach().clone() for name, stack in stacks.items()}
        rows |= {name: nn.Parameter(rows[name]) for name in self.parameter_names}
        return copied(self.model, stacks, rows)

    def particles(self) -> Iterator[nn.Module]:
        """Copies of the model with the parameters of each particle in turn."""
        return (self.particle(index) for index in range(self.num_particles))

    def call(self, rows: Mapping[str, Tensor], *args: Any) -> Any:
        """Runs the model with the parameters and buffers ``rows`` of one particle instead of the stacks."""
        return functional_call(self.model, dict(rows), args)

    def outputs(self, batch: Any) -> Tensor:
        """Outputs ``[P, ...]`` of all particles for a batch; the model must return a tensor."""
        execution = self.execution
        return execution.run(
            "outputs", self, self.stacks(), lambda rows: output_of(OWNER, self.call(rows, batch))
        )

    def forward(self, batch: Any) -> Tensor:
        r"""Log of the particles' mean probabilities ``[B, C]``, at least float32; the model f must return logits.

        .. math:: \log \frac1P \sum_i \mathrm{softmax}(f(x, \theta_i))
        """
        return log_mean_probabilities(self.outputs(batch))

    def save(self, path: Path | str) -> None:
        """Writes the ensemble's tensors to one file; after an ``OSError`` an older file of this name is unchanged."""
        names = {"parameters": list(self.parameter_names), "buffers": list(self.buffer_names)}
        content = {"format": FORMAT, "num_particles": self.num_particles, **names}
        content["state"] = dict(self.model.state_dict())
        plain = plain_values(content, str(path))
        replace_atomically(Path(path), lambda file: torch.save(plain, file))

    @classmethod
    def load(
        cls,
        path: Path | str,
        model: nn.Module,
        *,
        execution: ExecutionName = "auto",
        chunk_size: int | None = None,
    ) -> ParticleEnsemble:
        """Reads an ensemble that :meth:`save` wrote, without running code from the file.

        Args:
            path: the file.
            model: a model of the same structure, with any weights.
            execution: as in the constructor.
            chunk_size: as in the constructor.

        Raises:
            OSError: there is no such file.
            ValueError: :meth:`save` did not write the file, or its model has another structure.
        """
        stored = _read(Path(path))
        trainable = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
        parameters, buffers = set(stored["parameters"]), set(stored["buffers"])
        missing = sorted((parameters | buffers) - trainable.keys() - dict(model.named_buffers()).keys())
        if missing:
            listed, kind = ", ".join(missing), type(model).__name__
            raise ValueError(f"{path}: expected a model with {listed}, got a {kind} without")
        options: dict[str, Any] = {"spread": 0.0, "execution": execution, "chunk_size": chunk_size}
        options["parameters"] = lambda name, _: name in parameters
        options["buffers"] = lambda name, _: name in buffers
        ensemble = cls(model, stored["num_particles"], **options)
        try:
            ensemble.model.load_state_dict(stored["state"])
        except RuntimeError as error:
            raise ValueError(f"{path}: it does not fit a {type(model).__name__}: {error}") from error
        return ensemble


def _read(path: Path) -> dict[str, Any]:
    """Reads the file of :meth:`ParticleEnsemble.save` on the CPU."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, ValueError, EOFError, UnpicklingError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path}: expected an ensemble that was saved, got an unreadable file ({error})"
        ) from error
    file_format = content.get("format") if isinstance(content, dict) else None
    if file_format != FORMAT:
        raise ValueError(
            f"{path}: expected a saved ensemble of format {FORMAT}, got {file_format!r}; it is no ensemble, or "
            "from another version of probattn"
        )
    return content


def log_mean_probabilities(logits: Tensor) -> Tensor:
    """Logarithm of the mean of probabilities over the first dimension of logits ``[P, ..., C]``, at least float32."""
    log_p = torch.log_softmax(at_least_float32(logits), dim=-1)
    return torch.logsumexp(log_p, dim=0) - math.log(len(logits))
