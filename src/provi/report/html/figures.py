"""The pictures of an HTML report: matplotlib figures as inline SVG that takes the page's colours, with text for those
who do not see them."""

import dataclasses
import io
import re
import warnings
from typing import Any
from xml.etree import ElementTree

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from provi.report.plots.fitted import (
    plot_function,
    plot_influence,
    plot_reliability,
    plot_replicated,
    plot_residuals,
    response_scale,
)
from provi.report.plots.marginals import NestedMarginals, nested_marginals
from provi.report.plots.posterior import (
    LARGEST_INTERVALS,
    LARGEST_MATRIX,
    LARGEST_PANELS,
    draw_densities,
    draw_marginals,
    plot_correlation_matrix,
    read_marginals,
    shortened,
)
from provi.report.plots.run import plot_bound, plot_trace, theorem_on_gap
from provi.report.style import INK, PALETTE, number, upper_bound

_INTERVALS_AT_ONCE, _DENSITIES_AT_ONCE = 20, 6

# What matplotlib writes, and the variable of the page's style sheet that stands for it in light and dark.
_COLOURS = {colour.lower(): f"var(--plot-{k})" for k, colour in enumerate(PALETTE)} | {
    INK.lower(): "var(--ink)",
    "#000000": "var(--ink)",
    "#666666": "var(--muted)",
    "#999999": "var(--line)",
    "#ffffff": "var(--card)",
}


@dataclasses.dataclass(frozen=True)
class Picture:
    """A drawing and what is said below it; `svg` is safe to put into the page as it is."""

    svg: Markup
    caption: str


def run_pictures(fit: Any) -> list[Picture]:
    """The ELBO with the certified band, and the gap with the bounds on it; none for a run without records."""
    if not len(fit.history) or not np.isfinite(fit.history["elbo"]).any():
        return []
    elbo, certificate = fit.history["elbo"], fit.certificate
    first = float(elbo[np.isfinite(elbo)][0])
    known = "no bound is known"
    if certificate.gap is not None:
        known = f"the best is at most {number(certificate.gap)} nats above"
    caption = "The ELBO along the run."
    if certificate.gap is not None:
        caption += f" The best one of the family lies in the green band ({certificate.status})."
    if certificate.posterior is not None:
        caption += f" The log evidence lies in the pink one ({certificate.posterior.status})."
    alt = f"Line chart of the ELBO: from {number(first, 6)} to {number(fit.elbo.value, 6)} nats; {known}."
    pictures = [Picture(inline_svg(plot_trace(fit), "trace", alt), caption)]
    bound = theorem_on_gap(fit)
    if (certificate.gap is None and bound is None) or len(elbo) < 2 or not np.isfinite(fit.elbo.value):
        return pictures
    alt = f"Line chart on a logarithmic scale: distance from the best ELBO at each record. At the end {known}."
    caption = "How far each record was from the best member of the family: at most the line, at least the dots."
    if certificate.kl is not None:
        alt += f" There the KL to the posterior is at most {upper_bound(certificate.kl)} nats."
        caption += " Dash-dotted: how far it was from the posterior itself, at most."
    if bound is not None:
        alt += f" The theorem promised an expected gap of at most {upper_bound(bound)} nats."
        caption += f" Dashed: {certificate.theorem}, known before the run and in expectation over runs."
    return [*pictures, Picture(inline_svg(plot_bound(fit, fit.guarantee), "bound", alt), caption)]


def marginals_pictures(posterior: Any, reference: Any = None, summarise: Any = None) -> list[Picture]:
    """Intervals of the parameters, beside those of reference draws if there are any; two pictures of many.

    Of a latent Gaussian model one of the fixed effects and one of the hyperparameters, by `summarise` if given.
    """
    groups = nested_marginals(posterior, summarise) if reference is None else ()
    if groups:
        return [
            picture for k, group in enumerate(groups) for picture in _interval_pictures(group, None, f"marginals-{k}-")
        ]
    return _interval_pictures(*read_marginals(posterior, reference, LARGEST_INTERVALS), "marginals")


def _interval_pictures(marginals: Any, draws: Any, stem: str) -> list[Picture]:
    shown, pictures = min(len(marginals.names), LARGEST_INTERVALS), []
    beside = "" if draws is None else " beside those of the reference draws"
    for part in _parts(shown, _INTERVALS_AT_ONCE):
        count = part.stop - part.start
        alt = f"Interval plot of {count} parameters{beside}; the numbers are in the table of parameters."
        caption = _range_words(part, marginals.total)
        if part.start == 0:
            caption += "Means (dots), central 50% intervals (thick) and 94% intervals (thin)."
            caption += "" if draws is None else " Orange with squares: the reference draws."
        svg = inline_svg(draw_marginals(marginals, draws, part), f"{stem}{part.start}", alt)
        pictures.append(Picture(svg, caption))
    return pictures


def densities_pictures(posterior: Any, reference: Any = None, names: Any = None) -> list[Picture]:
    """The marginal densities of the first parameters, over histograms of reference draws if there are any.

    Of a latent Gaussian model only of those in `names`: its own intercept is that at the covariates' means.
    """
    marginals, draws = read_marginals(posterior, reference, LARGEST_PANELS)
    if isinstance(marginals, NestedMarginals) and names is not None:
        kept = tuple(name for name in marginals.names if name in names)
        marginals = dataclasses.replace(marginals, names=kept, total=len(kept), coordinate=np.full(len(kept), -1))
    beside = "" if draws is None else ", over histograms of the reference draws"
    pictures = []
    for part in _parts(len(marginals.names), _DENSITIES_AT_ONCE):
        count = part.stop - part.start
        alt = f"Marginal densities of {count} parameters{beside}; the numbers are in the table of parameters."
        caption = _range_words(part, marginals.total)
        if part.start == 0:
            caption += "Marginal densities of the approximation; steps: a histogram of its draws."
            caption += "" if draws is None else " Orange: the reference draws."
            if any(marginals.band(k) is not None for k in range(len(marginals.names))):
                caption += " Green: between these the posterior has its share of each bin; see the bound on the KL."
        svg = inline_svg(draw_densities(marginals, draws, part, columns=2), f"densities{part.start}", alt)
        pictures.append(Picture(svg, caption))
    return pictures


def _range_words(part: slice, total: int) -> str:
    whole = part.stop - part.start == total
    return "" if whole else f"Parameters {part.start + 1} to {part.stop} of {total}. "


def _parts(total: int, most: int) -> list[slice]:
    """0 to `total` in as few parts of about the same length as `most` allows."""
    size = -(-total // -(-total // most))
    return [slice(first, min(first + size, total)) for first in range(0, total, size)]


def check_pictures(checked: Any) -> list[Picture]:
    """Observed beside simulated responses; calibration or residuals; influential rows."""
    how = f"{checked.num_replicates} data sets simulated at a draw of the posterior"
    if checked.kind == "binary":
        alt = "Calibration curve: the observed share of ones against the predicted probability, with a band."
        caption = f"Orange: the share of ones, in bins of rows by their predicted probability. Blue: the same in {how}."
        pictures = [Picture(inline_svg(plot_reliability(checked), "reliability", alt), caption)]
    else:
        alt = "Histogram of the responses beside the band of simulated ones; the numbers are in the table of checks."
        caption = f"Orange: the responses. Blue: the middle and the 1% and 99% of {how}."
        pictures = [Picture(inline_svg(plot_replicated(checked), "replicated", alt), caption)]
    if checked.kind not in ("binary", "classes"):
        alt = "Residuals against the prediction: points, and their means in bins beside the band of simulated ones."
        caption = "Dots: residuals of single rows. Orange: their means in bins, which should lie in the blue bars."
        pictures.append(Picture(inline_svg(plot_residuals(checked), "residuals", alt), caption))
    if checked.influence is not None:
        alt = f"Line of k-hat of every row, sorted, with the limit of 0.7. {checked.influence.words}"
        caption = (
            "How much the posterior would change without a row: k-hat above 0.7 means that the row decides by itself."
        )
        pictures.append(Picture(inline_svg(plot_influence(checked), "influence", alt), caption))
    return pictures


def function_picture(fit: Any, description: Any = None) -> Picture | None:
    """The function of a Gaussian process, of one, two or more inputs, in the units of the description."""
    figure = plot_function(fit, description)
    if figure is None:
        return None
    _, words = response_scale(fit.target.likelihood)
    count = fit.target.inputs.shape[1]
    alt = (
        f"The fitted function of {count} input{'' if count == 1 else 's'}: {words}, with a 94% band where there is one."
    )
    if count == 2:
        caption = f"The {words} over the two inputs: blue above the middle, orange below, with contours."
    else:
        caption = f"The {words}, and its 94% band"
        caption += "." if count == 1 else "; along one input at a time, the others at their medians."
    return Picture(inline_svg(figure, "function", alt), caption)


def correlation_picture(correlation: np.ndarray, names: tuple[str, ...]) -> Picture:
    """The correlation matrix as coloured squares."""
    outside = np.abs(correlation - np.eye(len(correlation)))
    row, column = (int(k) for k in np.unravel_index(int(outside.argmax()), outside.shape))
    pair = f"{shortened(names[row], 60)} and {shortened(names[column], 60)}"
    alt = f"Correlation matrix; the strongest is {number(correlation[row, column], 2)}, between {pair}."
    caption = "Correlations: blue above zero, orange below, the stronger the deeper."
    if len(names) > LARGEST_MATRIX:
        caption += f" The {LARGEST_MATRIX} parameters with the strongest ones, of {len(names)}."
    return Picture(inline_svg(plot_correlation_matrix(correlation, names), "correlations", alt), caption)


def inline_svg(figure: Figure, name: str, alt: str) -> Markup:
    """The figure as an SVG element for a page: `alt` its text, `name` the prefix of its ids; the figure is closed."""
    buffer = io.StringIO()
    for part in (figure, *figure.axes):
        part.patch.set_facecolor("none")  # the page's own colour, light or dark
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}), warnings.catch_warnings():
        # Browsers have other fonts for the characters that matplotlib's own lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        # `savefig` would draw everything twice, once to find the layout.
        FigureCanvasSVG(figure).print_svg(buffer)
    plt.close(figure)
    root = ElementTree.fromstring(buffer.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _local(element.tag)
        attributes = {_local(key): _adapted(_local(key), value, name) for key, value in element.attrib.items()}
        element.attrib.clear()
        element.attrib.update(attributes)
    kept = {"viewBox": root.attrib["viewBox"], "class": "plot", "role": "img", "aria-label": alt}
    # Drawn at its own size where there is room, smaller on a telephone.
    width, _ = (float(side) for side in kept["viewBox"].split()[2:])
    root.attrib.clear()
    root.attrib.update({**kept, "style": f"max-width: {1.55 * width:.0f}px"})
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _local(name: Any) -> str:
    """A name of XML without its namespace, which HTML does not want."""
    return str(name).rsplit("}", 1)[-1]


def _adapted(key: str, value: str, prefix: str) -> str:
    """Ids are made unique on the page, colours those of the page."""
    match key:
        case "id":
            return f"{prefix}-{value}"
        case "href":
            return value.replace("#", f"#{prefix}-", 1)
        case "clip-path":
            return value.replace("url(#", f"url(#{prefix}-")
        case "style":
            return re.sub(r"#[0-9a-fA-F]{6}\b", lambda found: _COLOURS.get(found[0].lower(), found[0]), value)
        case _:
            return value
