//! The options that say where the servers are and how a member is set up.

use std::fs::File;
use std::path::PathBuf;

use clap::Args;

use evenkeel::Config;
use evenkeel::config::Properties;

use crate::output::{Outcome, bad};

/// A properties file, with keys set over it: first by --property, then by the options that have a name of their own.
#[derive(Args)]
pub struct Settings {
    /// The ZooKeeper servers, with the chroot if Kafka has one: zk1:2181,zk2:2181/kafka
    #[arg(long, value_name = "CONNECT")]
    zookeeper: Option<String>,
    /// The group
    #[arg(long)]
    pub group: Option<String>,
    /// The brokers, host:port,host:port; found in ZooKeeper, if not given
    #[arg(long, value_name = "BROKERS")]
    bootstrap: Option<String>,
    /// An old consumer's properties file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// One property, over what the file says; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    property: Vec<(String, String)>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.to_owned()))
        }
        _ => Err("it is not KEY=VALUE".to_owned()),
    }
}

impl Settings {
    /// The whole configuration. `group` stands in where none is named.
    pub fn config(&self, group: Option<&str>) -> Outcome<Config> {
        let mut properties = match &self.config {
            Some(path) => read(path)?,
            None => Properties::new(),
        };
        for (key, value) in &self.property {
            properties = properties.with(key, value);
        }
        let named = [
            ("zookeeper.connect", &self.zookeeper),
            ("group.id", &self.group),
            ("bootstrap.servers", &self.bootstrap),
        ];
        for (key, value) in named {
            if let Some(value) = value {
                properties = properties.with(key, value);
            }
        }
        let read = Config::from_read(&properties);
        let read = match (read, group) {
            (Err(error), Some(group)) if error.to_string() == NO_GROUP => {
                Config::from_read(&properties.with("group.id", group))
            }
            (read, _) => read,
        };
        read.or_else(|error| bad(format!("{error}{}", hint(&error.to_string()))))
    }
}

const NO_GROUP: &str = "group.id is missing";

fn hint(error: &str) -> &'static str {
    match error {
        "zookeeper.connect is missing" => ": give --zookeeper, or a --config that has it",
        NO_GROUP => ": give --group, or a --config that has it",
        _ => "",
    }
}

fn read(path: &PathBuf) -> Outcome<Properties> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) => {
            return bad(format!(
                "--config {} cannot be opened: {error}",
                path.display()
            ));
        }
    };
    Properties::read(file).or_else(|error| bad(format!("--config {}: {error}", path.display())))
}
