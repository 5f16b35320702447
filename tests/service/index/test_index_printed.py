"""What `lln` prints of others' files does not command the terminal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service.cli.__main__ import main
from service.cli.common import printable
from service.readers.files import readable_name
from tests.service.index.folder import Run

TITLE = "\x1b]0;mine\x07"
"""Sets the title of a terminal. Other such words write over what was printed before."""


def test_names_of_files_and_their_text_are_only_shown(
    folder: Path, model: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / f"{TITLE}\n.txt").write_bytes(b"caf\xe9")
    (folder / f"{TITLE}.md").write_text(f"A walrus{TITLE}\n\tsings.\x9b2J\n")
    assert main(["index", str(folder), "--model", model]) == 0
    shown = r"\x1b]0;mine\x07"
    assert rf"not read: {shown}\x0a.txt: it is not text in UTF-8" in capsys.readouterr().err
    assert main(["search", "walrus", "--index", str(folder), "--by", "words"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"1. {shown}.md, characters 0 to")
    assert f"A walrus{shown}\n\tsings." + r"\xc2\x9b2J" in printed
    assert "\x1b" not in printed


def test_names_that_differ_in_what_is_not_shown_are_told_apart() -> None:
    names = [b"a\x1b", rb"a\x1b", b"a\x9b", rb"a\x9b", "a\x9b".encode(), rb"a\xc2\x9b"]
    shown = {printable(readable_name(os.fsdecode(name))) for name in names}
    assert len(shown) == len(names)


def test_an_error_that_names_a_file_is_only_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", str(tmp_path / TITLE)]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_ends_of_lines_stay_where_a_text_has_them() -> None:
    assert printable("a\r\nb\tc\rd", lines=True) == "a\nb\tc\\x0dd"
    assert printable("a\nb\té") == "a\\x0ab\\x09é"
