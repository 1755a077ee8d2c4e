"""The model that the other examples start from: a small network, trained on scikit-learn's 8×8 images of digits."""

import copy

import torch
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(0)
pixels, digits = load_digits(return_X_y=True)
shuffled = torch.randperm(len(pixels))
x = torch.tensor(pixels, dtype=torch.float32)[shuffled] / 16  # (1797, 64)
y = torch.tensor(digits)[shuffled]
x_train, x_test = x[:600], x[600:]
y_train, y_test = y[:600], y[600:]


def network(outputs: int = 10) -> nn.Module:
    """An untrained perceptron."""
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, outputs))


def train(model: nn.Module, epochs: int = 30) -> None:
    """SGD with momentum on the cross-entropy."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(epochs):
        for batch in torch.randperm(len(x_train)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x_train[batch]), y_train[batch]).backward()
            optimizer.step()


def accuracy(classes: torch.Tensor) -> float:
    """The part of the test images that these classes are right for."""
    return (classes == y_test).float().mean().item()


initial = network()
model = copy.deepcopy(initial)
train(model)

if __name__ == "__main__":
    print(f"test accuracy of the network: {accuracy(model(x_test).argmax(1)):.1%}")
