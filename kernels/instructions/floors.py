"""The least time that a launch can take, by each thing that limits it, on an H100 SXM.

Each floor stands alone and assumes that nothing else takes time. A launch cannot be faster than
the largest of its floors; how far above it stays, only a GPU can tell.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kernels.instructions.compile import Usage
from kernels.instructions.sass import Counts

WARP = 32


@dataclass(frozen=True)
class Device:
    """A device by its maker's figures, at the clock at which 989 TFLOP/s are promised."""

    name: str = "H100 SXM"
    processors: int = 132
    clock_hz: float = 1.83e9
    bytes_per_s: float = 3.35e12
    issued_per_clock: int = 4  # instructions of a warp, a processor
    exponentials_per_clock: int = 16  # of a thread, a processor
    flops_per_clock: int = 4096  # dense products in 16 bits, a processor
    registers: int = 65536  # a processor
    max_warps: int = 64
    max_programs: int = 32
    shared_bytes: int = 228 * 1024

    def seconds(self, amount: float, per_clock: float) -> float:
        return amount / (per_clock * self.processors * self.clock_hz)

    def resident_warps(self, usage: Usage) -> int:
        """Warps that a processor holds at once."""
        of_a_warp = -(-usage.registers * WARP // 256) * 256
        by_registers = self.registers // of_a_warp // usage.num_warps
        by_shared = self.shared_bytes // (usage.shared_bytes + 1024)
        programs = min(
            by_registers, by_shared, self.max_programs, self.max_warps // usage.num_warps
        )
        return programs * usage.num_warps


H100 = Device()


@dataclass(frozen=True)
class Row:
    """One launch. Amounts are for a token and head, times in picoseconds for the same."""

    name: str
    part: str
    form: str
    instructions: float  # that warps issue
    exponentials: float
    tensor_instructions: float
    tensor_flops: float
    bytes: float
    registers: int
    stack_bytes: int
    shared_bytes: int
    num_warps: int
    resident_warps: int
    bytes_ps: float
    issue_ps: float
    exponentials_ps: float
    tensor_ps: float

    @property
    def floor_ps(self) -> float:
        return max(self.bytes_ps, self.issue_ps, self.exponentials_ps, self.tensor_ps)

    @property
    def limit(self) -> str:
        floors = {
            "bytes": self.bytes_ps,
            "instructions": self.issue_ps,
            "exponentials": self.exponentials_ps,
            "tensor cores": self.tensor_ps,
        }
        return max(floors, key=lambda name: floors[name])

    def stored(self) -> dict[str, Any]:
        return {
            name: round(value, 3) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def row_of(part: str, form: str, counts: Counts, usage: Usage, tokens: float, moved: float) -> Row:
    share = usage.num_warps / tokens
    instructions = counts.instructions * share
    exponentials = counts.exponentials * share * WARP
    flops = counts.tensor_flops * share
    return Row(
        name=f"{part}, {form}",
        part=part,
        form=form,
        instructions=instructions,
        exponentials=exponentials,
        tensor_instructions=counts.tensor_instructions * share,
        tensor_flops=flops,
        bytes=moved,
        registers=usage.registers,
        stack_bytes=usage.stack_bytes,
        shared_bytes=usage.shared_bytes,
        num_warps=usage.num_warps,
        resident_warps=H100.resident_warps(usage),
        bytes_ps=1e12 * moved / H100.bytes_per_s,
        issue_ps=1e12 * H100.seconds(instructions, H100.issued_per_clock),
        exponentials_ps=1e12 * H100.seconds(exponentials, H100.exponentials_per_clock),
        tensor_ps=1e12 * H100.seconds(flops, H100.flops_per_clock),
    )
