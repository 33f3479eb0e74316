//! A real Prometheus scrapes 200 hosts: what the product's own collector says of a snapshot, growing with time. The fleet's
//! rules and dashboard must have their numbers, and within a stated time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    env,
    fmt::Write as _,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use iotrace::metrics;
use serde_json::Value;
use support::repository;

const HOSTS: usize = 200;
/// At most, of each host.
const SERIES: f64 = 1_500.0;
/// Between two scrapes, and two runs of the rules.
const INTERVAL: Duration = Duration::from_secs(5);
/// For a group of rules: the interval of dashboards/prometheus.yml. Other work on the machine makes it ten times what it is.
const GROUP: Duration = Duration::from_secs(30);
/// For a panel of the fleet's dashboard, likewise.
const PANEL: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(180);

/// An exposition whose counters are so many times those of `text`.
fn grown(text: &str, times: f64) -> String {
    let (mut grown, mut grows) = (String::with_capacity(text.len() * 2), false);
    for line in text.lines() {
        match line.rsplit_once(' ') {
            Some((series, value)) if grows && !line.starts_with('#') => {
                writeln!(grown, "{series} {}", value.parse::<f64>().unwrap() * times).unwrap();
            }
            Some((_, kind)) if line.starts_with("# TYPE ") => {
                grows = kind != "gauge";
                writeln!(grown, "{line}").unwrap();
            }
            _ => writeln!(grown, "{line}").unwrap(),
        }
    }
    grown
}

/// Answers each request for `/NUMBER`, for good: that host does NUMBER % 5 + 1 times as much as the first.
fn serve() -> SocketAddr {
    let (snapshot, own) = support::host(18, 50);
    let text = String::from_utf8(metrics::encode(&snapshot, &own).unwrap()).unwrap();
    let text: &str = Box::leak(text.into_boxed_str());
    let (listener, started) = (TcpListener::bind("127.0.0.1:0").unwrap(), Instant::now());
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut head = BufReader::new(&stream).lines().map_while(Result::ok);
                let Some(host) =
                    head.next().and_then(|line| line[5..].split(' ').next()?.parse::<u32>().ok())
                else {
                    return;
                };
                let _rest = head.take_while(|line| !line.is_empty()).count();
                let body = grown(text, started.elapsed().as_secs_f64() * f64::from(host % 5 + 1));
                let length = body.len();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {}\r\n", metrics::CONTENT_TYPE);
                let head = format!("{head}Content-Length: {length}\r\nConnection: close\r\n\r\n");
                let _gone = stream.write_all((head + &body).as_bytes());
            });
        }
    });
    address
}

/// Prometheus, killed when dropped.
struct Prometheus(Child, SocketAddr);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

impl Prometheus {
    /// Debian's, with the C library that it was built for, scraping these hosts: half of them in each of two clusters.
    fn start(hosts: SocketAddr) -> Prometheus {
        let tree = env::var("IOTRACE_PROMETHEUS").expect("`cargo xtask test` says where Prometheus is");
        let folder = concat!(env!("CARGO_TARGET_TMPDIR"), "/fleet");
        let _old = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).unwrap();
        let seconds = INTERVAL.as_secs();
        let mut config = format!(
            "global: {{scrape_interval: {seconds}s, evaluation_interval: {seconds}s}}\n\
             rule_files: ['{}']\nscrape_configs:\n- job_name: iotrace\n  static_configs:\n",
            repository("dashboards/rules/*.yml").display()
        );
        for host in 0..HOSTS {
            let labels = format!("__metrics_path__: /{host}, instance: host{host}, cluster: c{}", host % 2);
            writeln!(config, "  - {{targets: ['{hosts}'], labels: {{{labels}}}}}").unwrap();
        }
        fs::write(format!("{folder}/prometheus.yml"), config).unwrap();
        // A port that is free now.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new(format!("{tree}/usr/lib64/ld-linux-x86-64.so.2"));
        command.args(["--library-path", &format!("{tree}/usr/lib/x86_64-linux-gnu")]);
        command.arg(format!("{tree}/usr/bin/prometheus"));
        command.arg(format!("--config.file={folder}/prometheus.yml"));
        command.arg(format!("--storage.tsdb.path={folder}/data"));
        command.arg(format!("--web.listen-address={address}"));
        let log = fs::File::create(format!("{folder}/log")).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Prometheus(child, address)
    }

    /// What an address of its API answers; nothing while it is not ready.
    fn api(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(self.1).ok()?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: x\r\n\r\n").as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let body: Value = serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()?;
        (body["status"] == "success").then(|| body["data"].clone())
    }

    /// The values that a query gives, by one label of theirs.
    fn query(&self, expression: &str, label: &str) -> Vec<(String, f64)> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let data = self.api(&format!("/api/v1/query?query={encoded}")).unwrap_or_default();
        let value = |series: &Value| -> f64 { series["value"][1].as_str().unwrap().parse().unwrap() };
        let label = |series: &Value| series["metric"][label].as_str().unwrap_or_default().to_owned();
        let series = data["result"].as_array().into_iter().flatten();
        let mut values: Vec<_> = series.map(|series| (label(series), value(series))).collect();
        values.sort_by(|one, other| one.0.cmp(&other.0));
        values
    }

    fn number(&self, expression: &str) -> Option<f64> {
        self.query(expression, "").first().map(|value| value.1)
    }
}

#[test]
#[ignore = "needs Prometheus: `cargo xtask test` brings it"]
fn two_hundred_hosts_are_added_up_in_time() {
    let prometheus = Prometheus::start(serve());
    let shares = "instance:iotrace_single_segment_imports_per_import:ratio_rate5m";
    let end = Instant::now() + PATIENCE;
    while prometheus.number(&format!("count({shares})")) != Some(HOSTS as f64) {
        assert!(Instant::now() < end, "{:?}", prometheus.number("sum(up)"));
        thread::sleep(Duration::from_secs(1));
    }
    // Some more, to have seconds to divide by.
    thread::sleep(INTERVAL * 5);

    let half = HOSTS as f64 / 2.0;
    let clusters = |values: [f64; 2]| [("c0".to_owned(), values[0]), ("c1".to_owned(), values[1])];
    assert_eq!(
        prometheus.query("cluster_job_version:iotrace_hosts:count", "cluster"),
        clusters([half, half])
    );
    // Of a host's 17,046 imports 10,041 have one segment.
    let share = "cluster_job:iotrace_single_segment_imports_per_import:ratio_rate5m";
    for (cluster, share) in prometheus.query(share, "cluster") {
        assert!((share - 10_041.0 / 17_046.0).abs() < 1e-9, "{cluster}: {share}");
    }
    // Of every five hosts the first does as much as the snapshot in a second, the last five times as much; rates of series
    // that are younger than their span are too low, in all hosts alike.
    let of_one = prometheus.number("instance:iotrace_imports:rate5m{instance=\"host0\"}").unwrap();
    for (cluster, sum) in prometheus.query("cluster_job:iotrace_imports:rate5m", "cluster") {
        assert!((sum / of_one / (half * 3.0) - 1.0).abs() < 0.3, "{cluster}: {sum}, {of_one} of one host");
    }
    let series = prometheus.number("max(scrape_samples_scraped)").unwrap();
    let made = prometheus.number("count({__name__=~\"instance.*:.*\"})").unwrap() / HOSTS as f64;
    let fleet = prometheus.number("count({__name__=~\"cluster_job.*:.*\"})").unwrap();
    println!("series of a host: {series}, made of them: {made}, of all hosts: {fleet}");
    assert!(series <= SERIES && made <= 220.0 && fleet <= 400.0);

    let rules = prometheus.api("/api/v1/rules").unwrap();
    for group in rules["groups"].as_array().unwrap() {
        println!("{}: {} s", group["name"], group["evaluationTime"]);
        assert!(group["evaluationTime"].as_f64().unwrap() < GROUP.as_secs_f64(), "{}", group["name"]);
        for rule in group["rules"].as_array().unwrap() {
            assert_eq!(rule["health"], "ok", "{rule}");
        }
    }
    let text = fs::read_to_string(repository("dashboards/iotrace-fleet.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut slowest = Duration::ZERO;
    for panel in dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row") {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap().replace("$cluster", ".*").replace("$job", ".*");
            let started = Instant::now();
            let values = prometheus.query(&expression, "");
            slowest = slowest.max(started.elapsed());
            assert!(!values.is_empty() || panel["title"] == "Alerts", "{}: no data", panel["title"]);
        }
    }
    println!("the slowest panel: {slowest:?}");
    assert!(slowest < PANEL);
}
