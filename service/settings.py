"""Every setting of the server: read once from the environment at an entry point, then frozen."""

from __future__ import annotations

import ast
import difflib
import inspect
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import urlsplit

from pydantic import (
    Field,
    FilePath,
    SecretStr,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from engine.config import EngineConfig
from engine.errors import InvalidInput
from service.api_keys import check_api_key, read_key_file
from service.http.origins import read_origin
from service.tls import TlsFiles

PREFIX = "LLN_"
_DELIMITER = "__"

MOST_OF_GRPC = 2**31 - 1
"""Its options, and the limits that tei.v1 tells, have 32 bits."""

_EVERY_ADDRESS = {"0.0.0.0", "::"}

# Kubernetes sets these in every pod of a namespace that has a Service called lln. A port of its own
# making is a URL, so that LLN_PORT=8001 of somebody who means LLN_HTTP_PORT is still refused.
_SERVICE_LINK = re.compile(
    r"LLN_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=.*"
    r"|LLN_PORT=(tcp|udp|sctp)://.*"
)


class SettingsError(Exception):
    """Settings that are unknown or have values that cannot be: a line for each."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Settings(BaseSettings):
    """What `lln serve` can be told. Built by `load_settings`, which refuses unknown names."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter=_DELIMITER,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
    )

    models: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("default", "sentence-transformers/all-MiniLM-L6-v2"),
        min_length=1,
        description="Models to serve, separated by commas; the first answers when none is named.",
    )
    http_host: str = Field("127.0.0.1", description="Address HTTP listens on.")
    http_port: int = Field(8000, ge=0, le=65535, description="Port of HTTP; 0 takes a free one.")
    grpc_host: str = Field("127.0.0.1", description="Address gRPC listens on.")
    grpc_port: int = Field(50051, ge=0, le=65535, description="Port of gRPC; 0 takes a free one.")
    max_body_bytes: int = Field(
        32 * 1024 * 1024, ge=1, description="Largest request read, in bytes, over both protocols."
    )
    request_timeout_s: float = Field(
        600.0, gt=0, description="Longest a request may take, and its default deadline."
    )
    body_timeout_s: float = Field(
        60.0,
        gt=0,
        description="Longest wait for a request to arrive; of one in pieces, for the next piece.",
    )
    max_open_requests: int = Field(
        1024,
        ge=1,
        le=MOST_OF_GRPC,
        description="Requests answered at once, over both protocols together.",
    )
    max_streams_per_connection: int = Field(
        256,
        ge=1,
        le=MOST_OF_GRPC,
        description="Calls that one gRPC connection may have open at once.",
    )
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        default=(),
        description="Keys that callers must have one of, separated by commas; none if empty.",
    )
    api_keys_file: FilePath | None = Field(
        None, description="File with a key a line, read again when it changes."
    )
    metrics_need_key: bool = Field(
        False, description="Whether /metrics asks for a key too, where there are keys."
    )
    tls_cert_file: FilePath | None = Field(
        None, description="Certificate chain (PEM); with it both protocols speak TLS."
    )
    tls_key_file: FilePath | None = Field(None, description="The certificate's private key (PEM).")
    tls_client_ca_file: FilePath | None = Field(
        None, description="Authority (PEM) that must have signed the certificate of every client."
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Origins whose pages may call HTTP, separated by commas; * for any.",
    )
    benchmark_history: str = Field(
        "~/.cache/lln/benchmarks.sqlite",
        description="File that keeps benchmark runs; :memory: forgets them with the process.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least serious log line written."
    )
    log_format: Literal["auto", "text", "json"] = Field(
        "auto", description="JSON lines or human text; auto is text on a terminal."
    )
    otlp_endpoint: str = Field(
        "",
        description="Where traces go by OTLP over gRPC, like http://host:4317; none if empty.",
    )
    trace_share: float = Field(
        1.0, ge=0, le=1, description="Share of requests traced, where the caller has not decided."
    )
    engine: EngineConfig = Field(default_factory=EngineConfig)

    @field_validator("models", "api_keys", "cors_origins", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        return _names_in(value) if isinstance(value, str) else value

    @field_validator("api_keys", mode="before")
    @classmethod
    def _refuse_no_key(cls, value: Any) -> Any:
        """Compose files leave a variable empty that nobody set; a comma was meant to be a key."""
        if isinstance(value, str) and value and not _names_in(value):
            raise ValueError("it holds no key; leave it empty to ask for none")
        return value

    @field_validator(
        "api_keys_file", "tls_cert_file", "tls_key_file", "tls_client_ca_file", mode="before"
    )
    @classmethod
    def _read_empty_as_unset(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("cors_origins")
    @classmethod
    def _read_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(read_origin, origins))

    @field_validator("api_keys")
    @classmethod
    def _check_keys(cls, keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        for key in keys:
            check_api_key(key.get_secret_value())
        return keys

    @field_validator("api_keys_file")
    @classmethod
    def _check_keys_file(cls, file: Path | None) -> Path | None:
        if file is not None:
            read_key_file(file)
        return file

    @field_validator("otlp_endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str) -> str:
        if endpoint and not _is_endpoint(endpoint):
            raise ValueError("write it like http://host:4317, with https for TLS")
        return endpoint

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        hosts = {self.http_host, self.grpc_host}
        if self.http_port == self.grpc_port != 0 and (len(hosts) == 1 or hosts & _EVERY_ADDRESS):
            raise ValueError(
                f"LLN_HTTP_PORT and LLN_GRPC_PORT are both {self.http_port}, and each protocol "
                "needs a port of its own"
            )
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("LLN_TLS_CERT_FILE and LLN_TLS_KEY_FILE are set both or not at all")
        if self.tls_client_ca_file is not None and self.tls is None:
            raise ValueError("LLN_TLS_CLIENT_CA_FILE needs LLN_TLS_CERT_FILE")
        if self.tls is not None:
            self.tls.check()
        return self

    @property
    def tls(self) -> TlsFiles | None:
        if self.tls_cert_file is None or self.tls_key_file is None:
            return None
        return TlsFiles(self.tls_cert_file, self.tls_key_file, self.tls_client_ca_file)


def _names_in(value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


def _is_endpoint(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # brackets or a port that cannot be
        return False


class SettingRow(NamedTuple):
    """One line of the table of settings."""

    variable: str
    default: str
    description: str


def setting_rows() -> Iterator[SettingRow]:
    """Every environment variable the server knows, with its default."""
    for name, field in Settings.model_fields.items():
        if name != "engine":
            yield SettingRow(
                PREFIX + name.upper(), _shown_default(field.default), field.description or ""
            )
    docs = _attribute_docs(EngineConfig)
    for part in fields(EngineConfig):
        variable = f"{PREFIX}ENGINE{_DELIMITER}{part.name.upper()}"
        yield SettingRow(variable, str(part.default), docs.get(part.name, ""))


def _shown_default(value: Any) -> str:
    """A default as it would be written in the environment."""
    if isinstance(value, tuple):
        return ",".join(value)
    return "" if value is None else str(value)


def _attribute_docs(kind: type) -> dict[str, str]:
    """The strings under a class's attributes, which Python itself does not keep."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)  # the source of a class
    docs = {}
    for attribute, doc in pairwise(body.body):
        match attribute, doc:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(text))):
                docs[name] = " ".join(text.split())
    return docs


def _unknown_names(environment: Mapping[str, str]) -> Iterator[str]:
    """pydantic-settings ignores a misspelt variable in silence, so the names are compared here."""
    known = {row.variable for row in setting_rows()}
    for variable, value in sorted(environment.items()):
        if _SERVICE_LINK.fullmatch(f"{variable}={value}"):
            continue
        if variable.upper().startswith(PREFIX) and variable.upper() not in known:
            nearest = difflib.get_close_matches(variable.upper(), known, n=1, cutoff=0.0)[0]
            yield f"unknown setting {variable}; did you mean {nearest}?"


def _bad_values(error: ValidationError, prefix: str = PREFIX) -> Iterator[str]:
    """A line for each thing pydantic found wrong, which names the variable and its value."""
    for problem in error.errors():
        message = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:  # of several settings together, which the message names
            yield f"bad settings: {message}"
            continue
        name = _DELIMITER.join(str(part).upper() for part in problem["loc"] if part != "engine")
        is_secret = problem["loc"][0] == "api_keys"
        value = "" if is_secret else f"={problem['input']!r}"
        yield f"bad setting {prefix}{name}{value}: {message}"


def _bad_engine_values(environment: Mapping[str, str]) -> Iterator[str]:
    """Each of the engine's variables alone: its configuration stops at the first that is wrong."""
    prefix = f"{PREFIX}ENGINE{_DELIMITER}"
    config = TypeAdapter(EngineConfig)
    for part in fields(EngineConfig):
        variable = prefix + part.name.upper()
        value = next((v for name, v in environment.items() if name.upper() == variable), None)
        if value is None:
            continue
        try:
            read = getattr(config.validate_python({part.name: value}), part.name)
        except ValidationError as error:
            yield from _bad_values(error, prefix)
        except InvalidInput as error:
            yield f"bad setting {variable}={error.actual!r}: {error.message}"
        else:
            if isinstance(read, float) and not math.isfinite(read):
                yield f"bad setting {variable}={value!r}: {part.name} must be a finite number"


def load_settings(**overrides: Any) -> Settings:
    """Settings from the environment; `overrides` (the command line) win over it.

    All that is wrong is told at once, so that nobody has to start five times to mend five things.
    """
    problems = [*_unknown_names(os.environ), *_bad_engine_values(os.environ)]
    if problems:
        overrides["engine"] = EngineConfig()  # what is wrong with it is told already
    try:
        settings = Settings(**overrides)
    except ValidationError as error:
        problems += _bad_values(error)
    if problems:
        raise SettingsError(*problems)
    return settings
