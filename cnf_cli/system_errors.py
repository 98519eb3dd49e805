"""What the system refuses is no mistake of ours: a name too long, a full disk, a file that nobody may open."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from cnf_cli.errors import CnfError
from cnf_cli.regular_files import FULL, mount_of

_ACCESS = "check who owns it and its mode bits"
_HINTS = {
    errno.ENAMETOOLONG: "give a shorter name or path",
    errno.ELOOP: "a link there leads back to itself",
    errno.ENOTDIR: "a part of this path is a file, not a folder",
    errno.EISDIR: "name a file, not a folder",
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.EROFS: "this disk can only be read",
    errno.EIO: "the disk or the other end fails: try again, or use another place",
    errno.EMFILE: "raise the limit on open files (`ulimit -n`)",
    errno.ENFILE: "the machine has too many open files",
    **dict.fromkeys(FULL, "free some space, then run the same command again"),
}


def refusal(error: OSError) -> CnfError | None:
    """The error for the user; None where the system's answer points at a mistake of ours."""
    if error.errno not in _HINTS:
        return None
    place = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
    message = f"the system refuses: {error.strerror}"
    if error.errno in FULL and place:
        message = f"no space left on {mount_of(Path(place).parent)}"
    told = CnfError(message, at=place and place[:200], hint=_HINTS[error.errno])
    told.__cause__ = error
    return told
