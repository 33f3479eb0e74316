//! As much of PromQL as dashboards and rules use: a parser that knows the daemon's metrics and follows their labels.

use std::collections::{BTreeMap, BTreeSet};

use iotrace::names::{self, Type};

/// Labels that a result may have.
pub type Labels = BTreeSet<String>;

/// Names of series and their labels: what recording rules make.
pub type Recorded = BTreeMap<String, Labels>;

/// Labels that every series has: those of its target, and the one that tells several Prometheus apart.
pub const TARGET: [&str; 3] = ["cluster", "job", "instance"];
/// What Prometheus itself says of a target, and of alerts.
const OWN: [(&str, &[&str]); 3] =
    [("up", &[]), ("scrape_samples_scraped", &[]), ("ALERTS", &["alertname", "alertstate", "severity"])];
const AGGREGATIONS: [&str; 7] = ["sum", "min", "max", "avg", "count", "topk", "bottomk"];
const FUNCTIONS: [&str; 6] = ["rate", "increase", "changes", "histogram_quantile", "time", "clamp_max"];
/// Operators that bind less than those behind them.
const PRECEDENCE: [&[&str]; 5] =
    [&["or"], &["and", "unless"], &["==", "!=", ">", "<", ">=", "<="], &["+", "-"], &["*", "/"]];

/// A result: a vector with its labels, or a number.
type Value = Option<Labels>;

/// The labels of the result, or what is wrong. A number has none.
pub fn check(query: &str, recorded: &Recorded) -> Result<Labels, String> {
    let mut parser = Parser { tokens: tokens(query)?, place: 0, recorded };
    let value = parser.expression(0)?;
    match parser.peek() {
        "" => Ok(value.unwrap_or_default()),
        rest => Err(format!("unexpected {rest}")),
    }
}

/// Checks `label_values(selector, label)`.
pub fn check_variable(query: &str, recorded: &Recorded) -> Result<(), String> {
    let mut parser = Parser { tokens: tokens(query)?, place: 0, recorded };
    for token in ["label_values", "("] {
        parser.expect(token)?;
    }
    let labels = parser.selector()?;
    parser.expect(",")?;
    let label = parser.next();
    has(&labels, &label)?;
    parser.expect(")")
}

fn has(labels: &Labels, label: &str) -> Result<(), String> {
    if labels.contains(label) { Ok(()) } else { Err(format!("no label {label}")) }
}

fn all(labels: &Labels, some: &[String]) -> Result<(), String> {
    some.iter().try_for_each(|label| has(labels, label))
}

/// Names, numbers, strings (with their quotes), ranges (with their brackets) and operators.
fn tokens(query: &str) -> Result<Vec<String>, String> {
    let mut tokens = Vec::new();
    let mut rest = query.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => rest[1..].find('"').ok_or("a string without an end")? + 2,
            '[' => rest.find(']').ok_or("a range without an end")? + 1,
            _ if first.is_alphanumeric() || first == '_' => {
                let end = |it: char| !(it.is_alphanumeric() || matches!(it, '_' | ':' | '.'));
                rest.find(end).unwrap_or(rest.len())
            }
            _ if ["=~", "!~", "!=", "==", ">=", "<="].iter().any(|it| rest.starts_with(it)) => 2,
            '(' | ')' | '{' | '}' | ',' | '+' | '-' | '*' | '/' | '>' | '<' | '=' => 1,
            _ => return Err(format!("unexpected {first}")),
        };
        tokens.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

struct Parser<'a> {
    tokens: Vec<String>,
    place: usize,
    recorded: &'a Recorded,
}

/// How the series of two vectors find each other.
#[derive(Default)]
struct Matching {
    on: Option<Vec<String>>,
    ignoring: Vec<String>,
    /// Labels taken from the other side, of which each series matches many.
    group: Option<Vec<String>>,
}

impl Matching {
    /// The labels of `left OPERATOR right`.
    fn result(&self, operator: &str, left: Labels, right: &Labels) -> Result<Labels, String> {
        let without = |labels: &Labels| -> Labels {
            labels.iter().filter(|label| !self.ignoring.contains(label)).cloned().collect()
        };
        let matched: Labels = match &self.on {
            Some(on) => {
                all(&left, on)?;
                all(right, on)?;
                on.iter().cloned().collect()
            }
            None if without(&left) == without(right) => without(&left),
            None => return Err(format!("{operator} never matches {left:?} and {right:?}")),
        };
        self.ignoring.iter().try_for_each(|label| has(&left, label).or_else(|_| has(right, label)))?;
        Ok(match &self.group {
            Some(taken) => {
                all(right, taken)?;
                left.into_iter().chain(taken.iter().cloned()).collect()
            }
            None if matches!(operator, "and" | "unless" | "or") => left,
            None => matched,
        })
    }
}

impl Parser<'_> {
    fn peek(&self) -> &str {
        self.tokens.get(self.place).map_or("", String::as_str)
    }

    fn next(&mut self) -> String {
        let token = self.peek().to_owned();
        self.place += 1;
        token
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        match self.next() {
            token if token == wanted => Ok(()),
            token => Err(format!("{wanted} expected, found {token}")),
        }
    }

    /// Operands with operators that bind at least so much.
    fn expression(&mut self, level: usize) -> Result<Value, String> {
        let Some(operators) = PRECEDENCE.get(level) else { return self.operand() };
        let mut value = self.expression(level + 1)?;
        while operators.contains(&self.peek()) {
            let operator = self.next();
            let matching = self.matching()?;
            let right = self.expression(level + 1)?;
            value = match (value, right) {
                (Some(left), Some(right)) => Some(matching.result(&operator, left, &right)?),
                (left, right) => left.or(right),
            };
        }
        Ok(value)
    }

    fn matching(&mut self) -> Result<Matching, String> {
        let mut matching = Matching::default();
        loop {
            match self.peek() {
                "on" => matching.on = Some(self.list()?),
                "ignoring" => matching.ignoring = self.list()?,
                "group_left" => matching.group = Some(self.list()?),
                _ => return Ok(matching),
            }
        }
    }

    fn operand(&mut self) -> Result<Value, String> {
        let token = self.peek().to_owned();
        if token == "(" {
            self.next();
            let value = self.expression(0)?;
            return self.expect(")").map(|()| value);
        }
        if token.starts_with(|it: char| it.is_ascii_digit()) {
            self.next();
            return token.parse::<f64>().map(|_| None).map_err(|_| format!("{token} is no number"));
        }
        if AGGREGATIONS.contains(&token.as_str()) {
            self.next();
            return self.aggregation(&token).map(Some);
        }
        if self.tokens.get(self.place + 1).is_some_and(|next| next == "(") {
            if !FUNCTIONS.contains(&token.as_str()) {
                return Err(format!("unknown function {token}"));
            }
            self.next();
            let mut value = self.arguments()?;
            if token == "histogram_quantile" && !value.as_mut().is_some_and(|labels| labels.remove("le")) {
                return Err("histogram_quantile without le".to_owned());
            }
            return Ok(value);
        }
        self.selector().map(Some)
    }

    fn aggregation(&mut self, name: &str) -> Result<Labels, String> {
        let (before, chooses) = (self.grouping()?, matches!(name, "topk" | "bottomk"));
        let labels = self.arguments()?.ok_or_else(|| format!("{name} of a number"))?;
        let Some((word, named)) = before.map_or_else(|| self.grouping(), |it| Ok(Some(it)))? else {
            return Ok(if chooses { labels } else { Labels::new() });
        };
        all(&labels, &named)?;
        Ok(match word.as_str() {
            _ if chooses => labels,
            "by" => named.into_iter().collect(),
            _ => labels.into_iter().filter(|label| !named.contains(label)).collect(),
        })
    }

    /// `by (…)` or `without (…)`.
    fn grouping(&mut self) -> Result<Option<(String, Vec<String>)>, String> {
        let word = self.peek().to_owned();
        if word == "by" || word == "without" { Ok(Some((word, self.list()?))) } else { Ok(None) }
    }

    /// A word, and the names in parentheses behind it.
    fn list(&mut self) -> Result<Vec<String>, String> {
        let mut names = Vec::new();
        self.next();
        self.expect("(")?;
        while self.peek() != ")" {
            names.push(self.next());
            if self.peek() != ")" {
                self.expect(",")?;
            }
        }
        self.expect(")")?;
        Ok(names)
    }

    /// Arguments; one of them at most is a vector.
    fn arguments(&mut self) -> Result<Value, String> {
        self.expect("(")?;
        let mut vector = None;
        while self.peek() != ")" {
            vector = self.expression(0)?.or(vector);
            if self.peek() != ")" {
                self.expect(",")?;
            }
        }
        self.expect(")")?;
        Ok(vector)
    }

    /// The labels of a metric, of what a rule records, or of what Prometheus itself says.
    fn labels(&self, name: &str) -> Result<Labels, String> {
        if let Some(labels) = self.recorded.get(name) {
            return Ok(labels.clone());
        }
        let own = || OWN.iter().find(|(own, _)| *own == name).map(|(_, labels)| *labels);
        let metric = names::find(name);
        let labels = metric.map(|metric| metric.labels).or_else(own).ok_or(format!("no metric {name}"))?;
        let mut labels: Labels = labels.iter().chain(&TARGET).map(|&label| label.to_owned()).collect();
        if metric.is_some_and(|it| it.kind == Type::Histogram) && name.ends_with("_bucket") {
            labels.insert("le".to_owned());
        }
        Ok(labels)
    }

    /// A metric, its matchers, its range.
    fn selector(&mut self) -> Result<Labels, String> {
        let name = self.next();
        let labels = self.labels(&name)?;
        if self.peek() == "{" {
            self.next();
            while self.peek() != "}" {
                let label = self.next();
                has(&labels, &label)?;
                let operator = self.next();
                if !matches!(operator.as_str(), "=" | "!=" | "=~" | "!~") {
                    return Err(format!("{operator} after {label}"));
                }
                let value = self.next();
                if label == "le" && operator != "=~" {
                    return Err("Prometheus 3 writes le=\"1\" as \"1.0\"; =~ takes both".to_owned());
                }
                if !value.starts_with('"') {
                    return Err(format!("{value} is no string"));
                }
                if self.peek() != "}" {
                    self.expect(",")?;
                }
            }
            self.next();
        }
        if self.peek().starts_with('[') {
            self.next();
        }
        Ok(labels)
    }
}

#[test]
fn what_is_wrong_is_caught() {
    for (query, wrong) in [
        ("rate(iotrace_import_segment_count[5m])", "no metric iotrace_import_segment_count"),
        ("iotrace_import_segments", "no metric iotrace_import_segments"),
        ("sum by (paths) (rate(iotrace_import_bytes_total[5m]))", "no label paths"),
        ("sum (rate(iotrace_import_bytes_total[5m])) by (paths)", "no label paths"),
        ("sum by (le) (rate(iotrace_import_segments_count[5m]))", "no label le"),
        ("iotrace_lost_total{kind=\"ubuf\"}", "no label kind"),
        ("iotrace_lost_total{le=\"1\"}", "no label le"),
        ("sum by (path) (sum by (le) (iotrace_import_segments_bucket))", "no label path"),
        ("iotrace_lost_total / on (path) iotrace_lost_total", "no label path"),
        ("sum(iotrace_lost_total) + uptime", "no metric uptime"),
        ("sum(iotrace_lost_total) + up", "+ never matches"),
        ("iotrace_lost_total * on (job) group_left (version) up", "no label version"),
        ("sum without (path) (iotrace_lost_total)", "no label path"),
        ("iotrace_lost_total and iotrace_build_info", "and never matches"),
        ("rat(iotrace_lost_total[5m])", "unknown function rat"),
        ("iotrace_lost_total)", "unexpected )"),
        ("sum(iotrace_lost_total", ", expected"),
        ("histogram_quantile(0.5, sum by (kind) (iotrace_iter_call_seconds_bucket))", "without le"),
        ("iotrace_lost_total{reason=site}", "site is no string"),
        ("iotrace_import_segments_bucket{le=\"1\"}", "Prometheus 3"),
        ("", "no metric "),
    ] {
        let found = check(query, &Recorded::new());
        assert!(
            found.as_ref().is_err_and(|it| it.contains(wrong))
                || query == "sum(iotrace_lost_total" && found.is_err(),
            "{query}: {found:?}"
        );
    }
    let check_variable = |query: &str| check_variable(query, &Recorded::new());
    assert!(check_variable("label_values(iotrace_build_info, kind)").is_err());
    assert!(check_variable("label_values(iotrace_build_infos, job)").is_err());
}

#[test]
fn what_is_right_passes_with_its_labels() {
    let recorded = Recorded::from([("job:lost:rate5m".to_owned(), Labels::from(["job".to_owned()]))]);
    let labels = |query: &str| check(query, &recorded).unwrap().into_iter().collect::<Vec<_>>();
    assert_eq!(labels("sum(rate(iotrace_lost_total[5m])) by (reason) * 2 > 0"), ["reason"]);
    let buckets = "iotrace_iter_call_seconds_bucket{function=~\"$f\"}";
    let quantile = format!("histogram_quantile(0.9, sum by (le, kind) (rate({buckets}[1m])))");
    assert_eq!(labels(&quantile), ["kind"]);
    assert_eq!(labels("(sum(iotrace_target_sites{job=\"x\"}) - 1) / 3"), [""; 0]);
    assert_eq!(labels("iotrace_build_info"), ["cluster", "instance", "job", "version"]);
    assert_eq!(labels("job:lost:rate5m / (sum by (job) (up) > 0)"), ["job"]);
    assert_eq!(labels("sum without (cluster, reason) (iotrace_lost_total)"), ["instance", "job"]);
    assert_eq!(labels("topk by (job) (5, sum by (job, reason) (iotrace_lost_total))"), ["job", "reason"]);
    let many = "iotrace_lost_total > ignoring (reason) group_left () 0.5 * up";
    assert_eq!(labels(many), ["cluster", "instance", "job", "reason"]);
    let version = "iotrace_lost_total * on (job, instance) group_left (version) iotrace_build_info";
    assert_eq!(labels(version), ["cluster", "instance", "job", "reason", "version"]);
    assert_eq!(labels("up unless ignoring (version) iotrace_build_info"), ["cluster", "instance", "job"]);
    assert!(check_variable("label_values(iotrace_build_info{job=~\"$job\"}, instance)", &recorded).is_ok());
}
