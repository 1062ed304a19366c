"""Richer families: densities against Jacobians by automatic differentiation and against quadrature, moments, fits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special

import provi
from provi.families import Flow, GaussianMixture, Skewed, Student
from provi.families.richer import Frame, _following

LOC, FACTOR = np.array([1.0, -2.0]), np.array([[0.5, 0.0], [0.8, 1.5]])
FAMILIES = {"student": Student(2), "skewed": Skewed(2), "flow": Flow(2, 4, 8), "mixture": GaussianMixture(2)}


@jax.enable_x64(True)
def member(family):
    """A member far from where fits begin: every parameter moved."""
    frame = Frame(jnp.asarray(LOC), jnp.asarray(FACTOR))
    point = family.first_point((frame,), np.ones(1))
    leaves, structure = jax.tree.flatten(point)
    rng = np.random.default_rng(3)
    frames = {id(leaf) for leaf in jax.tree.leaves(getattr(point, "frame", getattr(point, "frames", None)))}
    moved = [x if id(x) in frames else x + 0.2 * rng.normal(size=x.shape) for x in leaves]
    return jax.tree.unflatten(structure, moved)


@pytest.mark.parametrize("name", FAMILIES)
def test_density_integrates_to_one_and_has_the_moments_of_the_draws(name):
    family = FAMILIES[name]
    with jax.enable_x64(True):
        point = member(family)
        log_prob = jax.jit(jax.vmap(lambda z: family.log_prob(point, z)))
        axes = [np.linspace(centre - 40, centre + 40, 801) for centre in LOC]
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        density = np.exp(np.asarray(log_prob(jnp.asarray(grid.reshape(-1, 2)))).reshape(801, 801))

        def integral(values):
            return integrate.simpson(integrate.simpson(values, axes[1]), axes[0])

        # Student's tails beyond 40 hold about 1e-3.
        assert integral(density) == pytest.approx(1, abs=4e-3 if name == "student" else 1e-5)
        mean = np.array([integral(density * grid[..., k]) for k in range(2)])
        deviation = np.sqrt([integral(density * (grid[..., k] - mean[k]) ** 2) for k in range(2)])
        draws = np.asarray(family.sample(jax.random.key(0), point, 40_000))
        error = deviation / 200
        assert np.all(np.abs(draws.mean(0) - mean) < 5 * error)
        assert np.all(np.abs(np.asarray(family.mean(point)) - mean) < 5 * error)
        if name != "student":  # whose fourth moment may not exist
            assert draws.std(0) == pytest.approx(deviation, rel=0.04)
            assert np.asarray(family.marginal_standard_deviation(point)) == pytest.approx(deviation, rel=0.04)


@pytest.mark.parametrize("name", ["skewed", "flow"])
def test_log_determinant_is_that_of_the_jacobian(name):
    family = FAMILIES[name]
    with jax.enable_x64(True):
        point, u = member(family), jnp.array([0.7, -1.3])
        z = family.push(point, u)
        back, log_det = family.pull(point, z)
        jacobian = jax.jacfwd(lambda v: family.push(point, v))(u)
        assert np.asarray(back) == pytest.approx(np.asarray(u), abs=1e-9)
        assert float(log_det) == pytest.approx(float(jnp.linalg.slogdet(jacobian)[1]), abs=1e-9)


def test_mixture_draws_are_unbiased_for_the_elbo():
    """sum w f(z) over stratified draws against quadrature of q log q."""
    family = FAMILIES["mixture"]
    with jax.enable_x64(True):
        point = member(family)
        z, weights = family.stratified(jax.random.key(1), point, 60_000)
        log_q = jax.vmap(lambda row: family.log_prob(point, row))(z)
        drawn = family.sample(jax.random.key(2), point, 60_000)
        plain = -np.asarray(jax.vmap(lambda row: family.log_prob(point, row))(drawn))
        assert float(weights.sum()) == pytest.approx(1)
        assert -float(jnp.sum(weights * log_q)) == pytest.approx(plain.mean(), abs=5 * plain.std() / 60_000**0.5 * 1.5)


@pytest.fixture(scope="module")
def skewed_fit():
    """Logarithms of gamma variables, whose moments are polygamma functions."""
    target = provi.targets.LogDensity(lambda z: jnp.sum(jnp.array([1.0, 3.0]) * z - jnp.exp(z)), 2)
    return provi.fit(target, family="auto", progress=False)


def test_auto_recovers_skew_and_says_what_it_took(skewed_fit, tmp_path):
    from scipy.special import polygamma

    shape = np.array([1.0, 3.0])
    posterior = skewed_fit.posterior
    assert posterior.family.scale == "skewed"
    assert "family='auto' took skewed, the cheapest that is good enough" in skewed_fit.message
    assert posterior.mean == pytest.approx(polygamma(0, shape), abs=0.05)
    assert posterior.standard_deviation == pytest.approx(np.sqrt(polygamma(1, shape)), rel=0.05)
    assert skewed_fit.certificate.gap is None  # of the family's best member nothing is known
    skewed_fit.save(tmp_path / "fit.safetensors")
    again = provi.load(tmp_path / "fit.safetensors")
    assert np.array_equal(again.posterior.sample(5, 1), posterior.sample(5, 1))
    assert posterior.interval(0.9).shape == (2, 2) and "From draws" in str(posterior.summary())


DF, CENTRE, SCALE = 5.0, np.array([2.0, -1.0, 0.0]), np.array([[1.0, 0, 0], [0.7, 0.5, 0], [-1.0, 0.3, 2.0]])


def heavy(z):
    """Student's law with five degrees of freedom, without its constant."""
    return -(DF + 3) / 2 * jnp.log1p(jnp.sum(jnp.linalg.solve(jnp.asarray(SCALE), z - CENTRE) ** 2) / DF)


def test_student_is_the_truth_where_tails_are_heavy_and_auto_takes_it_first():
    """Moments and evidence in closed form; the Gaussian's deviations are 13% too small."""
    target = provi.targets.LogDensity(heavy, 3)
    gaussian, student, auto = (provi.fit(target, family=name, progress=False) for name in (None, "student", "auto"))
    truth = np.sqrt(DF / (DF - 2) * (SCALE**2).sum(1))
    assert student.posterior.standard_deviation == pytest.approx(truth, rel=0.03)
    assert student.posterior.mean == pytest.approx(CENTRE, abs=0.03 * truth.min())
    assert np.all(gaussian.posterior.standard_deviation < 0.9 * truth)
    assert student.diagnose().pareto_k < 0.5 < gaussian.diagnose().pareto_k
    evidence = special.gammaln(DF / 2) - special.gammaln((DF + 3) / 2) + 1.5 * np.log(np.pi * DF)
    evidence += np.linalg.slogdet(SCALE)[1]
    assert gaussian.elbo.value + 0.02 < student.elbo.value == pytest.approx(evidence, abs=1e-3)
    assert "family='auto' took student, the cheapest that is good enough" in auto.message
    assert "skewed" not in auto.message


def test_auto_leaves_student_out_where_weights_are_no_function_of_the_distance(skewed_fit):
    assert "student" not in skewed_fit.message


def test_gamma_draws_move_with_the_shape_at_their_quantiles():
    with jax.enable_x64(True):
        shape, step, draws = 1.7, 1e-5, np.array([[0.05], [0.8], [2.0], [7.0]])
        found = jax.jacrev(lambda a: _following(a, jnp.asarray(draws)))(jnp.asarray(shape))
    levels = special.gammainc(shape, draws)
    ends = [special.gammaincinv(shape + sign * step, levels) for sign in (1, -1)]
    assert np.asarray(found) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4)


def test_a_base_of_a_gaussian_is_refused_with_the_families_that_have_one():
    with pytest.raises(TypeError, match=r'LocationScale\(3, base=\.\.\.\).*family="student"'):
        provi.families.Gaussian(3, base=provi.families.StudentT(5.0))


def test_unknown_name_and_algorithm_of_ones_own_are_refused():
    target = provi.targets.LogDensity(lambda z: -0.5 * jnp.sum(z**2), 2, log_concave=True)
    with pytest.raises(ValueError, match="'auto', 'gaussian', 'student', 'skewed', 'mixture', 'flow'"):
        provi.fit(target, family="spline")
    with pytest.raises(ValueError, match="algorithm= is for one family"):
        provi.fit(target, family="auto", algorithm=provi.algorithms.ProxSGD(0.01))
    with pytest.raises(ValueError, match="leave algorithm= out"):
        provi.fit(target, family="flow", algorithm=provi.algorithms.ProxSGD(0.01))
