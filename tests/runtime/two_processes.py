"""One of the processes of `test_devices.py` (rank, port, folder): a fit, then one that lasts until it is killed."""

import json
import os
import sys
from pathlib import Path

import numpy as np

import provi

STEPS = 400


def data():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((101, 2))
    return X, (rng.random(101) < 1 / (1 + np.exp(-X.sum(axis=1)))).astype(float)


def slow(target, checkpoint):
    """Small steps: between two processes some milliseconds each."""
    options = {"algorithm": provi.algorithms.ProxSGD(0.01, 2), "budget": provi.Budget(steps=STEPS)}
    return provi.fit(target, **options, checkpoint=checkpoint, resume=True, checkpoint_seconds=0.1, progress=False)


if __name__ == "__main__":
    rank, port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    provi.distributed.start(["localhost", "localhost"], rank, port=port)
    X, y = data()
    own = provi.distributed.share(len(X))
    try:
        provi.distributed.joined(provi.targets.LogisticRegression(X[own][:, : 1 + rank], y[own]))
    except ValueError as error:
        print("refused:", error)
    target = provi.distributed.joined(provi.targets.LogisticRegression(X[own], y[own]))
    fit = provi.fit(target, progress=False)
    found = {"mean": fit.posterior.mean.tolist(), "gap": fit.certificate.gap, "elbo": fit.elbo.value, "rows": own.stop}
    print(json.dumps(found), flush=True)
    try:
        slow(target, folder / "run.ckpt")
    except provi.runtime.distributed.ProcessLostError as error:
        print("lost:", error, flush=True)
        os._exit(75)
