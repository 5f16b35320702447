"""The size of a softmax block, which depends on the length of the text."""

from __future__ import annotations

from typing import NamedTuple


class LongBlock(NamedTuple):
    """Texts of more than `beyond` tokens have blocks of `size` tokens."""

    beyond: int
    size: int

    def checked(self, usual: int) -> LongBlock:
        """Itself, if it fits beside blocks of the usual size in all other texts."""
        # Imported here: the command line reads this file before it needs torch.
        from kernels.attention.arguments import ArgumentError, check_block_size

        if not all(type(number) is int for number in self):
            raise ArgumentError(f"long_block must be two integers, got {tuple(self)}")
        if check_block_size(self.size, "long_block.size") >= usual:
            raise ArgumentError(f"long_block.size must be below {usual}, got {self.size}")
        if self.beyond < usual:
            raise ArgumentError(f"long_block.beyond must be at least {usual}, got {self.beyond}")
        return self


def block_of(length: int, usual: int, long: LongBlock | None) -> int:
    """The block size in a text of this length."""
    return usual if long is None or length <= long.beyond else long.size


def beyond_a_block(length: int, block_size: int) -> float:
    """The fraction of a sequence that is outside a token's own block, which LLN attends to."""
    return max(0.0, 1 - block_size / length) if length else 0.0
