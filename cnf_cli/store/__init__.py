"""Content-addressed artifacts: two maps, key -> manifest and digest -> bytes. No torch, no routing."""

from cnf_cli.store.manifest import Input, Manifest, Output, check_name, is_hash, make_key
from cnf_cli.store.reports import Dead, Lineage, Problem, Report, Sweep, Usage
from cnf_cli.store.store import Store

__all__ = [
    "Dead",
    "Input",
    "Lineage",
    "Manifest",
    "Output",
    "Problem",
    "Report",
    "Store",
    "Sweep",
    "Usage",
    "check_name",
    "is_hash",
    "make_key",
]
