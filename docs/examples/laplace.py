"""The Laplace approximation of a network: what it is unsure of, for several widths of the prior."""

import torch
from torch.nn import functional as F
from trained import model, x_test, x_train, y_test, y_train

import torchtangent as tt

# The posterior of the weights is normal, with precision N·F + δ, where δ is the prior's.
precision = len(x_train) * tt.fisher(model, (x_train, y_train), tt.KFAC)
x, y = x_test[:300], y_test[:300]
J = tt.jacobian(model, x)
logits = model(x).detach()


def report(title: str, f: torch.Tensor) -> None:
    """The loss, and the mean of the highest probability."""
    right, sure = f.argmax(1) == y, f.softmax(1).amax(1)
    said = f"{sure[right].mean():.2f} when right, {sure[~right].mean():.2f} when wrong"
    print(f"{title}: test loss {F.cross_entropy(f, y):.3f}; mean confidence {said}")


report("the network alone", logits)
for prior in (1.0, 10.0, 100.0, 1000.0):
    variance = J.covariance(precision.inverse(prior)).diagonal(dim1=1, dim2=2)  # of each logit
    volume = (J.shape[-1] * torch.tensor(prior).log() - precision.logdet(prior)) / 2  # for the marginal likelihood
    softened = logits / (1 + torch.pi / 8 * variance).sqrt()
    report(f"δ = {prior:4g}, log of the posterior's volume over the prior's {volume:5.1f}", softened)

# The prior that the marginal likelihood prefers, by gradient ascent: logdet can be differentiated in the damping. It is
# no prior for good predictions here: the network was trained without one, so that its weights are no posterior's mode.
weights = torch.cat([p.detach().flatten() for p in model.parameters()])
log_prior = torch.zeros((), requires_grad=True)
optimizer = torch.optim.Adam([log_prior], lr=0.2)
for _ in range(100):
    prior = log_prior.exp()
    evidence = (len(weights) * log_prior - prior * weights @ weights - precision.logdet(prior)) / 2
    optimizer.zero_grad()
    (-evidence).backward()
    optimizer.step()
print(f"the marginal likelihood prefers δ = {log_prior.exp():.1f}")
