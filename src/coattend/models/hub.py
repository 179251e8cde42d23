"""Networks on the Hugging Face Hub: ``hf://owner/name`` in the place of a path."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from coattend._words import install

SCHEME = "hf://"
WEIGHTS, CARD = "model.safetensors", "README.md"
ENDPOINT: str | None = None  # the Hub itself, or what HF_ENDPOINT names


def is_hub_address(path: str | Path) -> bool:
    """Whether a path leads to the Hub."""
    return isinstance(path, str) and path.startswith(SCHEME)


def download(address: str) -> Path:
    """The file behind ``hf://owner/name`` or ``hf://owner/name@revision``, from the Hub or its local cache."""
    repository, _, revision = _repository(address).partition("@")
    hub = _needed()
    try:
        return Path(hub.hf_hub_download(repository, WEIGHTS, revision=revision or None, endpoint=ENDPOINT))
    except Exception as error:  # which HTTP library the client has, and so its errors, differs between versions
        raise ValueError(
            f"could not get {WEIGHTS} of {address}: {_first_line(error)}; expected a repository written by push_model, "
            "spelt hf://owner/name."
        ) from error


def upload(address: str, content: bytes, card: str, private: bool) -> str:
    """Write weights and card into a repository, which is made if it is not there; returns where they are."""
    repository = _repository(address)
    hub = _needed()
    api = hub.HfApi(endpoint=ENDPOINT)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, WEIGHTS).write_bytes(content)
        Path(folder, CARD).write_text(card, encoding="utf-8")
        try:
            api.create_repo(repository, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repository, folder_path=folder, commit_message="Network written by coattend"
            )
        except Exception as error:  # see above
            raise ValueError(
                f"could not write to {address}: {_first_line(error)}; `hf auth login` gives access to a repository of "
                "your own."
            ) from error
    return str(commit.commit_url)


def _repository(address: str) -> str:
    repository = address.removeprefix(SCHEME)
    if not address.startswith(SCHEME) or repository.count("/") != 1 or repository.startswith("/"):
        raise ValueError(f"expected the address of a network on the Hub, hf://owner/name, got {address!r}.")
    return repository


def _needed() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ValueError(f"the Hub needs huggingface_hub; {install('hub')}.") from error
    return huggingface_hub


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
