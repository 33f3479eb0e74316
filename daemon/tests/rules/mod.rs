//! Recording rules and alerts: they ask for what there is, are named for what they give, and say what to do.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{
    promql::{self, Labels, Recorded, TARGET},
    support::repository,
    variables,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    name: String,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    record: Option<String>,
    alert: Option<String>,
    expr: String,
    r#for: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

const FILES: [&str; 3] = ["instance", "fleet", "alerts"];

/// The rules of a file, and the name of its only group.
fn rules(file: &str) -> Vec<Rule> {
    let path = repository(&format!("dashboards/rules/{file}.yml"));
    let text = std::fs::read_to_string(path).unwrap();
    let mut file_: File = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
    let group = file_.groups.pop().unwrap();
    assert!(file_.groups.is_empty() && group.name == format!("iotrace-{file}"), "{file}");
    group.rules
}

/// What the level of a name says of the labels: `instance` has those of the target, `cluster_job` only these.
fn labels(level: &str) -> Labels {
    let (target, rest): (&[&str], _) = match level.strip_prefix("instance") {
        Some(rest) => (&TARGET, rest),
        None => (&TARGET[..2], level.strip_prefix("cluster_job").unwrap_or_else(|| panic!("level {level}"))),
    };
    target.iter().copied().chain(rest.split('_').filter(|word| !word.is_empty())).map(str::to_owned).collect()
}

/// Every series that the rules record. Each expression is checked with those before it, as Prometheus runs them.
pub fn recorded() -> Recorded {
    let mut recorded = Recorded::new();
    for rule in ["instance", "fleet"].into_iter().flat_map(rules) {
        let name = rule.record.unwrap();
        let found = promql::check(&rule.expr, &recorded).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        let parts: Vec<&str> = name.split(':').collect();
        let [level, metric, _operations] = parts[..] else { panic!("{name} is not level:metric:operations") };
        assert_eq!(found, labels(level), "{name}: its level, and the labels of {}", rule.expr);
        assert!(metric.starts_with("iotrace_"), "{name}");
        assert!(rule.labels.is_empty() && rule.annotations.is_empty() && rule.r#for.is_none(), "{name}");
        assert!(recorded.insert(name.clone(), found).is_none(), "{name} twice");
    }
    recorded
}

#[test]
fn rates_are_named_for_their_span() {
    for rule in ["instance", "fleet"].into_iter().flat_map(rules) {
        let name = rule.record.unwrap();
        assert_eq!(
            rule.expr.contains("rate(") || rule.expr.contains(":rate5m"),
            name.ends_with("rate5m"),
            "{name}"
        );
        assert!(!rule.expr.replace("[5m]", "").replace("[.]", "").contains('['), "{name}: another span");
    }
}

/// A fleet's rules must not need what only the Prometheus has that scrapes.
#[test]
fn the_fleet_has_no_instance() {
    for rule in rules("fleet") {
        assert!(rule.expr.contains("by (cluster, job") || !rule.expr.contains("instance"), "{}", rule.expr);
        assert!(!rule.expr.contains("without"), "{}: what else a target has would stay", rule.expr);
    }
}

#[test]
fn every_alert_says_what_it_means_and_what_to_do() {
    let (recorded, mut names) = (recorded(), Vec::new());
    let runbook = std::fs::read_to_string(repository("docs/alerts.md")).unwrap();
    for rule in rules("alerts") {
        let name = rule.alert.unwrap();
        let labels = promql::check(&rule.expr, &recorded).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        assert!(name.starts_with("Iotrace") && rule.r#for.is_some(), "{name}");
        assert!(matches!(&*rule.labels["severity"], "warning" | "info"), "{name}");
        assert_eq!(rule.labels.len(), 1, "{name}");
        assert_eq!(
            rule.annotations.keys().collect::<Vec<_>>(),
            ["description", "runbook", "summary"],
            "{name}"
        );
        for text in [&rule.annotations["summary"], &rule.annotations["description"]] {
            assert!(text.ends_with('.') && text.contains("{{ $labels.instance }}"), "{name}: {text}");
            for label in text.split("$labels.").skip(1) {
                let label = label.split_once(' ').unwrap().0;
                assert!(labels.contains(label), "{name}: the result has no label {label}");
            }
            assert!(variables(text).iter().all(|it| ["labels", "value"].contains(it)), "{name}: {text}");
        }
        let anchor = name.to_lowercase();
        assert_eq!(rule.annotations["runbook"], format!("docs/alerts.md#{anchor}"));
        names.push(name);
    }
    let headings = runbook.lines().filter_map(|line| line.strip_prefix("## Iotrace"));
    assert_eq!(headings.map(|it| format!("Iotrace{it}")).collect::<Vec<_>>(), names, "docs/alerts.md");
}

#[test]
fn every_rule_is_tested() {
    for file in FILES {
        let path = repository(&format!("dashboards/rules/tests/{file}.yml"));
        let tests = std::fs::read_to_string(path).unwrap();
        for rule in rules(file) {
            let name = rule.record.or(rule.alert).unwrap();
            assert!(tests.contains(&name), "dashboards/rules/tests/{file}.yml has no test of {name}");
        }
    }
}
