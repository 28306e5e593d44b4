//! Which topics a white or black list covers, as a JVM member of each release would say.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fmt;

use fancy_regex::Regex;
use fancy_regex::RegexBuilder;

use crate::error::Error;
use crate::error::Result;
use crate::error::printable;
use crate::group::ConsumerId;
use crate::group::GroupView;
use crate::group::Pattern;
use crate::group::Subscription;
use crate::group::Subscriptions;
use crate::group::Topic;

pub use crate::config::InternalTopics;

mod java;

/// How often matching one name may turn back before the answer is [`Matches::Beyond`].
const MAX_STEPS: usize = 10_000;
/// How large a compiled expression, or one delegated part of it, may get, in bytes.
const MAX_SIZE: usize = 1 << 20;
/// After so many names past the bound on steps, a filter is not tried on the others.
const MAX_BEYOND: usize = 16;

/// Whether a filter covers a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matches {
    /// It does.
    Yes,
    /// It does not.
    No,
    /// We cannot tell, for this reason; a JVM member may say either.
    Beyond {
        /// Why, fit for a log line.
        reason: String,
    },
}

/// A white or black list over topic names, in Java's dialect (L-35 to L-40).
///
/// The text goes through the cleaning of L-35 first: `t1,t2` means `t1|t2`. A name is covered if the *whole* of it
/// matches (white list) or does not match (black list). An empty white list covers nothing, an empty black list all.
///
/// Internal topics are another matter: see [`InternalTopics`] and [`expand`].
#[derive(Clone)]
pub struct TopicFilter {
    pattern: Pattern,
    text: String,
    regex: Regex,
}

impl TopicFilter {
    /// Cleans and compiles the text.
    ///
    /// # Errors
    /// [`Config`](crate::error::ErrorKind::Config) if the pattern is [`Pattern::Static`], the text is no Java
    /// expression, or it is one whose meaning here we could not vouch for; the message names the construct.
    pub fn new(pattern: Pattern, text: &str) -> Result<Self> {
        if pattern == Pattern::Static {
            return Err(Error::config("a static subscription has no topic filter"));
        }
        let cleaned = clean(text);
        let refused = |reason: String| {
            let shown = printable(&cleaned);
            Error::config(format!("topic filter \"{shown}\" is refused: {reason}"))
        };
        let ours = java::rewrite(&cleaned).map_err(|what| refused(format!("it has {what}")))?;
        let regex = RegexBuilder::new(&ours)
            .backtrack_limit(MAX_STEPS)
            .delegate_size_limit(MAX_SIZE)
            .delegate_dfa_size_limit(MAX_SIZE)
            .build()
            .map_err(|_| {
                refused("it is too large, or looks behind over a varying length".into())
            })?;
        Ok(Self {
            pattern,
            text: cleaned,
            regex,
        })
    }

    /// White or black list.
    pub fn pattern(&self) -> Pattern {
        self.pattern
    }

    /// The text after cleaning, which is what a registration holds (L-26); cleaning it again
    /// changes nothing but for a control character that stood next to a quote (L-37).
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the filter covers the topic. Internal topics are not treated apart.
    pub fn matches(&self, topic: &Topic) -> Matches {
        match self.regex.is_match(topic.as_str()) {
            Ok(is_match) if is_match == (self.pattern == Pattern::WhiteList) => Matches::Yes,
            Ok(_) => Matches::No,
            Err(_) => Matches::Beyond {
                reason: format!(
                    "topic filter \"{}\" takes more than {MAX_STEPS} steps on topic {topic}",
                    printable(&self.text)
                ),
            },
        }
    }
}

impl fmt::Debug for TopicFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} \"{}\"", self.pattern, printable(&self.text))
    }
}

/// Makes the expression of a configured or registered text (L-35): blanks and quotes off, commas to bars.
pub fn clean(text: &str) -> String {
    text.trim_matches(|c| c <= ' ')
        .replace(',', "|")
        .replace(' ', "")
        .trim_matches(['\'', '"'])
        .to_owned()
}

/// Who subscribes to what, once filters have become topics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expansion {
    /// The topics of every member that we are sure of. A member without any is there with an empty map.
    pub subscriptions: Subscriptions,
    /// Topics that some filter beyond us may or may not cover: what is held of them is kept, nothing new is claimed.
    pub unsure: BTreeSet<Topic>,
    /// The members whose filters are beyond us, and why; empty exactly if nothing was beyond us.
    pub beyond: BTreeMap<ConsumerId, String>,
}

/// Turns every member's subscription into topics with stream counts, as a reader with this rule for internal topics does
/// (L-29, L-30, L-37).
///
/// Topics named one by one are taken as they stand, whether they exist or not. Filters see the topics that exist,
/// `view.topics`, without internal ones; a filter that we cannot read makes all of these [`unsure`](Expansion::unsure), one that takes
/// too long on some names makes those so. Each registration is applied exactly as it stands: a JVM member of 1.0.1 or later
/// that wrote its backslashes twice obeys the doubled text, and so do we (L-27).
pub fn expand(view: &GroupView, internal: InternalTopics) -> Expansion {
    let mut expansion = Expansion::default();
    let mut seen: BTreeMap<(bool, &str), Covered<'_>> = BTreeMap::new();
    for (id, member) in &view.members {
        let topics = match &member.subscription {
            Subscription::Topics(topics) => topics.clone(),
            Subscription::Filter {
                pattern,
                regex,
                streams,
            } => {
                let covered = seen
                    .entry((*pattern == Pattern::BlackList, regex))
                    .or_insert_with(|| Covered::of(*pattern, regex, &view.topics, internal));
                if let Some(reason) = &covered.reason {
                    expansion.beyond.insert(id.clone(), reason.clone());
                    expansion
                        .unsure
                        .extend(covered.unsure.iter().copied().cloned());
                }
                covered
                    .sure
                    .iter()
                    .map(|topic| ((*topic).clone(), *streams))
                    .collect()
            }
        };
        expansion.subscriptions.insert(id.clone(), topics);
    }
    expansion
}

/// What one filter covers.
struct Covered<'a> {
    sure: Vec<&'a Topic>,
    unsure: Vec<&'a Topic>,
    reason: Option<String>,
}

impl<'a> Covered<'a> {
    fn of(
        pattern: Pattern,
        text: &str,
        topics: &'a BTreeSet<Topic>,
        internal: InternalTopics,
    ) -> Self {
        let mut covered = Self {
            sure: Vec::new(),
            unsure: Vec::new(),
            reason: None,
        };
        let seen = topics.iter().filter(|topic| !internal.has(topic.as_str()));
        match TopicFilter::new(pattern, text) {
            Ok(filter) => seen.for_each(|topic| covered.add(&filter, topic)),
            Err(refusal) => {
                covered.unsure = seen.collect();
                covered.reason = Some(refusal.to_string());
            }
        }
        covered
    }

    fn add(&mut self, filter: &TopicFilter, topic: &'a Topic) {
        if self.unsure.len() >= MAX_BEYOND {
            self.unsure.push(topic);
            return;
        }
        match filter.matches(topic) {
            Matches::Yes => self.sure.push(topic),
            Matches::No => {}
            Matches::Beyond { reason } => {
                self.unsure.push(topic);
                self.reason.get_or_insert(reason);
            }
        }
    }
}

#[cfg(test)]
mod tests;
