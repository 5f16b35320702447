"""Files that are hard to read: `lln index` tells what is wrong with them, and reads the others."""

from __future__ import annotations

import errno
import os
from itertools import product
from pathlib import Path

import pytest

from engine import AsyncEngine
from engine.errors import DeviceFailure
from service.index.place import PLACE
from service.index.store import IndexStore
from service.readers.files import READERS, readable_name
from tests.service.index.folder import Run

PDF = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 300]/Contents 4 0 R
/Resources<</Font<</F1 5 0 R>>>>>>endobj
4 0 obj<</Length 43>>stream
BT /F1 12 Tf 20 200 Td (Hello PDF) Tj ET
endstream endobj
5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj
6 0 obj<</Title(\xfe\xff\xd8\x00\x00A)>>endobj
trailer<</Root 1 0 R/Info 6 0 R>>
"""
"""Its title is half of a surrogate pair."""


def test_a_file_is_indexed_whatever_it_says_it_is_called(
    folder: Path, model: str, run: Run
) -> None:
    (folder / "long.html").write_text(f"<title>{'fox ' * 900}</title><p>The fox sleeps.</p>")
    (folder / "blank.html").write_text("<title>\u200b</title><p>The dog sleeps.</p>")
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["problems"]) == (5, {})


def test_a_file_whose_name_is_not_utf8(folder: Path, model: str, run: Run) -> None:
    file = folder / os.fsdecode(b"caf\xe9.txt")
    file.write_text("A walrus sings.")
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["problems"]) == (4, {})
    [hit, *_] = run("search", "walrus", "--index", folder)
    assert hit["file"] == "caf\\xe9.txt"
    [summary] = run("index", folder, "--model", model)
    assert summary["unchanged"] == 4
    file.unlink()
    [summary] = run("index", folder, "--model", model)
    assert summary["removed"] == 1


def test_names_that_look_like_escaped_ones_hide_no_others(
    folder: Path, model: str, run: Run
) -> None:
    """One would be in the index under the name of the other."""
    names = [b"caf\xe9.txt", rb"caf\xe9.txt", rb"caf\x5cxe9.txt", rb"caf\xE9.txt"]
    for name in names:
        (folder / os.fsdecode(name)).write_text("A walrus sings.")
    for read in (7, 0):
        [summary] = run("index", folder, "--model", model)
        assert (summary["read"], summary["problems"]) == (read, {})
    found = {hit["file"] for hit in run("search", "walrus", "--index", folder, "--by", "words")}
    assert found == {r"caf\xe9.txt", r"caf\x5cxe9.txt", r"caf\x5cx5cxe9.txt", r"caf\xE9.txt"}


def test_no_two_names_become_the_same() -> None:
    parts = (b"\\", b"x", b"x5c", b"ff", b"\xff", b"f")
    for length in range(1, 6):
        names = {b"".join(chosen) for chosen in product(parts, repeat=length)}
        assert len({readable_name(os.fsdecode(name)) for name in names}) == len(names)


def test_a_pdf_with_a_broken_title_is_read(folder: Path, model: str, run: Run) -> None:
    (folder / "title.pdf").write_bytes(PDF)
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["problems"]) == (4, {})
    [found] = run("search", "hello", "--index", folder, "--by", "words")
    assert (found["file"], found["title"], found["text"]) == ("title.pdf", None, "Hello PDF")


def test_files_that_cannot_be_read_are_told_and_not_tried_again(
    folder: Path, model: str, run: Run
) -> None:
    (folder / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 no")
    (folder / "picture.png").write_bytes(b"\x89PNG\0\0")
    (folder / "empty.txt").touch()
    (folder / "wide.txt").write_bytes("A text.".encode("utf-16"))
    [summary] = run("index", folder, "--model", model)
    assert summary["read"] == 3
    assert summary["not_text"] == 2
    assert set(summary["problems"]) == {"latin.txt", "broken.pdf", "wide.txt"}
    assert "UTF-16" in summary["problems"]["wide.txt"]
    assert "invalid byte at 3" in summary["problems"]["latin.txt"]
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["unchanged"], summary["problems"]) == (0, 8, {})


def test_a_text_over_the_limit_is_told(
    folder: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command has no option that would cut it."""
    monkeypatch.setenv("LLN_ENGINE__MAX_SOFTMAX_TEXT_TOKENS", "64")
    (folder / "long.txt").write_text("fox " * 100)
    [summary] = run("index", folder, "--model", model)
    assert summary["problems"] == {
        "long.txt": "the text has 202 tokens, the limit is 64; shorten it"
    }


def test_a_file_that_could_not_be_read_is_tried_again(
    folder: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in refuses to read it: whoever runs the tests may be allowed to read everything."""

    def refusing(path: Path) -> bytes:
        if path.name == "fox.md":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return path.read_bytes()

    with monkeypatch.context() as refused:
        refused.setattr("service.index.drafts.read_bytes", refusing)
        [summary] = run("index", folder, "--model", model)
        assert (summary["read"], summary["problems"]) == (2, {"fox.md": "Permission denied"})
        before = _changes(folder)
        [summary] = run("index", folder, "--model", model)
        assert (summary["unchanged"], summary["problems"]) == (3, {})
        assert _changes(folder) == before  # servers need not read their vectors again
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["unchanged"]) == (1, 2)
    assert run("search", "fox", "--index", folder, "--by", "words")


def test_a_file_that_did_not_fit_in_memory_is_tried_again(
    folder: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine, or another setting, may have the memory."""
    (folder / "long.txt").write_text("seven wizards box " * 2_000)
    with monkeypatch.context() as small:
        small.setenv("LLN_ENGINE__MAX_SWEEP_BYTES", "300000")
        [summary] = run("index", folder, "--model", model)
        assert (summary["read"], list(summary["problems"])) == (3, ["long.txt"])
        assert "memory" in summary["problems"]["long.txt"]
        before = _changes(folder)
        [summary] = run("index", folder, "--model", model)
        assert (summary["unchanged"], summary["problems"]) == (4, {})
        assert _changes(folder) == before
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["unchanged"]) == (1, 3)
    assert run("search", "wizards", "--index", folder, "--by", "words")


def _changes(folder: Path) -> int:
    with IndexStore.open(folder / PLACE) as store:
        return store.changes


def test_a_damaged_file_does_not_end_the_job(
    folder: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in fails as no file is known to make a reader fail now."""

    def failing(content: bytes) -> None:
        raise RecursionError("too deep")

    monkeypatch.setitem(READERS, ".html", failing)
    [summary] = run("index", folder, "--model", model)
    problems = {"deep/wizards.html": "its reader failed: RecursionError: too deep"}
    assert (summary["read"], summary["problems"]) == (2, problems)


def test_a_file_on_which_the_device_fails_is_named(
    folder: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in fails as few models do."""

    async def failing(*_: object, **__: object) -> None:
        raise DeviceFailure("not finite", code="non_finite_output")

    monkeypatch.setattr(AsyncEngine, "embed_document", failing)
    assert run("index", folder, "--model", model) == "lln: deep/attention.txt: not finite"


def test_a_full_queue_is_waited_for(
    folder: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):
        (folder / f"{number}.txt").write_text(f"{number} foxes jump over dogs. " * 200)
    monkeypatch.setenv("LLN_ENGINE__MAX_QUEUE_TOKENS", "64")
    [summary] = run("index", folder, "--model", model)
    assert (summary["read"], summary["problems"]) == (11, {})
