"""`lln export`: write an adapted model for transformers and sentence-transformers."""

from __future__ import annotations

from service.cli.common import Chosen, Commands, add_command, add_json, path_of, print_json
from service.environment import load_settings


def add_export(commands: Commands) -> None:
    about = "write an LLN+Diag model for transformers and sentence-transformers"
    command = add_command(commands, "export", _export, about)
    command.add_argument("model", help="a name that `lln models` lists, or a folder of `lln adapt`")
    command.add_argument("--out", type=path_of, required=True, help="the new folder")
    add_json(command)


def _export(chosen: Chosen) -> None:
    from engine.training.export import export_model

    made = export_model(chosen.model, chosen.out, config=load_settings().engine)
    if chosen.json:
        print_json({"folder": str(made)})
    else:
        print(f"{made}: load it with `import lln` and SentenceTransformer({str(made)!r})")
