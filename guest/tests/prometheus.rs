//! A real Prometheus scrapes a real daemon under load, and every panel and rule finds what it asks for. Needs a guest with
//! Debian's Prometheus.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use iotrace_guest::{
    IOTRACE, LOAD,
    daemon::Daemon,
    http, in_guest,
    process::{Background, content, eventually},
};
use serde_json::Value;

const DASHBOARDS: [(&str, &str); 2] = [
    ("iotrace-host", include_str!("../../dashboards/iotrace-host.json")),
    ("iotrace-fleet", include_str!("../../dashboards/iotrace-fleet.json")),
];
const RULES: [(&str, &str); 3] = [
    ("instance", include_str!("../../dashboards/rules/instance.yml")),
    ("fleet", include_str!("../../dashboards/rules/fleet.yml")),
    ("alerts", include_str!("../../dashboards/rules/alerts.yml")),
];
/// Panels that have nothing to show where all is well.
const IDLE: [&str; 2] = ["Most lost", "Alerts"];
const FOLDER: &str = "/tmp/prometheus";
const PORT: u16 = 19_497;
const PATIENCE: Duration = Duration::from_secs(120);
/// While the load lasts before anything is asked.
const STEADY: Duration = Duration::from_secs(40);

fn prometheus() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 19_090))
}

/// Prometheus, with the rules, scraping the daemon.
fn start() -> Background {
    fs::create_dir_all(format!("{FOLDER}/rules")).expect("the guest's /tmp can be written");
    for (name, rules) in RULES {
        fs::write(format!("{FOLDER}/rules/{name}.yml"), rules).expect("the guest's /tmp can be written");
    }
    let config = format!(
        "global: {{scrape_interval: 2s, evaluation_interval: 2s}}\nrule_files: [rules/*.yml]\nscrape_configs:\n\
         - {{job_name: iotrace, static_configs: [{{targets: ['127.0.0.1:{PORT}']}}]}}\n"
    );
    fs::write(format!("{FOLDER}/prometheus.yml"), config).expect("the guest's /tmp can be written");
    let server = format!(
        "exec prometheus --config.file={FOLDER}/prometheus.yml --storage.tsdb.path={FOLDER}/data \
         --web.listen-address={} >{FOLDER}/log 2>&1",
        prometheus()
    );
    let server = Background::start(Command::new("sh").args(["-c", &server]));
    let ready = || http::get(prometheus(), "/-/ready").is_ok_and(|answer| answer.status == 200);
    assert!(eventually(PATIENCE, ready), "Prometheus is not ready: {}", content(&format!("{FOLDER}/log")));
    server
}

/// What an address of its API answers.
fn api(path: &str) -> Value {
    let answer = http::get(prometheus(), path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let body: Value = serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{}", answer.body));
    assert_eq!(body["status"], "success", "{path}: {body}");
    body["data"].clone()
}

/// The values that a query gives at this moment; a quantile of no calls is no number, and left out.
fn query(expression: &str) -> Vec<f64> {
    let encoded: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let data = api(&format!("/api/v1/query?query={encoded}"));
    let series = data["result"].as_array().expect("a vector");
    let value = |series: &Value| series["value"][1].as_str().and_then(|value| value.parse().ok());
    let values = series.iter().map(|series| value(series).unwrap_or_else(|| panic!("{series}")));
    values.filter(|value: &f64| !value.is_nan()).collect()
}

/// A panel's query, as Grafana would send it with every variable at All.
fn filled(expression: &str) -> String {
    let mut filled = expression.replace("$__rate_interval", "30s");
    for variable in ["cluster", "job", "instance", "function", "kind"] {
        filled = filled.replace(&format!("${variable}"), ".*");
    }
    assert!(!filled.contains('$'), "{filled}");
    filled
}

/// Whether a number can be one of this unit.
fn fits(unit: &str, value: f64) -> bool {
    match unit {
        // The time of a scrape and of the reading that it gets differ, on a busy machine by more from one to the next.
        "percentunit" => (0.0..=1.05).contains(&value),
        // Of a call, a KiB or a MiB, and of waiting in a second.
        "s" => (0.0..10.0).contains(&value),
        _ => value >= 0.0 && value.is_finite(),
    }
}

/// Every panel's queries have data, and of the panel's unit.
fn panels() -> Vec<String> {
    let mut wrong = Vec::new();
    for (uid, text) in DASHBOARDS {
        let dashboard: Value = serde_json::from_str(text).expect("a dashboard");
        let panels = dashboard["panels"].as_array().expect("panels");
        let (started, mut queries) = (Instant::now(), 0);
        for panel in panels.iter().filter(|panel| panel["type"] != "row") {
            let (title, unit) = (&panel["title"], panel["fieldConfig"]["defaults"]["unit"].as_str());
            let idle = IDLE.iter().any(|idle| title == idle);
            for target in panel["targets"].as_array().expect("targets") {
                let values = query(&filled(target["expr"].as_str().expect("a query")));
                // What is closed to keep to a budget is closed late.
                let budget = title == "Nearest to the budget";
                if values.is_empty() && !idle {
                    wrong.push(format!("{uid}, {title}: no data"));
                }
                if !budget && values.iter().any(|&value| !fits(unit.unwrap_or_default(), value)) {
                    wrong.push(format!("{uid}, {title}: {values:?} in {unit:?}"));
                }
                queries += 1;
            }
        }
        println!("{uid}: {queries} queries in {:?}", started.elapsed());
    }
    wrong
}

/// Every rule is evaluated without an error, and every recording rule has data.
fn rules() -> Vec<String> {
    let (mut wrong, mut count) = (Vec::new(), 0);
    let data = api("/api/v1/rules");
    for group in data["groups"].as_array().expect("groups") {
        println!("{}: evaluated in {} s", group["name"], group["evaluationTime"]);
        for rule in group["rules"].as_array().expect("rules") {
            let name = rule["name"].as_str().expect("a name");
            if rule["health"] != "ok" {
                wrong.push(format!("{name}: {} {}", rule["health"], rule["lastError"]));
            }
            if rule["type"] == "recording" && query(name).is_empty() {
                wrong.push(format!("{name}: no data"));
            }
            count += 1;
        }
    }
    assert_eq!(count, RULES.iter().map(|(_, text)| text.matches("expr:").count()).sum::<usize>());
    wrong
}

#[test]
fn every_panel_and_rule_finds_data() {
    let _alone = in_guest();
    let mut daemon = Daemon::start_with(PORT, &[]);
    daemon.attached();
    let known = |daemon: &Daemon| daemon.metrics().with("iotrace_probe_cost_seconds", &[]).count() > 0;
    assert!(eventually(PATIENCE, || known(&daemon)), "no cost: {}", daemon.log());
    let _prometheus = start();
    let tcp =
        format!("{IOTRACE} sample tcp --chunk 262144 --align 2097152 --size 5000003 --sender zerocopy --map");
    let load = format!("while :; do {LOAD} exact; {tcp} --clients 2; done");
    let _load = Background::start(Command::new("sh").args(["-c", &load]));
    thread::sleep(STEADY);

    for (what, expression) in [
        ("series of the host", "scrape_samples_scraped"),
        ("series made by the rules of the host", "count({__name__=~\"instance.*:.*\"})"),
        ("series made by the rules of the fleet", "count({__name__=~\"cluster.*:.*\"})"),
        ("imports in a second", "instance:iotrace_imports:rate5m"),
    ] {
        println!("{what}: {:?}", query(expression));
    }
    let wrong = [panels(), rules()].concat();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(query("up"), [1.0]);
    assert_eq!(daemon.end(libc::SIGTERM).code, 0);
}
