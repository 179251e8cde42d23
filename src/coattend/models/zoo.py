"""The networks of the paper's Table 1 by name, in its order, of five families, and other networks."""

from __future__ import annotations

from functools import partial

from coattend.models.allcnn import AllCNN
from coattend.models.coat_convnext import CoatConvNeXt
from coattend.models.coat_resnet import CoatResNet
from coattend.models.coat_vit import CoatViT
from coattend.models.e4cnn import E4CNN
from coattend.models.nin import NIN
from coattend.models.registry import register_model
from coattend.models.resnet import ResNet20, ResNet44
from coattend.models.rotated_mnist import RotatedMnistNet
from coattend.models.sfcnn import SFCNN
from coattend.models.unet import UNet

CLOCKWISE = "C4 clockwise"

mnist = partial(register_model, dataset="rotated-mnist", image_size=28)
mnist("z2cnn", group="z2", width=20, dropout=0.3)(RotatedMnistNet)
mnist("p4cnn", group="p4", width=10)(RotatedMnistNet)
mnist("a_p4cnn", group="p4", width=10, attention="slice")(RotatedMnistNet)

dren = partial(mnist, group=CLOCKWISE, width=10, dropout=0.2, norm_eps=1e-3, norm_momentum=0.01)
dren("dren")(RotatedMnistNet)
dren("a_dren", attention="slice")(RotatedMnistNet)
dren("dren_maxpool", head="max")(RotatedMnistNet)
dren("a_dren_maxpool", head="max", attention="slice")(RotatedMnistNet)

cifar = partial(register_model, dataset="cifar10", image_size=32)
cifar("allcnn", group="z2", width=96, init_std=0.05)(AllCNN)
cifar("p4_allcnn", group="p4", width=48, init_std=0.035)(AllCNN)
cifar("a_p4_allcnn", group="p4", width=48, init_std=0.035, attention="output")(AllCNN)
cifar("p4m_allcnn", group="p4m", width=32, init_std=0.035)(AllCNN)
cifar("a_p4m_allcnn", group="p4m", width=32, init_std=0.035, attention="output")(AllCNN)

resnet44 = partial(cifar, init_std="he")
resnet44("resnet44", group="z2", width=(32, 64, 128))(ResNet44)
resnet44("p4m_resnet44", group="p4m")(ResNet44)
resnet44("a_p4m_resnet44", group="p4m", attention="output")(ResNet44)

nin = partial(cifar, norm=False, init_std=0.05)
nin("nin", group="z2", width=192)(NIN)
nin("r_nin_x4", group=CLOCKWISE, width=96)(NIN)
nin("a_r_nin_x4", group=CLOCKWISE, width=96, attention="slice")(NIN)

resnet20 = partial(cifar, norm_eps=1e-3, norm_momentum=0.02)
resnet20("resnet20", group="z2", width=16)(ResNet20)
resnet20("r_resnet20_x4", group=CLOCKWISE, width=8)(ResNet20)
resnet20("a_r_resnet20_x4", group=CLOCKWISE, width=8, attention="slice")(ResNet20)

mnist("e4cnn", group="p4", title="e4-CNN")(E4CNN)
mnist("sfcnn", group="C8", filters="steerable", title="SFCNN")(SFCNN)
register_model("coat_vit", dataset="cifar10", image_size=64, group="p4m", title="coat-ViT")(CoatViT)
register_model("coat_unet", dataset="nuclei", image_size=256, group="p4m", title="coat-U-Net")(UNet)

backbone = partial(register_model, dataset="cifar10", image_size=224, group="p4m")
resnet = partial(backbone, downsample="pool", init_std="he", norm_eps=1e-5)
resnet("coat_resnet18", title="coat-ResNet-18")(CoatResNet)
resnet("coat_resnet34", title="coat-ResNet-34", blocks=(3, 4, 6, 3))(CoatResNet)
resnet("coat_resnet50", title="coat-ResNet-50", blocks=(3, 4, 6, 3), bottleneck=True)(CoatResNet)
backbone("coat_convnext_tiny", title="coat-ConvNeXt-T")(CoatConvNeXt)
backbone("coat_convnext_small", title="coat-ConvNeXt-S", blocks=(3, 3, 27, 3))(CoatConvNeXt)
