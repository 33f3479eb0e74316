//! The file that says what the daemon's options could: `--config`. The only file that knows TOML.

use std::{ffi::OsString, ops::Range, path::Path};

use clap::{Arg, ArgAction, ArgMatches, Command, error::ErrorKind, parser::ValueSource};
use toml::de::{DeTable, DeValue};

use super::one_line;
use crate::files;

/// Options that a file cannot have.
const ONLY_TYPED: [&str; 3] = ["config", "check-config", "help"];

/// What a file says of one option.
struct Setting {
    /// The option's.
    id: String,
    line: usize,
    /// What one would type instead.
    typed: Vec<OsString>,
}

/// The arguments with what the file says put in, as if it had been typed; an option that was typed counts instead.
///
/// # Errors
/// The file, the line, and what is wrong there, in one line.
pub(super) fn with_file(
    program: &Command,
    mut arguments: Vec<OsString>,
    typed: &ArgMatches,
    path: &Path,
) -> Result<Vec<OsString>, String> {
    let tell = |problem: String| format!("error: {}: {problem}", files::shown(path));
    let bytes = files::contents(path).map_err(|error| tell(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|error| tell(error.to_string()))?;
    let settings = settings(&text, program).map_err(tell)?;
    let missing = settings
        .into_iter()
        .filter(|setting| typed.value_source(&setting.id) != Some(ValueSource::CommandLine))
        .flat_map(|setting| setting.typed);
    // Behind the name of the program and that of the command.
    arguments.splice(2..2, missing);
    Ok(arguments)
}

/// What the file says, in the order of its lines.
fn settings(text: &str, program: &Command) -> Result<Vec<Setting>, String> {
    let line = |span: Range<usize>| 1 + text[..span.start.min(text.len())].matches('\n').count();
    let at = |line: usize, problem: &str| format!("line {line}: {problem}");
    let table = DeTable::parse(text).map_err(|error| {
        let problem = error.message().replace('\n', ", ");
        error.span().map_or(problem.clone(), |span| at(line(span), &problem))
    })?;
    let mut settings = Vec::new();
    for (key, span, value) in flat(table.get_ref(), "") {
        let line = line(span);
        let options = program.find_subcommand("daemon").into_iter().flat_map(Command::get_arguments);
        let option = options.into_iter().find(|option| option.get_long() == Some(&key));
        let option = option.filter(|option| !ONLY_TYPED.contains(&option.get_long().unwrap_or_default()));
        let option = option.ok_or_else(|| {
            at(line, &format!("there is no option {key:?}; `iotrace daemon --help` lists them"))
        })?;
        let typed = typed(option, &key, value).map_err(|problem| at(line, &format!("{key}: {problem}")))?;
        settings.push(Setting { id: option.get_id().to_string(), line, typed });
    }
    settings.sort_by_key(|setting| setting.line);
    for setting in &settings {
        if let Err(error) = read(program, &setting.typed)
            && matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue)
        {
            return Err(at(setting.line, one_line(&error).trim_start_matches("error: ")));
        }
    }
    // Each may be in order, and not all of them together.
    let all: Vec<OsString> = settings.iter().flat_map(|setting| setting.typed.clone()).collect();
    read(program, &all).map_err(|error| one_line(&error).trim_start_matches("error: ").to_owned())?;
    Ok(settings)
}

fn read(program: &Command, typed: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let words = ["iotrace", "daemon"].map(OsString::from);
    program.clone().try_get_matches_from(words.iter().chain(typed))
}

/// Keys as they are written with dots, where they are, and their values that are no tables.
fn flat<'a>(table: &'a DeTable<'a>, above: &str) -> Vec<(String, Range<usize>, &'a DeValue<'a>)> {
    let mut all = Vec::new();
    for (key, value) in table {
        let name = format!("{above}{}", key.get_ref());
        match value.get_ref() {
            DeValue::Table(table) => all.extend(flat(table, &format!("{name}."))),
            value => all.push((name, key.span(), value)),
        }
    }
    all
}

/// What one would type.
fn typed(option: &Arg, key: &str, value: &DeValue<'_>) -> Result<Vec<OsString>, &'static str> {
    let text = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Ok(format!("--{key}={text}").into()),
        DeValue::Integer(number) => Ok(format!("--{key}={}", number.as_str()).into()),
        DeValue::Float(number) => Ok(format!("--{key}={}", number.as_str()).into()),
        _ => Err("expected text or a number"),
    };
    match (option.get_action(), value) {
        (ArgAction::SetTrue, DeValue::Boolean(true)) => Ok(vec![format!("--{key}").into()]),
        (ArgAction::SetTrue, DeValue::Boolean(false)) => Ok(Vec::new()),
        (ArgAction::SetTrue, _) => Err("expected true or false"),
        (ArgAction::Append, DeValue::Array(values)) => {
            values.iter().map(|value| text(value.get_ref())).collect()
        }
        _ => Ok(vec![text(value)?]),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use log::LevelFilter;

    use crate::cli::{Cli, Command, Daemon, Done, NOTHING};

    fn read(arguments: &str) -> Result<Command, Done> {
        Cli::read(format!("iotrace {arguments}").split_whitespace()).map(|cli| cli.command)
    }

    /// What comes of `daemon` with these arguments and a file of this text; in errors, the file is called FILE.
    fn with_file(text: &str, arguments: &str) -> Result<Daemon, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, text).unwrap();
        let path = file.path().display();
        match read(&format!("daemon --config {path} {arguments}")) {
            Ok(Command::Daemon(daemon)) => Ok(Daemon { config: None, ..daemon }),
            Ok(other) => panic!("{other:?}"),
            Err(done) => {
                assert_eq!((done.code, done.text.lines().count()), (NOTHING, 1), "{}", done.text);
                Err(done.text.replace(&path.to_string(), "FILE"))
            }
        }
    }

    #[test]
    fn a_file_says_what_could_be_typed() {
        let text = r#"
            # Where Prometheus is.
            listen = ["127.0.0.1:9000", "unix:/run/iotrace.sock"]
            web.config.file = "/etc/iotrace/web.yml"
            open-health = true
            exact = false
            overhead-budget = 1.5
            top-k = 7
            log = "debug"
            pid = [1, 2]
            unit = "nginx.service"
        "#;
        let typed = "--listen 127.0.0.1:9000 --listen unix:/run/iotrace.sock --web.config.file /etc/iotrace/web.yml \
                     --open-health --overhead-budget 1.5 --top-k 7 --log debug --pid 1 --pid 2 --unit nginx.service";
        let Ok(Command::Daemon(expected)) = read(&format!("daemon {typed}")) else { panic!("{typed}") };
        assert_eq!(with_file(text, ""), Ok(expected));
        assert_eq!(with_file("", ""), with_file("# nothing", "--log info"));
    }

    #[test]
    fn what_is_typed_counts_more_than_the_file() {
        let text = "listen = '127.0.0.1:9000'\nlog = 'debug'\npid = 3\n";
        let daemon = with_file(text, "--listen 127.0.0.1:1 --log error").unwrap();
        assert_eq!(daemon.listen, ["127.0.0.1:1".parse().unwrap()]);
        assert_eq!((daemon.log, daemon.only.pids), (LevelFilter::Error, vec![3]));
    }

    #[test]
    fn a_bad_file_is_told_with_its_line() {
        for (text, problem) in [
            ("log = ", "line 1: "),
            ("\n\nlog = 'debug'\nlog = 'info'\n", "line 4: duplicate key"),
            (
                "top-k = 5\nlisen = 'x'\n",
                "line 2: there is no option \"lisen\"; `iotrace daemon --help` lists them",
            ),
            ("config = 'x'", "line 1: there is no option \"config\""),
            ("help = true", "line 1: there is no option \"help\""),
            ("\ntop-k = 0", "line 2: invalid value '0' for '--top-k <N>'"),
            ("top-k = [5]", "line 1: top-k: expected text or a number"),
            ("exact = 'yes'", "line 1: exact: expected true or false"),
            ("log = true", "line 1: log: expected text or a number"),
            ("log = 2026-12-03", "line 1: log: expected text or a number"),
            ("[web.config]\nfile = 1.5\n[a.b]\nc = 1", "line 4: there is no option \"a.b.c\""),
            ("open-health = true", "the following required arguments were not provided"),
            ("exact = true\noverhead-budget = 1", "the argument '--exact' cannot be used with"),
            ("\u{0}", "line 1: "),
        ] {
            let error = with_file(text, "").unwrap_err();
            assert!(error.starts_with(&format!("error: FILE: {problem}")), "{text:?}: {error}");
        }
        for (path, problem) in [
            ("/no/such/file", "No such file or directory"),
            ("/", "not a regular file"),
            ("/dev/zero", "not a regular file"),
        ] {
            let done = read(&format!("daemon --config {path}")).unwrap_err();
            assert_eq!(done.code, NOTHING);
            assert!(
                done.text.starts_with(&format!("error: {path}: ")) && done.text.contains(problem),
                "{done:?}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn no_file_makes_it_panic(text in "[a-z=\\[\\]{}\"'.,#0-9 \n-]{0,200}|\\PC{0,200}") {
            let _any = with_file(&text, "");
        }
    }
}
