"""Settings: read from the environment and frozen; unknown names are rejected."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import ValidationError

from engine.config import EngineConfig
from service.environment import load_settings, setting_rows
from service.settings import Settings, SettingsError

TOLD_IN_32_BITS = (
    "LLN_MAX_OPEN_REQUESTS",
    "LLN_MAX_STREAMS_PER_CONNECTION",
    "LLN_ENGINE__MAX_BATCH_TOKENS",
    "LLN_ENGINE__MAX_BATCH_SEQUENCES",
    "LLN_ENGINE__MAX_INPUTS",
    "LLN_ENGINE__MAX_TEXT_TOKENS",
    "LLN_ENGINE__MAX_SOFTMAX_TEXT_TOKENS",
)

COUNTS = [row.variable for row in setting_rows() if row.default.isdigit()]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in setting_rows():
        monkeypatch.delenv(row.variable, raising=False)


def test_defaults_serve_the_lln_model_and_the_published_one() -> None:
    assert load_settings().models == ("default", "sentence-transformers/all-MiniLM-L6-v2")


def test_environment_reaches_server_and_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLN_HTTP_PORT", "8123")
    monkeypatch.setenv("LLN_MODELS", "one, two,")
    monkeypatch.setenv("LLN_ENGINE__MAX_BATCH_TOKENS", "4096")
    settings = load_settings()
    assert settings.http_port == 8123
    assert settings.models == ("one", "two")
    assert settings.engine == EngineConfig(max_batch_tokens=4096)


def test_command_line_wins_over_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLN_HTTP_PORT", "8123")
    assert load_settings(http_port=8124).http_port == 8124


@pytest.mark.parametrize(
    "value",
    [
        "text-embedding-3-small=default, ada=default",
        '{"text-embedding-3-small": "default", "ada": "default"}',
    ],
)
def test_aliases_in_either_form(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LLN_MODEL_ALIASES", value)
    expected = {"text-embedding-3-small": "default", "ada": "default"}
    assert load_settings().model_aliases == expected


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("ada", "write NAME=MODEL, separated by commas; got 'ada'"),
        ("=default", "write NAME=MODEL, separated by commas; got '=default'"),
        ("ada=default,ada=default", "ada appears twice"),
        ('{"ada": "default", "ada": "nope"}', "ada appears twice"),
        ('{"ada": ', "it is not JSON: Expecting value: line 1 column 9 (char 8)"),
        ('{"ada": 7}', "each alias needs the name of a model, as a string"),
        ("ada=defualt", "the alias 'ada' stands for 'defualt', which is not served"),
        ("default=default", "the alias 'default' would hide the model of that name"),
    ],
)
def test_bad_aliases_are_rejected(
    monkeypatch: pytest.MonkeyPatch, value: str, problem: str
) -> None:
    monkeypatch.setenv("LLN_MODEL_ALIASES", value)
    with pytest.raises(SettingsError) as raised:
        load_settings()
    assert "LLN_MODEL_ALIASES" in str(raised.value)
    assert problem in str(raised.value)


def test_frozen() -> None:
    with pytest.raises(ValidationError):
        load_settings().http_port = 1


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("LLN_HTP_PORT", "LLN_HTTP_PORT"),
        ("lln_htp_port", "LLN_HTTP_PORT"),
        ("LLN_ENGINE__MAX_BATCH_TOKEN", "LLN_ENGINE__MAX_BATCH_TOKENS"),
        ("LLN_ENGINE_DTYPE", "LLN_ENGINE__DTYPE"),
        ("LLN_MODEL", "LLN_MODELS"),
        ("LLN_PORT", "LLN_HTTP_PORT"),
    ],
)
def test_an_unknown_variable_is_rejected_with_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, nearest: str
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(SettingsError) as refusal:
        load_settings()
    assert str(refusal.value) == f"unknown setting {variable}; did you mean {nearest}?"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LLN_HTTP_PORT", "eighty"),
        ("LLN_HTTP_PORT", "70000"),
        ("LLN_MODELS", " , "),
        ("LLN_LOG_FORMAT", "xml"),
        ("LLN_REQUEST_TIMEOUT_S", "0"),
        ("LLN_ENGINE__MAX_INPUTS", "0"),
        ("LLN_ENGINE__MAX_INPUTS", "many"),
        ("LLN_REQUEST_TIMEOUT_S", "inf"),
        ("LLN_BODY_TIMEOUT_S", "nan"),
        ("LLN_BATCH_RETENTION_S", "-1"),
        ("LLN_BATCH_RETENTION_S", str(2**31)),
        ("LLN_ENGINE__DRAIN_TIMEOUT_S", "inf"),
        ("LLN_ENGINE__STUCK_AFTER_S", "nan"),
        ("LLN_ENGINE__NUM_THREADS", "100000"),
        *((name, str(2**31)) for name in TOLD_IN_32_BITS),
        *((name, str(2**53)) for name in COUNTS),  # JSON readers would round it
        ("LLN_OTLP_ENDPOINT", "collector"),
        ("LLN_OTLP_ENDPOINT", "collector:4317"),
        ("LLN_OTLP_ENDPOINT", "http://"),
        ("LLN_OTLP_ENDPOINT", "http://collector:port"),
        ("LLN_OTLP_ENDPOINT", "https://[::1"),
    ],
)
def test_an_invalid_value_is_rejected_in_one_line(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as refusal:
        load_settings()
    message = str(refusal.value)
    assert variable in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("LLN_MODELS", "", "='': it is empty; unset it for the default"),
        # Not all addresses, as a socket would read it.
        ("LLN_HTTP_HOST", "", "='': it is empty; unset it for the default"),
        ("LLN_GRPC_HOST", "", "='': it is empty; unset it for the default"),
        ("LLN_DIALECTS", "cohere,jena", "='jena': Input should be 'cohere', 'infinity', 'jina'"),
        ("LLN_REPLICA", "one/2", "='one/2': write 1 to 64 letters (A-Z), digits, dots and hyphens"),
    ],
)
def test_an_invalid_value_is_explained(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, problem: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as refusal:
        load_settings()
    assert str(refusal.value).startswith(f"bad setting {variable}{problem}")


@pytest.mark.parametrize("value", [",", " ", " , "])
def test_api_keys_without_a_key_are_rejected(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LLN_API_KEYS", value)
    with pytest.raises(SettingsError, match="LLN_API_KEYS: it has no key"):
        load_settings()


def test_empty_api_keys_mean_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose files pass unset variables as empty strings."""
    monkeypatch.setenv("LLN_API_KEYS", "")
    assert load_settings().api_keys == ()


@pytest.mark.parametrize(
    "name", ["api_keys_file", "tls_cert_file", "tls_key_file", "tls_client_ca_file"]
)
def test_empty_file_settings_mean_none(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"LLN_{name.upper()}", "")
    assert getattr(load_settings(), name) is None


@pytest.mark.parametrize(
    "endpoint", ["", "http://collector:4317", "https://collector.example", "http://[::1]:4317"]
)
def test_otlp_endpoints(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("LLN_OTLP_ENDPOINT", endpoint)
    assert load_settings().otlp_endpoint == endpoint


@pytest.mark.parametrize(
    ("value", "origin"),
    [
        ("https://app.example.com", "https://app.example.com"),
        ("https://app.example.com/", "https://app.example.com"),
        ("HTTPS://App.example.com", "https://app.example.com"),
        ("https://app.example.com:443", "https://app.example.com"),
        ("http://app.example.com:80/", "http://app.example.com"),
        ("http://app.example.com:443", "http://app.example.com:443"),
        ("https://[::1]:8443", "https://[::1]:8443"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
        ("*", "*"),
        ("null", "null"),
    ],
)
def test_origins_are_read_as_browsers_write_them(
    monkeypatch: pytest.MonkeyPatch, value: str, origin: str
) -> None:
    monkeypatch.setenv("LLN_CORS_ORIGINS", f"{value}, http://other.example")
    assert load_settings().cors_origins == (origin, "http://other.example")


@pytest.mark.parametrize(
    "value",
    [
        "app.example.com",
        "https://",
        "https://app.example.com/page",
        "https://*.example.com",
        "https://user@example.com",
        "https://example.com:port",
        "https://bücher.example",
        "//app.example.com",
    ],
)
def test_invalid_origins_are_rejected(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LLN_CORS_ORIGINS", f"https://example.org,{value}")
    with pytest.raises(SettingsError) as refusal:
        load_settings()
    assert f"'{value}' is not an origin" in str(refusal.value)
    assert "LLN_CORS_ORIGINS" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_one_port_for_both_protocols_is_rejected(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("LLN_HTTP_HOST", host)
    monkeypatch.setenv("LLN_HTTP_PORT", "8123")
    monkeypatch.setenv("LLN_GRPC_PORT", "8123")
    with pytest.raises(SettingsError, match="LLN_HTTP_PORT and LLN_GRPC_PORT are both 8123"):
        load_settings()


def test_one_port_is_enough_on_two_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLN_HTTP_HOST", "127.0.0.2")
    monkeypatch.setenv("LLN_HTTP_PORT", "8123")
    monkeypatch.setenv("LLN_GRPC_PORT", "8123")
    assert load_settings().http_port == load_settings().grpc_port


def test_any_two_free_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLN_HTTP_PORT", "0")
    monkeypatch.setenv("LLN_GRPC_PORT", "0")
    load_settings()


def test_variables_of_other_programs_are_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HTTP_PORT", "1")
    monkeypatch.chdir(tmp_path)
    Path(".env").write_text("LLN_HTTP_PORT=1\n")
    assert load_settings().http_port == Settings.model_fields["http_port"].default


def test_variables_of_a_kubernetes_service_named_lln_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links = {
        "LLN_SERVICE_HOST": "10.96.7.1",
        "LLN_SERVICE_PORT": "8000",
        "LLN_SERVICE_PORT_HTTP": "8000",
        "LLN_SERVICE_PORT_GRPC": "50051",
        "LLN_PORT": "tcp://10.96.7.1:8000",
        "LLN_PORT_8000_TCP": "tcp://10.96.7.1:8000",
        "LLN_PORT_8000_TCP_PROTO": "tcp",
        "LLN_PORT_8000_TCP_PORT": "8000",
        "LLN_PORT_8000_TCP_ADDR": "10.96.7.1",
    }
    for variable, value in links.items():
        monkeypatch.setenv(variable, value)
    load_settings()


def test_table_has_a_described_row_for_every_setting() -> None:
    rows = {row.variable: row for row in setting_rows()}
    expected = {f"LLN_{name.upper()}" for name in Settings.model_fields if name != "engine"}
    expected |= {f"LLN_ENGINE__{part.name.upper()}" for part in fields(EngineConfig)}
    assert set(rows) == expected
    assert all(row.description for row in rows.values())


def test_all_problems_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {
        "LLN_HTP_PORT": "1",
        "LLN_HTTP_PORT": "eighty",
        "LLN_LOG_FORMAT": "xml",
        "LLN_ENGINE__MAX_INPUTS": "0",
        "LLN_ENGINE__MAX_TEXT_TOKENS": "many",
        "LLN_API_KEYS_FILE": "/nowhere/at/all",
    }
    for variable, value in wrong.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as refusal:
        load_settings()
    problems = refusal.value.problems
    assert len(problems) == len(wrong)
    assert all(sum(variable in line for line in problems) >= 1 for variable in wrong)
    assert all("\n" not in line for line in problems)


def test_an_invalid_key_is_rejected_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLN_API_KEYS", "good-key-0123456789,hunter2")
    with pytest.raises(SettingsError) as refusal:
        load_settings()
    assert "LLN_API_KEYS: an API key must have at least 16 characters" in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_keys_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLN_API_KEYS", "good-key-0123456789")
    assert "good-key" not in repr(load_settings())


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (("server.pem", None, None), "set both"),
        ((None, "server.key", None), "set both"),
        ((None, None, "server.pem"), "needs LLN_TLS_CERT_FILE"),
        (("server.pem", "other.key", None), "KEY_VALUES_MISMATCH"),
        (("garbage", "server.key", None), "garbage"),
        (("server.pem", "locked.key", None), "has a password"),
        (("server.pem", "server.key", "garbage"), "garbage"),
        (("server.pem", "nothing", None), "LLN_TLS_KEY_FILE"),
    ],
)
def test_invalid_tls_files(
    monkeypatch: pytest.MonkeyPatch,
    tls_files: Path,
    files: tuple[str | None, ...],
    complaint: str,
) -> None:
    for name, file in zip(("CERT", "KEY", "CLIENT_CA"), files, strict=True):
        if file is not None:
            monkeypatch.setenv(f"LLN_TLS_{name}_FILE", str(tls_files / file))
    with pytest.raises(SettingsError, match=complaint) as refusal:
        load_settings()
    assert "\n" not in str(refusal.value)


@pytest.fixture(scope="module")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matching pair, a key of another pair, a key with a password, and an invalid file."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    server, other = (authority.issue_cert("localhost") for _ in range(2))
    server.cert_chain_pems[0].write_to_path(folder / "server.pem")
    server.private_key_pem.write_to_path(folder / "server.key")
    other.private_key_pem.write_to_path(folder / "other.key")
    key = load_pem_private_key(server.private_key_pem.bytes(), password=None)
    locked = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"a password")
    )
    (folder / "locked.key").write_bytes(locked)
    (folder / "garbage").write_text("not a certificate")
    return folder
