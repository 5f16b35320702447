"""What `lln embed --from` reads: files, folders, URLs, and what files say of themselves."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import pyarrow
import pytest
from pyarrow import parquet

from engine.errors import InvalidInput
from service.bulk.rows import TextRow
from service.bulk.sources import Fields, find_sources, rows_of
from service.readers.extracted import told_title


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        (None, None),
        ("", None),
        (" \n\t", None),
        ("\0\u200b", None),
        ("The  fox\nand the dog", "The fox and the dog"),
        ("fox \ud800", "fox"),
        ("fox " * 600, "fox " * 29 + "fox"),
    ],
)
def test_what_a_file_says_it_is_called(stated: str | None, told: str | None) -> None:
    """However long or odd it is, the file is read."""
    assert told_title(stated) == told


def test_sources(tmp_path: Path) -> None:
    """Folders, globs, CSV, Parquet and lines, each with ids that tell where a row is from."""
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    (tmp_path / "docs" / "a.md").write_text("# Title\n\nText.")
    (tmp_path / "docs" / "deep" / "b.html").write_text("<title>B</title><p>Bee</p>")
    (tmp_path / "docs" / "c.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "rows.csv").write_bytes(b'text,id\n"two\nlines",x\ncaf\xe9,y\n')
    (tmp_path / "lines.txt").write_text("one\n\ntwo\r\n")
    table = pyarrow.table({"text": ["p", None], "number": [1, 2]})
    parquet.write_table(table, tmp_path / "rows.parquet")

    def read(*given: str, form: Any = "auto", **fields: Any) -> list[Any]:
        sources = find_sources([str(tmp_path / one) for one in given], form)
        found = rows_of(sources, Fields(**fields))
        return [(row.id, row.text if isinstance(row, TextRow) else row.code) for row in found]

    folder = [("a.md", "# Title\n\nText."), ("c.png", "not_text"), ("deep/b.html", "Bee")]
    assert read("docs") == folder
    assert read("docs/*.md") == [(str(tmp_path / "docs/a.md"), "# Title\n\nText.")]
    assert read("rows.csv") == [("x", "two\nlines"), ("y", "not_utf8")]
    assert read("lines.txt", form="lines") == [
        (f"{tmp_path}/lines.txt:1", "one"),
        (f"{tmp_path}/lines.txt:3", "two"),
    ]
    assert read("rows.parquet", id="number") == [(1, "p"), (2, "null_text")]
    [row, _] = rows_of(find_sources([str(tmp_path / "rows.parquet")]), Fields(keep=("number",)))
    assert isinstance(row, TextRow)
    assert row.kept == {"number": 1}


def test_urls(tmp_path: Path) -> None:
    """Files, folders and globs behind a URL, and one that a server on this machine sends."""
    memory = fsspec.filesystem("memory")
    memory.pipe({"/docs/a.md": b"# Title", "/docs/deep/b.txt": b"Bee", "/rows.csv": b"text\nfox\n"})
    table = pyarrow.table({"text": ["p"]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    memory.pipe("/rows.parquet", (tmp_path / "rows.parquet").read_bytes())

    def read(url: str) -> list[Any]:
        found = rows_of(find_sources([url]), Fields())
        return [(row.id, row.text) for row in found if isinstance(row, TextRow)]

    folder = [("memory:///docs/a.md", "# Title"), ("memory:///docs/deep/b.txt", "Bee")]
    assert read("memory://docs") == folder
    assert read("memory://docs/*.md") == folder[:1]
    assert read("memory://rows.csv") == [("memory:///rows.csv:2", "fox")]
    assert read("memory://rows.parquet") == [("memory:///rows.parquet:1", "p")]
    (tmp_path / "rows.jsonl").write_text('{"text": "over HTTP"}')
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/rows.jsonl"
        assert read(url) == [(f"{url}:1", "over HTTP")]
        server.shutdown()
    for url in ("memory://none.csv", "nothing://here"):
        with pytest.raises(InvalidInput, match=f"{url} cannot be read"):
            find_sources([url])
