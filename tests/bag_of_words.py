"""What a bag of words makes of the tweets of docs/tasks.md: python tests/bag_of_words.py DATA/tweet-sentiment (needs scikit-learn).

The regularization is chosen on the test split itself, which favours the baseline.
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


def tell(name, labels, found):
    print(f"{name}: accuracy {accuracy_score(labels, found):.4f}, macro F1 {f1_score(labels, found, average='macro'):.4f}", flush=True)


texts, labels = read(f"{sys.argv[1]}/train.csv")
test_texts, test_labels = read(f"{sys.argv[1]}/test.csv")
tell("majority class", test_labels, DummyClassifier().fit(texts, labels).predict(test_texts))
bags = {
    "words": CountVectorizer(),
    "words and pairs, tf-idf": TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
}
for name, bag in bags.items():
    train, test = bag.fit_transform(texts), bag.transform(test_texts)
    for c in (0.1, 0.3, 1, 3):
        model = LogisticRegression(C=c, max_iter=300).fit(train, labels)
        tell(f"{name}, C={c}", test_labels, model.predict(test))
