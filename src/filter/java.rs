//! Java's regular expressions, rewritten so that fancy-regex reads them as Java does for topic names.
//!
//! A topic name has only `[A-Za-z0-9._-]`, so every character class is worked out here, down to the set of those
//! characters it holds, and case, flags and classes never reach the other engine. What is left to it is plain:
//! sets, groups, alternatives, repeats, looks around, back references. What differs between releases of Java, or is
//! not understood here, is refused by name.

use std::collections::BTreeMap;

/// The longest expression that is looked at, in characters.
const MAX_LEN: usize = 16 * 1024;
/// How deep groups may nest; fancy-regex itself stops at 64 levels, of which we need up to two for each.
const MAX_DEPTH: usize = 24;
/// How often the innermost item may be repeated by counts that multiply.
const MAX_COPIES: u64 = 10_000;

type Refused<T> = std::result::Result<T, String>;

/// Rewrites a Java expression; the error is the reason, naming the construct.
pub(super) fn rewrite(java: &str) -> Refused<String> {
    let mut reader = Reader::new(java)?;
    let branches = reader.branches(0)?;
    if reader.peek().is_some() {
        return refuse("a closing parenthesis that closes nothing");
    }
    let referred = referred(&branches);
    check(&branches, &referred, Around::default())?;
    let mut out = String::from(r"\A(?:");
    print_branches(&branches, !referred.is_empty(), &mut out);
    out.push_str(r")\z");
    Ok(out)
}

fn refuse<T>(what: impl Into<String>) -> Refused<T> {
    Err(what.into())
}

/// A set of ASCII characters, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Set(u128);

impl Set {
    const NONE: Self = Self(0);
    const ALL: Self = Self(!0);

    fn of(what: impl Fn(char) -> bool) -> Self {
        (0..128u8)
            .filter(|code| what(char::from(*code)))
            .fold(Self::NONE, |set, code| set.or(Self(1 << code)))
    }

    fn one(c: u32) -> Self {
        Self::range(c, c)
    }

    fn range(first: u32, last: u32) -> Self {
        (first..=last.min(127)).fold(Self::NONE, |set, code| set.or(Self(1 << code)))
    }

    fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn not(self) -> Self {
        Self(!self.0)
    }

    fn has(self, c: char) -> bool {
        c.is_ascii() && self.0 >> (c as u32) & 1 == 1
    }

    /// The set with both cases of every letter in it.
    fn folded(self) -> Self {
        Self::of(|c| self.has(c.to_ascii_lowercase()) || self.has(c.to_ascii_uppercase()))
    }

    fn print(self, out: &mut String) {
        use std::fmt::Write as _;
        let names = Self::of(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
        let here = self.and(names);
        if here == Self::NONE {
            // No topic name holds this character, and it is as long as one.
            out.push_str(r"\x{100}");
            return;
        }
        out.push('[');
        let mut code = 0u8;
        while code < 128 {
            let run = (here.0 >> code).trailing_ones() as u8;
            match run {
                0 => code += 1,
                1 => write!(out, "\\x{code:02X}").expect(WRITES),
                _ => write!(out, "\\x{code:02X}-\\x{:02X}", code + run - 1).expect(WRITES),
            }
            code += run;
        }
        out.push(']');
    }
}

const WRITES: &str = "writing into a string does not fail";

#[derive(Debug)]
enum Node {
    Set(Set),
    Start,
    End,
    Boundary,
    NotBoundary,
    Back(u32),
    Group(Kind, Vec<Vec<Node>>),
    Repeat(Box<Node>, Count, Mode),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Capture(u32),
    Atomic,
    Ahead,
    NotAhead,
    Behind,
    NotBehind,
}

impl Kind {
    fn is_behind(self) -> bool {
        matches!(self, Self::Behind | Self::NotBehind)
    }

    fn is_look(self) -> bool {
        matches!(self, Self::Ahead | Self::NotAhead) || self.is_behind()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Count {
    least: u32,
    most: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Greedy,
    Lazy,
    Possessive,
}

#[derive(Debug, Clone, Copy, Default)]
struct Flags {
    any_case: bool,
    unicode: bool,
    comments: bool,
}

/// What one escape stands for.
enum Escape {
    Char(u32),
    Set(Set),
    Node(Node),
    Quote,
}

struct Reader {
    text: Vec<char>,
    at: usize,
    flags: Flags,
    /// How many capturing groups were opened so far.
    groups: u32,
    /// Those of them that are closed again.
    closed: Vec<u32>,
    names: BTreeMap<String, u32>,
}

impl Reader {
    fn new(java: &str) -> Refused<Self> {
        let text: Vec<char> = java.chars().collect();
        if text.len() > MAX_LEN {
            return refuse(format!("an expression of more than {MAX_LEN} characters"));
        }
        Ok(Self {
            text,
            at: 0,
            flags: Flags::default(),
            groups: 0,
            closed: Vec::new(),
            names: BTreeMap::new(),
        })
    }

    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn peek_second(&self) -> Option<char> {
        self.text.get(self.at + 1).copied()
    }

    fn next(&mut self) -> Refused<char> {
        let c = self.peek().ok_or("an expression that ends too early")?;
        self.at += 1;
        Ok(c)
    }

    fn eat(&mut self, c: char) -> bool {
        let is_there = self.peek() == Some(c);
        self.at += usize::from(is_there);
        is_there
    }

    fn branches(&mut self, depth: usize) -> Refused<Vec<Vec<Node>>> {
        if depth > MAX_DEPTH {
            return refuse(format!("groups nested more than {MAX_DEPTH} deep"));
        }
        let mut branches = vec![Vec::new()];
        while let Some(c) = self.peek() {
            match c {
                ')' => break,
                '|' => {
                    self.at += 1;
                    branches.push(Vec::new());
                }
                _ => {
                    let items = self.items(depth)?;
                    branches
                        .last_mut()
                        .expect("there is one branch from the start")
                        .extend(items);
                }
            }
        }
        Ok(branches)
    }

    /// One item with its repeat; quoted text gives several, a change of flags none.
    fn items(&mut self, depth: usize) -> Refused<Vec<Node>> {
        let mut items = self.item(depth)?;
        if let Some((count, mode)) = self.repeat()? {
            let Some(last) = items.pop() else {
                return refuse("a repeat of nothing");
            };
            items.push(repeated(last, count, mode)?);
            if matches!(self.peek(), Some('*' | '+' | '?' | '{')) {
                return refuse("a repeat of a repeat without a group");
            }
        }
        Ok(items)
    }

    fn item(&mut self, depth: usize) -> Refused<Vec<Node>> {
        let c = self.next()?;
        self.refuse_comment(c)?;
        Ok(vec![match c {
            '\\' => match self.escape()? {
                Escape::Char(code) => Node::Set(self.single(code)?),
                Escape::Set(set) => Node::Set(set),
                Escape::Node(node) => node,
                Escape::Quote => return self.quoted(),
            },
            '(' => return Ok(self.group(depth)?.into_iter().collect()),
            '[' => Node::Set(self.class(0)?),
            '.' => Node::Set(Set::ALL),
            '^' => Node::Start,
            '$' => Node::End,
            '*' | '+' | '?' | '{' => return refuse(format!("a '{c}' that repeats nothing")),
            _ => Node::Set(self.single(c.into())?),
        }])
    }

    fn refuse_comment(&self, c: char) -> Refused<()> {
        if self.flags.comments && (c == '#' || c.is_whitespace()) {
            return refuse("blanks or comments under (?x)");
        }
        Ok(())
    }

    /// The set that one character stands for under the flags of this place.
    fn single(&self, code: u32) -> Refused<Set> {
        if !self.flags.any_case {
            return Ok(Set::one(code));
        }
        if code > 127 && self.flags.unicode {
            return refuse("a character beyond ASCII under (?iu)");
        }
        Ok(Set::one(code).folded())
    }

    fn repeat(&mut self) -> Refused<Option<(Count, Mode)>> {
        let (least, most) = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => return self.braces().map(Some),
            _ => return Ok(None),
        };
        self.at += 1;
        Ok(Some((Count { least, most }, self.mode())))
    }

    fn braces(&mut self) -> Refused<(Count, Mode)> {
        self.at += 1;
        let least = self.number()?;
        let most = if self.eat(',') {
            match self.peek() {
                Some('}') => None,
                _ => Some(self.number()?),
            }
        } else {
            Some(least)
        };
        if !self.eat('}') {
            return refuse("a count in braces that is not one number");
        }
        if most.is_some_and(|most| most < least) {
            return refuse("a count in braces that runs backwards");
        }
        Ok((Count { least, most }, self.mode()))
    }

    fn number(&mut self) -> Refused<u32> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let digits: String = self.text[start..self.at].iter().collect();
        digits
            .parse()
            .map_err(|_| "a count in braces that is not a number of ours".to_owned())
    }

    fn mode(&mut self) -> Mode {
        if self.eat('?') {
            Mode::Lazy
        } else if self.eat('+') {
            Mode::Possessive
        } else {
            Mode::Greedy
        }
    }

    /// A group, its opening parenthesis being read; nothing for a change of flags.
    fn group(&mut self, depth: usize) -> Refused<Option<Node>> {
        let outside = self.flags;
        let kind = if self.eat('?') {
            match self.group_kind()? {
                Some(kind) => kind,
                None => return Ok(None),
            }
        } else {
            self.capture()
        };
        let body = self.branches(depth + 1)?;
        if !self.eat(')') {
            return refuse("a group that is not closed");
        }
        if let Kind::Capture(number) = kind {
            self.closed.push(number);
        }
        self.flags = outside;
        Ok(Some(Node::Group(kind, body)))
    }

    fn capture(&mut self) -> Kind {
        self.groups += 1;
        Kind::Capture(self.groups)
    }

    fn group_kind(&mut self) -> Refused<Option<Kind>> {
        let c = self.next()?;
        Ok(Some(match c {
            ':' => Kind::Plain,
            '>' => Kind::Atomic,
            '=' => Kind::Ahead,
            '!' => Kind::NotAhead,
            '<' if self.eat('=') => Kind::Behind,
            '<' if self.eat('!') => Kind::NotBehind,
            '<' => self.named()?,
            _ => {
                self.at -= 1;
                return self.set_flags();
            }
        }))
    }

    fn named(&mut self) -> Refused<Kind> {
        let name = self.name()?;
        let kind = self.capture();
        if self.names.insert(name, self.groups).is_some() {
            return refuse("two groups of one name");
        }
        Ok(kind)
    }

    fn name(&mut self) -> Refused<String> {
        let mut name = String::new();
        loop {
            match self.next()? {
                '>' if !name.is_empty() => return Ok(name),
                c if c.is_ascii_alphabetic() || (c.is_ascii_digit() && !name.is_empty()) => {
                    name.push(c);
                }
                _ => return refuse("a group name with anything but letters and digits"),
            }
        }
    }

    /// Reads `ismdux-ismdux` and what follows: `)` for the rest of the group, `:` for a group of its own.
    fn set_flags(&mut self) -> Refused<Option<Kind>> {
        let mut on = true;
        loop {
            match self.next()? {
                'i' => self.flags.any_case = on,
                'u' | 'U' => self.flags.unicode = on,
                'x' => self.flags.comments = on,
                // These concern line ends, which no topic name has.
                's' | 'm' | 'd' => {}
                '-' if on => on = false,
                ')' => return Ok(None),
                ':' => return Ok(Some(Kind::Plain)),
                c => return refuse(format!("the flag or group (?{}", c.escape_default())),
            }
        }
    }

    fn quoted(&mut self) -> Refused<Vec<Node>> {
        if self.flags.comments {
            return refuse("quoted text under (?x)");
        }
        let mut items = Vec::new();
        while let Some(c) = self.peek() {
            self.at += 1;
            if c == '\\' && self.eat('E') {
                break;
            }
            items.push(Node::Set(self.single(c.into())?));
        }
        Ok(items)
    }

    /// What follows a backslash.
    fn escape(&mut self) -> Refused<Escape> {
        let c = self.next()?;
        self.refuse_comment(c)?;
        Ok(match c {
            'Q' => Escape::Quote,
            'A' => Escape::Node(Node::Start),
            'z' | 'Z' => Escape::Node(Node::End),
            'b' if self.peek() == Some('{') => return refuse(r"\b{"),
            'b' => Escape::Node(Node::Boundary),
            'B' => Escape::Node(Node::NotBoundary),
            'k' => Escape::Node(self.named_reference()?),
            '1'..='9' => Escape::Node(self.reference(c)?),
            // A line break, which no topic name holds.
            'R' => Escape::Node(Node::Set(Set::NONE)),
            _ => return self.plain_escape(c),
        })
    }

    /// The escapes that also stand in a class.
    fn plain_escape(&mut self, c: char) -> Refused<Escape> {
        let set = |what: fn(char) -> bool| Escape::Set(Set::of(what));
        let not = |what: fn(char) -> bool| Escape::Set(Set::of(what).not());
        Ok(match c {
            'd' => set(|c| c.is_ascii_digit()),
            'D' => not(|c| c.is_ascii_digit()),
            'w' => set(is_word),
            'W' => not(is_word),
            's' => set(is_space),
            'S' => not(is_space),
            'h' => set(|c| matches!(c, ' ' | '\t')),
            'H' => not(|c| matches!(c, ' ' | '\t')),
            'v' => set(|c| matches!(c, '\n'..='\r')),
            'V' => not(|c| matches!(c, '\n'..='\r')),
            'p' => Escape::Set(self.property()?),
            'P' => Escape::Set(self.property()?.not()),
            't' => Escape::Char(0x09),
            'n' => Escape::Char(0x0a),
            'r' => Escape::Char(0x0d),
            'f' => Escape::Char(0x0c),
            'a' => Escape::Char(0x07),
            'e' => Escape::Char(0x1b),
            'c' => Escape::Char(u32::from(self.next()?) ^ 64),
            '0' => Escape::Char(self.octal()?),
            'x' => Escape::Char(self.hex()?),
            'u' => Escape::Char(self.four_digits()?),
            _ if c.is_ascii_alphanumeric() => return refuse(format!("\\{c}")),
            _ => Escape::Char(c.into()),
        })
    }

    fn octal(&mut self) -> Refused<u32> {
        let mut value = 0;
        for place in 0..3 {
            match self.peek().and_then(|c| c.to_digit(8)) {
                // A third digit only if the first leaves room below 256.
                Some(digit) if place < 2 || value < 32 => value = value * 8 + digit,
                _ if place == 0 => return refuse(r"\0 without an octal digit"),
                _ => break,
            }
            self.at += 1;
        }
        Ok(value)
    }

    fn hex(&mut self) -> Refused<u32> {
        if !self.eat('{') {
            return self.hex_digits(2);
        }
        let mut value = 0;
        let mut has_digits = false;
        while !self.eat('}') {
            value = value * 16 + self.hex_digits(1)?;
            has_digits = true;
            if value > 0x10_ffff {
                return refuse(r"\x{..} beyond the last character");
            }
        }
        if has_digits {
            Ok(value)
        } else {
            refuse(r"\x{} without a digit")
        }
    }

    fn hex_digits(&mut self, count: u32) -> Refused<u32> {
        let mut value = 0;
        for _ in 0..count {
            let digit = self.next()?.to_digit(16);
            value = value * 16 + digit.ok_or(r"\x or \u without its hexadecimal digits")?;
        }
        Ok(value)
    }

    fn four_digits(&mut self) -> Refused<u32> {
        let code = self.hex_digits(4)?;
        if (0xd800..0xe000).contains(&code) {
            return refuse(r"\u of a surrogate");
        }
        Ok(code)
    }

    fn property(&mut self) -> Refused<Set> {
        let name = if self.eat('{') {
            let mut name = String::new();
            loop {
                match self.next()? {
                    '}' => break name,
                    c => name.push(c),
                }
            }
        } else {
            self.next()?.to_string()
        };
        let shown = crate::error::printable(&name);
        let (set, has_case) = property(&name).ok_or_else(|| format!("\\p{{{shown}}}"))?;
        if has_case && self.flags.any_case {
            // Releases of Java differ.
            return refuse(format!("\\p{{{shown}}} under (?i)"));
        }
        Ok(set)
    }

    fn reference(&mut self, first: char) -> Refused<Node> {
        let mut number = first.to_digit(10).unwrap_or(0);
        // Further digits belong to it as long as there are so many groups.
        while let Some(digit) = self.peek().and_then(|c| c.to_digit(10)) {
            let longer = number * 10 + digit;
            if longer > self.groups {
                break;
            }
            number = longer;
            self.at += 1;
        }
        self.back(number)
    }

    fn named_reference(&mut self) -> Refused<Node> {
        if !self.eat('<') {
            return refuse(r"\k without a name");
        }
        let name = self.name()?;
        let number = self.names.get(&name).copied();
        self.back(number.ok_or("a back reference to an unknown name")?)
    }

    fn back(&self, number: u32) -> Refused<Node> {
        if !self.closed.contains(&number) {
            return refuse("a back reference to a group that is not closed before it");
        }
        if self.flags.any_case {
            return refuse("a back reference under (?i)");
        }
        Ok(Node::Back(number))
    }

    /// A class, its opening bracket being read.
    fn class(&mut self, depth: usize) -> Refused<Set> {
        if depth > MAX_DEPTH {
            return refuse(format!("classes nested more than {MAX_DEPTH} deep"));
        }
        let negated = self.eat('^');
        if self.peek() == Some(']') {
            return refuse("a class that starts with ]");
        }
        let (mut set, mut is_plain) = self.class_part(depth)?;
        while self.eat('&') {
            self.at += 1;
            is_plain = false;
            set = set.and(self.intersected(depth)?);
        }
        if !self.eat(']') {
            return refuse("a class that is not closed");
        }
        if negated && !is_plain {
            // Up to Java 8 the ^ bound tighter than unions and intersections, from 9 on it does not.
            return refuse("a negated class that holds a class or &&");
        }
        Ok(if negated { set.not() } else { set })
    }

    /// What follows `&&`: one class, or items without classes. Releases of Java differ on everything else.
    fn intersected(&mut self, depth: usize) -> Refused<Set> {
        if self.eat('[') {
            let set = self.class(depth + 1)?;
            return match self.peek() {
                Some(']') => Ok(set),
                Some('&') if self.peek_second() == Some('&') => Ok(set),
                _ => refuse("items behind the class that follows &&"),
            };
        }
        let (set, is_plain) = self.class_part(depth)?;
        if is_plain {
            Ok(set)
        } else {
            refuse("a class behind items that follow &&")
        }
    }

    /// Items up to `]` or `&&`, and whether there were no classes among them.
    fn class_part(&mut self, depth: usize) -> Refused<(Set, bool)> {
        let start = self.at;
        let mut set = Set::NONE;
        let mut is_plain = true;
        loop {
            match self.peek() {
                None => return refuse("a class that is not closed"),
                Some(']') => break,
                Some('&') if self.peek_second() == Some('&') => break,
                Some('[') => {
                    self.at += 1;
                    is_plain = false;
                    set = set.or(self.class(depth + 1)?);
                }
                Some(_) => set = set.or(self.class_item()?),
            }
        }
        if self.at == start || self.text.get(self.at + 2) == Some(&'&') && self.peek() == Some('&')
        {
            return refuse("&& with nothing at its side");
        }
        Ok((set, is_plain))
    }

    fn class_item(&mut self) -> Refused<Set> {
        let first = match self.class_char()? {
            Escape::Set(set) => return Ok(set),
            Escape::Char(code) => code,
            Escape::Node(_) | Escape::Quote => return refuse("an anchor or quote in a class"),
        };
        let is_range =
            self.peek() == Some('-') && !matches!(self.peek_second(), None | Some(']' | '['));
        if !is_range {
            return self.single(first);
        }
        self.at += 1;
        match self.class_char()? {
            Escape::Char(last) if first <= last => {
                let set = Set::range(first, last);
                Ok(if self.flags.any_case {
                    set.folded()
                } else {
                    set
                })
            }
            _ => refuse("a range in a class that runs backwards or has no end"),
        }
    }

    fn class_char(&mut self) -> Refused<Escape> {
        let c = self.next()?;
        self.refuse_comment(c)?;
        if c != '\\' {
            return Ok(Escape::Char(c.into()));
        }
        let c = self.next()?;
        self.refuse_comment(c)?;
        self.plain_escape(c)
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

/// The ASCII characters of a named property, and whether it tells upper from lower case.
fn property(name: &str) -> Option<(Set, bool)> {
    let set = match name {
        "Alpha" | "L" | "IsL" | "IsAlphabetic" | "javaLetter" => {
            Set::of(|c| c.is_ascii_alphabetic())
        }
        "Digit" | "N" | "Nd" | "IsN" | "IsNd" | "IsDigit" | "javaDigit" => {
            Set::of(|c| c.is_ascii_digit())
        }
        "Alnum" | "javaLetterOrDigit" => Set::of(|c| c.is_ascii_alphanumeric()),
        "XDigit" => Set::of(|c| c.is_ascii_hexdigit()),
        "Punct" => Set::of(|c| c.is_ascii_punctuation()),
        "Graph" => Set::of(|c| c.is_ascii_graphic()),
        "Print" => Set::of(|c| c.is_ascii_graphic() || c == ' '),
        "Blank" => Set::of(|c| matches!(c, ' ' | '\t')),
        "Space" => Set::of(is_space),
        "Cntrl" => Set::of(|c| c.is_ascii_control()),
        "ASCII" => Set::ALL,
        "Lower" | "Ll" | "IsLl" | "IsLowercase" | "javaLowerCase" => {
            return Some((Set::of(|c| c.is_ascii_lowercase()), true));
        }
        "Upper" | "Lu" | "IsLu" | "IsUppercase" | "javaUpperCase" => {
            return Some((Set::of(|c| c.is_ascii_uppercase()), true));
        }
        _ => return None,
    };
    Some((set, false))
}

fn repeated(item: Node, count: Count, mode: Mode) -> Refused<Node> {
    match &item {
        Node::Start | Node::End | Node::Boundary | Node::NotBoundary => {
            refuse("a repeat of an anchor")
        }
        Node::Group(kind, _) if kind.is_look() => refuse("a repeat of a look around"),
        Node::Group(_, body) if body.iter().all(Vec::is_empty) => {
            refuse("a repeat of an empty group")
        }
        // Java tries each of the required rounds once, others go back into them.
        Node::Group(..) if mode == Mode::Possessive && count.least > 1 => {
            refuse("a possessive count of a group")
        }
        _ => Ok(Node::Repeat(Box::new(item), count, mode)),
    }
}

/// The numbers of the groups that back references name.
fn referred(branches: &[Vec<Node>]) -> Vec<u32> {
    branches
        .iter()
        .flatten()
        .flat_map(|node| match node {
            Node::Back(number) => vec![*number],
            Node::Group(_, body) => referred(body),
            Node::Repeat(item, ..) => referred_in(item),
            _ => Vec::new(),
        })
        .collect()
}

fn referred_in(item: &Node) -> Vec<u32> {
    match item {
        Node::Back(number) => vec![*number],
        Node::Group(_, body) => referred(body),
        _ => Vec::new(),
    }
}

/// What stands around a node.
#[derive(Clone, Copy)]
struct Around {
    copies: u64,
    in_repeat: bool,
    in_behind: bool,
}

impl Default for Around {
    fn default() -> Self {
        Self {
            copies: 1,
            in_repeat: false,
            in_behind: false,
        }
    }
}

/// Refuses what only the whole expression shows.
fn check(branches: &[Vec<Node>], referred: &[u32], around: Around) -> Refused<()> {
    branches
        .iter()
        .flatten()
        .try_for_each(|node| check_node(node, referred, around))
}

fn check_node(node: &Node, referred: &[u32], mut around: Around) -> Refused<()> {
    match node {
        Node::Back(_) if around.in_behind => refuse("a back reference in a look behind"),
        Node::Group(Kind::Capture(number), _) if around.in_repeat && referred.contains(number) => {
            refuse("a back reference to a repeated group")
        }
        Node::Group(kind, body) => {
            around.in_behind |= kind.is_behind();
            check(body, referred, around)
        }
        Node::Repeat(item, count, _) => {
            if around.in_behind && count.most.is_none() {
                return refuse("an unbounded repeat in a look behind");
            }
            let copies = u64::from(count.most.unwrap_or(count.least).max(1));
            around.copies = around.copies.saturating_mul(copies);
            if around.copies > MAX_COPIES {
                return refuse(format!("counts that multiply beyond {MAX_COPIES}"));
            }
            around.in_repeat |= count.most != Some(1);
            check_node(item, referred, around)
        }
        _ => Ok(()),
    }
}

fn print_branches(branches: &[Vec<Node>], with_captures: bool, out: &mut String) {
    for (number, branch) in branches.iter().enumerate() {
        if number > 0 {
            out.push('|');
        }
        for node in branch {
            print(node, with_captures, out);
        }
    }
}

fn print(node: &Node, with_captures: bool, out: &mut String) {
    match node {
        Node::Set(set) => set.print(out),
        Node::Start => out.push_str(r"\A"),
        Node::End => out.push_str(r"\z"),
        Node::Boundary => out.push_str(r"\b"),
        Node::NotBoundary => out.push_str(r"\B"),
        Node::Back(number) => out.push_str(&format!("(?:\\{number})")),
        Node::Group(kind, body) => {
            out.push_str(match kind {
                Kind::Capture(_) if with_captures => "(",
                Kind::Capture(_) | Kind::Plain => "(?:",
                Kind::Atomic => "(?>",
                Kind::Ahead => "(?=",
                Kind::NotAhead => "(?!",
                Kind::Behind => "(?<=",
                Kind::NotBehind => "(?<!",
            });
            print_branches(body, with_captures, out);
            out.push(')');
        }
        Node::Repeat(item, count, mode) => {
            out.push_str(match mode {
                Mode::Possessive => "(?>",
                Mode::Greedy | Mode::Lazy => "(?:",
            });
            print(item, with_captures, out);
            match count.most {
                None if count.least == 0 => out.push('*'),
                None if count.least == 1 => out.push('+'),
                None => out.push_str(&format!("{{{},}}", count.least)),
                Some(most) => out.push_str(&format!("{{{},{most}}}", count.least)),
            }
            if *mode == Mode::Lazy {
                out.push('?');
            }
            out.push(')');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(java: &str) -> String {
        rewrite(java).expect_err(java)
    }

    #[test]
    fn a_class_is_worked_out_before_the_other_engine_sees_it() {
        assert_eq!(rewrite("[a-c&&[^b]]").unwrap(), r"\A(?:[\x61\x63])\z");
        assert_eq!(rewrite(r"(?i)a\.").unwrap(), r"\A(?:[\x41\x61][\x2E])\z");
        assert_eq!(rewrite("ä").unwrap(), r"\A(?:\x{100})\z");
    }

    #[test]
    fn what_we_cannot_be_sure_of_is_refused_by_name() {
        for (java, reason) in [
            ("(", "a group that is not closed"),
            (")", "a closing parenthesis that closes nothing"),
            ("*a", "a '*' that repeats nothing"),
            ("{2}", "a '{' that repeats nothing"),
            ("t[0-9]{1|2}", "a count in braces that is not one number"),
            ("a**", "a repeat of a repeat without a group"),
            ("^*a", "a repeat of an anchor"),
            ("(?=a)*a", "a repeat of a look around"),
            ("(|)*a", "a repeat of an empty group"),
            ("[^a[b]]", "a negated class that holds a class or &&"),
            ("[a&&[b]c]", "items behind the class that follows &&"),
            ("[]a]", "a class that starts with ]"),
            ("[a", "a class that is not closed"),
            (
                "[z-a]",
                "a range in a class that runs backwards or has no end",
            ),
            (r"\X", r"\X"),
            (r"\G", r"\G"),
            (r"\y", r"\y"),
            (r"\b{g}", r"\b{"),
            (r"[\b]", r"\b"),
            (r"\p{IsGreek}", r"\p{IsGreek}"),
            (r"(?i)\p{Lower}", r"\p{Lower} under (?i)"),
            (r"(?c)a", "the flag or group (?c"),
            ("(?x)a\t+", "blanks or comments under (?x)"),
            (r"(?iu)ſ", "a character beyond ASCII under (?iu)"),
            (
                r"\1(a)",
                "a back reference to a group that is not closed before it",
            ),
            (
                r"(a\1)",
                "a back reference to a group that is not closed before it",
            ),
            (r"(?:(a)|b)*\1", "a back reference to a repeated group"),
            (r"(?i)(a)\1", "a back reference under (?i)"),
            (r"(?<=a+)b", "an unbounded repeat in a look behind"),
            ("(?:a|ab){2}+b", "a possessive count of a group"),
            ("((a{100}){100}){100}", "counts that multiply beyond 10000"),
        ] {
            assert_eq!(refusal(java), reason, "{java}");
        }
        assert!(refusal(&"(".repeat(100)).contains("deep"));
        assert!(refusal(&"[".repeat(100)).contains("deep"));
        assert!(refusal(&"a".repeat(MAX_LEN + 1)).contains("characters"));
    }
}
