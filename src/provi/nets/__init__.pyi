from provi.nets.convolution import Conv2d as Conv2d
from provi.nets.resnet import ResNet18 as ResNet18
from provi.nets.small_networks import LeNet5 as LeNet5
from provi.nets.small_networks import Perceptron as Perceptron
