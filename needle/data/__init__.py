"""Datasets, and batches of them."""

from .dataset import Dataset, NDArrayDataset
from .digits import DigitsDataset
from .loader import DataLoader

__all__ = ["DataLoader", "Dataset", "DigitsDataset", "NDArrayDataset"]
