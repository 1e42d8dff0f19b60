#!/usr/bin/env python3
"""Makes a folder of conversations to fine-tune a small model on: train.jsonl (2,000) and valid.jsonl (200), by one seed.

    python tests/data/make_chats.py chats

Each is of one or two questions, some with a system's message, about things, animals and numbers, so that an answer follows from its question.
"""

import json
import pathlib
import random
import sys

COLOURS = {"coal": "black", "snow": "white", "grass": "green", "the sea": "blue", "blood": "red", "a lemon": "yellow", "smoke": "grey", "wood": "brown"}
SOUNDS = {"a dog": "barks", "a cat": "purrs", "a crow": "caws", "a horse": "neighs", "a bee": "hums", "a wolf": "howls"}
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
COLOUR_QUESTIONS = ["What colour is {}?", "Which colour has {}?", "Tell me the colour of {}.", "Is there a colour that {} has?"]
SOUND_QUESTIONS = ["What does {} do?", "Which sound has {}?", "Tell me what {} does."]
NUMBER_QUESTIONS = ["What comes after {}?", "Count on from {}.", "Which number follows {}?"]


def question(choose):
    kind = choose.randrange(3)
    if kind == 0:
        thing = choose.choice(list(COLOURS))
        return choose.choice(COLOUR_QUESTIONS).format(thing), f"It is {COLOURS[thing]}."
    if kind == 1:
        animal = choose.choice(list(SOUNDS))
        return choose.choice(SOUND_QUESTIONS).format(animal), f"It {SOUNDS[animal]}."
    place = choose.randrange(len(NUMBERS) - 1)
    return choose.choice(NUMBER_QUESTIONS).format(NUMBERS[place]), f"{NUMBERS[place + 1].capitalize()} does."


def conversation(choose):
    messages = [{"role": "system", "content": "Answer in a few words."}] if choose.random() < 0.3 else []
    for _ in range(1 + choose.randrange(2)):
        asked, said = question(choose)
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
    return {"messages": messages}


folder = pathlib.Path(sys.argv[1])
folder.mkdir(exist_ok=True)
choose = random.Random(7)
for name, count in [("train", 2000), ("valid", 200)]:
    rows = [json.dumps(conversation(choose)) for _ in range(count)]
    (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
