"""How well the suite's posteriors are approximated: default fit, `corrected()`, `family="auto"`, and other libraries.

`python -m provi_lab.posteriors.table --out table.json`: one process a posterior with a limit of CPU seconds, what the
file has is skipped, and the file is written after each: a run that was stopped goes on where it was. `--again` measures
those rows anew that another state of the code has made. `--peers PYTHON` runs other libraries (`peers.py`) on every
fifth posterior, in a Python that has them. `--page docs/posteriors.md` writes the page of what the file has, with how
long a run takes.

Compared are all values of all latent sites, in the model's own space: the worst error of a mean in standard deviations
of the reference, and the worst ratio of standard deviations.
"""

import argparse
import fcntl
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from provi_lab.posteriors.posterior import errors

REFERENCES = Path("benchmarks/results/posterior-references.json")
PEERS_EVERY = 5
"""Peers run on every fifth posterior of the suite in alphabetical order, which was said before any of them ran."""

_DRAWS = 40_000
_SEED = 1
"""Of `corrected()`, and not its default: the summary has made the draws of that one where q's weights are heavy."""
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "PROVI_COMPILATION_CACHE": "off",  # CPU seconds are those of a first fit
}


def measure(name: str, reference: dict[str, Any]) -> dict[str, Any]:
    """The row of one posterior."""
    import provi
    from provi_lab.posteriors.held_out import HELD_OUT
    from provi_lab.posteriors.suite import EVERY

    posterior = EVERY[name]
    target = provi.from_numpyro(posterior.model, *posterior.data())
    row: dict[str, Any] = {"kind": posterior.kind, "dim": target.dim, "reference": reference["how"]}
    row |= {"held_out": name in HELD_OUT, "where": f"{os.cpu_count()} cores, {_versions()}, {_commit()}"}

    def add(column: str, make: Callable[[], tuple[Any, dict[str, Any]]]) -> Any:
        began = time.process_time()
        try:
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                found, more = make()
            row[column] = {**more, **errors(more.pop("draws"), reference)}
            row[column].pop("draws", None)
            row[column]["warned"] = bool(more["warned"] or any("k-hat" in str(w.message) for w in heard))
        except Exception as error:
            found, row[column] = (
                None,
                {"failed": f"{type(error).__name__}: {error}"[:300], "warned": True, "right": False},
            )
        row[column]["cpu_seconds"] = time.process_time() - began
        return found

    fit = add("default", lambda: _fitted(provi.fit(target, progress=False)))
    if fit is not None and fit.posterior.family.has_density:
        add("corrected", lambda: _corrected(fit))
    auto = add("auto", lambda: _fitted(provi.fit(target, family="auto", progress=False)))
    if auto is not None and auto.posterior.family.has_density:
        add("auto corrected", lambda: _corrected(auto))
    return row


def _versions() -> str:
    import jax
    import numpyro

    return f"Python {platform.python_version()}, jax {jax.__version__}, numpyro {numpyro.__version__}"


def _commit() -> str:
    """A digest of the library's own sources: rows of different code are told apart on a machine without git, too."""
    import provi

    digest = hashlib.sha256()
    for path in sorted(Path(str(provi.__file__)).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return f"sources {digest.hexdigest()[:12]}"


def _fitted(fit: Any) -> tuple[Any, dict[str, Any]]:
    notes = fit.posterior.summary().notes
    found = fit.posterior.latest_diagnosis
    return fit, {
        "family": fit.posterior.family.scale,
        "elbo": fit.elbo.value,
        "k_hat": None if found is None else found.pareto_k,
        "warned": any(note.startswith("Warning") for note in notes) or not fit.outcome.ok,
        "draws": fit.posterior.draws(_DRAWS, 1),
    }


def _corrected(fit: Any) -> tuple[Any, dict[str, Any]]:
    """With the seed in the row: its time is that of draws of its own."""
    found = fit.posterior.corrected(_DRAWS, _SEED)
    draws = found.target.constrain(found.rows)
    return found, {"k_hat": found.pareto_k, "warned": not found.reliable, "seed": _SEED, "draws": draws}


def child(words: list[str], reference: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The cells that `words`, a command, writes for one posterior; what goes wrong there is a row, too."""
    with tempfile.TemporaryDirectory() as folder:
        given, part = Path(folder) / "reference.json", Path(folder) / "part.json"
        given.write_text(json.dumps(reference))
        # Of the clock the processor's, as others may be at work: `ulimit` ends the process.
        limited = ["sh", "-c", f'ulimit -t {int(seconds)}; exec "$@"', "sh", *words]
        found = {"PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(
            [*limited, "--reference", str(given), "--out", str(part)],
            env=os.environ | _ENVIRONMENT | found,
            capture_output=True,
            text=True,
        )
        if done.returncode in (-9, -24, 137, 152):
            return {"failed": f"no result within {seconds:g} CPU seconds"}
        if done.returncode != 0:
            return {"failed": done.stderr.strip().splitlines()[-1][:300] if done.stderr else "died"}
        return json.loads(part.read_text())


def usable(reference: dict[str, Any]) -> bool:
    """Whether a reference came about and its chains agree."""
    return "sites" in reference and reference.get("converged", True)


def with_peers(names: Iterable[str]) -> list[str]:
    """The posteriors of the suite on which other libraries run."""
    return sorted(names)[::PEERS_EVERY]


def main(words: list[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file of all rows; what it has is kept")
    parser.add_argument("--references", type=Path, default=REFERENCES)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=400.0, help="of the processor, for one posterior")
    parser.add_argument("--only", nargs="*", help="names of posteriors")
    parser.add_argument("--again", action="store_true", help="measure rows of another state of the code anew")
    parser.add_argument("--peers", metavar="PYTHON", help="run other libraries, by this Python, and nothing else")
    parser.add_argument("--page", type=Path, help="write the page of what the file has, and run nothing")
    parser.add_argument("--one", help="used by the command itself: one posterior, in this process")
    parser.add_argument("--reference", type=Path, help="used by the command itself: the reference of that one")
    options = parser.parse_args(words)
    if options.page is not None:
        from provi_lab.posteriors.page import page

        options.page.write_text(page(json.loads(options.out.read_text())))
        return
    if options.one:
        options.out.write_text(json.dumps(measure(options.one, json.loads(options.reference.read_text()))))
        return
    _run_all(options)


def _run_all(options: Any) -> None:
    from provi_lab.posteriors.suite import EVERY, SUITE

    references = json.loads(options.references.read_text())
    rows = json.loads(options.out.read_text()) if options.out.exists() else {}
    asked = options.only or sorted(EVERY)
    possible = [name for name in asked if usable(references.get(name, {}))]
    for name in set(asked).difference(possible):
        _add(options.out, name, {"failed": "no reference whose chains agree"})
    if options.peers:
        command = [options.peers, "-m", "provi_lab.posteriors.peers", "--one"]
        possible = [name for name in possible if name in with_peers(SUITE)]
    else:
        command = [sys.executable, "-m", "provi_lab.posteriors.table", "--one"]
    column = "peers" if options.peers else "default"
    missing = [name for name in possible if column not in rows.get(name, {})]
    if options.again and not options.peers:
        state = _commit()
        missing = [name for name in possible if name in missing or not rows[name].get("where", "").endswith(state)]
    with ThreadPoolExecutor(options.processes) as pool:
        plan = {pool.submit(child, [*command, name], references[name], options.seconds): name for name in missing}
        for ready in as_completed(plan):
            name, cells = plan[ready], ready.result()
            _add(options.out, name, {"peers": cells} if options.peers else cells)
            print(name, json.dumps(cells)[:1500], flush=True)


def _add(path: Path, name: str, cells: dict[str, Any]) -> None:
    """The cells beside what the file has by now: rows and those of other libraries may be made at the same time.

    A row takes the place of the one before, of which only the cells of other libraries stay.
    """
    with (Path(tempfile.gettempdir()) / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = json.loads(path.read_text()) if path.exists() else {}
        rows[name] = {k: v for k, v in rows.get(name, {}).items() if k == "peers" or "peers" in cells} | cells
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
        fresh.replace(path)


if __name__ == "__main__":
    main()
