"""What is said of a recipe that cannot be followed."""

from __future__ import annotations

from collections.abc import Sequence


class RecipeError(ValueError):
    """A recipe that cannot be followed; the message is one line that names every problem and its place.

    Args:
        where: the recipe, as messages name it.
        problems: one sentence each.

    Example:
        >>> print(RecipeError("my.yaml", ["unknown key 'a'", "missing key 'b'"]))
        my.yaml: 2 problems: (1) unknown key 'a' (2) missing key 'b'
    """

    def __init__(self, where: str, problems: Sequence[str]) -> None:
        self.where = where
        self.problems = tuple(" ".join(problem.split()) for problem in problems)
        listed = self.problems[0]
        if len(self.problems) > 1:
            numbered = (f"({number}) {problem}" for number, problem in enumerate(self.problems, start=1))
            listed = f"{len(self.problems)} problems: {' '.join(numbered)}"
        super().__init__(f"{where}: {listed}")
