"""Progress of a training: a line per epoch and, in a terminal, a bar below."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch.utils.tensorboard import SummaryWriter

from coattend._terminal import console
from coattend.train.history import Epoch

FIGURES = 60  # columns for all but the title: a short bar, epoch, loss, speed and remaining time


class TrainingProgress:
    """Print loss, speed and remaining time during an epoch, and accuracies after it, in the first process only."""

    def __init__(self, title: str, epochs: int, first_epoch: int, visible: bool) -> None:
        self.console = console(quiet=not visible)
        self.title, self.epochs = title, epochs
        self.loss: float | None = None
        self.speed: float | None = None
        self.moment = time.perf_counter()
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=10 if self.console.width < 100 else 20),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(),
            console=self.console,
            disable=not (visible and self.console.is_terminal),
        )
        room = max(8, self.console.width - FIGURES)
        short = title if len(title) <= room else f"{title[: room - 10]}…{title[-9:]}"  # the seed is at its end
        self.task = self.bar.add_task(short, total=epochs, completed=first_epoch, figures="")

    def __enter__(self) -> TrainingProgress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self.console.print(line, soft_wrap=True)

    def step(self, epoch: int, fraction: float, loss: float, images: int) -> None:
        """Advance the bar after a step with so many images; loss and speed are smoothed."""
        if self.bar.disable:
            return
        now = time.perf_counter()
        speed = images / max(now - self.moment, 1e-9)
        self.moment = now
        self.loss = loss if self.loss is None else 0.95 * self.loss + 0.05 * loss
        self.speed = speed if self.speed is None else 0.95 * self.speed + 0.05 * speed
        figures = f"epoch {epoch + 1}/{self.epochs}  loss {self.loss:.3f}  {self.speed:,.0f} img/s"
        self.bar.update(self.task, completed=epoch + fraction, figures=figures)

    def epoch(self, measured: Epoch) -> None:
        """Print the measures of an epoch; in a terminal, above the bar."""
        parts = (
            ("train", measured.train_accuracy),
            ("valid", measured.valid_accuracy),
            ("test", measured.test_accuracy),
        )
        accuracies = "".join(f"  {name} {value:.2%}" for name, value in parts if value is not None)
        text = f"epoch {measured.epoch + 1}/{self.epochs}  loss {measured.train_loss:.4f}{accuracies}"
        self.console.print(f"{self.title}  {text}  {measured.seconds:.1f} s", soft_wrap=True)


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
