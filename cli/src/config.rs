//! One configuration for every subcommand: each option `--some-name` can also be given as `TOWPATH_SOME_NAME` in the
//! environment and as `some-name` in a TOML file. Flags win over the environment, the environment over the file, the
//! file over the defaults.
//!
//! The file is named by `--config` or `TOWPATH_CONFIG`; otherwise `towpath/towpath.toml` in the user's configuration
//! folder is read if it is there. Its tables are the subcommands:
//!
//! ```toml
//! libos = "kernel@uring"    # for every subcommand that has the option
//!
//! [serve.kv]
//! port = 7000
//! bind = ["127.0.0.1", "::1"]
//! appendonly = true
//! ```

use clap::builder::OsStr;
use clap::{Arg, Command};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use toml::{Table, Value};

/// Gives `command` the environment's and the file's values as defaults. `args` is the command line, looked through for
/// `--config` only.
///
/// # Errors
/// The file cannot be read, is no TOML, or names an option that does not exist; the text says which.
pub fn apply(command: Command, args: impl Iterator<Item = OsString>) -> Result<Command, String> {
    let command = command.arg(
        Arg::new("config")
            .long("config")
            .value_name("FILE")
            .env("TOWPATH_CONFIG")
            .global(true)
            .help("Read options from this TOML file"),
    );
    let (path, wanted) = match named(args).or_else(|| std::env::var_os("TOWPATH_CONFIG").filter(|p| !p.is_empty())) {
        Some(path) => (Some(PathBuf::from(path)), true),
        None => (usual(), false),
    };
    let mut table = Table::new();
    if let Some(path) = path {
        match std::fs::read_to_string(&path) {
            Ok(text) => table = text.parse().map_err(|e| format!("{} is no TOML: {e}", path.display()))?,
            Err(error) if wanted || error.kind() != std::io::ErrorKind::NotFound => {
                return Err(format!("cannot read {}: {error}", path.display()));
            }
            Err(_) => {}
        }
    }
    configured(command, &table)
}

/// Gives a command and its subcommands the values of a table and names in the environment.
fn configured(command: Command, table: &Table) -> Result<Command, String> {
    let mut known = BTreeSet::new();
    let command = visit(command, &[table], &mut known, "")?;
    match unknown(table, &known, "") {
        Some(name) => Err(format!("the configuration names `{name}`, which is no option here")),
        None => Ok(command),
    }
}

/// `tables` are those that apply, outermost first: the innermost wins.
fn visit(mut command: Command, tables: &[&Table], known: &mut BTreeSet<String>, path: &str) -> Result<Command, String> {
    let named: Vec<(clap::Id, String)> = command
        .get_arguments()
        .filter_map(|arg| Some((arg.get_id().clone(), arg.get_long()?.to_string())))
        .filter(|(_, long)| !["help", "version", "config"].contains(&long.as_str()))
        .collect();
    for (id, long) in named {
        // An option may be given in the command's own table and in every one around it.
        for prefix in prefixes(path) {
            known.insert(format!("{prefix}{long}"));
        }
        let value = tables.iter().rev().find_map(|t| t.get(&long).filter(|v| !v.is_table()));
        let texts = value.map(|v| texts(&long, v)).transpose()?;
        command = command.mut_arg(id, |arg| with_defaults(arg, &long, texts));
    }
    let subcommands: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_string()).collect();
    for name in subcommands {
        let inner = tables.last().and_then(|t| t.get(&name)).and_then(Value::as_table);
        let tables: Vec<&Table> = tables.iter().copied().chain(inner).collect();
        let path = format!("{path}{name}.");
        known.insert(path.clone());
        let mut outcome = Ok(());
        command = command.mut_subcommand(name, |sub| match visit(sub.clone(), &tables, known, &path) {
            Ok(done) => done,
            Err(error) => {
                outcome = Err(error);
                sub
            }
        });
        outcome?;
    }
    Ok(command)
}

/// `a.b.` gives ``, `a.`, `a.b.`.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    std::iter::once("").chain(path.match_indices('.').map(|(at, _)| &path[..=at]))
}

fn with_defaults(mut arg: Arg, long: &str, texts: Option<Vec<OsStr>>) -> Arg {
    if arg.get_env().is_none() {
        arg = arg.env(OsStr::from(format!("TOWPATH_{}", long.replace('-', "_").to_uppercase())));
    }
    match texts {
        Some(texts) => arg.default_values(texts).required(false),
        None => arg,
    }
}

/// A value of the file as the texts a command line would have.
fn texts(name: &str, value: &Value) -> Result<Vec<OsStr>, String> {
    match value {
        Value::String(text) => Ok(vec![text.clone().into()]),
        Value::Integer(n) => Ok(vec![n.to_string().into()]),
        Value::Float(n) => Ok(vec![n.to_string().into()]),
        Value::Boolean(b) => Ok(vec![b.to_string().into()]),
        Value::Array(items) => Ok(items.iter().map(|item| texts(name, item)).collect::<Result<Vec<_>, _>>()?.concat()),
        _ => Err(format!("the configuration gives `{name}` a value of a kind that no option takes")),
    }
}

/// The first name in the table that is no option and no subcommand.
fn unknown(table: &Table, known: &BTreeSet<String>, path: &str) -> Option<String> {
    table.iter().find_map(|(name, value)| match value {
        Value::Table(inner) if known.contains(&format!("{path}{name}.")) => {
            unknown(inner, known, &format!("{path}{name}."))
        }
        _ => (!known.contains(&format!("{path}{name}"))).then(|| format!("{path}{name}")),
    })
}

/// The value of `--config` on a command line.
fn named(args: impl Iterator<Item = OsString>) -> Option<OsString> {
    let mut args = args;
    while let Some(arg) = args.next() {
        if arg == "--" {
            return None;
        }
        if arg == "--config" {
            return args.next();
        }
        if let Some(path) = arg.to_str().and_then(|a| a.strip_prefix("--config=")) {
            return Some(path.into());
        }
    }
    None
}

/// Where the file lies if nobody says where.
fn usual() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CONFIG_HOME").filter(|d| !d.is_empty()).map(PathBuf::from);
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")))?;
    Some(base.join("towpath").join("towpath.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ArgAction;

    fn command() -> Command {
        let option = |name: &'static str| Arg::new(name).long(name).default_value("0");
        let flag = Arg::new("quiet").long("quiet").action(ArgAction::SetTrue);
        let many = Arg::new("bind").long("bind").action(ArgAction::Append).value_delimiter(',');
        let kv = Command::new("kv").args([option("config-test-port"), option("size"), flag, many]);
        Command::new("towpath").subcommand(Command::new("serve").subcommand(kv))
    }

    fn run(toml: &str, args: &[&str]) -> Result<clap::ArgMatches, String> {
        let command = configured(command(), &toml.parse().expect("a test's TOML is well-formed"))?;
        let matches = command.try_get_matches_from(["towpath", "serve", "kv"].iter().chain(args));
        let matches = matches.map_err(|e| e.to_string())?;
        let kv = matches.subcommand().and_then(|(_, m)| m.subcommand()).map(|(_, m)| m.clone());
        Ok(kv.expect("the subcommand was given"))
    }

    fn text(matches: &clap::ArgMatches, name: &str) -> String {
        matches.get_one::<String>(name).expect("it has a default").clone()
    }

    #[test]
    fn flag_wins_over_file_and_inner_table_over_outer() {
        let toml = "size = 1\n[serve]\nsize = 2\n[serve.kv]\nquiet = true\nbind = ['a', 'b']\nconfig-test-port = 7";
        let matches = run(toml, &[]).expect("the configuration is right");
        assert_eq!((text(&matches, "size").as_str(), text(&matches, "config-test-port").as_str()), ("2", "7"));
        assert!(matches.get_flag("quiet"));
        let bind: Vec<&String> = matches.get_many("bind").expect("given in the file").collect();
        assert_eq!(bind, ["a", "b"]);
        let matches = run(toml, &["--size", "9"]).expect("the command line is right");
        assert_eq!(text(&matches, "size"), "9");
    }

    #[test]
    fn name_that_is_no_option_is_refused() {
        for (toml, name) in
            [("sise = 1", "sise"), ("[serve.kv]\nprot = 1", "serve.kv.prot"), ("[sreve]\nsize=1", "sreve")]
        {
            let error = run(toml, &[]).expect_err("the name is wrong");
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
    }

    #[test]
    fn every_option_has_a_name_in_the_environment() {
        let command = configured(command(), &Table::new()).expect("nothing is configured");
        let kv = command.find_subcommand("serve").and_then(|s| s.find_subcommand("kv")).expect("it is there");
        let port = kv.get_arguments().find(|a| a.get_id() == "config-test-port").expect("it is there");
        assert_eq!(port.get_env(), Some(std::ffi::OsStr::new("TOWPATH_CONFIG_TEST_PORT")));
    }

    #[test]
    fn config_is_found_on_the_command_line_in_both_forms() {
        let find = |args: &[&str]| named(args.iter().map(OsString::from));
        assert_eq!(find(&["serve", "--config", "x"]), Some("x".into()));
        assert_eq!(find(&["--config=y"]), Some("y".into()));
        assert_eq!(find(&["bench", "--", "--config=y"]), None);
    }
}
