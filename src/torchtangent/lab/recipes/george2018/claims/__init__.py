"""The claims, and the rules that decide."""

from torchtangent.lab.recipes.george2018.claims import autoencoder, basis, resnet34, vgg11

CLAIMS = (*basis.CLAIMS, *autoencoder.CLAIMS, *vgg11.CLAIMS, *resnet34.CLAIMS)
