"""PyTorch modules that write their own tensors, and others that change what is none of these."""

import torch
from torch import nn


def counting(forward, **buffers):
    """A module with a parameter `n`, these buffers, and this function as its `forward`."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = nn.Parameter(torch.zeros(1))
            for name, value in buffers.items():
                self.register_buffer(name, value.clone())

    Counting.forward = forward
    return Counting().eval()


def add_to_parameter(self, x):
    self.n.add_(1)
    return x + self.n


def add_without_gradients(self, x):
    with torch.no_grad():
        self.n.add_(1)
    return x + self.n


def assign_buffer(self, x):
    self.b = self.b + x
    return self.b * 1.0


def count_steps(self, x):
    self.step += 1
    return x * self.step


def write_alone(self, x):
    self.b.copy_(x)
    return x * 2


def write_row(self, x):
    self.cache[1:2] = x
    return self.cache.sum(0)


def return_state(self, x):
    self.n.add_(x.sum())
    return self.n


def append_to_cache(self, place, x):
    self.cache.index_copy_(0, place, x[None])
    return self.cache * 1.0


class Normed(nn.Module):
    """Batch norm that takes the statistics of each call, in a model for inference."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        return self.norm(x)


def normed():
    model = Normed().eval()
    model.norm.train()
    return model


X, ROWS, ZEROS = torch.tensor([1.0, -2.0, 0.5]), torch.zeros(4, 3), torch.zeros(3)

# Models that write parameters and buffers, and inputs: (make, inputs).
WRITING = {
    "parameter": (lambda: counting(add_to_parameter), (X,)),
    "no_grad": (lambda: counting(add_without_gradients), (X,)),
    "assigned": (lambda: counting(assign_buffer, b=ZEROS), (X,)),
    "step": (lambda: counting(count_steps, step=torch.tensor(0)), (X,)),
    "not_read": (lambda: counting(write_alone, b=ZEROS), (X,)),
    "row": (lambda: counting(write_row, cache=ROWS), (X,)),
    "returned": (lambda: counting(return_state), (X,)),
    "cache": (lambda: counting(append_to_cache, cache=ROWS), (torch.tensor([1]), X)),
    "batch_norm": (normed, (torch.randn(5, 3, generator=torch.Generator().manual_seed(0)),)),
    "training": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train(),
        (torch.randn(5, 3, generator=torch.Generator().manual_seed(1)),),
    ),
}


class Attributed(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.tensor, self.number, self.items, self.table = torch.zeros(1), 0, [], None
        self.held = [torch.zeros(1)]
        self.function = forward

    def forward(self, x):
        return self.function(self, x)


def write_tensor(self, x):
    self.tensor.add_(1)
    return x + self.tensor


def assign_tensor(self, x):
    self.tensor = self.tensor + 1
    return x + self.tensor


def count(self, x):
    self.number += 1
    return x + self.number


def write_item(self, x):
    self.held[0].add_(1)
    return x + self.held[0]


def append(self, x):
    self.items.append(x)
    return x + len(self.items)


def leave_input(self, x):
    self.table = x * 2
    return x + 1


def write_shared(self, x):
    self.one.add_(1)
    return x + self.other


def write_data(self, x):
    self.n.data.add_(1)
    return x + self.n


def sharing(other):
    model = counting(write_shared, one=ZEROS, other=ZEROS)
    model.other = other(model.one)
    return model


# Models whose writes cannot be kept, and what is said of them.
REFUSED = {
    "attribute": (lambda: Attributed(write_tensor), "neither a parameter nor a buffer: register"),
    "assigned": (lambda: Attributed(assign_tensor), "each call .*changes its attribute 'tensor'"),
    "number": (lambda: Attributed(count), "each call .*changes its attribute 'number'"),
    "item": (lambda: Attributed(write_item), "neither a parameter nor a buffer: register"),
    "list": (lambda: Attributed(append), "each call .*changes its attribute 'items'"),
    "input kept": (lambda: Attributed(leave_input), "each call .*changes its attribute 'table'"),
    "tied": (lambda: sharing(lambda one: one), "'one', which shares memory with 'other'"),
    "view": (lambda: sharing(lambda one: one[:1]), "'one', which shares memory with 'other'"),
    "data": (lambda: counting(write_data), r"such as \.data"),
    "input": (lambda: Attributed(lambda self, x: x.add_(1) * 2), "writes to its input 'x'"),
}


def make_table(self, x):
    if self.table is None:
        self.table = torch.arange(3.0)
    return x * self.table


def table_keeping():
    """A model that makes a table at its first call."""
    return Attributed(make_table).eval()
