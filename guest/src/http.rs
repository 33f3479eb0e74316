//! A client that needs nothing but a socket.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// How long a connection, a request or an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Such as 200.
    pub status: u16,
    /// What follows the head.
    pub body: String,
    /// Bytes received, the head included.
    pub length: u64,
}

/// What [`get`] sends.
pub fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.0\r\nHost: iotrace\r\n\r\n")
}

/// Asks for a path, one connection each.
///
/// # Errors
/// What went wrong with the connection, or an answer that is none.
pub fn get(address: SocketAddr, path: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request(path).as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    answer(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("no answer: {text:.200}")))
}

fn answer(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, body: body.to_owned(), length: text.len() as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_and_body_are_told_apart() {
        let text = "HTTP/1.0 503 Service Unavailable\r\ncontent-length: 4\r\n\r\na\r\n\r\nb";
        assert_eq!(
            answer(text),
            Some(Answer { status: 503, body: "a\r\n\r\nb".into(), length: text.len() as u64 })
        );
        for text in ["", "HTTP/1.0 200 OK\r\n", "SPDY 200\r\n\r\n", "HTTP/1.1\r\n\r\n"] {
            assert_eq!(answer(text), None, "{text}");
        }
    }
}
