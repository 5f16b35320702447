"""`lln embed --from` that goes on where an earlier run ended, and other jobs' work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.bulk import parts as bulk_parts
from tests.service.bulk.bulk_kills import kill_within_a_part
from tests.service.bulk.command import TEXTS, Run, expected, lines
from tests.service.processes import unheard
from tests.synced import note_syncs


@pytest.mark.long
def test_killed_within_a_part_and_run_again(model: str, run: Run, tmp_path: Path) -> None:
    """The output has the bytes of an undisturbed run, and what was done is not computed again."""
    corpus = tmp_path / "corpus.jsonl"
    with corpus.open("w") as file:
        for number in range(1_100):
            text = None if number % 300 == 7 else f"{TEXTS[number % 4]} {number} " * 4
            file.write(json.dumps({"id": number, "text": text}) + "\n")
    out, fresh = tmp_path / "out.parquet", tmp_path / "fresh.parquet"
    arguments = ["--from", str(corpus), "--model", model, "--out"]
    process = unheard("embed", *arguments, str(out))
    kill_within_a_part(process, tmp_path)
    [begun] = (tmp_path / "out.parquet.partial").glob("*.begun")
    with begun.open("ab") as file:
        file.write(begun.read_bytes()[:100])  # as if it had been killed while it wrote
    again = run(*arguments, out)
    assert again["resumed"] > 0
    assert again["resumed"] % bulk_parts.PART_ROWS, "a part that was begun went on"
    assert (again["texts"], again["bad"]) == (1_096, 4)
    assert run(*arguments, fresh)["resumed"] == 0
    assert out.read_bytes() == fresh.read_bytes()
    bad = (tmp_path / "out.parquet.bad.jsonl").read_bytes()
    assert bad == (tmp_path / "fresh.parquet.bad.jsonl").read_bytes()


def test_what_a_later_run_trusts_is_on_the_disk(
    corpus: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = corpus.with_name("out.npy")
    synced = note_syncs(monkeypatch)
    run("--from", corpus, "--out", out, "--model", model)
    work = out.with_name("out.npy.partial")
    of_a_part = [work / "000000.npy.draft", work, work / "000000.jsonl.draft", work]
    of_the_output = [work / "out.rows.jsonl.draft", out.parent, work / "out.npy.draft", out.parent]
    assert synced == [out.parent, work / "job.json.draft", work, *of_a_part, *of_the_output]


def test_changed_rows_are_computed_again(
    corpus: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = corpus.with_name("out.jsonl")
    arguments = ("--from", corpus, "--out", out, "--model", model)
    with monkeypatch.context() as killed:  # before it could throw its work away
        killed.setattr("service.bulk.job.shutil.rmtree", lambda _: None)
        run(*arguments)
    first = lines(out)
    corpus.write_text(json.dumps({"id": "doc0", "text": "seven wizards"}) + "\n")
    done = run(*arguments)
    assert (done["vectors"], done["resumed"]) == (1, 0)
    assert lines(out)[0]["embedding"] != first[0]["embedding"]


def test_work_that_says_not_whose_it_is_belongs_to_nobody(
    corpus: Path, model: str, run: Run, write_checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill while it is thrown away may leave parts of another model."""
    out = corpus.with_name("out.jsonl")
    arguments = ("--from", corpus, "--out", out, "--model")
    with monkeypatch.context() as killed:
        killed.setattr("service.bulk.job.shutil.rmtree", lambda _: None)
        run(*arguments, model)
    out.with_name("out.jsonl.partial").joinpath("job.json").unlink()
    other = str(write_checkpoint(seed=1))
    assert run(*arguments, other, "--replace")["resumed"] == 0
    vectors = [row["embedding"] for row in lines(out)]
    assert np.array_equal(np.array(vectors, np.float32), expected(other))


def test_the_time_left_counts_no_rows_of_earlier_runs(
    corpus: Path, model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[int, int]] = []

    def show(self: object, what: str, *, done: int, total: int, tokens: int) -> None:
        shown.append((done, total))

    monkeypatch.setattr("service.cli.progress.ProgressLine.show", show)
    monkeypatch.setattr(bulk_parts, "PART_ROWS", 2)
    arguments = ("--from", corpus, "--out", corpus.with_name("out.jsonl"), "--model", model)
    with monkeypatch.context() as killed:
        killed.setattr("service.bulk.job.shutil.rmtree", lambda _: None)
        run(*arguments)
    whole = corpus.stat().st_size
    assert shown[-1] == (whole, whole)
    with corpus.open("a") as file:
        file.write('"one more"\n')
    shown.clear()
    assert run(*arguments)["resumed"] == 4
    assert shown[-1] == (len('"one more"\n'),) * 2


def test_another_jobs_work_is_refused(
    corpus: Path, model: str, run: Run, write_checkpoint: Any
) -> None:
    out = corpus.with_name("out.npy")
    work = out.with_name("out.npy.partial")
    work.mkdir()
    (work / "job.json").write_text('{"model": "another"}')
    refused = run("--from", corpus, "--out", out, "--model", model)
    assert "has the unfinished work of another job" in refused
    assert "model" in refused
    assert run("--from", corpus, "--out", out, "--model", model, "--replace")["vectors"] == 4


def test_a_job_that_did_not_begin_leaves_the_output_guarded(
    corpus: Path, model: str, run: Run
) -> None:
    out = corpus.with_name("out.npy")
    job = ("--from", corpus, "--out", out)
    run(*job, "--model", model)
    assert "no-such-model" in run(*job, "--model", "no-such-model", "--replace")
    assert "exists; give another name, or --replace" in run(*job, "--model", model)
