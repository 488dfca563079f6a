"""Draws of predictions: their means, spread, entropies, tables and pictures."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probattn.checks import check_choice, check_number, check_share, optional
from probattn.sites.observation import ObservedNoise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Link = Literal["softmax", "sigmoid", "identity"]
SHOWN_ROWS = 10
REPR_ROWS = 3
COLUMNS = 80


def linked(logits: Tensor, link: Link) -> Tensor:
    """Probabilities of logits ``[..., C]``, in single precision: one of C classes, or each of C labels by itself."""
    return logits.float().sigmoid() if link == "sigmoid" else logits.float().softmax(dim=-1)


def entropy_of(probabilities: Tensor, link: Link) -> Tensor:
    """Entropy of probabilities ``[..., C]`` of classes, nats, or of each of C labels."""
    terms = torch.special.entr(probabilities)
    return terms + torch.special.entr(1 - probabilities) if link == "sigmoid" else terms.sum(dim=-1)


def link_of(owner: str, model: object) -> Link:
    """What makes probabilities of a model's predictions, its attribute ``link``; "softmax" without one."""
    link: Link = getattr(model, "link", "softmax")
    check_choice(owner, "the model's attribute link", link, Link)
    return link


def row_lines(
    leading: Tensor, mean: Tensor, std: Tensor | None, link: Link, positions: Sequence[int]
) -> list[str]:
    """Mean and spread ``[R, C]`` of up to three leading classes ``[R, K]`` of a few rows, in lines of 80 columns."""
    lines, name = [], "number" if link == "identity" else "class"
    for row, classes in enumerate(leading[:, :3].tolist()):
        widths = [None if std is None else float(std[row, one]) for one in classes]
        spread = ["" if w is None else f" ± {w:{'.0e' if 0 < w < 5e-4 else '.3f'}}" for w in widths]
        texts = [
            f"{name} {one} {mean[row, one]:.3f}{width}" for one, width in zip(classes, spread, strict=True)
        ]
        start = f"  row {row}{', position 0' * bool(positions)}: "
        while len(texts) > 1 and len(start + ", ".join(texts)) > COLUMNS:
            texts.pop()
        lines.append(start + ", ".join(texts))
    return lines


@dataclass(frozen=True, eq=False, repr=False)
class Posterior:
    r"""Predictions of a batch under P draws from the posterior.

    Predictions are ``[P, B, C]`` for P draws, B rows and C classes, labels or numbers. Heads that predict for each
    token, span or choice have further dimensions between B and C. If batches of different numbers of tokens were
    joined, missing positions are NaN.

    Attributes:
        logits: predictions of each draw, ``[P, B, ..., C]``: logits, or numbers in units of y, the label in regression.
        attention: attention weights by site, ``[P, B, H, T, S]``; None unless requested as draws.
        attention_mean: mean attention weights over draws by site, ``[B, H, T, S]``; None unless ``streaming``.
        attention_std: standard deviation of the weights over draws (divisor P - 1; 0 for one draw), with ``streaming``.
        link: from logits to probabilities: "softmax" over C classes, "sigmoid" of each label, "identity" in regression.
        noise: distribution of an observed number around its prediction; None for classes or if it is not learned.

    Example:
        >>> draws = Posterior(torch.tensor([[[0.0, 0.0]], [[0.0, 4.0]]]))
        >>> draws
        Posterior(2 draws of 1 row, softmax over 2)
          row 0: class 1 0.741 ± 0.341, class 0 0.259 ± 0.341
        >>> draws.entropy, draws.mutual_information
        (tensor([0.5720]), tensor([0.1804]))
    """

    logits: Tensor
    attention: dict[str, Tensor] | None = None
    attention_mean: dict[str, Tensor] | None = None
    attention_std: dict[str, Tensor] | None = None
    link: Link = "softmax"
    noise: ObservedNoise | None = None

    @property
    def probabilities(self) -> Tensor:
        """Probabilities of every draw, ``[P, B, ..., C]``; ``ValueError`` if the head predicts numbers."""
        if self.link == "identity":
            raise ValueError(
                "Posterior.probabilities: expected a head that predicts classes, got one that predicts numbers; use "
                "mean, std and predictive_std"
            )
        return linked(self.logits, self.link)

    @property
    def mean_probabilities(self) -> Tensor:
        """Posterior predictive probabilities ``[B, ..., C]``: the mean over draws."""
        return self.probabilities.mean(dim=0)

    @property
    def values(self) -> Tensor:
        """Probabilities of every draw, or the predicted numbers in regression, ``[P, B, ..., C]``."""
        if self.link != "identity":
            return self.probabilities
        return self.logits.to(torch.promote_types(self.logits.dtype, torch.float32))

    @property
    def mean(self) -> Tensor:
        """Mean of :attr:`values` over draws, ``[B, ..., C]``."""
        return self.values.mean(dim=0)

    @property
    def std(self) -> Tensor:
        """Standard deviation of :attr:`values` over draws (divisor P - 1; 0 for one draw), ``[B, ..., C]``."""
        values = self.values
        return values.std(dim=0) if len(values) > 1 else torch.zeros_like(values[0])

    @property
    def predictive_std(self) -> Tensor:
        r"""Standard deviation of an observed number, :math:`\sqrt{\text{std}^2 + \text{noise}^2}`, ``[B, C]``."""
        noise = self._require_noise("predictive_std")
        return (self.std.square() + noise.std.to(self.logits.device).square()).sqrt()

    def interval(self, level: float = 0.95, *, stretch: float = 1.0) -> Tensor:
        """Interval that contains an observed number with probability ``level``, with tails of equal probability.

        The predictive distribution is the mixture over draws of the noise around each draw's prediction.

        Args:
            level: probability, in (0, 1).
            stretch: factor, > 0, by which the interval is widened about its middle;
                :func:`probattn.metrics.functional.interval_stretch` computes one from held-out data.

        Returns:
            Lower and upper ends, ``[2, B, C]``, in units of y.

        Raises:
            ValueError: a head that does not predict numbers with learned noise, or an argument out of its range.
        """
        check_share("Posterior.interval", "level", level, zero=False, one=False)
        check_number("Posterior.interval", "stretch", stretch, positive=True)
        noise = self._require_noise("interval")
        centres = self.logits.cpu().double().numpy()
        ends = [_mixture_quantile(centres, noise, tail) for tail in ((1 - level) / 2, (1 + level) / 2)]
        lower, upper = (torch.from_numpy(end).to(self.logits) for end in ends)
        middle, half = (lower + upper) / 2, stretch * (upper - lower) / 2
        return torch.stack([middle - half, middle + half])

    def _require_noise(self, name: str) -> ObservedNoise:
        if self.noise is None:
            raise ValueError(
                f"Posterior.{name}: expected a head that predicts numbers and learns their noise "
                "(probattn.models.Regressor); use mean and std"
            )
        return self.noise

    @property
    def entropy(self) -> Tensor:
        r"""Entropy of the mean probabilities in nats: ``[B, ...]``, or ``[B, ..., C]`` of each label for "sigmoid"."""
        return entropy_of(self.mean_probabilities, self.link)

    @property
    def mutual_information(self) -> Tensor:
        r"""Mutual information of label and attention in nats, shaped as :attr:`entropy` (Depeweg et al. 2018, Eq. 1).

        .. math:: \mathrm I = \mathrm H\Big[\frac 1P \sum_p p(y \mid x, S_p)\Big] -
            \frac 1P \sum_p \mathrm H[p(y \mid x, S_p)]
        """
        return (self.entropy - entropy_of(self.probabilities, self.link).mean(dim=0)).clamp_min(0)

    def __repr__(self) -> str:
        draws, rows, *inner = self.logits.shape
        phrases = [f"{draws} draw{'s' * (draws != 1)} of {rows} row{'s' * (rows != 1)}"]
        size, classes = "x".join(map(str, inner)), f"{self.link} over {inner.pop()}"
        at = f" at {'x'.join(map(str, inner))} positions" if inner else ""
        phrases.append(f"{size} numbers" if self.link == "identity" else classes + at)
        sites = self.attention or self.attention_mean
        if sites:
            phrases.append(f"maps of {len(sites)} sites" + ("" if self.attention else " (mean and spread)"))
        lines = [f"Posterior({', '.join(phrases)})"]
        if self.logits.numel():
            first: Any = (slice(None), slice(REPR_ROWS), *[0] * len(inner))
            some = Posterior(self.logits[first], link=self.link)
            order = -torch.arange(some.logits.shape[-1]) if self.link == "identity" else some.mean
            leading = order.expand_as(some.mean).argsort(dim=-1, descending=True)
            lines += row_lines(leading, some.mean, some.std if draws > 1 else None, self.link, inner)
        return "\n".join(lines + ["  ..."] * (rows > REPR_ROWS))

    def to_pandas(self, class_names: Sequence[str] | None = None) -> Any:
        """Table with a line for each row (and position): mean and standard deviation of each class or number.

        For "softmax" it has also columns of entropy and mutual information.

        Args:
            class_names: names of the C classes or numbers; 0, 1, ... by default.

        Returns:
            A ``pandas.DataFrame``.

        Raises:
            ImportError: pandas is not installed.
            ValueError: the number of names is not C.
        """
        try:
            pd: Any = import_module("pandas")
        except ImportError as error:
            raise ImportError("Posterior.to_pandas: needs pandas; install it: pip install pandas") from error
        names = self._names(class_names)
        mean, std = self.mean, self.std
        columns = {
            f"{kind} {name}": values[..., number].flatten().tolist()
            for kind, values in (("mean", mean), ("std", std))
            for number, name in enumerate(names)
        }
        if self.link == "softmax":
            columns["entropy"] = self.entropy.flatten().tolist()
            columns["mutual_information"] = self.mutual_information.flatten().tolist()
        shape = mean.shape[:-1]
        index: Any = pd.RangeIndex(shape[0], name="row")
        if len(shape) > 1:
            levels = ["row", *(f"position {number}" for number in range(1, len(shape)))]
            index = pd.MultiIndex.from_product([range(size) for size in shape], names=levels)
        return pd.DataFrame(columns, index=index)

    def plot(
        self, row: int = 0, *, site: str | None = None, class_names: Sequence[str] | None = None
    ) -> Figure:
        """Plots mean and standard deviation of one row's prediction, and its attention weights if there are any.

        Args:
            row: number of the row, from 0.
            site: site whose attention weights to plot, averaged over heads; the last one by default.
            class_names: names of the C classes or numbers.

        Returns:
            A figure of matplotlib; ``figure.savefig("row.png")`` writes it.

        Raises:
            IndexError: there is no row of this number.
            ValueError: there is no such site, or the number of names is not C.
            MissingPackageError: matplotlib (extra ``report``) is not installed.
        """
        optional("Posterior.plot", "matplotlib", "report")
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        if not -self.logits.shape[1] <= row < self.logits.shape[1]:
            raise IndexError(f"Posterior.plot: expected a row in 0..{self.logits.shape[1] - 1}, got {row}")
        maps = self._maps(row, site)
        figure = Figure(figsize=(4 + 3.2 * len(maps), 3.2), layout="constrained")
        axes = figure.subplots(1, 1 + len(maps), squeeze=False)[0]
        names, mean, std = self._names(class_names), self.mean[row], self.std[row]
        if mean.dim() == 1:
            axes[0].barh(names, mean.tolist(), xerr=std.tolist(), capsize=3)
            axes[0].set_xlabel("number" if self.link == "identity" else "probability, mean and std of draws")
            axes[0].invert_yaxis()
        else:
            picture = axes[0].imshow(mean.reshape(-1, len(names)).T.cpu().numpy(), aspect="auto", vmin=0)
            axes[0].set(xlabel="position", yticks=range(len(names)), yticklabels=names, title="mean")
            figure.colorbar(picture, ax=axes[0])
        for axis, (title, values) in zip(axes[1:], maps, strict=True):
            picture = axis.imshow(values.cpu().numpy(), vmin=0, aspect="auto")
            axis.set(xlabel="key", ylabel="query", title=title)
            axis.yaxis.set_major_locator(MaxNLocator(integer=True))
            figure.colorbar(picture, ax=axis)
        for axis in axes[mean.dim() == 1 :]:
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        return figure

    def _maps(self, row: int, site: str | None) -> list[tuple[str, Tensor]]:
        """Mean and standard deviation of a site's map, averaged over heads, with their titles."""
        sites = self.attention or self.attention_mean
        if site is not None and site not in (sites or {}):
            names = ", ".join(sites or {}) or "none: predict with attention='all'"
            raise ValueError(
                f"Posterior.plot: expected a site of this posterior, got {site!r}; it has {names}"
            )
        if not sites:
            return []
        name = site or list(sites)[-1]
        if self.attention is not None:
            draws = self.attention[name][:, row]
            mean = draws.mean(dim=0)
            std = draws.std(dim=0) if len(draws) > 1 else torch.zeros_like(mean)
        else:
            mean, std = (item[name][row] for item in (self.attention_mean, self.attention_std) if item)
        return [(f"{name}\nmean", mean.mean(dim=0)), ("standard deviation", std.mean(dim=0))]

    def _names(self, names: Sequence[str] | None) -> list[str]:
        classes = self.logits.shape[-1]
        if names is None:
            return [str(number) for number in range(classes)]
        if len(names) != classes:
            raise ValueError(f"Posterior: expected {classes} class_names, got {len(names)}")
        return list(names)

    def _repr_html_(self) -> str:
        """A table of the first rows, for notebooks."""
        mean, std = self.mean, self.std
        mean, std = (item.reshape(-1, item.shape[-1]) for item in (mean, std))
        head = "".join(f"<th>{name}</th>" for name in self._names(None))
        lines = []
        for number, (row, spread) in enumerate(zip(mean[:SHOWN_ROWS], std[:SHOWN_ROWS], strict=True)):
            pairs = zip(row.tolist(), spread.tolist(), strict=True)
            cells = "".join(f"<td>{value:.3f} ± {width:.3f}</td>" for value, width in pairs)
            lines.append(f"<tr><th>{number}</th>{cells}</tr>")
        more = f"<p>and {len(mean) - SHOWN_ROWS} more</p>" if len(mean) > SHOWN_ROWS else ""
        title = html.escape(repr(self).partition("\n")[0])
        return f"<p>{title}</p><table><tr><th></th>{head}</tr>{''.join(lines)}</table>{more}"


def _mixture_quantile(centres: NDArray[Any], noise: ObservedNoise, probability: float) -> NDArray[Any]:
    """Where the mean over draws of the distribution functions has a value, by bisection to rounding."""
    width = noise.scale.cpu().double().numpy()
    low, high = centres.min(axis=0) - width, centres.max(axis=0) + width
    while True:  # until both ends enclose it
        below, above = (noise.cdf(end - centres).mean(axis=0) for end in (low, high))
        if (below <= probability).all() and (above >= probability).all():
            break
        low, high, width = low - width, high + width, 2 * width
    for _ in range(80):
        middle = (low + high) / 2
        smaller = noise.cdf(middle - centres).mean(axis=0) < probability
        low, high = np.where(smaller, middle, low), np.where(smaller, high, middle)
    return (low + high) / 2
