"""`python -m benchmarks.calls`: single calls on small batches, beside torch.func, timed in turns.

Every call of ours checks the model on two samples, which matters most where there are few. Writes results/calls.md and
calls-cpu.json beside it, or calls-cuda.json with `--device cuda`.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, jvp, vjp, vmap
from torch.nn.functional import cross_entropy

import torchtangent as tt
from benchmarks.cases import CASES
from benchmarks.machine import THREADS, describe
from benchmarks.measure import rounds, single_run, summary

BATCHES = {"mlp": (1, 8, 32, 128), "lenet": (1, 8, 32, 128), "resnet18": (1, 8, 32)}
MOST = 1 << 30  # bytes of a Jacobian that is formed
LIMIT = 300.0
Run = Callable[[], Any]


def losses(f: Tensor, y: Tensor) -> Tensor:
    """The loss of each sample."""
    return cross_entropy(f, y, reduction="none")


def calls(model: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[str, Run, Run]]:
    """Each quantity, with how we compute it and how torch.func does."""
    theta = {name: p.detach() for name, p in model.named_parameters()}
    v = {name: torch.randn_like(p) for name, p in theta.items()}
    u = torch.randn(len(x), 10, device=x.device)
    size = sum(p.numel() for p in theta.values())

    def f(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, theta, (x,))

    def loss(theta: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(f(theta, x[None]), y[None])

    def one(theta: dict[str, Tensor], x: Tensor) -> Tensor:
        return f(theta, x[None])[0]

    def kernel() -> Tensor:
        jacobians = [J.flatten(2) for J in vmap(jacrev(one), (None, 0))(theta, x).values()]
        return sum(torch.einsum("ncp,mep->nmce", J, J) for J in jacobians)

    if 4 * len(x) * size <= MOST:
        yield (
            "gradients",
            lambda: tt.gradients(model, (x, y), losses).dense(),
            lambda: rows(vmap(grad(loss), (None, 0, 0))(theta, x, y), 1),
        )
    if 40 * len(x) * size <= MOST:
        yield "Jacobian", lambda: tt.jacobian(model, x).dense(), lambda: rows(vmap(jacrev(one), (None, 0))(theta, x), 2)
        yield "kernel", lambda: tt.ntk(model, x), kernel
    kept = tt.jacobian(model, x)
    for word, J in (("", lambda: tt.jacobian(model, x)), (", kept", lambda: kept)):
        yield f"J v{word}", lambda J=J: J() @ v, lambda: jvp(lambda t: f(t, x), (theta,), (v,))[1]
        yield f"Jᵀu{word}", lambda J=J: J().T @ u, lambda: rows(vjp(lambda t: f(t, x), theta)[1](u)[0], 0)


def rows(found: dict[str, Tensor], lead: int) -> Tensor:
    """What torch.func gives by parameter, as one tensor, parameters last."""
    return torch.cat([t.flatten(lead) for t in found.values()], -1)


def measure(case: str, samples: int, device: str, repeats: int, budget: float) -> dict[str, Any]:
    """Seconds of each call, after a comparison of the results."""
    problem = CASES[case].problem()
    model, x, y = problem.model.to(device), problem.x[:samples].to(device), problem.y[:samples].to(device)
    found = {}
    for quantity, ours, theirs in calls(model, x, y):
        runs = {"torchtangent": _finished(ours, device), "torch.func": _finished(theirs, device)}
        warm = {name: [single_run(run, LIMIT) for _ in range(3)][-1] for name, run in runs.items()}
        a, b = (result for _, result in warm.values())
        gap = float((a - b).norm() / b.norm())
        del a, b
        if gap > 1e-4:
            raise AssertionError(f"{case}, {quantity}: results differ by {gap:.1e}")
        times = rounds(runs, repeats, budget, LIMIT, {name: time for name, (time, _) in warm.items()})
        found[quantity] = {name: summary(t) for name, t in times.items()}
    return found


def _finished(run: Run, device: str) -> Run:
    """The same, and nothing left for a GPU to do."""

    def finished() -> Any:
        result = run()
        if device == "cuda":
            torch.cuda.synchronize()
        return result

    return finished


def page(folder: Path) -> None:
    """calls.md, from the JSON files that are there."""
    lines = [
        "# Single calls on small batches",
        "",
        "Made by `python -m benchmarks.calls` from the JSON files beside this page; do not edit.",
        "",
        "Milliseconds of one call with its checks: medians, in turns after a warm-up. Ratio: torch.func's over ours.",
        "Each call gets the model anew, as after a training step; the rows `kept` are further products with one",
        "Jacobian, which checks the model at the first. On a GPU, convolutions are in full float32 for both.",
    ]
    for path in sorted(folder.glob("calls-*.json")):
        found = json.loads(path.read_text())
        lines += ["", f"## {found['device']}", "", f"{found['machine']['cpu']}, torch {found['torch']}.", ""]
        lines += ["| | samples | call | torchtangent | torch.func | ratio |", "|---|---:|---|---:|---:|---:|"]
        for case, by_size in found["cases"].items():
            for samples, by_quantity in by_size.items():
                for quantity, seconds in by_quantity.items():
                    ours, theirs = (1e3 * seconds[name]["median"] for name in ("torchtangent", "torch.func"))
                    lines.append(
                        f"| {case} | {samples} | {quantity} | {ours:.3g} | {theirs:.3g} | {theirs / ours:.2f} |"
                    )
    (folder / "calls.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Parses the command line, measures, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--case", choices=BATCHES, action="append", help="may be repeated; all if not given")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for the repeats of one figure")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.backends.cudnn.allow_tf32 = False  # as ours are
    name = torch.cuda.get_device_name() if args.device == "cuda" else f"{THREADS} threads"
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"calls-{args.device}.json"
    found: dict[str, Any] = {"machine": describe(), "device": name, "torch": torch.__version__, "cases": {}}
    if args.case and path.exists():  # the other cases stay
        found["cases"] = json.loads(path.read_text())["cases"]
    for case in args.case or BATCHES:
        sizes = found["cases"][case] = {}
        for n in BATCHES[case]:
            sizes[str(n)] = result = measure(case, n, args.device, args.repeats, args.budget)
            ratios = {q: round(s["torch.func"]["median"] / s["torchtangent"]["median"], 2) for q, s in result.items()}
            print(case, n, ratios, flush=True)
            path.write_text(json.dumps(found, indent=1) + "\n")
            page(args.out)


if __name__ == "__main__":
    main()
