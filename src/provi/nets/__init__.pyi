from provi.nets.architectures import LeNet5 as LeNet5
from provi.nets.architectures import Perceptron as Perceptron
from provi.nets.architectures import ResNet18 as ResNet18
from provi.nets.convolution import Conv2d as Conv2d
