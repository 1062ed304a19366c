"""What the pictures of a topic model show: bars, texts, edges, order and colours, read back from the figures."""

import itertools

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.colors import same_color, to_rgba
from matplotlib.patches import Circle

from provi.models.topics.plots import plot_correlations, plot_topics
from provi.report.style import PALETTE


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def _planted(size, pairs):
    """A correlation matrix with noise below 0.05 and the given entries."""
    noise = np.random.default_rng(0).uniform(-0.05, 0.05, (size, size))
    matrix = (noise + noise.T) / 2
    np.fill_diagonal(matrix, 1.0)
    for (i, j), value in pairs.items():
        matrix[i, j] = matrix[j, i] = value
    return matrix


def _nodes(figure):
    """The circles of the graph by the number written in them."""
    circles = [patch for patch in figure.axes[0].patches if isinstance(patch, Circle)]
    texts = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
    return {int(texts[circle.get_center()]): circle for circle in circles}


def _edges(figure):
    """Colour and width of each edge, by the pair of nodes at whose centres it ends."""
    centres = {circle.get_center(): k for k, circle in _nodes(figure).items()}
    (lines,) = figure.axes[0].collections
    ends = [tuple(sorted(centres[tuple(end)] for end in line)) for line in lines.get_segments()]
    return dict(zip(ends, zip(lines.get_colors(), lines.get_linewidths(), strict=True), strict=True))


def _names(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


def check_apart(extents):
    for first, second in itertools.combinations(extents, 2):
        assert not first.overlaps(second), (first, second)


def check_inside(figure, extents):
    width, height = figure.bbox.size
    for extent in extents:
        assert extent.x0 >= 0 and extent.y0 >= 0 and extent.x1 <= width and extent.y1 <= height, extent


def test_bars_are_the_probabilities_with_the_first_word_on_top():
    words = [["court", "judge", "law"], ["oil", "price", "market"]]
    weights = np.array([[0.03, 0.02, 0.01], [0.05, 0.04, 0.004]])
    figure = plot_topics(words, weights, shares=[0.876, 0.124])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Topic 0 · 88%", "Topic 1 · 12%"]
    for axes, names, row in zip(figure.axes, words, weights, strict=True):
        assert _names(axes.yaxis) == names
        np.testing.assert_array_equal([bar.get_width() for bar in axes.patches], row)
        extents = [bar.get_window_extent() for bar in axes.patches]
        assert extents[0].y0 > extents[1].y1 and extents[1].y0 > extents[2].y1
        assert axes.get_xlim() == figure.axes[0].get_xlim()  # one scale
    assert figure.axes[0].get_xlim()[1] > 0.05


def test_titles_without_shares_and_with_a_tiny_one():
    assert plot_topics([["a"]], [[0.5]]).axes[0].get_title(loc="left") == "Topic 0"
    titles = [axes.get_title(loc="left") for axes in plot_topics([["a"]] * 2, [[0.5]] * 2, shares=[0.996, 0.004]).axes]
    assert titles == ["Topic 0 · 100%", "Topic 1 · <1%"]


@pytest.mark.parametrize("number", [1, 7, 12])
def test_panels_and_their_texts_are_apart_and_on_the_page_in_reading_order(number):
    words = [["internationalisation", "wwwwwwwwwwwwwwwwwwww", "x"]] * number
    figure = plot_topics(words, np.full((number, 3), 0.2), shares=np.full(number, 1 / number), columns=3)
    figure.canvas.draw()
    extents = [axes.get_tightbbox() for axes in figure.axes]
    check_apart(extents)
    check_inside(figure, extents)
    corners = [axes.get_position() for axes in figure.axes]
    rows = [round(-corner.y0, 6) for corner in corners]
    assert sorted(range(number), key=lambda k: (rows[k], corners[k].x0)) == list(range(number))
    assert len(set(rows)) == -(-number // 3)


def test_only_the_lowest_panel_of_each_column_numbers_its_axis():
    figure = plot_topics([["a", "b"]] * 5, np.full((5, 2), 0.1), columns=3)
    shown = [any(tick.label1.get_visible() for tick in axes.xaxis.get_major_ticks()) for axes in figure.axes]
    assert shown == [False, False, True, True, True]


def test_words_are_shortened_and_shown_as_they_are_written():
    words = ["$x_1^2$", "a$b$c", "größenordnung", "двадцать", "Donaudampfschifffahrt", "two\nlines", r"\frac", "%_{}"]
    figure = plot_topics([words], [np.full(8, 0.1)])
    shown = ["$x_1^2$", "a$b$c", "größenordnung", "двадцать", "Donaudampfschif…", "two lines", r"\frac", "%_{}"]
    assert _names(figure.axes[0].yaxis) == shown
    # As mathematics, "$x_1^2$" would be much narrower than its seven characters are.
    texts = plot_topics([["$x_1^2$", "Sx_1^2S"]], [[0.1, 0.1]]).axes[0].get_yticklabels()
    figure.canvas.draw()
    dollars, plain = (text.get_window_extent().width for text in texts)
    assert dollars == pytest.approx(plain, rel=0.05)


def test_numbers_can_stand_for_words_and_all_weights_be_zero():
    assert plot_topics([["a"]], [[0.0]]).axes[0].get_xlim() == (0, 1)
    assert _names(plot_topics([[np.int64(7), 12]], [[0.2, 0.1]]).axes[0].yaxis) == ["7", "12"]


def test_edges_are_drawn_for_the_planted_pairs_only_with_sign_and_size():
    planted = {(0, 3): 0.8, (1, 5): 0.4, (2, 4): -0.6}
    edges = _edges(plot_correlations(_planted(7, planted), [f"word{k} other" for k in range(7)]))
    assert edges.keys() == planted.keys()
    for pair, (colour, width) in edges.items():
        assert same_color(colour[:3], to_rgba(PALETTE[0 if planted[pair] > 0 else 1])[:3])
        assert width / abs(planted[pair]) == pytest.approx(edges[0, 3][1] / 0.8)


def test_a_threshold_can_be_given():
    matrix = _planted(6, {(0, 1): 0.5, (2, 3): 0.3, (4, 5): -0.3})
    assert _edges(plot_correlations(matrix, threshold=0.3)).keys() == {(0, 1)}
    assert _edges(plot_correlations(matrix, threshold=0.29)).keys() == {(0, 1), (2, 3), (4, 5)}


@pytest.mark.parametrize("size", [12, 20])
def test_the_default_threshold_keeps_the_strongest_two_for_each_topic(size):
    matrix = np.corrcoef(np.random.default_rng(size).standard_normal((size, 8)))
    strongest = sorted(itertools.combinations(range(size), 2), key=lambda pair: -abs(matrix[pair]))[: 2 * size]
    assert _edges(plot_correlations(matrix)).keys() == set(strongest)
    assert not _edges(plot_correlations(np.full((size, size), 0.5) + 0.5 * np.eye(size)))  # ties


def test_areas_of_nodes_are_as_the_shares():
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    nodes = _nodes(plot_correlations(np.eye(4), shares=shares))
    areas = np.array([nodes[k].get_radius() ** 2 for k in range(4)])
    np.testing.assert_allclose(areas[1:] / areas[3], shares[1:] / shares[3])
    assert 0 < areas[0] < areas[1]
    assert len({circle.get_radius() for circle in _nodes(plot_correlations(np.eye(4))).values()}) == 1


@pytest.mark.parametrize("size", [1, 2, 10, 20])
@pytest.mark.parametrize("kind", ["zero", "random", "alike"])
def test_nodes_and_labels_of_the_graph_are_apart_and_on_the_page(size, kind):
    random = np.corrcoef(np.random.default_rng(1).standard_normal((size, 5))).reshape(size, size)
    matrix = {"zero": np.eye(size), "random": random, "alike": np.ones((size, size))}[kind]
    figure = plot_correlations(matrix, [f"government policemen people{k}" for k in range(size)])
    graph, *others = figure.axes
    nodes, labels = _nodes(figure), [text for text in graph.texts if "govern" in text.get_text()]
    assert nodes.keys() == set(range(size))
    assert [text.get_text().split()[-1] for text in labels] == [f"people{k}" for k in range(size)]
    figure.canvas.draw()
    extents = [artist.get_window_extent() for artist in (*nodes.values(), *labels)]
    check_apart(extents)
    check_inside(figure, [*extents, graph.title.get_window_extent()])
    parts = [axes.get_tightbbox() for axes in others]
    check_inside(figure, parts)
    check_apart([*parts, graph.get_window_extent()])


def _distances(figure):
    """Between the centres of all pairs of nodes."""
    centres = np.array([circle.get_center() for _, circle in sorted(_nodes(figure).items())])
    return np.linalg.norm(centres[:, None] - centres[None], axis=2)


def test_distances_that_a_plane_can_have_are_drawn_to_scale():
    places = np.array([(0.0, 0.0), (1.0, 0.1), (0.2, 0.9), (1.3, 1.1), (0.6, 0.5), (1.5, 0.5)])
    wanted = np.linalg.norm(places[:, None] - places[None], axis=2)
    drawn = _distances(plot_correlations(1 - wanted**2 / 2))
    np.testing.assert_allclose(drawn / drawn[0, 1], wanted / wanted[0, 1], atol=1e-6)
    np.testing.assert_array_equal(_distances(plot_correlations(1 - wanted**2 / 2)), drawn)  # the same each time


def test_the_nearest_topics_are_of_the_same_group():
    distances = _distances(plot_correlations(_two_groups())) + 1e3 * np.eye(8)
    same = np.arange(8) % 2 == np.arange(8)[:, None] % 2
    assert same[np.arange(8), distances.argmin(axis=1)].all()
    assert distances[same & ~np.eye(8, dtype=bool)].mean() < 0.7 * distances[~same].mean()


def _two_groups():
    """Even topics with even ones and odd ones with odd ones."""
    group = np.arange(8) % 2
    return np.where(group[:, None] == group[None], 0.7, -0.4) + 0.3 * np.eye(8)


def test_the_matrix_has_similar_topics_side_by_side_and_colours_centred_at_zero():
    correlation = _two_groups()
    axes = plot_correlations(correlation, [f"name{k}" for k in range(8)]).axes[1]
    order = [int(text) for text in _names(axes.xaxis)]
    assert sorted(order) == list(range(8))
    assert len({k % 2 for k in order[:4]}) == len({k % 2 for k in order[4:]}) == 1
    assert _names(axes.yaxis) == [f"name{k}  {k}" for k in order]
    (mesh,) = axes.collections
    shown = np.ma.asarray(mesh.get_array()).reshape(8, 8)
    np.testing.assert_array_equal(np.ma.getmaskarray(shown), np.eye(8, dtype=bool))
    np.testing.assert_array_equal(shown.filled(1.0), correlation[np.ix_(order, order)])
    assert mesh.get_clim() == (-0.7, 0.7)
    assert axes.get_ylim() == (8, 0)  # the first row on top, as a matrix is written
    wanted = [to_rgba(colour) for colour in (PALETTE[1], "white", PALETTE[0])]
    np.testing.assert_allclose(mesh.to_rgba(np.array([-0.7, 0.0, 0.7])), wanted, atol=0.01)


def test_cells_of_a_small_matrix_hold_their_numbers():
    matrix = np.array([[1.0, -0.004, 0.25], [-0.004, 1.0, -0.5], [0.25, -0.5, 1.0]])
    axes = plot_correlations(matrix).axes[1]
    order = [int(text) for text in _names(axes.xaxis)]
    for text in axes.texts:
        column, row = (order[int(place)] for place in text.get_position())
        assert text.get_text() == {-0.004: "0.00", 0.25: "0.25", -0.5: "−0.50"}[matrix[row, column]]
    assert len(axes.texts) == 6
    assert not plot_correlations(np.eye(13)).axes[1].texts


def test_labels_with_dollars_are_literal_and_long_ones_shortened():
    figure = plot_correlations(np.eye(2), ["$x$ costs $2", "w" * 50])
    figure.canvas.draw()
    assert {text.get_text() for text in figure.axes[0].texts} == {"0", "1", "$x$ costs $2", "w" * 33 + "…"}
    assert all(not text.get_parse_math() for text in figure.axes[1].get_yticklabels())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: plot_topics([["a"]], [[0.1, 0.2]]), "top_words"),
        (lambda: plot_topics([["a"], ["b"]], [[0.1]]), "top_words"),
        (lambda: plot_topics([["a"]], [[-0.1]]), "weights"),
        (lambda: plot_topics([["a"]], [[0.1]], shares=[0.5, 0.5]), "shares"),
        (lambda: plot_topics([["a"]], [[0.1]], shares=[12.0]), "shares"),
        (lambda: plot_topics([["a"]], [[0.1]], columns=0), "columns"),
        (lambda: plot_correlations(np.ones((2, 3))), "correlation"),
        (lambda: plot_correlations([[1.0, 0.5], [0.1, 1.0]]), "correlation"),
        (lambda: plot_correlations(4 * np.eye(2)), "covariance"),
        (lambda: plot_correlations(np.eye(2), ["a"]), "labels"),
        (lambda: plot_correlations(np.eye(2), shares=[1.0]), "shares"),
        (lambda: plot_correlations(np.eye(2), threshold=30), "threshold"),
    ],
)
def test_wrong_arguments_are_named(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()
