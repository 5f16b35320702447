"""How long a softmax block is, by the length of the text."""

from __future__ import annotations

from typing import NamedTuple


class LongBlock(NamedTuple):
    """Texts of more than `beyond` tokens have blocks of `size`."""

    beyond: int
    size: int

    def checked(self, usual: int) -> LongBlock:
        """If it goes with blocks of the usual size in all other texts."""
        # Here, since the command line reads this file before it knows that torch will be needed.
        from kernels.attention.arguments import ArgumentError, check_block_size

        if not all(type(number) is int for number in self):
            raise ArgumentError(f"long_block must be two whole numbers, got {tuple(self)}")
        if check_block_size(self.size, "long_block.size") >= usual:
            raise ArgumentError(f"long_block.size must be below {usual}, got {self.size}")
        if self.beyond < usual:
            raise ArgumentError(f"long_block.beyond must be at least {usual}, got {self.beyond}")
        return self


def block_of(length: int, usual: int, long: LongBlock | None) -> int:
    return usual if long is None or length <= long.beyond else long.size


def beyond_a_block(length: int, block_size: int) -> float:
    """What part of a sequence a token's own block leaves to LLN."""
    return max(0.0, 1 - block_size / length) if length else 0.0
