//! Where the daemon serves: addresses, and the sockets that listen there.

use std::{
    fmt, fs, io,
    net::{self, SocketAddr},
    os::{
        fd::{FromRawFd as _, OwnedFd},
        unix::{
            fs::FileTypeExt as _,
            net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream},
        },
    },
    path::{Path, PathBuf},
    str::FromStr,
    task::{Context, Poll, ready},
};

use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::systemd;

/// Where to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An IP address and a port; port 0 takes a free one.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Address, &'static str> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Address::Unix(path.into())),
            Some(_) => Err("expected an absolute path, such as unix:/run/iotrace/http.sock"),
            None => text.parse().map(Address::Tcp).map_err(
                |_| "expected an IP address and a port, such as 127.0.0.1:9469 or [::]:9469, or unix:/PATH",
            ),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(to),
            Address::Unix(path) => write!(to, "unix:{}", path.display()),
        }
    }
}

/// A socket that listens.
#[derive(Debug)]
pub struct Listener {
    socket: Accepting,
    /// Removed when it ends.
    _file: Option<File>,
}

#[derive(Debug)]
enum Accepting {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a socket in the file system.
    Unix(UnixStream),
}

impl Listener {
    /// Listens. A socket file that a killed daemon has left is replaced; whoever may open it may ask, as the umask
    /// has it, and it is removed when the listener is dropped. Needs a runtime.
    ///
    /// # Errors
    /// What the kernel says, such as an address in use.
    pub fn bind(address: &Address) -> io::Result<Listener> {
        match address {
            Address::Tcp(address) => Listener::of(net::TcpListener::bind(address)?.into()),
            Address::Unix(path) => {
                let socket = bind_file(path)?;
                let file = File(path.clone());
                Ok(Listener { _file: Some(file), ..Listener::of(socket.into())? })
            }
        }
    }

    /// The sockets that systemd passes to this process (`sd_listen_fds(3)`), none without. To be called once: they
    /// are closed when they are dropped.
    ///
    /// # Errors
    /// The descriptor that is no listening socket of ours.
    pub fn passed() -> io::Result<Vec<Listener>> {
        let take = |number| {
            // SAFETY: systemd has opened it for this process alone, as LISTEN_PID says, and nobody else takes it.
            let socket = unsafe { OwnedFd::from_raw_fd(number) };
            Listener::of(socket)
                .map_err(|error| io::Error::new(error.kind(), format!("descriptor {number}: {error}")))
        };
        systemd::sockets()?.map(take).collect()
    }

    /// A socket that listens already. Needs a runtime.
    ///
    /// # Errors
    /// That it is not one for streams over TCP or in the file system.
    pub fn of(socket: OwnedFd) -> io::Result<Listener> {
        let socket = Socket::from(socket);
        if socket.r#type()? != Type::STREAM || !socket.is_listener()? {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a stream socket that listens; see systemd.socket(5), ListenStream=",
            ));
        }
        socket.set_nonblocking(true)?;
        let socket = match socket.domain()? {
            Domain::UNIX => Accepting::Unix(UnixListener::from_std(OwnedFd::from(socket).into())?),
            _ => Accepting::Tcp(TcpListener::from_std(OwnedFd::from(socket).into())?),
        };
        Ok(Listener { socket, _file: None })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn address(&self) -> io::Result<Address> {
        Ok(match &self.socket {
            Accepting::Tcp(socket) => Address::Tcp(socket.local_addr()?),
            Accepting::Unix(socket) => {
                let address = socket.local_addr()?;
                Address::Unix(address.as_pathname().unwrap_or(Path::new("(no name)")).to_owned())
            }
        })
    }

    /// The next connection, when there is one.
    ///
    /// # Errors
    /// What the kernel says, such as too many open files.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Stream>> {
        Poll::Ready(match &self.socket {
            Accepting::Tcp(socket) => ready!(socket.poll_accept(context)).map(|it| Stream::Tcp(it.0)),
            Accepting::Unix(socket) => ready!(socket.poll_accept(context)).map(|it| Stream::Unix(it.0)),
        })
    }
}

/// A socket's file, removed when dropped.
#[derive(Debug)]
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            log::debug!("{} stays: {error}", self.0.display());
        }
    }
}

fn bind_file(path: &Path) -> io::Result<StdUnixListener> {
    let in_use = match StdUnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
        other => return other,
    };
    let socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let left = socket
        && StdUnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
    if !left {
        return Err(in_use);
    }
    fs::remove_file(path)?;
    StdUnixListener::bind(path)
}
