"""Neural networks for one example, channels last, in float32: convolution, LeNet-5, ResNet-18, perceptron."""

from provi.nets.convolution import Conv2d
from provi.nets.lenet import LeNet5
from provi.nets.perceptron import Perceptron
from provi.nets.resnet import ResNet18

__all__ = ["Conv2d", "LeNet5", "Perceptron", "ResNet18"]
