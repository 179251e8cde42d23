"""Whether a module is watched: what computes several modules at once must not pass over hooks."""

from __future__ import annotations

from torch import nn

MODULE_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
GLOBAL_HOOKS = tuple(f"_global{hooks}" for hooks in MODULE_HOOKS)


def has_forward_hooks(module: nn.Module) -> bool:
    """Return whether a hook of the module itself may change what it computes."""
    return bool(module._forward_pre_hooks or module._forward_hooks)


def has_hooks(module: nn.Module) -> bool:
    """Return whether a hook, of the module or of all modules, has to receive what goes in and out of the module."""
    return any(getattr(module, hooks) for hooks in MODULE_HOOKS) or any(
        getattr(nn.modules.module, hooks) for hooks in GLOBAL_HOOKS
    )
