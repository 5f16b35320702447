"""Draws the README's picture of what LLN gains, from stored results: docs/figures/gains.png.

    python tools/draw_gains.py

Left, seconds against the length of a document (`make bench ARGS="long sweep"`). Right, how well
short passages are found that do not say which document they belong to, with 95 % intervals
(`lln evaluate default --readings`).
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # needs no screen
from matplotlib import pyplot
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "figures" / "gains.png"
BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#999999"  # of Okabe and Ito's colours
READINGS = {
    "passage alone": "passage alone",
    "late chunk, LLN+Diag": "late",
    "title put before it, told": "title before",
    "balanced (the default)": "default",
}


def main() -> None:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.6, 3.4), layout="constrained")
    draw_seconds(left)
    draw_passages(right)
    figure.savefig(PICTURE, dpi=120)


def draw_seconds(axis: Axes) -> None:
    swept = [row for row in rows("sweep.json") if row["measure"] == "seconds"]
    softmax = [row for row in rows("long.json") if "LLN softmax" in row["seconds"]]
    axis.loglog(*points(swept, "LLN+Diag"), "o-", color=BLUE, label="LLN+Diag")
    axis.loglog(*points(softmax, "LLN softmax"), "s--", color=ORANGE, label="softmax attention")
    axis.set(xlabel="tokens of one document", ylabel="seconds, two CPU cores")
    axis.set_title("A document read whole", loc="left")
    axis.legend(frameon=False)


def points(measured: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    tokens = [int(row["case"].split()[0].replace(",", "")) for row in measured]
    return tokens, [mean(row["seconds"][name]) for row in measured]


def draw_passages(axis: Axes) -> None:
    stored = json.loads((RESULTS / "training" / "readings-fresh.json").read_text(encoding="utf-8"))
    found = stored["test"]["questions"]["passages that need their document"]["readings"]
    pooled = [found[reading]["pooled"] for reading in READINGS.values()]
    means = [one["mean"] for one in pooled]
    below = [one["mean"] - one["low"] for one in pooled]
    above = [one["high"] - one["mean"] for one in pooled]
    colours = [GREY, BLUE, GREY, BLUE]
    axis.barh(list(READINGS), means, xerr=(below, above), color=colours, capsize=3)
    for place, mean_rank in enumerate(means):
        axis.text(0.01, place, f"{mean_rank:.3f}", va="center", color="white")
    asked = stored["test"]["questions"]["passages that need their document"]["queries"]
    axis.set(xlim=(0, 0.85), xlabel=f"MRR at 10, {len(asked)} corpora not trained on")
    axis.set_title("Passages that do not name their document", loc="left")
    axis.invert_yaxis()


def rows(name: str) -> list[dict[str, Any]]:
    document = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    listed: list[dict[str, Any]] = document["rows"]
    return listed


if __name__ == "__main__":
    main()
