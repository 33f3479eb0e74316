//! Which clients' certificates are taken. One of two files that know rustls.

use std::{net::IpAddr, sync::Arc};

use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::danger::{ClientCertVerified, ClientCertVerifier},
};
use webpki::EndEntityCert;

/// What a client must show.
#[derive(Debug)]
pub struct Clients {
    /// Who vouches for it; nobody needs to where it only must have some certificate.
    pub trusted: Option<Arc<dyn ClientCertVerifier>>,
    /// Whether it must have a certificate at all.
    pub mandatory: bool,
    /// Names of which it must have one.
    pub names: Option<Vec<String>>,
    /// How it may sign.
    pub algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for Clients {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.trusted.as_ref().map_or(&[], |trusted| trusted.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(trusted) = &self.trusted {
            trusted.verify_client_cert(certificate, between, now)?;
        }
        if let Some(allowed) = &self.names {
            let certificate =
                EndEntityCert::try_from(certificate).map_err(|_| CertificateError::BadEncoding)?;
            if !allowed.iter().any(|name| has(&certificate, name)) {
                return Err(CertificateError::ApplicationVerificationFailure.into());
            }
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Whether this is one of the subject alternative names: of DNS and URI as text, or an IP address.
fn has(certificate: &EndEntityCert<'_>, name: &str) -> bool {
    let address = name.parse::<IpAddr>().map(|address| ServerName::IpAddress(address.into()));
    address.is_ok_and(|address| certificate.verify_is_valid_for_subject_name(&address).is_ok())
        || certificate.valid_dns_names().chain(certificate.valid_uri_names()).any(|one| one == name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    fn certificate() -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["host.example".to_owned()]).unwrap();
        params.subject_alt_names.extend([
            SanType::IpAddress("192.0.2.1".parse().unwrap()),
            SanType::IpAddress("2001:db8::1".parse().unwrap()),
            SanType::URI("spiffe://example/iotrace".try_into().unwrap()),
        ]);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().into()
    }

    #[test]
    fn a_name_is_found_as_it_is_written() {
        let certificate = certificate();
        let certificate = EndEntityCert::try_from(&certificate).unwrap();
        for name in ["host.example", "192.0.2.1", "2001:db8::1", "spiffe://example/iotrace"] {
            assert!(has(&certificate, name), "{name}");
        }
        for name in ["", "example", "other.example", "192.0.2.2", "2001:db8::2", "spiffe://example/iotrac"] {
            assert!(!has(&certificate, name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_certificate_makes_it_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            end in any::<prop::sample::Index>(),
            cut in any::<bool>(),
        ) {
            let mut bytes = certificate().to_vec();
            for (place, byte) in changes {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            if cut {
                bytes.truncate(end.index(bytes.len()));
            }
            if let Ok(certificate) = EndEntityCert::try_from(&bytes.into()) {
                prop_assert!(!has(&certificate, "spiffe://example/other"));
            }
        }
    }
}
