//! docs/kernels.md: what was found on each kernel, written by the tests themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::findings::Findings;
use crate::workspace;

const INTRODUCTION: &str = "\
# Kernels

What the tests found on the kernels that they ran on. `cargo xtask test --bless` writes this file. What can be attached
and what the verifier processed is checked whenever the tests run on that very release; another release of the series is
not held against it.

`attached` counts the places that call a function, and that iotrace can probe, of all that there are. Paths and kinds
are those that a test has seen, with the functions that walked them; the workloads do not provoke all that there are.
";

/// The page's sections, by kernel.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Page(BTreeMap<String, Section>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Section {
    release: String,
    text: String,
}

/// The lines that depend on nothing but the kernel and iotrace.
fn held(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with("| `") || line.starts_with("Instructions that the verifier"))
}

impl Page {
    /// The page of the repository; an empty one if there is none.
    pub fn committed() -> Self {
        Self::parse(&fs::read_to_string(workspace::root().join("docs/kernels.md")).unwrap_or_default())
    }

    /// Adds what was found on the kernel that is called `label`.
    pub fn add(&mut self, label: &str, findings: &Findings) -> Result<()> {
        let check = findings.check.as_ref().context("`iotrace check` printed no report")?;
        let release = check["release"].as_str().context("a report without a release")?.to_owned();
        self.0.insert(label.to_owned(), Section { release, text: section(check, &findings.seen) });
        Ok(())
    }

    /// The kernels whose section in `committed` is of the same release, and says something else of what can be attached
    /// or of the verifier; each with the first line that differs. What tests saw beside that depends on which ran.
    pub fn changed(&self, committed: &Page) -> Vec<String> {
        let pairs = self.0.iter().filter_map(|(label, now)| Some((label, now, committed.0.get(label)?)));
        pairs
            .filter(|(_, now, then)| now.release == then.release)
            .filter_map(|(label, now, then)| {
                let first = held(&now.text).find(|line| !held(&then.text).any(|other| other == *line));
                let missing = || held(&then.text).count() != held(&now.text).count();
                let first = first.or_else(|| missing().then_some("lines are missing"))?;
                Some(format!("{label}: {first}"))
            })
            .collect()
    }

    /// Writes it to the target folder, and to the repository if it is `blessed`. Kernels that the tests did not run on
    /// stay as they are there.
    pub fn write(&self, blessed: bool) -> Result<()> {
        self.write_over(&workspace::target().join("kernels.md"))?;
        if blessed { self.write_over(&workspace::root().join("docs/kernels.md")) } else { Ok(()) }
    }

    /// Other processes may do the same for other kernels.
    fn write_over(&self, path: &Path) -> Result<()> {
        let write = || {
            let mut file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
            file.lock()?;
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            let mut page = Self::parse(&text);
            page.0.extend(self.0.clone());
            file.rewind()?;
            file.set_len(0)?;
            file.write_all(page.print().as_bytes())
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    fn parse(text: &str) -> Self {
        let sections = text.split("\n## ").skip(1).filter_map(|section| {
            let (heading, text) = section.split_once('\n')?;
            let (label, release) = heading.split_once(": ")?;
            Some((label.to_owned(), Section { release: release.to_owned(), text: text.trim().to_owned() }))
        });
        Self(sections.collect())
    }

    fn print(&self) -> String {
        let mut sections: Vec<_> = self.0.iter().collect();
        // By age: 5.10 comes before 6.1, and 6.1 before 6.12.
        sections.sort_by_key(|(label, _)| {
            let numbers = label.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok());
            (numbers.collect::<Vec<u64>>(), label.len())
        });
        let mut page = INTRODUCTION.to_owned();
        for (label, section) in sections {
            // Writing to a string cannot fail.
            let _infallible = write!(page, "\n## {label}: {}\n\n{}\n", section.release, section.text);
        }
        page
    }
}

/// A kernel's section, without its heading.
fn section(check: &Value, seen: &BTreeMap<String, BTreeSet<String>>) -> String {
    let mut lines = vec!["| function | attached |".to_owned(), "|---|---|".to_owned()];
    let probes: Vec<&Value> = check["probes"].as_array().into_iter().flatten().collect();
    let word = |probe: &Value, key: &str| probe[key].as_str().unwrap_or_default().to_owned();
    let mut targets: Vec<String> = Vec::new();
    for probe in &probes {
        if !targets.contains(&word(probe, "target")) {
            targets.push(word(probe, "target"));
        }
    }
    for target in targets {
        let sites: Vec<_> =
            probes.iter().filter(|probe| probe["target"] == *target && probe["site"] != "").collect();
        let attached = sites.iter().filter(|probe| probe["state"] == "attached").count();
        lines.push(format!("| `{target}` | {attached} of {} |", sites.len()));
    }
    let mut reasons: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for probe in probes.iter().filter(|probe| probe["state"] != "attached") {
        let place = if probe["site"] == "" { word(probe, "target") } else { word(probe, "site") };
        reasons.entry(word(probe, "reason")).or_default().insert(format!("`{place}`"));
    }
    if !reasons.is_empty() {
        lines.extend([String::new(), "Not attached:".to_owned(), String::new()]);
        lines.extend(reasons.iter().map(|(reason, places)| format!("- {reason}: {}", joined(places))));
    }
    if let Some(paths) = seen.get("path") {
        lines.extend([String::new(), format!("Paths seen: {}.", joined(paths))]);
    }
    if let Some(kinds) = seen.get("kind") {
        let mut functions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for (kind, function) in kinds.iter().filter_map(|text| text.split_once(' ')) {
            functions.entry(kind).or_default().insert(function.to_owned());
        }
        lines.extend([String::new(), "Kinds seen:".to_owned(), String::new()]);
        lines.extend(functions.iter().map(|(kind, functions)| format!("- {kind}: {}", joined(functions))));
    }
    if let Some(programs) = check["programs"].as_object().filter(|programs| !programs.is_empty()) {
        let programs = programs.iter().map(|(program, instructions)| format!("`{program}` {instructions}"));
        let programs: Vec<_> = programs.collect();
        lines.extend([
            String::new(),
            format!("Instructions that the verifier processed: {}.", programs.join(", ")),
        ]);
    }
    if let Some(conditions) = seen.get("condition") {
        lines.extend([String::new(), "Under hostile conditions:".to_owned(), String::new()]);
        lines.extend(conditions.iter().map(|condition| format!("- {condition}")));
    }
    lines.join("\n")
}

fn joined(words: &BTreeSet<String>) -> String {
    words.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(release: &str, path: &str) -> Findings {
        let probe = |site: &str, state: &str, reason: &str| serde_json::json!({"target": "import_iovec", "site": site, "state": state, "reason": reason});
        let mut findings = Findings {
            check: Some(serde_json::json!({
                "release": release,
                "probes": [probe("a+1", "attached", ""), probe("b+2", "unavailable", "notrace")],
                "programs": {"import_call": 7},
            })),
            ..Findings::default()
        };
        findings.seen.insert("path".into(), BTreeSet::from([path.to_owned()]));
        findings.seen.insert("kind".into(), ["ubuf f", "ubuf g", "bvec f"].map(String::from).into());
        findings.seen.insert("condition".into(), BTreeSet::from(["no BTF: `iotrace: none`".to_owned()]));
        findings
    }

    fn page(label: &str, release: &str, path: &str) -> Page {
        let mut page = Page::default();
        page.add(label, &findings(release, path)).unwrap();
        page
    }

    #[test]
    fn a_section_says_what_was_found() {
        let text = &page("6.12", "6.12.1", "readv").0["6.12"].text;
        for line in [
            "| `import_iovec` | 1 of 2 |",
            "- notrace: `b+2`",
            "Paths seen: readv.",
            "- ubuf: f, g",
            "Instructions that the verifier processed: `import_call` 7.",
            "- no BTF: `iotrace: none`",
        ] {
            assert!(text.lines().any(|other| other == line), "no {line} in {text}");
        }
    }

    #[test]
    fn a_page_is_read_back_in_order_of_age() {
        let mut page = page("6.12", "6.12.1", "readv");
        page.add("6.1", &findings("6.1.0", "readv")).unwrap();
        page.add("6.12-full", &findings("6.12.1", "readv")).unwrap();
        let text = page.print();
        assert_eq!(Page::parse(&text), page);
        let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("## ")).collect();
        assert_eq!(headings, ["## 6.1: 6.1.0", "## 6.12: 6.12.1", "## 6.12-full: 6.12.1"]);
    }

    #[test]
    fn only_the_same_release_is_held_against_the_page() {
        let committed = page("6.12", "6.12.1", "readv");
        assert_eq!(page("6.12", "6.12.1", "readv").changed(&committed), Vec::<String>::new());
        // Which tests ran is no matter, what can be attached is.
        assert_eq!(page("6.12", "6.12.1", "writev").changed(&committed), Vec::<String>::new());
        let other = |label: &str, release: &str| {
            let mut page = page(label, release, "readv");
            let section = page.0.get_mut(label).unwrap();
            section.text = section.text.replace("1 of 2", "2 of 2");
            page
        };
        assert_eq!(other("6.12", "6.12.1").changed(&committed), ["6.12: | `import_iovec` | 2 of 2 |"]);
        assert_eq!(other("6.12", "6.12.2").changed(&committed), Vec::<String>::new());
        assert_eq!(other("6.1", "6.12.1").changed(&committed), Vec::<String>::new());
    }
}
