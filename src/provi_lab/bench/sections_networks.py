"""Sections of the page: Bayesian networks on a processor and on a GPU, from what the scripts of benchmarks/ keep."""

from collections.abc import Sequence
from typing import Any

from provi_lab.bench.record import Section
from provi_lab.common.tables import Cells, Row, aim, number, percent

_CPU_TEXT = """\
An epoch (430 steps of 128 images) of a Bayesian LeNet-5 by Bayes by Backprop, one draw of the weights a step, float32,
compiled beforehand; the least of some repetitions, by turns. *Plain JAX* is the loop that a good user would write, with
convolutions by XLA or as matrix products; ratios are to the latter. *Our network* is that loop with the LeNet-5 of
`provi.nets`, whose products are fewer: what ProVI's rows differ from it by is ProVI's loop and its methods' tables."""

_GPU_TEXT = """\
A step of a Bayesian ResNet-18 on random images of 32 x 32 x 3 in batches of 128, a sigma a weight, float32 with the
device's default products; after compilation. *Plain* is the same network trained on the cross-entropy by optax's Adam,
without a posterior. Its share: images a second times draws over those of plain. Memory is the peak of the device,
beside the estimate of `table_bytes`, which counts neither activations nor data."""

_BASELINE, _OURS = "plain JAX, matrix products", "ProVI"
_STEP, _SHARE = 1.3, 0.8
"""Aims: a step of MISSO over Adam's, and images a second times draws over those of plain training."""


def cpu_cells(rows: Sequence[Row]) -> Cells:
    """One line a method."""
    names = ["method", "CPU s an epoch", "wall s an epoch", "CPU ratio", "wall ratio"]
    lines = []
    for row in rows:
        times = [number(row["cpu_seconds_an_epoch"]), number(row["wall_seconds_an_epoch"])]
        lines.append([row["method"], *times, f"{row['cpu_ratio']:.2f}", f"{row['wall_ratio']:.2f}"])
    return names, lines


def cpu_verdicts(rows: Sequence[Row]) -> list[str]:
    """Ours beside the plain loop, with its network and with ours."""
    ours = [row for row in rows if row["method"].startswith(_OURS)]
    worst = max(ours, key=lambda row: row["cpu_ratio"])
    lines = [aim(f"CPU time of {worst['method']}, the slowest, over plain JAX's", worst["cpu_ratio"], 1.0)]
    plain = next((row for row in rows if row["method"] == "plain JAX, our network"), None)
    if plain is not None:
        ratio = worst["cpu_seconds_an_epoch"] / plain["cpu_seconds_an_epoch"]
        lines.append(aim("The same over plain JAX's with our network", ratio, 1.0))
    return lines


def gpu_rows(record: dict[str, Any]) -> list[Row]:
    """A row for each case and number of draws; the memory of a case stands beside all of its rows."""
    rows = []
    for case in record["rows"]:
        facts = {name: value for name, value in case.items() if name != "rows"}
        rows += [facts | one for one in case.get("rows") or ()]
    return rows


def gpu_cells(rows: Sequence[Row]) -> Cells:
    """One line a case and number of draws."""
    names = ["method", "draws", "first step, s", "a step, ms", "share of plain", "over Adam's", "peak GiB", "estimate"]
    lines = []
    for row in rows:
        line = [row["case"], str(row["draws"]), number(row["first_seconds"]), number(row["step_ms"])]
        line += [percent(row.get("throughput_share")), number(row.get("over_adam"), 2)]
        lines.append([*line, number(row["peak_gib"], 2), number(row.get("estimate_gib"), 2)])
    return names, lines


def gpu_verdicts(rows: Sequence[Row]) -> list[str]:
    """The slowest step over Adam's and the least share of plain training."""
    lines, over = [], [row for row in rows if row.get("over_adam") is not None]
    if over:
        worst = max(over, key=lambda row: row["over_adam"])
        lines.append(aim(f"The slowest step over Adam's ({worst['case']})", worst["over_adam"], _STEP))
    shares = [row for row in rows if row.get("throughput_share") is not None]
    if shares:
        worst = min(shares, key=lambda row: row["throughput_share"])
        lines.append(aim(f"The least share of plain ({worst['case']})", worst["throughput_share"], _SHARE, least=True))
    return lines


SECTIONS = (
    Section(
        kind="network-cpu",
        heading="Bayesian networks on a processor",
        text=_CPU_TEXT,
        title="A Bayesian LeNet-5 beside plain JAX",
        cells=cpu_cells,
        verdicts=cpu_verdicts,
        made_by="`benchmarks/network_cpu.py`",
    ),
    Section(
        kind="h200-network",
        heading="Bayesian networks on a GPU",
        text=_GPU_TEXT,
        title="A Bayesian ResNet-18 beside plain training",
        cells=gpu_cells,
        verdicts=gpu_verdicts,
        rows=gpu_rows,
        made_by="`benchmarks/network_gpu.py`",
    ),
)
