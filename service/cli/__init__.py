"""The commands of `lln`. Each `add_...` function defines one command and its options."""

import os

from engine.platform.process import limit_numpy_threads

# pydantic reads this when the first model is defined. It would look through every installed package
# for plugins, for a twentieth of a second. Programs that import our client keep theirs.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

# Commands import NumPy before they begin.
limit_numpy_threads()
