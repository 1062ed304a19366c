"""What both GPflow peers share: one thread, double precision, and a Bernoulli-logit likelihood.

GPflow's own Bernoulli with a sigmoid takes log(1 - p), which is minus infinity from a logit of 37 on; at these priors
its Gauss-Hermite nodes lie far beyond that. The same density without the cancellation is given here, as a user would.
"""

import gpflow
import tensorflow as tf

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

VERSIONS = {"gpflow": gpflow.__version__, "tensorflow": tf.__version__}


class BernoulliLogit(gpflow.likelihoods.Bernoulli):
    """-log p = softplus((1 - 2y) f), by GPflow's Gauss-Hermite rule with 20 nodes."""

    def _scalar_log_prob(self, X, F, Y):
        return -tf.nn.softplus((1 - 2 * Y) * F)


def squared_exponential(length_scale: float, amplitude: float) -> gpflow.kernels.SquaredExponential:
    """GPflow's kernel with fixed parameters."""
    kernel = gpflow.kernels.SquaredExponential(variance=amplitude**2, lengthscales=length_scale)
    gpflow.set_trainable(kernel, False)
    return kernel
