"""Keeps what transformers says while it loads models from landing between the tables."""

from __future__ import annotations

from transformers.utils import logging


def silence_loading() -> None:
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
