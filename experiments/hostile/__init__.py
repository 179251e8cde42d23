"""Damaged and malicious files for every loader, one module per kind."""

from experiments.hostile import archives, exports, hub, images, models, runs
from experiments.hostile.kinds import Kind

KINDS: dict[str, Kind] = {
    "model": models.KIND,
    "run": runs.FINISHED,
    "stopped": runs.STOPPED,
    "export": exports.KIND,
    "images": images.KIND,
    "archive": archives.KIND,
    "hub": hub.KIND,
}
