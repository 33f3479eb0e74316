//! What the web configuration says about TLS, as rustls takes it. One of two files that know rustls.

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
pub use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{
    RootCertStore, ServerConfig, SupportedProtocolVersion,
    crypto::{CryptoProvider, SupportedKxGroup, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
    version::{TLS12, TLS13},
};

use super::{
    clients::Clients,
    config::{Cipher, ClientAuth, Curve, Pem, Tls, Version},
    files,
};

/// The name of HTTP/2 where protocols are agreed on (RFC 7301).
pub const HTTP2: &[u8] = b"h2";

/// What rustls serves with.
///
/// # Errors
/// The file that cannot be read or used, and why.
pub fn server(tls: &Tls, http2: bool) -> Result<TlsAcceptor> {
    let provider = Arc::new(provider(tls));
    let versions: Vec<&'static SupportedProtocolVersion> =
        [(Version::Tls13, &TLS13), (Version::Tls12, &TLS12)]
            .into_iter()
            .filter(|(version, _)| (tls.lowest..=tls.highest).contains(version))
            .map(|(_, version)| version)
            .collect();
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions)
        .context("tls_server_config")?;
    let builder = match tls.client_auth {
        ClientAuth::None => builder.with_no_client_auth(),
        _ => builder.with_client_cert_verifier(clients(tls, &provider)?),
    };
    let chain = certificates("cert", &tls.cert)?;
    let text = read("key", &tls.key)?;
    let key = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|error| anyhow!("{}: no private key: {error}", name("key", &tls.key)))?;
    let mut config = builder
        .with_single_cert(chain, key)
        .with_context(|| format!("{} and {}", name("cert", &tls.cert), name("key", &tls.key)))?;
    config.ignore_client_order = tls.prefer_server;
    config.alpn_protocols =
        if http2 { vec![HTTP2.to_vec(), b"http/1.1".to_vec()] } else { vec![b"http/1.1".to_vec()] };
    Ok(Arc::new(config).into())
}

/// ring's ciphers and curves, those that are chosen, in their order.
fn provider(tls: &Tls) -> CryptoProvider {
    use ring::{cipher_suite as suites, kx_group as groups};
    let mut provider = ring::default_provider();
    if let Some(ciphers) = &tls.ciphers {
        // Those of TLS 1.3 are not chosen.
        provider.cipher_suites.retain(|suite| suite.tls13().is_some());
        provider.cipher_suites.extend(ciphers.iter().map(|cipher| match cipher {
            Cipher::EcdheRsaAes128 => suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            Cipher::EcdheRsaAes256 => suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            Cipher::EcdheRsaChacha20 => suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
            Cipher::EcdheEcdsaAes128 => suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            Cipher::EcdheEcdsaAes256 => suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            Cipher::EcdheEcdsaChacha20 => suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        }));
    }
    if let Some(curves) = &tls.curves {
        provider.kx_groups = curves
            .iter()
            .map(|curve| -> &'static dyn SupportedKxGroup {
                match curve {
                    Curve::X25519 => groups::X25519,
                    Curve::P256 => groups::SECP256R1,
                    Curve::P384 => groups::SECP384R1,
                }
            })
            .collect();
    }
    provider
}

fn clients(tls: &Tls, provider: &Arc<CryptoProvider>) -> Result<Arc<Clients>> {
    let mandatory = matches!(tls.client_auth, ClientAuth::RequireAny | ClientAuth::RequireAndVerify);
    let verified = matches!(tls.client_auth, ClientAuth::VerifyIfGiven | ClientAuth::RequireAndVerify);
    let trusted = match tls.client_ca.as_ref().filter(|_| verified) {
        None => None,
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for root in certificates("client_ca", ca)? {
                roots.add(root).with_context(|| name("client_ca", ca))?;
            }
            let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(provider));
            Some(builder.build().with_context(|| name("client_ca", ca))?)
        }
    };
    let algorithms = provider.signature_verification_algorithms;
    Ok(Arc::new(Clients { trusted, mandatory, names: tls.client_names.clone(), algorithms }))
}

fn certificates(what: &str, pem: &Pem) -> Result<Vec<CertificateDer<'static>>> {
    let text = read(what, pem)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| anyhow!("{}: {error}", name(what, pem)))?;
    ensure!(!found.is_empty(), "{}: no certificate in it", name(what, pem));
    Ok(found)
}

fn read(what: &str, pem: &Pem) -> Result<Vec<u8>> {
    match pem {
        Pem::File(path) => files::contents(path).with_context(|| name(what, pem)),
        Pem::Text(text) => Ok(text.clone().into_bytes()),
    }
}

/// How messages call it.
fn name(what: &str, pem: &Pem) -> String {
    match pem {
        Pem::File(path) => format!("{what}_file {}", files::shown(path)),
        Pem::Text(_) => what.to_owned(),
    }
}
