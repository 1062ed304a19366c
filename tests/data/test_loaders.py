"""Data sets by name: where they are looked for, what is checked, what the errors say. No network, no real data."""

import gzip
import hashlib
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from provi.data import SOURCES, Dataset, Source, breast_cancer, convert, load, loaders, path
from provi.data.loaders import content_sha256

ARRAYS = {"X": np.array([[1, 0], [0, 1], [1, 1]], np.int8), "y": np.array([0, 1, 1], np.int8)}
LIBSVM = "-1 1:1 \n+1 2:1\n1 1:1 2:1.0\n"
URL = "https://example.org/folder/tiny.txt"


def libsvm_arrays(files):
    X, y = convert.read_libsvm(*files, 2)
    return {"X": X, "y": y}


def tiny(file_sha256="", **change):
    facts = {"about": "three rows", "layout": "X (3, 2), y (3,) i1", "route": "ask the author", "licence": "none"}
    checksums = {"file_sha256": file_sha256, "content_sha256": content_sha256(ARRAYS)}
    return Source(**(facts | checksums | {"urls": (URL,), "convert": libsvm_arrays} | change))


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """An empty $PROVI_DATA and an empty cache."""
    user, home = tmp_path / "mine", tmp_path / "cache"
    user.mkdir()
    monkeypatch.setenv("PROVI_DATA", str(user))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setitem(SOURCES, "tiny", tiny())
    return user, home / "provi"


def write(folder, arrays=ARRAYS):
    folder.mkdir(exist_ok=True, parents=True)
    np.savez_compressed(folder / "tiny.npz", **arrays)
    return folder / "tiny.npz"


def stand_in_for_pooch(monkeypatch, text):
    """A pooch whose one function writes `text` where it was told to, or raises it."""
    asked = []

    def retrieve(url, known_hash, fname, path):
        asked.append(url)
        if isinstance(text, Exception):
            raise text
        (Path(path) / fname).write_text(text)
        return str(Path(path) / fname)

    monkeypatch.setitem(sys.modules, "pooch", types.SimpleNamespace(retrieve=retrieve))
    return asked


def assert_is_tiny(dataset):
    assert dataset.name == "tiny" and set(dataset.arrays) == {"X", "y"}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(dataset.arrays[name], array, strict=True)


def test_the_users_folder_comes_first(folders, monkeypatch):
    user, cache = folders
    write(cache, {"X": np.zeros(1)})
    file = write(user)
    assert path("tiny") == file
    assert_is_tiny(load("tiny"))
    (cache / "tiny.npz").unlink()
    file.rename(cache / "tiny.npz")
    assert path("tiny") == cache / "tiny.npz"
    monkeypatch.delenv("PROVI_DATA")
    assert_is_tiny(load("tiny"))


def test_cache_without_xdg_is_in_the_home_folder(folders, tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    file = write(tmp_path / ".cache" / "provi")
    assert path("tiny") == file


def test_the_known_file_is_accepted_by_its_own_checksum(folders, monkeypatch):
    file = write(folders[0])
    known = tiny(hashlib.sha256(file.read_bytes()).hexdigest(), content_sha256="")
    monkeypatch.setitem(SOURCES, "tiny", known)
    assert path("tiny") == file


@pytest.mark.parametrize(
    "damage", ["other values", "other type", "missing array", "cut short", "one bit", "text", "one array"]
)
def test_a_wrong_file_is_refused(folders, damage):
    changes = {"other values": 1 - ARRAYS["X"], "other type": ARRAYS["X"].astype(np.int16)}
    file = write(
        folders[0], {"X": changes.get(damage, ARRAYS["X"])} | ({"y": ARRAYS["y"]} if damage in changes else {})
    )
    if damage == "cut short":
        file.write_bytes(write(folders[0]).read_bytes()[:-30])
    if damage == "one bit":
        content = bytearray(write(folders[0]).read_bytes())
        content[60] ^= 4
        file.write_bytes(content)
    if damage == "text":
        file.write_text("<html>")
    if damage == "one array":
        with file.open("wb") as stream:
            np.save(stream, ARRAYS["X"])
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match=rf"mine/tiny.npz is not the data set 'tiny', or it is damaged: .*{found}"):
        load("tiny")


def test_download_is_converted_checked_and_kept(folders, monkeypatch):
    asked = stand_in_for_pooch(monkeypatch, LIBSVM)
    assert_is_tiny(load("tiny"))
    assert asked == [URL] and [file.name for file in folders[1].iterdir()] == ["tiny.npz"]
    assert_is_tiny(load("tiny"))
    assert len(asked) == 1


@pytest.mark.parametrize("text", [LIBSVM.replace("+1", "-1"), "<html>moved</html>"])
def test_a_changed_public_source_is_refused_and_not_kept(folders, monkeypatch, text):
    stand_in_for_pooch(monkeypatch, text)
    with pytest.raises(ValueError, match=r"^The public source of 'tiny' \(https://example.org.* has changed"):
        load("tiny")
    assert not (folders[1] / "tiny.npz").exists()


def test_without_network_all_three_places_are_named(folders, monkeypatch):
    stand_in_for_pooch(monkeypatch, ConnectionError("no route to host"))
    with pytest.raises(FileNotFoundError) as caught:
        load("tiny")
    for words in (f"$PROVI_DATA: {folders[0]}", f"cache: {folders[1]}", URL, "no route to host", "ask the author"):
        assert words in str(caught.value)


def test_without_pooch_the_extra_is_named(folders, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.delenv("PROVI_DATA")
    with pytest.raises(FileNotFoundError, match=r"(?s)PROVI_DATA: not set.*pip install 'provi\[data\]'.*X \(3, 2\)"):
        load("tiny")


def test_a_set_without_download_says_how_to_get_it(folders):
    with pytest.raises(FileNotFoundError, match=r"(?s)Looked for sonar.npz.*no public file.*UCI 'Connectionist Bench"):
        load("sonar")


def test_unknown_names_are_refused_with_the_list():
    with pytest.raises(ValueError, match="^name must be one of sonar, .*w8a; not 'a9b'"):
        load("a9b")


def test_content_checksum_by_hand():
    arrays = {"b": np.array([1, 2], "<i2"), "a": np.array([[1.0]], "<f8")}
    text = b"a <f8 (1, 1)\n" + np.float64(1).tobytes() + b"b <i2 (2,)\n" + bytes([1, 0, 2, 0])
    assert content_sha256(arrays) == hashlib.sha256(text).hexdigest()
    swapped = {"a": np.asfortranarray(arrays["a"]), "b": arrays["b"].astype(">i2")}
    assert content_sha256(swapped) == content_sha256(arrays)


def test_facts_are_complete():
    assert len(SOURCES) == 14
    for source in SOURCES.values():
        assert len(source.file_sha256) == len(source.content_sha256) == 64
        assert bool(source.urls) == (source.convert is not None)
        assert all(url.startswith("https://") for url in source.urls)
    downloads = {name for name, source in SOURCES.items() if source.urls}
    assert downloads == {"mnist", "cifar10", "german_numeric", "a9a", "w8a"}


def test_tables():
    whole = Dataset("tiny", ARRAYS | {"feature_names": np.array(["age", "dose"])}).table()
    assert whole.names == ("age", "dose") and whole.features.dtype == np.float64
    np.testing.assert_array_equal(whole.features, ARRAYS["X"])
    np.testing.assert_array_equal(whole.response, ARRAYS["y"])
    single = np.ones((1, 2), np.float32)
    split = Dataset("s", {"X_train": single, "y_train": np.zeros(1), "X_test": 2 * single, "y_test": np.ones(1)})
    assert split.table().features.dtype == np.float32 and split.table().names == ("x[0]", "x[1]")
    np.testing.assert_array_equal(split.table().features, [[1, 1], [2, 2]])
    np.testing.assert_array_equal(split.table().response, [0, 1])
    np.testing.assert_array_equal(split.table("test").features, [[2, 2]])
    np.testing.assert_array_equal(split.table("train").response, [0])


def test_what_is_not_a_table_says_so():
    with pytest.raises(ValueError, match="^part must be 'all': the data set 'tiny' has no published split"):
        Dataset("tiny", ARRAYS).table("train")
    with pytest.raises(ValueError, match="not a table; its arrays are indptr, vocab"):
        Dataset("corpus", {"indptr": np.zeros(2), "vocab": np.array(["a"])}).table()
    images = {f"X_{part}": np.zeros((2, 4, 4), np.uint8) for part in ("train", "test")}
    with pytest.raises(ValueError, match=r"holds images, \(4, 4, 4\)"):
        Dataset("images", images).table()


def test_a9a_and_w8a_formats(tmp_path):
    train, test = tmp_path / "a9a", tmp_path / "a9a.t"
    train.write_text("-1 3:1 11:1 123:1 \n+1 1:1 \n")
    test.write_text("-1 \n")
    arrays = convert.a9a([train, test])
    assert arrays["X_train"].shape == (2, 123) and arrays["X_test"].shape == (1, 123)
    assert all(array.dtype == np.int8 for array in arrays.values())
    assert [list(np.flatnonzero(row)) for row in arrays["X_train"]] == [[2, 10, 122], [0]]
    assert list(arrays["y_train"]) == [0, 1] and list(arrays["y_test"]) == [0] and not arrays["X_test"].any()
    assert convert.w8a([train])["X"].shape == (2, 300)


@pytest.mark.parametrize("line", ["2 1:1", "+1 0:1", "+1 3:1", "+1 1:0.5", "+1 1", "", "+1 1:1:1", "word"])
def test_bad_libsvm_lines_are_named(tmp_path, line):
    (tmp_path / "file").write_text(f"+1 1:1\n{line}\n")
    with pytest.raises(ValueError, match="^file, line 2 is not"):
        convert.read_libsvm(tmp_path / "file", 2)


def test_german_format(tmp_path):
    file = tmp_path / "german.data-numeric"
    rows = np.arange(48).reshape(2, 24)
    file.write_text(
        "".join("   ".join(map(str, [*row, label])) + " \n" for row, label in zip(rows, (1, 2), strict=True))
    )
    arrays = convert.german_numeric([file])
    np.testing.assert_array_equal(arrays["X"], rows.astype(np.float64), strict=True)
    np.testing.assert_array_equal(arrays["y"], np.array([0, 1], np.int8), strict=True)
    for text, message in (("1 2 3\n", "must have 25 columns"), ("<html> a\n", "not a table of numbers")):
        file.write_text(text)
        with pytest.raises(ValueError, match=f"^german.data-numeric .*{message}"):
            convert.german_numeric([file])


def test_idx_format(tmp_path):
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    content = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]) + images.tobytes()
    labels = bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])
    files = [tmp_path / name for name in ("images.gz", "labels.gz", "images", "labels")]
    for file, data in zip(files, (gzip.compress(content), gzip.compress(labels), content, labels), strict=True):
        file.write_bytes(data)
    arrays = convert.mnist(files)
    for part in ("train", "test"):
        np.testing.assert_array_equal(arrays[f"X_{part}"], images, strict=True)
        np.testing.assert_array_equal(arrays[f"y_{part}"], np.array([7, 9], np.uint8), strict=True)
    for broken in (content[:-1], b"<html>", b"", gzip.compress(content)[:-12]):
        files[0].write_bytes(broken)
        with pytest.raises(ValueError, match="^images.gz"):
            convert.read_idx(files[0])


def test_the_bundled_data_need_no_other_package():
    """Numpy alone reads them, and their source is named in the file."""
    program = (
        "import sys\nfrom provi.data import breast_cancer\ndata = breast_cancer()\n"
        "assert data.features.shape == (569, 30) and data.response.sum() == 212\n"
        "assert not {'sklearn', 'scipy', 'pandas', 'jax'} & set(sys.modules), 'more was imported'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    with np.load(Path(loaders.__file__).with_name("breast_cancer.npz")) as archive:
        assert "CC BY 4.0" in str(archive["about"]) and "10.24432/C5DW2B" in str(archive["about"])


def test_the_bundled_data_are_those_of_scikit_learn_to_the_bit():
    datasets = pytest.importorskip("sklearn.datasets")
    theirs, ours = datasets.load_breast_cancer(), breast_cancer(standardise=False)
    assert ours.features.dtype == theirs.data.dtype == np.float64
    np.testing.assert_array_equal(ours.features, theirs.data)
    np.testing.assert_array_equal(ours.response, 1 - theirs.target)  # they code malignant as 0
    assert ours.names == tuple(theirs.feature_names)
    standardised = (theirs.data - theirs.data.mean(axis=0)) / theirs.data.std(axis=0)
    np.testing.assert_array_equal(breast_cancer().features, standardised)
