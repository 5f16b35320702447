"""usable_cores: affinity and a container's quota, in both versions of cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.platform.process import usable_cores


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("cpu_max", "expected"),
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("10000 100000\n", 1),
        ("6400000 100000\n", 8),
        ("", 8),
        ("what is this\n", 8),
    ],
)
def test_quota_of_version_2(cpu_max: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(cpu_max)
    assert usable_cores(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("300000", 3)])
def test_quota_of_version_1(quota: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert usable_cores(tmp_path) == expected


def test_no_control_groups(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "none") == 8
