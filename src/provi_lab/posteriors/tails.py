"""Student's law on posteriors of the suite with heavy tails, beside the default fit and `family="auto"`: a table.

`python -m provi_lab.posteriors.tails` prints it, one process a fit, with no programs kept from before, `--only NAME`
for other posteriors: the mean error / the ratio of deviations (k-hat), the ELBO, and CPU seconds with the diagnosis.
The share is the one by which `family="auto"` decides whether Student's law is tried first
(`provi.structures.automatic.radial_share`); `--shares` prints it alone, for all posteriors with a reference.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from provi_lab.posteriors.posterior import errors
from provi_lab.posteriors.table import REFERENCES, child, usable

HEAVY = ("student", "independent_tails", "robust", "robust_unknown_tails", "robust_groups", "cauchy_data", "skew_data")
FAMILIES = ("default", "student", "auto")
_DRAWS, _SECONDS = 40_000, 400.0


def measure(name: str, family: str, reference: dict[str, Any]) -> dict[str, Any]:
    """The fit of one posterior with one family: errors, k-hat, what was taken, and CPU seconds with the diagnosis."""
    import provi
    from provi.structures.automatic import radial_share
    from provi_lab.posteriors.suite import EVERY

    posterior = EVERY[name]
    target = provi.from_numpyro(posterior.model, *posterior.data())
    began = time.process_time()
    fit = provi.fit(target, family=None if family == "default" else family, progress=False)
    found = fit.posterior.diagnose()
    row: dict[str, Any] = {"cpu_seconds": time.process_time() - began, "elbo": fit.elbo.value, "k_hat": found.pareto_k}
    row |= errors(fit.posterior.draws(_DRAWS, 1), reference)
    gaussian = family == "default" and fit.posterior.family.has_density
    return row | {"family": fit.posterior.family.scale, "share": radial_share(fit) if gaussian else None}


def line(name: str, rows: dict[str, dict[str, Any]]) -> str:
    """A line of the table, in Markdown."""
    cells = [f"failed: {row['failed']}" if "failed" in row else _words(row) for row in rows.values()]
    share, taken = rows["default"].get("share"), rows["auto"].get("family", "")
    return f"| {name} | {'' if share is None else f'{share:.2f}'} | {' | '.join(cells)} | {taken} |"


def _words(row: dict[str, Any]) -> str:
    errors_of_moments = f"{row['mean_error']:.2f} / {row['sd_ratio']:.2f} ({row['k_hat']:.2f})"
    return f"{errors_of_moments}, {row['elbo']:.3f}; {row['cpu_seconds']:.0f} s"


def main(words: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of posteriors")
    parser.add_argument("--shares", action="store_true", help="the shares alone, of Gaussians by default fits")
    parser.add_argument("--references", type=Path, default=REFERENCES)
    parser.add_argument("--one", nargs=2, help="used by the command itself: a posterior and a family")
    parser.add_argument("--reference", type=Path, help="used by the command itself: the reference of that one")
    parser.add_argument("--out", type=Path, help="used by the command itself: where its row goes")
    options = parser.parse_args(words)
    if options.one:
        name, family = options.one
        options.out.write_text(json.dumps(measure(name, family, json.loads(options.reference.read_text()))))
        return
    references = json.loads(options.references.read_text())
    command = [sys.executable, "-m", "provi_lab.posteriors.tails", "--one"]
    if options.shares:
        for name in options.only or [name for name, reference in references.items() if usable(reference)]:
            row = child([*command, name, "default"], references[name], _SECONDS)
            print(f"{name}: {row.get('failed', row.get('share'))}", flush=True)
        return
    print('| posterior | share | default | `"student"` | `"auto"` | auto took |\n| --- | --: | --: | --: | --: | --- |')
    for name in options.only or HEAVY:
        rows = {family: child([*command, name, family], references[name], _SECONDS) for family in FAMILIES}
        print(line(name, rows), flush=True)


if __name__ == "__main__":
    main()
