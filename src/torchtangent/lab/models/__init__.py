"""The networks of the studies, and where their weights begin."""

from torchtangent.lab.models.init import init_kaiming, init_lecun, init_unnormalized, seeded
from torchtangent.lab.models.plain import Activation, autoencoder, convnet_1001, lenet, mlp
from torchtangent.lab.models.resnet import ResidualBlock, resnet18, resnet18_plain, resnet34
from torchtangent.lab.models.vgg import vgg11, vgg19

__all__ = [
    "Activation",
    "ResidualBlock",
    "autoencoder",
    "convnet_1001",
    "init_kaiming",
    "init_lecun",
    "init_unnormalized",
    "lenet",
    "mlp",
    "resnet18",
    "resnet18_plain",
    "resnet34",
    "seeded",
    "vgg11",
    "vgg19",
]
