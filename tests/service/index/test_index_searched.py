"""`lln search`: what it finds in an index, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from service.index.search import any_word_of, fuse
from tests.service.index.folder import PAGES, Run
from tests.service.processes import clean_environment


def test_finds_passages_with_their_characters(folder: Path, model: str, run: Run) -> None:
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["problems"]) == (3, {})
    found = run("search", "wizards", "--index", folder)
    assert found[0]["file"] == "deep/wizards.html"
    assert found[0]["title"] == "Wizards"
    assert found[0]["text"] == "Seven wizards box."
    assert found[0]["words_rank"] == 1
    fox = run("search", "fox", "--index", folder, "--by", "words")
    characters = fox[0]["characters"]
    assert PAGES["fox.md"][characters["start"] : characters["end"]] == fox[0]["text"]
    assert fox[0]["headings"] == ["The fox"]
    assert len(run("search", "lazy", "--index", folder, "--by", "vectors", "-n", "2")) == 2


@pytest.mark.parametrize("by", ["words", "vectors"])
def test_a_limit_above_all_numbers_of_the_index_is_none(
    folder: Path, model: str, run: Run, by: str
) -> None:
    run("index", folder, "--model", model)
    found = run("search", "fox", "--index", folder, "--by", by, "-n", str(2**63))
    assert found[0]["file"] == "fox.md"


@pytest.mark.parametrize("query", ["re\u0301sume\u0301", "résumé", "Resume"])
def test_a_word_is_found_however_its_accents_are_written(
    folder: Path, model: str, run: Run, query: str
) -> None:
    (folder / "composed.txt").write_text("The résumé of a year.")
    (folder / "apart.txt").write_text("The re\u0301sume\u0301 of a year.")
    run("index", folder, "--model", model)
    found = run("search", query, "--index", folder, "--by", "words")
    assert {one["file"] for one in found} == {"composed.txt", "apart.txt"}


@pytest.mark.parametrize(
    ("query", "others"),
    [("हिन्दी", "हिन्दु धर्म"), ("น้ำ", "นี่ นก ทำ"), ("كَتَبَ", "كُتُب"), ("தமிழ்", "தமர் மழை")],
)
def test_a_word_is_found_with_its_marks(
    folder: Path, model: str, run: Run, query: str, others: str
) -> None:
    """Marks do not cut it into letters, which other words have too."""
    (folder / "it.txt").write_text(f"one {query} two")
    (folder / "others.txt").write_text(others)
    run("index", folder, "--model", model)
    found = run("search", query, "--index", folder, "--by", "words")
    assert [one["file"] for one in found] == ["it.txt"]


def test_a_word_that_follows_an_emoji_is_found(folder: Path, model: str, run: Run) -> None:
    (folder / "emoji.txt").write_text("\u26a0\ufe0fCareful")
    run("index", folder, "--model", model)
    assert run("search", "careful", "--index", folder, "--by", "words")[0]["file"] == "emoji.txt"


@pytest.mark.parametrize("by", ["both", "words", "vectors"])
def test_an_empty_query_is_refused(folder: Path, model: str, run: Run, by: str) -> None:
    run("index", folder, "--model", model)
    assert run("search", "", "--index", folder, "--by", by) == "lln: the query is empty"


def test_a_search_by_words_does_not_wait_for_torch(folder: Path, model: str, run: Run) -> None:
    run("index", folder, "--model", model)
    search = ["search", "fox", "--index", str(folder), "--by", "words"]
    check = f"import sys; from service.cli.__main__ import main; main({search}); " + (
        "sys.exit('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", check], check=False, env=clean_environment())
    assert found.returncode == 0


def test_nothing_in_a_query_is_syntax() -> None:
    assert any_word_of('NEAR("a" b*) -c AND c: é') == '"near" OR "a" OR "b" OR "c" OR "and" OR "é"'
    assert any_word_of('"*"') == ""


def test_fusion_rewards_what_both_lists_have() -> None:
    both = fuse([[(1, 9.0), (2, 8.0)], [(3, 0.9), (2, 0.8)]])
    assert [chunk for chunk, _ in both] == [2, 1, 3]
