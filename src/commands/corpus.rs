//! The text that `xtrain quickstart` trains on, and the generator that wrote it: short stories
//! about a fixed set of people in a fixed world. Everyone keeps their trade, town, pet and
//! favourite colour, sums come out right, days follow each other and weather has consequences, so a
//! small model has rules to find, and a reader can tell at once whether it found them.
//!
//! The text is a committed file so that everyone trains on the same bytes; a test generates it anew
//! and compares. To change it, change the generator and run
//! `XTRAIN_WRITE_CORPUS=1 cargo test corpus`.

use std::fmt::Write;

/// The corpus as committed.
pub const TEXT: &str = include_str!("quickstart/corpus.txt");

/// Seed of the committed file.
pub const SEED: u64 = 20_240_229;

/// Size at which the generator stops, at the end of a story.
pub const BYTES: usize = 420_000;

struct Person {
    name: &'static str,
    she: bool,
    trade: &'static str,
    /// What people of that trade do, in the past tense.
    work: &'static str,
    town: &'static str,
    pet: &'static str,
    pet_name: &'static str,
    colour: &'static str,
}

#[rustfmt::skip] // A table.
const PEOPLE: [Person; 16] = [
    Person { name: "Mara", she: true, trade: "baker", work: "baked bread", town: "Lindow", pet: "cat", pet_name: "Pepper", colour: "red" },
    Person { name: "Tomas", she: false, trade: "fisher", work: "mended the nets", town: "Harrow Bay", pet: "dog", pet_name: "Skipper", colour: "blue" },
    Person { name: "Ilse", she: true, trade: "doctor", work: "looked after the sick", town: "Lindow", pet: "parrot", pet_name: "Echo", colour: "green" },
    Person { name: "Bruno", she: false, trade: "miller", work: "ground the wheat", town: "Oakstead", pet: "donkey", pet_name: "Grey", colour: "brown" },
    Person { name: "Nadia", she: true, trade: "teacher", work: "taught the children to read", town: "Oakstead", pet: "cat", pet_name: "Ink", colour: "yellow" },
    Person { name: "Felix", she: false, trade: "clockmaker", work: "repaired the clocks", town: "Tallin Hill", pet: "owl", pet_name: "Midnight", colour: "silver" },
    Person { name: "Greta", she: true, trade: "gardener", work: "watered the roses", town: "Tallin Hill", pet: "rabbit", pet_name: "Clover", colour: "pink" },
    Person { name: "Omar", she: false, trade: "tailor", work: "sewed a coat", town: "Harrow Bay", pet: "goat", pet_name: "Button", colour: "purple" },
    Person { name: "Wilma", she: true, trade: "smith", work: "shod the horses", town: "Oakstead", pet: "horse", pet_name: "Ember", colour: "black" },
    Person { name: "Jonas", she: false, trade: "shepherd", work: "watched the sheep", town: "Tallin Hill", pet: "dog", pet_name: "Moss", colour: "white" },
    Person { name: "Petra", she: true, trade: "sailor", work: "scrubbed the deck", town: "Harrow Bay", pet: "parrot", pet_name: "Admiral", colour: "orange" },
    Person { name: "Rufus", she: false, trade: "cook", work: "stirred the soup", town: "Lindow", pet: "goose", pet_name: "Duchess", colour: "gold" },
    Person { name: "Selma", she: true, trade: "painter", work: "painted the old bridge", town: "Harrow Bay", pet: "cat", pet_name: "Canvas", colour: "blue" },
    Person { name: "Anton", she: false, trade: "carpenter", work: "built a table", town: "Lindow", pet: "dog", pet_name: "Chip", colour: "green" },
    Person { name: "Hedda", she: true, trade: "beekeeper", work: "gathered the honey", town: "Oakstead", pet: "goat", pet_name: "Juniper", colour: "yellow" },
    Person { name: "Viktor", she: false, trade: "librarian", work: "sorted the books", town: "Tallin Hill", pet: "owl", pet_name: "Page", colour: "red" },
];

const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

const NUMBERS: [&str; 21] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
];

const GOODS: [(&str, &str); 8] = [
    ("apple", "apples"),
    ("candle", "candles"),
    ("button", "buttons"),
    ("egg", "eggs"),
    ("lemon", "lemons"),
    ("ribbon", "ribbons"),
    ("onion", "onions"),
    ("pencil", "pencils"),
];

/// What the sky does, and what one does about it.
const WEATHER: [(&str, &str); 6] = [
    ("It was raining", "took an umbrella"),
    ("It was snowing", "put on warm boots"),
    ("The sun was hot", "wore a straw hat"),
    ("A strong wind blew", "tied down the shutters"),
    ("The fog was thick", "carried a lantern"),
    ("The night was cold", "lit a fire"),
];

const PLACES: [&str; 8] = [
    "under the bridge",
    "behind the mill",
    "on the church tower",
    "in the old boat",
    "under the kitchen table",
    "in the hay",
    "beside the well",
    "on top of the cupboard",
];

const THINGS: [&str; 8] = [
    "lamp", "kite", "box", "scarf", "door", "chair", "cup", "flag",
];

const OPPOSITES: [(&str, &str); 8] = [
    ("hot", "cold"),
    ("big", "small"),
    ("day", "night"),
    ("open", "closed"),
    ("old", "young"),
    ("wet", "dry"),
    ("early", "late"),
    ("empty", "full"),
];

/// SplitMix64 (Steele, Lea and Flood 2014): a few lines of arithmetic that no library's next
/// version can change.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from 0 to `n - 1`.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Someone else than `person`.
    fn other_than(&mut self, person: &Person) -> &'static Person {
        loop {
            let other = self.pick(&PEOPLE);
            if other.name != person.name {
                return other;
            }
        }
    }
}

impl Person {
    /// At the start of a sentence.
    fn they(&self) -> &'static str {
        if self.she { "She" } else { "He" }
    }

    fn their(&self) -> &'static str {
        if self.she { "her" } else { "his" }
    }
}

/// "one egg", "seven eggs".
fn amount(n: usize, (one, many): (&str, &str)) -> String {
    format!("{} {}", NUMBERS[n], if n == 1 { one } else { many })
}

fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'u']) {
        "an"
    } else {
        "a"
    }
}

/// Stories, one after the other with an empty line between, until there are `bytes` of them.
pub fn generate(seed: u64, bytes: usize) -> String {
    let random = &mut Random(seed);
    let mut text = String::new();
    while text.len() < bytes {
        let person = random.pick(&PEOPLE);
        let story = match random.below(8) {
            0 => portrait(person, random),
            1 => market(person, random),
            2 => lost_pet(person, random),
            3 => conversation(person, random),
            4 => working_day(person, random),
            5 => lesson(person, random),
            6 => present(person, random),
            _ => journey(person, random),
        };
        let _ = write!(text, "{story}\n\n");
    }
    text
}

fn portrait(p: &Person, random: &mut Random) -> String {
    let neighbours: Vec<&Person> = PEOPLE
        .iter()
        .filter(|other| other.town == p.town && other.name != p.name)
        .collect();
    let neighbour = random.pick(&neighbours);
    let (they, their) = (p.they(), p.their());
    let ending = match random.below(3) {
        0 => format!(
            "{they} always wears something {}, because {} is {their} favourite colour.",
            p.colour, p.colour
        ),
        1 => format!(
            "{they} lives next to {} the {}.",
            neighbour.name, neighbour.trade
        ),
        _ => format!(
            "Everyone in {} knows {} and {their} {}.",
            p.town, p.name, p.pet
        ),
    };
    format!(
        "{} is {} {} in {}. {they} has {} {} called {}. {ending}",
        p.name,
        article(p.trade),
        p.trade,
        p.town,
        article(p.pet),
        p.pet,
        p.pet_name
    )
}

fn market(p: &Person, random: &mut Random) -> String {
    let goods = *random.pick(&GOODS);
    let bought = random.between(1, 9);
    let left = random.between(1, 10);
    let day = random.pick(&DAYS);
    let coin = ("coin", "coins");
    format!(
        "On {day} {name} the {trade} went to the market in {town}. {they} had {had}. {they} bought {goods} for {price}, one coin each. \
         Then {they2} had {left} left, and {they2} went home to {pet}.",
        name = p.name,
        trade = p.trade,
        town = p.town,
        they = p.they(),
        they2 = p.they().to_lowercase(),
        had = amount(bought + left, coin),
        goods = amount(bought, goods),
        price = amount(bought, coin),
        left = amount(left, coin),
        pet = p.pet_name,
    )
}

fn lost_pet(p: &Person, random: &mut Random) -> String {
    let friend = random.other_than(p);
    let place = random.pick(&PLACES);
    let wrong = random.pick(&PLACES);
    let first = if wrong == place {
        "in the garden"
    } else {
        wrong
    };
    format!(
        "One morning {pet} the {animal} was gone. {name} looked {first}, but {pet} was not there. {they} asked {friend} the {trade} for \
         help. Together they looked {place}, and there was {pet}, fast asleep. \"Thank you, {friend},\" said {name}, and took {pet} home to \
         {town}.",
        pet = p.pet_name,
        animal = p.pet,
        name = p.name,
        they = p.they(),
        friend = friend.name,
        trade = friend.trade,
        town = p.town,
    )
}

fn conversation(p: &Person, random: &mut Random) -> String {
    let other = random.other_than(p);
    let (a, b) = (p.name, other.name);
    let mut lines = vec![
        format!("\"Good morning, {a},\" said {b}."),
        format!("\"Good morning, {b},\" said {a}."),
    ];
    let mut topics = [0, 1, 2, 3];
    // Shuffled, so that neither the order nor the number of questions is a rule.
    for i in (1..topics.len()).rev() {
        topics.swap(i, random.below(i + 1));
    }
    for topic in &topics[..random.between(1, 3)] {
        let (question, answer) = match topic {
            0 => (
                "Where do you live".to_string(),
                format!("I live in {}", p.town),
            ),
            1 => (
                "What is your trade".to_string(),
                format!("I am {} {}", article(p.trade), p.trade),
            ),
            2 => (
                format!("What is your {} called", p.pet),
                format!("My {} is called {}", p.pet, p.pet_name),
            ),
            _ => (
                "Which colour do you like best".to_string(),
                format!("I like {} best", p.colour),
            ),
        };
        lines.push(format!("\"{question}?\" asked {b}."));
        lines.push(format!("\"{answer},\" said {a}."));
    }
    lines.push(format!(
        "\"Goodbye, {a},\" said {b}, and went back to {}.",
        other.town
    ));
    lines.join("\n")
}

fn working_day(p: &Person, random: &mut Random) -> String {
    let (sky, answer) = random.pick(&WEATHER);
    let day = random.below(DAYS.len());
    let hours = random.between(2, 9);
    let start = random.between(6, 10);
    format!(
        "{sky} in {town} on {today}, so {name} {answer}. {they} {work} for {hours} hours, from {start} until {end} o'clock. \"Tomorrow is \
         {tomorrow},\" said {name} to {pet}, \"and we will do it all again.\"",
        town = p.town,
        today = DAYS[day],
        tomorrow = DAYS[(day + 1) % 7],
        name = p.name,
        they = p.they(),
        work = p.work,
        hours = NUMBERS[hours],
        start = NUMBERS[start],
        end = NUMBERS[start + hours],
        pet = p.pet_name,
    )
}

fn lesson(p: &Person, random: &mut Random) -> String {
    let mut lines = vec![format!(
        "Nadia the teacher asked {} some questions.",
        if p.name == "Nadia" {
            "the children"
        } else {
            p.name
        }
    )];
    for _ in 0..random.between(2, 4) {
        lines.push(match random.below(4) {
            0 => {
                let (a, b) = (random.between(0, 10), random.between(0, 10));
                format!(
                    "Question: What is {} plus {}? Answer: {}.",
                    NUMBERS[a],
                    NUMBERS[b],
                    NUMBERS[a + b]
                )
            }
            1 => {
                let (a, b) = (random.between(0, 10), random.between(0, 10));
                format!(
                    "Question: What is {} minus {}? Answer: {}.",
                    NUMBERS[a + b],
                    NUMBERS[b],
                    NUMBERS[a]
                )
            }
            2 => {
                let day = random.below(7);
                format!(
                    "Question: Which day comes after {}? Answer: {}.",
                    DAYS[day],
                    DAYS[(day + 1) % 7]
                )
            }
            _ => {
                let (one, other) = *random.pick(&OPPOSITES);
                let (one, other) = if random.below(2) == 0 {
                    (one, other)
                } else {
                    (other, one)
                };
                format!("Question: What is the opposite of {one}? Answer: {other}.")
            }
        });
    }
    lines.join("\n")
}

fn present(p: &Person, random: &mut Random) -> String {
    let friend = random.other_than(p);
    let thing = random.pick(&THINGS);
    format!(
        "{friend} wanted to give {name} a present. \"{name} likes {colour} best,\" thought {friend}, and so {friend} made {article} {colour} \
         {thing}. On {day} {friend} brought it to {town}. \"What a fine {thing}!\" said {name}. Even {pet} the {animal} came to look at \
         the {colour} {thing}.",
        friend = friend.name,
        name = p.name,
        colour = p.colour,
        article = article(p.colour),
        day = random.pick(&DAYS),
        town = p.town,
        pet = p.pet_name,
        animal = p.pet,
    )
}

fn journey(p: &Person, random: &mut Random) -> String {
    let friend = loop {
        let other = random.other_than(p);
        if other.town != p.town {
            break other;
        }
    };
    let start = random.below(7);
    let days = random.between(1, 5);
    let unit = if days == 1 { "day" } else { "days" };
    format!(
        "{name} wanted to see {friend}, who lives in {far}. {they} left {home} on {start} and walked for {days} {unit}. On {end} {they2} came \
         to {far}. {friend} the {trade} stood at the door with {pet} the {animal}. \"Welcome to {far}, {name},\" said {friend}.",
        name = p.name,
        they = p.they(),
        they2 = p.they().to_lowercase(),
        friend = friend.name,
        far = friend.town,
        home = p.town,
        start = DAYS[start],
        days = NUMBERS[days],
        end = DAYS[(start + days) % 7],
        trade = friend.trade,
        pet = friend.pet_name,
        animal = friend.pet,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn corpus_is_what_the_generator_writes() {
        let generated = generate(SEED, BYTES);
        if std::env::var_os("XTRAIN_WRITE_CORPUS").is_some() {
            let path =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("src/commands/quickstart/corpus.txt");
            std::fs::write(path, &generated).unwrap();
            return;
        }
        assert!(
            TEXT == generated,
            "quickstart/corpus.txt is not what the generator writes: run `XTRAIN_WRITE_CORPUS=1 cargo test corpus`"
        );
        assert!(TEXT.len() >= 300_000 && TEXT.is_ascii());
    }

    #[test]
    fn seeds_matter_and_repeat() {
        assert_eq!(generate(1, 5000), generate(1, 5000));
        assert_ne!(generate(1, 5000), generate(2, 5000));
    }

    /// There is something to learn and something left to guess: few words, many different stories.
    #[test]
    fn it_is_regular_but_not_repetitive() {
        let stories: Vec<&str> = TEXT
            .split("\n\n")
            .filter(|story| !story.is_empty())
            .collect();
        let different: std::collections::BTreeSet<&&str> = stories.iter().collect();
        let words: std::collections::BTreeSet<&str> = TEXT.split_whitespace().collect();
        println!(
            "{} stories, {} different, {} words",
            stories.len(),
            different.len(),
            words.len()
        );
        assert!(different.len() * 10 >= stories.len() * 7);
        assert!((300..1500).contains(&words.len()));
    }

    #[test]
    fn sums_come_out_right() {
        let value = |word: &str| NUMBERS.iter().position(|number| *number == word).unwrap();
        let mut sums = 0;
        for line in TEXT.lines() {
            let Some((question, answer)) = line
                .strip_prefix("Question: What is ")
                .and_then(|rest| rest.split_once("? Answer: "))
            else {
                continue;
            };
            let answer = answer.trim_end_matches('.');
            if let Some((a, b)) = question.split_once(" plus ") {
                assert_eq!(value(a) + value(b), value(answer), "{line}");
            } else if let Some((a, b)) = question.split_once(" minus ") {
                assert_eq!(value(a) - value(b), value(answer), "{line}");
            } else {
                continue;
            }
            sums += 1;
        }
        assert!(sums > 200, "{sums}");
    }
}
