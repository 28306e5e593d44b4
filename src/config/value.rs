//! One value read by its rule, with errors that say where it stands and what is wanted.

use std::time::Duration;

use crate::config::Config;
use crate::config::choice::Reset;
use crate::config::properties::Value;
use crate::error::Error;
use crate::error::Result;
use crate::error::printable;

impl Value {
    /// ` at line 7`, or nothing.
    pub(super) fn place(&self) -> String {
        self.line
            .map_or_else(String::new, |line| format!(" at line {line}"))
    }

    /// The value is refused; `rule` says what is wanted or why.
    pub(super) fn refused(&self, rule: impl AsRef<str>) -> Error {
        Error::config(format!(
            "{} \"{}\"{} is refused: {}",
            self.key,
            printable(&self.text),
            self.place(),
            rule.as_ref()
        ))
    }

    /// Java's `Integer.parseInt`, but for digits of other scripts.
    pub(super) fn int(&self) -> Result<i32> {
        self.text
            .parse()
            .map_err(|_| self.refused("a whole number within 32 bits is wanted"))
    }

    pub(super) fn at_least(&self, least: u32) -> Result<u32> {
        let value = self.int()?;
        match u32::try_from(value) {
            Ok(value) if value >= least => Ok(value),
            _ => Err(self.refused(format!("a whole number of {least} or more is wanted"))),
        }
    }

    pub(super) fn positive(&self) -> Result<u32> {
        self.at_least(1)
    }

    pub(super) fn positive_ms(&self) -> Result<Duration> {
        Ok(millis(self.at_least(1)?))
    }

    pub(super) fn ms(&self) -> Result<Duration> {
        Ok(millis(self.at_least(0)?))
    }

    /// A number from 0 that the Kafka client bears only between two bounds; outside, the nearer bound is taken and told.
    pub(super) fn clamped(&self, least: u32, most: u32, notes: &mut Vec<String>) -> Result<u32> {
        let value = self.at_least(0)?;
        let taken = value.clamp(least, most);
        if taken != value {
            let place = self.place();
            notes.push(format!(
                "{} {value}{place} is taken as {taken}: the Kafka client bears {least} to {most}",
                self.key
            ));
        }
        Ok(taken)
    }

    pub(super) fn clamped_ms(
        &self,
        least: u32,
        most: u32,
        notes: &mut Vec<String>,
    ) -> Result<Duration> {
        self.clamped(least, most, notes).map(millis)
    }

    pub(super) fn boolean(&self) -> Result<bool> {
        match self.text.as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(self.refused("exactly true or false is wanted")),
        }
    }

    /// One of some words.
    pub(super) fn word<T: Word>(&self) -> Result<T> {
        T::ALL
            .iter()
            .find(|(word, _)| *word == self.text)
            .map(|(_, value)| *value)
            .ok_or_else(|| {
                let words: Vec<&str> = T::ALL.iter().map(|(word, _)| *word).collect();
                self.refused(format!("one of {} is wanted", words.join(", ")))
            })
    }

    /// Characters as in a group's name, but possibly none.
    pub(super) fn plain(&self) -> Result<String> {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if self.text.bytes().all(is_plain) {
            Ok(self.text.clone())
        } else {
            Err(self.refused("only A-Z a-z 0-9 . _ - may stand here"))
        }
    }
}

fn millis(count: u32) -> Duration {
    Duration::from_millis(count.into())
}

/// A choice between words.
pub(super) trait Word: Copy + PartialEq + 'static {
    const ALL: &'static [(&'static str, Self)];

    fn as_word(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, value)| *value == self)
            .map_or("", |(word, _)| word)
    }
}

macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum $name { $($(#[$each])* $variant),* }

        impl crate::config::value::Word for $name {
            const ALL: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),*];
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(crate::config::value::Word::as_word(*self))
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::error::Error;

            fn from_str(text: &str) -> crate::error::Result<Self> {
                let all = <Self as crate::config::value::Word>::ALL;
                let found = all.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
                found.ok_or_else(|| {
                    let words: Vec<&str> = all.iter().map(|(word, _)| *word).collect();
                    let text = crate::error::printable(text);
                    crate::error::Error::config(format!("\"{text}\" is refused: it is one of {}", words.join(", ")))
                })
            }
        }
    };
}
pub(super) use words;

/// The rules of single keys.
impl Value {
    /// The same with the reason that another room gives.
    pub(super) fn refused_by(&self, cause: &Error) -> Error {
        Error::config(format!("{cause}{}", self.place()))
    }

    pub(super) fn backoff(&self, notes: &mut Vec<String>) -> Result<Duration> {
        let backoff = self.ms()?;
        if backoff.is_zero() {
            notes.push(format!("{} 0{} is taken as 1", self.key, self.place()));
            return Ok(Duration::from_millis(1));
        }
        Ok(backoff)
    }

    pub(super) fn socket_timeout(&self, notes: &mut Vec<String>) -> Result<Duration> {
        if self.int()? == 0 {
            let place = self.place();
            notes.push(format!(
                "{} 0{place} is taken as 300000, the longest that the Kafka client bears",
                self.key
            ));
            return Ok(Duration::from_millis(300_000));
        }
        self.clamped_ms(10, 300_000, notes)
    }

    /// Without the timer any number will do, as with the JVM.
    pub(super) fn commit_interval(&self, config: &mut Config) -> Result<()> {
        if !config.auto_commit && self.int()? < 1 {
            return Ok(());
        }
        config.auto_commit_interval = self.positive_ms()?;
        Ok(())
    }

    pub(super) fn reset(&self) -> Result<Reset> {
        let old = match self.text.as_str() {
            "earliest" => "smallest",
            "latest" => "largest",
            _ => return self.word(),
        };
        Err(self.refused(format!(
            "that is the newer consumer's word, here it is {old}"
        )))
    }

    pub(super) fn brokers(&self) -> Result<Vec<String>> {
        let brokers = self
            .text
            .split(',')
            .map(str::trim)
            .filter(|b| !b.is_empty());
        let brokers: Vec<String> = brokers.map(str::to_owned).collect();
        let is_host = |b: &String| b.bytes().all(|b| b.is_ascii_graphic()) && !b.starts_with(':');
        if brokers.is_empty() || !brokers.iter().all(is_host) {
            return Err(self.refused("host:port,host:port is wanted"));
        }
        Ok(brokers)
    }
}
