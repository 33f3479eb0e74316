//! The file that says how to serve: TLS, passwords, headers, a rate. The format is exporter-toolkit's
//! (<https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md>), so one file does for all exporters of
//! a host. From text to plain data: no other file is read here.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_saphyr::{Spanned, UserMessageFormatter};
use thiserror::Error;

mod rate;
mod tls;

pub use rate::Rate;
pub use tls::{Cipher, ClientAuth, Curve, Pem, Tls, Version};

/// The highest cost of a password's hash: each step doubles the time, and this one takes seconds.
pub const COST: u32 = 16;

/// What is wrong with the file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}{reason}", line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct Invalid {
    /// Where, from 1; not known for what is missing.
    pub line: Option<u64>,
    /// What, in one line.
    pub reason: String,
}

/// All that the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebConfig {
    /// How to speak TLS; without it, none is spoken.
    pub tls: Option<Tls>,
    /// Whether to offer HTTP/2, which is spoken over TLS alone.
    pub http2: bool,
    /// Headers of every answer.
    pub headers: Vec<(&'static str, String)>,
    /// Who may ask, with bcrypt hashes; everybody if empty.
    pub users: Users,
    /// How often may be asked.
    pub rate: Option<Rate>,
    /// What is taken otherwise than it is written, one line each.
    pub notes: Vec<String>,
}

/// Names and the bcrypt hashes of their passwords.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Users(pub BTreeMap<String, String>);

impl fmt::Debug for Users {
    /// Hashes are as good as secret.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_set().entries(self.0.keys()).finish()
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    tls_server_config: Option<tls::Written>,
    http_server_config: Option<Http>,
    basic_auth_users: Option<BTreeMap<String, Spanned<String>>>,
    rate_limit: Option<Rate>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Http {
    http2: Option<bool>,
    headers: Option<Headers>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Headers {
    #[serde(rename = "Content-Security-Policy")]
    policy: Option<Spanned<String>>,
    #[serde(rename = "Strict-Transport-Security")]
    transport: Option<Spanned<String>>,
    #[serde(rename = "X-Content-Type-Options")]
    sniffing: Option<Sniffing>,
    #[serde(rename = "X-Frame-Options")]
    frame: Option<Frame>,
    #[serde(rename = "X-XSS-Protection")]
    scripts: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Sniffing {
    Nosniff,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Frame {
    Deny,
    Sameorigin,
}

impl WebConfig {
    /// Reads the text of a file; paths in it are relative to `folder`.
    ///
    /// # Errors
    /// The first key that is unknown, or value that is not allowed, with its line.
    pub fn parse(text: &str, folder: &Path) -> Result<WebConfig, Invalid> {
        let options = serde_saphyr::options! {
            // What is quoted from the file might be a secret.
            with_snippet: false,
        };
        // A file without a document says nothing, and that is allowed.
        let written: Option<Written> =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| {
                let reason = error.without_snippet().render_with_formatter(&UserMessageFormatter);
                // The place is said once, and in the form of all other messages.
                let reason = reason.split(" at line ").next().unwrap_or_default();
                let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
                Invalid { line: error.location().map(|place| place.line()), reason }
            })?;
        let written = written.unwrap_or_default();
        let mut notes = Vec::new();
        let tls = match written.tls_server_config {
            Some(tls) => tls.read(folder, &mut notes)?,
            None => None,
        };
        let http = written.http_server_config.unwrap_or_default();
        Ok(WebConfig {
            tls,
            http2: http.http2.unwrap_or(true),
            headers: http.headers.map_or(Ok(Vec::new()), Headers::read)?,
            users: users(written.basic_auth_users.unwrap_or_default())?,
            rate: written.rate_limit.filter(|rate| !rate.interval.is_zero()),
            notes,
        })
    }

    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let pems = self.tls.iter().flat_map(|tls| [Some(&tls.cert), Some(&tls.key), tls.client_ca.as_ref()]);
        pems.flatten().filter_map(|pem| match pem {
            Pem::File(path) => Some(path),
            Pem::Text(_) => None,
        })
    }
}

impl Headers {
    fn read(self) -> Result<Vec<(&'static str, String)>, Invalid> {
        let sniffing = self.sniffing.map(|Sniffing::Nosniff| "nosniff".to_owned());
        let frame = self.frame.map(|frame| match frame {
            Frame::Deny => "deny".to_owned(),
            Frame::Sameorigin => "sameorigin".to_owned(),
        });
        let mut headers = Vec::new();
        for (name, value) in [
            ("content-security-policy", self.policy),
            ("strict-transport-security", self.transport),
            ("x-xss-protection", self.scripts),
        ] {
            // Blank is as if it were not there.
            let Some(value) = value.filter(|value| !value.value.is_empty()) else { continue };
            if !value.value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte)) {
                return Err(at(&value, format!("{name} has characters that no header can have")));
            }
            headers.push((name, value.value));
        }
        headers.extend(sniffing.map(|value| ("x-content-type-options", value)));
        headers.extend(frame.map(|value| ("x-frame-options", value)));
        Ok(headers)
    }
}

fn users(written: BTreeMap<String, Spanned<String>>) -> Result<Users, Invalid> {
    let mut users = BTreeMap::new();
    for (name, hash) in written {
        let cost = match hash.value.parse::<bcrypt::HashParts>() {
            Ok(parts) => parts.get_cost(),
            Err(_) => {
                let reason = format!("the password of {name:?} is no bcrypt hash; `htpasswd -nB` makes one");
                return Err(at(&hash, reason));
            }
        };
        if !(4..=COST).contains(&cost) {
            let reason = format!("the hash of {name:?} has cost {cost}; it must be 4 to {COST}");
            return Err(at(&hash, reason));
        }
        users.insert(name, hash.value);
    }
    Ok(Users(users))
}

fn at<T>(value: &Spanned<T>, reason: String) -> Invalid {
    Invalid { line: Some(value.referenced.line()), reason }
}

#[cfg(test)]
mod tests;
