"""What the shell suggests while you type; never fails, never slow."""

from __future__ import annotations

import os
from pathlib import Path


def recipes(incomplete: str) -> list[str]:
    """Recipe files below the current folder; where there are none, those that come with the package."""
    from cnf_cli.recipe import place

    folder = Path(incomplete).parent if "/" in incomplete else Path()
    found = [*folder.glob("*.toml"), *folder.glob("recipes/**/*.toml")]
    own = sorted(str(p) for p in found if str(p).startswith(incomplete) and p.name != "pyproject.toml")
    return own or [name for name in place.names() if name.startswith(incomplete)]


def targets(incomplete: str) -> list[str]:
    """What a stage can start from: a problem, or a recipe."""
    from cnf_cli import plugins

    return [k for k in plugins.kinds("problems") if k.startswith(incomplete)] + recipes(incomplete)


def aliases(incomplete: str) -> list[str]:
    """Aliases in the store, and the zoo's."""
    from cnf_cli.store import Store
    from cnf_cli.zoo.place import PREFIX

    try:
        refs = set(Store(Path(os.environ.get("CNF_STORE", "artifacts"))).refs())
    except Exception:
        refs = set()
    return sorted(alias for alias in refs | {PREFIX + name for name in zoo("")} if alias.startswith(incomplete))


def zoo(incomplete: str) -> list[str]:
    """Names in the zoo, with or without the prefix, as the user began."""
    from cnf_cli.zoo.place import PREFIX, names

    prefix = PREFIX if incomplete.startswith(PREFIX) else ""
    return [prefix + name for name in names() if (prefix + name).startswith(incomplete)]


def families(incomplete: str) -> list[str]:
    """Plugin families."""
    from cnf_cli import plugins

    return [f for f in plugins.FAMILIES if f.startswith(incomplete)]


def kinds(incomplete: str) -> list[str]:
    """Plugin names of every family."""
    from cnf_cli import plugins

    return sorted({k for f in plugins.FAMILIES for k in plugins.kinds(f) if k.startswith(incomplete)})
