"""What is said of more selective branches follows from both intervals, whichever way they go."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.experiments.papers import headline
from benchmarks.experiments.tables import tables
from engine.experiments.document_intervals import minus_by_document
from engine.experiments.intervals import over_seeds, paired
from engine.experiments.trials import Measured, Trial

FIGURES = ("passages", "by_heading", "by_first_sentence", "far_from_title", "later_paragraphs")
BLOCKS = (0.5, 0.501, 0.499)
DOCUMENTS = (-0.004, 0.0, 0.004, 0.001, -0.001)  # what each document adds to a method's mean


def write(folder: Path, by_method: Mapping[str, Sequence[float]]) -> None:
    """A result of these ranks by seed, the same for each figure; documents differ little."""
    stored = folder / "selectivity-small"
    stored.mkdir()
    lines, methods = [], {}
    of_documents = {
        name: [[[10 * (one + document), 10] for document in DOCUMENTS] for one in seeds]
        for name, seeds in by_method.items()
    }
    found = {
        name: [{figure: {"one": documents} for figure in FIGURES} for documents in seeds]
        for name, seeds in of_documents.items()
    }
    reference = by_method["block_diagonal"]
    for name, seeds in by_method.items():
        for seed, one in enumerate(seeds):
            trial = Trial(method=name, rate=1e-4, seed=seed, part="test")
            figures = dict.fromkeys((*FIGURES, "score"), one)
            measured = Measured(figures=figures, seconds=1.0, by_document=found[name][seed])
            lines.append(json.dumps({**asdict(trial), **measured.as_line()}) + "\n")
        methods[name] = {
            "rate": 1e-4,
            "is_edge_of_sweep": False,
            "figures": dict.fromkeys((*FIGURES, "score"), asdict(over_seeds(seeds))),
            "minus_reference": dict.fromkeys(FIGURES, asdict(paired(seeds, reference))),
            "minus_reference_by_document": minus_by_document(found[name], found["block_diagonal"]),
            "by_seed": [dict.fromkeys(FIGURES, one) for one in seeds],
        }
    result = {
        "settings": {"experiment": "selectivity", "seeds": [0, 1, 2]},
        "reference": "block_diagonal",
        "methods": methods,
    }
    (stored / "result.json").write_text(json.dumps(result), encoding="utf-8")
    (stored / "trials.jsonl").write_text("".join(lines), encoding="utf-8")


UNTRAINED = {"untrained_blocks": (0.45,) * 3, "untrained_lln_diag": (0.45,) * 3}


@pytest.mark.parametrize(
    ("calibrated", "by_distance", "first", "second"),
    [
        (
            *((0.501, 0.499, 0.5), (0.499, 0.5, 0.502)),
            "equally trained: no other branch is better.**",
            "**0 of these 2, LLN+Diag among them, find more than equally trained blocks alone.**",
        ),
        (
            *((0.501, 0.499, 0.5), (0.55, 0.551, 0.549)),
            "equally trained: better `lln_by_distance`.**",
            "**1 of these 2",
        ),
        (
            *((0.55, 0.551, 0.549), (0.4, 0.401, 0.402)),
            "equally trained: no other branch is better, worse `lln_by_distance`.**",
            "Fewer: `lln_by_distance` -0.099 [-0.103, -0.095], [",
        ),
    ],
)
def test_the_verdicts(
    calibrated: Sequence[float],
    by_distance: Sequence[float],
    first: str,
    second: str,
    tmp_path: Path,
) -> None:
    told = lines(
        tmp_path,
        {"block_diagonal": BLOCKS, "lln_diag": calibrated, "lln_by_distance": by_distance}
        | UNTRAINED,
    )
    assert first in told[0]
    assert second in told[1]
    assert "**Training itself makes blocks alone better.** `block_diagonal` +0.050" in told[2]
    assert "| `lln_diag` | " in tables(tmp_path)


def test_a_lead_that_was_there_before_training_is_told(tmp_path: Path) -> None:
    told = lines(
        tmp_path,
        {
            "block_diagonal": BLOCKS,
            "lln_diag": (0.541, 0.54, 0.539),
            "lln_by_distance": (0.54, 0.541, 0.54),
            "untrained_blocks": (0.5,) * 3,
            "untrained_lln_diag": (0.53,) * 3,
        },
    )
    assert "**2 of these 2" in told[1]
    assert "but so does LLN+Diag untrained.**" in told[1]
    assert "untrained blocks: +0.030 [+0.030, +0.030] by documents" in told[1]
    assert "does not measurably improve blocks alone" in told[2]
    assert "changes LLN's lead by +0.010 [" in told[2]


def lines(folder: Path, by_method: Mapping[str, Sequence[float]]) -> list[str]:
    write(folder, by_method)
    return [line for line in headline(folder).splitlines() if "`selectivity-small`" in line]
