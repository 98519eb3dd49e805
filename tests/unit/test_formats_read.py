"""Whatever a user gives: read as one data set, or refused by the name of what it is."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from cnf_cli.errors import DataError
from cnf_cli.formats import sandbox
from cnf_cli.formats.dataset import Dataset, save
from cnf_cli.formats.legacy import Untold
from cnf_cli.formats.read import read_any
from cnf_cli.formats.sniff import sniff
from tests.unit.test_formats_tsplib import SQUARE, VAN, WEIGHTS, explicit, listed


def data(found: object) -> Dataset:
    assert isinstance(found, Dataset)
    return found


UNUSABLE = {
    "page.pt": (b"<!DOCTYPE html>\n<html>", "web page"),
    "pointer.pkl": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS"),
    "empty.tsp": (b"", "is empty"),
    "cut.pt": (b"PK\x03\x04" + bytes(100), "truncated zip"),
    "a.gz": (b"\x1f\x8b\x08", "gzip"),
    "a.npy": (b"\x93NUMPY", "numpy"),
    "a.json": (b'{"x": 1}', "JSON"),
    "a.txt": (b"hello there", "no known format"),
    "a.bin": (b"\x01\x02\x00\x03", "no known format"),
    "a.safetensors": (b"\x02" + bytes(7) + b"{}", "safetensors checkpoint"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_unusable_files_are_named_for_what_they_are(tmp_path: Path, name: str) -> None:
    """The message says what the file is, not which byte was unexpected, and what to do."""
    content, message = UNUSABLE[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_any([tmp_path / name])
    assert caught.value.at == str(tmp_path / name)
    assert caught.value.hint


def test_files_are_recognised_by_content(tmp_path: Path) -> None:
    """A wrong or missing suffix does not matter where the content is clear."""
    torch.save({"a": torch.zeros(1)}, tmp_path / "a.x")
    torch.save({"a": torch.zeros(1)}, tmp_path / "b.x", _use_new_zipfile_serialization=False)
    (tmp_path / "c.x").write_bytes(pickle.dumps([[[0.0, 0.0], [1.0, 1.0]]]))
    (tmp_path / "d.x").write_text(SQUARE)
    (tmp_path / "e.x").write_text("Route #1: 1 2\n")
    (tmp_path / "f.x").write_text("0,1\n2,3\n")
    with zipfile.ZipFile(tmp_path / "g.x", "w") as archive:
        archive.writestr("readme", "hello")
    kinds = [sniff(path) for path in sorted(tmp_path.iterdir())]
    assert kinds == ["torch", "torch", "pickle", "tsp", "sol", "csv", "zip"]


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """A named pipe would block for ever; it is refused unread."""
    os.mkfifo(tmp_path / "a.tsp")
    with pytest.raises(DataError, match="not a regular file"):
        read_any([tmp_path / "a.tsp"])


def test_a_folder_becomes_one_block_per_size_and_rule(tmp_path: Path) -> None:
    """Names, sizes, rules and tours beside their instances are kept; other files are not read."""
    (tmp_path / "b.tsp").write_text(SQUARE)
    (tmp_path / "a.tsp").write_text(SQUARE.replace("EUC_2D", "CEIL_2D"))
    (tmp_path / "c.tsp").write_text(explicit("UPPER_ROW", listed("UPPER_ROW")))
    (tmp_path / "d.tsp").write_text(SQUARE.replace("10", "20"))
    (tmp_path / "b.opt.tour").write_text("TOUR_SECTION\n1 2 3 4\n-1\n")
    (tmp_path / "z.opt.tour").write_text("TOUR_SECTION\n1 2 3 4\n-1\n")
    (tmp_path / "README").write_text("hello")
    found = data(read_any([tmp_path]))
    assert [(block.rule, block.names) for block in found.blocks] == [
        ("ceil_2d", ("a",)),
        ("euc_2d", ("b", "d")),
        ("explicit", ("c",)),
    ]
    block = found.blocks[1]
    assert block.cost is not None
    np.testing.assert_array_equal(block.cost, [40, np.nan])
    assert (block.tour_of(0), block.tour_of(1)) == ([0, 1, 2, 3], None)
    assert block.proved is not None
    assert block.proved.tolist() == [True, False]
    assert found.attrs["notes"] == "z.opt.tour has no instance here"


def test_the_depot_number_survives_the_data_set(tmp_path: Path) -> None:
    """The file's own node numbers are stored where they are not 1..n, so that .sol files come out right."""
    (tmp_path / "van.vrp").write_text(VAN)
    found = data(read_any([tmp_path / "van.vrp"]))
    assert found.blocks[0].extra["ids"].tolist() == [[2, 1, 3, 4]]


def test_solutions_are_checked_against_their_instances(tmp_path: Path) -> None:
    """Costs are recomputed; a tour of another instance, or one solution too many, is refused."""
    square = [[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]]
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([square, square]))
    sol = tmp_path / "concorde_a.pkl"
    sol.write_bytes(pickle.dumps([(np.float32(4.0), [0, 1, 2, 3]), (4.0000001, [0, 3, 2, 1])]))
    found = data(read_any([tmp_path / "a.pkl"], solutions=sol))
    block = found.blocks[0]
    assert (found.solver, block.cost.tolist(), block.proved.tolist()) == ("concorde", [4.0, 4.0], [True, True])
    for bad, message in (
        ([(4.0, [0, 1, 2, 3])], "1 solutions for 2"),
        ([(4.0, [0, 1, 2, 3]), (4.0, [0, 2, 1, 3])], "says 4"),
        ([(4.0, [0, 1, 2, 3]), (4.0, [0, 1, 2, 2])], "visited"),
    ):
        sol.write_bytes(pickle.dumps(bad))
        with pytest.raises(DataError, match=message):
            read_any([tmp_path / "a.pkl"], solutions=sol)
    with pytest.raises(DataError, match="holds solutions"):
        read_any([sol])
    with pytest.raises(DataError, match="holds instances"):
        read_any([tmp_path / "a.pkl"], solutions=tmp_path / "a.pkl")


def test_pickled_variants(tmp_path: Path) -> None:
    """A torch tensor, CVRP tuples with either depot form, and numpy numbers are all understood."""
    xy = torch.rand(3, 5, 2)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(xy))
    block = data(read_any([tmp_path / "a.pkl"])).blocks[0]
    np.testing.assert_array_equal(block.xy, xy.numpy().astype("f8"))
    for depot in ([0.5, 0.5], [[0.5, 0.5]]):
        row = (depot, [[0.0, 0.0], [1.0, 1.0]], [1.0, np.int64(2)], np.float64(3.0))
        (tmp_path / "b.pkl").write_bytes(pickle.dumps([row]))
        found = data(read_any([tmp_path / "b.pkl"]))
        assert (found.problem, found.blocks[0].demand.tolist()) == ("cvrp", [[0, 1, 2]])


def test_scaled_atsp_weights_become_real(tmp_path: Path) -> None:
    """Files of the ATSP generator store weights times the factor in their name."""
    for i in (0, 1, 10):
        (tmp_path / f"problem_4_0_1000000_{i}.atsp").write_text(
            explicit("FULL_MATRIX", listed("FULL_MATRIX"), kind="ATSP")
        )
    block = data(read_any([tmp_path])).blocks[0]
    np.testing.assert_array_equal(block.matrix[0], WEIGHTS / 1e6)
    assert [name.rpartition("_")[2] for name in block.names] == ["0", "1", "10"]


def test_a_folder_and_its_files_are_the_same_import(tmp_path: Path) -> None:
    """Naming the folder or naming its files gives the same bytes, so a key made of the files is honest."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.tsp").write_text(SQUARE)
    (tmp_path / "README").write_text("hello")
    save(tmp_path / "1.h5", data(read_any([tmp_path])))
    save(tmp_path / "2.h5", data(read_any([tmp_path / "a.tsp", tmp_path / "b.tsp"])))
    assert (tmp_path / "1.h5").read_bytes() == (tmp_path / "2.h5").read_bytes()


def test_odd_file_names_are_kept_as_text(tmp_path: Path) -> None:
    """A name that is no valid text, or starts with a byte order mark inside, does not stop the import."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.tsp"))
    try:
        path.write_bytes(b"\xef\xbb\xbf" + SQUARE.encode())
    except OSError:
        pytest.skip("this file system takes no such name")
    found = data(sandbox.read_safely([path]))
    assert found.blocks[0].names == ("caf?",)


def test_export_follows_the_suffix(tmp_path: Path) -> None:
    """CSV for any coordinates, TSPLIB only under the problem's own suffix and with a TSPLIB rule."""
    from cnf_cli.formats import csv, export, tsplib

    item = tsplib.parse(SQUARE, name="square")
    export.write(tmp_path / "a.csv", item)
    assert csv.read(tmp_path / "a.csv").nodes == 4
    export.write(tmp_path / "a.tsp", item)
    assert tsplib.read(tmp_path / "a.tsp").nodes == 4
    with pytest.raises(DataError, match="not written as"):
        export.write(tmp_path / "a.vrp", item)


def test_misuse_has_a_message(tmp_path: Path) -> None:
    """Mixed problems, a wrong problem, a lone tour, a needless capacity, a missing file: each says so."""
    (tmp_path / "a.tsp").write_text(SQUARE)
    (tmp_path / "b.vrp").write_text(VAN)
    (tmp_path / "c.tour").write_text("TOUR_SECTION\n1 -1\n")
    (tmp_path / "d.csv").write_text("0,0,0\n1,1,4\n")
    (tmp_path / "empty").mkdir()
    cases = [
        (["a.tsp", "b.vrp"], {}, "one problem"),
        (["a.tsp"], {"problem": "cvrp"}, "hold tsp, not cvrp"),
        (["c.tour"], {}, "tour without its instance"),
        (["a.tsp"], {"capacity": 5.0}, "only for CSV"),
        (["none.tsp"], {}, "cannot read none.tsp"),
        (["empty"], {}, "no instance files"),
        (["d.csv"], {}, "capacity is not given"),
    ]
    for names, options, message in cases:
        with pytest.raises(DataError, match=message):
            read_any([tmp_path / name for name in names], **options)  # type: ignore[arg-type]
    assert data(read_any([tmp_path / "d.csv"], capacity=5.0)).problem == "cvrp"


def test_the_sandbox_returns_the_same_data_set(tmp_path: Path) -> None:
    """A data set read in the child equals one read here, byte for byte, and its errors keep file, line and hint."""
    (tmp_path / "a.tsp").write_text(SQUARE)
    save(tmp_path / "here.h5", data(read_any([tmp_path / "a.tsp"])))
    save(tmp_path / "there.h5", data(sandbox.read_safely([tmp_path / "a.tsp"])))
    assert (tmp_path / "here.h5").read_bytes() == (tmp_path / "there.h5").read_bytes()
    (tmp_path / "a.tsp").write_text(SQUARE.replace("2 0 10", "2 0 ten"))
    with pytest.raises(DataError, match="'ten' is not a number") as caught:
        sandbox.read_safely([tmp_path / "a.tsp"])
    assert caught.value.at == f"{tmp_path / 'a.tsp'}:7"


def test_the_sandbox_returns_a_checkpoint(tmp_path: Path) -> None:
    """Weights read in the child arrive bit by bit, with everything said about them."""
    from tests.unit.test_formats_legacy import state

    torch.save({"model_state_dict": [state(seed=1), state(seed=2)], "epoch": 3}, tmp_path / "a.pt")
    said = Untold(heads=4, norm="instance")
    here, there = (read([tmp_path / "a.pt"], said=said) for read in (read_any, sandbox.read_safely))
    assert not isinstance(here, Dataset)
    assert not isinstance(there, Dataset)
    assert (here.policy, here.left_out, here.told) == (there.policy, there.left_out, there.told)
    assert here.sha256 == there.sha256
    for a, b in zip(here.models, there.models, strict=True):
        assert set(a) == set(b)
        assert all(torch.equal(a[name], b[name]) for name in a)
