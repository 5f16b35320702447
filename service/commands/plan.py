"""`lln plan`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from service.commands.base import (
    Chosen,
    Commands,
    add_command,
    add_json,
    add_model,
    numbers,
    print_json,
    with_engine,
)

if TYPE_CHECKING:
    from engine.engine import AsyncEngine
    from engine.types import Plan


def add(commands: Commands) -> None:
    command = add_command(commands, "plan", _plan, "what texts of some lengths would take here")
    command.add_argument("tokens", type=numbers, metavar="TOKENS,TOKENS,...")
    add_model(command)
    add_json(command)


def _plan(chosen: Chosen) -> None:
    async def plans(engine: AsyncEngine) -> list[Plan]:
        return [await engine.plan(tokens) for tokens in chosen.tokens]

    found = with_engine(chosen.model, plans)
    if chosen.json:
        print_json([asdict(plan) for plan in found])
        return
    print(f"{'tokens':>10} {'path':>7} {'megabytes':>10} {'seconds':>8} {'fits':>5}")
    for plan in found:
        fits = "yes" if plan.fits else "no"
        megabytes = plan.bytes / 1e6
        print(f"{plan.tokens:>10} {plan.path:>7} {megabytes:>10.1f} {plan.seconds:>8.2f} {fits:>5}")
