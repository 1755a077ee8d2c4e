"""Which of ten label sets will a network learn best? A ranking before any training, and what training says of it."""

import torch
from trained import network, x, y

import torchtangent as tt

image, generator = x.view(-1, 8, 8), torch.Generator().manual_seed(0)
projection = x @ torch.randn(64, generator=generator)
label_sets = {
    "even digits": y % 2 == 0,
    "digits below 5": y < 5,
    "prime digits": torch.isin(y, torch.tensor([2, 3, 5, 7])),
    "digits with a loop": torch.isin(y, torch.tensor([0, 6, 8, 9])),
    "heavy on the left": image[:, :, :4].sum((1, 2)) > image[:, :, 4:].sum((1, 2)),
    "heavy at the top": image[:, :4].sum((1, 2)) > image[:, 4:].sum((1, 2)),
    "much ink": x.mean(1) > x.mean(1).median(),
    "a random plane": projection > projection.median(),
    "a random wave": torch.sin(4 * projection) > 0,
    "random labels": torch.rand(len(x), generator=generator) > 0.5,
}
model, x_train, x_test = network(outputs=1), x[:600], x[600:]

ranking = tt.alignment.rank_tasks(model, x_train, {name: labels[:600] for name, labels in label_sets.items()})
print(ranking)

# The linearized network, trained on all ten at once.
labels = torch.stack([label_sets[name] for name in ranking.names], dim=1).float()  # (1797, 10)
K, K_test = tt.ntk(model, x_train, reduce="trace"), tt.ntk(model, x_test, x_train, reduce="trace")
sgd = tt.dual.SGD(K, labels[:600], loss="bce", lr=0.1, momentum=0.9)
fit = sgd.run(epochs=30, K_test=K_test, y_test=labels[600:])
print("\nTest accuracy of the linearized network, in the order of the ranking:")
for name, accuracy in zip(ranking.names, fit.test_accuracy[-1], strict=True):
    print(f"  {name:20} {accuracy:.1%}")
