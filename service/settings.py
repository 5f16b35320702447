"""Every setting of the server: read once from the environment at an entry point, then frozen."""

from __future__ import annotations

import ast
import difflib
import inspect
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from engine.config import EngineConfig
from engine.errors import InvalidInput

PREFIX = "LLN_"
_DELIMITER = "__"


class SettingsError(Exception):
    """A setting is unknown or has a value that cannot be. The message is one line."""


class Settings(BaseSettings):
    """What `lln serve` can be told. Built by `load_settings`, which refuses unknown names."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter=_DELIMITER,
        frozen=True,
        extra="forbid",
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

    @field_validator("models", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip())
        return value


class SettingRow(NamedTuple):
    """One line of the table of settings."""

    variable: str
    default: str
    description: str


def setting_rows() -> Iterator[SettingRow]:
    """Every environment variable the server knows, with its default."""
    for name, field in Settings.model_fields.items():
        if name != "engine":
            shown = field.default if name != "models" else ",".join(field.default)
            yield SettingRow(PREFIX + name.upper(), str(shown), field.description or "")
    docs = _attribute_docs(EngineConfig)
    for part in fields(EngineConfig):
        variable = f"{PREFIX}ENGINE{_DELIMITER}{part.name.upper()}"
        yield SettingRow(variable, str(part.default), docs.get(part.name, ""))


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


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    """pydantic-settings ignores a misspelt variable in silence, so the names are compared here."""
    known = {row.variable for row in setting_rows()}
    for variable in sorted(environment):
        if variable.upper().startswith(PREFIX) and variable.upper() not in known:
            nearest = difflib.get_close_matches(variable.upper(), known, n=1, cutoff=0.0)[0]
            raise SettingsError(f"unknown setting {variable}; did you mean {nearest}?")


def _describe(error: ValidationError) -> str:
    """The first thing pydantic found wrong, in one line that names the variable and its value."""
    first = error.errors()[0]
    variable = PREFIX + _DELIMITER.join(str(part).upper() for part in first["loc"])
    return f"bad setting {variable}={first['input']!r}: {first['msg']}"


def load_settings(**overrides: Any) -> Settings:
    """Settings from the environment; `overrides` (the command line) win over it."""
    _refuse_unknown(os.environ)
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise SettingsError(_describe(error)) from error
    except InvalidInput as error:
        variable = f"{PREFIX}ENGINE{_DELIMITER}{(error.param or '').upper()}"
        raise SettingsError(f"bad setting {variable}={error.actual!r}: {error.message}") from error
