"""Records of runs that were not trained."""

from __future__ import annotations

from coattend.train.record import Record
from coattend.train.run import Errors, Result

TESTED = 1_000


def record(
    model: str,
    recipe: str,
    seed: int,
    valid: float | None,
    last: float,
    *,
    settings: tuple[str, ...] = (),
    arithmetic: str | None = None,
) -> Record:
    """A run on rotated MNIST, of which the first test images are misclassified."""
    result = Result(
        model=model,
        seed=seed,
        provenance="generated from MNIST (seed 2020, version 2)",
        parameters=19880,
        recipe=recipe,
        settings=settings,
        data="rotated-mnist",
        epochs=3,
        error=Errors(last, valid, 2.0),
        valid_epoch=None,
        valid_error=None,
        equivariance_error=None,
        seconds_per_epoch=72.0,
        seconds=7200.0,
    )
    wrong = tuple(range(round(result.test_error * TESTED / 100)))
    return Record(f"{model}/seed{seed}", result, result.kind.command(seed), arithmetic, TESTED, wrong)
