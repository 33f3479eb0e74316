//! What a client can read, as its `Accept` and `Accept-Encoding` tell (RFC 9110, 12.5). A header that makes no sense
//! asks for nothing.

/// How `/metrics` is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// The Prometheus text format, version 0.0.4.
    Text,
    /// OpenMetrics, version 1.0.0.
    OpenMetrics,
    /// JSON, at `/v1/snapshot`.
    Json,
}

/// The form of `/metrics` for this `Accept`: OpenMetrics where it is preferred by name, else the text format.
pub fn form(accept: &str) -> Form {
    let quality = |media: &str, version: &str| {
        let understood = items(accept).filter(|item| {
            item.name.eq_ignore_ascii_case(media) && item.version.is_none_or(|it| it == version)
        });
        understood.map(|item| item.quality).max().unwrap_or(0)
    };
    let open = quality("application/openmetrics-text", "1.0.0");
    if open > quality("text/plain", "0.0.4") { Form::OpenMetrics } else { Form::Text }
}

/// Whether this `Accept-Encoding` allows gzip.
pub fn gzip(accept_encoding: &str) -> bool {
    let quality = |name: &str| {
        items(accept_encoding).find(|item| item.name.eq_ignore_ascii_case(name)).map(|item| item.quality)
    };
    quality("gzip").or_else(|| quality("*")).is_some_and(|quality| quality > 0)
}

struct Item<'a> {
    name: &'a str,
    version: Option<&'a str>,
    /// In thousandths.
    quality: u16,
}

fn items(header: &str) -> impl Iterator<Item = Item<'_>> {
    header.split(',').filter_map(|item| {
        let mut parts = item.split(';').map(str::trim);
        let mut item = Item { name: parts.next()?, version: None, quality: 1000 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name {
                "version" => item.version = Some(value),
                "q" | "Q" => item.quality = thousandths(value)?,
                _ => {}
            }
        }
        Some(item)
    })
}

fn thousandths(quality: &str) -> Option<u16> {
    let quality: f64 = quality.parse().ok()?;
    (0.0..=1.0).contains(&quality).then_some((quality * 1000.0) as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_form_is_what_is_preferred_by_name() {
        for accept in [
            "",
            "*/*",
            "text/html,application/xhtml+xml,*/*;q=0.8",
            "text/plain;version=0.0.4;q=0.5,application/openmetrics-text;version=1.0.0;q=0.5",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=2",
            "application/openmetrics-text;q=x",
            ",;=,;q",
        ] {
            assert_eq!(form(accept), Form::Text, "{accept}");
        }
        for accept in [
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; version=1.0.0; charset=utf-8",
            // As Prometheus asks.
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
             text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
        ] {
            assert_eq!(form(accept), Form::OpenMetrics, "{accept}");
        }
    }

    #[test]
    fn gzip_is_only_for_those_who_allow_it() {
        for header in
            ["", "identity", "br, deflate", "gzip;q=0", "gzip;q=0.000, *", "*;q=0", "gzipx", "gzip;q=-1"]
        {
            assert!(!gzip(header), "{header}");
        }
        for header in ["gzip", "br;q=1, GZIP ; q=0.1", "*", "identity, *;q=0.5"] {
            assert!(gzip(header), "{header}");
        }
    }

    proptest! {
        #[test]
        fn no_header_makes_it_panic(header in ".*") {
            form(&header);
            gzip(&header);
        }
    }
}
