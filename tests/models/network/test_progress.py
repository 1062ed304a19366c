"""What a progress bar says of a run over data."""

from provi.runtime.record import ProgressBar, show_throughput


def test_rows_a_second_since_the_compiler_was_done():
    with show_throughput(128, "images", "−ELBO per image"):
        bar = ProgressBar(1000, False)
    assert bar.words(1, None, 30.0) == ""  # thirty seconds of compilation do not count
    assert bar.words(11, -0.25, 30.5) == "−ELBO per image 0.25, 2,560 images/s"
    assert bar.words(21, -0.2, 31.0) == "−ELBO per image 0.2, 2,560 images/s"
    assert bar.words(21, None, 31.0) == "2,560 images/s"


def test_other_bars_are_as_before():
    with show_throughput(128, "images", "−ELBO per image"):
        pass
    bar = ProgressBar(10, False, "passes", "ELBO per word")
    assert bar.words(1, -7.25, 1.0) == "ELBO per word -7.25" and bar.words(2, None, 2.0) == ""


def test_the_bar_is_drawn(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as rich sees it
    monkeypatch.setenv("COLUMNS", "120")
    with show_throughput(128, "images", "−ELBO per image"), ProgressBar(2, True) as bar:
        bar.update(1, -0.5)
    assert "−ELBO per image 0.5" in capsys.readouterr().err
