"""A new model's folder: what stands in the way is told first, and what is left after a stop."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.adapt.new_folder import MARK, publish, workplace, write_whole
from engine.errors import InvalidInput

NAME = "work"


class Stopped(BaseException):
    """As a signal would."""


def test_a_place_to_work_is_gone_afterwards(tmp_path: Path) -> None:
    with workplace(tmp_path / "deep" / "out", NAME) as place:
        (place / "model").touch()
    assert list((tmp_path / "deep" / "out").iterdir()) == []


def test_after_a_failure_nothing_stands_in_the_way(tmp_path: Path) -> None:
    for out, was_there in ((tmp_path / "new", False), (tmp_path / "old", True)):
        if was_there:
            out.mkdir()
        with pytest.raises(Stopped), workplace(out, NAME):
            raise Stopped
        assert out.exists() == was_there
        assert not (out / NAME).exists()


def test_what_is_worth_going_on_from_stays(tmp_path: Path) -> None:
    with pytest.raises(Stopped), workplace(tmp_path, NAME, lambda place: place.exists()):
        raise Stopped
    (tmp_path / "part of the model").touch()
    with workplace(tmp_path, NAME) as place:
        assert place == tmp_path / NAME


def test_a_folder_of_the_same_name_is_somebody_elses(tmp_path: Path) -> None:
    theirs = tmp_path / NAME / "data.txt"
    theirs.parent.mkdir()
    theirs.write_text("mine")
    with pytest.raises(InvalidInput, match="not empty") as caught, workplace(tmp_path, NAME):
        pass
    assert caught.value.code == "folder_not_empty"
    assert theirs.read_text() == "mine"


def test_what_a_kill_leaves_is_known_and_taken_over(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / MARK).touch()
    with workplace(tmp_path, NAME) as place:
        assert (place / MARK).read_text().startswith("lln adapt works in this folder")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_and_a_file_are_refused(tmp_path: Path) -> None:
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


def test_a_part_of_a_model_lacks_what_every_loader_reads(
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


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_whole(path, lambda place: place.write_text("old"))

    def stopped(place: Path) -> None:
        place.write_text("ne")
        raise Stopped

    with pytest.raises(Stopped):
        write_whole(path, stopped)
    assert path.read_text() == "old"
