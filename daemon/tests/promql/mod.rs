//! As much of PromQL as the dashboards use: a parser that knows the daemon's metrics and follows their labels.

use std::collections::BTreeSet;

use iotrace::names::{self, Type};

/// Labels that a result may have.
pub type Labels = BTreeSet<String>;

/// Labels that Prometheus adds to every series.
const ADDED: [&str; 2] = ["job", "instance"];
const AGGREGATIONS: [&str; 6] = ["sum", "min", "max", "avg", "count", "topk"];
const FUNCTIONS: [&str; 6] = ["rate", "increase", "histogram_quantile", "time", "label_values", "clamp_max"];

/// The labels of the result, or what is wrong.
pub fn check(query: &str) -> Result<Labels, String> {
    let mut parser = Parser { tokens: tokens(query)?, place: 0 };
    let labels = parser.expression()?;
    match parser.peek() {
        "" => Ok(labels),
        rest => Err(format!("unexpected {rest}")),
    }
}

/// Checks `label_values(selector, label)`.
pub fn check_variable(query: &str) -> Result<(), String> {
    let mut parser = Parser { tokens: tokens(query)?, place: 0 };
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

struct Parser {
    tokens: Vec<String>,
    place: usize,
}

impl Parser {
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

    /// Operands and operators; precedence does not matter to labels.
    fn expression(&mut self) -> Result<Labels, String> {
        let mut labels = self.operand()?;
        while matches!(
            self.peek(),
            "+" | "-" | "*" | "/" | ">" | "<" | "==" | "!=" | ">=" | "<=" | "and" | "or"
        ) {
            self.next();
            let mut named = Vec::new();
            while matches!(self.peek(), "on" | "ignoring" | "group_left" | "group_right") {
                self.next();
                named.extend(self.names()?);
            }
            labels.extend(self.operand()?);
            named.iter().try_for_each(|label| has(&labels, label))?;
        }
        Ok(labels)
    }

    fn operand(&mut self) -> Result<Labels, String> {
        let token = self.peek().to_owned();
        if token == "(" {
            return self.in_parentheses();
        }
        if token.starts_with(|it: char| it.is_ascii_digit()) {
            self.next();
            return token.parse::<f64>().map(|_| Labels::new()).map_err(|_| format!("{token} is no number"));
        }
        if AGGREGATIONS.contains(&token.as_str()) {
            self.next();
            return self.aggregation(&token);
        }
        if self.tokens.get(self.place + 1).is_some_and(|next| next == "(") {
            if !FUNCTIONS.contains(&token.as_str()) {
                return Err(format!("unknown function {token}"));
            }
            self.next();
            let mut labels = self.in_parentheses()?;
            if token == "histogram_quantile" && !labels.remove("le") {
                return Err("histogram_quantile without le".to_owned());
            }
            return Ok(labels);
        }
        self.selector()
    }

    fn aggregation(&mut self, name: &str) -> Result<Labels, String> {
        let before = if self.peek() == "by" { self.by()? } else { None };
        let labels = self.in_parentheses()?;
        let kept = match before {
            Some(kept) => Some(kept),
            None if self.peek() == "by" => self.by()?,
            None => None,
        };
        match kept {
            Some(kept) => {
                kept.iter().try_for_each(|label| has(&labels, label))?;
                Ok(kept.into_iter().collect())
            }
            None if name == "topk" => Ok(labels),
            None => Ok(Labels::new()),
        }
    }

    fn by(&mut self) -> Result<Option<Vec<String>>, String> {
        self.expect("by")?;
        self.names().map(Some)
    }

    fn names(&mut self) -> Result<Vec<String>, String> {
        let mut names = Vec::new();
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

    /// Arguments; their labels together.
    fn in_parentheses(&mut self) -> Result<Labels, String> {
        self.expect("(")?;
        let mut labels = Labels::new();
        while self.peek() != ")" {
            labels.extend(self.expression()?);
            if self.peek() != ")" {
                self.expect(",")?;
            }
        }
        self.expect(")")?;
        Ok(labels)
    }

    /// A metric, its matchers, its range.
    fn selector(&mut self) -> Result<Labels, String> {
        let name = self.next();
        let metric = names::find(&name).ok_or_else(|| format!("no metric {name}"))?;
        let mut labels: Labels = metric.labels.iter().chain(&ADDED).map(|&label| label.to_owned()).collect();
        if metric.kind == Type::Histogram && name.ends_with("_bucket") {
            labels.insert("le".to_owned());
        }
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
        ("sum(iotrace_lost_total) + up", "no metric up"),
        ("rat(iotrace_lost_total[5m])", "unknown function rat"),
        ("iotrace_lost_total)", "unexpected )"),
        ("sum(iotrace_lost_total", ", expected"),
        ("histogram_quantile(0.5, sum by (kind) (iotrace_iter_call_seconds_bucket))", "without le"),
        ("iotrace_lost_total{reason=site}", "site is no string"),
        ("iotrace_import_segments_bucket{le=\"1\"}", "Prometheus 3"),
        ("", "no metric "),
    ] {
        let found = check(query);
        assert!(
            found.as_ref().is_err_and(|it| it.contains(wrong))
                || query == "sum(iotrace_lost_total" && found.is_err(),
            "{query}: {found:?}"
        );
    }
    assert!(check_variable("label_values(iotrace_build_info, kind)").is_err());
    assert!(check_variable("label_values(iotrace_build_infos, job)").is_err());
}

#[test]
fn what_is_right_passes_with_its_labels() {
    let labels = |query: &str| check(query).unwrap().into_iter().collect::<Vec<_>>();
    assert_eq!(labels("sum(rate(iotrace_lost_total[5m])) by (reason) * 2 > 0"), ["reason"]);
    let buckets = "iotrace_iter_call_seconds_bucket{function=~\"$f\"}";
    let quantile = format!("histogram_quantile(0.9, sum by (le, kind) (rate({buckets}[1m])))");
    assert_eq!(labels(&quantile), ["kind"]);
    assert_eq!(labels("(sum(iotrace_target_sites{job=\"x\"}) - 1) / 3"), [""; 0]);
    assert_eq!(labels("iotrace_build_info"), ["instance", "job", "version"]);
    assert!(check_variable("label_values(iotrace_build_info{job=~\"$job\"}, instance)").is_ok());
}
