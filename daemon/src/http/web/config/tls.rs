//! The part about TLS, with Go's names for ciphers and curves.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::{Invalid, at};

/// How to speak TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The server's certificate, and those between it and a root.
    pub cert: Pem,
    /// Its key.
    pub key: Pem,
    /// What clients must show.
    pub client_auth: ClientAuth,
    /// Who vouches for clients.
    pub client_ca: Option<Pem>,
    /// The certificate of a client, which must have one, must have one of these as a subject alternative name.
    pub client_names: Option<Vec<String>>,
    /// The lowest version.
    pub lowest: Version,
    /// The highest version.
    pub highest: Version,
    /// Ciphers of TLS 1.2, the preferred first; all unless they are chosen.
    pub ciphers: Option<Vec<Cipher>>,
    /// Curves, the preferred first; all unless they are chosen.
    pub curves: Option<Vec<Curve>>,
    /// Whether the server's order of ciphers counts, not the client's.
    pub prefer_server: bool,
}

/// Where something in PEM is found.
#[derive(Clone, PartialEq, Eq)]
pub enum Pem {
    /// In a file of its own.
    File(PathBuf),
    /// In the file itself.
    Text(String),
}

impl fmt::Debug for Pem {
    /// A text may be a key.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pem::File(path) => path.fmt(out),
            Pem::Text(_) => out.write_str("in the file itself"),
        }
    }
}

/// What clients must show, by Go's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum ClientAuth {
    #[default]
    #[serde(rename = "NoClientCert", alias = "")]
    None,
    #[serde(rename = "RequestClientCert")]
    Request,
    #[serde(rename = "RequireAnyClientCert", alias = "RequireClientCert")]
    RequireAny,
    #[serde(rename = "VerifyClientCertIfGiven")]
    VerifyIfGiven,
    #[serde(rename = "RequireAndVerifyClientCert")]
    RequireAndVerify,
}

/// A version of TLS that is spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    Tls12,
    Tls13,
}

/// A cipher suite of TLS 1.2 that is spoken here; those of 1.3 are not chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    EcdheRsaAes128,
    EcdheRsaAes256,
    EcdheRsaChacha20,
    EcdheEcdsaAes128,
    EcdheEcdsaAes256,
    EcdheEcdsaChacha20,
}

/// A curve that is spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    X25519,
    P256,
    P384,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum WrittenVersion {
    Tls10,
    Tls11,
    Tls12,
    Tls13,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    cert: Option<String>,
    key: Option<String>,
    client_ca: Option<String>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    client_ca_file: Option<PathBuf>,
    client_auth_type: Option<Spanned<ClientAuth>>,
    client_allowed_sans: Option<Vec<String>>,
    min_version: Option<WrittenVersion>,
    max_version: Option<Spanned<WrittenVersion>>,
    cipher_suites: Option<Vec<Spanned<String>>>,
    curve_preferences: Option<Vec<Spanned<String>>>,
    prefer_server_cipher_suites: Option<bool>,
}

/// A file before a text, as the toolkit does; what is empty is not there.
fn pem(file: Option<PathBuf>, text: Option<String>, folder: &Path) -> Option<Pem> {
    match file.filter(|file| !file.as_os_str().is_empty()) {
        Some(file) => Some(Pem::File(folder.join(file))),
        None => text.filter(|text| !text.is_empty()).map(Pem::Text),
    }
}

fn missing(reason: &str) -> Invalid {
    Invalid { line: None, reason: format!("tls_server_config: {reason}") }
}

impl Written {
    /// `None` where it names nothing: then no TLS is spoken, as the toolkit does.
    pub(super) fn read(self, folder: &Path, notes: &mut Vec<String>) -> Result<Option<Tls>, Invalid> {
        let cert = pem(self.cert_file, self.cert, folder);
        let key = pem(self.key_file, self.key, folder);
        let client_ca = pem(self.client_ca_file, self.client_ca, folder);
        let auth = self.client_auth_type.as_ref().map(|auth| auth.value).unwrap_or_default();
        if cert.is_none() && key.is_none() && client_ca.is_none() && auth == ClientAuth::None {
            notes.push("tls_server_config names no certificate: TLS is not spoken".to_owned());
            return Ok(None);
        }
        let cert = cert.ok_or_else(|| missing("cert_file or cert is missing"))?;
        let key = key.ok_or_else(|| missing("key_file or key is missing"))?;
        let verified = matches!(auth, ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify);
        if client_ca.is_some() && auth == ClientAuth::None {
            return Err(missing(
                "client_ca_file asks for a client_auth_type, such as RequireAndVerifyClientCert",
            ));
        }
        if let Some(auth) = self.client_auth_type.as_ref().filter(|_| verified && client_ca.is_none()) {
            return Err(at(
                auth,
                "client_auth_type verifies clients, which takes a client_ca_file".to_owned(),
            ));
        }
        if self.client_allowed_sans.is_some()
            && !matches!(auth, ClientAuth::RequireAny | ClientAuth::RequireAndVerify)
        {
            return Err(missing(
                "client_allowed_sans takes a client_auth_type that requires a certificate, such as \
                 RequireAndVerifyClientCert",
            ));
        }
        let lowest = match self.min_version {
            None | Some(WrittenVersion::Tls12) => Version::Tls12,
            Some(WrittenVersion::Tls13) => Version::Tls13,
            Some(WrittenVersion::Tls10 | WrittenVersion::Tls11) => {
                notes.push("min_version: TLS 1.0 and 1.1 are not spoken, only 1.2 and 1.3".to_owned());
                Version::Tls12
            }
        };
        let highest = match self.max_version {
            None => Version::Tls13,
            Some(version) => {
                let highest = match version.value {
                    WrittenVersion::Tls13 => Version::Tls13,
                    WrittenVersion::Tls12 => Version::Tls12,
                    WrittenVersion::Tls10 | WrittenVersion::Tls11 => {
                        return Err(at(&version, "max_version: TLS 1.0 and 1.1 are not spoken".to_owned()));
                    }
                };
                if highest < lowest {
                    return Err(at(&version, "max_version is lower than min_version".to_owned()));
                }
                highest
            }
        };
        let ciphers = known("cipher suite", self.cipher_suites, cipher, notes)?;
        let no_cipher = ciphers.as_ref().is_some_and(Vec::is_empty);
        if no_cipher && highest == Version::Tls12 {
            return Err(missing("none of the cipher_suites is spoken here, and TLS 1.3 is not allowed"));
        }
        let curves = known("curve", self.curve_preferences, curve, notes)?;
        if curves.as_ref().is_some_and(Vec::is_empty) {
            return Err(missing("none of the curve_preferences is spoken here"));
        }
        Ok(Some(Tls {
            cert,
            key,
            client_auth: auth,
            client_ca,
            client_names: names(self.client_allowed_sans, notes)?,
            lowest: if no_cipher { Version::Tls13 } else { lowest },
            highest,
            ciphers,
            curves,
            prefer_server: self.prefer_server_cipher_suites.unwrap_or(true),
        }))
    }
}

/// Those that are looked at: webpki shows no mail addresses.
fn names(written: Option<Vec<String>>, notes: &mut Vec<String>) -> Result<Option<Vec<String>>, Invalid> {
    let Some(written) = written else { return Ok(None) };
    let is_mail = |name: &String| name.contains('@') && !name.contains(':');
    let (mails, names): (Vec<_>, Vec<_>) = written.into_iter().partition(is_mail);
    if names.is_empty() && !mails.is_empty() {
        return Err(missing("client_allowed_sans has mail addresses alone, which are not looked at here"));
    }
    notes.extend(
        mails.iter().map(|mail| format!("client_allowed_sans: {mail:?} is left out: a mail address")),
    );
    Ok(Some(names))
}

/// Those of the list that are spoken here; `None` if nothing is chosen. What Go knows and is not spoken is noted, what
/// nobody knows is an error.
fn known<T>(
    what: &str,
    written: Option<Vec<Spanned<String>>>,
    find: impl Fn(&str) -> Option<Option<T>>,
    notes: &mut Vec<String>,
) -> Result<Option<Vec<T>>, Invalid> {
    let Some(written) = written.filter(|written| !written.is_empty()) else { return Ok(None) };
    let mut found = Vec::new();
    for name in written {
        match find(&name.value) {
            Some(Some(one)) => found.push(one),
            Some(None) => notes.push(format!("{what} {} is left out: it is not spoken here", name.value)),
            None => return Err(at(&name, format!("unknown {what} {:?}", name.value))),
        }
    }
    Ok(Some(found))
}

/// `crypto/tls` of Go: `CipherSuites`, and the first three, which are of TLS 1.3 and always spoken.
fn cipher(name: &str) -> Option<Option<Cipher>> {
    Some(Some(match name {
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256" => Cipher::EcdheRsaAes128,
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384" => Cipher::EcdheRsaAes256,
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305" | "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256" => {
            Cipher::EcdheRsaChacha20
        }
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256" => Cipher::EcdheEcdsaAes128,
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384" => Cipher::EcdheEcdsaAes256,
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305" | "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256" => {
            Cipher::EcdheEcdsaChacha20
        }
        "TLS_AES_128_GCM_SHA256"
        | "TLS_AES_256_GCM_SHA384"
        | "TLS_CHACHA20_POLY1305_SHA256"
        | "TLS_RSA_WITH_AES_128_CBC_SHA"
        | "TLS_RSA_WITH_AES_256_CBC_SHA"
        | "TLS_RSA_WITH_AES_128_GCM_SHA256"
        | "TLS_RSA_WITH_AES_256_GCM_SHA384"
        | "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA"
        | "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"
        | "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"
        | "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA" => return Some(None),
        _ => return None,
    }))
}

fn curve(name: &str) -> Option<Option<Curve>> {
    match name {
        "X25519" => Some(Some(Curve::X25519)),
        "CurveP256" => Some(Some(Curve::P256)),
        "CurveP384" => Some(Some(Curve::P384)),
        "CurveP521" => Some(None),
        _ => None,
    }
}
