//! A client that takes whatever comes: what happens to its connection is a result.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::client::Answer;

/// Whoever waits longer has found a request that hangs.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes that the system takes in for a client that does not read, as asked; Linux doubles it.
const SMALL_BUFFER: u32 = 2048;

/// Why there is no whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The server closed the connection before it said anything.
    Silent,
    /// The server closed the connection within an answer.
    Midway,
}

/// A connection.
pub(crate) struct Wire {
    reader: BufReader<TcpStream>,
}

impl Wire {
    /// Connects.
    pub(crate) fn open(address: SocketAddr) -> Result<Self, Cut> {
        TcpStream::connect(address).map_err(|_| Cut::Silent).map(Self::from)
    }

    /// Connects with room for little that was not read.
    pub(crate) fn open_small(address: SocketAddr) -> Result<Self, Cut> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let connected = runtime.unwrap().block_on(async {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.set_recv_buffer_size(SMALL_BUFFER)?;
            socket.connect(address).await?.into_std()
        });
        let stream = connected.map_err(|_| Cut::Silent)?;
        stream.set_nonblocking(false).unwrap();
        Ok(Self::from(stream))
    }

    /// Sends bytes. A server that has closed the connection is found when its answer is read.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.reader.get_mut().write_all(bytes);
    }

    /// Says that nothing more is sent.
    pub(crate) fn finish(&mut self) {
        let _ = self.reader.get_mut().shutdown(Shutdown::Write);
    }

    /// The whole answer.
    pub(crate) fn answer(&mut self) -> Result<Answer, Cut> {
        let mut answer = self.head()?;
        if answer.header("transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk()? {
                answer.body.extend(chunk);
            }
        } else if let Some(length) = answer.header("content-length") {
            answer.body = vec![0; length.parse().expect("a length is a number")];
            let read = self.reader.read_exact(&mut answer.body);
            read.map_err(|error| closed(&error, Cut::Midway))?;
        }
        Ok(answer)
    }

    /// Status and headers of an answer.
    pub(crate) fn head(&mut self) -> Result<Answer, Cut> {
        let line = self.line(Cut::Silent)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status line: {line:?}"));
        let mut headers = Vec::new();
        loop {
            let line = self.line(Cut::Midway)?;
            if line.is_empty() {
                return Ok(Answer { status, headers, body: Vec::new() });
            }
            let (name, value) = line.split_once(':').expect("a header has a colon");
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// The next chunk of a body; none at its end.
    pub(crate) fn chunk(&mut self) -> Result<Option<Vec<u8>>, Cut> {
        let line = self.line(Cut::Midway)?;
        let length = usize::from_str_radix(&line, 16).expect("a chunk has a length");
        let mut chunk = vec![0; length + 2];
        let read = self.reader.read_exact(&mut chunk);
        read.map_err(|error| closed(&error, Cut::Midway))?;
        chunk.truncate(length);
        Ok((length > 0).then_some(chunk))
    }

    /// Everything until the server closes the connection.
    pub(crate) fn rest(mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        if let Err(error) = self.reader.read_to_end(&mut rest) {
            closed(&error, Cut::Midway);
        }
        rest
    }

    fn line(&mut self, cut: Cut) -> Result<String, Cut> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => Err(cut),
            Ok(_) if !line.ends_with('\n') => Err(Cut::Midway),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(closed(&error, cut)),
        }
    }
}

impl From<TcpStream> for Wire {
    fn from(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { reader: BufReader::new(stream) }
    }
}

/// What an error of a read means; one that is not a close fails the test.
fn closed(error: &io::Error, cut: Cut) -> Cut {
    let is_close = matches!(
        error.kind(),
        ErrorKind::UnexpectedEof
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::NotConnected
    );
    assert!(is_close, "a request hangs: {error}");
    cut
}
