//! A server in a folder with its web configuration, certificates for it, and clients.

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use iotrace::{
    http::{Limits, Web, serve},
    listen::Listener,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    version::{TLS12, TLS13},
};

use crate::fixed::Fixed;

/// A folder with a web configuration, and a server that serves by it.
pub struct Server {
    pub folder: TempDir,
    address: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// A client's side of a connection.
pub type Stream = StreamOwned<ClientConnection, TcpStream>;

/// TLS, with what [`issue`] makes for `localhost`.
pub const TLS: &str = "tls_server_config:\n  cert_file: localhost.crt\n  key_file: localhost.key\n";

impl Server {
    pub fn start(folder: TempDir, config: &str, open_health: bool, limits: Limits) -> Server {
        let file = folder.path().join("web.yml");
        fs::write(&file, config).unwrap();
        let web = Web::read(&file, open_health).unwrap();
        Server::serve_within(folder, web, limits)
    }

    fn serve_within(folder: TempDir, web: Web, limits: Limits) -> Server {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listeners = vec![Listener::of(tcp.into()).unwrap()];
                serve(listeners, Fixed, web, limits, async { drop(stopped.await) }).await;
            });
        });
        Server { folder, address, stop: Some(stop), thread: Some(thread) }
    }

    pub fn serve(folder: TempDir, web: Web) -> Server {
        Server::serve_within(folder, web, Limits::default())
    }

    /// Health is open.
    pub fn of(config: &str) -> Server {
        Server::start(TempDir::new().unwrap(), config, true, Limits::default())
    }

    /// Health is not.
    pub fn closed(folder: TempDir, config: &str) -> Server {
        Server::start(folder, config, false, Limits::default())
    }

    /// With [`TLS`] and these further lines.
    pub fn tls_of(more: &str, limits: Limits) -> Server {
        let folder = TempDir::new().unwrap();
        issue(folder.path(), &authority(), "localhost");
        Server::start(folder, &format!("{TLS}{more}"), true, limits)
    }

    pub fn tcp(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    pub fn get(&self, path: &str, login: Option<&str>) -> String {
        ask(self.tcp(), path, login).unwrap()
    }

    /// A connection that agrees on TLS when it is first used.
    pub fn tls(&self, client: ClientConfig) -> Stream {
        let connection = ClientConnection::new(Arc::new(client), "localhost".try_into().unwrap()).unwrap();
        StreamOwned::new(connection, self.tcp())
    }

    pub fn ask_tls(&self, client: ClientConfig, path: &str) -> std::io::Result<String> {
        ask(self.tls(client), path, None)
    }

    /// That it still serves over TLS.
    pub fn assert_serves(&self) {
        let answer = self.ask_tls(client(self.folder.path(), None, false), "/-/healthy").unwrap();
        assert_eq!(status(&answer), "200");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().map(thread::JoinHandle::join);
    }
}

/// The whole answer.
pub fn ask(mut stream: impl Read + Write, path: &str, login: Option<&str>) -> std::io::Result<String> {
    let login = login.map(|it| format!("Authorization: Basic {}\r\n", BASE64_STANDARD.encode(it)));
    let login = login.unwrap_or_default();
    stream.write_all(
        format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{login}\r\n").as_bytes(),
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(String::from_utf8(answer).unwrap())
}

pub fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_else(|| panic!("{answer:?}"))
}

pub fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate for this name in `NAME.crt`, its key in `NAME.key`.
pub fn issue(folder: &Path, authority: &CertifiedIssuer<'_, KeyPair>, name: &str) {
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, authority).unwrap();
    fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    fs::write(folder.join(format!("{name}.crt")), certificate.pem()).unwrap();
    fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
}

/// A client that trusts `ca.pem` of the folder, and shows the certificate of this name; `old` speaks TLS 1.2.
pub fn client(folder: &Path, name: Option<&str>, old: bool) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("ca.pem")).unwrap()).unwrap();
    let versions = if old { [&TLS12] } else { [&TLS13] };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(&versions).unwrap().with_root_certificates(roots);
    match name {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let chain = vec![CertificateDer::from_pem_file(folder.join(format!("{name}.crt"))).unwrap()];
            let key = PrivateKeyDer::from_pem_file(folder.join(format!("{name}.key"))).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    }
}
