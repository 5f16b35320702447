"""The commands of `lln`. Each `add_...` function defines one command and its options."""
