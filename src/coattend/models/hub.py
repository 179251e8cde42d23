"""Networks on the Hugging Face Hub: ``hf://owner/name`` instead of a path."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from coattend._words import install

SCHEME = "hf://"
WEIGHTS, CARD = "model.safetensors", "README.md"
ENDPOINT: str | None = None  # None: the Hub itself, or HF_ENDPOINT


def is_hub_address(path: str | Path) -> bool:
    """Return whether a path is an address on the Hub."""
    return isinstance(path, str) and path.startswith(SCHEME)


def download(address: str) -> Path:
    """Return the file of ``hf://owner/name`` or ``hf://owner/name@revision``, from the Hub or its local cache."""
    repository, _, revision = _repository(address).partition("@")
    hub = _client()
    try:
        return Path(hub.hf_hub_download(repository, WEIGHTS, revision=revision or None, endpoint=ENDPOINT))
    except Exception as error:  # versions of the client use different HTTP libraries, with different errors
        raise ValueError(
            f"could not get {WEIGHTS} of {address}: {_first_line(error)}; expected a repository written by push_model, "
            "spelt hf://owner/name."
        ) from error


def upload(address: str, content: bytes, card: str, private: bool) -> str:
    """Write weights and card to a repository, which is created if it does not exist; return the commit's address."""
    repository = _repository(address)
    hub = _client()
    api = hub.HfApi(endpoint=ENDPOINT)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, WEIGHTS).write_bytes(content)
        Path(folder, CARD).write_text(card, encoding="utf-8")
        try:
            api.create_repo(repository, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repository, folder_path=folder, commit_message="Network written by coattend"
            )
        except Exception as error:  # as above
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


def _client() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ValueError(f"the Hub needs huggingface_hub; {install('hub')}.") from error
    return huggingface_hub


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
