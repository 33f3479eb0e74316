//! Every query of the dashboards names metrics and labels that the daemon exports.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod promql;

use std::{collections::BTreeSet, fs, path::Path};

use promql::{check, check_variable};
use serde_json::Value;

fn dashboard(name: &str) -> Value {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../dashboards")).join(name);
    serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
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
    let dashboard = dashboard("iotrace-host.json");
    let known: BTreeSet<&str> = dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variable| variable["name"].as_str().unwrap())
        .chain(["__rate_interval"])
        .collect();
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().unwrap() {
            let (expr, legend) = (target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap());
            let labels = check(expr).unwrap_or_else(|wrong| panic!("{title}: {wrong} in {expr}"));
            for label in legend_labels(legend) {
                assert!(labels.contains(label), "{title}: the result has no label {label}");
            }
            for variable in variables(expr) {
                assert!(known.contains(variable), "{title}: no variable ${variable}");
            }
            assert!(expr.contains("instance=~\"$instance\"") && expr.contains("job=~\"$job\""), "{title}");
            assert!(!expr.contains("rate(") || expr.contains("[$__rate_interval]"), "{title}");
            queries += 1;
        }
    }
    assert!(queries >= 20);
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if variable["type"] == "query" {
            let query = variable["query"]["query"].as_str().unwrap();
            check_variable(query).unwrap_or_else(|wrong| panic!("{wrong} in {query}"));
        }
    }
}

#[test]
fn the_dashboard_keeps_the_conventions() {
    let dashboard = dashboard("iotrace-host.json");
    assert_eq!(dashboard["uid"], "iotrace-host");
    assert_eq!(dashboard["id"], Value::Null);
    let list = |path: &Value, key: &str| -> Vec<String> {
        path.as_array().unwrap().iter().map(|it| it[key].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        list(&dashboard["templating"]["list"], "name"),
        ["datasource", "job", "instance", "function", "kind"]
    );
    let panels = dashboard["panels"].as_array().unwrap();
    let rows = panels.iter().filter(|panel| panel["type"] == "row").cloned().collect();
    assert_eq!(
        list(&Value::Array(rows), "title"),
        ["Overview", "Segments", "Cost per kind", "Who", "Zerocopy", "Agent health"]
    );
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
