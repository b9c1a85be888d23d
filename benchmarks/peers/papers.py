"""Published figures that need no run, against formulas; ``python benchmarks/peers/papers.py`` prints them for the docs.

A step of T seconds has a backward of 2/3 T over L equal layers, and B bits travel per exchange, 16 for each parameter.

    data parallel: layer after layer, beside backward:  T + max(0, B/W - o, B/(L W)), with o = 2/3 T (1 - 1/L)
    DiLoCo: the same, once in H steps
    Streaming DiLoCo: P = L / 3 times in H steps, each with B/P bits; overlapped: 1 step of T more to hide in; FP4: B/4
"""

from dataclasses import dataclass

from pliant.codecs import Int4

H = 100
GRID = 1.207
"""The tables give bandwidths on a geometric grid of this ratio."""
UTILISATIONS = (0.5, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A row of Streaming DiLoCo's table 4 (arXiv:2501.18512)."""

    name: str
    parameters: float
    num_layers: int
    step_s: float
    published_gbit_per_s: dict[str, tuple[float, ...]]


MODELS = (
    Model(
        name="1B",
        parameters=1e9,
        num_layers=24,
        step_s=0.1,
        published_gbit_per_s={
            "data parallel": (86.8, 152.6, 184.2, 222.3, 569.0),
            "DiLoCo": (1.4, 6.2, 13.3, 23.3, 86.8),
            "streaming": (1.4, 5.2, 9.1, 16.0, 28.1),
            "overlapped": (1.4, 4.3, 6.2, 9.1, 11.0),
            "overlapped FP4": (0.4, 0.9, 1.7, 2.0, 3.0),
        },
    ),
    Model(
        name="10B",
        parameters=10e9,
        num_layers=48,
        step_s=0.8,
        published_gbit_per_s={
            "data parallel": (104.8, 222.3, 222.3, 268.3, 471.5),
            "DiLoCo": (1.7, 7.5, 16.0, 33.9, 104.8),
            "streaming": (1.7, 5.2, 9.1, 13.3, 19.3),
            "overlapped": (1.7, 3.6, 5.2, 6.2, 7.5),
            "overlapped FP4": (0.4, 0.9, 1.4, 1.4, 1.7),
        },
    ),
    Model(
        name="100B",
        parameters=100e9,
        num_layers=108,
        step_s=4.9,
        published_gbit_per_s={
            "data parallel": (184.2, 323.8, 390.7, 390.7, 471.5),
            "DiLoCo": (3.0, 11.0, 23.3, 49.4, 184.2),
            "streaming": (2.4, 6.2, 9.1, 11.0, 19.3),
            "overlapped": (1.7, 3.6, 4.3, 5.2, 5.2),
            "overlapped FP4": (0.5, 0.9, 1.1, 1.1, 1.4),
        },
    ),
)


def needed_gbit_per_s(model: Model, method: str, utilisation: float) -> float:
    """Return the bandwidth at which computing is so large a share of the time."""
    gbit = 16e-9 * model.parameters
    backward_s = 2 / 3 * model.step_s
    hidden_s = backward_s * (1 - 1 / model.num_layers)
    exposed_s = model.step_s * (1 / utilisation - 1)  # what a step may wait
    if method == "data parallel":
        return max(gbit / (exposed_s + hidden_s), gbit / model.num_layers / exposed_s)
    if method == "DiLoCo":
        return gbit / (H * exposed_s + hidden_s)
    num_fragments = model.num_layers / 3
    if method != "streaming":
        hidden_s += model.step_s
    bits = 0.25 if method == "overlapped FP4" else 1.0
    return bits * gbit / num_fragments / (H * exposed_s / num_fragments + hidden_s)


def table() -> list[str]:
    """Return the lines of a table: published / by formula, and a star where they differ by more than a grid step."""
    lines = ["| model | method | " + " | ".join(f"{u:.0%}" for u in UTILISATIONS) + " |", "|---" * 7 + "|"]
    for model in MODELS:
        for method, published in model.published_gbit_per_s.items():
            cells = []
            for utilisation, theirs in zip(UTILISATIONS, published, strict=True):
                ours = needed_gbit_per_s(model, method, utilisation)
                cells.append(f"{theirs:g} / {ours:.3g}" + ("" if near(ours, theirs) else " \\*"))
            lines.append(f"| {model.name} | {method} | " + " | ".join(cells) + " |")
    return lines


def near(ours: float, theirs: float) -> bool:
    """Return whether two bandwidths differ by at most one step of the grid, and what rounding to 0.1 leaves open."""
    return ours <= (theirs + 0.05) * GRID and ours >= (theirs - 0.05) / GRID


def main() -> None:
    print("\n".join(table()))
    pairs = [
        (needed_gbit_per_s(model, method, u), theirs)
        for model in MODELS
        for method, published in model.published_gbit_per_s.items()
        for u, theirs in zip(UTILISATIONS, published, strict=True)
    ]
    print(f"within a grid step: {sum(near(*pair) for pair in pairs)} of {len(pairs)}")
    numel = 1 << 20
    bits = 8 * Int4().nbytes(numel) / numel
    print(f"Streaming DiLoCo, table 1: 441 / 1.10 = {441 / 1.10:.1f}; H 16 / 4 = {H * 16 / 4:g}; ", end="")
    print(f"Pliant's int4 has {bits:.3f} bits: {H * 16 / bits:.1f}")
    for where, seconds, published, mfu in (
        ("USA", 103, 95.7, 41.4),
        ("+ Europe", 382, 85.6, 37.1),
        ("global", 469, 83.0, 36.0),
    ):
        share = 38 * 60 / (38 * 60 + seconds)
        rate = 8 * 10 * 2 * 13 / 14 / seconds
        print(f"INTELLECT-1 {where}: {share:.1%} ({published} %), MFU {43.3 * share:.1f} ({mfu}), {rate:.2f} Gbit/s")


if __name__ == "__main__":
    main()
