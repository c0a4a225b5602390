"""A small PyTorch model with an image, an argument that is no tensor, and results in a dict."""

from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 2)

    def forward(self, image, scale=None):
        hidden = self.drop(self.norm(self.conv(image))).mean((2, 3))
        return {"scores": self.head(hidden), "hidden": [hidden]}
