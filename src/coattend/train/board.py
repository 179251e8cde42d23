"""TensorBoard logs of a run."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from torch.utils.tensorboard import SummaryWriter

from coattend._terminal import console
from coattend.train.history import Epoch


class Board:
    """Scalars of every epoch for TensorBoard; a failed write stops these logs, but not the training."""

    def __init__(self, folder: Path, first_epoch: int) -> None:
        self.folder = folder
        self.writer: SummaryWriter | None = None
        try:
            self.writer = SummaryWriter(folder, purge_step=first_epoch)
        except OSError as error:
            self._give_up(error)

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.writer is not None:
            try:
                self.writer.close()
            except OSError as failed:
                self._give_up(failed)

    def add(self, epoch: Epoch) -> None:
        """Log the measures of an epoch."""
        if self.writer is None:
            return
        try:
            for key, value in epoch.to_dict().items():
                self.writer.add_scalar(key, value, epoch.epoch)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.writer = None
        text = f"coattend: no more TensorBoard logs ({self.folder}: {error.strerror or error}); the training continues."
        console(stderr=True).print(text, soft_wrap=True)
