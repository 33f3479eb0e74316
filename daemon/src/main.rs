//! The `iotrace` binary: reads the command line, runs the command, says in one line what went wrong.

use std::{
    env,
    io::{self, Write as _},
    process::ExitCode,
};

use iotrace::{
    cli::{Cli, Command},
    commands,
};

fn main() -> ExitCode {
    let cli = match Cli::read(env::args_os()) {
        Ok(cli) => cli,
        Err(done) if done.code == 0 => return print(&done.text),
        Err(done) => {
            eprintln!("{}", done.text);
            return done.code.into();
        }
    };
    let result = match cli.command {
        Command::Daemon(options) => commands::daemon(&options),
        Command::Top(options) => commands::top(&options),
        Command::Check(options) => commands::check(&options),
        Command::Selftest(options) => commands::selftest(&options),
        Command::Bench(options) => commands::bench(&options),
        Command::Load(options) => commands::load(&options),
        Command::Sample(options) => commands::sample(&options),
    };
    result.unwrap_or_else(|error| {
        eprintln!("iotrace: {error:#}");
        commands::failure(&error)
    })
}

/// A reader that has gone, as in `iotrace --help | head -1`, is no failure.
fn print(text: &str) -> ExitCode {
    let _reader_gone = writeln!(io::stdout(), "{text}");
    ExitCode::SUCCESS
}
