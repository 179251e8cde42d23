"""Ship finished runs with the package: certified weights, and a model card written from what the run recorded.

    python tools/ship_pretrained.py RUN...

Writes ``src/coattend/models/weights/<data>/<model>.safetensors`` and a card ``.md`` beside it; a file that is there is
replaced. The weights are those of the epoch chosen on the validation images, else the last. Of several seeds in the
ledger (``docs/results``, written by ``coattend reproduce``) only the one with the fewest validation errors is taken.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from coattend._files import write_atomically
from coattend.export import Certificate, export_safetensors
from coattend.models import create_model, model_entry
from coattend.models.pretrained import WEIGHTS, file_stem
from coattend.train import RunFolder
from coattend.train.ledger import read_results

SETTINGS = ("preprocessing", "augmentation", "optimizer", "lr", "schedule", "warmup", "weight_decay", "batch")
LARGEST = 400_000  # bytes; what comes with every installation has to stay small
RESULTS = Path(__file__).parents[1] / "docs" / "results"


def ship(run: Path) -> Path:
    """Copy the weights of one run and write its card."""
    folder = RunFolder(run)
    result = folder.result
    if result is None:
        raise ValueError(
            f"{run} is not finished: it has no result.json; expected a run that `coattend train` finished."
        )
    best = best_seed(result["model"], result["recipe"], result["data"])
    if result["seed"] != best:
        raise ValueError(
            f"{run} has seed {result['seed']}; of those in {RESULTS}, seed {best} has the fewest validation errors: "
            "ship that one."
        )
    source = folder.best_weights if folder.best_weights.is_file() else folder.last_weights
    if source.stat().st_size > LARGEST:
        raise ValueError(f"{source} has {source.stat().st_size:,} bytes; at most {LARGEST:,} are shipped.")
    target = WEIGHTS / result["data"] / f"{file_stem(result['model'])}.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    certificate = export_safetensors(source, target, overwrite=True)
    shipped = create_model(result["model"], pretrained=result["data"])  # what users will call
    text = card(result, folder.description, certificate, shipped.group.name, source.name, target.stat().st_size)
    write_atomically(target.with_suffix(".md"), text.encode())
    return target


def best_seed(model: str, recipe: str, data: str) -> int:
    """The seed that the ledger's runs of a network by a recipe are led by, judged on the validation images alone."""
    runs = [r for r in read_results(RESULTS) if (r["model"], r["recipe"], r["data"]) == (model, recipe, data)]
    if not runs:
        raise ValueError(f"no run of {model} by {recipe} on {data} in {RESULTS}; `coattend reproduce` puts it there.")
    return min(runs, key=lambda r: (r["valid_error"] or 0.0, r["seed"]))["seed"]


def card(
    result: dict[str, Any], description: dict[str, Any], certificate: Certificate, group: str, weights: str, size: int
) -> str:
    """Data, recipe, seed, and the error under each protocol."""
    title, recipe = model_entry(result["model"]).title.rstrip("."), description["recipe"]
    settings = ", ".join(f"{key}={_plain(value)}" for key, value in recipe.items() if key in SETTINGS)
    chosen = "of the epoch with the fewest validation errors" if weights.startswith("best") else "after the last epoch"
    protocols = {
        "last": "after the last epoch",
        "valid": f"epoch {result['valid_epoch']}, chosen on the validation images",
        "test_optimistic": "best epoch on the test images themselves, optimistic",
    }
    errors = "\n".join(
        f"| {protocols[key]} | {value:.2f} |" for key, value in result["error"].items() if value is not None
    )
    worst = max(certificate.equivariance.values())
    versions = ", ".join(f"{name} {version}" for name, version in description["versions"].items() if name != "torch")
    return f"""# {result["model"]} on {result["data"]}

`coattend.create_model("{result["model"]}", pretrained="{result["data"]}")`: {title} of Romero & Hoogendoorn
(ICLR 2020) over {group}, {result["parameters"]:,} parameters, {size:,} bytes.

- Data: {result["data"]}, {result["provenance"]}.
- Weights: {chosen}.
- Recipe: `{result["recipe"]}` of this library, seed {result["seed"]}, {result["epochs"]} epochs ({settings}).
- Made with {versions}, on {description.get("arithmetic", "a processor not recorded")}.

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
