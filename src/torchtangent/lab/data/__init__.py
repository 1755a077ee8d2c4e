"""Data sets: from official files in a folder, from scikit-learn, or drawn.

The folder is the option `--data` or the environment variable `TORCHTANGENT_DATA`. A file is refused unless it is the
published one, by its checksum where there is one; unpacked files of KMNIST, which have none, are read with a warning.
Nothing is ever unpickled. `download` fetches what is missing, where there is a network (it needs `pooch`).
"""

from torchtangent.lab.data import synthetic
from torchtangent.lab.data.files import ENVIRONMENT, DataError, File, parse_idx, read, root_folder
from torchtangent.lab.data.groups import CELEBA, COUNTS, WATERBIRDS, Photographs, celeba, waterbirds
from torchtangent.lab.data.mixtures import Groups, Mixture, difficult, noisy_labels, spurious
from torchtangent.lab.data.official import CIFAR10, CSCORES, IDX, LOADERS, Dataset, Scores, cscores, download, load

__all__ = [
    "CELEBA",
    "CIFAR10",
    "COUNTS",
    "CSCORES",
    "ENVIRONMENT",
    "IDX",
    "LOADERS",
    "WATERBIRDS",
    "DataError",
    "Dataset",
    "File",
    "Groups",
    "Mixture",
    "Photographs",
    "Scores",
    "celeba",
    "cscores",
    "difficult",
    "download",
    "load",
    "noisy_labels",
    "parse_idx",
    "read",
    "root_folder",
    "spurious",
    "synthetic",
    "waterbirds",
]
