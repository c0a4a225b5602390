"""Datasets and data loaders, with PyTorch's names and meanings."""

from ..common.keywords import name_constructors
from .cifar10 import CIFAR10Dataset
from .collate import default_collate, default_convert
from .dataset import (
    ConcatDataset,
    Dataset,
    IterableDataset,
    NDArrayDataset,
    Subset,
    TensorDataset,
    random_split,
)
from .digits import DigitsDataset
from .loader import DataLoader
from .mnist import MNISTDataset
from .samplers import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from .text import Corpus, Dictionary, batchify, get_batch
from .transforms import RandomCrop, RandomFlipHorizontal, Transform
from .workers import WorkerInfo, get_worker_info

__all__ = [
    "BatchSampler",
    "CIFAR10Dataset",
    "ConcatDataset",
    "Corpus",
    "DataLoader",
    "Dataset",
    "Dictionary",
    "DigitsDataset",
    "IterableDataset",
    "MNISTDataset",
    "NDArrayDataset",
    "RandomCrop",
    "RandomFlipHorizontal",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "Transform",
    "WeightedRandomSampler",
    "WorkerInfo",
    "batchify",
    "default_collate",
    "default_convert",
    "get_batch",
    "get_worker_info",
    "random_split",
]

name_constructors(globals()[name] for name in __all__)
