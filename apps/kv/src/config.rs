//! What a server is told: at start by its caller, later by `CONFIG SET`. Names and values are those of Redis.

use crate::number::parse_memory;
use crate::store::Policy;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// When the log is made durable (`appendfsync`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fsync {
    /// Before a write is acknowledged.
    Always,
    /// Once a second.
    #[default]
    Everysec,
    /// When the system likes to.
    No,
}

impl Fsync {
    /// The policy of that name.
    pub fn parse(name: &str) -> Option<Fsync> {
        match name.to_ascii_lowercase().as_str() {
            "always" => Some(Fsync::Always),
            "everysec" => Some(Fsync::Everysec),
            "no" => Some(Fsync::No),
            _ => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Fsync::Always => "always",
            Fsync::Everysec => "everysec",
            Fsync::No => "no",
        }
    }
}

/// Everything that can be set.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses to listen on; loopback unless told otherwise.
    pub bind: Vec<IpAddr>,
    /// Port to listen on; 0 picks a free one.
    pub port: u16,
    /// Password of the default user; empty for none.
    pub requirepass: String,
    /// Most bytes of data; 0 for no limit.
    pub maxmemory: u64,
    /// What goes when memory is short.
    pub maxmemory_policy: Policy,
    /// Most clients at once.
    pub maxclients: usize,
    /// Clients idle for longer are disconnected; zero for never.
    pub timeout: Duration,
    /// Probe of silent peers after this long; zero for never.
    pub tcp_keepalive: Duration,
    /// Whether changes are logged.
    pub appendonly: bool,
    /// When the log is made durable.
    pub appendfsync: Fsync,
    /// Name of the log's file inside `dir`.
    pub appendfilename: String,
    /// Folder of the log.
    pub dir: PathBuf,
    /// Longest argument in bytes.
    pub proto_max_bulk_len: u64,
    /// Most bytes of one unfinished request.
    pub client_query_buffer_limit: u64,
    /// Rewrite the log when it has grown by this many percent; 0 for never.
    pub auto_aof_rewrite_percentage: u64,
    /// But not while it is smaller than this many bytes.
    pub auto_aof_rewrite_min_size: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            bind: vec![IpAddr::from([127, 0, 0, 1])],
            port: 6379,
            requirepass: String::new(),
            maxmemory: 0,
            maxmemory_policy: Policy::NoEviction,
            maxclients: 10_000,
            timeout: Duration::ZERO,
            tcp_keepalive: Duration::from_secs(300),
            appendonly: false,
            appendfsync: Fsync::Everysec,
            appendfilename: "appendonly.aof".to_string(),
            dir: PathBuf::from("."),
            proto_max_bulk_len: 512 << 20,
            client_query_buffer_limit: 1 << 30,
            auto_aof_rewrite_percentage: 100,
            auto_aof_rewrite_min_size: 64 << 20,
        }
    }
}

/// Why a parameter was not set.
#[derive(Debug, PartialEq, Eq)]
pub enum SetError {
    /// There is none of that name.
    Unknown,
    /// It can be set at start only.
    Immutable,
    /// The value does not fit it; the text says why.
    Invalid(&'static str),
}

/// The names `CONFIG GET` knows, in the order it lists them.
pub const NAMES: [&str; 19] = [
    "appendfilename",
    "appendfsync",
    "appendonly",
    "auto-aof-rewrite-min-size",
    "auto-aof-rewrite-percentage",
    "bind",
    "client-query-buffer-limit",
    "databases",
    "dir",
    "maxclients",
    "maxmemory",
    "maxmemory-policy",
    "port",
    "proto-max-bulk-len",
    "requirepass",
    "save",
    "slowlog-log-slower-than",
    "tcp-keepalive",
    "timeout",
];

const MEMORY: SetError = SetError::Invalid("argument must be a memory value");
const NUMBER: SetError = SetError::Invalid("argument couldn't be parsed into an integer");

impl Config {
    /// The value of a parameter as text.
    pub fn get(&self, name: &str) -> Option<String> {
        Some(match name {
            "appendfilename" => self.appendfilename.clone(),
            "appendfsync" => self.appendfsync.name().to_string(),
            "appendonly" => if self.appendonly { "yes" } else { "no" }.to_string(),
            "auto-aof-rewrite-min-size" => self.auto_aof_rewrite_min_size.to_string(),
            "auto-aof-rewrite-percentage" => self.auto_aof_rewrite_percentage.to_string(),
            "bind" => self.bind.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" "),
            "client-query-buffer-limit" => self.client_query_buffer_limit.to_string(),
            "databases" => crate::store::DATABASES.to_string(),
            "dir" => std::path::absolute(&self.dir).unwrap_or_else(|_| self.dir.clone()).display().to_string(),
            "maxclients" => self.maxclients.to_string(),
            "maxmemory" => self.maxmemory.to_string(),
            "maxmemory-policy" => self.maxmemory_policy.name().to_string(),
            "port" => self.port.to_string(),
            "proto-max-bulk-len" => self.proto_max_bulk_len.to_string(),
            "requirepass" => self.requirepass.clone(),
            "save" => String::new(),
            "slowlog-log-slower-than" => "-1".to_string(),
            "tcp-keepalive" => self.tcp_keepalive.as_secs().to_string(),
            "timeout" => self.timeout.as_secs().to_string(),
            _ => return None,
        })
    }

    /// Sets a parameter; changes nothing on error.
    ///
    /// # Errors
    /// [`SetError`].
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SetError> {
        match name {
            "appendfsync" => {
                self.appendfsync = Fsync::parse(value)
                    .ok_or(SetError::Invalid("argument(s) must be one of the following: everysec, always, no"))?
            }
            "auto-aof-rewrite-min-size" => self.auto_aof_rewrite_min_size = parse_memory(value).ok_or(MEMORY)?,
            "auto-aof-rewrite-percentage" => self.auto_aof_rewrite_percentage = number(value)?,
            "client-query-buffer-limit" => self.client_query_buffer_limit = at_least(value, 1 << 20)?,
            "maxclients" => {
                self.maxclients = usize::try_from(number(value)?).ok().filter(|n| *n > 0).ok_or(NUMBER)?;
            }
            "maxmemory" => self.maxmemory = parse_memory(value).ok_or(MEMORY)?,
            "maxmemory-policy" => self.maxmemory_policy = Policy::parse(value).ok_or(SetError::Invalid(
                "argument(s) must be one of the following: volatile-lru, volatile-random, volatile-ttl, allkeys-lru, \
                 allkeys-random, noeviction",
            ))?,
            "proto-max-bulk-len" => self.proto_max_bulk_len = at_least(value, 1 << 20)?.min(u64::from(u32::MAX) / 2),
            "requirepass" => self.requirepass = value.to_string(),
            "save" | "slowlog-log-slower-than" => {}
            "tcp-keepalive" => self.tcp_keepalive = Duration::from_secs(number(value)?),
            "timeout" => self.timeout = Duration::from_secs(number(value)?),
            "appendonly" | "appendfilename" | "bind" | "databases" | "dir" | "port" => return Err(SetError::Immutable),
            _ => return Err(SetError::Unknown),
        }
        Ok(())
    }
}

fn number(value: &str) -> Result<u64, SetError> {
    value.parse::<u32>().map(u64::from).map_err(|_| NUMBER)
}

fn at_least(value: &str, least: u64) -> Result<u64, SetError> {
    let n = parse_memory(value).ok_or(MEMORY)?;
    if n < least { Err(SetError::Invalid("argument must be at least 1048576")) } else { Ok(n) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_parameter_has_a_value() {
        let config = Config::default();
        for name in NAMES {
            assert!(config.get(name).is_some(), "{name}");
        }
        assert_eq!(config.get("nonsense"), None);
    }

    #[test]
    fn bad_value_changes_nothing_and_says_why() {
        let mut config = Config::default();
        assert_eq!(config.set("maxmemory", "lots"), Err(MEMORY));
        assert_eq!(config.maxmemory, 0);
        assert_eq!(config.set("port", "1"), Err(SetError::Immutable));
        assert_eq!(config.set("nonsense", "1"), Err(SetError::Unknown));
        assert_eq!(config.set("maxmemory", "1mb"), Ok(()));
        assert_eq!(config.get("maxmemory").as_deref(), Some("1048576"));
    }
}
