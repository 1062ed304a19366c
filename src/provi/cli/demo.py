"""The demonstration behind `provi demo` and `make demo`."""

from pathlib import Path

from rich.console import Console

from provi.data.loaders import breast_cancer
from provi.fit import fit
from provi.targets.regressions import LogisticRegression


def demo(output: Path, seed: int = 0) -> Path:
    """Bayesian logistic regression on the breast-cancer data: summary, ELBO, certificate, picture."""
    console = Console()
    data = breast_cancer()
    console.print(f"Breast-cancer data: {data.features.shape[0]} patients, {data.features.shape[1]} measurements.")
    console.print("Bayesian logistic regression, prior N(0, 1) on every coefficient; Gaussian approximation.\n")
    target = LogisticRegression(data.features, data.response, prior_scale=1.0, intercept=True, names=data.names)
    result = fit(target, seed=seed)
    console.print(result.posterior.summary().table())
    console.print(f"\nELBO {result.elbo} nats (in closed form, with a bound on its error)")
    console.print(
        f"{result.num_steps} natural-gradient steps, {result.gradient_evaluations} passes over the data with the "
        f"certificate's, {result.seconds:.1f} s with compilation.\n"
    )
    result.certificate.print(console)
    output.mkdir(parents=True, exist_ok=True)
    picture = output / "demo.png"
    result.plot().savefig(picture, dpi=150)
    console.print(f"\nPicture: {picture}")
    return picture
