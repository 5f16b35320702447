"""What the stages of a run draw their batches from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from engine.errors import InvalidInput
from engine.text.tokenizer import TextTokenizer
from engine.training.chunks import ChunkCorpus
from engine.training.data import Document
from engine.training.pairs import PairCorpus
from engine.training.questions import QuestionCorpus
from engine.training.recipe import Stage, StageKind
from engine.training.token_corpus import TokenCorpus


@dataclass(frozen=True, kw_only=True)
class TrainingCorpora:
    """The same documents in the form of each kind of stage that needs one of its own."""

    windows: TokenCorpus
    pairs: PairCorpus | None = None
    chunks: ChunkCorpus | None = None
    questions: QuestionCorpus | None = None

    @classmethod
    def of(
        cls,
        parts: Mapping[str, Sequence[Document]],
        texts: Sequence[str],
        tokenizer: TextTokenizer,
        kinds: Collection[StageKind],
    ) -> TrainingCorpora:
        return cls(
            windows=TokenCorpus.of(texts, tokenizer),
            pairs=PairCorpus(parts, tokenizer) if "pairs" in kinds else None,
            chunks=ChunkCorpus(parts, tokenizer) if "chunks" in kinds else None,
            questions=QuestionCorpus(parts, tokenizer) if "questions" in kinds else None,
        )

    def of_kind(self, kind: StageKind) -> PairCorpus | ChunkCorpus | QuestionCorpus | None:
        """None for kinds that read windows."""
        match kind:
            case "pairs":
                return self.pairs
            case "chunks":
                return self.chunks
            case "questions":
                return self.questions
            case _:
                return None

    def check_kinds(self, stages: Sequence[Stage]) -> None:
        """Reject stages whose form is missing."""
        for kind in ("pairs", "chunks", "questions"):
            if self.of_kind(kind) is None and any(stage.kind == kind for stage in stages):
                raise InvalidInput(
                    f"a stage of {kind} needs documents, not windows alone",
                    code=f"no_{kind}",
                    param="data",
                )

    def longest(self, stage: Stage) -> int:
        """The most tokens that the stage's batches read at once."""
        own = self.of_kind(stage.kind)
        return max(stage.lengths) if own is None else own.longest(max(stage.lengths))
