"""The server's settings, frozen once they are read; environment.py reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, FilePath, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from engine.config import MAX_COUNT, EngineConfig, check_aliases
from engine.errors import InvalidInput
from service.replica import checked_name, host_name
from service.security import ApiKeys, TlsFiles, check_api_key, read_key_file, read_origin
from service.setting_values import is_endpoint, names_in, pairs_in

PREFIX = "LLN_"
DELIMITER = "__"

MAX_INT32 = 2**31 - 1
"""gRPC's options, and the limits in tei.v1's Info, are 32-bit integers."""

Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]

_EVERY_ADDRESS = {"0.0.0.0", "::"}

DialectName = Literal["cohere", "infinity", "jina", "ollama", "sagemaker", "vllm", "voyage"]
"""Vendors whose requests are served too; service/http/dialects has a file for each."""


class SettingsError(Exception):
    """Unknown settings and invalid values, one line for each."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class Settings(BaseSettings):
    """The settings of `lln serve`. Built by `load_settings`, which rejects unknown names."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter=DELIMITER,
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
    )

    models: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("default", "sentence-transformers/all-MiniLM-L6-v2"),
        description="Models to serve, separated by commas. The first is the default for requests.",
    )
    model_aliases: Annotated[Mapping[str, str], NoDecode] = Field(
        default={},
        description="Aliases of models, for clients with fixed names: NAME=MODEL, separated by "
        "commas, or a JSON object.",
    )
    http_host: str = Field("127.0.0.1", description="Address that HTTP listens on.")
    http_port: int = Field(8000, ge=0, le=65535, description="Port of HTTP; 0 chooses a free port.")
    grpc_host: str = Field("127.0.0.1", description="Address that gRPC listens on.")
    grpc_port: int = Field(
        50051, ge=0, le=65535, description="Port of gRPC; 0 chooses a free port."
    )
    max_body_bytes: Count = Field(
        32 * 1024 * 1024, description="Largest request body over HTTP, in bytes."
    )
    max_message_bytes: Count = Field(
        8 * 1024 * 1024,
        description="Largest gRPC message, in bytes; LLN_MAX_BODY_BYTES applies too. A million "
        "tokens of text fit; each message holds up others while it is copied.",
    )
    max_open_body_bytes: Count = Field(
        256 * 1024 * 1024,
        description="Most bytes of all open request bodies together; bodies of up to 64 KiB do not "
        "count. Bodies beyond it wait (over HTTP, unread) for at most LLN_BODY_TIMEOUT_S. Of those "
        "of a megabyte or more, a quarter of LLN_MAX_OPEN_REQUESTS may wait, and as many smaller "
        "ones.",
    )
    request_timeout_s: float = Field(
        600.0, gt=0, description="Longest time for a request, and its default deadline, in seconds."
    )
    body_timeout_s: float = Field(
        60.0,
        gt=0,
        description="Longest wait for a request's body, or for its next piece, in seconds.",
    )
    max_open_requests: int = Field(
        1024,
        ge=1,
        le=MAX_INT32,
        description="Most requests open at once, over both protocols together. As many health "
        "watches may be open besides.",
    )
    max_streams_per_connection: int = Field(
        256,
        ge=1,
        le=MAX_INT32,
        description="Most calls open at once on one gRPC connection. A sixteenth of them may be "
        "health watches.",
    )
    max_open_streams: int = Field(
        64,
        ge=1,
        le=MAX_INT32,
        description="Most gRPC streams of requests open at once. Each may hold one message beyond "
        "LLN_MAX_OPEN_BODY_BYTES while it arrives.",
    )
    shutdown_notice_s: float = Field(
        0.0,
        ge=0,
        description="How long a server that is asked to stop keeps serving while it reports not "
        "ready, so that load balancers notice, in seconds.",
    )
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        default=(),
        description="API keys of at least 16 characters, separated by commas. Clients must send "
        "one; empty requires none.",
    )
    api_keys_file: FilePath | None = Field(
        None, description="File with one API key per line; read again when it changes."
    )
    metrics_need_key: bool = Field(
        False, description="Whether /metrics requires a key too, if there are keys."
    )
    tls_cert_file: FilePath | None = Field(
        None, description="Certificate chain (PEM). If set, both protocols use TLS."
    )
    tls_key_file: FilePath | None = Field(None, description="The certificate's private key (PEM).")
    tls_client_ca_file: FilePath | None = Field(
        None, description="CA certificate (PEM). If set, clients need a certificate signed by it."
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Origins whose pages may call the HTTP API, separated by commas; * for any.",
    )
    dialects: Annotated[tuple[DialectName, ...], NoDecode] = Field(
        get_args(DialectName),
        description="Vendors whose request formats are served too, separated by commas; empty for "
        "none.",
    )
    index: str = Field(
        "",
        description="Folder to search, indexed by `lln index`, or the folder of its index; empty "
        "for none.",
    )
    benchmark_history: str = Field(
        "~/.cache/lln/benchmarks.sqlite",
        description="SQLite file for benchmark runs; :memory: stores them in memory only.",
    )
    replica: str = Field(
        "",
        description="This server's name among those behind one address, part of the ids of its "
        "benchmark runs; empty for the host's name.",
    )
    batch_folder: str = Field(
        "~/.cache/lln/batches",
        description="Folder for the files and batches of the Batch API; empty turns it off.",
    )
    max_file_bytes: Count = Field(
        200 * 1024 * 1024, description="Largest file of the Batch API, in bytes."
    )
    max_stored_bytes: Count = Field(
        10 * 1024**3,
        description="Most bytes of all files of the Batch API together. More uploads and batches "
        "are refused, and a batch whose answers reach it fails.",
    )
    max_stored_files: Count = Field(
        100_000,
        description="Most files of the Batch API, those with answers among them; more uploads and "
        "batches are refused.",
    )
    max_stored_batches: Count = Field(
        50_000,
        description="Most batches, finished ones among them. Beyond it, the oldest finished "
        "batches without files make room; if there are none, more batches are refused.",
    )
    max_batch_requests: Count = Field(50_000, description="Most requests of one batch.")
    max_open_batches: Count = Field(100, description="Most batches that have not finished.")
    batch_retention_s: int = Field(
        30 * 24 * 3600,
        ge=0,
        le=MAX_INT32,
        description="How long a batch that has ended and its files are kept, and a file that no "
        "batch uses, in seconds; files with an expiry of their own keep to it. 0 keeps all until "
        "they are deleted.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level of the log lines to write."
    )
    log_format: Literal["auto", "text", "json"] = Field(
        "auto", description="JSON lines or text; auto writes text on a terminal and JSON elsewhere."
    )
    otlp_endpoint: str = Field(
        "",
        description="OTLP/gRPC endpoint for traces, like http://host:4317; empty sends none.",
    )
    trace_share: float = Field(
        1.0, ge=0, le=1, description="Share of requests to trace, where the client has not decided."
    )
    engine: EngineConfig = Field(default_factory=EngineConfig)

    @field_validator("models", "api_keys", "cors_origins", "dialects", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        return names_in(value) if isinstance(value, str) else value

    @field_validator("model_aliases", mode="before")
    @classmethod
    def _read_aliases(cls, value: Any) -> Any:
        return pairs_in(value) if isinstance(value, str) else value

    @field_validator("api_keys", mode="before")
    @classmethod
    def _refuse_no_key(cls, value: Any) -> Any:
        """Empty means no keys, as compose files pass unset variables. "," is probably a mistake."""
        if isinstance(value, str) and value and not names_in(value):
            raise ValueError("it has no key; leave it empty to require none")
        return value

    @field_validator(
        "api_keys_file", "tls_cert_file", "tls_key_file", "tls_client_ca_file", mode="before"
    )
    @classmethod
    def _read_empty_as_unset(cls, value: Any) -> Any:
        return None if value == "" else value

    @field_validator("models", "http_host", "grpc_host")
    @classmethod
    def _refuse_nothing(cls, value: Any) -> Any:
        """A server with an empty host would listen on all addresses."""
        if not value:
            raise ValueError("it is empty; unset it for the default")
        return value

    @field_validator("replica")
    @classmethod
    def _check_replica(cls, name: str) -> str:
        return checked_name(name) if name else name

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
        if endpoint and not is_endpoint(endpoint):
            raise ValueError("write it like http://host:4317, with https for TLS")
        return endpoint

    @model_validator(mode="after")
    def _check_aliases(self) -> Self:
        """The engine would do so too, but only when it has loaded the weights."""
        try:
            check_aliases(self.model_aliases, self.models)
        except InvalidInput as error:
            raise ValueError(f"LLN_MODEL_ALIASES: {error.message}") from None
        return self

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        hosts = {self.http_host, self.grpc_host}
        if self.http_port == self.grpc_port != 0 and (len(hosts) == 1 or hosts & _EVERY_ADDRESS):
            raise ValueError(
                f"LLN_HTTP_PORT and LLN_GRPC_PORT are both {self.http_port}; each protocol needs "
                "its own port"
            )
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("set both LLN_TLS_CERT_FILE and LLN_TLS_KEY_FILE, or neither")
        if self.tls_client_ca_file is not None and self.tls is None:
            raise ValueError("LLN_TLS_CLIENT_CA_FILE needs LLN_TLS_CERT_FILE")
        if self.tls is not None:
            self.tls.check()
        return self

    @property
    def grpc_message_bytes(self) -> int:
        """Largest message that is read."""
        return min(self.max_message_bytes, self.max_body_bytes)

    def open_keys(self) -> ApiKeys:
        """The keys that callers must send one of, if there are any."""
        return ApiKeys((key.get_secret_value() for key in self.api_keys), self.api_keys_file)

    @property
    def replica_name(self) -> str:
        return self.replica or host_name()

    @property
    def tls(self) -> TlsFiles | None:
        if self.tls_cert_file is None or self.tls_key_file is None:
            return None
        return TlsFiles(self.tls_cert_file, self.tls_key_file, self.tls_client_ca_file)
