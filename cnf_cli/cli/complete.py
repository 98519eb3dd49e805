"""What the shell suggests while you type; never fails, never slow."""

from __future__ import annotations

import os
from pathlib import Path


def recipes(incomplete: str) -> list[str]:
    """Recipe files below the current folder."""
    folder = Path(incomplete).parent if "/" in incomplete else Path()
    found = [*folder.glob("*.toml"), *folder.glob("recipes/**/*.toml")]
    return sorted(str(p) for p in found if str(p).startswith(incomplete) and p.name != "pyproject.toml")


def targets(incomplete: str) -> list[str]:
    """What a stage can start from: a problem, or a recipe."""
    from cnf_cli import plugins

    return [k for k in plugins.kinds("problems") if k.startswith(incomplete)] + recipes(incomplete)


def aliases(incomplete: str) -> list[str]:
    """Aliases in the store."""
    from cnf_cli.store import Store

    try:
        refs = Store(Path(os.environ.get("CNF_STORE", "artifacts"))).refs()
    except Exception:
        return []
    return sorted(alias for alias in refs if alias.startswith(incomplete))


def families(incomplete: str) -> list[str]:
    """Plugin families."""
    from cnf_cli import plugins

    return [f for f in plugins.FAMILIES if f.startswith(incomplete)]


def kinds(incomplete: str) -> list[str]:
    """Plugin names of every family."""
    from cnf_cli import plugins

    return sorted({k for f in plugins.FAMILIES for k in plugins.kinds(f) if k.startswith(incomplete)})
