"""`lln bench`: runs a benchmark suite without a server."""

from __future__ import annotations

import json
import socket
import ssl
import sys
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from engine.errors import InvalidInput
from engine.platform.files import named_in_errors
from service.addresses import Target
from service.cli.common import (
    Chosen,
    Commands,
    add_command,
    add_json,
    add_model,
    names,
    numbers,
    path_of,
    with_engine,
)
from service.errors import NotAvailable, as_lln_error, error_fields

if TYPE_CHECKING:
    from engine.async_engine import AsyncEngine
    from service.benchmarks.job import BenchmarkJob
    from service.benchmarks.suites import Row, Suite


_CONNECT_TIMEOUT_S = 5.0


def add_bench(commands: Commands) -> None:
    command = add_command(commands, "bench", _bench, "measure this machine by length of text")
    command.add_argument(
        "--suite",
        default="encoder",
        help="attention, encoder, serving or quality (default: encoder)",
    )
    command.add_argument(
        "--lengths", type=numbers, metavar="N,N,...", help="tokens (default: the suite's own)"
    )
    command.add_argument(
        "--attentions", type=names, metavar="NAME,NAME,...", help="default: the suite's own"
    )
    command.add_argument(
        "--dtypes", type=names, metavar="NAME,NAME,...", help="default: the model's own"
    )
    command.add_argument("--repeats", type=int, help="repetitions of each measurement")
    command.add_argument("--training", action="store_true", help="time a training step")
    command.add_argument("--seconds", type=float, help="serving suite: duration of each load")
    command.add_argument("--server", metavar="URL", help="serving suite: the server to load")
    command.add_argument(
        "--ca-file",
        metavar="FILE",
        help="with --server https://...: PEM file of the CA that signed its certificate (default: "
        "those that this system trusts)",
    )
    command.add_argument(
        "--insecure",
        action="store_true",
        help="with --server https://...: do not verify its certificate",
    )
    command.add_argument("--out", type=path_of, help="folder for the rows as JSON, CSV and a plot")
    add_model(command)
    add_json(command)


def _bench(chosen: Chosen) -> None:
    server = _server_of(chosen)  # before the model loads
    with_engine(chosen.model, lambda engine: _run_suite(engine, chosen, server))


async def _run_suite(engine: AsyncEngine, chosen: Chosen, server: Target | None) -> None:
    """Prints the rows of a suite as they are measured, or the whole run as JSON at the end. What
    was measured by then is kept however the run ends."""
    from service.benchmarks.job import BenchmarkJob, describe_machine
    from service.benchmarks.plan import checked_plan
    from service.benchmarks.suites import SUITES, Bench

    plan = checked_plan(
        engine.resolve(chosen.model),
        suite=chosen.suite,
        lengths=chosen.lengths,
        attentions=chosen.attentions,
        dtypes=chosen.dtypes,
        repeats=chosen.repeats,
        seconds=chosen.seconds,
        training=chosen.training or None,
    )
    if chosen.out is not None:  # if it cannot be created, fail now and not after hours
        chosen.out.mkdir(parents=True, exist_ok=True)
    suite = SUITES[plan.suite]
    job = BenchmarkJob(
        plan=plan,
        num_rows=suite.num_rows(plan),
        machine=describe_machine(engine.resolve(plan.model)),
    )
    job.start()
    try:
        async with aclosing(suite.rows(Bench(engine=engine, server=server), plan)) as rows:
            async for row in rows:
                job.add(row)
                if not chosen.json:
                    _print_row(suite, row, is_first=len(job.rows) == 1)
    except BaseException as failure:
        if isinstance(failure, Exception):
            job.finish("failed", error_fields(as_lln_error(failure)))
        else:
            job.finish("interrupted")
        if job.rows:
            _report(job, chosen)
        raise
    job.finish("done")
    _report(job, chosen)


def _report(job: BenchmarkJob, chosen: Chosen) -> None:
    """The whole run, where it was asked for."""
    from service.benchmarks.report import job_document

    if chosen.json:
        print(json.dumps(job_document(job)))
    if chosen.out is not None:
        _write(job, chosen.out)


def _server_of(chosen: Chosen) -> Target | None:
    """Where `--server` listens, if one is named."""
    if chosen.server is None:
        if chosen.insecure or chosen.ca_file is not None:
            raise InvalidInput("--ca-file and --insecure need --server https://...", param="server")
        return None
    if chosen.suite != "serving":
        raise InvalidInput(
            f"--server is for the suite serving, not for {chosen.suite}", param="server"
        )
    target = _trusting(_parse_url(chosen.server), chosen)
    try:
        _connect(target)
    except ssl.SSLCertVerificationError as error:
        raise InvalidInput(
            f"the certificate of {chosen.server} cannot be verified: {error.verify_message}; name "
            "its CA with --ca-file, or leave it unverified with --insecure",
            code="certificate_not_verified",
            param="server",
            actual=chosen.server,
        ) from error
    except OSError as error:
        raise InvalidInput(
            f"no server at {chosen.server}: {error.strerror or error}",
            code="server_unreachable",
            param="server",
            actual=chosen.server,
        ) from error
    return target


def _trusting(target: Target, chosen: Chosen) -> Target:
    """The server with what is known of its certificate."""
    if not target.tls and (chosen.insecure or chosen.ca_file is not None):
        raise InvalidInput(
            f"--ca-file and --insecure are for https, got {chosen.server}", param="server"
        )
    if chosen.insecure and chosen.ca_file is not None:
        raise InvalidInput("--insecure verifies nothing, so --ca-file has no effect: leave one out")
    target = replace(target, verify=not chosen.insecure, ca_file=chosen.ca_file)
    try:
        _ = target.ssl_context
    except OSError as error:
        raise InvalidInput(
            f"--ca-file {chosen.ca_file} cannot be used: {error.strerror or error}",
            code="bad_ca_file",
            param="ca_file",
            actual=chosen.ca_file,
        ) from error
    return target


def _connect(target: Target) -> None:
    """Connects and disconnects. Raises OSError if that fails."""
    context = target.ssl_context
    address = (target.host, target.port)
    with socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S) as connected:
        if context is not None:
            context.wrap_socket(connected, server_hostname=target.host).close()


def _parse_url(url: str) -> Target:
    bad_url = InvalidInput(
        f"--server must be like http://127.0.0.1:8000, got {url!r}", param="server", actual=url
    )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # an invalid IPv6 address or port
        raise bad_url from None
    if parts.scheme not in ("http", "https") or not host:
        raise bad_url
    tls = parts.scheme == "https"
    return Target(host=host, port=port or (443 if tls else 80), tls=tls)


def _print_row(suite: Suite, row: Row, *, is_first: bool) -> None:
    columns = (*suite.labels, suite.x.name, *(measure.name for measure in suite.measures))
    if is_first:
        print("".join(f"{name:>16}" for name in columns))
    values = (row.get(name, "") for name in columns)
    cells = (f"{value:.5g}" if isinstance(value, float) else str(value) for value in values)
    print("".join(f"{cell:>16}" for cell in cells), flush=True)


def _write(job: BenchmarkJob, folder: Path) -> None:
    """Writes the run as JSON and CSV, and as a plot if matplotlib is installed."""
    from service.benchmarks.report import job_document, plot_png, rows_as_csv

    path = folder / job.plan.suite
    document = json.dumps(job_document(job), indent=1) + "\n"
    with named_in_errors(folder):
        path.with_suffix(".json").write_text(document, encoding="utf-8")
        path.with_suffix(".csv").write_text(rows_as_csv(job), encoding="utf-8")
        try:
            path.with_suffix(".png").write_bytes(plot_png(job))
        except NotAvailable as error:
            print(f"no plot: {error}", file=sys.stderr)
