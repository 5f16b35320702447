"""The environment variables of the settings: their table, and reading them once at start."""

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
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from engine.config import EngineConfig
from engine.errors import InvalidInput
from service.settings import DELIMITER, PREFIX, Settings, SettingsError

# Kubernetes sets these variables in every pod of a namespace with a Service named lln. Its LLN_PORT
# is a URL, so LLN_PORT=8001, a mistake for LLN_HTTP_PORT, is still rejected.
_SERVICE_LINK = re.compile(
    r"LLN_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=.*"
    r"|LLN_PORT=(tcp|udp|sctp)://.*"
)


class SettingRow(NamedTuple):
    """One row of the table of settings."""

    variable: str
    default: str
    description: str


def setting_rows() -> Iterator[SettingRow]:
    """Yields every environment variable that the server reads, with its default."""
    for name, field in Settings.model_fields.items():
        if name != "engine":
            yield SettingRow(
                PREFIX + name.upper(), _shown_default(field.default), field.description or ""
            )
    docs = _attribute_docs(EngineConfig)
    for part in fields(EngineConfig):
        variable = f"{PREFIX}ENGINE{DELIMITER}{part.name.upper()}"
        yield SettingRow(variable, str(part.default), docs.get(part.name, ""))


def _shown_default(value: Any) -> str:
    """Returns a default as you would write it in the environment."""
    if isinstance(value, tuple):
        return ",".join(value)
    return "" if value is None else str(value)


def _attribute_docs(kind: type) -> dict[str, str]:
    """Returns the docstrings of a class's attributes, which Python discards at run time."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)  # the source of a class
    docs = {}
    for attribute, doc in pairwise(body.body):
        match attribute, doc:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(text))):
                docs[name] = " ".join(text.split())
    return docs


def _unknown_names(environment: Mapping[str, str]) -> Iterator[str]:
    """Yields a problem for each misspelt variable: pydantic-settings would ignore it silently."""
    known = {row.variable for row in setting_rows()}
    for variable, value in sorted(environment.items()):
        if _SERVICE_LINK.fullmatch(f"{variable}={value}"):
            continue
        if variable.upper().startswith(PREFIX) and variable.upper() not in known:
            nearest = difflib.get_close_matches(variable.upper(), known, n=1, cutoff=0.0)[0]
            yield f"unknown setting {variable}; did you mean {nearest}?"


def _bad_values(error: ValidationError, prefix: str = PREFIX) -> Iterator[str]:
    """Yields a problem with variable and value for each error that pydantic found."""
    for problem in error.errors():
        message = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:  # about several settings, which the message names
            yield f"bad settings: {message}"
            continue
        # A number is a place in a list, which is one variable.
        parts = [part for part in problem["loc"] if isinstance(part, str) and part != "engine"]
        name = DELIMITER.join(parts).upper()
        is_secret = problem["loc"][0] == "api_keys"
        value = "" if is_secret else f"={problem['input']!r}"
        yield f"bad setting {prefix}{name}{value}: {message}"


def _bad_engine_values(environment: Mapping[str, str]) -> Iterator[str]:
    """Checks each engine setting alone, as EngineConfig raises at the first invalid one."""
    prefix = f"{PREFIX}ENGINE{DELIMITER}"
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
    """Reads the settings from the environment; `overrides` (the command line) take precedence.

    Raises one SettingsError with all problems, so you can fix them in one go.
    """
    problems = [*_unknown_names(os.environ), *_bad_engine_values(os.environ)]
    if problems:
        overrides["engine"] = EngineConfig()  # its problems are already listed
    try:
        settings = Settings(**overrides)
    except ValidationError as error:
        problems += _bad_values(error)
    if problems:
        raise SettingsError(*problems)
    return settings
