"""Residual networks in the form for small images, with BatchNorm and without any normalisation.

Three stages of n blocks with 16, 32 and 64 channels, the second and third at half the resolution of the one before;
shortcuts have no parameters (every second pixel, new channels 0). Depth is 6n + 2.

Source: He, Zhang, Ren and Sun, "Deep residual learning for image recognition", CVPR 2016, section 4.2, option A.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from decomfl_lab.errors import require
from decomfl_lab.models.initialisers import begin_, constant, normal

_WIDTHS = (16, 32, 64)


def resnet(
    in_shape: tuple[int, ...], classes: int, *, blocks: int, batch_norm: bool, widths: tuple[int, int, int] = _WIDTHS
) -> nn.Module:
    """The network with n = ``blocks`` a stage, initialised from torch's global generator.

        h ← relu(branch(h) + shortcut(h)),    branch = conv 3x3, norm, relu, conv 3x3, norm

    With ``batch_norm`` the convolutions have He's initialisation and a BatchNorm each. Without, it stays trainable
    by Fixup: scalar shifts before each convolution and non-linearity, a scalar gain at the end of a branch, the
    branch's first convolution scaled by (3n)^(-1/2), and its last one and the classifier 0 at the start. Then every
    block begins as the identity, so neither activations nor the size of a step grow with depth.

        d = 9 C w + 9 w² (42 n - 10) + (4 w + 1)·classes + ((28 n + 2)·w with BatchNorm, 15 n + 2 without)

    with w channels in the first stage; for w = 16:

                      3 x 32 x 32                   1 x 28 x 28, 10 classes each
                      BatchNorm     without         BatchNorm     without
        ResNet-8      75,290        74,827          75,002        74,539
        ResNet-20     269,722       268,393         269,434       268,105

    InputError if images are not of shape (C, H, W), H and W at least 4. Of the three stages each has twice the channels
    of the one before.

    Source: module; Zhang, Dauphin and Ma, "Fixup initialization: residual learning without normalization",
    ICLR 2019, section 3.
    """
    fits = len(in_shape) == 3 and min(in_shape[1:]) >= 4
    require(fits, "images for a resnet", "have shape (C, H, W) with H and W of at least 4", in_shape)
    after_first = nn.BatchNorm2d(widths[0]) if batch_norm else _Shift()
    stages: list[nn.Module] = []
    for before, width in pairwise((widths[0], *widths)):
        for channels in (before, *[width] * (blocks - 1)):
            stride = width // channels
            if batch_norm:
                first, last = _conv(channels, width, stride=stride), _conv(width, width)
                parts = [first, nn.BatchNorm2d(width), nn.ReLU(), last, nn.BatchNorm2d(width)]
            else:
                first = _conv(channels, width, stride=stride, gain=(3 * blocks) ** -0.5)
                last = _conv(width, width, gain=0.0)
                parts = [_Shift(), first, _Shift(), nn.ReLU(), _Shift(), last, _Gain(), _Shift()]
            stages.append(_Block(nn.Sequential(*parts), channels, width))
    classifier = nn.Linear(widths[-1], classes)
    head: list[nn.Module] = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if not batch_norm:
        nn.init.zeros_(classifier.weight)
        nn.init.zeros_(classifier.bias)
        begin_(classifier, weight=constant(0.0), bias=constant(0.0))
        head.append(_Shift())
    return nn.Sequential(_conv(in_shape[0], widths[0]), after_first, nn.ReLU(), *stages, *head, classifier)


def _conv(channels: int, width: int, *, stride: int = 1, gain: float = 1.0) -> nn.Conv2d:
    """3x3 without bias, of standard deviation gain · sqrt(2 / (9 width)) [He et al. 2015]."""
    conv = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    with torch.no_grad():
        conv.weight.mul_(gain)
    begin_(conv, weight=normal(math.sqrt(2.0) * gain / math.sqrt(9 * width)) if gain else constant(0.0))
    return conv


class _Block(nn.Module):
    def __init__(self, branch: nn.Module, channels: int, width: int) -> None:
        super().__init__()
        self.branch = branch
        self.stride = width // channels
        self.new_channels = width - channels

    def forward(self, h: Tensor) -> Tensor:
        shortcut = h[:, :, :: self.stride, :: self.stride]
        if self.new_channels:
            shortcut = pad(shortcut, (0, 0, 0, 0, 0, self.new_channels))
        return relu(self.branch(h) + shortcut)


class _Shift(nn.Module):
    """h + b for a scalar b, 0 at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))
        begin_(self, bias=constant(0.0))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.bias


class _Gain(nn.Module):
    """a · h for a scalar a, 1 at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        begin_(self, scale=constant(1.0))

    def forward(self, h: Tensor) -> Tensor:
        return h * self.scale
