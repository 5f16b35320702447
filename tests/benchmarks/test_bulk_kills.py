"""What kills of a bulk job cost, from its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bulk.kills import lost_s, part_s, read_log

LOG = """\
10.000 part 0: rows 0 to 100 are sent
10.000 part 1: rows 0 to 100 are sent
11.000 part 0: rows 0 to 40 are kept
12.000 part 1: rows 0 to 100 are kept
12.000 part 2: rows 0 to 50 are sent
22.000 part 0: rows 40 to 100 are sent
22.000 part 2: rows 0 to 50 are sent
23.000 part 0: rows 40 to 100 are kept
26.000 part 2: rows 0 to 50 are sent
27.000 part 2: rows 0 to 50 are kept
"""


def test_what_each_kill_cost(tmp_path: Path) -> None:
    """The first ended two workers: one had worked 1.5 s since its last piece, the other half a
    second; the second ended one, 1.5 s after it had begun."""
    path = tmp_path / "log"
    path.write_text(LOG)
    sent = read_log(path)
    assert [one.is_done for one in sent] == [False, True, False, True, False, True]
    assert lost_s(sent, [12.5, 23.5]) == pytest.approx([1.5 + 0.5, 1.5])
    assert part_s(sent, 250) == pytest.approx((1 + 2 + 1 + 1) / 250 * 250 / 3)
    assert read_log(tmp_path / "none") == []
