"""Other engines over the same weights: text in, unit vectors out, as in ours."""

from transformers.utils import logging

# Messages about loading would land between the tables.
logging.set_verbosity_error()  # type: ignore[no-untyped-call]
logging.disable_progress_bar()  # type: ignore[no-untyped-call]
