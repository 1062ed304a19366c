"""A stand-in for BridgeStan with the documented interface of its `StanModel`, for the density of two parameters.

`mu` is real and `tau` positive, tau = exp(u); mu ~ N(0, 1), tau ~ Exponential(1), y ~ N(mu, 1). Like BridgeStan's, its
methods raise RuntimeError where Stan does, here for mu > 50, and refuse arguments that are not documented.
"""

import json
import sys
import types
from pathlib import Path

import numpy as np


class StanRNG:
    """A stream of random numbers."""

    def __init__(self, seed: int):
        self.random = np.random.default_rng(seed)


class StanModel:
    """`bridgestan.StanModel` of the program above."""

    def __init__(self, model_lib, data="", *, seed=1234, stanc_args=(), make_args=(), warn=True):
        self.code = Path(model_lib).read_text()
        self.data = np.asarray(json.loads(data)["y"]) if "y" in json.loads(data) else None
        self.exact = "exact" in self.code
        if "broken" in self.code:
            raise RuntimeError("Command make failed with code 2.\nstderr:\nSyntax error in 'model.stan', line 3")
        if self.data is None:
            raise RuntimeError("variable does not exist; processing stage=data initialization; variable name=y")

    def model_info(self):
        return f"STAN_THREADS=true\nBRIDGESTAN_AD_HESSIAN={str(self.exact).lower()}"

    def param_unc_names(self):
        return ["mu", "tau"]

    def param_names(self, *, include_tp=False, include_gq=False):
        return ["mu", "tau"] + include_tp * ["twice"] + include_gq * ["log_lik.1", "log_lik.2", "y_rep.1", "y_rep.2"]

    def param_constrain(self, theta_unc, *, include_tp=False, include_gq=False, out=None, rng=None):
        mu, tau = self._check(theta_unc)[0], np.exp(theta_unc[1])
        likelihood = -0.5 * (self.data - mu) ** 2 - 0.5 * np.log(2 * np.pi)
        drawn = mu + rng.random.standard_normal(2) if include_gq else []
        return np.array([mu, tau] + include_tp * [2 * mu] + (list(likelihood) + list(drawn)) * include_gq)

    def new_rng(self, seed):
        return StanRNG(seed)

    def param_unconstrain_json(self, theta_json, out=None):
        values = json.loads(theta_json)
        if values["tau"] <= 0:
            raise RuntimeError("lb_free: Lower bounded variable is -1, but must be greater than or equal to 0")
        return np.array([values["mu"], np.log(values["tau"])])

    def log_density(self, theta_unc, *, propto=True, jacobian=True):
        return self.log_density_gradient(theta_unc, propto=propto, jacobian=jacobian)[0]

    def log_density_gradient(self, theta_unc, *, propto=True, jacobian=True, out=None):
        assert not propto and jacobian
        mu, u = self._check(theta_unc)
        residual = self.data - mu
        value = -0.5 * mu**2 - 0.5 * np.sum(residual**2) - 1.5 * np.log(2 * np.pi) + u - np.exp(u)
        return value, np.array([np.sum(residual) - mu, 1 - np.exp(u)])

    def log_density_hessian_vector_product(self, theta_unc, v, *, propto=True, jacobian=True, out=None):
        assert self.exact
        value, _ = self.log_density_gradient(theta_unc, propto=propto, jacobian=jacobian)
        return value, np.array([-3.0 * v[0], -np.exp(theta_unc[1]) * v[1]])

    @staticmethod
    def _check(theta_unc):
        if theta_unc[0] > 50:
            raise RuntimeError("log_density_gradient() failed with exception: mu is beyond 50")
        return theta_unc


StanModel.__module__ = "bridgestan.model"


def install_stand_in(monkeypatch, sources: bool = True) -> None:
    """Make `import bridgestan` find this, with or without the sources that it compiles."""

    def verify_bridgestan_path(path):
        if path != "somewhere":
            raise ValueError("BridgeStan folder does not exist!")

    package, compiling = types.ModuleType("bridgestan"), types.ModuleType("bridgestan.compile")
    package.__dict__.update(StanModel=StanModel, compile=compiling)
    compiling.__dict__.update(
        get_bridgestan_path=lambda download=True: "somewhere" if sources else "",
        verify_bridgestan_path=verify_bridgestan_path,
    )
    monkeypatch.setitem(sys.modules, "bridgestan", package)
    monkeypatch.setitem(sys.modules, "bridgestan.compile", compiling)
