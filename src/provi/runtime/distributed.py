"""Many machines: one fit of several processes, each with rows of its own, by `jax.distributed`.

Every process runs the same program. What it computes with its rows is added up over all (gloo between CPUs, NCCL
between GPUs); everything else is computed by each in the same way, so that all take the same decisions. Only the first
process writes files. Where one is lost, the sums of the others fail, or its heartbeat stops: all end, and a checkpoint
goes on with any number of processes.
"""

import contextlib
import json
import os
import socket
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from provi.core.arguments import check_count, double_precision
from provi.core.devices import ROWS, Division, filled, placed_everywhere, with_division
from provi.data.tables import Share
from provi.runtime.checkpoint import fingerprint, previous_of

PORT = 29500
"""Of the first host, unless told otherwise: as torchrun's."""

_JOBS = 3000
"""Ports from `PORT` on that fits on one machine are spread over; beyond are those that systems give out themselves."""

_CONNECT_SECONDS, _HEARTBEAT_SECONDS, _LAST_SECONDS = 120, 30, 10
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
"""Where launchers write the place of a process. SLURM's last: under an mpirun of its own it is that of the mpirun."""

_MPI = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
)
"""What Open MPI, and MPICH and its relatives, say: of all processes the count and the place, of this machine's too."""

_ORTE = "OMPI_MCA_orte_hnp_uri"
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
"""What JAX needs to find the first of all processes by itself: of Open MPI before 5, and of srun."""

_SIGNS = ("gloo", "nccl", "coordination", "heartbeat", "connection reset", "connection closed", "socket closed")

LOSS = (
    "Another process of this fit was lost, or stopped with an error of its own, which it has said. All have ended. "
    "With checkpoint= and resume=True the fit goes on where it was, on any number of processes."
)


class ProcessLostError(RuntimeError):
    """A process of the fit is gone."""


def start(hosts: str | Sequence[str] | None = None, rank: int | None = None, *, port: int = PORT) -> None:
    """Join the processes of this program; once, before JAX computes anything.

    **Arguments:**

    - `hosts`: one for each process, the first also with its port, "a:29500,b"; a host with two processes twice.
    - `rank`: the place of this process among them, from 0; None where torchrun, mpirun or srun have started it.
    - `port`: of the first host.

    Without `hosts`: the environment of torchrun (MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK), else what SLURM's srun or
    an mpirun say. Open MPI from 5 on and MPICH do not say where the first process is: without `hosts` all must be on
    one machine, where they meet at MASTER_PORT, else `port`. A process that sends no sign of life for 30 seconds counts
    as lost.
    """
    where = _processes(hosts, rank, port)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    limits: dict[str, Any] = {
        "initialization_timeout": _CONNECT_SECONDS,
        "heartbeat_timeout_seconds": _HEARTBEAT_SECONDS,
        "shutdown_timeout_seconds": _LAST_SECONDS,
    }
    try:
        jax.distributed.initialize(**where, **limits)
    except RuntimeError as error:
        if "must be called before" in str(error) or "called once" in str(error):
            raise RuntimeError("start() comes first, and once: JAX has been at work in this process already.") from None
        raise ProcessLostError(f"The processes did not find each other at {where}: {error}") from None


def _processes(hosts: Any, rank: Any, port: int) -> dict[str, Any]:
    """What `jax.distributed.initialize` has to be told; nothing where it finds out by itself."""
    names = hosts.split(",") if isinstance(hosts, str) else list(hosts or ())
    environment, started_by = os.environ, next((found for found in _MPI if found[0] in os.environ), None)
    own = rank if rank is not None else next((environment[name] for name in _RANKS if name in environment), None)
    devices: dict[str, Any] = {}
    if names:
        if own is None:
            raise ValueError(
                "hosts needs rank, the place of this process among them, from 0: --rank K, or a launcher that says it "
                f"in one of {', '.join(_RANKS)}."
            )
        count, address = len(names), names[0].strip()
    elif "MASTER_ADDR" in environment and "WORLD_SIZE" in environment:
        count, own = check_count("WORLD_SIZE", int(environment["WORLD_SIZE"])), "0" if own is None else own
        address = f"{environment['MASTER_ADDR']}:{environment.get('MASTER_PORT', port)}"
    elif _ORTE in environment or _of_slurm(started_by):
        return {}
    elif started_by is not None and own is not None:
        count = check_count(started_by[0], int(environment[started_by[0]]))
        _check_one_machine(started_by, count)
        address = f"localhost:{_port_of_job(port, first=int(own) == 0)}"
        if started_by[3] in environment:  # a GPU for each, as JAX has it where it finds out by itself
            devices = {"local_device_ids": [int(environment[started_by[3]])]}
    else:
        raise ValueError(
            "No coordinator: a fit of several processes needs --hosts host1,host2 and --rank K, the variables "
            "MASTER_ADDR, WORLD_SIZE and RANK of torchrun, or to be started by srun or mpirun."
        )
    own = check_count("rank", int(own), minimum=0)
    if own >= count:
        raise ValueError(f"rank must be from 0 to {count - 1}, one for each of {count} processes, not {own}.")
    address = address if ":" in address else f"{address}:{port}"
    method = {"cluster_detection_method": "deactivate"}
    return {"coordinator_address": address, "num_processes": count, "process_id": own, **method, **devices}


def _of_slurm(started_by: Any) -> bool:
    """Whether srun has started this process itself, and not an mpirun in the processes of which SLURM counts others."""
    if not all(name in os.environ for name in _SLURM):
        return False
    return started_by is None or os.environ[started_by[0]] == os.environ["SLURM_NTASKS"]


def _port_of_job(port: int, first: bool) -> int:
    """The port at which the processes of an mpirun on one machine meet, seldom that of another mpirun there.

    JAX shares a port that is taken: processes of two fits would meet. So the first process looks whether it is.
    """
    job, given = os.environ.get("PMIX_NAMESPACE"), os.environ.get("MASTER_PORT")
    if given is not None:
        port = check_count("MASTER_PORT", int(given))
    elif job is not None and port == PORT:  # of Open MPI; MPICH has no name for a job
        port += zlib.crc32(job.encode()) % _JOBS
    if first:
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                free.bind(("", port))
            except OSError as error:
                raise ValueError(
                    f"Port {port} of this machine, where the processes of the fit meet, is taken ({error}), perhaps by "
                    f"another fit: set MASTER_PORT to another one for all of them."
                ) from None
    return port


def _check_one_machine(started_by: Any, count: int) -> None:
    """`ValueError` where processes of an mpirun are on other machines: it does not say where the first one is."""
    here = os.environ.get(started_by[2])
    if here != str(count):
        raise ValueError(
            f"mpirun has started {count} processes ({started_by[0]}), {here or 'an unknown number'} of them on this "
            f"machine ({started_by[2]}), and does not say where the first one is: name the host of each in the order "
            f"of their ranks, --hosts A,A,B,B; --rank is not needed."
        )


def started() -> bool:
    """Whether this process is one of several."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def share(num_rows: int) -> slice:
    """The rows of this process, of so many in all: equal parts for all devices, in order."""
    local, count = jax.local_device_count(), jax.process_count()
    part = local * -(-check_count("num_rows", num_rows) // (local * count))
    if (count - 1) * part >= num_rows:
        raise ValueError(f"{num_rows} rows are too few for {count} processes: take fewer.")
    return slice(part * jax.process_index(), min(part * (jax.process_index() + 1), num_rows))


@double_precision
def joined(target: Any) -> Any:
    """The model of all rows, from the model that each process has made of its own: `share` says which those are.

    The table is never brought together; responses, offsets and weights, one number a row, are.
    """
    from provi.targets.likelihoods.rows import RowLikelihood, row_numbers
    from provi.targets.linear_model import AbstractLinearModel

    if not isinstance(target, AbstractLinearModel):
        raise TypeError(f"target must be a linear model, such as LogisticRegression, not {type(target).__name__}.")
    rows, table = target.num_terms, target.design
    _check_alike(target)
    counts = [number for (number,) in exchanged([rows])]
    total, length = sum(counts), jax.local_device_count() * -(-sum(counts) // jax.device_count())
    wrong = [k for k, n in enumerate(counts) if n != min(length, total - k * length)]
    if wrong:
        raise ValueError(
            f"Process {wrong[0]} has {counts[wrong[0]]} of {total} rows, and should have those of "
            f"provi.distributed.share({total}): equal parts in order, {length} each but for the last."
        )
    division = Division(jax.sharding.Mesh(np.asarray(jax.devices()), (ROWS,)), total)
    parts = jax.make_array_from_process_local_data(
        division.place(ROWS), np.asarray(filled(table, length)), (length * jax.process_count(), table.shape[1])
    )
    likelihood, response = target.likelihood, _all_rows(target.response)
    if isinstance(likelihood, RowLikelihood):
        response = row_numbers(total).astype(target.dtype)
        tables = [likelihood.values, likelihood.offset, likelihood.weights]
        gathered = (None if x is None else jax.device_put(_all_rows(x)) for x in tables)
        make: Any = RowLikelihood
        likelihood = make(likelihood.inner, *gathered)
    response = placed_everywhere(filled(response, parts.shape[0]), division)
    fields = ["design", "response", "likelihood"]
    new = eqx.tree_at(lambda t: [getattr(t, f) for f in fields], target, [parts, response, likelihood])
    return with_division(new, division)


def _check_alike(target: Any) -> None:
    """`ValueError` unless the models of all processes differ in their rows only."""
    about = [type(target).__name__, target.dim, str(target.dtype), list(target.parameter_names)]
    everyone = exchanged([*about, fingerprint(target.prior)])
    for k, other in enumerate(everyone):
        if other[1] != about[1] or other[3] != about[3]:
            mine, theirs = set(map(str, about[3])), set(map(str, other[3]))
            apart = ", ".join(sorted(mine ^ theirs)[:6]) or "their order"
            raise ValueError(
                f"The columns differ: process {k} has {other[1]}, process {jax.process_index()} has {about[1]} "
                f"({apart}). Each must make its model of the same columns, encoded and scaled in the same way."
            )
        if other != everyone[0]:
            raise ValueError(f"The models differ: process {k} has another likelihood, floating type or prior.")


def exchanged(value: Any) -> list[Any]:
    """What every process has passed, plain data, in the order of the processes."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    return [json.loads(part.tobytes().decode()) for part in _parts(text)]


def _parts(array: np.ndarray) -> list[np.ndarray]:
    """Arrays of one axis, of any lengths, of all processes."""
    from jax.experimental.multihost_utils import process_allgather

    lengths = np.asarray(process_allgather(np.asarray([len(array)], np.int32))).ravel()
    longest = np.zeros(max(int(lengths.max()), 1), array.dtype)
    longest[: len(array)] = array
    everyone = np.asarray(process_allgather(longest)).reshape(len(lengths), -1)
    return [row[:length] for row, length in zip(everyone, lengths, strict=True)]


def _all_rows(column: Any) -> np.ndarray:
    return np.concatenate(_parts(np.asarray(column))) if jax.process_count() > 1 else np.asarray(column)


@double_precision
def gathered(column: np.ndarray) -> list[np.ndarray]:
    """A column of numbers, or of texts with None, of every process."""
    if jax.process_count() == 1:
        return [column]
    if column.dtype.kind == "f":
        return _parts(column)
    return [np.array(part, object) for part in exchanged(column.tolist())]


def this_share() -> Share:
    """This process as one of those that read a table together."""
    return Share(jax.process_index(), jax.process_count(), exchanged, gathered)


@contextlib.contextmanager
def checkpoint_of_first(path: Path) -> Iterator[Path | None]:
    """The checkpoint at `path` of the first process, as a file that this process can read; None where there is none."""
    if jax.process_count() == 1:
        yield path if path.exists() else None
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        for source, place in ((path, copy), (previous_of(path), previous_of(copy))):
            there = is_first() and source.exists()
            content = np.frombuffer(source.read_bytes(), np.uint8) if there else np.zeros(0, np.uint8)
            content = _parts(content)[0]
            if len(content):
                place.write_bytes(content.tobytes())
        yield copy if copy.exists() else None


@contextlib.contextmanager
def losses_named() -> Iterator[None]:
    """Inside, an error of the communication between processes is a `ProcessLostError` that says what to do."""
    try:
        yield
    except (ValueError, RuntimeError) as error:
        text = str(error).lower()
        if jax.process_count() > 1 and any(sign in text for sign in _SIGNS):
            raise ProcessLostError(LOSS) from error
        raise


def end_now(code: int) -> None:
    """End this process without waiting for others: they notice, and end as well."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
