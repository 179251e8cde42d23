"""Networks with the layer names and state dicts of torchvision's and timm's, of any width."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv3x3(in_planes: int, out_planes: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_planes, out_planes, 3, stride, 1, bias=False)


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inplanes: int, planes: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = conv3x3(inplanes, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inplanes: int, planes: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes, stride)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * 4, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * 4)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """torchvision.models.resnet."""

    def __init__(self, block: type, layers: Sequence[int], width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.inplanes = width
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = self._make_layer(block, width, layers[0])
        self.layer2 = self._make_layer(block, 2 * width, layers[1], 2)
        self.layer3 = self._make_layer(block, 4 * width, layers[2], 2)
        self.layer4 = self._make_layer(block, 8 * width, layers[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width * block.expansion, classes)

    def _make_layer(self, block: type, planes: int, blocks: int, stride: int = 1) -> nn.Sequential:
        downsample = None
        out = planes * block.expansion
        if stride != 1 or self.inplanes != out:
            downsample = nn.Sequential(nn.Conv2d(self.inplanes, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        layers = [block(self.inplanes, planes, stride, downsample)]
        self.inplanes = out
        layers += [block(out, planes, 1, None) for _ in range(1, blocks)]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = self.avgpool(x)
        x = torch.flatten(x, 1)
        return self.fc(x)


class VGG(nn.Module):
    """torchvision.models.vgg16."""

    def __init__(self, width: int = 64, hidden: int = 4096, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for v in (1, 1, "M", 2, 2, "M", 4, 4, 4, "M", 8, 8, 8, "M", 8, 8, 8, "M"):
            if isinstance(v, str):
                layers.append(nn.MaxPool2d(2, 2))
            else:
                layers += [nn.Conv2d(channels, v * width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = v * width
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(channels * 49, hidden), nn.ReLU(True), nn.Dropout(),
            nn.Linear(hidden, hidden), nn.ReLU(True), nn.Dropout(), nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))


class Conv2dNormActivation(nn.Sequential):
    def __init__(
        self, i: int, o: int, kernel: int = 3, stride: int = 1, groups: int = 1, act: type | None = None
    ) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(i, o, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
            nn.BatchNorm2d(o, eps=0.001, momentum=0.01),
        ]
        if act is not None:
            layers.append(act(inplace=True))
        super().__init__(*layers)


class SqueezeExcitation(nn.Module):
    def __init__(
        self, channels: int, squeeze: int, activation: Callable[[], nn.Module], scale: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeeze, 1)
        self.fc2 = nn.Conv2d(squeeze, channels, 1)
        self.activation = activation()
        self.scale_activation = scale()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.avgpool(x)
        scale = self.activation(self.fc1(scale))
        return self.scale_activation(self.fc2(scale)) * x


class InvertedResidual(nn.Module):
    def __init__(self, i: int, kernel: int, expanded: int, o: int, se: bool, act: type, stride: int) -> None:
        super().__init__()
        self.use_res_connect = stride == 1 and i == o
        layers: list[nn.Module] = []
        if expanded != i:
            layers.append(Conv2dNormActivation(i, expanded, 1, act=act))
        layers.append(Conv2dNormActivation(expanded, expanded, kernel, stride, expanded, act))
        if se:
            layers.append(SqueezeExcitation(expanded, max(expanded // 4, 1), nn.ReLU, nn.Hardsigmoid))
        layers.append(Conv2dNormActivation(expanded, o, 1))
        self.block = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        result = self.block(x)
        if self.use_res_connect:
            result += x
        return result


class MobileNetV3(nn.Module):
    """torchvision.models.mobilenet_v3_small; ``width`` is the width multiplier in sixteenths."""

    def __init__(self, width: int = 16, classes: int = 1000) -> None:
        super().__init__()
        rows = (
            (16, 3, 16, 16, True, nn.ReLU, 2), (16, 3, 72, 24, False, nn.ReLU, 2), (24, 3, 88, 24, False, nn.ReLU, 1),
            (24, 5, 96, 40, True, nn.Hardswish, 2), (40, 5, 240, 40, True, nn.Hardswish, 1),
            (40, 5, 240, 40, True, nn.Hardswish, 1), (40, 5, 120, 48, True, nn.Hardswish, 1),
            (48, 5, 144, 48, True, nn.Hardswish, 1), (48, 5, 288, 96, True, nn.Hardswish, 2),
            (96, 5, 576, 96, True, nn.Hardswish, 1), (96, 5, 576, 96, True, nn.Hardswish, 1),
        )  # fmt: skip
        scaled = lambda n: n * width // 16  # noqa: E731
        layers: list[nn.Module] = [Conv2dNormActivation(3, scaled(16), 3, 2, act=nn.Hardswish)]
        layers += [InvertedResidual(scaled(i), k, scaled(e), scaled(o), se, act, s) for i, k, e, o, se, act, s in rows]
        layers.append(Conv2dNormActivation(scaled(96), scaled(576), 1, act=nn.Hardswish))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(scaled(576), scaled(1024)), nn.Hardswish(inplace=True), nn.Dropout(p=0.2, inplace=True),
            nn.Linear(scaled(1024), classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))


class StochasticDepth(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        noise = torch.empty([x.shape[0]] + [1] * (x.ndim - 1), dtype=x.dtype, device=x.device)
        return x * noise.bernoulli_(1 - self.p).div_(1 - self.p)


class MBConv(nn.Module):
    def __init__(self, i: int, o: int, expand: int, kernel: int, stride: int, p: float) -> None:
        super().__init__()
        self.use_res_connect = stride == 1 and i == o
        e = i * expand
        layers: list[nn.Module] = [] if e == i else [Conv2dNormActivation(i, e, 1, act=nn.SiLU)]
        layers.append(Conv2dNormActivation(e, e, kernel, stride, e, nn.SiLU))
        layers.append(SqueezeExcitation(e, max(1, i // 4), lambda: nn.SiLU(inplace=True), nn.Sigmoid))
        layers.append(Conv2dNormActivation(e, o, 1))
        self.block = nn.Sequential(*layers)
        self.stochastic_depth = StochasticDepth(p)

    def forward(self, x: Tensor) -> Tensor:
        result = self.block(x)
        if self.use_res_connect:
            result = self.stochastic_depth(result)
            result += x
        return result


class EfficientNet(nn.Module):
    """torchvision.models.efficientnet_b0; ``width`` in eighths."""

    def __init__(self, width: int = 8, classes: int = 1000) -> None:
        super().__init__()
        rows = ((1, 3, 1, 32, 16, 1), (6, 3, 2, 16, 24, 2), (6, 5, 2, 24, 40, 2), (6, 3, 2, 40, 80, 3),
                (6, 5, 1, 80, 112, 3), (6, 5, 2, 112, 192, 4), (6, 3, 1, 192, 320, 1))  # fmt: skip
        scaled = lambda n: n * width // 8  # noqa: E731
        layers: list[nn.Module] = [Conv2dNormActivation(3, scaled(32), 3, 2, act=nn.SiLU)]
        for expand, kernel, stride, i, o, depth in rows:
            stage = [MBConv(scaled(i), scaled(o), expand, kernel, stride, 0.1)]
            stage += [MBConv(scaled(o), scaled(o), expand, kernel, 1, 0.1) for _ in range(1, depth)]
            layers.append(nn.Sequential(*stage))
        layers.append(Conv2dNormActivation(scaled(320), scaled(1280), 1, act=nn.SiLU))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(p=0.2, inplace=True), nn.Linear(scaled(1280), classes))

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Permute(nn.Module):
    def __init__(self, dims: list[int]) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return torch.permute(x, self.dims)


class CNBlock(nn.Module):
    def __init__(self, dim: int, layer_scale: float, p: float) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(dim, dim, 7, padding=3, groups=dim), Permute([0, 2, 3, 1]), nn.LayerNorm(dim, eps=1e-6),
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), Permute([0, 3, 1, 2]),
        )  # fmt: skip
        self.layer_scale = nn.Parameter(torch.ones(dim, 1, 1) * layer_scale)
        self.stochastic_depth = StochasticDepth(p)

    def forward(self, x: Tensor) -> Tensor:
        result = self.layer_scale * self.block(x)
        result = self.stochastic_depth(result)
        result += x
        return result


class ConvNeXt(nn.Module):
    """torchvision.models.convnext_tiny."""

    def __init__(self, width: int = 96, classes: int = 1000, depths: Sequence[int] = (3, 3, 9, 3)) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Sequential(nn.Conv2d(3, width, 4, 4), LayerNorm2d(width, eps=1e-6))]
        for stage, depth in enumerate(depths):
            channels = width * 2**stage
            layers.append(nn.Sequential(*[CNBlock(channels, 1e-6, 0.1) for _ in range(depth)]))
            if stage + 1 < len(depths):
                layers.append(nn.Sequential(LayerNorm2d(channels, eps=1e-6), nn.Conv2d(channels, 2 * channels, 2, 2)))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(LayerNorm2d(channels, eps=1e-6), nn.Flatten(1), nn.Linear(channels, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)))


class UNet(nn.Module):
    """A U-Net with transposed convolutions and concatenated skips; returns a map of classes."""

    def __init__(self, width: int = 64, classes: int = 2, depth: int = 3) -> None:
        super().__init__()
        self.inc = self._double(3, width)
        self.down = nn.ModuleList(self._double(width * 2**d, width * 2 ** (d + 1)) for d in range(depth))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(width * 2 ** (d + 1), width * 2**d, 2, 2) for d in reversed(range(depth))
        )
        self.dec = nn.ModuleList(self._double(width * 2 ** (d + 1), width * 2**d) for d in reversed(range(depth)))
        self.outc = nn.Conv2d(width, classes, 1)

    def _double(self, i: int, o: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
            nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        skips = [self.inc(x)]
        for down in self.down:
            skips.append(down(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, dec in zip(self.up, self.dec, strict=True):
            x = dec(torch.cat([skips.pop(), up(x)], dim=1))
        return self.outc(x)


class TimmSE(nn.Module):
    """timm's squeeze-excite: a mean of the tensor instead of a layer, and a gate in place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_reduce = nn.Conv2d(channels, max(channels // 4, 1), 1)
        self.act1 = nn.SiLU(inplace=True)
        self.conv_expand = nn.Conv2d(max(channels // 4, 1), channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        x_se = x.mean((2, 3), keepdim=True)
        x_se = self.conv_expand(self.act1(self.conv_reduce(x_se)))
        return x * x_se.sigmoid()


class VisionTransformer(nn.Module):
    """timm's vit: patches, class token, position embedding, blocks with fused qkv."""

    def __init__(
        self, dim: int = 24, depth: int = 2, heads: int = 2, size: int = 32, patch: int = 8, classes: int = 10
    ) -> None:
        super().__init__()
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, dim, patch, patch)
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, dim) * 0.02)
        self.blocks = nn.Sequential(*[ViTBlock(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        x = self.blocks(x + self.pos_embed)
        return self.head(self.norm(x)[:, 0])


class ViTBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        return x + self.mlp(self.norm2(x))


def resnet18(width: int = 64, classes: int = 1000) -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), width, classes)


def resnet34(width: int = 64, classes: int = 1000) -> ResNet:
    return ResNet(BasicBlock, (3, 4, 6, 3), width, classes)


def resnet50(width: int = 64, classes: int = 1000) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), width, classes)


NARROW: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: resnet18(4, 10),
    "resnet34": lambda: resnet34(4, 10),
    "resnet50": lambda: resnet50(4, 10),
    "vgg16": lambda: VGG(4, 16, 10),
    "mobilenet_v3_small": lambda: MobileNetV3(4, 10),
    "convnext_tiny": lambda: ConvNeXt(4, 10),
    "efficientnet_b0": lambda: EfficientNet(2, 10),
    "unet": lambda: UNet(4),
    "vit": lambda: VisionTransformer(),
}

FULL: dict[str, tuple[Callable[[], nn.Module], int, str, tuple[int, ...]]] = {
    # parameters of torchvision's networks, and one tensor of their state dicts
    "resnet18": (resnet18, 11_689_512, "layer4.1.conv2.weight", (512, 512, 3, 3)),
    "resnet34": (resnet34, 21_797_672, "layer3.5.bn2.running_var", (256,)),
    "resnet50": (resnet50, 25_557_032, "layer2.0.downsample.0.weight", (512, 256, 1, 1)),
    "vgg16": (VGG, 138_357_544, "classifier.0.weight", (4096, 25088)),
    "convnext_tiny": (ConvNeXt, 28_589_128, "features.5.8.layer_scale", (384, 1, 1)),
    "efficientnet_b0": (EfficientNet, 5_288_548, "features.4.1.block.2.fc1.weight", (20, 480, 1, 1)),
}
