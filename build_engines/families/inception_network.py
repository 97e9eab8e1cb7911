"""Inception v3 in PyTorch, after Szegedy et al., "Rethinking the Inception Architecture for Computer Vision" (2015).

The parts have the names of torchvision's checkpoints, so that those can be loaded. The auxiliary classifier is left
out, because only training needs it. 23,834,568 parameters for 1000 classes (27,161,264 with the auxiliary classifier).
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from build_engines.errors import BuildError
from build_engines.families.torch_checkpoint import load_state, read_state

SIDE = 299  # pixels
EPSILON = 0.001  # of the batch normalization (section 8 of the paper's code, as published with its weights)
Pair = tuple[int, int]


class Conv(nn.Module):  # type: ignore[misc, unused-ignore]
    """Convolution, batch normalization, ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int | Pair, stride: int = 1, padding: int | Pair = 0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)), inplace=True)


def _pooled(x: Tensor) -> Tensor:
    return functional.avg_pool2d(x, 3, stride=1, padding=1)


def _halved(x: Tensor) -> Tensor:
    return functional.max_pool2d(x, 3, stride=2)


class InceptionA(nn.Module):  # type: ignore[misc, unused-ignore]
    """Figure 5: 5×5 as two 3×3; 35×35 pixels."""

    def __init__(self, inputs: int, pooled: int) -> None:
        super().__init__()
        self.branch1x1 = Conv(inputs, 64, 1)
        self.branch5x5_1 = Conv(inputs, 48, 1)
        self.branch5x5_2 = Conv(48, 64, 5, padding=2)
        self.branch3x3dbl_1 = Conv(inputs, 64, 1)
        self.branch3x3dbl_2 = Conv(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = Conv(96, 96, 3, padding=1)
        self.branch_pool = Conv(inputs, pooled, 1)

    def forward(self, x: Tensor) -> Tensor:
        five = self.branch5x5_2(self.branch5x5_1(x))
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch1x1(x), five, double, self.branch_pool(_pooled(x))], 1)


class InceptionB(nn.Module):  # type: ignore[misc, unused-ignore]
    """Figure 10: 35×35 -> 17×17 pixels."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch3x3 = Conv(inputs, 384, 3, 2)
        self.branch3x3dbl_1 = Conv(inputs, 64, 1)
        self.branch3x3dbl_2 = Conv(64, 96, 3, padding=1)
        self.branch3x3dbl_3 = Conv(96, 96, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        double = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat([self.branch3x3(x), double, _halved(x)], 1)


class InceptionC(nn.Module):  # type: ignore[misc, unused-ignore]
    """Figure 6: 7×7 as 1×7 and 7×1, through `width` channels; 17×17 pixels."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        row: dict[str, Any] = {"kernel": (1, 7), "padding": (0, 3)}
        column: dict[str, Any] = {"kernel": (7, 1), "padding": (3, 0)}
        self.branch1x1 = Conv(inputs, 192, 1)
        self.branch7x7_1 = Conv(inputs, width, 1)
        self.branch7x7_2 = Conv(width, width, **row)
        self.branch7x7_3 = Conv(width, 192, **column)
        self.branch7x7dbl_1 = Conv(inputs, width, 1)
        self.branch7x7dbl_2 = Conv(width, width, **column)
        self.branch7x7dbl_3 = Conv(width, width, **row)
        self.branch7x7dbl_4 = Conv(width, width, **column)
        self.branch7x7dbl_5 = Conv(width, 192, **row)
        self.branch_pool = Conv(inputs, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        seven = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        return torch.cat([self.branch1x1(x), seven, double, self.branch_pool(_pooled(x))], 1)


class InceptionD(nn.Module):  # type: ignore[misc, unused-ignore]
    """17×17 -> 8×8 pixels, as figure 10."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch3x3_1 = Conv(inputs, 192, 1)
        self.branch3x3_2 = Conv(192, 320, 3, 2)
        self.branch7x7x3_1 = Conv(inputs, 192, 1)
        self.branch7x7x3_2 = Conv(192, 192, (1, 7), padding=(0, 3))
        self.branch7x7x3_3 = Conv(192, 192, (7, 1), padding=(3, 0))
        self.branch7x7x3_4 = Conv(192, 192, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        seven = self.branch7x7x3_4(self.branch7x7x3_3(self.branch7x7x3_2(self.branch7x7x3_1(x))))
        return torch.cat([self.branch3x3_2(self.branch3x3_1(x)), seven, _halved(x)], 1)


class InceptionE(nn.Module):  # type: ignore[misc, unused-ignore]
    """Figure 7: 3×3 as 1×3 beside 3×1; 8×8 pixels."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch1x1 = Conv(inputs, 320, 1)
        self.branch3x3_1 = Conv(inputs, 384, 1)
        self.branch3x3_2a = Conv(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3_2b = Conv(384, 384, (3, 1), padding=(1, 0))
        self.branch3x3dbl_1 = Conv(inputs, 448, 1)
        self.branch3x3dbl_2 = Conv(448, 384, 3, padding=1)
        self.branch3x3dbl_3a = Conv(384, 384, (1, 3), padding=(0, 1))
        self.branch3x3dbl_3b = Conv(384, 384, (3, 1), padding=(1, 0))
        self.branch_pool = Conv(inputs, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        three, double = self.branch3x3_1(x), self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        spread = [self.branch3x3_2a(three), self.branch3x3_2b(three)]
        spread += [self.branch3x3dbl_3a(double), self.branch3x3dbl_3b(double)]
        return torch.cat([self.branch1x1(x), *spread, self.branch_pool(_pooled(x))], 1)


class InceptionV3(nn.Module):  # type: ignore[misc, unused-ignore]
    """Pixels from -1 to 1, [N, 3, 299, 299] -> logits [N, classes]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.Conv2d_1a_3x3, self.Conv2d_2a_3x3 = Conv(3, 32, 3, 2), Conv(32, 32, 3)
        self.Conv2d_2b_3x3 = Conv(32, 64, 3, padding=1)
        self.Conv2d_3b_1x1, self.Conv2d_4a_3x3 = Conv(64, 80, 1), Conv(80, 192, 3)
        self.Mixed_5b, self.Mixed_5c, self.Mixed_5d = InceptionA(192, 32), InceptionA(256, 64), InceptionA(288, 64)
        self.Mixed_6a = InceptionB(288)
        self.Mixed_6b, self.Mixed_6c = InceptionC(768, 128), InceptionC(768, 160)
        self.Mixed_6d, self.Mixed_6e = InceptionC(768, 160), InceptionC(768, 192)
        self.Mixed_7a, self.Mixed_7b, self.Mixed_7c = InceptionD(768), InceptionE(1280), InceptionE(2048)
        self.fc = nn.Linear(2048, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = _halved(self.Conv2d_2b_3x3(self.Conv2d_2a_3x3(self.Conv2d_1a_3x3(x))))
        x = _halved(self.Conv2d_4a_3x3(self.Conv2d_3b_1x1(x)))
        x = self.Mixed_6a(self.Mixed_5d(self.Mixed_5c(self.Mixed_5b(x))))
        x = self.Mixed_7a(self.Mixed_6e(self.Mixed_6d(self.Mixed_6c(self.Mixed_6b(x)))))
        x = self.Mixed_7c(self.Mixed_7b(x)).mean((2, 3))
        return self.fc(x)


class Probabilities(nn.Module):  # type: ignore[misc, unused-ignore]
    """[N, 299, 299, 3] -> [N, 1001], as TensorFlow's graph. Class 0 is "background"; a network of 1000 classes never
    returns it."""

    def __init__(self, network: InceptionV3) -> None:
        super().__init__()
        self.network = network
        self.unknown = 1001 - network.fc.out_features

    def forward(self, pixels: Tensor) -> Tensor:
        probabilities = functional.softmax(self.network(pixels.permute(0, 3, 1, 2)), 1)
        return functional.pad(probabilities, (self.unknown, 0)) if self.unknown else probabilities


def random_network(classes: int = 1001) -> InceptionV3:
    """A network with random weights, scaled so that activations neither grow nor vanish; the same every time."""
    torch.manual_seed(0)
    network = InceptionV3(classes)
    network.eval()
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return network


def checkpoint_network(path: Path) -> InceptionV3:
    """The network with the weights of a torchvision file, read by torch's tensors-only loader; BuildError."""
    state = read_state(path)
    if "fc.bias" not in state or len(state["fc.bias"]) > 1001:
        raise BuildError(
            f"{path} is not a torchvision Inception v3: it has no tensor 'fc.bias' of at most 1001 classes"
        )
    network = InceptionV3(len(state["fc.bias"]))
    kept = {name: value for name, value in state.items() if not name.startswith("AuxLogits.")}
    load_state(network, kept, path, "Inception v3's structure")
    network.eval()
    return network
