"""Benchmark libraries: lists, digests, the embedded set, and where instances come from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cnf_cli.bench.build_embedded import MOST_BYTES
from cnf_cli.bench.embedded import embedded, origins, pack, unpack
from cnf_cli.bench.libraries import HERE, LIBRARIES, choose, digest
from cnf_cli.bench.sources import gather
from cnf_cli.errors import ArtifactError, DataError, RecipeError
from cnf_cli.formats import dataset, export, tsplib
from cnf_cli.formats.item import collect


def test_the_papers_lists_and_results() -> None:
    """39 TSPLIB and 23 X instances in the paper's order, each with size and digest; optima agree, gaps as printed."""
    tsp, cvrp = LIBRARIES["tsplib"], LIBRARIES["cvrplib"]
    assert (len(tsp.paper), len(cvrp.paper)) == (39, 23)
    assert list(tsp.paper)[:1] + list(tsp.paper)[-1:] == ["kroA100", "pr1002"]
    for library in (tsp, cvrp):
        for name, row in library.paper.items():
            known = library.known[name]
            assert known.sha256
            assert known.best == row["opt"]
            assert row["pomo"] > row["opt"]
    assert round(100 * (tsp.paper["d493"]["pomo"] / 35002 - 1), 2) == 83.46
    assert round(100 * (cvrp.paper["X-n331-k15"]["cnf"] / 31102 - 1), 2) == 16.37


def test_choices() -> None:
    """The default is the paper's list, `all` is everything; patterns and sizes narrow it; typos are suggested."""
    assert len(choose("tsplib").names()) == 39
    assert choose("tsplib:kro?100").names() == ["kroA100", "kroB100", "kroC100", "kroD100", "kroE100"]
    assert choose("tsplib:KROa100").names() == ["kroA100"]
    assert choose("tsplib:100..105").names() == [*choose("tsplib:kro?100").names(), "eil101", "lin105"]
    assert {"berlin52", "pr1002", "gr17"} <= set(choose("tsplib:all").names())
    assert "berlin52" not in choose("tsplib:all,100..").names()
    assert {"ulysses16", "eil51", "berlin52"} <= set(choose("tsplib:..60").names())  # the paper has none so small
    assert len(choose("atsplib").names()) == 19
    for text, told in (("tsplob", "tsplib"), ("tsplib:berlin53", "berlin52"), ("tsplib:1..x", "100..200")):
        with pytest.raises(RecipeError) as caught:
            choose(text).names()
        assert told in (caught.value.hint or "")


def test_the_digest_is_of_the_instance_not_of_its_file() -> None:
    """Another layout has the same digest, any changed number another one."""
    item = embedded("tsp")["ulysses16"]
    text = export.render(item)
    assert digest(tsplib.parse(text.replace(" : ", ":").replace("\n", " \n"), name="x")) == digest(item)
    assert item.xy is not None
    moved = item.xy.copy()
    moved[3, 1] += 1e-9
    assert digest(replace(item, xy=moved)) != digest(item)
    assert digest(replace(item, rule="euc_2d")) != digest(item)


def test_the_embedded_set_is_small_and_the_libraries_own() -> None:
    """Under 300 KB; every instance has the library's digest, a best known cost, and a source with terms."""
    assert (HERE / "embedded.h5").stat().st_size < MOST_BYTES
    for name, problem in (("tsplib", "tsp"), ("cvrplib", "cvrp")):
        items = embedded(problem)
        assert len(items) == {"tsp": 11, "cvrp": 22}[problem]
        for item in items.values():
            known = LIBRARIES[name].known[item.name]
            assert digest(item) == known.sha256
            assert known.best
            assert "(" in origins()[item.name]


def test_packing_gives_every_instance_back() -> None:
    """Unequal sizes, rules, matrices and demands survive the common block."""
    items = [*list(embedded("tsp").values())[:5], *list(embedded("cvrp").values())[:2]]
    for before, after in zip(items, unpack(pack(items)), strict=True):
        assert (before.name, before.problem, before.rule, before.nodes) == (
            after.name,
            after.problem,
            after.rule,
            after.nodes,
        )
        assert (before.xy is None) == (after.xy is None)
        assert digest(before) == digest(after)


def test_without_anything_else_the_embedded_set_is_taken() -> None:
    """On a fresh machine the default choice runs on the embedded set and names what is missing."""
    found = gather(choose("tsplib"), None, None)
    assert {"pr107", "pcb442", "d493", "att532", "gr666"} <= {item.name for item in found.items}
    assert [item.name for item in found.items][:3] == ["pr107", "pcb442", "d493"]
    assert len(found.missing) == 36
    assert any("gr17, gr24" in note for note in found.notes)
    assert all(item.proved for item in found.items)
    bare = gather(choose("tsplib"), None, None, coordinates=False)
    assert "gr17" in {item.name for item in bare.items}
    assert {i.name for i in gather(choose("tsplib:pr*"), None, None).items} == {"pr107"}
    with pytest.raises(ArtifactError, match="no instance of atsplib") as caught:
        gather(choose("atsplib"), None, None)
    assert "cnf bench fetch atsplib" in (caught.value.hint or "")


def test_a_choice_that_is_not_the_papers_says_so() -> None:
    """How many of the instances are the paper's is told where the user named none and not all of them are."""
    assert any(
        "3 of the 9 instances are among the paper's 39" in note for note in gather(choose("tsplib"), None, None).notes
    )
    small = gather(choose("tsplib:..60"), None, None)
    assert [item.name for item in small.items] == ["ulysses16", "ulysses22", "dantzig42"]
    assert any("no instance is among the paper's" in note for note in small.notes)
    assert not any("paper" in note for note in gather(choose("tsplib:pr*,ulysses16"), None, None).notes)


def test_the_folder_comes_first_then_the_store_then_the_package(tmp_path: Path) -> None:
    """Each instance comes from the first source that has it; a changed file is used, but not with the known cost."""
    folder = tmp_path / "bench" / "tsplib"
    folder.mkdir(parents=True)
    pr107, d493 = embedded("tsp")["pr107"], embedded("tsp")["d493"]
    assert pr107.xy is not None
    export.write(folder / "pr107.tsp", replace(pr107, xy=np.round(pr107.xy + 1)))
    stored = tmp_path / "data.h5"
    dataset.save(stored, collect([replace(d493, cost=1.0)]))
    found = gather(choose("tsplib"), tmp_path / "bench", stored)
    by_name = {item.name: item for item in found.items}
    assert set(by_name) == {"pr107", "d493", "pcb442"}
    assert np.isnan(by_name["pr107"].cost)
    assert any("pr107 is not the library's" in note for note in found.notes)
    assert by_name["d493"].cost == 35002
    assert "kroA100" in found.missing
    with pytest.raises(DataError, match="there is no folder"):
        gather(choose("tsplib"), tmp_path / "nowhere", None)


def test_the_public_files_are_the_ones_we_know(shared: Path) -> None:
    """Every public file has its digest in the table, and the sizes agree."""
    for library in LIBRARIES.values():
        files = sorted((shared / "data" / library.name).glob(f"*{library.suffix}"))
        assert len(files) > 15
        for path in files[::7]:
            item, known = tsplib.read(path), library.known[path.stem]
            assert (digest(item), item.nodes) == (known.sha256, known.nodes)
