"""Keys, names and manifests: what an artifact is called and what it consists of."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from cnf_cli.errors import RecipeError

FORMAT = 1
CAP = 16 << 20  # bytes of a manifest; a larger one is not ours
_HEX = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
_SEAL = re.compile(rb'\{"seal": "([0-9a-f]{64})",\n')


def is_hash(text: object) -> bool:
    """Whether this is a full key or digest: 64 lower-case hex digits."""
    return isinstance(text, str) and _HEX.fullmatch(text) is not None


def check_name(name: str, kind: str = "name", depth: int = 4) -> str:
    """The name itself, if it is safe as a relative path on every system."""
    parts = name.split("/")
    good = len(parts) <= depth and all(
        _PART.fullmatch(p) and not p.endswith(".") and not _DEVICE.fullmatch(p) for p in parts
    )
    if not good or is_hash(name):
        hint = "use a-z, 0-9, '.', '_' and '-', starting with a letter or digit, at most 64 per part"
        raise RecipeError(
            f"{name[:80]!r} is not a usable {kind}",
            hint=hint + (f", at most {depth} parts joined by '/'" if depth > 1 else ""),
        )
    return name


def check_json(value: Any, path: str) -> None:
    """Raises ValueError, naming the place, unless the value survives JSON unchanged."""
    if isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise ValueError(f"{path}: {name!r} is not a text key")
            check_json(item, f"{path}.{name}")
    elif isinstance(value, list):
        for n, item in enumerate(value):
            check_json(item, f"{path}[{n}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path}: {value} has no place in a key or a manifest")
    elif value is not None and not isinstance(value, str | int | float):
        raise ValueError(f"{path}: {type(value).__name__} is not a JSON type")


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def make_key(stage: str, version: int, sections: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """The same stage, version, settings and input bytes give the same key; any difference gives another."""
    parts = {"stage": stage, "version": version, "sections": dict(sections), "inputs": dict(inputs)}
    check_json(parts, "key")
    return hashlib.sha256(_canonical(parts)).hexdigest()


@dataclass(frozen=True)
class Output:
    """One file of an artifact, by content."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Input:
    """An artifact that was read: `key` tells its history, `digest` its bytes."""

    key: str
    digest: str


@dataclass(frozen=True)
class Manifest:
    """The only proof that a stage is done: what it made, from what, and how."""

    stage: str
    key: str
    version: int
    outputs: dict[str, Output]
    inputs: dict[str, Input]
    sections: dict[str, Any]
    provenance: dict[str, Any]
    checks: dict[str, Any]

    @property
    def digest(self) -> str:
        """One hash for all outputs: equal names and bytes, equal digest."""
        return hashlib.sha256(_canonical({name: out.sha256 for name, out in self.outputs.items()})).hexdigest()

    @property
    def finished(self) -> str:
        """When it was finished, as its provenance has it; "" where that is not known."""
        return str(self.provenance.get("finished") or "")

    def check(self) -> Manifest:
        """Itself; ValueError unless the names are safe, the hashes well formed and the key follows from the rest."""
        for part in ("sections", "provenance", "checks"):
            if not isinstance(table := getattr(self, part), dict):
                raise ValueError(f"{part} is not a table")
            check_json(table, part)
        try:
            check_name(self.stage, "stage", 1)
            for name in self.outputs:
                check_name(name, "output name")
        except RecipeError as error:
            raise ValueError(error.message) from None
        for out in self.outputs.values():
            if not is_hash(out.sha256) or type(out.size) is not int or out.size < 0:
                raise ValueError(f"not an output: {out}")
        if not all(is_hash(i.key) and is_hash(i.digest) for i in self.inputs.values()) or type(self.version) is not int:
            raise ValueError("an input or the version is malformed")
        digests = {name: i.digest for name, i in self.inputs.items()}
        if self.key != make_key(self.stage, self.version, self.sections, digests):
            raise ValueError("the key does not follow from stage, version, sections and inputs (see make_key)")
        return self

    def dump(self) -> bytes:
        """JSON whose first field seals the rest, so that any changed byte shows."""
        rest = (
            json.dumps({"format": FORMAT, **asdict(self)}, indent=2, sort_keys=True, allow_nan=False)[2:].encode()
            + b"\n"
        )
        return b'{"seal": "%s",\n%s' % (hashlib.sha256(rest).hexdigest().encode(), rest)

    @staticmethod
    def parse(raw: bytes) -> Manifest:
        """The manifest that `dump` wrote; ValueError for anything else."""
        seal = _SEAL.match(raw)
        if seal is None or hashlib.sha256(raw[seal.end() :]).hexdigest().encode() != seal[1]:
            raise ValueError("the seal is broken")
        try:
            body = json.loads(raw, parse_constant=_refuse)
            del body["seal"]
            if body.pop("format") != FORMAT:
                raise ValueError("another format")
            body["outputs"] = {name: Output(**out) for name, out in body["outputs"].items()}
            body["inputs"] = {name: Input(**i) for name, i in body["inputs"].items()}
            return Manifest(**body).check()
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a manifest: {error}") from None


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
