"""How good is it: exact ELBOs and optima where there are any, importance sampling, k-hat, gradient noise."""

from provi.diagnostics.exact import exact_negative_elbo
from provi.diagnostics.importance import ImportanceDiagnostics, importance_diagnostics
from provi.diagnostics.loo import LeaveOneOut, leave_one_out
from provi.diagnostics.noise_audit import NoiseAudit, audit_gradient_noise
from provi.diagnostics.optimum import Optimum, linear_model_optimum
from provi.diagnostics.pareto import pareto_k

__all__ = [
    "ImportanceDiagnostics",
    "LeaveOneOut",
    "NoiseAudit",
    "Optimum",
    "audit_gradient_noise",
    "exact_negative_elbo",
    "importance_diagnostics",
    "leave_one_out",
    "linear_model_optimum",
    "pareto_k",
]
