//! What a member calls itself: host name, chance and time are asked once, and pure functions make the name from them.
// This is the door to chance.
#![allow(clippy::disallowed_methods)]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::net::IpAddr;
use std::net::Ipv4Addr;
use std::net::Ipv6Addr;
use std::time::SystemTime;

use sha2::Digest;
use sha2::Sha256;

use crate::error::{Error, Result, printable};
use crate::group::{ConsumerId, GroupName};

/// The longest form of a host name inside an id, in characters after escaping.
pub const MAX_ESCAPED_HOST: usize = 100;

/// How many characters of the random text a JVM member puts into its name (L-14).
const JVM_RANDOM: usize = 8;

/// What is known when a member is named. Everything a strategy may use is in here.
///
/// [`of_this_process`](Self::of_this_process) asks the machine; [`new`](Self::new) and the `with_` methods make one by
/// hand, for tests of a strategy of one's own.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdContext {
    /// The host's name as the system gives it: not folded, not resolved, not escaped. Never empty.
    pub host: String,
    /// The group the member joins.
    pub group: GroupName,
    /// Which of the members of this group on this host it is, from 0. Nobody counts it: the caller says it.
    pub instance: u32,
    /// Hexadecimal digits, drawn anew for every member: 16 of them unless somebody gave others.
    pub random: String,
    /// Milliseconds since 1970 when the member was made.
    pub time_ms: u64,
    /// The members registered in the group when the name is made; empty if nobody looked.
    pub registered: BTreeSet<ConsumerId>,
}

impl IdContext {
    /// A context with instance 0, time 0 and nobody registered.
    ///
    /// `random` keeps the names of members apart that have all else in common, so give each its own.
    ///
    /// # Errors
    /// [`Config`](crate::error::ErrorKind::Config) if the host is empty or `random` is not one or more hexadecimal digits.
    pub fn new(
        host: impl Into<String>,
        group: &GroupName,
        random: impl Into<String>,
    ) -> Result<Self> {
        let (host, random) = (host.into(), random.into());
        if host.is_empty() {
            return Err(Error::config(
                "the host name is empty: no consumer id can be made from it, give the host one",
            ));
        }
        if random.is_empty() || !random.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(Error::config(format!(
                "the random part \"{}\" of a consumer id is refused: it has one or more of 0-9 a-f",
                printable(&random)
            )));
        }
        Ok(Self {
            host,
            group: group.clone(),
            instance: 0,
            random,
            time_ms: 0,
            registered: BTreeSet::new(),
        })
    }

    /// A context with this machine's host name, the time now and 64 random bits, as instance 0.
    ///
    /// A host name that is empty, not UTF-8 or the kernel's `(none)` is replaced, and the answer says by what: tell
    /// somebody, since an id made from an address or from chance does not stay with the host.
    ///
    /// Reads files, never the network.
    pub fn of_this_process(group: &GroupName) -> (Self, HostFrom) {
        let (host, from) = usable_host(hostname::get().ok(), first_address);
        let context =
            Self::new(host, group, random_text()).expect("host and random text are not empty");
        (context.with_time_ms(now_ms()), from)
    }

    /// The same with this instance number.
    ///
    /// Several members of one group on one host, in one process or many, work without it, their random parts differ.
    /// But [`HashedHost`] then puts them side by side in the group's order, so that a group with few partitions is
    /// served by few hosts. Number them and use [`HashedInstance`], or give each its rank in [`RankedHost`].
    #[must_use]
    pub fn with_instance(mut self, instance: u32) -> Self {
        self.instance = instance;
        self
    }

    /// The same at this time, in milliseconds since 1970.
    #[must_use]
    pub fn with_time_ms(mut self, time_ms: u64) -> Self {
        self.time_ms = time_ms;
        self
    }

    /// The same with these members registered in the group.
    #[must_use]
    pub fn with_registered(mut self, registered: impl IntoIterator<Item = ConsumerId>) -> Self {
        self.registered = registered.into_iter().collect();
        self
    }
}

/// Where the host in an [`IdContext`] came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HostFrom {
    /// The system's host name.
    HostName,
    /// The host name was unusable; this is the first address that is not loopback or link-local.
    Address,
    /// The host name was unusable and no address was found; this is `unknown-` and eight random hexadecimal digits.
    Chance,
}

impl HostFrom {
    /// The host name was unusable, which an operator should hear about.
    pub fn is_fallback(self) -> bool {
        self != Self::HostName
    }
}

/// Chooses the part of a member's name that follows `<group>_`.
///
/// The names decide who gets what: every assignor deals partitions to the streams in the order of their names, so the
/// members that sort first get the remainder, and with fewer partitions than streams they get everything. A strategy
/// is how an operator says who that should be.
///
/// Callers may rely on one answer per context, without I/O, clock or chance: what a strategy needs of these is in the
/// context, and so a name can be foretold and tested. An implementer must let two contexts that differ in
/// [`random`](IdContext::random) alone have different names, unless it is meant that the second of two members is
/// refused, as with [`Fixed`].
///
/// Worked example, [`HashedHost`] and groups with one partition each: the one active member of group `svc-000` is on
/// the host whose `sha256(host + group)` is smallest. Host `app01.example.com` has `024a...` and `app02.example.com`
/// `cd2e...`, so `app01` works and `app02` stands by. In group `svc-001` other hashes decide. Over ten hosts and
/// twenty groups that gives hosts with 0 to 5 active members, where names that start with the host give
/// `app01` all twenty.
///
/// ```
/// use evenkeel::error::Result;
/// use evenkeel::group::GroupName;
/// use evenkeel::id::{self, IdContext, IdStrategy};
///
/// /// Members of the old rack stand by.
/// #[derive(Debug)]
/// struct OldRackLast;
///
/// impl IdStrategy for OldRackLast {
///     fn id(&self, context: &IdContext) -> Result<String> {
///         let rank = if context.host.starts_with("old-") { 'z' } else { 'a' };
///         Ok(format!("{rank}-{}-{}", context.host, context.random))
///     }
/// }
///
/// let context = IdContext::new("old-7", &GroupName::new("etl")?, "00c0ffee")?;
/// assert_eq!(id::name(&context, &OldRackLast)?.as_str(), "etl_z-old-7-00c0ffee");
/// # Ok::<(), evenkeel::error::Error>(())
/// ```
pub trait IdStrategy: Send + Sync + fmt::Debug {
    /// The part after `<group>_`. [`name`] adds the group and checks the whole.
    ///
    /// # Errors
    /// [`Config`](crate::error::ErrorKind::Config) if the context does not suffice for a name.
    fn id(&self, context: &IdContext) -> Result<String>;
}

/// The member's name under `ids`: the group, an underscore, and what the strategy says (L-14, L-15).
///
/// # Errors
/// [`Config`](crate::error::ErrorKind::Config) if the strategy refuses, answers nothing, or the name is none that
/// ZooKeeper accepts ([`is_node_name`]).
pub fn name(context: &IdContext, strategy: &dyn IdStrategy) -> Result<ConsumerId> {
    let id = strategy.id(context)?;
    let name = format!("{}_{id}", context.group.as_str());
    if id.is_empty() || !is_node_name(&name) {
        return Err(Error::config(format!(
            "consumer id \"{}\" is refused: ZooKeeper takes no empty name, no / and no control, private or surrogate \
             character; set another consumer.id or id strategy",
            printable(&id)
        )));
    }
    Ok(ConsumerId::new(name))
}

/// Whether ZooKeeper accepts this as the name of one node, by the server's rule and the client's together (L-16).
///
/// Refused: the empty name, `.`, `..`, a slash, control characters (DEL too, which a JVM client would let pass), the
/// private use area, U+FFF0 to U+FFFF, and everything beyond U+FFFF. A blank is accepted.
pub fn is_node_name(name: &str) -> bool {
    let refused = |unit: u16| matches!(unit, 0x00..=0x1f | 0x2f | 0x7f..=0x9f | 0xd800..=0xf8ff | 0xfff0..=0xffff);
    !matches!(name, "" | "." | "..") && !name.encode_utf16().any(refused)
}

/// The default: `sha256(host + group)` in hexadecimal, the host, the random text.
///
/// The hash gives every group its own order of hosts, so standbys spread; the host is there for people to read. All
/// members of a group on one host are neighbours in the order: see [`IdContext::with_instance`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct HashedHost;

impl IdStrategy for HashedHost {
    fn id(&self, context: &IdContext) -> Result<String> {
        RankedHost::default().id(context)
    }
}

/// [`HashedHost`] with a rank before it: all members of rank 0 sort before all of rank 1, and so on.
///
/// Let the first member on each host have rank 0, the second rank 1: then no host serves a second partition of a group
/// before every host serves one. Rank 0 with salt 0 is `HashedHost` exactly, since hexadecimal digits sort before the
/// `g` that begins a rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct RankedHost {
    /// 0 for the members that should be served first, up to 255.
    pub rank: u8,
    /// Changes the order of the hosts in this group; must be the same in all members. 0 leaves it alone.
    pub salt: u64,
}

impl IdStrategy for RankedHost {
    fn id(&self, context: &IdContext) -> Result<String> {
        let prefix = match self.rank {
            0 => String::new(),
            rank => format!("g{rank:02x}"),
        };
        let hash = match self.salt {
            0 => sha256(&[&context.host, context.group.as_str()].concat()),
            salt => sha256_with(context, &format!("salt={salt}")),
        };
        Ok(prefix + &hash + &escaped(&context.host) + &context.random)
    }
}

/// Like [`HashedHost`], with [`IdContext::instance`] in the hash, so that the members on one host are apart in the order.
///
/// Where ranks are not known; each instance number has its own order of hosts, and by chance one host may come twice
/// before another comes once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct HashedInstance;

impl IdStrategy for HashedInstance {
    fn id(&self, context: &IdContext) -> Result<String> {
        let hash = sha256_with(context, &format!("instance={}", context.instance));
        Ok(hash + &escaped(&context.host) + &context.random)
    }
}

/// What a JVM member without `consumer.id` calls itself (L-14): `<host>-<milliseconds>-<eight random digits>`.
///
/// All groups then have the same order of hosts and the first host works for all of them. The host is not escaped, so
/// one with a slash is refused, as ZooKeeper would refuse it from a JVM.
///
/// Of more than eight random digits the first eight after leading zeros are taken, as the JVM does; eight or fewer stay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LegacyAuto;

impl IdStrategy for LegacyAuto {
    fn id(&self, context: &IdContext) -> Result<String> {
        let random = jvm_random(&context.random);
        Ok(format!("{}-{}-{random}", context.host, context.time_ms))
    }
}

/// A name chosen by the operator: the old `consumer.id`.
///
/// Nothing random is in it, so a second member with the same one is refused while the first lives, and a restarted one
/// waits for the session of the one before.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fixed(String);

impl Fixed {
    /// Takes the part after `<group>_`; [`name`] checks it.
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }
}

impl IdStrategy for Fixed {
    fn id(&self, _: &IdContext) -> Result<String> {
        Ok(self.0.clone())
    }
}

fn sha256(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

/// The zero byte, which no host or group has, keeps `app1` in `0svc` apart from `app10` in `svc`.
fn sha256_with(context: &IdContext, what: &str) -> String {
    sha256(&[&context.host, context.group.as_str(), what].join("\0"))
}

/// The host as plain ASCII, other bytes as `%` and two upper case digits; cut at its limit, never inside an escape.
fn escaped(host: &str) -> String {
    let mut out = String::new();
    for byte in host.bytes() {
        let piece = match byte {
            b if b.is_ascii_alphanumeric() || b"._-".contains(&b) => char::from(b).to_string(),
            b => format!("%{b:02X}"),
        };
        if out.len() + piece.len() > MAX_ESCAPED_HOST {
            break;
        }
        out += &piece;
    }
    out
}

fn jvm_random(random: &str) -> &str {
    if random.len() <= JVM_RANDOM {
        return random;
    }
    match random.trim_start_matches('0') {
        "" => "0",
        digits => digits.get(..JVM_RANDOM).unwrap_or(digits),
    }
}

/// 64 bits: two containers with one host name and one start time must still differ.
fn random_text() -> String {
    format!("{:016x}", rand::random::<u64>())
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis().try_into().unwrap_or(u64::MAX))
}

fn usable_host(
    name: Option<OsString>,
    address: impl FnOnce() -> Option<IpAddr>,
) -> (String, HostFrom) {
    let name = name.and_then(|name| name.into_string().ok());
    // Linux calls a host that nobody named "(none)".
    if let Some(name) = name.filter(|name| !matches!(name.as_str(), "" | "(none)")) {
        return (name, HostFrom::HostName);
    }
    match address() {
        Some(address) => (address.to_string(), HostFrom::Address),
        None => (
            format!("unknown-{:08x}", rand::random::<u32>()),
            HostFrom::Chance,
        ),
    }
}

fn first_address() -> Option<IpAddr> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let v4 = first_ipv4(&read("/proc/net/fib_trie")).map(IpAddr::from);
    v4.or_else(|| first_ipv6(&read("/proc/net/if_inet6")).map(IpAddr::from))
}

/// In Linux's route trie an address of this host is a leaf, `|-- 10.0.0.7`, followed by `/32 host LOCAL`.
fn first_ipv4(fib_trie: &str) -> Option<Ipv4Addr> {
    let mut leaf = None;
    for line in fib_trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" {
            let found = leaf.filter(|address| !address.is_loopback() && !address.is_link_local());
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// A line is address, interface number, prefix length, scope, flags, interface; scope 00 is global.
fn first_ipv6(if_inet6: &str) -> Option<Ipv6Addr> {
    if_inet6.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let address = u128::from_str_radix(words.next()?, 16).ok()?;
        (words.nth(2)? == "00").then(|| Ipv6Addr::from(address))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use std::collections::HashSet;

    fn context(host: &str, random: &str) -> IdContext {
        let group = GroupName::new("etl").unwrap();
        IdContext::new(host, &group, random)
            .unwrap()
            .with_time_ms(1_441_234_567_890)
    }

    #[test]
    fn a_member_that_speaks_like_a_jvm_has_a_jvms_name() {
        let name = name(&context("web01", "1a2b3c4d5e6f7081"), &LegacyAuto).unwrap();
        assert_eq!(name.as_str(), "etl_web01-1441234567890-1a2b3c4d");
    }

    #[test]
    fn a_jvms_random_part_has_no_leading_zeros_unless_given_short() {
        for (random, expected) in [
            ("00a2b3c4d5e6f708", "a2b3c4d5"),
            ("0000000000001234", "1234"),
            ("0000000000000000", "0"),
            ("00c0ffee", "00c0ffee"),
            ("0", "0"),
        ] {
            assert_eq!(jvm_random(random), expected);
        }
    }

    #[test]
    fn rank_0_without_salt_is_the_hashed_host() {
        let context = context("web01", "00c0ffee");
        let ranked = RankedHost { rank: 0, salt: 0 };
        assert_eq!(
            name(&context, &ranked).unwrap(),
            name(&context, &HashedHost).unwrap()
        );
        let last = RankedHost { rank: 255, salt: 0 };
        assert!(last.id(&context).unwrap().starts_with("gff"));
    }

    #[test]
    fn names_that_zookeeper_would_refuse_are_refused_by_name() {
        for id in ["", "a/b", "/", "a\0", "a\u{7f}", "\u{e000}", "😀"] {
            let error = name(&context("web01", "0"), &Fixed::new(id)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains("consumer.id"), "{error}");
        }
        for id in ["..", "a b", "é", "0"] {
            assert!(name(&context("web01", "0"), &Fixed::new(id)).is_ok());
        }
        assert!(name(&context("rack/7", "0"), &LegacyAuto).is_err());
        assert!(name(&context("rack/7", "0"), &HashedHost).is_ok());
    }

    #[test]
    fn a_context_has_a_host_and_random_digits() {
        let group = GroupName::new("etl").unwrap();
        assert!(IdContext::new("", &group, "0").is_err());
        for random in ["", "xyz", "0-1", "é"] {
            let error = IdContext::new("web01", &group, random).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
        }
    }

    #[test]
    fn a_host_is_cut_before_an_escape_that_does_not_fit() {
        let full = "h".repeat(MAX_ESCAPED_HOST);
        assert_eq!(escaped(&(full.clone() + "x")), full);
        assert_eq!(escaped(&("h".repeat(98) + " x")), "h".repeat(98));
        assert_eq!(escaped(&("h".repeat(97) + " x")), "h".repeat(97) + "%20");
    }

    #[test]
    fn this_process_has_a_context() {
        let group = GroupName::new("etl").unwrap();
        let (one, _) = IdContext::of_this_process(&group);
        let (two, _) = IdContext::of_this_process(&group);
        assert!(!one.host.is_empty() && one.time_ms > 1_700_000_000_000);
        assert_eq!((one.random.len(), one.instance), (16, 0));
        assert_ne!(
            name(&one, &HashedHost).unwrap(),
            name(&two, &HashedHost).unwrap()
        );
    }

    // Scenario r016.
    #[test]
    fn a_million_members_of_one_host_have_a_million_names() {
        let texts: HashSet<String> = (0..1_000_000).map(|_| random_text()).collect();
        assert_eq!(texts.len(), 1_000_000);
    }

    #[test]
    fn an_unusable_host_name_is_replaced_and_told() {
        let address = || Some(IpAddr::from([10, 0, 0, 7]));
        let named = usable_host(Some("web01".into()), address);
        assert_eq!(named, ("web01".into(), HostFrom::HostName));
        assert!(!named.1.is_fallback());

        for bad in [None, Some("".into()), Some("(none)".into())] {
            assert_eq!(
                usable_host(bad, address),
                ("10.0.0.7".into(), HostFrom::Address)
            );
        }
        let (host, from) = usable_host(None, || None);
        assert!(from.is_fallback());
        let digits = host.strip_prefix("unknown-").unwrap();
        assert!(digits.len() == 8 && digits.bytes().all(|b| b.is_ascii_hexdigit()));
    }

    #[cfg(unix)]
    #[test]
    fn a_host_name_that_is_not_utf_8_is_unusable() {
        use std::os::unix::ffi::OsStringExt;
        let name = OsString::from_vec(vec![b'w', 0xff]);
        assert_eq!(usable_host(Some(name), || None).1, HostFrom::Chance);
    }

    #[test]
    fn the_first_address_is_neither_loopback_nor_link_local() {
        let trie = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.1.0.0\n        /24 link UNICAST\n     \
                    |-- 10.1.0.255\n        /32 link BROADCAST\n     |-- 127.0.0.1\n        /32 host LOCAL\n     \
                    |-- 169.254.1.1\n        /32 host LOCAL\n     |-- 192.168.0.7\n        /32 host LOCAL\n";
        assert_eq!(first_ipv4(trie), Some(Ipv4Addr::new(192, 168, 0, 7)));
        assert_eq!(first_ipv4(""), None);

        let inet6 = "00000000000000000000000000000001 01 80 10 80       lo\n\
                     fe800000000000000000000000000001 02 40 20 80     eth0\n\
                     20010db8000000000000000000000007 02 40 00 80     eth0\n";
        assert_eq!(first_ipv6(inet6), Some("2001:db8::7".parse().unwrap()));
        assert_eq!(first_ipv6("nonsense\n"), None);
    }
}
