//! One setting: its value, and the place where somebody wrote it.

use super::error::Origin;
use super::kind::{Kind, Optional, Wrong};
use std::collections::BTreeMap;
use std::ops::Deref;

/// Reads as its value; not `Clone`, so that `clone` is the value's too.
#[derive(Debug, PartialEq)]
pub struct Setting<T> {
    name: &'static str,
    value: T,
    /// `None`: nobody gave it, and the value is the default.
    origin: Option<Origin>,
}

impl<T> Setting<T> {
    /// With the default of a kind that always has one.
    pub fn with_default<K: Kind<Value = T>>(name: &'static str, default: &str) -> Setting<T> {
        let value = K::parse(default)
            .unwrap_or_else(|_| panic!("the flag table has an illegal default for {name}"));
        Setting {
            name,
            value,
            origin: None,
        }
    }

    /// Without a default.
    pub fn absent<K: Optional<Value = T>>(name: &'static str) -> Setting<T> {
        Setting {
            name,
            value: K::absent(),
            origin: None,
        }
    }

    /// Reads a value that somebody gave. One that was given before wins, so the command line is
    /// taken first and the file after it.
    ///
    /// # Errors
    /// The texts are no value of the kind.
    pub fn take<K: Kind<Value = T>>(
        &mut self,
        texts: &[String],
        origin: Origin,
    ) -> Result<(), Wrong> {
        let value = K::parse_all(texts)?;
        if self.origin.is_none() {
            self.value = value;
            self.origin = Some(origin);
        }
        Ok(())
    }

    /// Replaces a given value by the one that it stands for.
    pub fn set(&mut self, value: T) {
        self.value = value;
        self.origin.get_or_insert(Origin::CommandLine);
    }

    /// The flag's name, in snake_case.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Whether somebody gave it.
    pub fn is_given(&self) -> bool {
        self.origin.is_some()
    }

    /// The flag's name, if somebody gave it.
    pub fn given_name(&self) -> Option<&'static str> {
        self.is_given().then_some(self.name)
    }
}

/// The given values by name, as typed. Two command lines that spell a value differently are equal.
#[derive(Debug, Default)]
pub struct Typed(pub BTreeMap<&'static str, String>);

impl PartialEq for Typed {
    fn eq(&self, _other: &Typed) -> bool {
        true
    }
}

impl Setting<bool> {
    /// The flag's name, if it is true.
    pub fn name_if_true(&self) -> Option<&'static str> {
        self.value.then_some(self.name)
    }
}

impl<T> Deref for Setting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
