"""Intervals over documents, for trials that all ask the same questions about the same documents.

Values are averaged over the seeds. Then documents are resampled within each corpus, and each corpus
counts alike: what another training would give is not part of such an interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from engine.evaluation.bootstrap import Answers, minus, pooled
from engine.experiments.trials import ByDocument

_DIGITS = 6


def by_document(answers: Mapping[str, Answers]) -> dict[str, list[list[float]]]:
    """One figure by corpus: each document's sum and its number of questions."""
    found = {}
    for corpus, one in answers.items():
        counts = np.bincount(one.documents)
        sums = np.bincount(one.documents, one.values)
        pairs = zip(sums.tolist(), counts.tolist(), strict=True)
        found[corpus] = [[round(total, _DIGITS), count] for total, count in pairs if count]
    return found


def minus_by_document(
    own: Sequence[ByDocument], reference: Sequence[ByDocument]
) -> dict[str, dict[str, float]]:
    """Own minus the reference, for each figure."""
    found = {}
    for figure in own[0]:
        if figure not in reference[0]:
            continue
        differences = [
            minus(_over_seeds(own, figure, corpus), _over_seeds(reference, figure, corpus))
            for corpus in own[0][figure]
        ]
        if (interval := pooled(differences)) is not None:
            found[figure] = asdict(interval)
    return found


def _over_seeds(trials: Sequence[ByDocument], figure: str, corpus: str) -> Answers:
    """The mean over seeds of each document's mean, once for each of its questions."""
    rows = np.array([trial[figure][corpus] for trial in trials]).reshape(len(trials), -1, 2)
    counts = rows[0, :, 1].astype(np.int64)
    return Answers(
        np.repeat(rows[:, :, 0].mean(0) / counts, counts),
        np.repeat(np.arange(len(counts)), counts),
    )
