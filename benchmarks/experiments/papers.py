"""What the stored experiments say: the headline of docs/experiments.md, and the papers' rows.

Both follow from the stored figures alone: no verdict is written by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.experiments.selectivity import selectivity_lines
from benchmarks.experiments.tables import Stored, stored_experiments
from benchmarks.experiments.verdicts import (
    WIDE_GAIN,
    Judge,
    Judged,
    cost_of_lra,
    fewer_steps,
    fixed_scales,
    follows_softmax,
    gain,
    holds_zero,
    inverse_scale,
    kind_of,
    matched_scales,
    on_par,
    prunes,
    scales_part,
    signed,
    steps_against_length,
    unjudged,
)
from engine.experiments.catalogue import EXPERIMENTS

Experiments = Mapping[str, Stored]
_COMPARED = {"lln_diag", "block_diagonal"}


def headline(folder: Path) -> str:
    experiments = stored_experiments(folder)
    return "\n".join(f"- {line}" for line in _lines(experiments))


def _lines(experiments: Experiments) -> Iterator[str]:
    if (masked := experiments.get("mlm-small")) is not None:
        yield _masked_line(masked)
    tasks = [
        one
        for one in experiments.values()
        if "accuracy" in one.figures(one.reference) and set(one.methods) >= _COMPARED
    ]
    yield from _range_lines(tasks)
    yield from _rival_lines(tasks)
    if (selective := experiments.get("selectivity-small")) is not None:
        yield from selectivity_lines(selective)
    yield from _optimiser_lines([one for one in experiments.values() if one.reference == "adamw"])
    if (pruned := experiments.get("pruning-small")) is not None:
        yield from _pruning_lines(pruned)


def _masked_line(masked: Stored) -> str:
    full = masked.minus("lln_diag", "softmax", "loss")
    blocks = masked.minus("block_diagonal", "softmax", "loss")
    between = masked.minus("lln_diag", "block_diagonal", "loss")
    is_nearer = abs(full.mean) < abs(blocks.mean) and not holds_zero(between)
    verdict = "is closer" if is_nearer else "is not closer"
    return (
        f"**In masked-language-model pre-training LLN+Diag {verdict} to softmax than blocks "
        f"alone.** Minus softmax, in nats of held-out loss: LLN+Diag {signed(full)}, blocks alone "
        f"{signed(blocks)}; LLN+Diag minus blocks alone {signed(between)} (`{masked.name}`)."
    )


def _range_lines(tasks: Iterable[Stored]) -> Iterator[str]:
    kinds: dict[str, list[str]] = {"wide": [], "better": [], "level": [], "worse": [], "guess": []}
    for task in tasks:
        kinds[kind_of(task)].append(f"`{task.name}` {signed(gain(task))}")
    told = {
        "wide": f"LLN+Diag beats blocks alone by {100 * WIDE_GAIN:.0f} points or more, with "
        "intervals apart, in",
        "better": "LLN+Diag is better than blocks alone, by less, in",
        "level": "LLN+Diag cannot be distinguished from blocks alone in",
        "worse": "LLN+Diag is worse than blocks alone in",
        "guess": "No kind of attention is better than guessing in",
    }
    if not kinds["wide"]:
        yield f"**No task was found in which LLN+Diag beats blocks by {WIDE_GAIN:g}.**"
    for kind, found in kinds.items():
        if found:
            yield f"**{told[kind]}** {', '.join(found)} (LLN+Diag minus blocks, accuracy)."


def _rival_lines(tasks: Iterable[Stored]) -> Iterator[str]:
    """Where another kind, softmax included, is better than LLN+Diag beyond the interval."""
    for task in tasks:
        others = [name for name in task.methods if name not in _COMPARED]
        rivals = {name: task.minus(name, "lln_diag", "accuracy") for name in others}
        better = [f"`{name}` {signed(by)}" for name, by in rivals.items() if by.low > 0]
        if better and kind_of(task) != "guess":
            yield f"**Better than LLN+Diag in `{task.name}`:** {', '.join(better)}."


def _optimiser_lines(problems: Iterable[Stored]) -> Iterator[str]:
    for problem in problems:
        figure, verdict = fewer_steps("fa_adam")(problem)
        rival, of_rival = fewer_steps("muon")(problem)
        yield (
            f"**FA-Adam as corrected, against AdamW in `{problem.name}`: {verdict}.** {figure}. "
            f"Muon: {of_rival}; {rival}."
        )


def _pruning_lines(pruned: Stored) -> Iterator[str]:
    for rule, what in (
        ("pattern_fisher", "the Fisher matrix of their patterns, as the paper has it"),
        ("gate_fisher", "the Fisher information of the loss in a gate on each"),
    ):
        figure, verdict = prunes(rule)(pruned)
        yield f"**Heads pruned by {what}: {verdict}.** Accuracy {figure} (`{pruned.name}`)."


HEAD = ("paper", "what it says", "command", "figure, 95 % interval", "verdict")


@dataclass(frozen=True)
class PaperRow:
    paper: str
    says: str
    experiment: str  # of the stored ones, "" where there is none
    judge: Judge
    seeds: int = 5
    not_run: str = "not run"
    needs: tuple[str, ...] = ()
    """Methods that were added to the experiment after others."""

    def judged(self, stored: Stored | None) -> Judged:
        if stored is None or not set(self.needs) <= set(stored.methods):
            return "", self.not_run
        return self.judge(stored)


_LLN = "LLN attention"
_GRADIENT = "Attention as Natural Gradient"
_FISHER = "Fisher Information Matrix Approximation"


PAPER_ROWS = (
    PaperRow(_LLN, "A.8.1: its loss curve follows softmax's", "mlm-small", follows_softmax, 3),
    PaperRow(
        _LLN,
        "A.8.1: its inverse loss scale in FP16 does not exceed softmax's",
        "float16-small",
        inverse_scale("lln", "softmax", is_to_exceed=False),
        3,
    ),
    PaperRow(_LLN, "Table 1, GLUE: LLN+Diag on par with softmax", "finetune-small", on_par, 3),
    PaperRow(_LLN, "Table 3, ViT: LLN+Diag on par with softmax", "vision-small", on_par),
    PaperRow(_LLN, "Table 5, Text", "text-small", on_par),
    PaperRow(_LLN, "Table 5, ListOps", "listops-small", on_par),
    PaperRow(_LLN, "Table 5, Retrieval", "matching-small", on_par),
    PaperRow(_LLN, "Table 5, Pathfinder", "pathfinder-small", on_par),
    PaperRow(_LLN, "Table 5, Image", "pixels-small", on_par),
    PaperRow(
        _LLN,
        "Figure 9: alpha and beta stay within 2 and 2.2 in the training of a ViT",
        "moments-small",
        matched_scales,
        3,
    ),
    PaperRow(
        _LLN,
        "Figure 9, the same in pre-training",
        "mlm-small",
        matched_scales,
        3,
        needs=("lln_matched",),
    ),
    PaperRow(
        _LLN,
        "Figure 10a: alpha and beta below 2 cost accuracy, from 2 on they do not",
        "moments-small",
        fixed_scales,
        3,
    ),
    PaperRow(
        _LLN,
        "Figure 10b: the inverse loss scale is larger at alpha = beta = 4 than at 2",
        "float16-small",
        inverse_scale("lln_4", "lln", is_to_exceed=True),
        3,
    ),
    *(
        PaperRow(paper, says, f"{problem}-small", fewer_steps(method))
        for paper, says, method in (
            (_GRADIENT, "4.1: FA-Adam, as printed", "fa_adam_printed"),
            (_GRADIENT, "4.1: FA-Adam, as corrected", "fa_adam"),
            (_GRADIENT, "4.2: multi-scale updates, as printed", "multi_scale_printed"),
            (_FISHER, "theorem 2: natural gradient", "natural"),
            (_FISHER, "theorem 3: with a temperature schedule", "natural_temperature"),
        )
        for problem in ("quadratic", "logistic")
    ),
    PaperRow(_GRADIENT, "4.1: FA-Adam, as corrected", "transformer-small", fewer_steps("fa_adam")),
    PaperRow(_GRADIENT, "5.2: empirical validation (the paper has none)", "", unjudged, not_run=""),
    PaperRow(
        _GRADIENT,
        "4.2: multi-scale updates, as corrected: a scale for each head",
        "transformer-small",
        fewer_steps("head_scaled"),
        needs=("head_scaled",),
    ),
    PaperRow(_FISHER, "C.5: heads organise into scales", "pruning-small", scales_part),
    PaperRow(
        _FISHER,
        "C.5: heads to prune are known by the Fisher matrix of their patterns",
        "pruning-small",
        prunes("pattern_fisher"),
    ),
    PaperRow(
        _FISHER,
        "the same as corrected: by that of the loss in a head's gate",
        "pruning-small",
        prunes("gate_fisher"),
    ),
    PaperRow("Attention (Xie)", "no claim about training", "", unjudged, not_run=""),
)


def rows(results: Path) -> Iterator[tuple[str, ...]]:
    experiments = stored_experiments(results / "experiments")
    yield (
        *(_LLN, "Table 2: memory and time linear in length, faster than Nystromformer"),
        "`python -m benchmarks training-steps --threads 1`",
        *steps_against_length(results / "training-steps.json"),
    )
    yield (
        *(_LLN, "Table 4, LRA: less time and memory than other kinds"),
        "`python -m benchmarks training-steps --threads 1`",
        *cost_of_lra(results / "training-steps.json"),
    )
    for row in PAPER_ROWS:
        stored = experiments.get(row.experiment)
        name = row.experiment.removesuffix("-small")
        command = f"`lln experiment {name} --seeds {row.seeds}`" if name in EXPERIMENTS else ""
        yield row.paper, row.says, command, *row.judged(stored)
