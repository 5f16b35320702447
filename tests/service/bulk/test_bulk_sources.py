"""What `lln embed --from` reads: files, folders, URLs, and what files say of themselves."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import fsspec
import orjson
import pyarrow
import pytest
from pyarrow import parquet

from engine.errors import InvalidInput
from service.bulk.fields import Fields
from service.bulk.rows import BadRow, TextRow
from service.bulk.source_rows import rows_of
from service.bulk.sources import find_sources, total_bytes
from service.readers.extracted import told_title
from service.readers.files import files_in


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


def test_a_file_that_is_named_twice_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("a.md", "b.md"):
        (tmp_path / "docs" / name).write_text(name)
    monkeypatch.chdir(tmp_path)
    given = ["docs", "docs/a.md", f"{tmp_path}/docs/../docs/b.md", "docs/*.md"]
    assert [source.name for source in find_sources(given)] == ["a.md", "b.md"]


def test_documents_that_nobody_could_tell_apart(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "README.md").write_text(folder)
        (tmp_path / folder / "rows.jsonl").write_text('{"id": 1, "text": "row"}')
    given = [str(tmp_path / folder) for folder in ("one", "two")]
    with pytest.raises(InvalidInput, match=r"would both have the id README\.md") as refused:
        find_sources(given)
    assert str(tmp_path / "one" / "README.md") in refused.value.message
    assert (refused.value.code, refused.value.actual) == ("same_id", "README.md")
    for folder in given:
        (Path(folder) / "README.md").unlink()
    assert len(find_sources(given)) == 2, "rows have ids of their own"


def test_documents_of_names_that_look_alike(tmp_path: Path) -> None:
    for name in (b"caf\xe9.txt", rb"caf\xe9.txt"):
        (tmp_path / os.fsdecode(name)).write_text("A text.")
    found = {source.name for source in find_sources([str(tmp_path)])}
    assert found == {r"caf\xe9.txt", r"caf\x5cxe9.txt"}


def test_a_file_that_goes_before_it_is_read_is_a_bad_row(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    sources = find_sources([str(tmp_path)])
    (tmp_path / "a.txt").unlink()
    assert total_bytes(sources) == 5
    gone, row = rows_of(sources, Fields())
    assert isinstance(gone, BadRow)
    assert (gone.id, gone.code, row.id) == ("a.txt", "unreadable", "b.txt")


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
    with served(partial(SimpleHTTPRequestHandler, directory=str(tmp_path))) as address:
        for url in (f"{address}/rows.jsonl", f"{address}/rows.jsonl?signature=a.b"):
            assert read(url) == [(f"{url}:1", "over HTTP")]
    for url in ("memory://none.csv", "nothing://here"):
        with pytest.raises(InvalidInput, match=f"{url} cannot be read"):
            find_sources([url])


@contextmanager
def served(handler: Any) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class BrokenServer(BaseHTTPRequestHandler):
    """Ends its answers early, has none, or does not say how long they are."""

    def do_GET(self) -> None:
        if "error" in self.path:
            self.send_error(503)
            return
        self.send_response(200)
        if "unannounced" not in self.path:
            self.send_header("content-length", "1000")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(b"the fox")

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def test_a_server_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("service.bulk.remote", "service.readers.files"):
        monkeypatch.setattr(f"{module}.MAX_FILE_BYTES", 5)
    with served(BrokenServer) as address:
        with pytest.raises(InvalidInput, match="cannot be read"):
            find_sources([f"{address}/error.txt"])
        sources = find_sources([f"{address}/cut.jsonl"])
        with pytest.raises(OSError, match="payload"):
            list(rows_of(sources, Fields()))
        [row] = rows_of(find_sources([f"{address}/unannounced.txt"]), Fields())
        assert isinstance(row, BadRow)
        assert row.code == "file_too_large"


def test_nothing_of_a_csv_row_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(
        'id,text\n1,"fox, hen"\n2,fox, hen\n3,fox,\n4,"fox" and hen\n5,hen\n6,"open\n7,fox\n'
    )
    found = list(rows_of(find_sources([str(path)]), Fields()))
    assert [(row.id, row.text) for row in found if isinstance(row, TextRow)] == [
        ("1", "fox, hen"),
        ("3", "fox"),
        ("5", "hen"),
    ]
    bad = {row.id: row.reason for row in found if isinstance(row, BadRow)}
    assert list(bad) == [f"{path}:{line}" for line in (3, 5, 7)]
    assert bad[f"{path}:3"] == "the row has 3 cells, the file 2 columns"
    assert bad[f"{path}:7"] == "a quotation mark is never closed"
    path.write_text('id,"text')
    with pytest.raises(InvalidInput, match="a quotation mark is never closed"):
        list(rows_of(find_sources([str(path)]), Fields()))


@pytest.mark.parametrize("names", ["text,id", '"text","id"'])
def test_a_csv_in_utf_16_is_told_as_such(names: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(f"{names}\r\nA text.,1\r\n".encode("utf-16"))
    [row] = rows_of(find_sources([str(path)], "auto"), Fields())
    assert isinstance(row, BadRow)
    assert (row.id, row.code) == (str(path), "not_utf8")
    assert "UTF-16" in row.reason


def test_ids_of_all_kinds_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    ids = [1.0, 2.5, True, [1, "a"], None, float("inf"), 2**70]
    path.write_bytes(b"".join(b'{"text": "fox", "id": %s}\n' % _json(one) for one in ids))
    found = [row.id for row in rows_of(find_sources([str(path)]), Fields())]
    place = f"{path}:"
    assert found == [1, "2.5", "true", '[1, "a"]', f"{place}5", f"{place}6", str(2**70)]


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def test_values_that_nest_deeply_can_be_written(tmp_path: Path) -> None:
    """Or are refused with their row: reading or writing them ends no job."""
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(
            f'{{"text": "fox", "kept": {"[" * depth}{"]" * depth}}}\n'
            for depth in (*range(245, 260), *range(600, 1010))
        )
    )
    for row in rows_of(find_sources([str(path)]), Fields(keep=("kept",))):
        if isinstance(row, TextRow):
            assert orjson.dumps({**row.kept, "embedding": []})
        else:
            assert row.code == "invalid_json"


def test_a_row_that_has_a_field_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "fox", "text": "dog"}\n{"text": "fox", "kept": {"a": 1, "a": 2}}\n')
    for row, name in zip(rows_of(find_sources([str(path)]), Fields()), ("text", "a"), strict=True):
        assert isinstance(row, BadRow)
        assert (row.code, row.reason) == ("repeated_field", f"{name} appears twice")


def test_a_table_that_has_a_column_twice_is_refused(tmp_path: Path) -> None:
    """If it is one that is read: which of the two is meant, nobody could tell."""
    names = ["id", "text", "id"]
    (tmp_path / "rows.csv").write_text("id,text,id\n1,fox,2\n")
    columns = [pyarrow.array(["1"]), pyarrow.array(["fox"]), pyarrow.array(["2"])]
    parquet.write_table(pyarrow.Table.from_arrays(columns, names=names), tmp_path / "rows.parquet")
    for name in ("rows.csv", "rows.parquet"):
        sources = find_sources([str(tmp_path / name)])
        with pytest.raises(InvalidInput, match="has more than one column 'id'; it has id, text"):
            list(rows_of(sources, Fields()))
        [row] = rows_of(sources, Fields(id="number"))
        assert isinstance(row, TextRow)


@pytest.mark.parametrize("content", ["", " \n\t", "\ufeff"])
def test_a_file_without_text_is_a_bad_row(content: str, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(content)
    [row] = rows_of(find_sources([str(tmp_path)]), Fields())
    assert isinstance(row, BadRow)
    assert (row.id, row.code, row.reason) == ("empty.txt", "empty_text", "it has no text")


def test_a_damaged_parquet_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"text": ["the fox " * 50] * 500}), path, compression="none")
    content = bytearray(path.read_bytes())
    content[100:200] = b"\xff" * 100
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="cannot be read to its end"):
        list(rows_of(find_sources([str(path)]), Fields()))


def test_folders_a_thousand_deep(tmp_path: Path) -> None:
    folders = [tmp_path / "docs"]
    folders[0].mkdir()
    for _ in range(1200):
        folders.append(folders[-1] / "d")
        folders[-1].mkdir()
    file = folders[-1] / "a.txt"
    file.write_text("the fox")
    assert [source.path for source in find_sources([str(folders[0])])] == [file]
    file.unlink()
    for folder in reversed(folders):  # pytest would remove them by recursion
        folder.rmdir()


def test_a_folder_that_becomes_a_file_while_it_is_listed(tmp_path: Path) -> None:
    for name in ("a/one.txt", "b/two.txt", "c/three.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("the fox")
    listed = files_in(tmp_path)
    assert next(listed) == tmp_path / "a/one.txt"
    shutil.rmtree(tmp_path / "b")
    (tmp_path / "b").write_text("the dog")
    assert list(listed) == [tmp_path / "c/three.txt"]
