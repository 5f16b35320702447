"""Documents for training: reading, splitting, and drawing windows."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.errors import InvalidInput
from engine.evaluation.corpora import load_corpus
from engine.evaluation.trained_texts import roff_sections, split_title
from engine.training.data import (
    Document,
    fingerprint,
    for_training,
    held_out,
    read_documents,
    texts_of,
    training_parts,
)
from engine.training.token_corpus import TokenCorpus

DOCUMENTS = [Document(str(n), f"title {n}", f"the text number {n}") for n in range(400)]


def test_folders_are_read_with_compressed_files(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# one")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.rst.gz").write_bytes(gzip.compress("zwei ß".encode()))
    (tmp_path / "c.bin").write_bytes(b"\x00")
    (tmp_path / "d.txt").write_text(" \n")
    found = read_documents(tmp_path)
    assert [(one.name, one.body) for one in found] == [
        ("a.md", "# one"),
        ("sub/b.rst.gz", "zwei ß"),
    ]


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "one", "title": "t"}) + "\n" + json.dumps({"text": "two"}))
    assert read_documents(path) == [Document("0", "t", "one"), Document("1", "", "two")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": 1}', 'row 0 of a.jsonl has no "text"'),
        ("a.jsonl", '{"text": "x"}\nnot json', "line 2, is not JSON"),
        ("a.txt", "   ", "holds no text"),
    ],
)
def test_data_that_cannot_be_used(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidInput, match=message):
        read_documents(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "one"}\n{"text": "\xff"}', "a.jsonl, line 2, is not UTF-8 text"),
        ("a.jsonl", b'{"text": "\\ud800"}', "row 0 of a.jsonl has half of a surrogate pair"),
        ("a.jsonl", b'{"text": "x", "title": "\\udfff"}', "half of a surrogate pair"),
        ("a.jsonl", b"[" * 100_000, "line 1, is not JSON"),
        ("a.txt.gz", gzip.compress(b"a text" * 50)[:-12], "a.txt.gz cannot be decompressed"),
        ("a.txt.gz", b"plain text", "a.txt.gz cannot be decompressed"),
        ("a.md", b"caf\xe9", "a.md is not UTF-8 text: byte 3"),
    ],
    ids=["bytes", "surrogate", "in a title", "nested", "cut off", "not gzip", "another encoding"],
)
def test_files_that_are_damaged(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        read_documents(tmp_path / name)


def test_a_folder_named_like_a_text_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "linux.md").mkdir()
    (tmp_path / "linux.md" / "a.txt").write_text("one")
    assert [one.name for one in read_documents(tmp_path)] == ["linux.md/a.txt"]


def test_each_text_is_trained_on_once_and_never_held_out_elsewhere() -> None:
    twins = [Document("twin", f"another title {n}", one.body) for n, one in enumerate(DOCUMENTS)]
    sources = {"one": DOCUMENTS, "same": DOCUMENTS, "other titles": twins}
    parts = training_parts(sources)
    trained = [one.body for part in parts.values() for one in part]
    held = {one.body for documents in sources.values() for one in held_out(documents)}
    assert len(trained) == len(set(trained))
    assert not held.intersection(trained)
    assert held.union(trained) == {one.body for one in DOCUMENTS}
    assert training_parts({"one": DOCUMENTS}) == {"one": for_training(DOCUMENTS)}


def test_a_text_is_trained_on_for_each_of_its_queries() -> None:
    asked = [replace(one, query=f"query {n}") for one in DOCUMENTS for n in (0, 1, 0)]
    rest = for_training(DOCUMENTS)
    [part] = training_parts({"one": asked}).values()
    assert part == [replace(one, query=f"query {n}") for one in rest for n in (0, 1)]
    assert texts_of([part]) == [one.body for one in rest]
    kept_away = [replace(one, title=f"{one.title}!", query="?") for one in held_out(DOCUMENTS)]
    assert for_training(kept_away)
    assert training_parts({"one": DOCUMENTS, "two": kept_away})["two"] == []


def test_the_split_is_complete_and_stable() -> None:
    held, rest = held_out(DOCUMENTS), for_training(DOCUMENTS)
    assert len(held) + len(rest) == 400
    assert 50 < len(held) < 110
    assert set(held_out(DOCUMENTS[:100])) == set(held) & set(DOCUMENTS[:100])


def test_fingerprints_depend_on_texts_not_on_order() -> None:
    assert fingerprint(DOCUMENTS) == fingerprint(reversed(DOCUMENTS))
    assert fingerprint(DOCUMENTS) != fingerprint(DOCUMENTS[1:])


def test_windows_lie_within_one_document() -> None:
    documents = [np.full(length, value, np.int32) for value, length in enumerate((5, 30, 90))]
    corpus = TokenCorpus(documents, np.array([-1], np.int32), np.array([-2], np.int32))
    batch = corpus.batch(22, 40, np.random.default_rng(0))
    seen = set()
    for start, end in batch.spans:
        window = batch.ids[start:end].tolist()
        assert (window[0], window[-1], len(window)) == (-1, -2, 22)
        assert len(set(window[1:-1])) == 1
        seen.add(window[1])
    assert seen == {1, 2}
    again = corpus.batch(22, 40, np.random.default_rng(0))
    assert again.ids.tolist() == batch.ids.tolist()


def test_windows_longer_than_every_document() -> None:
    corpus = TokenCorpus([np.ones(5, np.int32)], np.zeros(0, np.int32), np.zeros(0, np.int32))
    with pytest.raises(InvalidInput, match="no document has 6 tokens"):
        corpus.batch(6, 1, np.random.default_rng(0))


def test_titles_are_taken_out_of_their_pages() -> None:
    page = ".. SPDX\n\n=====\nTitle\n=====\n\nBody\n----\ntext"
    assert split_title(page) == ("Title", "Body\n----\ntext")
    assert split_title("no heading") == ("", "no heading")


def test_manual_pages_become_text() -> None:
    page = (
        '.TH a 1\n.SH NAME\na \\- does \\fBit\\fP\n.SH SEE ALSO\n.BR b (2),\n.PP\n.B "c d"\nend\n'
    )
    assert roff_sections(page) == {"NAME": "a - does it", "SEE ALSO": "b(2),\n\nc d\nend"}


def test_a_speech_does_not_hold_its_query() -> None:
    corpus = load_corpus("speeches")
    assert len(corpus.documents) > 200
    for document in corpus.documents:
        assert document.query
        assert document.query not in document.body


def test_an_unknown_corpus() -> None:
    with pytest.raises(InvalidInput, match="choose one of kernel, python, speeches"):
        load_corpus("novels")
