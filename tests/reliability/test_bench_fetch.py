"""Fetching from a server that lies, stalls, breaks off or floods: nothing wrong is ever kept (promise 19)."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cnf_cli.bench import fetch as fetching
from cnf_cli.bench.embedded import embedded
from cnf_cli.bench.libraries import LIBRARIES
from cnf_cli.errors import DataError, RecipeError
from cnf_cli.formats import export
from tests.helpers import cnf, cnf_json

NAMES = ["ulysses16", "ulysses22", "dantzig42"]
TEXT = {name: export.render(embedded("tsp")[name]).encode() for name in NAMES}
Answer = Callable[[BaseHTTPRequestHandler], None]


def give(body: bytes, code: int = 200, declared: int | None = None) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        handler.send_header("Content-Length", str(len(body) if declared is None else declared))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def drip(handler: BaseHTTPRequestHandler) -> None:
    """A byte now and then, for ever."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(200):
        handler.wfile.write(b"N")
        handler.wfile.flush()
        time.sleep(0.05)


def flood(handler: BaseHTTPRequestHandler) -> None:
    """More than any file of the library, without saying how much."""
    handler.send_response(200)
    handler.end_headers()
    for _ in range(1 << 12):
        handler.wfile.write(b"x" * 65536)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    pages: dict[str, Answer]

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is part of the test."""


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made = self.server.pages.get(self.path, give(b"no", 404))  # type: ignore[attr-defined]
            made(self)

        def log_message(self, *_: object) -> None:
            pass

    made = Server(("127.0.0.1", 0), Handler)
    made.pages = {f"/{name}.tsp": give(text) for name, text in TEXT.items()}
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def url(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def get(server: Server, folder: Path, seconds: float = 5.0) -> tuple[set[str], dict[str, str]]:
    found, why = fetching.fetch(LIBRARIES["tsplib"], NAMES, folder, url(server), seconds=seconds)
    return set(found), why


def test_good_files_plain_gzipped_or_with_windows_line_ends(server: Server, tmp_path: Path) -> None:
    """All three layouts are accepted and kept as verified files."""
    server.pages["/ulysses22.tsp"] = give(TEXT["ulysses22"].replace(b"\n", b"\r\n"))
    server.pages["/dantzig42.tsp.gz"] = give(gzip.compress(TEXT["dantzig42"]))
    del server.pages["/dantzig42.tsp"]
    assert get(server, tmp_path) == (set(NAMES), {})
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"{name}.tsp" for name in NAMES)


BAD = {
    "cut off": (give(TEXT["ulysses22"][:200], declared=len(TEXT["ulysses22"])), "cut off after 200"),
    "cut off quietly": (give(TEXT["ulysses22"][:200]), ""),
    "another instance": (give(TEXT["ulysses16"]), "another instance"),
    "one digit changed": (give(TEXT["ulysses22"].replace(b"38.24", b"38.25", 1)), "another instance"),
    "a web page": (give(b"<!doctype html><html>log in</html>"), ""),
    "empty": (give(b""), ""),
    "binary": (give(bytes(range(256)) * 20), ""),
    "declared too large": (give(b"x", declared=10**12), "declares"),
    "flood": (flood, "more than"),
    "drip": (drip, "takes longer"),
    "gzip bomb": (give(gzip.compress(b"0" * (40 << 20))), "unpacks to more"),
    "half a gzip": (give(gzip.compress(TEXT["ulysses22"])[:-20]), "cut off"),
    "server error": (give(b"", 500), "500"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_answer_costs_one_instance_and_is_explained(server: Server, tmp_path: Path, what: str) -> None:
    """The two good files are kept, the bad one is not, and a later good answer completes it."""
    server.pages["/ulysses22.tsp"], told = BAD[what]
    server.pages["/ulysses22.tsp.gz"] = BAD[what][0]
    found, why = get(server, tmp_path, seconds=1.0)
    assert found == {"ulysses16", "dantzig42"}
    assert told in why["ulysses22"]
    assert sorted(p.stem for p in tmp_path.iterdir()) == ["dantzig42", "ulysses16"]
    server.pages.clear()
    server.pages["/ulysses22.tsp"] = give(TEXT["ulysses22"])
    assert get(server, tmp_path) == (set(NAMES), {})


def test_a_dead_address_is_given_up_after_two_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two refusals in a row, and the rest is not asked for: a dead server does not cost a timeout per file."""
    asked = []

    def dead(url: str, seconds: float) -> bytes:
        asked.append(url)
        raise fetching.Unreachable("connection refused")

    monkeypatch.setattr(fetching, "download", dead)
    names = list(LIBRARIES["tsplib"].paper)
    found, why = fetching.fetch(LIBRARIES["tsplib"], names, tmp_path, "http://127.0.0.1:1/{name}")
    assert (found, len(why), len(asked)) == ({}, 39, 2)


def test_only_http_is_an_address(tmp_path: Path) -> None:
    """file: and other schemes are refused: they would read what the user did not mean."""
    for text in ("file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://x"):
        with pytest.raises(RecipeError, match="not an http address"):
            fetching.download(text)


def test_a_redirect_to_a_file_is_not_followed(server: Server) -> None:
    """A server cannot point us at local files."""

    def elsewhere(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", "file:///etc/hostname")
        handler.end_headers()

    server.pages["/x"] = elsewhere
    with pytest.raises((DataError, fetching.Unreachable)):
        fetching.download(f"{url(server)}/x")


def test_the_command_commits_all_or_nothing(server: Server, tmp_path: Path) -> None:
    """With one file missing the command exits 1, the store has no benchmark, and the next call needs only that file."""
    store = tmp_path / "store"
    good = server.pages.pop("/dantzig42.tsp")
    wanted = "tsplib:ulysses*,dantzig42"
    done = cnf("bench", "fetch", wanted, "--from", url(server), store=store)
    assert done.returncode == 1, done.stderr
    assert "dantzig42" in done.stderr
    assert cnf_json("ls", store=store)["artifacts"] == []
    server.pages.clear()
    server.pages["/dantzig42.tsp"] = good
    made = cnf_json("bench", "fetch", wanted, "--from", url(server), store=store)
    assert made["checks"] == {"problem": "tsp", "count": 3}
    listed = cnf_json("bench", "list", "tsplib:..42", store=store)["instances"]
    assert {i["name"] for i in listed if "store" in i["where"]} == set(NAMES)
    assert cnf_json("verify", "--deep", store=store)["problems"] == []


def test_a_folder_is_as_good_as_an_address(tmp_path: Path) -> None:
    """--from FOLDER copies and checks; a second call adds to what the store has; --partial keeps what is there."""
    folder = tmp_path / "mirror" / "tsplib"
    folder.mkdir(parents=True)
    (folder / "ulysses16.tsp").write_bytes(TEXT["ulysses16"])
    (folder / "ulysses22.tsp").write_bytes(TEXT["ulysses16"])
    store = tmp_path / "store"
    done = cnf("bench", "fetch", "tsplib:ulysses*", "--from", str(folder.parent), "--partial", store=store)
    assert done.returncode == 0, done.stderr
    assert "ulysses22" in done.stderr
    (folder / "dantzig42.tsp").write_bytes(TEXT["dantzig42"])
    made = cnf_json("bench", "fetch", "tsplib:dantzig42", "--from", str(folder), store=store)
    assert made["checks"]["count"] == 2
