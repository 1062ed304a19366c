"""Topics of a small corpus, and which of them come together."""

from pathlib import Path

import numpy as np

from provi.models import CorrelatedTopicModel

words = np.array(["goal", "team", "coach", "vote", "party", "law", "cell", "gene", "virus"])
topics = np.kron(np.eye(3), np.full(3, 0.3)) + 0.1 / 9
rng = np.random.default_rng(0)
z = rng.multivariate_normal(np.zeros(3), [[3, 0, 0], [0, 3, 2], [0, 2, 3]], size=200)  # the last two come together
shares = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
counts = np.stack([rng.multinomial(80, p / p.sum()) for p in shares @ topics])

model = CorrelatedTopicModel(3, max_iter=20, random_state=0).fit(counts)
top_words = model.top_words(3, words)
for number, best in enumerate(top_words):
    print(number, *best)
print(np.round(model.topic_correlation_, 2))

Path("out").mkdir(exist_ok=True)
model.plot_correlations(words).savefig("out/topic_model.png")
