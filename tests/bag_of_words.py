"""What a bag of words makes of the tweets of docs/log/tasks.md (needs scikit-learn).

Usage: python tests/bag_of_words.py DATA/tweet-sentiment [PREDICTIONS]

C = 1 is scikit-learn's. Of the others the best is chosen on the test split itself, which favours the baseline. PREDICTIONS is what
`xtrain predict cls` made of test.csv: it is compared with each baseline tweet by tweet (McNemar's z: the difference of the tweets
that only one of the two got right, by the root of their number).
"""

import csv
import sys

from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score


def read(path):
    with open(path, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["text"].strip()]
    return [row["text"] for row in rows], [row["sentiment"] for row in rows]


def tell(name, labels, found, rival=None):
    told = f"{name}: accuracy {accuracy_score(labels, found):.4f}, macro F1 {f1_score(labels, found, average='macro'):.4f}"
    if rival is not None:
        won = sum(ours == label != theirs for ours, theirs, label in zip(rival, found, labels))
        lost = sum(theirs == label != ours for ours, theirs, label in zip(rival, found, labels))
        told += f"; the predictions are better by {(won - lost) / len(labels):.4f} (z {(won - lost) / max(won + lost, 1) ** 0.5:.1f})"
    print(told, flush=True)


def read_predictions(path):
    with open(path, encoding="utf-8", newline="") as file:
        return [row["prediction"] for row in csv.DictReader(file)]


texts, labels = read(f"{sys.argv[1]}/train.csv")
test_texts, test_labels = read(f"{sys.argv[1]}/test.csv")
predictions = read_predictions(sys.argv[2]) if len(sys.argv) > 2 else None
if predictions is not None:
    if len(predictions) != len(test_labels):
        sys.exit(f"{sys.argv[2]} has {len(predictions)} predictions, there are {len(test_labels)} tweets")
    tell("the predictions", test_labels, predictions)
tell("majority class", test_labels, DummyClassifier().fit(texts, labels).predict(test_texts), predictions)
bags = {
    "words": CountVectorizer(),
    "words and pairs, tf-idf": TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
}
for name, bag in bags.items():
    train, test = bag.fit_transform(texts), bag.transform(test_texts)
    for c in (0.1, 0.3, 1, 3):
        model = LogisticRegression(C=c, max_iter=300).fit(train, labels)
        tell(f"{name}, C={c}", test_labels, model.predict(test), predictions)
