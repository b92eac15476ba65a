//! Identities and names: the same state has one name, and no two states share one.

use std::fmt::Write as _;

use arbitrary::Arbitrary;
use limiter_core::{Key, Policy, fuzzing};
use sha2::{Digest, Sha256};

/// The longest part of a name that is not a hash.
const MAX_PART_BYTES: usize = 200;

/// The attributes that distinguish two states.
#[derive(Arbitrary, Debug)]
pub struct Identity {
    namespace: String,
    policy: String,
    algorithm: Algorithm,
    policys_group: Option<String>,
    key: Vec<Piece>,
    group: Option<Vec<Piece>>,
    /// Makes parts that are hashed likely.
    repeated: u8,
}

#[derive(Arbitrary, Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    TokenBucket,
    Funnel,
    SlidingWindow,
    CounterWindow,
    FixedWindow,
}

/// A piece of a key.
#[derive(Arbitrary, Debug)]
enum Piece {
    Text(String),
    Part(String),
    Bytes(Vec<u8>),
}

/// A key's bytes; a colon that came with a part is another one than a colon between parts.
type Letters = Vec<(u8, bool)>;

/// The identity, in a form without escaping.
#[derive(Debug, PartialEq, Eq)]
struct Meaning<'a> {
    namespace: &'a str,
    policy: &'a str,
    algorithm: Algorithm,
    group: Option<Letters>,
    key: Letters,
}

/// Holds for any two identities.
pub fn check(two: &[Identity; 2]) {
    let [Some(first), Some(second)] = two.each_ref().map(Identity::name) else {
        return;
    };
    let [one, other] = two.each_ref().map(Identity::meaning);
    assert_eq!(first == second, one == other, "{first} and {second}");
    assert_eq!(first, one.name());
}

impl Identity {
    /// Returns the name of the key; `None` where no policy can have such a name or group.
    fn name(&self) -> Option<String> {
        let group = self.policys_group.as_ref();
        let policy = match self.algorithm {
            Algorithm::SlidingWindow => {
                let policy = Policy::sliding_window(&self.policy).limit(1).window("1s");
                group
                    .into_iter()
                    .fold(policy, |policy, group| policy.group(group))
                    .build()
            }
            Algorithm::CounterWindow => {
                let policy = Policy::counter_window(&self.policy).limit(1).window("1s");
                group
                    .into_iter()
                    .fold(policy, |policy, group| policy.group(group))
                    .build()
            }
            Algorithm::FixedWindow => {
                let policy = Policy::fixed_window(&self.policy).limit(1).window("1s");
                group
                    .into_iter()
                    .fold(policy, |policy, group| policy.group(group))
                    .build()
            }
            level => {
                let new =
                    [Policy::funnel, Policy::token_bucket][usize::from(level == Algorithm::TokenBucket)];
                let policy = new(self.policy.clone()).capacity(1).rate(1);
                group
                    .into_iter()
                    .fold(policy, |policy, group| policy.group(group))
                    .build()
            }
        };
        let mut key = self.key(&self.key);
        if let Some(group) = &self.group {
            key = key.in_group(self.key(group));
        }
        let name = fuzzing::redis_name(&self.namespace, &policy.ok()?, &key).expect("one limit that fits");
        self.check_name(&name);
        Some(name)
    }

    fn key(&self, pieces: &[Piece]) -> Key<'static> {
        let times = 1 + usize::from(self.repeated % 8);
        let mut key = Key::global();
        for (place, piece) in pieces.iter().cycle().take(pieces.len() * times).enumerate() {
            key = match piece {
                Piece::Text(text) => key.text(text),
                Piece::Part(text) => key.part(text),
                // Bytes begin a key; in its midst they are text.
                Piece::Bytes(bytes) if place == 0 => Key::from(&**bytes).into_owned(),
                Piece::Bytes(bytes) => key.text(&String::from_utf8_lossy(bytes)),
            };
        }
        key
    }

    fn letters(&self, pieces: &[Piece]) -> Letters {
        let times = 1 + usize::from(self.repeated % 8);
        let mut letters = Letters::new();
        for (place, piece) in pieces.iter().cycle().take(pieces.len() * times).enumerate() {
            match piece {
                Piece::Text(text) => letters.extend(text.bytes().map(|byte| (byte, false))),
                Piece::Part(text) => letters.extend(text.bytes().map(|byte| (byte, byte == b':'))),
                Piece::Bytes(bytes) if place == 0 => letters.extend(bytes.iter().map(|byte| (*byte, false))),
                Piece::Bytes(bytes) => {
                    letters.extend(String::from_utf8_lossy(bytes).bytes().map(|byte| (byte, false)));
                }
            }
        }
        letters
    }

    fn meaning(&self) -> Meaning<'_> {
        let policys = self.policys_group.as_ref();
        let policys = policys.map(|group| group.bytes().map(|byte| (byte, false)).collect());
        Meaning {
            namespace: &self.namespace,
            policy: &self.policy,
            algorithm: self.algorithm,
            group: self.group.as_ref().map(|group| self.letters(group)).or(policys),
            key: self.letters(&self.key),
        }
    }

    /// Bounded and printable, with one tag in braces and our separators: user input cannot appear
    /// unescaped.
    fn check_name(&self, name: &str) {
        assert!(name.len() <= 4 * MAX_PART_BYTES + 10, "{name}");
        assert!(name.bytes().all(|byte| byte.is_ascii_graphic()), "{name}");
        let count = |letter: char| name.matches(letter).count();
        let group = self.group.is_some() || self.policys_group.is_some();
        assert_eq!(
            (count('{'), count('}'), count('|')),
            (1, 1, if group { 4 } else { 3 }),
            "{name}"
        );
        let tag = name.split(['{', '}']).nth(1).expect("a tag");
        assert!(
            !tag.is_empty(),
            "an empty tag makes the whole name the tag: {name}"
        );
        assert_eq!(fuzzing::slot(name), fuzzing::slot(tag), "{name}");
    }
}

impl Meaning<'_> {
    /// Returns the name according to the documentation of the key layout.
    fn name(&self) -> String {
        let text = |text: &str| part(&text.bytes().map(|byte| (byte, false)).collect::<Letters>());
        let algorithm = match self.algorithm {
            Algorithm::TokenBucket => "tb",
            Algorithm::Funnel => "fn",
            Algorithm::SlidingWindow => "sw",
            Algorithm::CounterWindow => "cw",
            Algorithm::FixedWindow => "fw",
        };
        let tag = part(self.group.as_ref().unwrap_or(&self.key));
        let tag = if tag.is_empty() { "%" } else { &tag };
        let mut name = format!(
            "{}|{algorithm}|{}|{{{tag}}}",
            text(self.namespace),
            text(self.policy)
        );
        if self.group.is_some() {
            let _ = write!(name, "|{}", part(&self.key));
        }
        name
    }
}

fn part(letters: &Letters) -> String {
    let mut part = String::new();
    for &(byte, apart) in letters {
        if byte.is_ascii_graphic() && !apart && !b"{}|%~".contains(&byte) {
            part.push(char::from(byte));
        } else {
            let _ = write!(part, "%{byte:02X}");
        }
    }
    if part.len() <= MAX_PART_BYTES {
        return part;
    }
    let hash = Sha256::digest(&part);
    hash.iter()
        .take(16)
        .fold("~".to_owned(), |hashed, byte| format!("{hashed}{byte:02x}"))
}
