"""What the page of the front-ends begins with."""

from provi_lab.common.page import About, Head, Lines, Settings, count, made_by, those, values

NOTICEABLE = 0.1


def _head(lines: Lines) -> Head:
    worst = {}
    for model in values(lines, "model"):
        own = those(lines, model=model)
        worst[model] = max(abs(float(line[name])) for line in own for name in ("mean_error", "sd_error"))
    good = [model for model, error in worst.items() if error <= NOTICEABLE]
    return Head(
        "largest error of a mean or an sd, in posterior sds of NUTS, over "
        f"{count(lines, 'front_end')} languages: "
        + ", ".join(f"{model} {error:.2g}" for model, error in worst.items()),
        f"a Gaussian is right to {NOTICEABLE:g} sds on {len(good)} of {len(worst)} models; on the others "
        "`fit.diagnose()` "
        f"must warn, and the tests below say whether it does",
    )


def _defaults() -> Settings:
    from provi_lab.papers.front_ends import models

    names = {models.EIGHT_SCHOOLS, models.HIERARCHICAL, models.POISSON}
    return {"models": names, "front-ends": set(models.FRONT_ENDS)}


FRONT_ENDS = About(
    name="front-ends",
    source="ours",
    claim="a model written in NumPyro, PyMC or Stan gives the same posterior, and where the best Gaussian is far from "
    "what NUTS finds the user is warned",
    head=_head,
    made=made_by({"models": "model", "front-ends": "front_end"}, {}),
    defaults=_defaults,
    ours=True,
)
