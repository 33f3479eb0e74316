//! From the text format to OpenMetrics 1.0: the samples are the same, the lines about them differ.

/// OpenMetrics of a text in the format 0.0.4: a counter's family has no `_total`, quotes in help are escaped, and an end
/// is marked.
pub fn metrics(text: &str) -> String {
    let mut open = String::with_capacity(text.len() + 64);
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let help = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' '));
        let kind = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '));
        if let Some((name, help)) = help {
            // The type follows at once.
            let counter = lines.peek().is_some_and(|next| next.ends_with(" counter"));
            let help = help.replace('"', "\\\"");
            open += &format!("# HELP {} {help}\n", family(name, counter));
        } else if let Some((name, kind)) = kind {
            open += &format!("# TYPE {} {kind}\n", family(name, kind == "counter"));
        } else {
            open += line;
            open.push('\n');
        }
    }
    open + "# EOF\n"
}

fn family(name: &str, counter: bool) -> &str {
    if counter { name.strip_suffix("_total").unwrap_or(name) } else { name }
}

#[cfg(test)]
mod tests {
    use super::metrics;

    #[test]
    fn only_the_lines_about_samples_differ() {
        let text = "# HELP a_total What \"a\" is.\n# TYPE a_total counter\na_total{k=\"v \\\" x\"} 1\n\
                    # HELP b_total_seconds B.\n# TYPE b_total_seconds gauge\nb_total_seconds 2\n";
        let open = "# HELP a What \\\"a\\\" is.\n# TYPE a counter\na_total{k=\"v \\\" x\"} 1\n\
                    # HELP b_total_seconds B.\n# TYPE b_total_seconds gauge\nb_total_seconds 2\n# EOF\n";
        assert_eq!(metrics(text), open);
        assert_eq!(metrics(""), "# EOF\n");
    }
}
