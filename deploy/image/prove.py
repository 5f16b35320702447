"""Runs an unpacked image read-only and without capabilities, and checks what it promises.

`prove.sh` calls this as root, with runc installed. It needs Python's standard library only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

HTTP_PORT, GRPC_PORT = 18_931, 18_932
BASE = f"http://127.0.0.1:{HTTP_PORT}"
NAME = "lln-proof"
CLIENTS, ANSWERS_BEFORE_STOP = 6, 12
START_S, NOTICE_S = 600, 2
CONTAINER_USER = 10_001
ENVIRONMENT = {
    "PATH": "/opt/lln/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": "/home/lln",
    "LLN_HTTP_PORT": str(HTTP_PORT),
    "LLN_GRPC_PORT": str(GRPC_PORT),
    "LLN_SHUTDOWN_NOTICE_S": str(NOTICE_S),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="where the image is mounted")
    parser.add_argument("--work", type=Path, required=True, help="an empty folder")
    parser.add_argument("--build-seconds", type=int, required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--revision", required=True)
    chosen = parser.parse_args()
    state = chosen.work / "runc"
    bundle = chosen.work / "bundle"
    write_bundle(bundle, chosen.root)
    command = ["runc", "--root", str(state)]
    with (chosen.work / "server.log").open("w+") as log:
        server = subprocess.Popen(
            [*command, "run", "--bundle", str(bundle), NAME], stdout=log, stderr=log
        )
        try:
            result = prove(server, command)
        except BaseException:
            log.seek(0)
            print(log.read()[-5_000:])
            raise
        finally:
            if server.poll() is None:
                subprocess.run([*command, "kill", NAME, "KILL"], check=False)
                server.wait()
    about = {
        "revision": chosen.revision,
        "base": chosen.base,
        "build_seconds": chosen.build_seconds,
    }
    print(json.dumps(about | result, indent=2))


def write_bundle(bundle: Path, root: Path) -> None:
    """What runc runs: its own default, less all capabilities and the right to write."""
    bundle.mkdir()
    subprocess.run(["runc", "spec", "--bundle", str(bundle)], check=True)
    path = bundle / "config.json"
    spec = json.loads(path.read_text())
    spec["root"] = {"path": str(root), "readonly": True}
    process = spec["process"]
    process |= {
        "terminal": False,
        "user": {"uid": CONTAINER_USER, "gid": CONTAINER_USER},
        "args": ["lln", "serve"],
        "cwd": "/home/lln",
        "env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
        "noNewPrivileges": True,
        "capabilities": {kind: [] for kind in process["capabilities"]},
    }
    namespaces = spec["linux"]["namespaces"]
    spec["linux"]["namespaces"] = [one for one in namespaces if one["type"] != "network"]
    owner = [f"uid={CONTAINER_USER}", f"gid={CONTAINER_USER}", "mode=700"]
    spec["mounts"] += [_memory("/tmp", ["mode=1777"]), _memory("/home/lln/.cache", owner)]
    path.write_text(json.dumps(spec))


def _memory(path: str, options: list[str]) -> dict[str, Any]:
    return {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": options}


def prove(server: subprocess.Popen[bytes], command: list[str]) -> dict[str, Any]:
    started = time.monotonic()
    while status("/health/ready") != 200:
        check(server.poll() is None, "the server ended before it was ready")
        check(time.monotonic() - started < START_S, f"not ready within {START_S} s")
        time.sleep(0.2)
    ready_s = time.monotonic() - started
    check(status("/health/live") == 200, "it is live")
    dimensions = len(embed("The whole document, read in one pass."))
    check(dimensions == 384, f"a vector of 384 dimensions, not {dimensions}")
    running = Path(f"/proc/{_pid(command)}")
    (root,) = [
        fields[5].split(",")
        for fields in map(str.split, (running / "mountinfo").read_text().splitlines())
        if fields[4] == "/"
    ]
    check("ro" in root, f"the root is mounted {root}")
    process = (running / "status").read_text()
    fields = dict(line.split(":\t", 1) for line in process.splitlines() if ":\t" in line)
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        check(int(fields[kind], 16) == 0, f"{kind} is {fields[kind]}")
    check(fields["NoNewPrivs"] == "1", "it may gain no privileges")
    return {
        "seconds_to_ready": round(ready_s, 1),
        "dimensions": dimensions,
        "capabilities": "none",
        "root_is_read_only": True,
        "stop_under_load": stop_under_load(server, command),
    }


def _pid(command: list[str]) -> int:
    found = subprocess.run([*command, "state", NAME], check=True, capture_output=True)
    return int(json.loads(found.stdout)["pid"])


def stop_under_load(server: subprocess.Popen[bytes], command: list[str]) -> dict[str, Any]:
    answers = threading.Semaphore(0)
    answered: list[int] = []
    lost: list[str] = []

    def client() -> None:
        while True:
            try:
                answered.append(len(embed("word " * 400)))
                answers.release()
            except urllib.error.URLError as error:
                if not isinstance(error.reason, ConnectionRefusedError):
                    lost.append(repr(error))
                return  # a closed port is the end, not a loss
            except Exception as error:
                lost.append(repr(error))
                return

    clients = [threading.Thread(target=client, daemon=True) for _ in range(CLIENTS)]
    for one in clients:
        one.start()
    for _ in range(ANSWERS_BEFORE_STOP):
        check(answers.acquire(timeout=60), "answers under load")
    stopped = time.monotonic()
    subprocess.run([*command, "kill", NAME, "TERM"], check=True)
    during = set()
    while (found := status("/health/ready")) is not None:
        during.add(found)
        time.sleep(0.05)
    code = server.wait(timeout=60)
    seconds = time.monotonic() - stopped
    for one in clients:
        one.join(timeout=60)
    check(not lost, f"requests lost: {lost}")
    check(503 in during, f"readiness during the notice: {during}")
    check(code == 0, f"exit status {code}")
    return {"answered": len(answered), "lost": 0, "exit_status": code, "seconds": round(seconds, 1)}


def status(path: str) -> int | None:
    """None where nobody listens."""
    try:
        with urllib.request.urlopen(BASE + path, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def embed(text: str) -> list[float]:
    body = json.dumps({"model": "default", "input": text}).encode()
    request = urllib.request.Request(
        BASE + "/v1/embeddings", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        vector: list[float] = json.load(answer)["data"][0]["embedding"]
        return vector


def check(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"not proved: {what}")


if __name__ == "__main__":
    main()
