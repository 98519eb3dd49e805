"""What a file really is, whatever its name says."""

from __future__ import annotations

import zipfile
from pathlib import Path

from cnf_cli.errors import DataError
from cnf_cli.formats import csv
from cnf_cli.formats.files import decoded, file_size
from cnf_cli.formats.hdf5 import SIGNATURE
from cnf_cli.formats.tsplib import looks_like

# The long integer that opens torch's older checkpoint files, as a pickle of protocol 2.
TORCH_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_OLD_EXCEL = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_TEXT = (".tsp", ".atsp", ".vrp", ".tour", ".sol", ".csv")
_UNUSABLE = {
    "empty": ("is empty", "download it again"),
    "html": ("is a web page, not data: the download saved an error or a login page", "download the raw file"),
    "git-lfs": ("is a Git LFS pointer, not the data itself", "run `git lfs pull` where it came from"),
    "truncated zip": ("is a truncated zip file", "download it again"),
    "zip": ("is a zip archive", "unpack it and import what is inside"),
    "excel": ("is an Excel workbook", "save the sheet as CSV (in Excel: Save as, CSV UTF-8) and give that file"),
    "opendocument": ("is an OpenDocument file", "save the sheet as CSV and give that file"),
    "numpy": ("is a numpy file", "save it as .csv"),
    "gzip": ("is gzip-compressed", "unpack it first: `gunzip`"),
    "tar": ("is a tar archive", "unpack it and import what is inside"),
    "pdf": ("is a PDF", "import the data it was made from"),
    "json": ("is JSON, which is not read", "save it as .csv"),
    "text": ("is a text of no known format", "known: TSPLIB, VRPLIB, CSV (x,y[,demand])"),
    "binary": ("is of no known format", "known: TSPLIB, VRPLIB, CSV, HDF5, pickled data sets, torch checkpoints"),
}


def sniff(path: Path) -> str:
    """One of pickle, torch, hdf5, safetensors, tsp, atsp, vrp, tour, sol, csv, or the name of something unusable."""
    size = file_size(path)
    with path.open("rb") as file:
        head = file.read(65536)
    if not head:
        return "empty"
    if head.startswith(SIGNATURE):
        return "hdf5"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip(path)
    if head.startswith(TORCH_MAGIC):
        return "torch"
    for start, kind in ((b"\x1f\x8b", "gzip"), (b"\x93NUMPY", "numpy"), (b"%PDF", "pdf"), (_OLD_EXCEL, "excel")):
        if head.startswith(start):
            return kind
    if head[257:262] == b"ustar":
        return "tar"
    if head[0] == 0x80 and len(head) > 1 and head[1] <= 5:
        return "pickle"
    length = int.from_bytes(head[:8], "little")
    if head[8:9] == b"{" and length <= size - 8:
        return "safetensors"
    text = decoded(head, whole=False)
    return "binary" if "\0" in text else _text(path, text)


def _zip(path: Path) -> str:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, OverflowError):
        return "truncated zip"
    if any(name.rpartition("/")[2] == "data.pkl" for name in names):
        return "torch"
    if any(name.startswith("xl/") for name in names):
        return "excel"
    if "mimetype" in names and "content.xml" in names:
        return "opendocument"
    return "numpy" if names and all(name.endswith(".npy") for name in names) else "zip"


def _text(path: Path, text: str) -> str:
    start = text.lstrip()[:512].lower()
    if start.startswith(("<!doctype", "<html", "<head", "<?xml", "<script")):
        return "html"
    if start.startswith("version https://git-lfs"):
        return "git-lfs"
    if path.suffix.lower() in _TEXT:
        return path.suffix.lower()[1:]
    if looks_like(text):
        return "tour" if "TOUR_SECTION" in text.upper() else "tsp"
    if start.startswith("route"):
        return "sol"
    if start.startswith(("{", "[")):
        return "json"
    return "csv" if csv.looks_like(text) else "text"


def refuse(path: Path, kind: str) -> DataError:
    """The error that names what an unusable file is."""
    what, hint = _UNUSABLE.get(kind, (f"is {kind}, which does not fit here", None))
    return DataError(f"{path.name} {what}", at=str(path), hint=hint)
