//! Topic filters beside a matcher so plain that it cannot be wrong, for expressions that both know.

use std::collections::BTreeSet;

use evenkeel::Topic;
use evenkeel::filter::Matches;
use evenkeel::filter::TopicFilter;
use evenkeel::filter::clean;
use evenkeel::group::Pattern;

use crate::memory::peak_of;

/// No expression and no name may take more.
const MOST: usize = 64 << 20;
/// Expressions up to here are within every bound.
const SHORT: usize = 40;

enum Node {
    /// One of these characters.
    One(BTreeSet<char>),
    /// One of these sequences.
    Either(Vec<Vec<Node>>),
    /// From so many times on; at most once unless it is repeated.
    Times(Box<Node>, bool, bool),
}

fn names() -> BTreeSet<char> {
    (' '..='~')
        .filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c))
        .collect()
}

/// Letters, digits, `_` and `-`, `.`, groups, alternatives, plain classes, and `*`, `+`, `?` once. `None` for anything else.
struct Reader<'a>(std::iter::Peekable<std::str::Chars<'a>>);

impl Reader<'_> {
    fn whole(text: &str) -> Option<Node> {
        let mut reader = Reader(text.chars().peekable());
        let node = reader.either()?;
        reader.0.next().is_none().then_some(node)
    }

    fn either(&mut self) -> Option<Node> {
        let mut all = vec![self.sequence()?];
        while self.0.next_if_eq(&'|').is_some() {
            all.push(self.sequence()?);
        }
        Some(Node::Either(all))
    }

    fn sequence(&mut self) -> Option<Vec<Node>> {
        let mut nodes = Vec::new();
        while let Some(c) = self.0.next_if(|c| !matches!(c, '|' | ')')) {
            let node = match c {
                '.' => Node::One(names()),
                '(' => {
                    if self.0.peek() == Some(&'?') {
                        return None;
                    }
                    let inner = self.either()?;
                    self.0.next_if_eq(&')')?;
                    inner
                }
                '[' => Node::One(self.class()?),
                c if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') => {
                    Node::One(BTreeSet::from([c]))
                }
                _ => return None,
            };
            nodes.push(self.repeated(node)?);
        }
        Some(nodes)
    }

    fn repeated(&mut self, node: Node) -> Option<Node> {
        let Some(sign) = self.0.next_if(|c| matches!(c, '*' | '+' | '?')) else {
            return Some(node);
        };
        if matches!(self.0.peek(), Some('*' | '+' | '?' | '{')) {
            return None;
        }
        Some(Node::Times(Box::new(node), sign != '+', sign != '?'))
    }

    fn class(&mut self) -> Option<BTreeSet<char>> {
        let mut set = BTreeSet::new();
        loop {
            match self.0.next()? {
                ']' if !set.is_empty() => return Some(set),
                from if from.is_ascii_alphanumeric() => {
                    let mut to = from;
                    if self.0.next_if_eq(&'-').is_some() {
                        to = self.0.next_if(char::is_ascii_alphanumeric)?;
                        if to < from {
                            return None;
                        }
                    }
                    set.extend(from..=to);
                }
                _ => return None,
            }
        }
    }
}

/// Where it may end that began at one of these places.
fn ends(node: &Node, text: &[char], from: &BTreeSet<usize>) -> BTreeSet<usize> {
    match node {
        Node::One(set) => {
            let is_in = |at: &&usize| text.get(**at).is_some_and(|c| set.contains(c));
            from.iter().filter(is_in).map(|at| at + 1).collect()
        }
        Node::Either(all) => all
            .iter()
            .flat_map(|one| through(one, text, from))
            .collect(),
        Node::Times(node, may_be_none, may_be_many) => {
            let mut all = ends(node, text, from);
            let mut more = all.clone();
            while *may_be_many && !more.is_empty() {
                more = ends(node, text, &more);
                more.retain(|at| all.insert(*at));
            }
            if *may_be_none {
                all.extend(from);
            }
            all
        }
    }
}

fn through(nodes: &[Node], text: &[char], from: &BTreeSet<usize>) -> BTreeSet<usize> {
    let step = |from: BTreeSet<usize>, node: &Node| ends(node, text, &from);
    nodes.iter().fold(from.clone(), step)
}

/// D7, D8, L-35 to L-40: an expression and, on the last line, a topic.
pub fn topic_filter(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (text, name) = text.rsplit_once('\n').unwrap_or((&text, "t"));
    let topic = Topic::new(name).unwrap_or_else(|_| Topic::new("t").unwrap());
    let said = |pattern: Pattern| {
        let (said, peak) = peak_of(|| {
            let filter = TopicFilter::new(pattern, text)?;
            let matches = filter.matches(&topic);
            Ok::<_, evenkeel::Error>((filter, matches))
        });
        assert!(peak < MOST, "{} KiB", peak >> 10);
        said
    };
    let white = said(Pattern::WhiteList);
    let black = said(Pattern::BlackList);
    let cleaned = clean(text);
    let short = Some(&cleaned).filter(|it| it.len() <= SHORT);
    let known = short.and_then(|it| Reader::whole(it));
    match (white, black) {
        (Err(white), Err(black)) => {
            assert_eq!(white.to_string(), black.to_string());
            let shown = white.to_string();
            assert!(!shown.chars().any(char::is_control), "{shown:?}");
            assert!(shown.len() < 1024, "{} bytes are told", shown.len());
            // What a JVM makes of that is not worth knowing.
            let is_empty = shown.contains("a repeat of an empty group");
            assert!(known.is_none() || is_empty, "{shown}");
        }
        (Ok((white, is_white)), Ok((_, is_black))) => {
            assert_eq!(white.text(), cleaned);
            // L-37: what stands in a registration is cleaned by whoever reads it, and only a control character can come off then.
            let is_settled = white.text().trim_matches(|c| c <= ' ') == white.text();
            assert_eq!(clean(white.text()) == white.text(), is_settled);
            let is_it = match (is_white, is_black) {
                (Matches::Yes, Matches::No) => true,
                (Matches::No, Matches::Yes) => false,
                (Matches::Beyond { .. }, Matches::Beyond { .. }) => return,
                (white, black) => panic!("{white:?} and {black:?}"),
            };
            if let Some(node) = known {
                let letters: Vec<char> = topic.as_str().chars().collect();
                let found = ends(&node, &letters, &BTreeSet::from([0]));
                let wanted = found.contains(&letters.len());
                assert_eq!(is_it, wanted, "{cleaned:?} on {topic}");
            }
        }
        (white, black) => panic!("{white:?} and {black:?}"),
    }
}
