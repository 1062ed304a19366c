"""What the page of Figure 2(b) says of `tempered`, where it was run: a sentence, two rows, a claim of ours."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from provi_lab.common.report import Claim
from provi_lab.common.tables import Row

FILE, TABLE = "tempered.json", "-tempered"
"""What `measure` leaves, and what the name of the table beside the figure's page ends with."""

TEMPERED, TWIN_NAME, LEVEL = "tempered", "point estimate", 0.85
MOST_MOVED = 4
"""Pixels that an image is moved by."""

_KEPT = ("name", "method", "posterior", "seed", "epochs", "images", "test_images", "kl_weight", "prior_sd", "start_sd")
_SCORES = ("accuracy", "test_nll", "calibration_error", "median_sd")
_PARTS = ("negative_elbo", "nll", "kl")


def read(folders: Iterable[Path]) -> list[Row]:
    """A line for each of the two, after the last epoch, of the first of the folders that has them."""
    for folder in folders:
        if (folder / FILE).is_file():
            found = json.loads((folder / FILE).read_text(encoding="utf-8"))
            return [
                {name: each[name] for name in (*_KEPT, "rate", "title", "machine")}
                | dict(zip(_PARTS, each["values"][-1], strict=True))
                | {name: each[name] for name in (*_SCORES, "seconds")}
                for each in found
            ]
    return []


def setting(rows: Sequence[Row]) -> str:
    """What the page says of it; nothing where it was not run."""
    own = _named(rows, TEMPERED)
    if own is None:
        return ""
    return (
        f" Beside the figure, 'Adam, {TEMPERED}' has a sigma for each weight, the prior N(0, {float(own['prior_sd']):g}"
        f"^2), sigma {float(own['start_sd']):g} at the start, the KL {float(own['kl_weight']):g} times in training, "
        f"images flipped and moved by up to {MOST_MOVED} pixels, rates from {float(own['rate']):g} to 0 along a "
        f"cosine, {own['epochs']} epochs, n = {int(own['images'])}, on {own['machine']}; 'Adam, {TWIN_NAME}' is the "
        f"same network without noise and KL. Their -ELBO is that of the untempered model on plain images."
    )


def summary(rows: Sequence[Row], columns: Sequence[str]) -> list[Row]:
    """The rows for the table of the figure, whose columns are these."""
    found = []
    for row in rows:
        values = {
            "posterior": row["posterior"],
            "method": f"{row['method']}, {row['name']}",
            "rate": f"{float(row['rate']):g}",
            "-ELBO": float(row["negative_elbo"]),
            "of it KL": float(row["kl"]),
            **{name.replace("_", " "): float(row[name]) for name in _SCORES},
        }
        found.append({name: values.get(name, "") for name in columns})
    return found


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Ours: that the network learns; of the test set the rows name the size of."""
    own = _named(rows, TEMPERED)
    if own is None:
        return []
    evidence = "; ".join(
        f"{row['name']}: accuracy {float(row['accuracy']):.2%}, -ELBO {float(row['negative_elbo']):.5g}, NLL "
        f"{float(row['test_nll']):.4f}, ECE {float(row['calibration_error']):.4f}"
        for row in rows
    )
    return [
        Claim.of(
            f"Ours: tempered (KL times {float(own['kl_weight']):g} in training), with a sigma for each weight and a "
            f"narrow prior, the network learns (rule: accuracy above {LEVEL:.0%} on {int(own['test_images']):,} test "
            f"images, one run).",
            float(own["accuracy"]) > LEVEL,
            f"{evidence}.",
        )
    ]


def _named(rows: Sequence[Row], name: str) -> Row | None:
    return next((row for row in rows if row["name"] == name), None)
