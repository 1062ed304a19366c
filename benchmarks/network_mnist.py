"""LeNet-5 on MNIST by paced MISSO with noise of its own for each image: -ELBO, accuracy, calibration, by seed.

    PROVI_DATA=... python benchmarks/network_mnist.py [--noise local] [--rate 0.006] [--seeds 0 1 2] [--output FILE]

55,000 images, 20 epochs, blocks of 128, a sigma for each weight, prior N(0, I): the setting of `provi reproduce
misso-figure2a` but for the noise, local reparameterisation of linear layers and Flipout of convolutions where that has
plain weights. Scores on the 10,000 test images with 32 draws. Rows are added to the file, one a seed.
"""

import argparse
import json
import time
from pathlib import Path

import provi
from provi.models import BayesianNetwork
from provi.nets import LeNet5
from provi_lab.bench.record import make_record


def measure(seed: int, options: argparse.Namespace) -> dict[str, float | int | str]:
    """One training and its scores."""
    data = provi.data.load("mnist").arrays
    images, labels = data["X_train"][5000:], data["y_train"][5000:]
    settings = {"noise": options.noise, "rate": options.rate, "epochs": options.epochs}
    began = time.perf_counter(), time.process_time()
    model = BayesianNetwork(LeNet5, random_state=seed, **settings).fit(images, labels)
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    scores = {name: float(value) for name, value in model.evaluate(data["X_test"], data["y_test"]).items()}
    negative_elbo = -float(model.elbo_) / len(labels)
    return {"seed": seed, **settings, "negative_elbo": negative_elbo, **scores, "seconds": wall, "cpu_seconds": cpu}


def main() -> None:
    """The seeds one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", default="local")
    parser.add_argument("--rate", type=float, default=0.006)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    for seed in options.seeds:
        row = measure(seed, options)
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
        if options.output:
            known = json.loads(options.output.read_text())["rows"] if options.output.exists() else []
            options.output.write_text(json.dumps(make_record("network-mnist", [*known, row]), indent=1) + "\n")


if __name__ == "__main__":
    main()
