"""Base of the attention methods: options with stored form, recipe and summary; their registry."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from importlib import import_module
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, cast, get_args

from probattn.options import Options, SomeOf, descriptions


def base_of(net: Any) -> Any:
    """The network within adapters."""
    return net.get_base_model() if hasattr(net, "get_base_model") else net


@functools.singledispatch
def as_program(model: Any) -> Any:
    """The Pyro program of a network, chosen by its head; any other model is its own. PEFT's wrapper is its network."""
    network = base_of(model)
    if any(kind.__module__.startswith("transformers.") for kind in type(network).__mro__):
        import_module("probattn.models")  # which registers what is known of them
    program = as_program.dispatch(type(network))
    return model if program is as_program.dispatch(object) else program(model)


class Observed(NamedTuple):
    """A model whose attention calls are all sites, and which of these have tokens of encoder and decoder as keys.

    Both are empty where it is not known.
    """

    model: Any
    encoder: tuple[str, ...] = ()
    decoder: tuple[str, ...] = ()


@functools.singledispatch
def observed(model: Any, _draws: bool) -> Observed:
    """A model of which a handler reaches every attention call, or a copy; of draws, with its own posterior."""
    return Observed(model)


Layers = Literal["all", "first", "last"] | SomeOf[int]
"""Layers of each stack: a word, or numbers from 0, negative ones from the end."""
Parts = Literal["all", "first", "last", "encoder", "decoder", "cross"] | SomeOf[int]
"""The same, or the calls of a part of an encoder-decoder."""
Calls = Literal["all", "self", "cross"]  # kinds of attention calls


Measured = str
"""A topic of reports: "posterior", the posterior at each site; "alignment", the distance of queries from keys; "heads",
how heads differ; or one that :func:`probattn.tasks.topics.register_topic` adds."""


@dataclass(frozen=True)
class RecipeKeys:
    """How the section of a method in recipes differs from the method's options.

    In all sections the option ``attention`` is called ``kind``, ``layers`` and ``kind`` default to "all", and the
    option ``seed`` is the seed of the training.

    Args:
        about: a sentence that describes the section.
        renamed: names in recipes of options that have another name there, by option.
        extra: a class of further keys that only recipes have.
        order: keys that come first, in this order; the others follow in the order of the options.
    """

    about: str = "Options of this method; null for none."
    renamed: Mapping[str, str] = field(default_factory=dict)
    extra: type[Options] | None = None
    order: tuple[str, ...] = ()


class Method(Options):
    """Base class of the options of attention methods.

    A method is a frozen dataclass that inherits from this class and is registered in :data:`METHODS`. A function
    registered with :func:`probattn.models.hosts.place` adds it to a network.

    Attributes:
        kind: name of the method in the description of a saved network.
        section: name of the method's section in recipes.
        key: name in records of networks with this method, unless a method before it in :data:`METHODS` is present.
        recipe: how the section in recipes differs from the options.
        summarised: options that :meth:`summary` names.
        measured: topics that reports on networks with this method add: "posterior", "alignment", "heads" or another.

    Example:
        >>> from probattn import AlignmentAttention
        >>> AlignmentAttention("ot", layers="last").words()
        'OT alignment, weight 0.01, layers last'
    """

    kind: ClassVar[str]
    section: ClassVar[str]
    key: ClassVar[str]
    recipe: ClassVar[RecipeKeys] = RecipeKeys()
    summarised: ClassVar[tuple[str, ...]] = ()
    measured: ClassVar[tuple[Measured, ...]] = ()

    @property
    def layers(self) -> str | Sequence[int] | None:
        """Layers to which the method applies; None leaves the choice to ``convert``."""
        return None

    @property
    def attention(self) -> Calls | None:
        """Attention calls to which the method applies: "all", "self" or "cross"; None leaves it to ``convert``."""
        return None

    def summary(self) -> str:
        """Name of the method, with the options in :attr:`summarised`."""
        return type(self).__name__

    def words(self) -> str:
        """The :meth:`summary`, then the other options that differ from their defaults."""
        changed = [f"{name} {_word(value)}" for name, value in self._changed().items()]
        if not changed and not self.summarised:
            changed = ["default options"]
        return ", ".join([self.summary(), *changed])

    def _changed(self) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        options: Any = self
        for option in fields(options):
            usual = option.default if option.default_factory is MISSING else option.default_factory()
            value = getattr(self, option.name)
            everywhere = option.name in {"layers", "attention"} and value in {None, "all"}
            if not everywhere and option.name not in {"seed", *self.summarised} and value != usual:
                changed[option.name] = value
        return changed


def _word(value: object) -> str:
    return " and ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def check_projections(owner: str, projections: object, choices: Any) -> tuple[str, ...]:
    """The projections of a method, one name or several, as a tuple; ``ValueError`` for none, unknown or repeated."""
    names: tuple[Any, ...] = (projections,)
    if isinstance(projections, Sequence) and not isinstance(projections, str):
        names = tuple(projections)
    allowed = get_args(choices)
    if not names or any(name not in allowed for name in names) or len(set(names)) < len(names):
        listed = ", ".join(map(repr, allowed))
        raise ValueError(f"{owner}.projections: expected some of {listed}, each once, got {names!r}")
    return names


Kind = TypeVar("Kind", bound=type[Method])


class MethodRegistry:
    """The classes of attention methods in order; if a network has several, the one registered first names it.

    Example:
        >>> from probattn.sites import METHODS
        >>> [method.kind for method in METHODS]
        ['bayesian', 'alignment', 'repulsive', 'disagreement', 'particles']
        >>> METHODS["alignment"].section
        'alignment'
    """

    def __init__(self, methods: Iterable[type[Method]] = ()) -> None:
        self._methods: list[type[Method]] = []
        for method in methods:
            self.register(method)

    def __iter__(self) -> Iterator[type[Method]]:
        return iter(tuple(self._methods))

    def __getitem__(self, kind: str) -> type[Method]:
        """The method of a kind; ``KeyError`` where there is none."""
        match = next((method for method in self._methods if method.kind == kind), None)
        if match is None:
            kinds = ", ".join(repr(method.kind) for method in self._methods)
            raise KeyError(
                f"no attention method of kind {kind!r} is registered, only {kinds}; import the module that registers it"
            )
        return match

    def key(self, methods: Iterable[Method]) -> str | None:
        """Name in records of a network with these methods: the ``key`` of the one registered first; None for none."""
        options = tuple(methods)
        return next(
            (kind.key for kind in self._methods for option in options if isinstance(option, kind)), None
        )

    def register(self, method: Kind) -> Kind:
        """Adds the class of a method after the others and returns it; usable as a decorator.

        Raises:
            TypeError: not a dataclass with ``kind``, ``section`` and ``key``, or an option is not described under Args.
            ValueError: another method has the same ``kind`` or ``section``.
        """
        missing = [name for name in ("kind", "section", "key") if not hasattr(method, name)]
        if missing or "__dataclass_fields__" not in vars(method):
            raise TypeError(
                f"{method.__name__}: expected a frozen dataclass of options with kind, section and key, got none of "
                f"{', '.join(missing) or 'dataclass fields'}"
            )
        for name in (option.name for option in fields(cast(Any, method))):
            if name not in descriptions(method):
                raise TypeError(
                    f"{method.__name__}: expected a line for {name!r} under Args of its docstring"
                )
        for registered in self._methods:
            for name in ("kind", "section"):
                if getattr(registered, name) == getattr(method, name):
                    problem = f"{method.__name__}.{name}: expected one that no method has"
                    raise ValueError(f"{problem}, got {getattr(method, name)!r} of {registered.__name__}")
        self._methods.append(method)
        return method

    def remove(self, method: type[Method]) -> None:
        """Removes a method; ``ValueError`` if it is not registered."""
        self._methods.remove(method)
