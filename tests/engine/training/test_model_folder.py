"""A new model's folder: when it is rejected, and what an interruption leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.errors import InvalidInput
from engine.platform.locks import AlreadyRunning
from engine.training.model_folder import MARK, publish, workplace, write_whole
from tests.synced import note_syncs

NAME = "work"


class Stopped(BaseException):
    """Raised like a signal."""


def test_a_workplace_is_removed_afterwards(tmp_path: Path) -> None:
    with workplace(tmp_path / "deep" / "out", NAME) as place:
        (place / "model").touch()
    assert list((tmp_path / "deep" / "out").iterdir()) == []


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    for out, was_there in ((tmp_path / "new", False), (tmp_path / "old", True)):
        if was_there:
            out.mkdir()
        with pytest.raises(Stopped), workplace(out, NAME):
            raise Stopped
        assert out.exists() == was_there
        assert not (out / NAME).exists()


def test_a_resumable_workplace_is_kept(tmp_path: Path) -> None:
    with pytest.raises(Stopped), workplace(tmp_path, NAME, lambda place: place.exists()):
        raise Stopped
    (tmp_path / "part of the model").touch()
    with workplace(tmp_path, NAME) as place:
        assert place == tmp_path / NAME


def test_a_folder_without_the_mark_is_the_users(tmp_path: Path) -> None:
    theirs = tmp_path / NAME / "data.txt"
    theirs.parent.mkdir()
    theirs.write_text("mine")
    with pytest.raises(InvalidInput, match="not empty") as caught, workplace(tmp_path, NAME):
        pass
    assert caught.value.code == "folder_not_empty"
    assert theirs.read_text() == "mine"


def test_a_killed_runs_workplace_is_reused(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / MARK).touch()
    with workplace(tmp_path, NAME) as place:
        assert (place / MARK).read_text().startswith("lln adapt works in this folder")
    assert list(tmp_path.iterdir()) == []


def test_one_process_at_a_time_works_in_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with workplace(out, NAME) as place:
        (place / "model").touch()
        with pytest.raises(AlreadyRunning, match="is being written"), workplace(out, NAME):
            pass
        assert (place / "model").exists()
    assert list(out.iterdir()) == []


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught, workplace(tmp_path, NAME):
        Path("/dev/full").write_text("x")
    assert caught.value.filename == str(tmp_path)


def test_a_folder_in_use_and_a_file_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(InvalidInput, match="not empty"), workplace(tmp_path, NAME):
        pass
    with pytest.raises(NotADirectoryError), workplace(tmp_path / "a file", NAME):
        pass


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError), workplace(tmp_path / "out", NAME):
        pass


def test_a_model_published_in_part_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, out = tmp_path / "built", tmp_path / "out"
    for folder in (built / "1_Pooling", out / "1_Pooling"):  # the latter by a stop before
        folder.mkdir(parents=True)
        (folder / "config.json").touch()
    for name in ("config.json", "lln.safetensors", "modules.json", "tokenizer.json"):
        (built / name).touch()
    moved: list[str] = []
    move = Path.replace

    def noted(entry: Path, place: Path) -> Path:
        moved.append(entry.name)
        return move(entry, place)

    monkeypatch.setattr(Path, "replace", noted)
    publish(built, out)
    assert moved[-2:] == ["modules.json", "config.json"]
    assert set(moved) == {entry.name for entry in out.iterdir()}
    assert list(built.iterdir()) == []


def test_a_file_is_complete_or_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_whole(path, lambda place: place.write_text("old"))

    def stopped(place: Path) -> None:
        place.write_text("ne")
        raise Stopped

    with pytest.raises(Stopped):
        write_whole(path, stopped)
    assert path.read_text() == "old"


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = note_syncs(monkeypatch)
    write_whole(tmp_path / "state", lambda place: place.write_text("new"))
    assert synced == [tmp_path / "state.new", tmp_path]


def test_a_model_is_on_the_disk_before_its_workplace_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, out = tmp_path / "built", tmp_path / "out"
    (built / "1_Pooling").mkdir(parents=True)
    out.mkdir()
    written = [built / "model.safetensors", built / "1_Pooling" / "config.json"]
    for path in written:
        path.write_text("content")
    synced = note_syncs(monkeypatch)
    publish(built, out)
    assert synced[-1] == out
    assert {*written, built / "1_Pooling"} <= set(synced)
