"""Real text with labels, byte by byte: is a mail spam?

As in the Long Range Arena's classification of texts, a model reads bytes and answers once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Generator, Tensor

from engine.experiments.tasks import labelled_mail
from engine.experiments.tasks.labelled_mail import CLASSES
from engine.experiments.tasks.task import Examples, Part, Task

_FILLER = 256  # after the end of a mail


@dataclass(frozen=True, kw_only=True)
class MailBytes(Task):
    length: int  # of a mail's beginning
    folder: str = ""  # of the mail; that of the package if there is none
    name: str = "text"
    reads_neighbour: bool = False
    pools: ClassVar[bool] = True
    vocabulary: ClassVar[int] = _FILLER + 1
    classes: ClassVar[int] = len(CLASSES)

    def sources(self) -> Mapping[str, str]:
        return {labelled_mail.PACKAGE: labelled_mail.digest(self._mail)}

    def draw(self, count: int, generator: Generator, part: Part = "training") -> Examples:
        mails = labelled_mail.draw(self._mail, count, generator, part)
        tokens = torch.stack([self._bytes(mail.text) for mail in mails])
        targets = torch.tensor([[mail.label] for mail in mails])
        return Examples(tokens, targets, torch.zeros_like(targets))

    @property
    def _mail(self) -> Path:
        return Path(self.folder) if self.folder else labelled_mail.data_folder()

    def _bytes(self, text: str) -> Tensor:
        found = list(text.encode(errors="replace")[: self.length])
        return torch.tensor(found + [_FILLER] * (self.length - len(found)))
