"""The report says what the numbers say, whatever they are, and needs nothing but itself."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from cnf_cli.evaluation.plan import FIXED
from cnf_cli.plots._source import percent
from cnf_cli.report.page import render
from cnf_cli.report.story import Facts, Story, cast_of, tell
from tests.unit import report_kit
from tests.unit.report_kit import UNIFORM, facts, row, rows


def told(story: Story) -> str:
    return " ".join([story.headline, *(f"{head}: {text}" for head, text in story.paragraphs)])


def test_a_repaired_policy() -> None:
    """Damage, its share undone, and what it cost on clean instances are computed from the gaps."""
    story = tell(facts(rows((0.5, 0.4), (12.0, 3.0), (12.0, 4.0))))
    assert story.headline == (
        "Attacked, pretrained(1) goes from 0.50% to 12.0% above the reference; cnf(3) brings it back to 3.00%"
    )
    text = told(story)
    assert "24.0 times the clean one" in text
    assert "78% of the damage is undone" in text  # (12 - 3) / (12 - 0.5)
    assert "On clean instances nothing is lost: 0.40%, where pretrained(1) has 0.50%" in text
    assert "Attacked itself, model by model, it is at 4.00%" in text
    assert "40,000 random instances" in text
    assert [(tile.before, tile.after) for tile in story.tiles] == [(0.5, 0.4), (12.0, 3.0), (12.0, 4.0)]


def test_an_attack_that_fails_is_not_dressed_up() -> None:
    """When attacked instances are no harder, the story says that nothing broke and claims no repair."""
    text = told(tell(facts(rows((0.5, 0.4), (0.3, 0.2), (0.3, 0.2)))))
    assert "The attack did not hurt pretrained(1): 0.50% clean, 0.30% attacked" in text
    assert "nothing broke" in text
    assert "damage" not in text


def test_a_defence_that_fails_is_not_dressed_up() -> None:
    """A worse ensemble has undone nothing, and its price on clean instances is named."""
    text = told(tell(facts(rows((0.5, 1.5), (2.0, 2.5), (2.0, 3.0)))))
    assert "none of the damage is undone" in text
    assert "the price is 1.00 percentage point:" in text
    assert "brings it back" not in text


def test_more_than_repaired() -> None:
    """An ensemble that is better attacked than the policy was clean undid all the damage, not 120% of it."""
    text = told(tell(facts(rows((1.0, 0.1), (2.0, 0.8), (2.0, 0.9)))))
    assert "100% of the damage is undone, and more" in text


@pytest.mark.parametrize(
    ("p", "words"), [(0.2, "may be chance (p = 0.200)"), (1e-9, "clear (p < 0.001)"), (None, "too few")]
)
def test_chance_is_named(p: float | None, words: str) -> None:
    """The test's p decides the word; without a test there is none."""
    pair = {"set": FIXED, "a": "pretrained(1)", "b": "cnf(3)", "p_holm": p}
    assert words in told(tell(facts(rows((0.5, 0.4), (12.0, 3.0), (12.0, 4.0)), comparisons=[pair])))


def test_unknown_references() -> None:
    """Without reference costs there is no gap to tell, and no number is made up."""
    story = tell(Facts("cvrp", None, [row(UNIFORM, "pretrained(1)", None)]))
    assert "no gap can be told" in story.headline
    assert not story.tiles
    assert not re.search(r"\d%", told(story))


def test_unproved_references_are_said() -> None:
    """A reference that is not proved optimal is called so where the gaps are judged."""
    table = [{**one, "proved": False} for one in rows((0.5, 0.4), (12.0, 3.0), (12.0, 4.0))]
    pair = {"set": FIXED, "a": "pretrained(1)", "b": "cnf(3)", "p_holm": 0.01}
    assert "not proved optimal, so true gaps may be slightly larger" in told(tell(facts(table, comparisons=[pair])))


def test_attack_warnings_are_told() -> None:
    """What the attack's own checks distrust stands in the story."""
    checks = {"moved_mean": 0.49, "moved_max": 1.1, "warnings": ["little to do with the clean one"]}
    text = told(tell(facts(rows((1, 1), (2, 2), (2, 2)), attack={"kind": "attribute", "steps": 3, "checks": checks})))
    assert "Nodes moved 0.49 map widths on average, 1.10 at most" in text
    assert "attribute attack, 3 steps" in text
    assert "Mind: little to do with the clean one." in text


def test_parts_are_cast_by_what_they_are() -> None:
    """Solvers are not the heroes; a set without 'adversarial' in its name is clean."""
    table = [row("tsplib", "cnf(3)", 1.0), row("tsplib", "lkh", 0.0, decode=None, augment=1)]
    cast = cast_of(table)
    assert (cast.before, cast.after, cast.clean, cast.fixed, cast.white) == ("cnf(3)", None, "tsplib", None, None)


@pytest.mark.parametrize(
    ("value", "text"), [(0.4392, "0.44%"), (12.34, "12.3%"), (99.96, "100%"), (-0.5, "-0.50%"), (-1e-9, "0.00%")]
)
def test_percent(value: float, text: str) -> None:
    """Gaps keep three digits that matter."""
    assert percent(value) == text


class Reader(HTMLParser):
    """Collects what the page links to and shows."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.images: list[dict[str, Any]] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        found = dict(attrs)
        self.links += [found[key] for key in ("href", "src") if key in found]
        self.images += [found] if tag == "img" else []
        self.ids += [found["id"]] if "id" in found else []
        self.open += [tag] if tag not in ("img", "meta", "link", "br") else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    return reader


def test_page_is_self_contained() -> None:
    """Every link is a place on the page or data in it; every picture has words; places exist once."""
    html = render(report_kit.page())
    found = read(html)
    for link in found.links:
        assert link.startswith(("data:", "#"))
        assert link[1:] in found.ids or not link.startswith("#")
    assert len(found.ids) == len(set(found.ids))
    assert len(found.images) == 3
    assert all(len(image["alt"]) > 20 for image in found.images)
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


def test_page_shows_the_numbers_and_how_to_get_them() -> None:
    """Rows of the evaluation, worst instances, commands and ids are on the page."""
    text = read(render(report_kit.page())).text
    for words in ("12.000", "10.800 to 13.200", "instance 11", "cnf evaluate recipes/demo.toml", "abababababab", "3.2"):
        assert words in text
    assert "cnf report recipes/demo.toml" in text


def test_names_cannot_break_the_page() -> None:
    """A method called like a script is shown, not run."""
    evil = "<script>alert(1)</script>(1)"
    html = render(report_kit.page(evil))
    assert "<script>alert" not in html
    assert evil in read(html).text
