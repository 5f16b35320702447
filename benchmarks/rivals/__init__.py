"""The same weights in the hands of others: text in, unit vectors out, as with us."""

from transformers.utils import logging

# What loading prints would stand between the tables.
logging.set_verbosity_error()  # type: ignore[no-untyped-call]
logging.disable_progress_bar()  # type: ignore[no-untyped-call]
