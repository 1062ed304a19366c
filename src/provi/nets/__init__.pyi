from provi.nets.convolution import Conv2d as Conv2d
from provi.nets.resnet import ResNet18 as ResNet18
