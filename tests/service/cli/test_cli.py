"""The command line, run as a user runs it: exit codes, one-line errors, output for programs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import Engine
from service.cli.__main__ import main
from service.errors import PortInUse
from service.ports import bind_port
from tests.service.outside import wait_for
from tests.service.processes import clean_environment, lln


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["serve"],
        ["embed"],
        ["models"],
        ["adapt"],
        ["evaluate"],
        ["bench"],
        ["diagnose"],
        ["claims"],
        ["experiment"],
        ["figures"],
        ["settings"],
    ],
)
def test_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*command, "--help"])
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith(" ".join(["usage: lln", *command]))


def test_help_does_not_wait_for_torch() -> None:
    check = "import sys, service.cli.command_line; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_misspelt_setting() -> None:
    found = lln("serve", LLN_HTP_PORT="8001")
    assert found.returncode == 2
    assert found.stderr == "lln: unknown setting LLN_HTP_PORT; did you mean LLN_HTTP_PORT?\n"


def test_bad_value_of_a_setting() -> None:
    found = lln("serve", LLN_HTTP_PORT="eighty")
    assert found.returncode == 2
    assert "LLN_HTTP_PORT='eighty'" in found.stderr
    assert found.stderr.count("\n") == 1


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_port_in_use(protocol: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ports = {"LLN_HTTP_PORT": "0", "LLN_GRPC_PORT": "0"}
        found = lln("serve", **ports | {f"LLN_{protocol.upper()}_PORT": str(port)})
    assert found.returncode == 1
    assert found.stderr.strip() == f"lln: cannot listen on 127.0.0.1:{port}: Address already in use"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_port_that_another_server_listens_on(protocol: str, server: Any) -> None:
    address = server.http_url.removeprefix("http://") if protocol == "http" else server.grpc_address
    ports = {"LLN_HTTP_PORT": "0", "LLN_GRPC_PORT": "0"}
    port = address.rpartition(":")[2]
    found = lln("serve", **ports | {f"LLN_{protocol.upper()}_PORT": port})
    assert found.returncode == 1
    assert found.stderr.strip() == f"lln: cannot listen on {address}: Address already in use"


def test_a_port_is_taken_while_the_weights_are_read() -> None:
    """Of two servers that start at once, the second must not believe that it serves."""
    first = bind_port("127.0.0.1", 0)
    port = first.getsockname()[1]
    with first, pytest.raises(PortInUse, match=f"127.0.0.1:{port}: Address already in use"):
        bind_port("127.0.0.1", port)


def test_one_port_for_both_protocols() -> None:
    found = lln("serve", LLN_HTTP_PORT="8123", LLN_GRPC_PORT="8123")
    assert found.returncode == 2
    assert "LLN_HTTP_PORT and LLN_GRPC_PORT are both 8123" in found.stderr
    assert found.stderr.count("\n") == 1


def test_unknown_model(tmp_path: Path) -> None:
    settings = {"LLN_HTTP_PORT": "0", "LLN_GRPC_PORT": "0", "LLN_MODELS": str(tmp_path / "none")}
    found = lln("serve", **settings)
    assert found.returncode == 1
    assert "Traceback" not in found.stderr
    assert str(tmp_path / "none") in found.stderr.splitlines()[-1]


def test_models() -> None:
    found = lln("models", "--json")
    assert found.returncode == 0
    names = [model["name"] for model in json.loads(found.stdout)]
    assert "sentence-transformers/all-MiniLM-L6-v2" in names
    listed = lln("models").stdout
    assert "sentence-transformers/all-MiniLM-L6-v2" in listed
    assert "Precisions on this CPU (LLN_ENGINE__DTYPE): float32" in listed


def test_settings() -> None:
    found = lln("settings", "--json")
    rows = {row["variable"]: row for row in json.loads(found.stdout)}
    assert rows["LLN_HTTP_PORT"]["default"] == "8000"
    assert "LLN_ENGINE__MAX_BATCH_TOKENS" in lln("settings").stdout


def test_a_reader_who_has_enough_is_no_failure_to_tell_of() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nobody_reads:
        found = subprocess.run(
            [sys.executable, "-m", "service.cli", "settings"],
            stdout=nobody_reads,
            stderr=subprocess.PIPE,
            timeout=120,
            check=False,
        )
    assert (found.returncode, found.stderr) == (141, b"")


@pytest.mark.parametrize("url", ["http://[", "http://here:many", "http://here:99999", "ftp://here"])
def test_a_server_that_no_url_names(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--suite", "serving", "--server", url]) == 1
    complaint = f"lln: --server must be like http://127.0.0.1:8000, got {url!r}\n"
    assert capsys.readouterr().err.endswith(complaint)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--ca-file", "ca.pem"), "--ca-file and --insecure need --server https://..."),
        (
            ("--server", "http://here", "--insecure"),
            "--ca-file and --insecure are for https, got http://here",
        ),
        (
            ("--server", "https://here", "--insecure", "--ca-file", "ca.pem"),
            "--insecure verifies nothing, so --ca-file has no effect: leave one out",
        ),
    ],
)
def test_options_of_a_certificate_that_have_no_effect(
    options: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--suite", "serving", *options]) == 1
    assert capsys.readouterr().err == f"lln: {complaint}\n"


@pytest.mark.parametrize("suite", ["serving", "encoder"])
def test_the_server_to_load_is_looked_at_before_a_model_loads(
    suite: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(*arguments: Any) -> None:
        pytest.fail("it loads a model")

    monkeypatch.setattr("service.cli.bench.with_engine", load)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        assert main(["bench", "--suite", suite, "--server", url]) == 1
    complaint = capsys.readouterr().err
    if suite == "serving":
        assert complaint == f"lln: no server at {url}: Connection refused\n"
    else:
        assert complaint == "lln: --server is for the suite serving, not for encoder\n"


def rows_of(found: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


def test_a_file_whose_name_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.txt")
    path.write_text("A text.")
    [row] = rows_of(lln("embed", "--file", str(path), "--json"))
    assert row["file"] == str(path)
    assert "caf\\udce9.txt: " in lln("embed", "--file", str(path)).stdout


def test_a_file_may_be_standard_input(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("From a file.")
    rows = rows_of(lln("embed", "--file", str(path), "-", "--json", stdin="From elsewhere."))
    assert [row["file"] for row in rows] == [str(path), "-"]
    [expected] = rows_of(lln("embed", "-", "--json", stdin="From elsewhere."))
    assert rows[1]["embedding"] == expected["embedding"]


def test_embed_files_names_each(tmp_path: Path) -> None:
    """`--file *.txt`, as the shell passes it on, and repeated."""
    texts = {"a.txt": "Hello from a file.", "b.txt": "Another.", "c.txt": "A third\nin two lines."}
    paths = [str(tmp_path / name) for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        Path(path).write_text(text)
    rows = rows_of(lln("embed", "--file", *paths[:2], "--file", paths[2], "--json"))
    assert [row["file"] for row in rows] == paths
    expected = rows_of(lln("embed", "--text", *texts.values(), "--json"))
    assert [row["embedding"] for row in rows] == [row["embedding"] for row in expected]
    assert np.linalg.norm(rows[0]["embedding"]) == pytest.approx(1, abs=1e-5)
    assert [len(row["embedding"]) for row in rows] == [384] * 3
    assert rows[0]["accounting"]["tokens"] > 3
    for line, path in zip(lln("embed", "--file", *paths).stdout.splitlines(), paths, strict=True):
        assert line.startswith(f"{path}: ")


def test_a_path_in_the_place_of_a_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors of file names in an index look like any others."""
    (tmp_path / "a.txt").write_text("Hello.")
    monkeypatch.chdir(tmp_path)
    assert main(["embed", "A text.", "a.txt"]) == 1
    told = capsys.readouterr()
    assert told.err.startswith("lln: a.txt is the path of a file")
    assert "lln embed --file a.txt" in told.err
    assert "lln embed --text a.txt" in told.err
    assert told.out == ""
    assert main(["embed", "--text", "a.txt"]) == 0
    assert main(["embed", "word " * 400]) == 0


@pytest.mark.parametrize(("dimensions", "end"), [("2", 2), ("6", 6), ("7", 7)])
def test_numbers_that_are_not_printed_are_hinted_at(
    dimensions: str, end: int, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", "a text", "--model", model, "--dimensions", dimensions]) == 0
    head = capsys.readouterr().out.rstrip().partition("numbers: ")[2].split(", ")
    assert head[6:] == (["..."] if end > 6 else [])
    assert len(head) == end


def test_lines_of_standard_input() -> None:
    prompts = "One prompt.\r\n\nAnother\x0cprompt.\n"
    [one] = rows_of(lln("embed", "-", "--json", stdin=prompts))
    assert "line" not in one
    rows = rows_of(lln("embed", "-", "--lines", "--json", stdin=prompts))
    assert [row["line"] for row in rows] == [1, 3]
    expected = rows_of(lln("embed", "One prompt.", "Another\x0cprompt.", "--json"))
    assert [row["embedding"] for row in rows] == [row["embedding"] for row in expected]


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_plan_that_does_not_fit_says_why(
    option: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLN_ENGINE__MAX_SWEEP_BYTES", "100000000")
    assert main(["plan", "100,1000000,2000000", *option]) == 1
    told = capsys.readouterr()
    memory, length = told.err.splitlines()
    assert memory.startswith("lln: 1000000 tokens do not fit: they need ")
    assert memory.endswith(" megabytes, the limit here is 100.0")
    assert length == "lln: 2000000 tokens do not fit: default reads at most 1048576"
    assert told.out
    assert main(["plan", "100", *option]) == 0


def test_a_plan_of_chunks_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "4096", "--context", "linked", "--without-vector", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert (plan["tokens"], plan["tokens_read"]) == (4_096, 0)
    assert plan["tokens_alone"] > 4_096
    assert main(["plan", "4096", "--without-vector"]) == 1
    assert "--context" in capsys.readouterr().err


def test_a_plan_of_an_update(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Engine.load() as engine:
        found = engine.embed_document("One paragraph.\n\nAnother.", record=True)
    record, file = tmp_path / "record", tmp_path / "text"
    record.write_bytes(found.record)
    file.write_text("One paragraph.\n\nAnother one.")
    update = ["--record", str(record), "--file", str(file)]
    assert main(["plan", *update, "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert plan["tokens_read"] == plan["tokens"] == 8
    for wrong in (["5", *update], [], update[:2], [*update, "--context", "late"]):
        assert main(["plan", *wrong]) == 1


def test_help_of_serve_tells_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "--http-port PORT Port of HTTP; 0 chooses a free port. Default: 8000." in told


def test_bench_and_diagnose() -> None:
    found = lln("bench", "--lengths", "32", "--attentions", "lln_diag", "--repeats", "1", "--json")
    assert found.returncode == 0, found.stderr
    [row] = json.loads(found.stdout)["rows"]
    assert (row["attention"], row["tokens"]) == ("lln_diag", 32)
    options = ("--instruments", "entropy,head_kind", "--quantiles", "0.1,0.9")
    found = lln("diagnose", "-", "--layers", "0", *options, stdin="A short text.")
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert "fits in one block" in lines[1]
    assert lines[3].startswith("entropy")
    assert [line[:5].strip() for line in lines[4:8]] == ["layer", "0", "0.1", "0.9"]
    assert "previous" in found.stdout


@pytest.mark.long
def test_claims_of_a_document(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("A document of a few words, which six heads read.")
    names = ("lln.equation-5", "lln.theorem-3.3")
    only = [part for name in names for part in ("--only", name)]
    found = lln("claims", *only, "--text", str(file), "--json")
    assert found.returncode == 0, found.stderr
    isotropic, spectral = json.loads(found.stdout)
    assert (isotropic["verdict"], spectral["verdict"]) == ("holds_corrected", "fails")
    assert len(isotropic["evidence"]["claimed_over_true_document_heads"]) == 6
    assert {"id", "paper", "statement", "verdict", "corrected", "evidence"} <= set(spectral)


def test_unknown_claim_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "--only", "theorem-1"]) == 1
    assert capsys.readouterr().err.startswith("lln: unknown claim 'theorem-1'")
    assert main(["figures", "--out", str(tmp_path), "--only", "10"]) == 1
    assert capsys.readouterr().err.startswith("lln: unknown figure '10'")
    assert list(tmp_path.iterdir()) == []


def test_a_closed_output_is_no_failure() -> None:
    command = [sys.executable, "-m", "service.cli", "settings"]
    ended = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, timeout=120
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize("options", [[], ["-u"]], ids=["buffered", "unbuffered"])
def test_a_full_disk_behind_the_output_is_told(options: list[str]) -> None:
    command = [sys.executable, *options, "-m", "service.cli", "settings"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, env=clean_environment(), timeout=120
        )
    assert ended.returncode == 1
    assert ended.stderr == b"lln: standard output: No space left on device\n"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
def test_ctrl_c_during_the_imports_is_no_failure_to_tell_of() -> None:
    # Python heeds no SIGINT that it was started to ignore, as in the background of a script.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "service.cli"]
    with subprocess.Popen(
        [*command, "diagnose", "-"],
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        wait_for(lambda: "_pydantic_core" in maps.read_text(), "the imports")
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (130, b"")
