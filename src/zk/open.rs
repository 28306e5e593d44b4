//! Opening a session, and saying what is in the way when there is none.

use std::future::Future;
use std::pin::pin;

use futures_util::future::{Either, select};
use tokio::time::{Instant, sleep_until};
use zookeeper_client::Client;

use crate::error::Error;
use crate::error::ErrorKind;
use crate::error::printable;
use crate::registry::Dialect;
use crate::registry::Fault;
use crate::zk::ZkSettings;
use crate::zk::fault;
use crate::zk::probe;

/// A session that has proved to be of use: a server wrote something for it, below a chroot that exists.
pub(super) async fn open(settings: &ZkSettings, dialect: Dialect) -> Result<Client, Error> {
    check(settings)?;
    let whole = settings.connection_timeout;
    let begun = Instant::now();
    let end = begun + whole;
    // What is in the way is looked for while there is time, and told by the end: a busy server takes its own to say so.
    let probing = async {
        sleep_until(begun + whole / 2).await;
        probe::all(&settings.hosts, whole * 3 / 8).await
    };
    let attempt = attempt(settings, dialect, end);
    let (ended, findings) = match select(pin!(attempt), pin!(probing)).await {
        Either::Left((ended, _)) => (ended, None),
        Either::Right((findings, attempt)) => (attempt.await, Some(findings)),
    };
    let (what, why) = match ended {
        Ok(client) => return Ok(client),
        Err(Failure::NoChroot) => return Err(missing(settings)),
        Err(Failure::Other(what, why)) => (what, why),
    };
    let findings = match findings {
        Some(findings) => findings,
        None => {
            let left = end.saturating_duration_since(Instant::now());
            probe::all(&settings.hosts, left.min(whole / 2)).await
        }
    };
    let place = connect_string(settings);
    // The client's own words rarely tell what is in the way.
    let text = format!("{what} from ZooKeeper at {place} within {whole:?} ({why}): {findings}");
    Err(Error::new(ErrorKind::Connection, text))
}

enum Failure {
    NoChroot,
    /// What there is not, and the client's reason.
    Other(&'static str, String),
}

async fn attempt(settings: &ZkSettings, dialect: Dialect, end: Instant) -> Result<Client, Failure> {
    let connected = within(end, connect(settings, dialect)).await;
    let client = connected.map_err(|why| Failure::Other("no session", why))?;
    match within(end, prove(&client)).await {
        Ok(true) => Ok(client),
        Ok(false) => Err(Failure::NoChroot),
        Err(why) => {
            let what = "a session, but no answer to its first transaction";
            Err(Failure::Other(what, why))
        }
    }
}

async fn within<T>(
    end: Instant,
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    match tokio::time::timeout_at(end, work).await {
        Ok(result) => result,
        Err(_) => Err("timeout".to_owned()),
    }
}

/// The connect string, without secrets.
pub(super) fn connect_string(settings: &ZkSettings) -> String {
    let chroot = chroot(settings);
    printable(&format!("{}{chroot}", settings.hosts.join(",")))
}

/// The chroot as the client wants it: empty for the root, without a `/` at its end.
pub(super) fn chroot(settings: &ZkSettings) -> &str {
    settings
        .chroot
        .as_deref()
        .unwrap_or_default()
        .trim_end_matches('/')
}

fn check(settings: &ZkSettings) -> Result<(), Error> {
    let refuse = |what: &str| {
        let place = connect_string(settings);
        Err(Error::config(format!(
            "zookeeper.connect is {place:?}: {what}"
        )))
    };
    if settings.hosts.is_empty() {
        return refuse("no server is named");
    }
    let chroot = chroot(settings);
    if !chroot.is_empty() && !chroot.starts_with('/') {
        return refuse("a chroot starts with /");
    }
    match settings
        .hosts
        .iter()
        .find(|host| probe::address(host).is_none())
    {
        Some(host) => refuse(&format!("{host:?} is not host:port")),
        None => Ok(()),
    }
}

async fn connect(settings: &ZkSettings, dialect: Dialect) -> Result<Client, String> {
    let mut connector = Client::connector().with_session_timeout(settings.session_timeout);
    if dialect == Dialect::V3_4 {
        connector = connector.with_server_version(3, 4, 14);
    }
    let place = format!("{}{}", settings.hosts.join(","), chroot(settings));
    let connected = connector.connect(&place).await;
    connected.map_err(|error| fault::text(&error))
}

/// Whether the chroot exists, by a transaction that changes nothing. A server that answers it is 3.4 at least (3.3 never
/// does), has a quorum behind it, and has caught up with everything that was written before.
async fn prove(client: &Client) -> Result<bool, String> {
    loop {
        let mut writer = client.new_multi_writer();
        let added = writer.add_check_version("/", -1);
        added.map_err(|error| fault::text(&error))?;
        let Err(error) = writer.commit().await else {
            return Ok(true);
        };
        match fault::of(error.into()) {
            Fault::NoNode => return Ok(false),
            // It may not be ours to read; what we need to write will show.
            Fault::NoAuth => return Ok(true),
            // The client connects anew, and the caller knows when to stop.
            Fault::Unknown(_) => continue,
            other => return Err(other.to_string()),
        }
    }
}

fn missing(settings: &ZkSettings) -> Error {
    Error::new(
        ErrorKind::Connection,
        format!(
            "the chroot {} of zookeeper.connect does not exist at {}; it is never created by a consumer",
            printable(chroot(settings)),
            printable(&settings.hosts.join(","))
        ),
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn settings(hosts: &[&str], chroot: Option<&str>) -> ZkSettings {
        ZkSettings {
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            chroot: chroot.map(str::to_owned),
            session_timeout: Duration::from_secs(6),
            connection_timeout: Duration::from_secs(6),
        }
    }

    #[test]
    fn the_slash_at_the_end_of_a_chroot_is_left_out() {
        assert_eq!(
            connect_string(&settings(&["a:1", "b"], Some("/kafka/x/"))),
            "a:1,b/kafka/x"
        );
        assert_eq!(connect_string(&settings(&["a:1"], Some("/"))), "a:1");
    }

    #[test]
    fn what_cannot_be_a_connect_string_is_refused_before_anything_is_sent() {
        assert!(check(&settings(&["a:1", "[::1]:2181"], None)).is_ok());
        for (hosts, chroot) in [
            (&[][..], None),
            (&["tcp+tls://a:1"][..], None),
            (&["a:0"], None),
            (&["a:1/b"], None),
            (&["a"], Some("kafka")),
        ] {
            let error = check(&settings(hosts, chroot)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{hosts:?} {chroot:?}");
        }
    }
}
