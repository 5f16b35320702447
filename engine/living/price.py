"""What an update of a document with a record would take."""

from __future__ import annotations

from dataclasses import replace

from engine.execution.inputs import lengths_alone
from engine.execution.planner import Planner
from engine.living.prepare import LivingDocument
from engine.living.segmented_text import SegmentedText
from engine.model.embedding_model import EmbeddingModel
from engine.types import Plan


def plan_of_segments(text: SegmentedText, model: EmbeddingModel, planner: Planner) -> Plan:
    """The plan of the segments that are read, with what is read alone besides."""
    lengths = lengths_alone(text, model.tokenizer)
    plan = planner.plan(model, text.num_embedded, tiled=True)
    return planner.with_alone(model, plan, count=len(lengths), tokens=sum(lengths))


def plan_of_update(document: LivingDocument, model: EmbeddingModel, planner: Planner) -> Plan:
    """The plan of the document's first round. `tokens` are those of the whole document."""
    if document.segmented is None:
        plan = planner.plan(model, document.num_tokens, tiled=True)
        return replace(plan, tokens_read=0, bytes=0, seconds=0.0, tiles=0, fits=True)
    plan = plan_of_segments(document.segmented, model, planner)
    return replace(plan, tokens=document.num_tokens)
