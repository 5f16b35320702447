"""Mail as SpamAssassin's package has it: a file for each, by class."""

from __future__ import annotations

import json
from pathlib import Path


def write_mail(folder: Path) -> None:
    for name, word in (("easy-ham-1", "meeting"), ("spam-2", "money")):
        (folder / name).mkdir(parents=True)
        for number in range(60):
            text = f"From: me\nSubject: {word}\n\n{word} number {number} at noon " * 3
            (folder / name / f"{number:02}.json").write_text(json.dumps({"text": text}))
