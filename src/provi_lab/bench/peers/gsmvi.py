"""GSM-VI (Modi et al., 2023): Gaussian score matching."""

# Where the library is not installed, pyright takes this module for it.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false

import functools
from typing import Any

import jax

from provi_lab.bench.peers.log_density import as_data, log_density
from provi_lab.bench.problems import LogisticProblem
from provi_lab.bench.protocol import Finished, Recorder


@jax.jit
def _scores(data: Any, draws: Any) -> Any:
    return jax.vmap(jax.grad(functools.partial(log_density, *data)))(draws)


def gsm(problem: LogisticProblem, setting: float, record: Recorder) -> None:
    """`gsmvi.gsm.GSM.fit` from N(0, I) with batches of `setting` draws, watched by a monitor."""
    from gsmvi.gsm import GSM

    data = as_data(problem)

    class Watch:
        checkpoint = 1

        def __call__(self, step: int, point: Any, *_: Any, **__: Any) -> None:
            if record.due(step):
                mean, covariance = jax.block_until_ready(point)
                record(mean, covariance, step * setting)
                if record.done:
                    raise Finished

    method = GSM(problem.dim, functools.partial(log_density, *data), functools.partial(_scores, data))
    method.fit(jax.random.PRNGKey(0), batch_size=int(setting), niter=10**9, verbose=False, monitor=Watch())
