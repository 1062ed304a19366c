"""NumPyro: AutoMultivariateNormal, Trace_ELBO with ten particles."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi_lab.bench.peers.log_density import as_data
from provi_lab.bench.problems import LogisticProblem
from provi_lab.bench.protocol import Recorder, next_block

DRAWS = 10


@functools.cache
def _program(dim: int, rate: float) -> tuple[Any, Any]:
    """The SVI object, and `num_steps` updates as one compiled loop."""
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoMultivariateNormal

    def model(design: Any, response: Any, prior_scale: Any) -> None:
        z = numpyro.sample("z", dist.Normal(jnp.zeros(dim), prior_scale).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=design @ z).to_event(1), obs=response)

    guide = AutoMultivariateNormal(model, init_loc_fn=numpyro.infer.init_to_value(values={"z": jnp.zeros(dim)}))
    svi = SVI(model, guide, numpyro.optim.Adam(rate), Trace_ELBO(num_particles=DRAWS))

    @jax.jit
    def advance(state: Any, data: Any, num_steps: Any) -> Any:
        return jax.lax.fori_loop(0, num_steps, lambda _, s: svi.update(s, *data)[0], state)

    return svi, advance


def adam(problem: LogisticProblem, setting: float, record: Recorder) -> None:
    """Adam at the constant rate `setting`; the last iterate is the answer."""
    data = as_data(problem)
    svi, advance = _program(problem.dim, setting)
    state, steps = svi.init(jax.random.PRNGKey(0), *data), 0
    while not record.done:
        block = next_block(steps)
        state, steps = jax.block_until_ready(advance(state, data, jnp.asarray(block))), steps + block
        parameters = svi.get_params(state)
        scale = np.asarray(parameters["auto_scale_tril"])
        record(parameters["auto_loc"], scale @ scale.T, steps * DRAWS)
