"""What makes a training run pointless or impossible, told before minutes are spent on it."""

from __future__ import annotations

from engine.adapt.batches import TokenCorpus
from engine.adapt.lessons import anchor_lengths
from engine.adapt.pairs import PairCorpus
from engine.adapt.stages import Stage, TrainingPlan
from engine.adapt.student import StudentPlan
from engine.checkpoint.folder import Pooling
from engine.errors import InvalidInput


def check_lengths(
    plan: TrainingPlan, windows: TokenCorpus, pooling: Pooling, teacher_window: int
) -> None:
    for stage in plan.stages:
        longest, shortest = max(stage.lengths), min(stage.lengths)
        if shortest <= windows.num_special:
            raise _length_refused(
                f"a stage asks for {shortest} tokens, of which {windows.num_special} are special",
                windows.num_special,
                shortest,
            )
        # Pairs take shorter documents too.
        if stage.kind != "pairs" and longest > windows.longest:
            raise _length_refused(
                f"a stage asks for windows of {longest} tokens, and the longest document has "
                f"{windows.longest}",
                windows.longest,
                longest,
            )
        # Windows of a longer text have a first token each, none of which stands for all of it.
        imitates = stage.kind in ("states", "contrast") or (
            stage.kind == "pairs" and stage.held_share > 0
        )
        if pooling == "cls" and imitates and longest > teacher_window:
            raise _length_refused(
                "a model that pools by its first token has no vector to imitate beyond its window "
                f"of {teacher_window} tokens; a stage asks for {longest}",
                teacher_window,
                longest,
            )


def _length_refused(message: str, limit: int, actual: int) -> InvalidInput:
    return InvalidInput(
        message, code="unusable_length", param="lengths", limit=limit, actual=actual
    )


def check_documents(plan: TrainingPlan, pairs: PairCorpus | None) -> None:
    for stage in plan.stages:
        if stage.kind == "pairs" and pairs is not None:
            pairs.check_documents(stage.shortest)


def check_gradients(
    plan: TrainingPlan,
    learns: StudentPlan,
    block_size: int,
    windows: TokenCorpus,
    pairs: PairCorpus | None,
) -> None:
    """LLN has a share, and with it something to learn, in texts longer than a block alone."""
    if learns.encoder and any(stage.kind != "attention" for stage in plan.stages):
        return
    if learns.without_lln:
        raise InvalidInput(
            "without LLN there is the encoder alone to be trained, and no stage does",
            code="nothing_to_learn",
            param="control",
        )
    longest = max(_longest(stage, plan, windows, pairs) for stage in plan.stages)
    if longest <= block_size:
        raise InvalidInput(
            f"nothing can be learned: LLN reads what lies beyond a block of {block_size} tokens, "
            f"and no text that is read has more than {longest}; smaller blocks, longer documents "
            "or a recipe that trains the encoder would do",
            code="nothing_to_learn",
            param="block_size",
            limit=longest,
            actual=block_size,
        )


def _longest(
    stage: Stage, plan: TrainingPlan, windows: TokenCorpus, pairs: PairCorpus | None
) -> int:
    """Tokens that a stage reads at once, at most."""
    if stage.kind != "pairs" or pairs is None:
        return max(stage.lengths)
    anchors = anchor_lengths(min(plan.teacher_window, windows.longest))
    return max(pairs.longest(max(stage.lengths)), *anchors)
