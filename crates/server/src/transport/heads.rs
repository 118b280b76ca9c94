//! Heads of requests that the HTTP library accepts and should not: those with lines that end
//! without a carriage return, and those a little longer than the limit.
//!
//! A bare line feed ends a line for some readers of HTTP and not for others: where a proxy and a
//! server disagree, a request can be hidden in another one (RFC 9112, 11.2). The bytes of each head
//! are looked at on their way to the library, which then answers the error: a bare line feed is
//! handed on as a zero byte, which the library refuses with 400, and a head is handed on only up to
//! the limit, so that a longer one is always one byte too long (431).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a line that are kept to read its header: more than a length takes, however it is
/// spaced.
const LINE_BYTES: usize = 128;

/// A connection whose heads are looked at.
pub(super) struct Heads<S> {
    stream: S,
    watch: Watch,
}

impl<S> Heads<S> {
    /// Watches a stream whose heads have at most `most` bytes.
    pub(super) fn new(stream: S, most: usize) -> Self {
        Self { stream, watch: Watch { most, part: HeadPart::Head(Head::default()) } }
    }
}

impl<S> Heads<S> {
    /// Returns the connection, whose bytes are looked at no more.
    pub(super) fn into_inner(self) -> S {
        self.stream
    }
}

/// Follows heads and bodies.
#[derive(Debug)]
struct Watch {
    most: usize,
    part: HeadPart,
}

#[derive(Debug)]
enum HeadPart {
    Head(Head),
    /// This many bytes of a body are still to come.
    Body(u64),
    /// The rest of the connection: its end closes it, or the library refuses it.
    Rest,
}

/// The head so far.
#[derive(Debug, Default)]
struct Head {
    bytes: usize,
    /// The beginning of the line.
    line: Vec<u8>,
    /// Number of bytes of the line.
    line_bytes: usize,
    last: u8,
    length: Option<u64>,
    /// Whether the end of its body is not given by one plain length.
    is_open: bool,
}

impl Watch {
    /// Returns the most bytes to read at once: a body's end is the end of a piece.
    fn room(&self) -> usize {
        match &self.part {
            HeadPart::Head(head) => self.most.saturating_sub(head.bytes),
            HeadPart::Body(left) => usize::try_from(*left).unwrap_or(usize::MAX),
            HeadPart::Rest => usize::MAX,
        }
    }

    fn pass(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            match &mut self.part {
                HeadPart::Rest => return,
                HeadPart::Body(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len() - at);
                    at += taken;
                    *left -= taken as u64;
                    if *left == 0 {
                        self.part = HeadPart::Head(Head::default());
                    }
                }
                HeadPart::Head(head) => {
                    let byte = &mut bytes[at];
                    at += 1;
                    if head.take(byte) {
                        self.part = head.then();
                    }
                }
            }
        }
    }
}

impl Head {
    /// Takes a byte; returns true if it is the last one of the head.
    fn take(&mut self, byte: &mut u8) -> bool {
        self.bytes += 1;
        let last = std::mem::replace(&mut self.last, *byte);
        if *byte != b'\n' {
            self.line_bytes += 1;
            if self.line.len() < LINE_BYTES {
                self.line.push(*byte);
            }
            return false;
        }
        if last != b'\r' {
            *byte = 0;
            return false;
        }
        // Empty lines before a request are skipped.
        let ends = self.line_bytes == 1 && self.bytes > 2;
        self.note_header();
        self.line.clear();
        self.line_bytes = 0;
        if self.bytes == 2 {
            self.bytes = 0;
        }
        ends
    }

    fn note_header(&mut self) {
        let Some(colon) = self.line.iter().position(|&byte| byte == b':') else { return };
        let (name, value) = (&self.line[..colon], &self.line[colon + 1..]);
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.is_open = true;
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            let whole = self.line_bytes <= LINE_BYTES;
            let value = std::str::from_utf8(value).ok().filter(|_| whole);
            let length = value.and_then(|value| value.trim_ascii().parse().ok());
            self.is_open |= length.is_none() || self.length.is_some();
            self.length = length;
        }
    }

    /// Returns the part that follows the head.
    fn then(&self) -> HeadPart {
        match self.length {
            _ if self.is_open => HeadPart::Rest,
            None | Some(0) => HeadPart::Head(Head::default()),
            Some(length) => HeadPart::Body(length),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heads<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let room = this.watch.room().min(buffer.remaining());
        let piece = buffer.initialize_unfilled_to(room);
        let mut piece = ReadBuf::new(piece);
        let read = Pin::new(&mut this.stream).poll_read(context, &mut piece);
        let taken = piece.filled_mut();
        this.watch.pass(taken);
        let count = taken.len();
        buffer.advance(count);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heads<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes handed on of a connection that is read in pieces of `size` bytes.
    fn passed(sent: &[u8], size: usize) -> Vec<u8> {
        let mut watch = Watch { most: 1000, part: HeadPart::Head(Head::default()) };
        let (mut sent, mut passed) = (sent.to_vec(), Vec::new());
        while !sent.is_empty() {
            let mut piece: Vec<u8> = sent.drain(..watch.room().min(size).min(sent.len())).collect();
            if piece.is_empty() {
                break;
            }
            watch.pass(&mut piece);
            passed.extend(piece);
        }
        passed
    }

    #[test]
    fn only_bare_line_feeds_of_heads_are_changed() {
        let sound: [&[u8]; 5] = [
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            b"\r\nPOST / HTTP/1.1\r\ncontent-LENGTH:  10 \r\n\r\n\n\n{\n}\n\r\n\r\nGET / \
                HTTP/1.1\r\n\r\n",
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n0\r\n\r\n",
            b"POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n\n\n",
            b"POST / HTTP/1.1\r\nContent-Length: 2, 2\r\n\r\n\n\n",
        ];
        for sent in sound {
            for size in [1, 2, 3, 7, 1000] {
                assert_eq!(passed(sent, size), sent, "{}", String::from_utf8_lossy(sent));
            }
        }
        for (sent, feeds) in [
            (&b"GET / HTTP/1.1\nHost: a\n\n"[..], 3),
            (b"GET / HTTP/1.1\r\nHost: a\n\r\n", 1),
            (b"GET / HTTP/1.1\r\nA: b\nC: d\r\n\r\n", 1),
            (b"\nGET / HTTP/1.1\r\n\r\n", 1),
            (b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\n\nGET / HTTP/1.1\n\r\n\r\n", 1),
        ] {
            for size in [1, 2, 3, 7, 1000] {
                let zeros = passed(sent, size).iter().filter(|&&byte| byte == 0).count();
                assert_eq!(zeros, feeds, "{}", String::from_utf8_lossy(sent));
            }
        }
    }

    #[test]
    fn no_more_of_a_head_is_handed_on_than_the_limit() {
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(5000));
        for size in [1, 300, 4096] {
            assert_eq!(passed(long.as_bytes(), size).len(), 1000);
        }
    }
}
