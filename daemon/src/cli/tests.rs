use super::*;

fn read(arguments: &str) -> Result<Command, Done> {
    Cli::read(format!("iotrace {arguments}").split_whitespace()).map(|cli| cli.command)
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn defaults_are_safe() {
    let daemon = Daemon {
        config: None,
        check_config: false,
        listen: vec!["127.0.0.1:9469".parse().unwrap()],
        web_config: None,
        open_health: false,
        log: LevelFilter::Info,
        log_format: LogFormat::Text,
        debug_probes: false,
        no_follow_modules: false,
        no_selftest: false,
        overhead_budget: 0.5,
        exact: false,
        top_k: 50,
        only: Only::default(),
    };
    assert_eq!(read("daemon"), Ok(Command::Daemon(daemon)));
    let top = Top {
        duration: Duration::from_secs(5),
        output: TopOutput::Table,
        top_k: None,
        only: Only::default(),
        command: vec![],
    };
    assert_eq!(top.rows(), 10);
    assert_eq!(read("top"), Ok(Command::Top(top)));
    assert_eq!(read("check"), Ok(Command::Check(Check { output: CheckOutput::Text })));
}

#[test]
fn what_follows_two_dashes_is_the_command() {
    let top = Top {
        duration: Duration::from_secs(5),
        output: TopOutput::Json,
        top_k: None,
        only: Only::default(),
        command: ["ls", "-d", "1", "-o", "x"].map(OsString::from).to_vec(),
    };
    assert_eq!(read("top -o json -- ls -d 1 -o x"), Ok(Command::Top(top)));
}

#[test]
fn a_duration_is_a_sane_number() {
    let taken = |text: &str| match read(&format!("top -d={text}")) {
        Ok(Command::Top(top)) => Some(top.duration),
        _ => None,
    };
    assert_eq!(taken("0.25"), Some(Duration::from_millis(250)));
    assert_eq!(taken("86400"), Some(Duration::from_secs(86_400)));
    for text in ["0", "-1", "nan", "inf", "86400.5", "1e300", "1e-300", "5s", ""] {
        assert_eq!(taken(text), None, "{text}");
    }
}

#[test]
fn processes_are_chosen_alike_by_both() {
    let options = "--pid 1 -p 22 -c dd --cgroup /a --unit b --user root --top-k 3";
    let only = Only {
        pids: vec![1, 22],
        comm: Some("dd".into()),
        cgroup: Some("/a".into()),
        unit: Some("b".into()),
        user: Some("root".into()),
    };
    let Ok(Command::Top(top)) = read(&format!("top {options}")) else { panic!("{options}") };
    assert_eq!((&top.only, top.rows()), (&only, 3));
    let Ok(Command::Daemon(daemon)) = read(&format!("daemon {options}")) else { panic!("{options}") };
    assert_eq!((&daemon.only, daemon.top_k), (&only, 3));
    let Ok(Command::Top(json)) = read("top -o json") else { panic!("json") };
    assert_eq!(json.rows(), 50);
}

#[test]
fn bad_input_is_one_line_and_exit_code_2() {
    for arguments in [
        "top -d 0",
        "top -d",
        "top -o yaml",
        "top -d 1 -- ls",
        "top ls",
        "daemon --listen localhost",
        "daemon --listen :9469",
        "daemon --listen unix:x",
        "daemon --open-health",
        "daemon --web.config.file",
        "daemon --log loud",
        "daemon --log-format xml",
        "daemon --top-k 0",
        "daemon --overhead-budget 0",
        "daemon --overhead-budget nan",
        "daemon --overhead-budget 100.1",
        "daemon --overhead-budget 1 --exact",
        "top --top-k 1001",
        "top -p 0",
        "top -p x",
        "top -c 0123456789abcdef",
        "daemon --liste x",
        "check --output",
        "chek",
        "--frobnicate",
    ] {
        let done = read(arguments).unwrap_err();
        assert_eq!(done.code, NOTHING, "{arguments}");
        assert_eq!(done.text.lines().count(), 1, "{arguments}: {}", done.text);
        assert!(done.text.starts_with("error: ") && done.text.len() > 20, "{arguments}: {}", done.text);
    }
    assert_eq!(
        read("top -d 0").unwrap_err().text,
        "error: invalid value '0' for '--duration <SECONDS>': expected seconds, more than 0 and at most 86400"
    );
}

#[test]
fn help_and_version_are_no_failure() {
    assert_eq!(read("--version").unwrap_err().text, concat!("iotrace ", env!("CARGO_PKG_VERSION")));
    for arguments in ["--help", "top --help", "-h", "check -h"] {
        assert_eq!(read(arguments).unwrap_err().code, 0, "{arguments}");
    }
    assert_eq!(read("").unwrap_err().code, NOTHING);
}
