"""Tells transformers about our model type and our attention."""

from __future__ import annotations

from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask

from lln.attention import NAME, attention_forward
from lln.model import LLNConfig, LLNModel


def register() -> None:
    """May be called again: the same classes take the place of themselves."""
    AutoConfig.register(LLNConfig.model_type, LLNConfig, exist_ok=True)
    AutoModel.register(LLNConfig, LLNModel, exist_ok=True)
    AutoTokenizer.register(LLNConfig, PreTrainedTokenizerFast, exist_ok=True)  # type: ignore[no-untyped-call]
    AttentionInterface.register(NAME, attention_forward)
    # The mask of flash attention says which tokens are padding, and is not a matrix.
    AttentionMaskInterface.register(NAME, flash_attention_mask)
