"""How many copies of an instance a problem has, and what happens to a wish for more."""

from __future__ import annotations

from cnf_cli.errors import RecipeError
from cnf_cli.recipe.sections import ProblemSection


def copies(
    problem: ProblemSection | type[ProblemSection], asked: int, what: str = "--aug", at: str | None = None
) -> int:
    """`asked`, if the problem has so many copies of an instance; `what` is what asked for them."""
    least, most = problem.copies[0], problem.copies[-1]
    if asked not in problem.copies:
        kind = problem.kind if isinstance(problem, ProblemSection) else str(problem.model_fields["kind"].default)
        raise RecipeError(
            f"{what}: {kind} has {least} to {most} copies of an instance, not {asked}",
            at=at,
            hint=f"its default is {problem.usual_copies}",
        )
    return asked
