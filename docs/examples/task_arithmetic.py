"""Task arithmetic: two fine-tuned copies of a network are added up, as networks and as linearized networks."""

import copy

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from trained import accuracy, model, x_test, x_train, y_train

import torchtangent as tt

device = "cuda" if torch.cuda.is_available() else "cpu"
tasks = {
    "mirrored": lambda x: x.view(-1, 8, 8).flip(2).flatten(1),
    "turned": lambda x: x.view(-1, 8, 8).rot90(1, (1, 2)).flatten(1),
}
pretrained = model.to(device)
start = {name: p.detach().clone() for name, p in pretrained.named_parameters()}


def fine_tune(model: nn.Module, x: Tensor, y: Tensor, epochs: int = 20) -> dict[str, Tensor]:
    """The task vector: how far each parameter moves from the pretrained network's."""
    loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader))
    for _ in range(epochs):
        for images, digits in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images.to(device)), digits.to(device)).backward()
            optimizer.step()
            schedule.step()
    return {name: p.detach() - start[name] for name, p in model.named_parameters()}


def right(model: nn.Module, x: Tensor) -> str:
    """The accuracy on test images."""
    return f"{accuracy(model(x.to(device)).argmax(1).cpu()):.0%}"


for title, new in (("network", copy.deepcopy), ("linearized", tt.linearize)):  # both make a model that can be trained
    tuned = {task: new(pretrained) for task in tasks}
    vectors = [fine_tune(tuned[task], change(x_train), y_train) for task, change in tasks.items()]
    shown = [f"alone {right(tuned[task], change(x_test))}" for task, change in tasks.items()]
    for scale in (0.4, 0.6, 0.8, 1.0):
        # A linearized network keeps the names of the parameters, so either model loads the sum of the vectors.
        added = {name: p + scale * sum(v[name] for v in vectors) for name, p in start.items()}
        both = new(pretrained)
        both.load_state_dict(added, strict=False)
        for n, change in enumerate(tasks.values()):
            shown[n] += f", {scale} × both {right(both, change(x_test))}"
    for task, line in zip(tasks, shown, strict=True):
        print(f"{title:10} on {task} digits: {line}")
