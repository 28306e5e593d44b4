//! Where ZooKeeper is: the old connection string, `host:port,host:port/chroot`.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::error::Result;
use crate::error::printable;

/// The port of a host that names none.
pub const DEFAULT_PORT: u16 = 2181;

/// One server of the ensemble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Name or address, an IPv6 address without its brackets.
    pub name: String,
    /// The client port, 2181 if none was named.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

/// The value of `zookeeper.connect`, taken apart.
///
/// `a,b:2182/kafka` is the hosts `a:2181` and `b:2182` with the chroot `/kafka`. The chroot stands once, at the end; `/`
/// alone is none, and slashes at its end are dropped. Blanks around hosts and empty entries are passed over, as ZooKeeper does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectString {
    hosts: Vec<Host>,
    chroot: String,
}

impl ConnectString {
    /// The servers, in the order given; never empty.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The path under which everything lies: empty for none, else it starts with `/` and does not end with it.
    pub fn chroot(&self) -> &str {
        &self.chroot
    }
}

impl FromStr for ConnectString {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = |why: String| {
            let shown = printable(text);
            Error::config(format!("zookeeper.connect \"{shown}\" is refused: {why}"))
        };
        let (hosts, chroot) = match text.find('/') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        let hosts = hosts
            .split(',')
            .map(str::trim)
            .filter(|host| !host.is_empty())
            .map(host)
            .collect::<std::result::Result<Vec<Host>, String>>()
            .map_err(refused)?;
        if hosts.is_empty() {
            return Err(refused("it names no host".into()));
        }
        let chroot = self::chroot(chroot.trim_end()).map_err(refused)?;
        Ok(Self { hosts, chroot })
    }
}

impl fmt::Display for ConnectString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, host) in self.hosts.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(f, "{comma}{host}")?;
        }
        f.write_str(&self.chroot)
    }
}

fn host(text: &str) -> std::result::Result<Host, String> {
    let (name, port) = split_port(text)?;
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(format!("\"{}\" is no host", printable(text)));
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => {
                return Err(format!(
                    "a port of 1 to 65535 is wanted, not \"{}\"",
                    printable(port)
                ));
            }
        },
    };
    Ok(Host {
        name: name.to_owned(),
        port,
    })
}

fn split_port(text: &str) -> std::result::Result<(&str, Option<&str>), String> {
    if let Some(inner) = text.strip_prefix('[') {
        let Some((name, rest)) = inner.split_once(']') else {
            return Err("a bracket is not closed".into());
        };
        return match rest.strip_prefix(':') {
            Some(port) => Ok((name, Some(port))),
            None if rest.is_empty() => Ok((name, None)),
            None => Err("behind the bracket of an address comes :port".into()),
        };
    }
    match text.split_once(':') {
        Some((_, port)) if port.contains(':') => {
            Err("an IPv6 address stands in brackets, as in [::1]:2181".into())
        }
        Some((name, port)) => Ok((name, Some(port))),
        None => Ok((text, None)),
    }
}

fn chroot(text: &str) -> std::result::Result<String, String> {
    if text.contains(',') {
        return Err("the chroot stands once, at the end, as in host:2181,host:2181/chroot".into());
    }
    let path = text.trim_end_matches('/');
    let is_bad = |part: &str| {
        part.is_empty() || part == "." || part == ".." || part.contains(char::is_control)
    };
    if path.split('/').skip(1).any(is_bad) {
        return Err("the chroot has an empty part, a . or .., or a control character".into());
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_chroot_are_taken_apart() {
        for (text, again) in [
            ("h:2181", "h:2181"),
            ("h", "h:2181"),
            ("h:2181/", "h:2181"),
            ("h:2181/a/b", "h:2181/a/b"),
            ("h/a/", "h:2181/a"),
            (" h1:1 , h2:2,/k ", "h1:1,h2:2/k"),
            ("[::1]:2182,[fe80::2]/k", "[::1]:2182,[fe80::2]:2181/k"),
        ] {
            let parsed: ConnectString = text.parse().unwrap();
            assert_eq!(parsed.to_string(), again);
            assert_eq!(again.parse::<ConnectString>().unwrap(), parsed);
        }
        let parsed: ConnectString = "[::1]/k".parse().unwrap();
        assert_eq!(parsed.hosts()[0].name, "::1");
        assert_eq!(parsed.chroot(), "/k");
    }

    // r136
    #[test]
    fn a_chroot_behind_every_host_is_refused() {
        let error = "a/k,b/k".parse::<ConnectString>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "zookeeper.connect \"a/k,b/k\" is refused: the chroot stands once, at the end, as in host:2181,host:2181/chroot"
        );
    }

    #[test]
    fn what_leads_nowhere_is_refused() {
        for bad in [
            "",
            " ",
            ",",
            "/k",
            ":2181",
            "h:",
            "h:0",
            "h:65536",
            "h:x",
            "h:-1",
            "::1",
            "[::1",
            "[::1]2181",
            "h//a",
            "h/a//b",
            "h/./a",
            "h/..",
            "h x:1",
            "h\n:1",
            "h/a\u{7}b",
        ] {
            let error = bad.parse::<ConnectString>().expect_err(bad).to_string();
            assert!(error.starts_with("zookeeper.connect \""), "{error}");
        }
    }
}
