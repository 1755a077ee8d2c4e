"""A transformer that reads digits row by row: what its layers add to the kernel, and EKFAC beside Adam."""

import copy

import torch
from torch import Tensor, nn
from trained import accuracy, x_test, x_train, y_train

import torchtangent as tt


class Reader(nn.Module):
    """Eight rows of eight pixels are eight tokens."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.rows, self.places = nn.Linear(8, width), nn.Embedding(8, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(8).expand(len(x), 8)  # one row per sample: EKFAC needs per-sample gradients
        return self.head(self.encoder(self.rows(x.view(-1, 8, 8)) + self.places(places)).mean(1))


torch.manual_seed(0)
initial = Reader()
kernels = tt.ntk(initial, x_train[:50], reduce="trace", per_layer=True)
total = sum(K.trace() for K in kernels.values())
for name, K in sorted(kernels.items(), key=lambda item: -item[1].trace())[:5]:
    print(f"{K.trace() / total:6.1%} of the kernel's trace: {name}")

models = {name: copy.deepcopy(initial) for name in ("Adam", "EKFAC")}
optimizers = {
    "Adam": torch.optim.Adam(models["Adam"].parameters(), lr=3e-3),
    "EKFAC": tt.optim.EKFAC(models["EKFAC"], lr=0.1, damping=1e-2, momentum=0.9, kl_clip=1e-2),
}
for name, optimizer in optimizers.items():
    order = torch.Generator().manual_seed(0)
    for _ in range(5):
        for batch in torch.randperm(len(x_train), generator=order).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(models[name](x_train[batch]), y_train[batch]).backward()
            optimizer.step()
    print(f"{name:6} test accuracy {accuracy(models[name](x_test).argmax(1)):.1%}")
