"""What commands say of options and files that they cannot use."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli.__main__ import main
from service.cli.command_line import system_message


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["embed"], "nothing to embed: give a text, '-' for standard input, or --file"),
        (["embed", "--file", "/nowhere.txt"], "/nowhere.txt: No such file or directory"),
        (
            ["embed", "A text.", "--file", "/nowhere.txt"],
            "texts without a switch and --file cannot be combined: run lln embed once for each",
        ),
        (
            ["embed", "A text.", "--lines"],
            "--lines needs something to read: give '-' for standard input, or --file",
        ),
        (["diagnose", ""], "the name of a file is empty"),
        (["diagnose", "/nowhere.txt"], "/nowhere.txt: No such file or directory"),
        (
            ["diagnose", "The cat sat."],
            "there is no file 'The cat sat.'; to diagnose a text, give '-' and send the text to "
            "standard input",
        ),
        (
            ["adapt", "default", "--out", "/dev/null/m", "--block-size", "10"],
            "block_size must be a positive multiple of 16, got 10",
        ),
        (
            ["adapt", "default", "--out", "/dev/null/m", "--long-block", "4096:256"],
            "long_block.size must be below 256, got 256",
        ),
        (
            ["adapt", "default", "--out", "/dev/null/m", "--rise", "1.5"],
            "rise must be 0 to 1, got 1.5",
        ),
        (
            ["adapt", "default", "--out", "/dev/null/m", "--samples", "0"],
            "samples must be at least 1, got 0",
        ),
        (
            ["adapt", "default", "--out", "/dev/null/m", "--strength", "0"],
            "strength must be above 0 and at most 1, got 0",
        ),
        (
            ["adapt", "default", "--out", "/dev/null/m", "--further"],
            "--further needs data: --train DATA",
        ),
        (
            ["adapt", "default", "--out", "/dev/null/m", "--further", "--samples", "9"],
            "--samples cannot be combined with --further, which keeps the model's own",
        ),
        (
            ["adapt", "default", "--out", "/dev/null/m", "--seed", "-1"],
            "seed must be at least 0, got -1",
        ),
        (
            ["adapt", "default", "--out", "/dev/null/m", "--seed", "0"],
            "--seed needs data: --train DATA",
        ),
        (
            [
                *["adapt", "default", "--out", "/dev/null/m", "--control", "--samples", "4"],
                *["--strength", "0.3", "--recipe", "nonsense", "--seed", "5"],
            ],
            "--recipe and --seed and --strength and --control need data: --train DATA",
        ),
        (
            ["adapt", "default", "--out", "/dev/null/m", "--train", "speeches", "--text", "x"],
            "--text is not read with --train, which calibrates on its own documents",
        ),
        (
            ["adapt", "default", "--out", "/dev/null/m", "--train", "speeches", "--control"],
            "--control trains without LLN, but this recipe trains LLN only",
        ),
        (
            [
                *["adapt", "default", "--out", "/dev/null/m"],
                *["--train", "speeches", "--recipe", "x.json"],
            ],
            "x.json is missing",
        ),
        (
            [
                *["adapt", "default", "--out", "/dev/null/m", "--further"],
                *["--rise", "0.5", "--text", "x"],
            ],
            "--text is not read with --further, which calibrates nothing",
        ),
        (
            ["evaluate", "--pairs", "--cache", "/nowhere"],
            "--pairs and --cache are read only with --readings",
        ),
        (
            ["evaluate", "--readings", "--lengths", "64"],
            "--lengths is not read with --readings",
        ),
        (
            ["evaluate", "default", "./student", "--teacher", "student/"],
            "--teacher student/ is one of the models to evaluate, which would be compared with "
            "itself; without --teacher, it is the first model with softmax",
        ),
        (
            ["evaluate", "--out", "/dev/null/found.json"],
            "the folder of /dev/null/found.json does not exist",
        ),
    ],
)
def test_mistakes_are_told_in_a_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 1
    assert capsys.readouterr().err == f"lln: {complaint}\n"


def test_a_recipe_that_is_not_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (file := tmp_path / "recipe.json").write_text("[{")
    command = ["adapt", "default", "--out", str(tmp_path / "out"), "--train", "speeches"]
    assert main([*command, "--recipe", str(file)]) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"lln: {file} is not valid: ")
    assert told.count("\n") == 1


@pytest.mark.parametrize("command", ["embed", "diagnose"])
def test_a_file_that_is_not_text(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "picture.png"
    file.write_bytes(b"\x89PNG")
    assert main([command, *(["--file"] if command == "embed" else []), str(file)]) == 1
    complaint = f"{file} is not text in UTF-8: invalid byte at 0"
    assert capsys.readouterr().err == f"lln: {complaint}\n"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "{file} is an empty string"),
        ("word " * 70_000, "{file}: the text has 70002 tokens, the limit is 65536"),
    ],
)
def test_a_file_whose_text_is_refused_is_named(
    content: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, file = tmp_path / "good.txt", tmp_path / "bad.txt"
    good.write_text("a text")
    file.write_text(content)
    softmax = "sentence-transformers/all-MiniLM-L6-v2"
    assert main(["embed", "--model", softmax, "--file", str(good), str(file)]) == 1
    assert capsys.readouterr().err.startswith(f"lln: {complaint.format(file=file)}")


def test_numbers_that_are_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["plan", "many"])
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert "expected whole numbers separated by commas, got 'many'" in told


@pytest.mark.parametrize(
    "arguments",
    [
        ["index", ""],
        ["search", "fox", "--index", ""],
        ["embed", "--from", "a.csv", "", "--out", "a.npy"],
        ["adapt", "default", "--out", "a", "--train", ""],
        ["export", "default", "--out", ""],
    ],
)
def test_an_empty_name_is_not_taken_for_this_folder(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "the name of a file or folder is empty" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["year,", ",year", "year, ,isbn", ""])
def test_names_that_are_none(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["embed", "--from", "rows.csv", "--keep", value])
    assert left.value.code == 2
    told = capsys.readouterr().err
    assert f"argument --keep: expected names separated by commas, got {value!r}" in told


@pytest.mark.parametrize(
    "option", [["--lengths", "64,0"], ["--lengths=-5"], ["--documents", "0"], ["--documents=-1"]]
)
def test_numbers_that_must_be_above_0(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["evaluate", *option])
    assert left.value.code == 2
    assert "above 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["serve", "--port", "9000"],
            "unrecognized arguments: --port 9000; did you mean --http-port or --grpc-port?",
        ),
        (["plan", "9", "--modle", "a"], "--modle a; did you mean --model?"),
        (["claims", "nope"], "unrecognized arguments: nope"),
    ],
)
def test_an_unknown_option_is_told_with_the_usage_of_its_command(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"usage: lln {arguments[0]} ")
    assert said.endswith(f"{complaint}\n")


def test_what_the_system_refuses_names_every_file_that_it_is_about(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "none" / "target"
    source.write_text("x")
    with pytest.raises(OSError, match="No such file") as caught:
        source.rename(target)
    assert system_message(caught.value) == f"{source} -> {target}: No such file or directory"
    with pytest.raises(OSError, match="No such file") as caught:
        (tmp_path / "none").read_text()
    assert system_message(caught.value) == f"{tmp_path / 'none'}: No such file or directory"


@pytest.mark.parametrize("options", [["embed", "-"], ["embed", "--from", "-", "--out", "o.jsonl"]])
def test_standard_input_that_is_closed(
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", None)  # as after `<&-`
    assert main(options) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "lln: standard input: it is closed"
