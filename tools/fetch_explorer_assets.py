"""Fetch ONNX Runtime Web for the explorer page: `python tools/fetch_explorer_assets.py` (needs npm).

Its result is part of the repository; run it again for another version, after changing vendor/manifest.json. Files are
verified against the SHA-256 there, then packed with gzip, without a time stamp.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path

from coattend._files import write_atomically

VENDOR = Path(__file__).parents[1] / "src" / "coattend" / "report" / "explorer" / "vendor"


def main() -> None:
    """Fetch, verify, pack."""
    manifest = json.loads((VENDOR / "manifest.json").read_text())
    archive = _packed(f"{manifest['package']}@{manifest['version']}")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for name, expected in manifest["files"].items():
            member = tar.extractfile(f"package/dist/{name}")
            assert member is not None
            content = member.read()
            found = hashlib.sha256(content).hexdigest()
            if found != expected:
                raise SystemExit(f"{name} has SHA-256 {found}, manifest.json expects {expected}; nothing was written.")
            write_atomically(VENDOR / f"{name}.gz", gzip.compress(content, 9, mtime=0))


def _packed(package: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        (file,) = Path(folder).glob("*.tgz")
        return file.read_bytes()


if __name__ == "__main__":
    main()
