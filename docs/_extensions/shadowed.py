"""griffe extension: a package's functions that have the name of their module.

``from probattn.divergences.mmd import mmd`` in a package hides the module behind the function. griffe keeps the module,
and the function would be in no page.
"""

from typing import Any

import griffe


class ShadowedNames(griffe.Extension):
    """Puts exported objects in the place of the modules whose names they bear."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Looks through a package that was loaded."""
        loader.resolve_aliases(implicit=False, external=False)  # while every path still leads to its module
        for module in [*_deepest_first(pkg), pkg]:
            exports = {str(name) for name in module.exports or ()}
            for name in sorted(exports & module.imports.keys()):
                source, _, own = module.imports[name].rpartition(".")
                inside = source == pkg.path or source.startswith(f"{pkg.path}.")
                if inside and own == name and _final(module.members[name]).is_module:
                    target = loader.modules_collection[source].members[own]
                    module.members[name] = griffe.Alias(name, _final(target), parent=module)


def _deepest_first(module: griffe.Module) -> list[griffe.Module]:
    """The modules below, so that what a package takes from one of its own is right already."""
    own = [member for member in module.members.values() if isinstance(member, griffe.Module)]
    return [each for member in own for each in (*_deepest_first(member), member)]


def _final(target: griffe.Object | griffe.Alias) -> griffe.Object:
    return target.final_target if isinstance(target, griffe.Alias) else target
