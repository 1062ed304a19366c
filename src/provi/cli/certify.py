"""`provi certify`: how far an approximation from anywhere is from the best one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from provi.cli.errors import kept_for_the_answer
from provi.cli.model_file import is_model_file, load_target
from provi.cli.options import BudgetText, Confidence, Debug, Json, Quiet, Seed, read_budget


def certify(
    source: Annotated[
        str, typer.Argument(metavar="MODEL.py:NAME", help="A Python file, and the name of a target in it.")
    ],
    approximation: Annotated[
        Path,
        typer.Argument(
            metavar="Q", help="q.npz with arrays mean and covariance (or variances); or a file of provi fit --save."
        ),
    ],
    tol: Annotated[
        float | None,
        typer.Option(metavar="NATS", help="Certified means a gap of at most this, in nats. Default: any bound."),
    ] = None,
    confidence: Confidence = 0.99,
    compare: Annotated[
        bool, typer.Option(help="Bound the gap through a better member, at the cost of a fit: sharper.")
    ] = True,
    budget: BudgetText = None,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Certify a Gaussian approximation, however it was found.

    The coordinates of q are those of the target's vector, in the order of target.parameter_names.

    \b
    Examples:
      python -c "import numpy; numpy.savez('q.npz', mean=[0, 0], covariance=numpy.eye(2))"
      provi certify model.py:target q.npz
      provi certify model.py:target fit.safetensors --tol 0.01

    \b
    Exit code 0: a proven or statistical bound, within --tol if that is given. 1: no such
    bound; the last line says why. 2: bad input; one line says what.
    """
    # Here, as help and completion need not wait for JAX.
    from provi.certify import certify as run_certify
    from provi.cli.answer import Answer, deliver, judge, print_plain

    with kept_for_the_answer(as_json or quiet):
        limits = read_budget(budget)
        if tol is not None and not tol > 0:
            raise ValueError(f"--tol must be a positive number, not {tol}.")
        if not is_model_file(source):
            raise ValueError(f"{source} is not a model file: write MODEL.py:NAME.")
        q = read_approximation(approximation)
        target = load_target(source)
        certificate = run_certify(target, q, confidence, seed=seed, budget=limits, compare=compare)

    def show(console: Any) -> None:
        print_plain(console, f"{source}: {type(target).__name__}, {target.dim} parameters; q from {approximation}.", "")
        certificate.print(console)

    document = {
        "tol": tol,
        "seed": seed,
        "gap": certificate.gap,
        "kl": certificate.kl,
        "status": certificate.status,
        "answers": list(certificate.lines),
        "certificate": certificate.to_dict(),
    }
    raise typer.Exit(deliver(Answer(judge(certificate, tol, ""), document, show), as_json, quiet))


def read_approximation(path: Path) -> Any:
    """What `provi.certify` takes: the pair (mean, covariance or variances) of an .npz file, or a saved fit."""
    import numpy as np

    from provi.core.limits import check_memory
    from provi.result import load

    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    if path.suffix != ".npz":
        try:
            return load(path)
        except Exception as error:
            raise ValueError(
                f"{path} is neither an .npz file with arrays mean and covariance nor a fit saved by ProVI: {error}"
            ) from None
    try:
        with np.load(path, allow_pickle=False) as file:
            size = sum(member.file_size for member in file.zip.infolist())
            check_memory("its content", size, "give the mean and the variances of a smaller q")
            arrays = {name: np.asarray(file[name]) for name in file.files}
    except Exception as error:  # a damaged archive, or one with Python objects in it
        raise ValueError(f"{path} cannot be read as arrays: {error}") from None
    spread = next((arrays[name] for name in ("covariance", "variances") if name in arrays), None)
    if "mean" not in arrays or spread is None:
        held = ", ".join(map(repr, arrays)) or "nothing"
        raise ValueError(f"{path} must have arrays 'mean' and 'covariance' (or 'variances'); it holds {held}.")
    return arrays["mean"], spread
