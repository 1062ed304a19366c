from provi.nets.convolution import Conv2d as Conv2d
from provi.nets.lenet import LeNet5 as LeNet5
from provi.nets.perceptron import Perceptron as Perceptron
from provi.nets.resnet import ResNet18 as ResNet18
