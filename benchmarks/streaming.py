"""Logistic regression on a table in Parquet that is never in memory: memory, proof, and time a pass.

    python benchmarks/streaming.py --rows 10000000 --columns 100 --folder /somewhere/with/5GB --record

makes the data (float32 columns, some files), fits them in a process of its own, and prints peak resident memory, the
proven gap and the passes over the data that it took after the warm start, and the time of a pass beside that of
reading the files and of one weighted X'X per block with NumPy, measured in the same process by turns.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from provi_lab.bench.record import make_record

_FILES, _ROWS_AT_ONCE = 4, 65_536


def make(folder: Path, rows: int, columns: int) -> list[Path]:
    """Parquet files of standard normal float32 columns, correlated in pairs, and labels of a logistic model."""
    import pyarrow
    from pyarrow import parquet

    truth = np.random.default_rng(1).standard_normal(columns).astype(np.float32) / np.sqrt(columns)
    files = [folder / f"part-{k}.parquet" for k in range(_FILES)]
    for k, file in enumerate(files):
        rng, writer = np.random.default_rng([2, k]), None
        left = rows * (k + 1) // _FILES - rows * k // _FILES
        while left:
            count = min(left, 2 * _ROWS_AT_ONCE)
            X = rng.standard_normal((columns, count), np.float32)
            X[1::2] += 0.5 * X[: columns // 2 * 2 : 2]
            y = (rng.random(count) < 1 / (1 + np.exp(-(truth @ X)))).astype(np.float32)
            table = pyarrow.table({**{f"x{i}": X[i] for i in range(columns)}, "y": y})
            # Random numbers have no dictionary; the rest are the writer's own settings.
            writer = writer or parquet.ParquetWriter(file, table.schema, use_dictionary=False)
            writer.write_table(table)
            left -= count
        writer.close()
    return files


def floor(files: list[Path], columns: int) -> float:
    """Seconds to read the files once and to form X'WX of every block of rows, with NumPy; each in turn."""
    from pyarrow import parquet

    began, total = time.perf_counter(), np.zeros((columns, columns))
    weight = np.random.default_rng(3).random(_ROWS_AT_ONCE).astype(np.float32)
    block, weighted = (np.empty((columns, _ROWS_AT_ONCE), np.float32) for _ in range(2))
    for file in files:
        for batch in parquet.ParquetFile(file).iter_batches(_ROWS_AT_ONCE):
            count = batch.num_rows
            for i in range(columns):
                block[i, :count] = batch.column(i).to_numpy()
            np.multiply(block[:, :count], weight[:count], out=weighted[:, :count])
            total += weighted[:, :count] @ block[:, :count].T
    return time.perf_counter() - began


def measure(files: list[Path], columns: int, memory: int, tol: float, repeats: int) -> dict:
    """The fit, and passes by turns with the floor."""
    from threadpoolctl import threadpool_limits

    import provi

    began = time.perf_counter()
    target = provi.targets.LogisticRegression.from_parquet(files, target="y", memory=memory)
    surveyed = time.perf_counter() - began
    record = {"survey_seconds": surveyed, "memory_argument": memory, "tile_rows": target.stream.tile_rows}
    opened = count_passes(target)
    began = time.perf_counter()
    fit = provi.fit(target, tol=tol, progress=False)
    record |= {
        "fit_seconds": time.perf_counter() - began,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "gap": fit.certificate.gap,
        "status": fit.certificate.status,
        "steps": fit.num_steps,
        # The first reading takes the sample of the warm start.
        "passes_after_warm_start": len(opened) - 1,
        "message": fit.message,
    }
    step = natural_gradient_pass(target, fit)
    step()  # compiles
    passes, floors = [], {1: [], 2: []}
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        passes.append(time.perf_counter() - began)
        for threads in (1, 2):  # of BLAS: on a busy machine two of them wait for each other
            with threadpool_limits(threads, "blas"):
                floors[threads].append(floor(files, columns))
    return record | {
        "pass_seconds": min(passes),
        "floor_seconds": min(min(times) for times in floors.values()),
        "ratio": min(passes) / min(min(times) for times in floors.values()),
        "all_pass_seconds": passes,
        "all_floor_seconds_by_blas_threads": floors,
    }


def count_passes(target) -> list[int]:
    """A list that grows by one whenever a reading of all rows begins."""
    rows, opened = target.stream.rows, []
    plain = type(rows.source).chunks

    def chunks(source, size):
        opened.append(size)
        return plain(source, size)

    type(rows.source).chunks = chunks
    return opened


def natural_gradient_pass(target, fit):
    """One evaluation of the ELBO with its gradient and curvature at the fit: what a step of the method does."""
    import jax
    import jax.numpy as jnp

    from provi.algorithms.natural.natural_gradient import evaluate
    from provi.core.compilation import program_jit

    family, point = fit.posterior.family, fit.posterior.point

    @program_jit
    def once(model, at):
        return evaluate(model, family, at, None, model.prior.whitener(), jnp.ones((), bool))

    def step() -> None:
        with jax.enable_x64(True):
            jax.block_until_ready(once(target, point))

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--memory", type=int, default=2**29, help="bytes, memory= of the target")
    parser.add_argument("--tol", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=None, help="where to make the data; they are removed at the end")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--measure", type=Path, default=None, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure is not None:
        files = sorted(given.measure.glob("*.parquet"))
        print(json.dumps(measure(files, given.columns, given.memory, given.tol, given.repeats)))
        return
    folder = Path(tempfile.mkdtemp(prefix="provi-streaming-", dir=given.folder))
    try:
        began = time.perf_counter()
        files = make(folder, given.rows, given.columns)
        size = sum(file.stat().st_size for file in files)
        print(f"{given.rows} x {given.columns}, {size / 2**30:.2f} GiB, made in {time.perf_counter() - began:.0f} s")
        # A process of its own: the peak of memory is that of the fit, not of making the data.
        command = [sys.executable, __file__, "--measure", str(folder), "--columns", str(given.columns)]
        command += ["--memory", str(given.memory), "--tol", str(given.tol), "--repeats", str(given.repeats)]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = json.loads(told.splitlines()[-1])
    finally:
        shutil.rmtree(folder)
    measured = {"rows": given.rows, "columns": given.columns, "bytes": size, "cores": os.cpu_count(), **found}
    record = make_record("streaming", []) | measured
    print(json.dumps(record, indent=1))
    print(
        f"peak {found['peak_gib']:.2f} GiB; gap {found['gap']:.3g} ({found['status']}) after "
        f"{found['passes_after_warm_start']} passes; a pass {found['pass_seconds']:.2f} s, reading and X'WX "
        f"{found['floor_seconds']:.2f} s, ratio {found['ratio']:.2f}"
    )
    if given.record:
        out = Path(__file__).parent / "results" / f"{record['date']}-streaming.json"
        out.write_text(json.dumps(record, indent=1) + "\n")
        print(f"Wrote {out.name}.")


if __name__ == "__main__":
    main()
