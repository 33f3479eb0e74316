//! Every query of the dashboards and rules names metrics and labels that the daemon exports or a rule records.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod promql;
mod rules;
mod support;

use std::{collections::BTreeSet, fs};

use promql::{check, check_variable};
use serde_json::Value;

/// A dashboard, and what its conventions ask for beside those of all.
struct Dashboard {
    uid: &'static str,
    variables: &'static [&'static str],
    rows: &'static [&'static str],
    /// Labels by which every query is filtered.
    filters: &'static [&'static str],
    /// Whether it shows what recording rules made, rather than rates of its own.
    recorded: bool,
}

const DASHBOARDS: [Dashboard; 2] = [
    Dashboard {
        uid: "iotrace-host",
        variables: &["datasource", "job", "instance", "function", "kind"],
        rows: &["Overview", "Segments", "Cost per kind", "Who", "Zerocopy", "Agent health"],
        filters: &["job", "instance"],
        recorded: false,
    },
    Dashboard {
        uid: "iotrace-fleet",
        variables: &["datasource", "cluster", "job"],
        rows: &["Overview", "Segments", "Cost per kind", "Who", "Hosts that stand out", "Agent health"],
        filters: &["cluster", "job"],
        recorded: true,
    },
];

impl Dashboard {
    fn read(&self) -> Value {
        let file = support::repository(&format!("dashboards/{}.json", self.uid));
        serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
    }
}

/// `{{label}}` in a legend.
fn legend_labels(legend: &str) -> Vec<&str> {
    legend.split("{{").skip(1).map(|rest| rest.split_once("}}").unwrap().0.trim()).collect()
}

/// `$name` and `${name}`.
fn variables(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for rest in text.split('$').skip(1) {
        let rest = rest.strip_prefix('{').unwrap_or(rest);
        let end = rest.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(rest.len());
        names.push(&rest[..end]);
    }
    names
}

#[test]
fn every_query_asks_for_what_there_is() {
    let recorded = rules::recorded();
    for it in DASHBOARDS {
        let dashboard = it.read();
        let mut queries = 0;
        for panel in dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row") {
            let title = panel["title"].as_str().unwrap();
            for target in panel["targets"].as_array().unwrap() {
                let (expr, legend) =
                    (target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap());
                let labels =
                    check(expr, &recorded).unwrap_or_else(|wrong| panic!("{title}: {wrong} in {expr}"));
                for label in legend_labels(legend) {
                    assert!(labels.contains(label), "{title}: the result has no label {label}");
                }
                for variable in variables(expr) {
                    let known = it.variables.contains(&variable) || variable == "__rate_interval";
                    assert!(known, "{title}: no variable ${variable}");
                }
                let selectors = expr.matches('{').count();
                for filter in it.filters {
                    let filtered = expr.matches(&format!("{filter}=~\"${filter}\"")).count();
                    assert!(filtered > 0 && filtered == selectors, "{title}: not filtered by {filter}");
                }
                assert!(!expr.contains("rate(") || expr.contains("[$__rate_interval]"), "{title}");
                assert!(!it.recorded || !expr.contains('['), "{title}: a rate that no rule records");
                links(panel, &labels);
                queries += 1;
            }
        }
        assert!(queries >= 20);
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            if variable["type"] == "query" {
                let query = variable["query"]["query"].as_str().unwrap();
                check_variable(query, &recorded).unwrap_or_else(|wrong| panic!("{wrong} in {query}"));
            }
        }
    }
}

/// Links lead to a dashboard that there is, and name its variables and the labels of the result.
fn links(panel: &Value, labels: &promql::Labels) {
    for it in panel["fieldConfig"]["overrides"].as_array().unwrap() {
        assert!(labels.contains(it["matcher"]["options"].as_str().unwrap()), "{it}");
        let urls =
            it["properties"].as_array().unwrap().iter().flat_map(|property| property["value"].as_array());
        for url in urls.flatten().map(|link| link["url"].as_str().unwrap()) {
            let (uid, parameters) = url.strip_prefix("/d/").unwrap().split_once('?').unwrap();
            let there = DASHBOARDS.iter().find(|it| it.uid == uid).unwrap_or_else(|| panic!("no {uid}"));
            for (variable, value) in parameters.split('&').filter_map(|it| it.split_once('=')) {
                let variable = variable.strip_prefix("var-").unwrap();
                assert!(there.variables.contains(&variable), "{url}");
                let label = value.strip_prefix("${__data.fields.").and_then(|it| it.strip_suffix('}'));
                assert!(label.is_none_or(|label| labels.contains(label)), "{url}");
            }
        }
    }
}

#[test]
fn every_dashboard_keeps_the_conventions() {
    for it in DASHBOARDS {
        let dashboard = it.read();
        assert_eq!(dashboard["uid"], it.uid);
        assert_eq!(dashboard["id"], Value::Null);
        let list = |path: &Value, key: &str| -> Vec<String> {
            path.as_array().unwrap().iter().map(|it| it[key].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(list(&dashboard["templating"]["list"], "name"), it.variables);
        let panels = dashboard["panels"].as_array().unwrap();
        let rows = panels.iter().filter(|panel| panel["type"] == "row").cloned().collect();
        assert_eq!(list(&Value::Array(rows), "title"), it.rows);
        let mut ids = BTreeSet::new();
        let mut places = BTreeSet::new();
        for panel in panels {
            let title = &panel["title"];
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: an id twice");
            if panel["type"] == "row" {
                continue;
            }
            assert!(
                panel["description"].as_str().is_some_and(|text| text.ends_with('.')),
                "{title}: no description"
            );
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
            let unit = &panel["fieldConfig"]["defaults"]["unit"];
            assert!(unit.is_string() || panel["type"] == "heatmap", "{title}: no unit");
            let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(place("x") + place("w") <= 24, "{title}: too wide");
            for y in place("y")..place("y") + place("h") {
                for x in place("x")..place("x") + place("w") {
                    assert!(places.insert((x, y)), "{title}: over another panel");
                }
            }
        }
    }
}
