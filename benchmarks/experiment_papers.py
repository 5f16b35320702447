"""What the stored experiments say: the headline of docs/experiments.md, and the papers' rows.

Both follow from the stored figures alone: no verdict is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.experiment_tables import Stored, spread, stored_experiments
from engine.experiments.catalogue import EXPERIMENTS
from engine.experiments.intervals import SeedInterval

Experiments = Mapping[str, Stored]

WIDE_GAIN = 0.2
"""Of accuracy: what LLN has to add to blocks for a task to show that range decides."""
_GUESSES = {"matching": 0.5, "pathfinder": 0.5}


def headline(folder: Path) -> str:
    experiments = stored_experiments(folder)
    return "\n".join(f"- {line}" for line in _lines(experiments))


def _lines(experiments: Experiments) -> Iterator[str]:
    if (masked := experiments.get("mlm-small")) is not None:
        yield _masked_line(masked)
    yield from _range_lines(
        [one for one in experiments.values() if "accuracy" in one.figures(one.reference)]
    )
    yield from _optimiser_lines([one for one in experiments.values() if one.reference == "adamw"])


def _masked_line(masked: Stored) -> str:
    full = masked.minus("lln_diag", "softmax", "loss")
    blocks = masked.minus("block_diagonal", "softmax", "loss")
    between = masked.minus("lln_diag", "block_diagonal", "loss")
    is_nearer = abs(full.mean) < abs(blocks.mean) and not _holds_zero(between)
    verdict = "is nearer" if is_nearer else "is not nearer"
    return (
        f"**In masked-language-model pre-training LLN+Diag {verdict} to softmax than blocks alone "
        f"are.** Minus softmax, in nats of held-out loss: LLN+Diag {_signed(full)}, blocks alone "
        f"{_signed(blocks)}; LLN+Diag minus blocks alone {_signed(between)} (`{masked.name}`)."
    )


def _range_lines(tasks: Iterable[Stored]) -> Iterator[str]:
    kinds: dict[str, list[str]] = {"wide": [], "better": [], "level": [], "worse": [], "guess": []}
    for task in tasks:
        kinds[_kind_of(task)].append(f"`{task.name}` {_signed(_gain(task))}")
    told = {
        "wide": f"LLN+Diag beats blocks alone by {100 * WIDE_GAIN:.0f} points or more, with "
        "intervals apart, in",
        "better": "LLN+Diag is better than blocks alone, by less, in",
        "level": "LLN+Diag cannot be told from blocks alone in",
        "worse": "LLN+Diag is worse than blocks alone in",
        "guess": "No kind of attention answers better than a guess in",
    }
    if not kinds["wide"]:
        yield f"**No task was found in which LLN+Diag beats blocks by {WIDE_GAIN:g}.**"
    for kind, found in kinds.items():
        if found:
            yield f"**{told[kind]}** {', '.join(found)} (LLN+Diag minus blocks, accuracy)."


def _kind_of(task: Stored) -> str:
    guess = _GUESSES.get(task.task)
    if guess is not None and all(
        task.figures(method)["accuracy"]["low"] <= guess for method in task.methods
    ):
        return "guess"
    gain = _gain(task)
    if _holds_zero(gain):
        return "level"
    if gain.mean < 0:
        return "worse"
    blocks, full = (task.figures(name)["accuracy"] for name in ("block_diagonal", "lln_diag"))
    is_apart = full["low"] > blocks["high"]
    return "wide" if gain.mean >= WIDE_GAIN and is_apart else "better"


def _gain(task: Stored) -> SeedInterval:
    return task.minus("lln_diag", "block_diagonal", "accuracy")


def _optimiser_lines(problems: Iterable[Stored]) -> Iterator[str]:
    for problem in problems:
        figure, verdict = _fewer_steps("fa_adam")(problem)
        rival, of_rival = _fewer_steps("muon")(problem)
        yield (
            f"**FA-Adam as corrected, against AdamW in `{problem.name}`: {verdict}.** {figure}. "
            f"Muon: {of_rival}; {rival}."
        )


def _reached(problem: Stored, name: str) -> bool:
    return _count(problem, name) == len(problem.result["settings"]["seeds"])


def _count(problem: Stored, name: str) -> int:
    return sum(bool(one["reached"]) for one in problem.result["methods"][name]["by_seed"])


def _holds_zero(interval: SeedInterval) -> bool:
    return interval.low <= 0 <= interval.high


def _signed(interval: SeedInterval) -> str:
    return spread(asdict(interval), sign="+")


HEAD = ("paper", "what it says", "command", "figure, 95 % interval", "verdict")


@dataclass(frozen=True)
class PaperRow:
    paper: str
    says: str
    experiment: str  # of the stored ones, "" where there is none
    judge: Callable[[Stored], tuple[str, str]]  # the figure and the verdict
    seeds: int = 5
    not_run: str = "not run"


def _follows_softmax(stored: Stored) -> tuple[str, str]:
    own = stored.minus("lln", "softmax", "loss")
    blocks = stored.minus("block_diagonal", "softmax", "loss")
    figure = f"LLN minus softmax {_signed(own)} nats; blocks alone minus softmax {_signed(blocks)}"
    if not _holds_zero(own):
        return figure, "LLN differs from softmax" if own.mean > 0 else "LLN is below softmax"
    if _holds_zero(blocks):
        return figure, "holds, and as much for blocks alone: it says nothing of LLN"
    return figure, "holds"


def _on_par(stored: Stored) -> tuple[str, str]:
    own = stored.minus("lln_diag", "softmax", "accuracy")
    blocks = stored.minus("block_diagonal", "softmax", "accuracy")
    figure = f"LLN+Diag minus softmax {_signed(own)}; blocks alone minus softmax {_signed(blocks)}"
    if _kind_of(stored) == "guess":
        return figure, "open: no kind is better than a guess at this budget"
    if own.high < 0:
        return figure, "fails: softmax is better"
    if own.low > 0:
        also = ", and so are blocks alone" if blocks.low > 0 else ""
        return figure, f"LLN+Diag is better than softmax{also}"
    also = "; blocks alone are too" if _holds_zero(blocks) or blocks.mean > 0 else ""
    return figure, f"holds: not to be told apart{also}"


def _fewer_steps(name: str) -> Callable[[Stored], tuple[str, str]]:
    def judge(stored: Stored) -> tuple[str, str]:
        total = len(stored.result["settings"]["seeds"])
        if not _reached(stored, name) or not _reached(stored, "adamw"):
            figure = f"reached the target from {_count(stored, name)} of {total} seeds"
            return figure, "fails" if _reached(stored, "adamw") else "open: AdamW missed it too"
        steps = stored.minus(name, "adamw", "steps")
        seconds = stored.seconds_minus(name, "adamw")
        ratio = stored.seconds(name).mean / stored.seconds("adamw").mean
        figure = (
            f"{spread(asdict(steps), sign='+', digits=0)} steps; {_signed(seconds)} CPU seconds "
            f"({ratio:.2f} of AdamW's)"
        )
        return figure, f"{_fewer(steps)} steps, {_fewer(seconds)} seconds"

    return judge


def _fewer(minus: SeedInterval) -> str:
    if _holds_zero(minus):
        return "no fewer"
    return "fewer" if minus.mean < 0 else "more"


_LINEAR = 1.05
_LLN = "LLN attention"
_GRADIENT = "Attention as Natural Gradient"
_FISHER = "Fisher Information Matrix Approximation"


def _unjudged(stored: Stored) -> tuple[str, str]:
    raise AssertionError(f"{stored.name} has no judge")


PAPER_ROWS = (
    PaperRow(_LLN, "A.8.1: its loss curve follows softmax's", "mlm-small", _follows_softmax, 3),
    PaperRow(_LLN, "A.8.1: its inverse loss scale in FP16 stays below softmax's", "", _unjudged),
    PaperRow(_LLN, "Table 1, GLUE: LLN+Diag on par with softmax", "finetune-small", _on_par, 3),
    PaperRow(_LLN, "Table 3, ViT: LLN+Diag on par with softmax", "vision-small", _on_par),
    PaperRow(_LLN, "Table 4, LRA: less time and memory than other kinds", "", _unjudged),
    PaperRow(_LLN, "Table 5, Text", "", _unjudged),
    PaperRow(_LLN, "Table 5, ListOps", "listops-small", _on_par),
    PaperRow(_LLN, "Table 5, Retrieval", "matching-small", _on_par),
    PaperRow(_LLN, "Table 5, Pathfinder", "pathfinder-small", _on_par),
    PaperRow(_LLN, "Table 5, Image", "pixels-small", _on_par),
    PaperRow(_LLN, "Figures 9 and 10: alpha and beta in training", "", _unjudged),
    *(
        PaperRow(paper, says, f"{problem}-small", _fewer_steps(method))
        for paper, says, method in (
            (_GRADIENT, "4.1: FA-Adam, as printed", "fa_adam_printed"),
            (_GRADIENT, "4.1: FA-Adam, as corrected", "fa_adam"),
            (_GRADIENT, "4.2: multi-scale updates, as printed", "multi_scale_printed"),
            (_FISHER, "theorem 2: natural gradient", "natural"),
            (_FISHER, "theorem 3: with a temperature schedule", "natural_temperature"),
        )
        for problem in ("quadratic", "logistic")
    ),
    PaperRow(_GRADIENT, "4.1: FA-Adam, as corrected", "transformer-small", _fewer_steps("fa_adam")),
    PaperRow(
        _GRADIENT, "5.2: empirical validation (the paper has none)", "", _unjudged, not_run=""
    ),
    PaperRow(_FISHER, "C: scales of heads, and pruning by them, in training", "", _unjudged),
    PaperRow("Attention (Xie)", "no claim about training", "", _unjudged, not_run=""),
)


def _steps_against_length(path: Path) -> tuple[str, str]:
    """The figure and verdict of table 2."""
    if not path.exists():
        return "", "not run"
    measured = json.loads(path.read_text(encoding="utf-8"))["rows"]
    growth = {
        row["case"].partition(",")[0]: float(row["value"])
        for row in measured
        if row["measure"] == "bytes a token, ratio"
    }
    length = max(int(row["case"].split()[1].replace(",", "")) for row in measured if row["seconds"])
    times = {
        row["case"].partition(",")[0]: float(row["value"])
        for row in measured
        if row["seconds"] and row["case"].endswith(f" {length:,} tokens")
    }
    figure = (
        f"bytes a token at {length:,} over those at 512: LLN {growth['lln']:.2f}, LLN+Diag "
        f"{growth['lln_diag']:.2f}, softmax {growth['softmax']:.2f}; time over softmax's at "
        f"{length:,}: LLN {times['lln']:.2f}, LLN+Diag {times['lln_diag']:.2f}, Nystromformer "
        f"{times['nystromformer']:.2f}"
    )
    is_linear = max(growth["lln"], growth["lln_diag"]) <= _LINEAR
    is_faster = max(times["lln"], times["lln_diag"]) < times["nystromformer"]
    also = ", and so has softmax here" if growth["softmax"] <= _LINEAR else ""
    return figure, (
        f"memory {'has' if is_linear else 'has not'} linear growth{also}; "
        f"{'faster' if is_faster else 'not faster'} than Nystromformer"
    )


def rows(results: Path) -> Iterator[tuple[str, ...]]:
    experiments = stored_experiments(results / "experiments")
    yield (
        *(_LLN, "Table 2: memory and time linear in length, faster than Nystromformer"),
        "`python -m benchmarks training-steps --threads 1`",
        *_steps_against_length(results / "training-steps.json"),
    )
    for row in PAPER_ROWS:
        stored = experiments.get(row.experiment)
        name = row.experiment.removesuffix("-small")
        command = f"`lln experiment {name} --seeds {row.seeds}`" if name in EXPERIMENTS else ""
        figure, verdict = row.judge(stored) if stored is not None else ("", row.not_run)
        yield row.paper, row.says, command, figure, verdict
