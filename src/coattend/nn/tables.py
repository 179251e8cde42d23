"""The base class of modules with index tables, which stay correct when the module is moved or converted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from typing_extensions import Self


class TabledModule(nn.Module):
    """A module with tables: non-persistent buffers that follow from its group and are neither learned nor saved.

    Tables are recomputed, not converted, whenever the module moves to another device or dtype: memory from ``to_empty``
    is uninitialised, and a conversion to a narrow dtype and back would keep the rounding.
    """

    def _tables(self) -> dict[str, Tensor]:
        """Return the tables on the CPU: real ones in float64 and first, then those of indices."""
        raise NotImplementedError

    def _make_tables(self, like: Tensor) -> None:
        """Register the tables on the device of a tensor, real ones in its dtype."""
        with torch.device("cpu"):
            tables = self._tables()
        for name, table in tables.items():
            dtype = like.dtype if table.is_floating_point() and like.is_floating_point() else table.dtype
            self.register_buffer(name, table.to(like.device, dtype), persistent=False)

    def _current_tables(self) -> list[Tensor]:
        return [t for name, t in self._buffers.items() if name in self._non_persistent_buffers_set and t is not None]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        before = self._current_tables()
        super()._apply(_for_filters(fn), recurse)
        after = self._current_tables()
        if any(new is not old for new, old in zip(after, before, strict=True)):
            self._make_tables(after[0])
        return self

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, local_metadata: Mapping[str, Any], *rest: Any
    ) -> None:
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
        # load_state_dict(assign=True) assigns weights of any device and dtype, also to a module on meta.
        if local_metadata.get("assign_to_params_buffers"):
            tensors = {name: value for name, value in state_dict.items() if isinstance(value, Tensor)}
            own = [value for name, value in tensors.items() if name.startswith(prefix)]
            for like in (own or list(tensors.values()))[:1]:
                self._make_tables(like)


def _for_filters(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a conversion with which ``module.to(memory_format=torch.channels_last)`` skips filters on a group.

    That format is defined for 4-D tensors; torch applies it to 5-D ones too, and fails. They keep their memory format.
    """

    def convert(t: Tensor) -> Tensor:
        try:
            return fn(t)
        except RuntimeError as error:
            if t.dim() != 5 or "channels_last" not in str(error):
                raise
            return fn(t.flatten()).view(t.shape)

    return convert
