//! Keys and values with the lines they stand on, as Java reads a properties file.

use std::collections::BTreeMap;
use std::io::Read;

use java_properties::LineContent;
use java_properties::PropertiesIter;

use crate::error::Error;
use crate::error::Result;
use crate::error::printable;

/// The largest file that is read, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// One value with its key and, if it came from a file, its line.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) key: String,
    /// Trimmed as Java trims.
    pub(super) text: String,
    pub(super) line: Option<usize>,
}

/// Keys and values; of equal keys the last counts.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Properties {
    values: Vec<Value>,
}

impl Properties {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads a file's bytes: ISO-8859-1 with `\uXXXX` escapes, as Java does.
    ///
    /// # Errors
    /// [`Config`](crate::error::ErrorKind::Config) for a malformed escape, naming the line; for what cannot be read; and for
    /// more than 1 MiB.
    pub fn read(reader: impl Read) -> Result<Self> {
        let mut bytes = Vec::new();
        reader
            .take(MAX_SIZE + 1)
            .read_to_end(&mut bytes)
            .map_err(|cause| Error::config("the properties cannot be read").with_source(cause))?;
        Self::parse_chars(bytes.iter().map(|byte| char::from(*byte)))
    }

    /// Reads text that is decoded already.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_chars(text.chars())
    }

    /// Sets a key, over whatever was there.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl AsRef<str>) -> Self {
        self.push(key.into(), value.as_ref(), None);
        self
    }

    fn parse_chars(chars: impl Iterator<Item = char>) -> Result<Self> {
        let text = plain(chars);
        if text.len() as u64 > MAX_SIZE {
            return Err(Error::config("the properties are larger than 1 MiB"));
        }
        let mut properties = Self::new();
        for line in PropertiesIter::new(text.as_bytes()) {
            let line = line.map_err(malformed)?;
            let number = line.line_number();
            if let LineContent::KVPair(key, value) = line.consume_content() {
                properties.push(key, &value, Some(number));
            }
        }
        Ok(properties)
    }

    fn push(&mut self, key: String, value: &str, line: Option<usize>) {
        let text = value.trim_matches(|c| c <= ' ').to_owned();
        self.values.push(Value { key, text, line });
    }

    /// The last value of every key, by key.
    pub(super) fn last(&self) -> BTreeMap<&str, &Value> {
        self.values.iter().map(|v| (v.key.as_str(), v)).collect()
    }

    /// What was said twice in the file itself; a value set over the file's is meant to win.
    pub(super) fn doubled(&self) -> Vec<String> {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let mut told = Vec::new();
        for value in &self.values {
            let Some(line) = value.line else { continue };
            if let Some(first) = seen.insert(&value.key, line) {
                let key = printable(&value.key);
                told.push(format!(
                    "{key} stands on lines {first} and {line}, the last one counts"
                ));
            }
        }
        told
    }
}

impl<K: Into<String>, V: AsRef<str>> FromIterator<(K, V)> for Properties {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        pairs
            .into_iter()
            .fold(Self::new(), |all, (key, value)| all.with(key, value))
    }
}

fn malformed(cause: java_properties::PropertiesError) -> Error {
    let line = cause
        .line_number()
        .map_or_else(String::new, |line| format!(" at line {line}"));
    Error::config(format!(
        "the properties are malformed{line}: behind \\u come four hexadecimal digits of a character"
    ))
}

/// The same properties in ASCII, comments emptied.
///
/// The library below takes bytes for windows-1252, reads escapes in comments, and forgets a last line that ends in a backslash.
fn plain(chars: impl Iterator<Item = char>) -> String {
    let text: String = chars.collect();
    let mut out = String::new();
    let mut goes_on = false;
    for line in text.replace("\r\n", "\n").split(['\n', '\r']) {
        let is_comment = !goes_on
            && line
                .trim_start_matches([' ', '\t', '\x0c'])
                .starts_with(['#', '!']);
        if !is_comment {
            line.chars().for_each(|c| push_plain(c, &mut out));
        }
        let backslashes = line.chars().rev().take_while(|c| *c == '\\').count();
        goes_on = !is_comment && backslashes % 2 == 1;
        out.push('\n');
    }
    out.push('\n');
    out
}

fn push_plain(c: char, out: &mut String) {
    if c.is_ascii() {
        out.push(c);
    } else if (c as u32) < 0x1_0000 {
        out.push_str(&format!("\\u{:04x}", c as u32));
    } else {
        // No key or value of ours has one, and the library below cannot join surrogates.
        out.push_str("\\ufffd");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(properties: &Properties) -> Vec<(&str, &str, usize)> {
        let values = properties.values.iter();
        values
            .map(|v| (v.key.as_str(), v.text.as_str(), v.line.unwrap_or(0)))
            .collect()
    }

    #[test]
    fn a_file_is_read_as_java_reads_it() {
        let text = "# a comment with C:\\users\\unknown\n\
                    ! another \\\n\
                    a=1\r\n\
                    b : 2 \n\
                    \n\
                    c 3\t\n\
                    d=x\\\n   y\\\n#z\n\
                    e\\=f=\\u0041\\t\n\
                    g=a=b\n\
                    h\n\
                    last=1\\";
        let properties = Properties::parse(text).unwrap();
        assert_eq!(
            all(&properties),
            [
                ("a", "1", 3),
                ("b", "2", 4),
                ("c", "3", 6),
                ("d", "xy#z", 7),
                ("e=f", "A", 10),
                ("g", "a=b", 11),
                ("h", "", 12),
                ("last", "1", 13),
            ]
        );
    }

    #[test]
    fn bytes_are_latin_1_and_text_is_what_it_says() {
        let properties = Properties::read(&b"k=\xe4\x80"[..]).unwrap();
        assert_eq!(all(&properties), [("k", "ä\u{80}", 1)]);
        let properties = Properties::parse("k=äλ").unwrap();
        assert_eq!(all(&properties), [("k", "äλ", 1)]);
    }

    #[test]
    fn a_malformed_escape_names_its_line() {
        let error = Properties::parse("a=1\nb=\\u12\n").map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("at line 2"), "{error}");
    }

    #[test]
    fn a_file_without_end_is_refused() {
        let error = Properties::read(std::io::repeat(b'a'))
            .map(|_| ())
            .unwrap_err();
        assert!(error.to_string().contains("1 MiB"), "{error}");
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(\\PC|[\\\\=:#! \n\r\tu0]){0,60}") {
            let _ = Properties::parse(&text);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
            let _ = Properties::read(&bytes[..]);
        }
    }
}
