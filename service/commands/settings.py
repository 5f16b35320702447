"""`lln settings`."""

from __future__ import annotations

from service.commands.base import (
    Chosen,
    Commands,
    add_command,
    add_json,
    print_json,
    print_table,
)
from service.settings import setting_rows


def add(commands: Commands) -> None:
    add_json(add_command(commands, "settings", _settings, "list the environment variables"))


def _settings(chosen: Chosen) -> None:
    rows = list(setting_rows())
    if chosen.json:
        print_json([row._asdict() for row in rows])
        return
    print_table([("VARIABLE", "DEFAULT", "MEANING"), *rows])
