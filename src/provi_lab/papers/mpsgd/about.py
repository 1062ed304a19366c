"""What the pages of paper 004's figures begin with."""

import statistics
from collections.abc import Callable
from pathlib import Path

from provi_lab.common.page import About, Head, Lines, Settings, last, made_by, mean, read_lines, those, values

READING = "corrected"


def _head(lines: Lines) -> Head:
    own = those(lines, reading=READING)
    start = next(float(line["gap"]) for line in own if int(float(line["step"])) == 0)
    gap, cpu = (
        {name: mean(last(those(own, method=name), column, "step")) for name in ("PSGD", "scaled PSGD", "MPSGD")}
        for column in ("gap", "cpu_seconds")
    )
    printed = {
        name: mean(last(those(lines, reading="as printed", method=name), "gap", "step")) for name in ("PSGD", "MPSGD")
    }
    helps, saves = gap["scaled PSGD"] < gap["PSGD"], gap["MPSGD"] <= 1.02 * gap["PSGD"]
    words = "holds" if helps and saves else "does not hold" if not helps and not saves else "holds in part"
    return Head(
        f"with the constants that the theorems need, the gap falls from {start:.4g} nats to {gap['PSGD']:.4g} "
        "without and "
        f"{gap['scaled PSGD']:.4g} with the preconditioner; mini-batches end at {gap['MPSGD']:.4g} in "
        f"{cpu['MPSGD']:.2g} s of CPU instead of {cpu['PSGD']:.2g}. With the constants as printed single draws end at "
        f"{printed['PSGD']:.4g} and mini-batches at {printed['MPSGD']:.4g}",
        f"{words}: mini-batches {'save time' if saves else 'cost progress'}, the preconditioner "
        f"{'helps' if helps else 'does not help'} at the corrected constants",
    )


def _defaults() -> Settings:
    from provi.families.bases import Laplace
    from provi_lab.papers.mpsgd.runs import METHODS, Problem

    problem = Problem("", Laplace(), 0, 1.0)
    return {"methods": set(METHODS), "gradients": problem.budget, "seeds": problem.num_seeds}


def _tables(name: str) -> Callable[[Path], dict[str, str]]:
    """The numbers of a page from its CSV file; its claims rest on the problem's spectrum and optimum as well."""

    def tables(folder: Path) -> dict[str, str]:
        from provi_lab.common.tables import cells_of, markdown_cells

        lines, rows = read_lines(folder / f"{name}.csv"), []
        for reading in values(lines, "reading"):
            for method in values(lines, "method"):
                own = those(lines, reading=reading, method=method)
                ends = last(own, "gap", "step")
                steps, spent = (max(int(line[column]) for line in own) for column in ("step", "gradients"))
                rows.append(
                    {
                        "constants": reading,
                        "method": method,
                        "draws": spent // steps,
                        "steps": steps,
                        "start gap": mean(float(line["gap"]) for line in those(own, step=0)),
                        "final gap": mean(ends),
                        "sd": statistics.stdev(ends),
                        "CPU [s]": mean(last(own, "cpu_seconds", "step")),
                    }
                )
        return {"numbers": markdown_cells(cells_of(rows))}

    return tables


def _about(number: int, base: str) -> About:
    return About(
        name=f"mpsgd-figure{number}",
        source=f"paper 004, Figure {number}",
        claim=f"with a {base} base, scaling the steps by the adapted preconditioner improves PSGD and MPSGD "
        "significantly, "
        f"and mini-batches save computing time",
        head=_head,
        made=made_by({"methods": "method"}, {"gradients": "gradients"}),
        defaults=_defaults,
        tables=_tables(f"mpsgd-figure{number}"),
        differs="the gap is exact, by quadrature, beside the paper's -ELBO of 100 draws. The paper's curves are of one "
        "run; Appendix C's smoothness constant is too small, so both it and the corrected one are drawn.",
    )


FIGURE1, FIGURE2, FIGURE3 = _about(1, "Laplace"), _about(2, "Normal"), _about(3, "Uniform")
