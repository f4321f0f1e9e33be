//! Every command: how many arguments it takes, what it may do, where its keys are, which function runs it.

use super::{Cx, Outcome, client, config, counters, expire, help, info, keys, server, strings, transactions};
use crate::resp::Args;
use std::sync::LazyLock;

/// What a command is and may do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Flags(u16);

impl Flags {
    /// Changes the data.
    pub const WRITE: Flags = Flags(1);
    /// Only looks at it.
    pub const READONLY: Flags = Flags(2);
    /// May need memory, so it is refused when there is none.
    pub const DENY_OOM: Flags = Flags(4);
    /// Takes constant time.
    pub const FAST: Flags = Flags(8);
    /// Is about the server.
    pub const ADMIN: Flags = Flags(16);
    /// Runs before the client has logged in.
    pub const NO_AUTH: Flags = Flags(32);
    /// Runs at once inside `MULTI`.
    pub const IN_MULTI: Flags = Flags(64);
    /// Is refused inside `MULTI`.
    pub const NO_MULTI: Flags = Flags(128);
    /// Holds subcommands.
    pub const CONTAINER: Flags = Flags(256);

    /// Whether all of `other` is set.
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// The names `COMMAND` gives the flags that are set.
    pub fn names(self) -> Vec<&'static str> {
        let all = [
            (Flags::WRITE, "write"),
            (Flags::READONLY, "readonly"),
            (Flags::DENY_OOM, "denyoom"),
            (Flags::ADMIN, "admin"),
            (Flags::FAST, "fast"),
            (Flags::NO_AUTH, "no_auth"),
            (Flags::NO_MULTI, "no_multi"),
        ];
        all.iter().filter(|(flag, _)| self.has(*flag)).map(|(_, name)| *name).collect()
    }
}

/// One command.
pub struct Spec {
    /// Its name in lower case.
    pub name: &'static str,
    /// Number of arguments with the name; negative: at least so many.
    pub arity: i8,
    /// What it is and may do.
    pub flags: Flags,
    /// First key, last key (negative: from the end), step; zeros without keys.
    pub keys: (i8, i8, i8),
    /// What it does.
    pub run: fn(&mut Cx<'_>, &Args<'_>) -> Outcome,
    /// The group `COMMAND DOCS` lists it in.
    pub group: &'static str,
    /// One sentence about it.
    pub summary: &'static str,
}

macro_rules! command {
    ($name:literal, $arity:literal, $flags:expr, $keys:expr, $run:path, $group:literal, $summary:literal) => {
        Spec { name: $name, arity: $arity, flags: $flags, keys: $keys, run: $run, group: $group, summary: $summary }
    };
}

/// Every command, by name.
#[rustfmt::skip]
pub static TABLE: &[Spec] = &[
    command!("append", 3, Flags(Flags::WRITE.0 | Flags::DENY_OOM.0 | Flags::FAST.0), (1, 1, 1), strings::append, "string", "Append a string to the value of a key."),
    command!("auth", -2, Flags(Flags::NO_AUTH.0 | Flags::FAST.0), (0, 0, 0), server::auth, "connection", "Authenticate the connection."),
    command!("bgrewriteaof", 1, Flags(Flags::ADMIN.0), (0, 0, 0), server::bgrewriteaof, "server", "Rewrite the append-only log in the background."),
    command!("client", -2, Flags(Flags::ADMIN.0 | Flags::CONTAINER.0), (0, 0, 0), client::client, "connection", "A container for client connection commands."),
    command!("command", -1, Flags(Flags::CONTAINER.0), (0, 0, 0), help::command, "server", "Return information about the commands."),
    command!("config", -2, Flags(Flags::ADMIN.0 | Flags::CONTAINER.0), (0, 0, 0), config::config, "server", "A container for server configuration commands."),
    command!("copy", -3, Flags(Flags::WRITE.0 | Flags::DENY_OOM.0), (1, 2, 1), keys::copy, "generic", "Copy the value of a key to another key."),
    command!("dbsize", 1, Flags(Flags::READONLY.0 | Flags::FAST.0), (0, 0, 0), keys::dbsize, "server", "Return the number of keys in the database."),
    command!("debug", -2, Flags(Flags::ADMIN.0), (0, 0, 0), server::debug, "server", "A container for debugging commands."),
    command!("decr", 2, Flags(Flags::WRITE.0 | Flags::DENY_OOM.0 | Flags::FAST.0), (1, 1, 1), counters::decr, "string", "Decrement the integer value of a key by one."),
    command!("decrby", 3, Flags(Flags::WRITE.0 | Flags::DENY_OOM.0 | Flags::FAST.0), (1, 1, 1), counters::decrby, "string", "Decrement the integer value of a key by a number."),
    command!("del", -2, Flags(Flags::WRITE.0), (1, -1, 1), keys::del, "generic", "Delete one or more keys."),
    command!("discard", 1, Flags(Flags::FAST.0 | Flags::IN_MULTI.0), (0, 0, 0), transactions::discard, "transactions", "Discard a transaction."),
    command!("echo", 2, Flags(Flags::FAST.0), (0, 0, 0), server::echo, "connection", "Return the given string."),
    command!("exec", 1, Flags(Flags::IN_MULTI.0), (0, 0, 0), transactions::exec, "transactions", "Execute all commands of a transaction."),
    command!("exists", -2, Flags(Flags::READONLY.0 | Flags::FAST.0), (1, -1, 1), keys::exists, "generic", "Determine whether keys exist."),
    command!("expire", -3, Flags(Flags::WRITE.0 | Flags::FAST.0), (1, 1, 1), expire::expire, "generic", "Set the time to live of a key in seconds."),
    command!("expireat", -3, Flags(Flags::WRITE.0 | Flags::FAST.0), (1, 1, 1), expire::expireat, "generic", "Set the expiry of a key to a Unix time."),
    command!("expiretime", 2, Flags(Flags::READONLY.0 | Flags::FAST.0), (1, 1, 1), expire::expiretime, "generic", "Return the expiry of a key as a Unix time."),
    command!("flushall", -1, Flags(Flags::WRITE.0), (0, 0, 0), keys::flushall, "server", "Remove all keys from all databases."),
    command!("flushdb", -1, Flags(Flags::WRITE.0), (0, 0, 0), keys::flushdb, "server", "Remove all keys from the current database."),
    command!("get", 2, Flags(Flags::READONLY.0 | Flags::FAST.0), (1, 1, 1), strings::get, "string", "Return the value of a key."),
    command!("getdel", 2, Flags(Flags::WRITE.0 | Flags::FAST.0), (1, 1, 1), strings::getdel, "string", "Return the value of a key and delete it."),
    command!("getex", -2, Flags(Flags::WRITE.0 | Flags::FAST.0), (1, 1, 1), strings::getex, "string", "Return the value of a key after setting its expiry."),
    command!("getrange", 4, Flags(Flags::READONLY.0), (1, 1, 1), strings::getrange, "string", "Return part of the value of a key."),
    command!("getset", 3, Flags(Flags::WRITE.0 | Flags::DENY_OOM.0 | Flags::FAST.0), (1, 1, 1), strings::getset, "string", "Return the old value of a key and set a new one."),
    command!("hello", -1, Flags(Flags::NO_AUTH.0 | Flags::FAST.0), (0, 0, 0), server::hello, "connection", "Handshake: protocol version, login, name."),
    command!("incr", 2, Flags(Flags::WRITE.0 | Flags::DENY_OOM.0 | Flags::FAST.0), (1, 1, 1), counters::incr, "string", "Increment the integer value of a key by one."),
    command!("incrby", 3, Flags(Flags::WRITE.0 | Flags::DENY_OOM.0 | Flags::FAST.0), (1, 1, 1), counters::incrby, "string", "Increment the integer value of a key by a number."),
    command!("incrbyfloat", 3, Flags(Flags::WRITE.0 | Flags::DENY_OOM.0 | Flags::FAST.0), (1, 1, 1), counters::incrbyfloat, "string", "Increment the number in a key by a fraction."),
    command!("info", -1, Flags(0), (0, 0, 0), info::info, "server", "Return information and statistics about the server."),
    command!("keys", 2, Flags(Flags::READONLY.0), (0, 0, 0), keys::keys, "generic", "Return all keys that match a pattern."),
    command!("lastsave", 1, Flags(Flags::FAST.0), (0, 0, 0), server::lastsave, "server", "Return the time of the last save."),
    command!("memory", -2, Flags(Flags::READONLY.0 | Flags::CONTAINER.0), (0, 0, 0), keys::memory, "server", "A container for memory diagnostics commands."),
    command!("mget", -2, Flags(Flags::READONLY.0 | Flags::FAST.0), (1, -1, 1), strings::mget, "string", "Return the values of several keys."),
    command!("move", 3, Flags(Flags::WRITE.0 | Flags::FAST.0), (1, 1, 1), keys::relocate_db, "generic", "Move a key to another database."),
    command!("mset", -3, Flags(Flags::WRITE.0 | Flags::DENY_OOM.0), (1, -1, 2), strings::mset, "string", "Set the values of several keys."),
    command!("msetnx", -3, Flags(Flags::WRITE.0 | Flags::DENY_OOM.0), (1, -1, 2), strings::msetnx, "string", "Set several keys if none of them exists."),
    command!("multi", 1, Flags(Flags::FAST.0 | Flags::IN_MULTI.0), (0, 0, 0), transactions::multi, "transactions", "Start a transaction."),
    command!("object", -2, Flags(Flags::READONLY.0 | Flags::CONTAINER.0), (2, 2, 1), keys::object, "generic", "A container for object introspection commands."),
    command!("persist", 2, Flags(Flags::WRITE.0 | Flags::FAST.0), (1, 1, 1), expire::persist, "generic", "Remove the expiry of a key."),
    command!("pexpire", -3, Flags(Flags::WRITE.0 | Flags::FAST.0), (1, 1, 1), expire::pexpire, "generic", "Set the time to live of a key in milliseconds."),
    command!("pexpireat", -3, Flags(Flags::WRITE.0 | Flags::FAST.0), (1, 1, 1), expire::pexpireat, "generic", "Set the expiry of a key to a Unix time in milliseconds."),
    command!("pexpiretime", 2, Flags(Flags::READONLY.0 | Flags::FAST.0), (1, 1, 1), expire::pexpiretime, "generic", "Return the expiry of a key in Unix milliseconds."),
    command!("ping", -1, Flags(Flags::FAST.0), (0, 0, 0), server::ping, "connection", "Answer."),
    command!("psetex", 4, Flags(Flags::WRITE.0 | Flags::DENY_OOM.0), (1, 1, 1), strings::psetex, "string", "Set a value and its time to live in milliseconds."),
    command!("pttl", 2, Flags(Flags::READONLY.0 | Flags::FAST.0), (1, 1, 1), expire::pttl, "generic", "Return the time to live of a key in milliseconds."),
    command!("quit", -1, Flags(Flags::NO_AUTH.0 | Flags::FAST.0 | Flags::IN_MULTI.0), (0, 0, 0), server::quit, "connection", "Close the connection."),
    command!("randomkey", 1, Flags(Flags::READONLY.0), (0, 0, 0), keys::randomkey, "generic", "Return a random key."),
    command!("rename", 3, Flags(Flags::WRITE.0), (1, 2, 1), keys::rename, "generic", "Rename a key, overwriting the new name."),
    command!("renamenx", 3, Flags(Flags::WRITE.0 | Flags::FAST.0), (1, 2, 1), keys::renamenx, "generic", "Rename a key unless the new name exists."),
    command!("reset", 1, Flags(Flags::NO_AUTH.0 | Flags::FAST.0 | Flags::IN_MULTI.0), (0, 0, 0), server::reset, "connection", "Reset the connection."),
    command!("scan", -2, Flags(Flags::READONLY.0), (0, 0, 0), keys::scan, "generic", "Iterate over the keys."),
    command!("select", 2, Flags(Flags::FAST.0), (0, 0, 0), server::select, "connection", "Change the selected database."),
    command!("set", -3, Flags(Flags::WRITE.0 | Flags::DENY_OOM.0), (1, 1, 1), strings::set, "string", "Set the value of a key, whatever it was."),
    command!("setex", 4, Flags(Flags::WRITE.0 | Flags::DENY_OOM.0), (1, 1, 1), strings::setex, "string", "Set a value and its time to live in seconds."),
    command!("setnx", 3, Flags(Flags::WRITE.0 | Flags::DENY_OOM.0 | Flags::FAST.0), (1, 1, 1), strings::setnx, "string", "Set the value of a key if it does not exist."),
    command!("setrange", 4, Flags(Flags::WRITE.0 | Flags::DENY_OOM.0), (1, 1, 1), strings::setrange, "string", "Overwrite part of the value of a key."),
    command!("shutdown", -1, Flags(Flags::ADMIN.0 | Flags::NO_MULTI.0), (0, 0, 0), server::shutdown, "server", "Finish, flush the log and stop the server."),
    command!("strlen", 2, Flags(Flags::READONLY.0 | Flags::FAST.0), (1, 1, 1), strings::strlen, "string", "Return the length of the value of a key."),
    command!("substr", 4, Flags(Flags::READONLY.0), (1, 1, 1), strings::getrange, "string", "Return part of the value of a key (an old name of GETRANGE)."),
    command!("swapdb", 3, Flags(Flags::WRITE.0 | Flags::FAST.0), (0, 0, 0), keys::swapdb, "server", "Exchange two databases."),
    command!("time", 1, Flags(Flags::FAST.0), (0, 0, 0), server::time, "server", "Return the server's time."),
    command!("touch", -2, Flags(Flags::READONLY.0 | Flags::FAST.0), (1, -1, 1), keys::exists, "generic", "Mark keys as used; return how many exist."),
    command!("ttl", 2, Flags(Flags::READONLY.0 | Flags::FAST.0), (1, 1, 1), expire::ttl, "generic", "Return the time to live of a key in seconds."),
    command!("type", 2, Flags(Flags::READONLY.0 | Flags::FAST.0), (1, 1, 1), keys::kind, "generic", "Return the type of the value of a key."),
    command!("unlink", -2, Flags(Flags::WRITE.0 | Flags::FAST.0), (1, -1, 1), keys::del, "generic", "Delete one or more keys."),
    command!("unwatch", 1, Flags(Flags::FAST.0 | Flags::IN_MULTI.0), (0, 0, 0), transactions::unwatch, "transactions", "Forget the watched keys."),
    command!("wait", 3, Flags(0), (0, 0, 0), server::wait, "generic", "Wait for replicas, of which there are none."),
    command!("watch", -2, Flags(Flags::FAST.0 | Flags::IN_MULTI.0), (1, -1, 1), transactions::watch, "transactions", "Watch keys: a change of one makes the transaction fail."),
];

/// Longest name of a command.
const NAME_MAX: usize = 16;
/// Places of the index; a power of two well above the number of commands.
const PLACES: usize = 512;

/// Name as a number and place in [`TABLE`] plus one, found by hashing and looking at the next places.
static INDEX: LazyLock<Box<[(u128, u16); PLACES]>> = LazyLock::new(|| {
    let mut index = Box::new([(0, 0); PLACES]);
    for (i, spec) in TABLE.iter().enumerate() {
        let code = code(spec.name.as_bytes()).unwrap_or(0);
        let mut at = place(code);
        while index[at].1 != 0 {
            at = (at + 1) % PLACES;
        }
        index[at] = (code, i as u16 + 1);
    }
    index
});

/// The name as a number, in lower case.
fn code(name: &[u8]) -> Option<u128> {
    if name.len() > NAME_MAX {
        return None;
    }
    let mut bytes = [0; NAME_MAX];
    for (to, from) in bytes.iter_mut().zip(name) {
        *to = from.to_ascii_lowercase();
    }
    Some(u128::from_le_bytes(bytes))
}

fn place(code: u128) -> usize {
    let folded = (code as u64) ^ ((code >> 64) as u64).rotate_left(23);
    (folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55) as usize % PLACES
}

/// The command of that name, in upper or lower case, with its place in [`TABLE`].
pub fn find(name: &[u8]) -> Option<(usize, &'static Spec)> {
    let code = code(name)?;
    let mut at = place(code);
    loop {
        match INDEX[at] {
            (_, 0) => return None,
            (found, i) if found == code => return Some((usize::from(i) - 1, &TABLE[usize::from(i) - 1])),
            _ => at = (at + 1) % PLACES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_in_either_case() {
        for (i, spec) in TABLE.iter().enumerate() {
            assert_eq!(find(spec.name.as_bytes()).map(|f| f.0), Some(i), "{}", spec.name);
            assert_eq!(find(spec.name.to_uppercase().as_bytes()).map(|f| f.0), Some(i), "{}", spec.name);
            assert!(spec.name.len() <= NAME_MAX);
        }
        for missing in ["", "g", "gett", "a name that is far too long to be one"] {
            assert!(find(missing.as_bytes()).is_none(), "{missing}");
        }
    }
}
