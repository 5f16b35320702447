"""API keys: which are valid, and a key file that changes while the server runs."""

from __future__ import annotations

import logging
import pickle
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.errors import Unauthenticated
from service.security import ApiKeys, read_key_file

FIRST = "first-key-0123456789"
SECOND = "second-key-0123456789"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(f"# of the search team\n{FIRST}\n\n")
    return file


def opens(keys: ApiKeys, key: str) -> bool:
    try:
        keys.check(f"Bearer {key}", None)
    except Unauthenticated:
        return False
    return True


def test_without_keys_all_clients_may_call() -> None:
    keys = ApiKeys()
    assert not keys.required
    keys.check(None, None)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_bearer(scheme: str) -> None:
    ApiKeys([FIRST]).check(f"{scheme} {FIRST}", None)


def test_x_api_key() -> None:
    ApiKeys([FIRST, SECOND]).check(None, SECOND)


@pytest.mark.parametrize(
    ("authorization", "x_api_key"),
    [
        (f"Bearer {FIRST}", ""),
        (f"Bearer {FIRST}", "another-service's-key"),
        (f"Bearer {FIRST}x", FIRST),
        ("Basic dXNlcjpwYXNz", FIRST),
    ],
)
def test_either_header_works(authorization: str, x_api_key: str) -> None:
    ApiKeys([FIRST]).check(authorization, x_api_key)


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "code"),
    [
        (None, None, "missing_api_key"),
        ("Basic dXNlcjpwYXNz", None, "missing_api_key"),
        ("", None, "missing_api_key"),
        ("Bearer", None, "invalid_api_key"),
        ("Bearer ", None, "invalid_api_key"),
        (f"Bearer {FIRST}x", None, "invalid_api_key"),
        (f"Bearer {FIRST[:-1]}", None, "invalid_api_key"),
        (None, "", "invalid_api_key"),
        (None, "\udcff" * 20, "invalid_api_key"),
        (f"Bearer {FIRST}x", "", "invalid_api_key"),
        ("Basic dXNlcjpwYXNz", "wrong", "invalid_api_key"),
    ],
)
def test_refused(authorization: str | None, x_api_key: str | None, code: str) -> None:
    with pytest.raises(Unauthenticated) as refusal:
        ApiKeys([FIRST]).check(authorization, x_api_key)
    assert refusal.value.code == code
    assert FIRST not in refusal.value.message


def test_only_hashes_are_stored() -> None:
    assert FIRST.encode() not in pickle.dumps(vars(ApiKeys([FIRST])))


def test_keys_of_the_file_and_of_the_settings_are_valid(key_file: Path) -> None:
    keys = ApiKeys([SECOND], key_file)
    assert opens(keys, FIRST)
    assert opens(keys, SECOND)
    assert not opens(keys, "# of the search team")


def test_rotation(key_file: Path) -> None:
    keys = ApiKeys(file=key_file)
    key_file.write_text(f"{FIRST}\n{SECOND}\n")
    assert opens(keys, FIRST)
    assert opens(keys, SECOND)
    key_file.write_text(f"{SECOND}\n")
    assert not opens(keys, FIRST)
    assert opens(keys, SECOND)


def test_a_replaced_file_is_reread(key_file: Path, tmp_path: Path) -> None:
    keys = ApiKeys(file=key_file)
    fresh = tmp_path / "fresh"
    fresh.write_text(SECOND)
    fresh.rename(key_file)
    assert opens(keys, SECOND)
    assert not opens(keys, FIRST)


@pytest.mark.parametrize("content", ["", "# nothing\n", "short\n", "naïve-key-0123456789\n", None])
def test_an_invalid_file_changes_nothing_and_is_logged_once(
    key_file: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    keys = ApiKeys(file=key_file)
    if content is None:
        key_file.unlink()
    else:
        key_file.write_text(content)
    with caplog.at_level(logging.INFO):
        assert opens(keys, FIRST)
        assert not opens(keys, SECOND)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    key_file.write_text(SECOND)
    assert opens(keys, SECOND)


def test_an_unreadable_file_is_tried_again(key_file: Path) -> None:
    """The file's version does not change between the two checks."""
    keys = ApiKeys(file=key_file)
    key_file.write_text(SECOND)
    with no_more_files():
        assert opens(keys, FIRST)
    assert opens(keys, SECOND)
    assert not opens(keys, FIRST)


@contextmanager
def no_more_files() -> Iterator[None]:
    """Makes every open fail. File permissions would not stop root."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "has no keys"),
        ("tooshort", "at least 16 characters"),
        ("a key with spaces in it", "without spaces"),
        ("schlüssel-0123456789", "not plain ASCII"),
    ],
)
def test_an_invalid_file_is_rejected_without_showing_its_content(
    tmp_path: Path, content: str, complaint: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=complaint) as refusal:
        read_key_file(file)
    assert not content or content not in str(refusal.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_key_file(tmp_path / "none")
