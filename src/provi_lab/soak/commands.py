"""Fuzzed tables, formulas, saved fits and options through the command line: exit code 0, 1 or 2, and no traceback."""

import contextlib
import io
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from provi_lab.soak.damage import DAMAGES
from provi_lab.soak.tally import Tally, ViolationError

_HEAD = "a,b,y,c,g"
_CELLS = ("", "NA", "nan", "inf", "-inf", "1e309", "-1e-320", "0", "1", "true", "1,5", '"', "'", "=1+1", "\u202e", "é")
_CELLS += (
    "1_000",
    "0x10",
    "١٢",
    "x" * 5000,
    "\\",
    "\x00",
    "#",
    ";",
    "\t",
    "2026-02-30",
    "1e",
    "--",
    "None",
    "💥",
    "[1]",
)
_FORMULA_PARTS = ("c", "y", "a", "b", "g", "~", "+", "-", "*", ":", "|", "(1|g)", "(1 | a)", "(0 + a|g)", "0", "1", "(")
_FORMULA_PARTS += (
    ")",
    "log(",
    "np.exp(a)",
    "__import__('os')",
    "s(a)",
    "`a b`",
    "",
    " ",
    "~~",
    "a**9",
    "{",
    "1e999",
    "é",
)
_MODELS = ("logistic", "poisson", "linear", "negative-binomial", "ordinal", "multinomial", "weibull", "gp", "none such")
_UNCLEAR, _CLEAR = ("Error", "Exception", "Interrupt"), ("FormulaError", "DamagedFileError")
_OPTIONS = (
    ("--tol", "nan"),
    ("--tol", "-1"),
    ("--seed", "1e3"),
    ("--confidence", "2"),
    ("--budget", "0s"),
    ("--drop", "z"),
)
_OPTIONS += (("--prior-scale", "0"), ("--prior", "a=normal(0,"), ("--prior", "zz=normal(0,1)"), ("--positive", "?"))
_OPTIONS += (("--offset", "g"), ("--weights", "a"), ("--exposure", "b"), ("--columns", ""), ("--categorical", "a"))


@contextlib.contextmanager
def cases() -> Iterator[Callable[[np.random.Generator, Tally], str]]:
    """A case: one command with something broken in its file, its formula or its options."""
    from typer.testing import CliRunner

    from provi.cli import app

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("good.csv").write_text(table(np.random.default_rng(0)))

        def run(words: list[str]) -> str:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = CliRunner().invoke(app, words)
            return judged(words, result)

        good = ["fit", "good.csv", "-t", "y", "-m", "logistic", "--quiet", "--no-check", "--save", "good.fit"]
        run([*good, "--drop", "g"])
        run([*good[:-1], "other.fit", "--drop", "c"])
        try:
            yield lambda rng, tally: _case(rng, tally, run)
        finally:
            os.chdir(before)


def _case(rng: np.random.Generator, tally: Tally, run: Callable[[list[str]], str]) -> str:
    kind = str(rng.choice(["csv", "parquet", "saved fit", "formula", "options"], p=[0.35, 0.15, 0.3, 0.1, 0.1]))
    tally.counts[f"fuzzed: {kind}"] += 1
    quiet = ["--json"] if rng.random() < 0.5 else ["--quiet"]
    if kind == "saved fit":
        return f"{kind}: {run([*_saved_fit(rng), *quiet[: rng.integers(2)]])}"
    tail = ["--no-check", *quiet]
    if kind == "formula":
        formula = "c ~ " * int(rng.integers(2)) + " ".join(rng.choice(_FORMULA_PARTS, int(rng.integers(0, 6))))
        family = str(rng.choice(["poisson", "gaussian", "bernoulli", "none such"]))
        return f"{kind}: {run(['fit', 'good.csv', '--formula', formula, '--family', family, *tail])}"
    if kind == "options":
        chosen = [word for k in rng.integers(len(_OPTIONS), size=2) for word in _OPTIONS[int(k)]]
        return f"{kind}: {run(['fit', 'good.csv', '-t', 'y', '-m', 'logistic', *chosen, *tail])}"
    path = _broken_csv(rng) if kind == "csv" else _broken_parquet(rng)
    response, model = ("y", "logistic") if rng.random() < 0.5 else ("c", "poisson")
    if rng.random() < 0.2:
        response, model = str(rng.choice(["y", "c", "a", "g", "none", ""])), str(rng.choice(_MODELS))
    return f"{kind}: {run(['fit', path, '-t', response, '-m', model, *tail])}"


def judged(words: list[str], result: object) -> str:
    """The exit code as a text; a violation where it is another one, or an exception came through."""
    code, error = getattr(result, "exit_code", None), getattr(result, "exception", None)
    said = f"{getattr(result, 'stdout', '')}{getattr(result, 'stderr', '')}"
    shown = " ".join(words)[:300]
    if error is not None and not isinstance(error, SystemExit):
        raise ViolationError(f"provi {shown}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    if code not in (0, 1, 2):
        raise ViolationError(f"provi {shown}: exit code {code}")
    if "Traceback (most recent call last)" in said:
        raise ViolationError(f"provi {shown}: a traceback")
    unexpected = [name for name in re.findall(r"^Error: (\w+): ", said, re.MULTILINE) if name.endswith(_UNCLEAR)]
    if unexpected and unexpected[0] not in _CLEAR:
        raise ViolationError(f"provi {shown}: an error that nobody expected: {' '.join(said.split())[:300]}")
    if code == 2 and "Error" not in said:
        raise ViolationError(f"provi {shown}: exit code 2 without an error")
    if "--json" in words:
        try:
            json.loads(getattr(result, "stdout", ""))
        except ValueError:
            raise ViolationError(f"provi {shown}: standard output is not one JSON object") from None
    return f"exit code {code}"


def table(rng: np.random.Generator, rows: int = 16) -> str:
    """A good one: numbers a and b, labels y, counts c, groups g."""
    lines = [_HEAD]
    for k in range(rows):
        numbers = ",".join(f"{number:.3f}" for number in rng.normal(size=2))
        lines.append(f"{numbers},{int(rng.random() < 0.5)},{rng.poisson(2)},{'uvw'[k % 3]}")
    return "\n".join(lines) + "\n"


def _broken_csv(rng: np.random.Generator) -> str:
    lines = table(rng).splitlines()
    for _ in range(int(rng.integers(1, 4))):
        lines = lines or [""]
        way, row = int(rng.integers(8)), int(rng.integers(len(lines)))
        cells = lines[row].split(",")
        if way <= 2:
            cells[int(rng.integers(len(cells)))] = str(rng.choice(_CELLS))
            lines[row] = ",".join(cells)
        elif way == 3:
            lines[row] = ",".join([*cells, *cells] if rng.random() < 0.5 else cells[:-1])
        elif way == 4:
            lines[row] = lines[row].replace(",", str(rng.choice([";", "\t", "|", " ", ",,"])))
        elif way == 5:
            lines = lines[:row] if rng.random() < 0.5 else [*lines, *lines]
        elif way == 6:
            lines = [line.replace(lines[0].split(",")[0], str(rng.choice(["b", "", "y ", "ﬀ"]))) for line in lines]
        else:
            lines.insert(row, str(rng.choice(["", " ", ",,,,", "\ufeff", "a,b,y,c,g"])))
    content = str(rng.choice(["\n", "\r\n", "\r"], p=[0.8, 0.1, 0.1])).join(lines).encode("utf-8", "surrogatepass")
    if rng.random() < 0.15:
        content = rng.bytes(int(rng.integers(1, 400))) if rng.random() < 0.3 else content.decode().encode("utf-16")
    name = str(rng.choice(["t.csv", "t.tsv", "t.txt", "t.csv.gz", "t.json"], p=[0.8, 0.05, 0.05, 0.05, 0.05]))
    Path(name).write_bytes(content)
    return name


def _broken_parquet(rng: np.random.Generator) -> str:
    import pyarrow as pa
    from pyarrow import parquet

    rows = 16
    columns: dict[str, object] = {
        "a": rng.normal(size=rows),
        "b": pa.array(rng.normal(size=rows).tolist(), pa.float32()),
        "y": rng.random(rows) < 0.5,
        "c": pa.array(rng.poisson(2, rows).tolist(), pa.int16()),
    }
    odd = (
        pa.array([{"x": 1}] * rows),
        pa.array([[1, 2]] * rows),
        pa.array([b"\xff"] * rows),
        pa.array([None] * rows),
        pa.array([2**62 + k for k in range(rows)]),
        pa.array(["u", None] * (rows // 2)).dictionary_encode(),
        pa.array([10**6] * rows, pa.timestamp("us")),
        pa.array([float("nan"), 1e308] * (rows // 2)),
    )
    if rng.random() < 0.6:
        columns[str(rng.choice(["a", "b", "y", "c", "extra"]))] = odd[int(rng.integers(len(odd)))]
    stream = io.BytesIO()
    parquet.write_table(pa.table(columns), stream)
    content = stream.getvalue()
    if rng.random() < 0.5:
        damage = [DAMAGES["one bit"], DAMAGES["some bits"], DAMAGES["cut"], DAMAGES["zeros"], DAMAGES["grown"]]
        content = damage[int(rng.integers(len(damage)))](rng, content, content)
    Path("t.parquet").write_bytes(content)
    return "t.parquet"


def _saved_fit(rng: np.random.Generator) -> list[str]:
    """A command that reads a saved fit, which is damaged, and a table, which may be."""
    good, other = Path("good.fit").read_bytes(), Path("other.fit").read_bytes()
    how = str(rng.choice(list(DAMAGES)))
    Path("bad.fit").write_bytes(DAMAGES[how](rng, good, other))
    source = "good.csv" if rng.random() < 0.5 else _broken_csv(rng)
    fit = "bad.fit" if rng.random() < 0.7 else "good.fit"
    return [["predict", fit, source], ["compare", fit, "other.fit"], ["compare", "other.fit", fit]][
        int(rng.integers(3))
    ]
