"""The program and the types of its arguments."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

app = tyro.extras.SubcommandApp()


def shown(metavar: str) -> Any:
    """Return how an argument's value is shown in the help."""
    return tyro.conf.arg(metavar=metavar)


Settings = Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(name="set", metavar="FIELD=VALUE")]
Model = Annotated[tyro.conf.Positional[str], shown("MODEL")]
Run = Annotated[tyro.conf.Positional[str], shown("RUN")]
Data = Annotated[str | None, shown("DATA")]
Name = Annotated[str | None, shown("NAME")]
Pixels = Annotated[int | None, shown("PIXELS")]
Folder = Annotated[Path, shown("FOLDER")]
File = Annotated[Path | None, shown("FILE")]
Seeds = Annotated[str, shown("SEED[,SEED...]")]
Fit = Literal["resize", "crop"]  # equal to coattend.data.images.Fit, which takes torch to import


def leads() -> bool:
    """Return whether this is the first of the processes that train as one, or the only one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        return bool(distributed.get_rank() == 0)
    return os.environ.get("RANK", "0") == "0"  # torchrun has started several, and none has joined the group yet
