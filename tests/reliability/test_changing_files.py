"""An import is of the bytes that were parsed: a file that changes meanwhile is refused, never stored under its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from cnf_cli.errors import DataError
from cnf_cli.formats import dataset, sandbox
from cnf_cli.formats.dataset import Dataset
from cnf_cli.pipeline.runner import Runner
from cnf_cli.stages import imported
from cnf_cli.store import Store

A, B = "0,0\n0,1\n1,1\n", "0,0\n0,5\n5,5\n"


def test_a_file_that_changes_between_digest_and_parsing_is_refused(tmp_path: Path) -> None:
    """The key is of A's bytes and the file holds B by then: an error that names it, and no artifact."""
    path, store = tmp_path / "a.csv", Store(tmp_path / "store")
    path.write_text(A)
    task = imported.task([path])
    path.write_text(B)
    with pytest.raises(DataError, match="changed while it was imported") as caught:
        Runner(store).run(task)
    assert caught.value.at == str(path)
    assert not list(store.manifests())
    path.write_text(A)
    made = Runner(store).run(imported.task([path]))
    found = dataset.load(store.open(made.key, "data.h5"))
    assert found.blocks[0].xy is not None
    assert found.blocks[0].xy.max() == 1


def test_solutions_that_change_are_refused(tmp_path: Path) -> None:
    """The same for the file of reference tours."""
    path, tour = tmp_path / "a.csv", tmp_path / "a.tour"
    path.write_text(A)
    tour.write_text("TYPE : TOUR\nDIMENSION : 3\nTOUR_SECTION\n1\n2\n3\n-1\nEOF\n")
    task = imported.task([path], solutions=tour)
    tour.write_text(tour.read_text().replace("1\n2\n3", "3\n2\n1"))
    with pytest.raises(DataError, match=r"a\.tour changed while it was imported"):
        Runner(Store(tmp_path / "store")).run(task)


def test_a_folder_that_grows_is_imported_as_it_was_listed(tmp_path: Path) -> None:
    """A file that joins the folder after the key was made is not in the data set."""
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "a.csv").write_text(A)
    task = imported.task([folder])
    (folder / "b.csv").write_text(B)
    store = Store(tmp_path / "store")
    made = Runner(store).run(task)
    assert len(dataset.load(store.open(made.key, "data.h5"))) == 1


def test_what_is_parsed_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file changes after its bytes were taken and before they are parsed: the answer is of what was taken."""
    package = tmp_path / "late"
    package.mkdir()
    path = tmp_path / "a.csv"
    path.write_text(A)
    hook = "import cnf_cli.formats.read as r\nwhole = r.read_any\n"
    hook += (
        f"def late(*given, **named):\n    open({str(path)!r}, 'w').write({B!r})\n    return whole(*given, **named)\n"
        "r.read_any = late\n"
    )
    hook += "import sys\nsys.addaudithook = lambda *_: None\n"  # which would keep the hook from changing the file
    (package / "sitecustomize.py").write_text(hook)
    monkeypatch.setenv("PYTHONPATH", str(package))
    found = sandbox.read_safely([path])
    assert isinstance(found, Dataset)
    assert found.blocks[0].xy is not None
    assert found.blocks[0].xy.max() == 1
    assert path.read_text() == B
