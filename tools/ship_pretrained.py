"""Ship finished runs with the package: certified weights, and a model card written from what the run recorded.

    python tools/ship_pretrained.py RUN...

Writes ``src/coattend/models/weights/<data>/<model>.safetensors`` and a card ``.md`` beside it; a file that is there is
replaced. The weights are those of the epoch chosen on the validation images, else the last. Of several seeds in the
ledger (``results/runs.jsonl``, written by ``coattend reproduce``) only the one with the fewest validation errors is
taken. Runs of the leaderboard have no validation images: any of them is taken, and should not be chosen by its errors.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coattend._files import write_atomically
from coattend.export import Certificate, export_safetensors
from coattend.models import EquivariantNetwork, create_model, model_entry, network_name
from coattend.models.classifier import weights_file
from coattend.models.pretrained import WEIGHTS, file_stem
from coattend.train import Result, Run, RunFolder
from coattend.train.entry import TURNS, read_entries
from coattend.train.record import read_records

SETTINGS = ("preprocessing", "augmentation", "optimizer", "lr", "schedule", "warmup", "weight_decay", "batch")
LARGEST = 400_000  # bytes; what comes with every installation has to stay small
RESULTS = Path(__file__).parents[1] / "results" / "runs.jsonl"
BOARD = RESULTS.parent / "leaderboard"


def ship(run: Path) -> Path:
    """Copy the weights of one run and write its card."""
    folder = RunFolder(run)
    result = folder.result
    if result is None:
        raise ValueError(
            f"{run} is not finished: it has no result.json; expected a run that `coattend train` finished."
        )
    turned = verified(run, result)
    source = weights_file(run)
    if source.stat().st_size > LARGEST:
        raise ValueError(f"{source} has {source.stat().st_size:,} bytes; at most {LARGEST:,} are shipped.")
    name = network_name(create_model(result.model))
    target = WEIGHTS / result.data / f"{file_stem(name)}.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    certificate = export_safetensors(source, target, overwrite=True)
    shipped = create_model(result.model, pretrained=result.data)  # what users will call
    text = card(result, folder.run, certificate, shipped, source.name, target.stat().st_size, turned)
    write_atomically(target.with_suffix(".md"), text.encode())
    return target


def verified(run: Path, result: Result) -> float | None:
    """Raise unless the run may be shipped; return its error over turned copies if it is one of the leaderboard."""
    entries = [entry for entry in read_entries(BOARD).get(result.kind, ()) if entry.record.result.seed == result.seed]
    for entry in entries:
        recorded = entry.record.result.error.last
        if recorded != result.error.last:
            raise ValueError(
                f"{run} has {result.error.last:g} % error, and its row in {BOARD} {recorded:g} %; expected the run of "
                "that row."
            )
        return entry.turned_error
    best = best_seed(result)
    if result.seed != best:
        raise ValueError(
            f"{run} has seed {result.seed}; of those in {RESULTS}, seed {best} has the fewest validation errors: "
            "ship that one."
        )
    return None


def best_seed(result: Result) -> int:
    """Return the seed with the lowest error on the validation images, among the ledger's runs of the same kind."""
    kind = result.kind
    runs = [record.result for record in read_records(RESULTS) if record.result.kind == kind]
    if not runs:
        raise ValueError(
            f"no run of {kind.model} by {kind.recipe_name} on {kind.data} in {RESULTS} or {BOARD}; "
            "`coattend reproduce` or `coattend leaderboard` puts it there."
        )
    return min(runs, key=lambda run: (run.valid_error or 0.0, run.seed)).seed


def card(
    result: Result,
    run: Run,
    certificate: Certificate,
    network: EquivariantNetwork,
    weights: str,
    size: int,
    turned: float | None,
) -> str:
    """Data, recipe, seed, and the error under each protocol."""
    name, entry, recipe = network_name(network), model_entry(result.model), run.recipe
    title = f"{entry.title.rstrip('.')} of Romero & Hoogendoorn\n(ICLR 2020)" if entry.published else entry.title
    settings = ", ".join(f"{key}={_plain(value)}" for key, value in recipe.to_dict().items() if key in SETTINGS)
    chosen = "of the epoch with the fewest validation errors" if weights.startswith("best") else "after the last epoch"
    protocols = {
        "last": "after the last epoch",
        "valid": f"epoch {result.valid_epoch}, chosen on the validation images",
        "test_optimistic": "best epoch on the test images themselves, optimistic",
    }
    errors = "\n".join(
        f"| {protocols[key]} | {value:.2f} |" for key, value in asdict(result.error).items() if value is not None
    )
    if turned is not None:
        errors += f"\n| after the last epoch, averaged over {TURNS} turned copies of each image | {turned:.2f} |"
    worst = max(certificate.equivariance.values())
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items() if name != "torch")
    return f"""# {name} on {result.data}

`coattend.create_model("{name}", pretrained="{result.data}")`: {title}
over {network.group.name}, {result.parameters:,} parameters, {size:,} bytes.

- Data: {result.data}, {result.provenance}.
- Weights: {chosen}.
- Recipe: `{result.kind.recipe_name}` of this library, seed {result.seed}, {result.epochs} epochs ({settings}).
- Made with {versions}, on {run.arithmetic or "a processor not recorded"}.

| test error | percent |
|---|---|
{errors}

One run with one seed: these figures carry the spread over seeds. The images and their preprocessing are part of the
result: `coattend predict` and `coattend.train.load_trained` apply what is stored in the file.

Certificate (`coattend check` measures it again): equivariance error at most {worst:.1e} under
{certificate.acting_group.name} in float32, SHA-256 of the weights `{certificate.digest}`.
"""


def _plain(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(ship(Path(path)))  # noqa: T201
