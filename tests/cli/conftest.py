"""What the tests of the command line share: a runner, tables on disk, a model file."""

import csv

import numpy as np
import pytest
from typer.testing import CliRunner

from provi.cli import app


@pytest.fixture
def provi(tmp_path, monkeypatch):
    """`provi("fit", ...)` runs the command in an empty folder; the result has exit_code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def write(tmp_path, monkeypatch):
    """`write(name, text)` writes a file into the folder that commands run in."""
    monkeypatch.chdir(tmp_path)

    def write_text(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return name

    return write_text


@pytest.fixture(scope="session")
def patients():
    """Columns by name: two of numbers, a category of three levels, labels, counts, a real response."""
    rng = np.random.default_rng(7)
    n = 60
    age, dose = rng.normal(50, 10, n).round(2), rng.gamma(2.0, 3.0, n).round(3)
    ward = rng.choice(["north", "east", "south"], n)
    eta = (age - 50) / 10 + 0.8 * (ward == "south") - 0.1 * dose
    return {
        "age": age,
        "ward": ward,
        "dose": dose,
        "died": np.where(rng.random(n) < 1 / (1 + np.exp(-eta)), "yes", "no"),
        "visits": rng.poisson(np.exp(1 + 0.3 * eta)),
        "score": (eta + rng.normal(size=n)).round(4),
    }


@pytest.fixture
def patients_csv(patients, tmp_path):
    """The patients as patients.csv in the folder that commands run in."""
    with (tmp_path / "patients.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(patients)
        writer.writerows(zip(*patients.values(), strict=True))
    return "patients.csv"


@pytest.fixture(scope="session")
def design(patients):
    """The features by hand: age and dose standardised, ward against 'east'; in the order of the file."""

    def standard(x):
        return (x - x.mean()) / x.std()

    columns = [standard(patients["age"]), patients["ward"] == "north", patients["ward"] == "south"]
    names = ("age", "ward=north", "ward=south", "dose")
    return np.stack([*columns, standard(patients["dose"])], axis=1).astype(float), names


MODEL = """
import jax.numpy as jnp
import numpy as np
import provi

rng = np.random.default_rng(0)
X, y = rng.normal(size=(30, 2)), rng.random(30) < 0.5
target = provi.targets.LogisticRegression(X, y, names=("a", "b [kg]"))
print("a line that the model prints")

def make():
    return target

def undeclared():
    return provi.targets.LogDensity(lambda z: -0.5 * jnp.sum(z**2) - jnp.sum(jnp.sqrt(1 + z**2)), 2)

def not_concave():
    return provi.targets.LogDensity(lambda z: -0.5 * z[0] ** 2 - 0.5 * (z[1] - z[0] ** 2) ** 2, 2)

def density(z):
    return -0.5 * jnp.sum(z**2)

def failing():
    scale = 0
    return 1 / scale

def untraceable():
    return provi.targets.LogDensity(
        lambda z: jnp.sum(z) / no_such_name,
        2,
    )

def leaving():
    raise SystemExit(3)

number = 5

def leaving_late():
    return provi.targets.LogDensity(lambda z: leaving(), 2)

def asking():
    return input()

def positive():
    def density(z):
        return 3.0 * jnp.log(z["scale"]) - 5.0 * z["scale"]
    return provi.targets.LogDensity(density, {"scale": 1.0}, constraints={"scale": "positive"})

import numpyro

def numpyro_model(x):
    numpyro.sample("z", numpyro.distributions.Normal(x, 1.0))
"""


@pytest.fixture
def model_file(write):
    """model.py with targets and with what is none."""
    return write("model.py", MODEL)


@pytest.fixture(scope="session")
def model_data():
    """X and y of model.py."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(30, 2)), rng.random(30) < 0.5


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly(quick_compilation):
    """Short runs on small data, most of whose time would be XLA's; in processes of their own, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
        yield
