"""`lln embed --from ... --out ...`: what goes in, what comes out, and being killed in between."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from engine import Engine
from engine.model.quantized import quantize
from engine.platform.locks import writers_lock
from engine.types import ChunkPlan, Context, SentencePlan
from service.bulk import job as bulk_job
from service.bulk import parts as bulk_parts
from service.bulk.fields import Fields
from service.bulk.rows import BadRow, InputRow, TextRow
from service.bulk.space import DiskFull, check_space
from service.cli.__main__ import main
from tests.service.bulk.command import TEXTS, Run, expected, lines


def test_each_format_holds_the_same_vectors(
    corpus: Path, model: str, run: Run, tmp_path: Path
) -> None:
    for suffix in ("npy", "jsonl", "parquet"):
        done = run(
            *("--from", corpus, "--out", tmp_path / f"out.{suffix}", "--model", model),
            *("--keep", "year"),
        )
        assert (done["texts"], done["vectors"], done["bad"]) == (4, 4, 0)
        assert not (tmp_path / f"out.{suffix}.partial").exists()
    wanted = expected(model)
    assert np.array_equal(np.load(tmp_path / "out.npy"), wanted)
    rows = lines(tmp_path / "out.jsonl")
    assert np.array_equal(np.array([row["embedding"] for row in rows], np.float32), wanted)
    table = parquet.read_table(tmp_path / "out.parquet")
    assert np.array_equal(np.stack(table["embedding"].to_numpy(zero_copy_only=False)), wanted)
    assert table.schema.field("year").type == pyarrow.int64()
    for found in (lines(tmp_path / "out.rows.jsonl"), rows, table.to_pylist()):
        assert [row["id"] for row in found] == ["doc0", "doc1", "doc2", "doc3"]
        assert [row["year"] for row in found] == [2000, 2001, 2002, 2003]
        assert [row["end"] for row in found] == list(map(len, TEXTS))
        assert all(row["tokens"] == row["tokens_embedded"] > 2 for row in found)
        assert not any(row["truncated"] for row in found)


@pytest.mark.parametrize("dtype", ["float16", "int8", "ubinary"])
def test_vectors_in_fewer_bytes_are_those_of_the_server(
    dtype: Any, corpus: Path, model: str, run: Run, tmp_path: Path
) -> None:
    with Engine.load(model) as engine:
        vectors, info = engine.embed(TEXTS), engine.info
    for suffix in ("npy", "parquet"):
        out = tmp_path / f"out.{suffix}"
        run("--from", corpus, "--out", out, "--model", model, "--output-dtype", dtype)
    found = np.load(tmp_path / "out.npy")
    wanted = quantize(vectors, dtype, info)
    assert found.dtype == wanted.dtype
    assert np.array_equal(found, wanted)
    column = parquet.read_table(tmp_path / "out.parquet")["embedding"]
    assert column.type.list_size == wanted.shape[1]
    assert np.array_equal(np.stack(column.to_numpy(zero_copy_only=False)), wanted)


@pytest.mark.parametrize("room", [0, 700])
def test_a_full_disk_is_told_and_what_is_done_is_kept(
    corpus: Path, model: str, run: Run, tmp_path: Path, room: int
) -> None:
    arguments = ("--from", corpus, "--model", model, "--out")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limit[1]))
    try:
        refused = run(*arguments, tmp_path / "out.npy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert "out.npy cannot be written" in refused
    assert "make room, and run the same command again" in refused
    assert run(*arguments, tmp_path / "out.npy")["vectors"] == 4
    with pytest.raises(DiskFull, match="judged by the first rows"):
        check_space(tmp_path / "out.npy", rows=500, share=1e-12, dim=384)


def test_rows_without_a_text_say_nothing_of_the_space_that_is_needed(
    model: str, run: Run, tmp_path: Path
) -> None:
    """The size of a row that is never closed is not known."""
    (tmp_path / "open.csv").write_text('id,text\n1,"a\n2,b\n')
    done = run("--from", tmp_path / "open.csv", "--out", tmp_path / "out.npy", "--model", model)
    assert (done["texts"], done["vectors"], done["bad"]) == (0, 0, 1)


def test_chunks_are_rows_with_their_characters(model: str, run: Run, tmp_path: Path) -> None:
    text = " ".join(TEXTS * 6)
    (tmp_path / "one.txt").write_text(text)
    out = tmp_path / "out.jsonl"
    run(
        *("--from", tmp_path / "one.txt", "--out", out, "--model", model, "--keep", "text"),
        *("--chunks", "fixed", "--chunk-tokens", "40"),
    )
    with Engine.load(model) as engine:
        document = engine.embed_document(text, chunks=ChunkPlan(tokens=40))
    found = lines(out)
    assert len(found) == len(document.chunks) > 2
    for row, chunk in zip(found, document.chunks, strict=True):
        assert (row["chunk"], row["start"], row["end"]) == (chunk.index, *chunk.characters)
        assert row["text"] == text[row["start"] : row["end"]]
        assert np.array_equal(np.array(row["embedding"], np.float32), chunk.vector)


@pytest.mark.parametrize("context", ["opening", "alone", "late"])
def test_files_with_titles_are_embedded_in_every_context(
    model: str, run: Run, tmp_path: Path, context: Context
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "fox.md").write_text("# the fox\n\n" + TEXTS[0])
    out = tmp_path / "out.jsonl"
    how = ("--chunks", "sentences", "--context", context)
    assert run("--from", folder, "--out", out, "--model", model, *how)["bad"] == 0
    plan = SentencePlan(min_tokens=128, max_tokens=256, context=context)
    title = "the fox" if context == "opening" else None
    with Engine.load(model) as engine:
        document = engine.embed_document("# the fox\n\n" + TEXTS[0], chunks=plan, title=title)
    [row], [chunk] = lines(out), document.chunks
    assert np.array_equal(np.array(row["embedding"], np.float32), chunk.vector)


def test_bad_rows_go_to_a_file_of_their_own(model: str, run: Run, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes(
        b'{"id": 1, "text": "the fox"}\n'
        b'{"id": 2, "text": null}\n'
        b'{"id": 3, "text": "caf\xe9"}\n'
        b"{broken\n"
        b'{"id": 5}\n'
        b'{"id": 6, "text": "  "}\n'
        b'{"id": 7, "text": 7}\n'
        b'{"id": 8, "text": "\\ud800"}\n'
        b"[1]\n\n"
        b'{"id": 10, "text": "the dog", "title": null}\n'
        b'{"id": 11, "text": "the dog", "title": 11}\n'
        b'{"id": 12, "text": "the dog", "title": "\\u0000"}\n'
    )
    out = tmp_path / "out.jsonl"
    how = ("--chunks", "fixed", "--title-field", "title")
    done = run("--from", corpus, "--out", out, "--model", model, *how)
    assert (done["texts"], done["bad"]) == (3, 9)
    assert [row["id"] for row in lines(out)] == [1, 10, 12]
    bad = {row["id"]: row["code"] for row in lines(tmp_path / "out.jsonl.bad.jsonl")}
    assert bad == {
        2: "null_text",
        f"{corpus}:3": "not_utf8",
        f"{corpus}:4": "invalid_json",
        5: "no_text",
        6: "empty_text",
        7: "not_a_text",
        8: "not_utf8",
        f"{corpus}:9": "invalid_row",
        11: "not_a_text",
    }
    reasons = {row["id"]: row["reason"] for row in lines(tmp_path / "out.jsonl.bad.jsonl")}
    assert reasons[7] == "'text' must be a text, got 7"
    assert reasons[f"{corpus}:9"] == "a row must be an object or a text, got a list"


@pytest.mark.parametrize("suffix", [".jsonl", ".npy", ".parquet"])
def test_what_an_output_cannot_hold(model: str, run: Run, tmp_path: Path, suffix: str) -> None:
    """Found out with the row, and not when all rows are embedded."""
    corpus = tmp_path / "corpus.jsonl"
    large, deep = str(2**70), "[" * 400 + "]" * 400
    corpus.write_text(
        f'{{"id": {large}, "text": "the fox", "kept": {large}}}\n'
        f'{{"id": 2, "text": "the dog", "kept": {{"a": [{large}, NaN]}}}}\n'
        '{"id": 3, "text": "the cat", "kept": {"a": "\\ud800"}}\n'
        f'{{"id": 4, "text": "the cow", "kept": {deep}}}\n'
    )
    out = tmp_path / f"out{suffix}"
    done = run("--from", corpus, "--out", out, "--model", model, "--keep", "kept")
    assert (done["texts"], done["bad"]) == (3, 1)
    [bad] = lines(tmp_path / f"{out.name}.bad.jsonl")
    assert (bad["id"], bad["code"]) == (3, "not_utf8")
    rows = rows_in(out)
    assert [str(row["id"]) for row in rows] == [large, "2", "4"]
    assert [row["kept"] for row in rows] == [large, f'{{"a": [{large}, NaN]}}', deep]


def rows_in(out: Path) -> list[dict[str, Any]]:
    if out.suffix == ".parquet":
        found: list[dict[str, Any]] = (
            pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
        )
        return found
    return lines(out if out.suffix == ".jsonl" else out.with_suffix(".rows.jsonl"))


@pytest.mark.parametrize("suffix", [".jsonl", ".npy"])
def test_a_file_whose_name_is_not_utf8(model: str, run: Run, tmp_path: Path, suffix: str) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / os.fsdecode(b"caf\xe9.txt")).write_text("the fox")
    out = tmp_path / f"out{suffix}"
    run("--from", folder, "--out", out, "--model", model, "--keep", "file")
    [row] = rows_in(out)
    assert row["id"] == row["file"] == "caf\\xe9.txt"


def test_a_field_to_keep_that_no_row_has_is_told(
    corpus: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["embed", "--from", str(corpus), "--model", model, "--keep", "year,yaer"]
    titled = ["--chunks", "fixed", "--title-field", "titel"]
    assert main([*command, *titled, "--out", str(tmp_path / "out.npy")]) == 0
    told = capsys.readouterr().err
    assert told.count("no row so far has a value of yaer, which --keep names\n") == 1
    assert told.count("no row so far has a value of titel, which --title-field names\n") == 1


def test_a_text_that_is_too_long_is_a_bad_row(
    model: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLN_ENGINE__MAX_SOFTMAX_TEXT_TOKENS", "64")
    (tmp_path / "long.txt").write_text("fox " * 200)
    (tmp_path / "short.txt").write_text("fox")
    source = ("--from", tmp_path / "*.txt", "--model", model)
    assert run(*source, "--out", tmp_path / "one.npy")["bad"] == 1
    [bad] = lines(tmp_path / "one.npy.bad.jsonl")
    assert (bad["id"], bad["code"]) == (str(tmp_path / "long.txt"), "text_too_long")
    run(*source, "--out", tmp_path / "two.jsonl", "--truncate", "end")
    first = lines(tmp_path / "two.jsonl")[0]
    assert first["truncated"]
    assert first["tokens_embedded"] == 64 < first["tokens"]
    assert first["dropped_end"] == 799


def test_standard_input(model: str, run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    piped = tmp_path / "piped"
    piped.write_text('{"text": "the fox"}\n"seven wizards"\n')
    with piped.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        run("--from", "-", "--out", tmp_path / "out.jsonl", "--model", model)
    assert [row["id"] for row in lines(tmp_path / "out.jsonl")] == ["stdin:1", "stdin:2"]


def test_parts_depend_on_the_rows_alone() -> None:
    rows: list[InputRow] = [TextRow(id=number, text="x" * 900) for number in range(1_000)]
    rows.insert(3, TextRow(id="long", text="y" * 4 * bulk_parts.PART_TOKENS))
    rows.append(BadRow(id=9, code="null_text", reason="null"))
    parts = list(bulk_parts.split(rows))
    assert [len(part.rows) for part in parts] == [3, 1, 207, 207, 207, 207, 170]
    again = bulk_parts.split(iter(rows))
    assert [part.digest for part in again] == [part.digest for part in parts]


def test_what_is_refused(corpus: Path, model: str, run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    source = ("--from", corpus, "--model", model)
    assert "--from and --out belong together" in run(*source)
    assert "unknown format of the output '.txt'" in run(*source, "--out", tmp_path / "out.txt")
    assert "unknown format of the output ''" in run(*source, "--out", ".")
    assert "names no file" in run("--from", tmp_path / "none*.txt", "--out", out)
    assert "--context needs --chunks" in run(*source, "--out", out, "--context", "late")
    assert "context alone uses no title, so the field t has no effect" in run(
        *(*source, "--out", out, "--chunks", "fixed", "--title-field", "t", "--context", "alone")
    )
    assert "has a tokens of its own" in run(*source, "--out", out, "--keep", "tokens")
    assert "cannot be combined" in run("A text.", *source, "--out", out)
    assert "dimensions must be 1 to 64" in run(*source, "--out", out, "--dimensions", "999")
    csv = tmp_path / "rows.csv"
    csv.write_text("body\nfox\n")
    assert "has no column 'text'; it has body" in run("--from", csv, "--out", out, "--model", model)
    run("--from", csv, "--out", out, "--model", model, "--text-field", "body", "--replace")
    assert "exists; give another name, or --replace" in run(*source, "--out", out)
    assert run(*source, "--out", out, "--replace")["vectors"] == 4
    other = tmp_path / "other.npy"
    with writers_lock(bulk_job.prepare(_job(other)) / "lock", "it"):
        assert "another lln" in run(*source, "--out", other)


def _job(out: Path) -> Any:
    from service.bulk.rows import RowOptions

    return bulk_job.BulkJob(
        sources=[],
        fields=Fields(),
        how=RowOptions(model="default"),
        out=out,
        bad=out.with_suffix(".bad"),
    )


def test_a_folder_may_hold_the_jobs_own_files(model: str, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "fox.txt").write_text("the quick brown fox")
    (folder / "z.txt").write_bytes(b"\xff")
    out = folder / "out.jsonl"
    work = folder / "out.jsonl.partial"
    work.mkdir()
    (work / "000007.jsonl").write_text('{"text": "of an earlier run"}')
    job = ("--from", folder, "--out", out, "--model", model)
    done = run(*job)
    assert (done["texts"], done["bad"]) == (1, 1)
    assert run(*job, "--replace") == done
    done = run("--from", f"{folder}/*", *job[2:], "--replace")
    assert (done["texts"], done["bad"]) == (1, 1)


def test_a_full_queue_is_waited_for(
    model: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLN_ENGINE__MAX_QUEUE_TOKENS", "64")
    corpus = tmp_path / "corpus.jsonl"
    rows = [json.dumps({"text": f"{text} " * 50}) for text in TEXTS]
    corpus.write_text("\n".join(rows * 4))
    out = tmp_path / "out.npy"
    how = ("--chunks", "fixed", "--chunk-tokens", "32")
    done = run("--from", corpus, "--out", out, "--model", model, *how)
    assert (done["texts"], done["bad"]) == (16, 0)


def test_whole_numbers_among_others_keep_their_digits(model: str, run: Run, tmp_path: Path) -> None:
    """A column of Parquet has one type, and a float holds no more than 53 bits."""
    corpus = tmp_path / "corpus.jsonl"
    kept: dict[str, list[Any]] = {
        "wide": [2**60 + 1, 3],
        "mixed": [2**60 + 1, 0.5],
        "small": [3, 0.5],
    }
    rows = [{"text": "the fox", **{name: pair[at] for name, pair in kept.items()}} for at in (0, 1)]
    corpus.write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out.parquet"
    run("--from", corpus, "--out", out, "--model", model, "--keep", "wide,mixed,small")
    found = rows_in(out)
    assert {name: [row[name] for row in found] for name in kept} == {
        "wide": [2**60 + 1, 3],
        "mixed": [str(2**60 + 1), "0.5"],
        "small": [3.0, 0.5],
    }
