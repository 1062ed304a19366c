"""One Stan program for all tests, since each takes half a minute to compile; the data switch its parts on and off."""

import numpy as np

CODE = """
data {
  int<lower=0> N;
  int<lower=1> P;
  matrix[N, P] X;
  array[N] int<lower=0, upper=1> y;
  int<lower=0, upper=1> K;  // 0: a logistic regression, and tau; 1: with a parameter of every kind
  real limit;
}
parameters {
  vector[P] beta;
  real<lower=0> tau;
  array[K] real<lower=0, upper=1> share;
  array[K] real<lower=1> above;
  array[K] simplex[3] weights;
  array[K] ordered[2] cuts;
  array[K] cholesky_factor_corr[2] root;
  array[K] matrix[2, 3] loadings;
  array[2 * K] vector[3] effects;
}
transformed parameters {
  vector[P] scaled = tau * beta;
}
model {
  if (beta[1] > limit) reject("beta[1] is beyond the limit ", limit);
  y ~ bernoulli_logit(X * beta);
  beta ~ normal(0, 1);
  tau ~ gamma(2, 3);
  share ~ beta(2, 3);
  above ~ pareto(1, 4);
  for (k in 1:K) {
    weights[k] ~ dirichlet([2, 3, 4]');
    cuts[k] ~ normal(0, 2);
    root[k] ~ lkj_corr_cholesky(3);
    to_vector(loadings[k]) ~ normal([1, 2, 3, 4, 5, 6]', 1);
  }
  for (k in 1:(2 * K)) effects[k] ~ normal(k, [1, 2, 3]');
}
generated quantities {
  real total = sum(beta);
  vector[N] log_lik;
  for (n in 1:N) log_lik[n] = bernoulli_logit_lpmf(y[n] | X[n] * beta);
  array[N] int y_rep = bernoulli_logit_rng(X * beta);
}
"""


def stan_data(kinds: int, limit: float = 1e300, rows: int = 40) -> dict:
    """Data of the program, with a parameter of every kind if `kinds` is 1."""
    random = np.random.default_rng(3)
    features = random.normal(size=(rows, 2))
    response = random.random(rows) < 1 / (1 + np.exp(-features @ np.array([1.0, -0.5])))
    return {"N": rows, "P": 2, "X": features, "y": response.astype(int), "K": kinds, "limit": limit}
