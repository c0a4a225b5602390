"""Datasets, and batches of them."""

from ..common.keywords import name_constructors
from .cifar10 import CIFAR10Dataset
from .dataset import Dataset, NDArrayDataset
from .digits import DigitsDataset
from .loader import DataLoader
from .mnist import MNISTDataset
from .text import Corpus, Dictionary, batchify, get_batch
from .transforms import RandomCrop, RandomFlipHorizontal, Transform

__all__ = [
    "CIFAR10Dataset",
    "Corpus",
    "DataLoader",
    "Dataset",
    "Dictionary",
    "DigitsDataset",
    "MNISTDataset",
    "NDArrayDataset",
    "RandomCrop",
    "RandomFlipHorizontal",
    "Transform",
    "batchify",
    "get_batch",
]

name_constructors(globals()[name] for name in __all__)
