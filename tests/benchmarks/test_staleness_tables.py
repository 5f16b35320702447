"""What docs/evaluation/living.md says of edits is what the stored readings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.living.staleness import judge

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "evaluation" / "living.md").read_text("utf-8")
STORED = ROOT / "benchmarks" / "results" / "living"


@pytest.mark.parametrize(
    "name", ["judge", "judge-documents", "judge-64k-documents", "judge-64k-default"]
)
def test_chunks_that_edits_keep(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    judge([STORED / f"{name}.jsonl"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert len(rows) > 6
    for edit, kept, mean, worst, *_ in rows:
        if edit == "all" and name == "judge":  # in a sentence
            assert f"all {kept} within the stated bound" in PAGE
        else:
            assert f"| {int(kept):,} | {mean} | {worst} |" in PAGE, edit
