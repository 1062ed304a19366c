"""Interrupt a run and go on: the result is the same to the last bit as that of an uninterrupted one."""

from pathlib import Path

import numpy as np

import provi
from provi.data import breast_cancer

data = breast_cancer()
target = provi.targets.LogisticRegression(data.features[:, :6], data.response)
family = provi.families.Gaussian(6)
algorithm = provi.algorithms.ProxSGD(step_size=0.002, num_draws=5)

checkpoint = Path("out/run.safetensors")
checkpoint.parent.mkdir(exist_ok=True)
checkpoint.unlink(missing_ok=True)


def run(steps, **options):
    return provi.fit(target, family, algorithm, budget=provi.Budget(steps=steps), **options)


first = run(500, checkpoint=checkpoint)  # it could as well have been stopped by Ctrl-C, or by losing the machine
resumed = run(2000, checkpoint=checkpoint, resume=True)
whole = run(2000)
print(f"stopped after {first.num_steps} steps, resumed to {resumed.num_steps}")
same = np.array_equal(resumed.posterior.mean, whole.posterior.mean)
print("the same bits as without the interruption:", same)
print(whole.certificate.headline)
