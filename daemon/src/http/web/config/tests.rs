use std::path::Path;

use proptest::prelude::*;

use super::*;

const HASH: &str = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG";

fn parse(text: &str) -> Result<WebConfig, Invalid> {
    WebConfig::parse(text, Path::new("/etc/iotrace"))
}

fn line(text: &str) -> (Option<u64>, String) {
    let Invalid { line, reason } = parse(text).unwrap_err();
    assert_eq!(reason.lines().count(), 1, "{reason}");
    (line, reason)
}

#[test]
fn an_empty_file_asks_for_nothing() {
    for text in
        ["", "# nothing\n", "{}", "tls_server_config:\n", "tls_server_config:\n  min_version: TLS12\n"]
    {
        let config = parse(text).unwrap();
        assert_eq!((config.tls, config.users, config.http2), (None, Users::default(), true), "{text}");
    }
}

#[test]
fn every_key_is_read() {
    let text = format!(
        "tls_server_config:\n  cert_file: server.crt\n  key_file: /keys/server.key\n  client_ca_file: ca.pem\n  \
         client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: [prom.example, root@example]\n  \
         min_version: TLS13\n  max_version: TLS13\n  prefer_server_cipher_suites: false\n  \
         cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA]\n  \
         curve_preferences: [CurveP256, CurveP521]\n\
         http_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: deny\n    \
         X-Content-Type-Options: nosniff\n    Strict-Transport-Security: max-age=1\n    X-XSS-Protection: ''\n\
         basic_auth_users:\n  alice: {HASH}\n\
         rate_limit:\n  interval: 1s\n  burst: 5\n"
    );
    let config = parse(&text).unwrap();
    let tls = config.tls.clone().unwrap();
    assert_eq!(tls.cert, Pem::File("/etc/iotrace/server.crt".into()));
    assert_eq!(tls.key, Pem::File("/keys/server.key".into()));
    assert_eq!((tls.client_auth, tls.lowest), (ClientAuth::RequireAndVerify, Version::Tls13));
    assert_eq!((tls.ciphers, tls.curves), (Some(vec![Cipher::EcdheRsaAes128]), Some(vec![Curve::P256])));
    assert_eq!(tls.client_names, Some(vec!["prom.example".to_owned()]));
    assert!(!config.http2 && !tls.prefer_server);
    assert_eq!(config.headers.len(), 3, "{:?}", config.headers);
    assert_eq!(config.users.0["alice"], HASH);
    assert_eq!(config.rate.map(|rate| rate.burst), Some(5));
    assert_eq!(config.notes.len(), 3, "what is left out is told: {:?}", config.notes);
    assert_eq!(config.files().count(), 3);
    assert!(!format!("{config:?}").contains(HASH));
}

#[test]
fn what_is_wrong_has_its_line() {
    const TLS: &str = "tls_server_config:\n  cert_file: a\n  key_file: b\n";
    for (text, at, word) in [
        ("\nbasic_auth:\n  x: y\n".to_owned(), 2, "basic_auth"),
        (format!("{TLS}  cert_fil: c\n"), 4, "cert_fil"),
        (format!("{TLS}  min_version: SSL3\n"), 4, "SSL3"),
        (format!("{TLS}  max_version: TLS11\n"), 4, "max_version"),
        (format!("{TLS}  min_version: TLS13\n  max_version: TLS12\n"), 5, "lower"),
        (format!("{TLS}  cipher_suites:\n  - TLS_NONE\n"), 5, "TLS_NONE"),
        (format!("{TLS}  curve_preferences:\n  - P1\n"), 5, "P1"),
        (format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n"), 4, "client_ca_file"),
        ("basic_auth_users:\n  a: secret\n".to_owned(), 2, "bcrypt"),
        (format!("basic_auth_users:\n  a: {}\n", HASH.replace("$10$", "$31$")), 2, "cost 31"),
        ("http_server_config:\n  headers:\n    X-Frame-Options: never\n".to_owned(), 3, "never"),
        ("http_server_config:\n  headers:\n    X-Other: a\n".to_owned(), 3, "X-Other"),
        (
            "http_server_config:\n  headers:\n    Content-Security-Policy: \"a\\nb\"\n".to_owned(),
            3,
            "characters",
        ),
        ("rate_limit:\n  interval: fast\n".to_owned(), 2, "fast"),
        ("rate_limit:\n  interval: -1\n".to_owned(), 2, "duration"),
    ] {
        let (found, reason) = line(&text);
        assert!(found == Some(at) && reason.contains(word), "{text}: {found:?} {reason}");
    }
    for text in [
        "tls_server_config:\n  cert_file: a\n",
        "tls_server_config:\n  client_auth_type: RequestClientCert\n",
    ] {
        assert!(line(text).1.contains("missing"));
    }
    assert!(!line("basic_auth_users:\n  a: hunter2\n").1.contains("hunter2"));
}

#[test]
fn bombs_are_refused() {
    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, before) in ('b'..='z').zip('a'..='y') {
        bomb += &format!("{name}: &{name} [{}]\n", format!("*{before},").repeat(9));
    }
    for text in [bomb, "[".repeat(100_000), "a:\n ".repeat(10_000), "&a *a".to_owned()] {
        line(&text);
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*") {
        let _refused = parse(&text);
    }

    #[test]
    fn what_looks_like_one_is_read_or_refused(
        lines in prop::collection::vec(
            prop::sample::select(vec![
                "tls_server_config:", "  cert_file: a", "  key: |", "  cipher_suites:", "  - x", "  -", "http_server_config:",
                "  headers: {", "}", "basic_auth_users: &a", "  <<: *a", "rate_limit:", "  interval: 1e9h", "  burst: -1",
                "  ? [a]", "---", "...", "\t", "!!binary x", "  interval: .inf", "'", "\"\\x",
            ]),
            0..20,
        )
    ) {
        let _refused = parse(&lines.join("\n"));
    }
}
