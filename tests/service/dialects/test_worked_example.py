"""The example that people copy: it runs, it measures what it says, and the page has its table."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.service.conftest import RunningServer

ROOT = Path(__file__).resolve().parents[3]
FIRST = "The first paragraph says what all of this is about, and is never asked for. It goes on."
ASKED = "The second part is about {title}, and is long enough to be asked for."
REST = (
    "Nobody could say in which of the many rooms of the house the cat had slept, or why it was "
    "warm there when it rained so much outside, although all of them had looked for it in the "
    "evening, and in the morning of the same short day."
)
TEXT = f"# {{title}}\n\n{FIRST}\n\n{ASKED} {REST}\n"


@pytest.fixture(scope="module")
def example() -> Any:
    for package in ("voyageai", "chonkie", "langchain_text_splitters"):
        pytest.importorskip(package, reason="comes with the extra dialects")
    path = ROOT / "examples" / "contextual_chunks.py"
    spec = importlib.util.spec_from_file_location("contextual_chunks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_runs(
    example: Any, small_model: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for title in ("Harbours", "Mountains"):
        (tmp_path / f"{title}.md").write_text(TEXT.format(title=title))
    out = tmp_path / "figures.json"
    address = ["--url", small_model.http_url, "--out", str(out)]
    example.main(["--folder", str(tmp_path), *address])
    rows = json.loads(out.read_text())
    assert example.table(rows) == capsys.readouterr().out.strip()
    assert {(row["splitter"], row["asked by"], row["index"]) for row in rows} == {
        (splitter, kind, index)
        for splitter in ("chonkie", "LangChain")
        for kind in ("title and sentence", "sentence")
        for index in ("plain", "title before each chunk", "contextual")
    }
    assert {row["questions"] for row in rows} == {2}
    for row in rows:
        mean, low, high = row["mrr"]
        assert 0 <= low <= mean <= high <= 1
        assert row["index"] != "plain" or row["minus plain"] == [0, 0, 0]


@pytest.mark.parametrize("content", [None, "", "# A title\n\nOne short paragraph.\n"])
def test_documents_without_questions_are_refused(
    example: Any, content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "one.md").write_text(content)
    with pytest.raises(SystemExit):
        example.main(["--folder", str(tmp_path)])
    assert "documents has a paragraph to ask for" in capsys.readouterr().err


@pytest.mark.parametrize("splitter", ["chonkie", "LangChain"])
def test_chunks_put_together_are_the_document(example: Any, splitter: str) -> None:
    sentence = "These are words of a sentence, and there are not many of them. "
    text = f"A title\n\n{sentence * 30}\n\n\n{'word ' * 400}\n\n{sentence}\n"
    starts = example.chunk_starts(text, splitter)
    chunks = example.cut(text, starts)
    assert "".join(chunks) == text
    assert len(chunks) > 3
    assert all(chunk.strip() for chunk in chunks)


def test_a_question_is_not_in_its_document(example: Any) -> None:
    document = example.Document("Harbours", f"{FIRST}\n\n{ASKED} {REST}\n")
    text, [question] = example.with_questions(document, 7, most=3)
    assert text == f"Harbours\n\n{FIRST}\n\n{REST}\n"
    assert (question.sentence, question.document) == (ASKED, 7)
    assert text.index(REST) < question.answer_at < len(text)


def test_ranks_and_intervals(example: Any) -> None:
    index = np.eye(12, dtype=np.float32)
    asked = np.stack([index[0], index[0] + 0.5 * index[3], np.linspace(0, 1, 12)])
    ranks = example.reciprocal_ranks(asked, index, [0, 3, 0])
    assert ranks.tolist() == [1.0, 0.5, 0.0]
    same = example.interval(np.array([0.25, 0.25, 0.25]), np.array([0, 0, 1]))
    assert same == [0.25, 0.25, 0.25]
    mean, low, high = example.interval(np.array([0.0, 0.0, 1.0, 1.0]), np.array([0, 0, 1, 1]))
    assert (mean, low, high) == (0.5, 0.0, 1.0)


def test_the_page_has_the_table_of_the_stored_result(example: Any) -> None:
    stored = ROOT / "benchmarks" / "results" / "examples" / "contextual_chunks.json"
    page = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    assert example.table(json.loads(stored.read_text())) in page
