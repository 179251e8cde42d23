"""Norms that share statistics and parameters over the group axis, which makes them equivariant."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from coattend.functional.dispatch import is_eager
from coattend.functional.normalization import (
    attention_joins,
    convolve_and_normalize,
    fuses_norm,
    normalize,
    normalize_in_place,
)
from coattend.nn._conv_base import PoseConv2d
from coattend.nn.checks import check_device, check_dtype, check_integer, check_model, check_number, check_real_map

Model = TypeVar("Model", bound=nn.Module)


def check_norm(layer: nn.Module, name: str, channels: object, eps: object, momentum: object = None) -> int:
    """Require valid arguments of a norm; return the channels as an int."""
    check_number(layer, "eps", eps, math.ulp(0.0))
    if momentum is not None:
        check_number(layer, "momentum", momentum, 0, 1)
    return check_integer(layer, name, channels, 1)


def check_norm_dtype(layer: nn.Module, x: Tensor, parameter: Tensor) -> None:
    """Require the device and dtype of the parameters; as in torch, float32 ones also take 16-bit inputs."""
    check_device(layer, x, parameter)
    if not (parameter.dtype == torch.float32 and x.dtype in (torch.float16, torch.bfloat16)):
        check_dtype(layer, x, parameter)


class GroupBatchNorm2d(_BatchNorm):
    """Batch norm per channel, over batch, poses and positions; arguments as :class:`torch.nn.BatchNorm2d`.

    With ``sync=True`` the statistics in training are those of the joint batch of all processes, as in
    :class:`torch.nn.SyncBatchNorm`. Every process then has to run every forward in training mode; a process that runs
    one alone waits for the others. :meth:`convert_sync_batchnorm` sets it for a whole model.

    Shapes: (batch, channels, group, height, width) in and out; two parameters per channel.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        sync: bool = False,
    ) -> None:
        num_features = check_norm(self, "num_features", num_features, eps, momentum)
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.sync = sync

    @staticmethod
    def convert_sync_batchnorm(module: Model, sync: bool = True) -> Model:
        """Set ``sync`` of every GroupBatchNorm2d in a model, in place, and return the model.

        >>> model = GroupBatchNorm2d.convert_sync_batchnorm(nn.Sequential(GroupBatchNorm2d(8)))
        >>> model[0].sync
        True
        """
        check_model("convert_sync_batchnorm", module)
        for norm in module.modules():
            if isinstance(norm, GroupBatchNorm2d):
                norm.sync = sync
        return module

    def forward(self, x: Tensor) -> Tensor:
        uses_batch = self.training or not self.track_running_stats
        if self.sync and uses_batch and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self._check_input_dim(x)
            return self._normalize_jointly(x)
        if self.fuses(x):
            return self.normalize(x)
        return super().forward(x)

    def fuses(self, x: Tensor, order: int | None = None) -> bool:
        """Return whether :meth:`normalize` takes this map, with attention of a group of this order if it is given."""
        joint = self.sync and dist.is_available() and dist.is_initialized()
        return torch.is_tensor(x) and x.ndim == 5 and not joint and fuses_norm(x, self.num_features, order)

    def takes_bias(self) -> bool:
        """Return whether :meth:`normalize` takes the bias of the layer before it, which moves the mean and no more.

        With statistics of the batch the bias has no effect, and its gradient is zero.
        """
        return self.weight is not None and (self.training or not torch.is_grad_enabled())

    def normalize(
        self,
        x: Tensor,
        matrix: Tensor | None = None,
        relu: bool = False,
        in_place: bool = False,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Apply the layer after co-attention with a matrix, if one is given, and before a ReLU, in one pass.

        ``in_place`` allows to overwrite the map: nobody else reads it. ``bias`` (channels,) is that of the layer
        before, not yet added to the map; :meth:`takes_bias` has to hold.
        """
        self._check_input_dim(x)
        weight = self.weight if bias is None else self.weight + 0 * bias  # a gradient for it, though it is zero
        running = self._running()
        if running is not None:
            running = running[0] if bias is None else running[0] - bias, running[1]
            if in_place and is_eager(x) and not torch.is_grad_enabled():
                return normalize_in_place(x, weight, self.bias, running, self.eps, matrix, relu)
        y, mean, variance = normalize(x, weight, self.bias, running, self.eps, matrix, relu)
        if self.training and self.track_running_stats:
            count = x.numel() // self.num_features
            self._update_running(mean if bias is None else mean + bias.detach(), variance * (count / (count - 1)))
        return y

    def joins_convolution(self, x: Tensor, conv: PoseConv2d) -> bool:
        """Return whether :meth:`normalize_convolution` computes what the layer does after ``conv`` and co-attention.

        It has gradients in training only, and statistics of the batch with gradients only.
        """
        joint = self.sync and dist.is_available() and dist.is_initialized()
        if joint or torch.is_grad_enabled() != (self._running() is None) or not torch.is_tensor(x):
            return False
        filters = conv.weight, conv.bias
        parameters = self.weight, self.bias, self.running_mean, self.running_var
        planes, order = conv.out_channels * conv.group.order, conv.group.order
        return not conv.is_restricted and attention_joins(x, planes, order, conv.geometry, filters, parameters)

    def normalize_convolution(self, x: Tensor, conv: PoseConv2d, matrix: Tensor, relu: bool = False) -> Tensor:
        """Apply the layer after ``conv`` and co-attention with a matrix, and before a ReLU."""
        bank, affine = conv.dense_filters(x), (self.weight, self.bias, self._running(), self.eps)
        y, mean, variance = convolve_and_normalize(
            x, bank, conv.expanded_bias(), conv.padding, *affine, matrix=matrix, relu=relu
        )
        if self.training and self.track_running_stats:
            count = y.numel() // self.num_features
            self._update_running(mean, variance * (count / (count - 1)))
        return y

    def _running(self) -> tuple[Tensor, Tensor] | None:
        """Return mean and variance for evaluation, or None for those of the batch."""
        if self.training or self.running_mean is None or self.running_var is None:
            return None
        return self.running_mean, self.running_var

    def extra_repr(self) -> str:
        return super().extra_repr() + (", sync=True" if self.sync else "")

    def _normalize_jointly(self, x: Tensor) -> Tensor:
        axes, shape = (0, 2, 3, 4), (1, -1, 1, 1, 1)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        local = torch.cat([wide.sum(axes), wide.new_tensor([x.numel() / self.num_features])])
        total = _summed_over_processes(local)
        count = total[-1]
        mean = total[:-1] / count
        centred = wide - mean.view(shape)
        variance = _summed_over_processes(centred.square().sum(axes)) / count
        if self.training and self.track_running_stats:
            self._update_running(mean.detach(), (variance * count / (count - 1)).detach())
        y = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(x.dtype)

    @torch.no_grad()
    def _update_running(self, mean: Tensor, unbiased_variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None  # noqa: PT018
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        fraction = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), fraction)
        self.running_var.lerp_(unbiased_variance.to(self.running_var.dtype), fraction)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 (the base class's name)
        check_real_map(self, input, self.num_features)
        if self.weight is not None:
            check_norm_dtype(self, input, self.weight)


class _SumOverProcesses(torch.autograd.Function):
    """A differentiable all-reduce: the gradient of the sum is summed over the processes, too.

    ``torch.distributed.nn.functional.all_reduce`` is deprecated, and its successor private.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


def _summed_over_processes(x: Tensor) -> Tensor:
    return _SumOverProcesses.apply(x)


class GroupInstanceNorm2d(_InstanceNorm):
    """Instance norm: per image and channel, over poses and positions; arguments as :class:`torch.nn.InstanceNorm2d`."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        num_features = check_norm(self, "num_features", num_features, eps, momentum)
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)

    def _get_no_batch_dim(self) -> int:
        return 4

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 (the base class's name)
        check_real_map(self, input, self.num_features)
        if self.weight is not None:
            check_norm_dtype(self, input, self.weight)


class GroupGroupNorm2d(nn.GroupNorm):
    """Group norm: per image and block of channels, over poses and positions; as :class:`torch.nn.GroupNorm`."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        num_channels = check_norm(self, "num_channels", num_channels, eps)
        num_groups = check_integer(self, "num_groups", num_groups, 1)
        if num_channels % num_groups:
            raise ValueError(
                f"{type(self).__name__} splits {num_channels} channels into {num_groups} groups of equal size; pass "
                "num_groups that divides num_channels."
            )
        super().__init__(num_groups, num_channels, eps, affine, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        check_real_map(self, x, self.num_channels)
        if self.weight is not None:
            check_norm_dtype(self, x, self.weight)
        return super().forward(x)


class GroupLayerNorm2d(nn.Module):
    """Layer norm: per image and position, over channels and poses, with one scale and shift per channel.

    Shapes: (batch, channels, group, height, width) in and out.
    """

    def __init__(
        self,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_channels = check_norm(self, "num_channels", num_channels, eps)
        self.eps = eps
        self.affine = affine
        self.weight = nn.Parameter(torch.empty(self.num_channels, device=device, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.empty(self.num_channels, device=device, dtype=dtype)) if affine else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the scales to 1 and the shifts to 0."""
        if self.weight is not None and self.bias is not None:
            nn.init.ones_(self.weight)
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        check_real_map(self, x, self.num_channels)
        if self.weight is not None:
            check_device(self, x, self.weight)
        by_position = x.permute(0, 3, 4, 1, 2)  # as in memory that is channels-last, and layer_norm returns it so
        wide = by_position.to(torch.promote_types(x.dtype, torch.float32))
        scale, shift = (
            None if t is None else t.to(wide.dtype)[:, None].expand(wide.shape[3:]) for t in (self.weight, self.bias)
        )
        return F.layer_norm(wide, wide.shape[3:], scale, shift, self.eps).to(x.dtype).permute(0, 3, 4, 1, 2)

    def extra_repr(self) -> str:
        return f"{self.num_channels}, eps={self.eps}, affine={self.affine}"
